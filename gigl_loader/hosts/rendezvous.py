"""Rendezvous of the ranks that open one graph, and the map from its partitions to the ranks that have them.

In every step, some ranks publish a value and all ranks receive it. A rank that fails makes all steps fail,
also those it has published: a late rank then finds that the other ranks have given up, and no rank waits
for a value that will not come.
"""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from gigl_loader.errors import FormatError, GiglError, StorageUnavailable
from gigl_loader.group import name_ranks, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gigl_loader.group import RankGroup

STEPS = ("holding", "endpoint", "reach", "cache", "joined")
"""Steps of opening a graph, in order. After the last, nothing can fail any more."""

WHOLE = "dataset/whole"
"""Prefix of the keys, by graph digest, at which a rank publishes that it opened a whole graph alone."""

_TURN = "dataset"
_EXCUSE = "excuse"

_KINDS = {
    kind.__name__: kind
    for kind in (FormatError, FileNotFoundError, OSError, StorageUnavailable, TimeoutError, ValueError)
}


class Rendezvous:
    """One rank's side of a rendezvous of all ranks."""

    def __init__(
        self, group: RankGroup, *, timeout: float, name: str = _TURN, steps: Sequence[str] = STEPS
    ) -> None:
        """Each step has a timeout of ``timeout`` seconds. The n-th of a ``name`` on each rank is one."""
        self.group = group
        self._key = f"{name}/{group.turn(name)}"
        self._steps = steps
        self.timeout = timeout
        self._failed = False

    def tell(self, step: str, value: Any) -> None:
        """Publish this rank's ``value`` (JSON-able) for a step."""
        self.group.publish(f"{self._key}/{step}", json.dumps({"value": value}))

    def told(self, step: str) -> dict[int, Any]:
        """Return the values published so far, by rank. Does not wait."""
        texts = self.group.published(f"{self._key}/{step}")
        return {rank: _value(rank, text) for rank, text in texts.items()}

    @contextmanager
    def telling_failures(self) -> Iterator[None]:
        """Publish an exception of the context as a failure of all steps."""
        try:
            yield
        except BaseException as error:
            self.tell_failure(error)
            raise

    def tell_failure(self, error: BaseException) -> None:
        """Publish ``error`` as a failure of all steps.

        Publishes only the first error, and no error that was received from another rank, which has published
        it.
        """
        if self._failed:
            return
        self._failed = True
        with suppress(ConnectionError):  # Of two failures, the first counts.
            for step in self._steps:
                self.group.publish(f"{self._key}/{step}", _failure(error))

    def hear(
        self,
        step: str,
        *,
        what: str,
        ranks: Sequence[int] | None = None,
        missed: Callable[[list[int]], None] | None = None,
    ) -> list[Any]:
        """Wait for the values of ``ranks`` (default: all), and return them in that order.

        Raises a failure of another rank as the same class. ``TimeoutError``: "ranks 2, 3 did not ``what``".
        ``missed`` is called once a second with the ranks whose value is missing.
        """
        texts = self.group.collect(
            f"{self._key}/{step}",
            timeout=self.timeout,
            what=what,
            ranks=ranks,
            check=self._check,
            missed=missed,
        )
        return [json.loads(text)["value"] for text in texts]

    def check_excuses(self, ranks: Sequence[int]) -> None:
        """Raise the excuse of one of ``ranks``, if it has published one."""
        self._check(self.group.published(f"{self._key}/{_EXCUSE}", ranks=ranks))

    def settle(self, step: str, *, ranks: Sequence[int]) -> None:
        """Wait until each of ``ranks`` has published a value or a failure, or until the timeout.

        Raises nothing: where the store is gone, so are the ranks that could still publish.
        """
        key = f"{self._key}/{step}"
        with suppress(ConnectionError):
            wait_for(lambda: len(self.group.published(key, ranks=ranks)) == len(ranks), self.timeout)

    def first(self, key: str, value: str) -> str:
        """Return the value of the first rank that called this with ``key``."""
        return self.group.first(f"{self._key}/{key}", value)

    def _check(self, texts: dict[int, str]) -> None:
        """Raise the failure of a rank, if there is one."""
        try:
            for rank, text in texts.items():
                _value(rank, text)
        except Exception:
            self._failed = True
            raise


def excuse(group: RankGroup, error: BaseException) -> None:
    """Publish why this rank does not come to the next rendezvous, for the ranks that wait for it.

    The rank may still come: an excuse counts only while the rank is missing.
    """
    with suppress(ConnectionError):
        group.publish(f"{_TURN}/{group.turns(_TURN) + 1}/{_EXCUSE}", _failure(error))


def _failure(error: BaseException) -> str:
    return json.dumps({"failure": [_kind(error), str(error) or repr(error)]})


def _kind(error: BaseException) -> str:
    """Return what other ranks raise: the nearest base classes that they know by name, joined by ``+``."""
    nearest: list[type] = []
    for kind in type(error).__mro__:
        if kind.__name__ in _KINDS and not any(issubclass(each, kind) for each in nearest):
            nearest.append(kind)
    return "+".join(each.__name__ for each in nearest)


def _class_of(kind: str) -> type[Exception]:
    known = tuple(_KINDS[name] for name in kind.split("+") if name in _KINDS)
    return type(kind, known, {}) if len(known) > 1 else (*known, GiglError)[0]


def _value(rank: int, text: str) -> Any:
    told = json.loads(text)
    if "failure" not in told:
        return told["value"]
    kind, message = told["failure"]
    raise _class_of(kind)(f"rank {rank}: {message}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Graph and partitions that one rank has opened."""

    host_index: int
    local_rank: int
    digest: str
    """Digest of the graph."""
    partitions: tuple[int, ...]
    address: str
    """Address under which other hosts may reach this host."""
    machine: str = ""
    """Machine of the rank: the same for hosts that a test simulates on one machine."""
    where: str
    """Path of the graph."""
    versions: tuple[int, int, int] = (0, 0, 0)
    """Newest and oldest wire version of the rank's build, and its draw specification."""
    library: str = ""
    """Version of the library, for people."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Holding:
        """Return the holding that a rank published as ``asdict``. Fields of later builds are ignored."""
        known = {each.name: document[each.name] for each in fields(cls) if each.name in document}
        for name in ("partitions", "versions"):
            known[name] = tuple(known.get(name, ()))
        return cls(**known)


def check_holdings(holdings: Sequence[Holding], num_partitions: int) -> None:
    """Raise ``ValueError``, on every rank alike, unless all draw alike, and hold one whole graph together.

    ``holdings`` are by rank. The message lists the partitions of each rank.
    """
    _require_same(
        holdings,
        lambda each: f"draw specification {each.versions[2]}",
        lambda each: each.versions[2],
        "ranks would draw different batches: {}; install the same version of gigl-loader on all hosts",
    )
    _require_same(
        holdings,
        lambda each: f"{each.digest[:12]} at {each.where}",
        lambda each: each.digest,
        "hosts have different graphs: {}; copy one and the same partitioned graph to all hosts",
    )
    for host in sorted({each.host_index for each in holdings}):
        _require_same(
            [each if each.host_index == host else None for each in holdings],
            lambda each: f"partitions {_listed(each.partitions)}",
            lambda each: each.partitions,
            f"ranks of host {host} opened different partitions: {{}}; all ranks of a host share one "
            "service and pass the same partitions",
        )
    held = {each.host_index: each.partitions for each in holdings}
    missing = sorted(set(range(num_partitions)).difference(*held.values()))
    if missing:
        who = "; ".join(f"host {host} holds {_listed(parts)}" for host, parts in sorted(held.items()))
        raise ValueError(
            f"no host holds {_named(missing)} of {num_partitions}: {who}; copy what is missing to a host, "
            "or pass each host its own (partitions=)"
        )


def _require_same(
    holdings: Sequence[Holding | None],
    shown: Callable[[Holding], str],
    compared: Callable[[Holding], object],
    message: str,
) -> None:
    ranks: dict[object, list[int]] = defaultdict(list)
    texts: dict[object, str] = {}
    for rank, holding in enumerate(holdings):
        if holding is not None:
            ranks[compared(holding)].append(rank)
            texts[compared(holding)] = shown(holding)
    if len(ranks) > 1:
        raise ValueError(
            message.format(", ".join(f"{texts[key]} on {name_ranks(who)}" for key, who in ranks.items()))
        )


def _named(partitions: Sequence[int]) -> str:
    return f"partition{'s' if len(partitions) > 1 else ''} {_listed(partitions)}"


def _listed(partitions: Sequence[int]) -> str:
    shown = [str(part) for part in partitions]
    return ", ".join(shown if len(shown) <= 16 else [*shown[:8], "...", shown[-1]]) or "none"
