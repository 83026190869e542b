"""Place of one loader among the ranks: its process group, its share of the input, and the agreement of ranks.

No rank waits while loaders are built, so ranks may build several in any order where each has its ``name``;
without, class and count identify them, and all ranks build them in one order. A difference raises
on the rank that comes later, and on all ranks when the first epoch begins.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections import Counter
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from gigl_loader.group import RankGroup, name_ranks
from gigl_loader.loaders.arguments import seconds
from gigl_loader.sampling.schedule import Shard
from gigl_loader.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from gigl_loader.loaders.arguments import LoaderOptions

_LOGGER = logging.getLogger(__name__)

_WHOLE_INPUT = (
    "pass the whole input on every rank, which the loader shards, "
    "or sharding='none' where it is sharded already"
)
_HINTS = {
    "draw specification": "install the same version of gigl-loader on every rank",
    "graph": "open the same graph on every rank, or build it from the same data",
    "digest of seeds": _WHOLE_INPUT,
    "number of seeds": _WHOLE_INPUT,
    "seed": "pass the same seed on every rank, or none: one is then agreed upon",
}
"""Remedy by the field that differs. The first field that differs counts."""
_MAX_VALUE = 80


class RankConsistency:
    """Comparison of one loader over the ranks, as seen by one rank."""

    def __init__(self, group: RankGroup, kind: str, name: str | None) -> None:
        """``name`` (by default ``kind``) identifies the loader, with a count where several have it."""
        self._group = group
        turn = group.turn(f"loader/{name or kind}")
        self.name = name or f"{kind}-{turn}"
        self._key = f"loader/{name or kind}/{turn}"
        self._waited = False

    def run_seed(self, random: int) -> int:
        """Return the random seed of the rank that came first."""
        return int(self._group.first(f"{self._key}/seed", str(random)))

    def publish(self, made_with: Mapping[str, Any]) -> None:
        """Publish what this rank's loader was made with. ``ValueError`` where another rank's differs."""
        self._group.publish(f"{self._key}/made", json.dumps(made_with))
        self._compare("made", self._group.published(f"{self._key}/made"))

    def fail(self, error: BaseException) -> None:
        """Publish that this rank cannot build its loader."""
        failure = {"failure": f"{type(error).__name__}: {error}"}
        with suppress(ConnectionError):  # Of two failures, the first counts.
            self._group.publish(f"{self._key}/made", json.dumps(failure))

    @contextmanager
    def telling_failures(self) -> Iterator[None]:
        """Publish an exception to all ranks."""
        try:
            yield
        except Exception as error:
            self.fail(error)
            raise

    def begin(self, where: Mapping[str, int], timeout: float) -> None:
        """Before the first epoch: wait until every rank has built this loader, and compare.

        ``where`` says where this rank begins. A rank that begins elsewhere is an error, found without waiting
        for it. ``TimeoutError`` names the ranks that did not come within ``timeout`` seconds.
        """
        if self._waited:
            return
        what = (
            f"build the loader {self.name} (every rank must, or pass sharding='none' where each is to have "
            "the whole input)"
        )
        self._group.collect(
            f"{self._key}/made",
            timeout=timeout,
            what=what,
            check=lambda made: self._compare("made", made),
        )
        self._group.publish(f"{self._key}/begun", json.dumps(where))
        self._compare("begun", self._group.published(f"{self._key}/begun"))
        self._waited = True

    def _compare(self, what: str, texts: Mapping[int, str]) -> None:
        told: dict[int, dict[str, Any]] = {rank: json.loads(text) for rank, text in texts.items()}
        for rank, values in told.items():
            if "failure" in values:
                raise RuntimeError(f"rank {rank} could not build {self.name}: {values['failure']}")
        mine = told[self._group.rank]
        differ = [
            field
            for field in sorted(set().union(*told.values()))
            if any(values.get(field) != mine.get(field) for values in told.values())
        ]
        if differ:
            listed = "; ".join(_difference(field, told) for field in differ)
            hint = next((hint for field, hint in _HINTS.items() if field in differ), None)
            remedy = hint or (
                "load the same state on every rank"
                if what == "begun"
                else "pass the same arguments on every rank"
            )
            raise ValueError(f"{self.name}: ranks differ: {listed}. To mend it: {remedy}")


def _difference(field: str, told: Mapping[int, Mapping[str, Any]]) -> str:
    """Return "batch_size is 8 on rank 1, 4 on ranks 0, 2"."""
    ranks: dict[str, list[int]] = {}
    for rank, values in sorted(told.items()):
        ranks.setdefault(json.dumps(values.get(field), sort_keys=True), []).append(rank)
    sides = sorted(ranks.items(), key=lambda side: len(side[1]))
    return f"{field} is " + ", ".join(f"{_short(value)} on {name_ranks(who)}" for value, who in sides)


def _short(value: str) -> str:
    return value if len(value) <= _MAX_VALUE else f"{value[:_MAX_VALUE]}..."


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementOptions:
    """Checked options of a loader that concern the ranks."""

    kind: str
    """Class of the loader: names it where ``name`` does not."""
    name: str | None
    sharding: str | None
    """``None``: by batches in a process group, else none."""
    even_batches: bool
    timeout_s: float
    resolve: Callable[[float], Topology]
    """Returns the topology of this process within so many seconds."""

    @classmethod
    def read(cls, kind: str, given: LoaderOptions, resolve: Callable[[float], Topology]) -> PlacementOptions:
        """Check the options of a loader of class ``kind``. ``given`` has every option."""
        return cls(
            kind=kind,
            name=given["name"],
            sharding=given["sharding"],
            even_batches=given["even_batches"],
            timeout_s=seconds("timeout", given["timeout"], above_zero=True),
            resolve=resolve,
        )

    def __post_init__(self) -> None:
        _sharding(self.sharding, many_ranks=False)
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            raise ValueError(f"name must be a text that is not empty, got {self.name!r}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """The process group that a loader was built in, and the loader's place there."""

    _count: ClassVar[Counter[str]] = Counter()
    """Loaders without a group so far, by class: the default name is class and count."""

    options: PlacementOptions
    name: str
    """Of the loader, in messages."""
    group: RankGroup | None
    sharding: str
    topology: Topology
    agreement: RankConsistency | None
    """With the ranks that share the input; ``None`` where none does."""
    since: float
    """When the loader began to take this place (monotonic)."""
    is_given: bool = False
    """The topology was given: no process group changes it."""

    def among(self, topology: Topology | None) -> Placement:
        """Return the place of this process at ``topology``, by default that of the process group of now."""
        if topology is None:
            return Placement.find(self.options, known_as=self.name)
        sharding = _sharding(self.options.sharding, many_ranks=True)
        return Placement(
            options=self.options,
            name=self.name,
            group=None,
            sharding=sharding,
            topology=topology,
            agreement=None,
            since=time.monotonic(),
            is_given=True,
        )

    @classmethod
    def find(cls, options: PlacementOptions, *, known_as: str | None = None) -> Placement:
        """Return the place of this process, now. ``known_as``: name that the loader has had so far.

        Without torchrun's variables, a rank that shares its input waits until all ranks say where they run.
        """
        since = time.monotonic()
        group = RankGroup.current(patience_s=options.timeout_s)
        sharding = _sharding(options.sharding, many_ranks=group is not None)
        # A loader that stands alone must not wait for other ranks, not even to know where it stands.
        alone = options.sharding == "none"
        topology = Topology.without_asking() if alone else options.resolve(options.timeout_s)
        agreement = None
        if group is not None and sharding != "none":
            agreement = RankConsistency(group, options.kind, options.name)
            known_as = agreement.name
        return cls(
            options=options,
            name=options.name or known_as or cls._next_name(options.kind),
            group=group,
            sharding=sharding,
            topology=topology,
            agreement=agreement,
            since=since,
        )

    @classmethod
    def _next_name(cls, kind: str) -> str:
        cls._count[kind] += 1
        return f"{kind}-{cls._count[kind]}"

    @property
    def logs_for_all(self) -> bool:
        """Whether this rank logs what concerns all ranks that share the input."""
        return self.agreement is None or self.topology.rank == 0

    @property
    def shard(self) -> Shard:
        """This rank's share of the input."""
        if self.sharding == "none":
            return Shard()
        return self._share(self.topology.rank, self.topology.world_size)

    @property
    def next_shard(self) -> Shard:
        """This rank's share in the next epoch: in the process group of now, where there is one."""
        group = None if self.is_given else RankGroup.current()
        if group is None or _sharding(self.options.sharding, many_ranks=True) == "none":
            return self.shard
        return self._share(group.rank, group.world_size)

    def _share(self, rank: int, world_size: int) -> Shard:
        return Shard(rank=rank, world_size=world_size, even_batches=self.options.even_batches)

    def __str__(self) -> str:
        return f"rank {self.topology.rank} of {self.topology.world_size}"

    def run_seed(self, given: int | None, *, random: int | None = None) -> int:
        """Return ``given``, else a random run seed, the same on all ranks that share the input.

        It is what the first of them proposes: ``random``, or a new number.
        """
        if given is not None:
            return given
        proposed = secrets.randbits(63) if random is None else random
        return proposed if self.agreement is None else self.agreement.run_seed(proposed)

    def publish(self, made_with: Mapping[str, Any]) -> None:
        """Publish what the loader was made with to the ranks that share the input, and compare."""
        if self.agreement is not None:
            self.agreement.publish(made_with)

    def telling_failures(self) -> AbstractContextManager[None]:
        """Publish an exception to the ranks that share the input."""
        return nullcontext() if self.agreement is None else self.agreement.telling_failures()

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Start the source of a loader, as ``telling_failures``. Log how long the loader took in all."""
        with self.telling_failures():
            yield
        _LOGGER.info("%s: ready after %.2f s", self.name, time.monotonic() - self.since)

    def has_changed(self) -> bool:
        """Whether this process has joined or changed a process group since.

        ``RuntimeError`` where the group that shared the input is gone: this rank's share would pass for the
        whole.
        """
        if self.is_given:
            return False
        current = RankGroup.current()
        if current is not None:
            return self.group is None or not current.is_same(self.group)
        if self.agreement is not None:
            raise RuntimeError(
                f"{self.name} has the share of {self}, of a process group that was destroyed since: call "
                "reshard(), or build a new loader"
            )
        return False


def _sharding(value: Any, *, many_ranks: bool) -> str:
    """Return how ranks share the input: ``value``, or by default batches where there are several."""
    if value is None:
        return "batches" if many_ranks else "none"
    if value not in ("batches", "none"):
        raise ValueError(f"sharding must be 'batches', 'none' or None, got {value!r}")
    return str(value)
