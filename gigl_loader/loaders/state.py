"""State of a loader: which batches of which epoch the ranks were given, and the run that they belong to.

Batches count over all ranks, so that a state is the same on every rank, and any number of ranks goes on with
the batches that are left.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gigl_loader.graph.schema import type_name
from gigl_loader.native import draws
from gigl_loader.sampling.schedule import Progress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gigl_loader.loaders.dataset import NodeDirectory
    from gigl_loader.loaders.inputs import LoaderInput
    from gigl_loader.loaders.placement import Placement
    from gigl_loader.sampling.plan import BatchPlan
    from gigl_loader.sampling.schedule import Schedule, Shard

_FORMAT = 2
"""Version of a loader's state. Raised when the meaning of a field changes."""
_OF_A_RANK = 1  # Batches are those of one rank: such a state loads on ranks as many as it was taken on.
_FIRST_DRAWS = 1  # Draw specification of states that name none: they are older than the second one.


@dataclass(slots=True, eq=False)
class Place:
    """Place of one iterator."""

    placement: Placement
    """Of its loader among the ranks, when the iterator was made."""
    progress: Progress | None = None
    """``None`` until its first batch is requested."""


@dataclass(slots=True, eq=False)
class Epochs:
    """Epochs of a loader: the one that begins next, and the one that the latest iterator is in."""

    pending: Progress = field(default_factory=lambda: Progress(epoch=0))
    """Of the epoch that the next iterator to be advanced begins."""
    latest: Place | None = None
    """Of the latest iterator; ``None`` also when a state was loaded since."""

    @property
    def current(self) -> Progress:
        """Progress of the latest iterator, or of the epoch that it is to begin."""
        latest = self.latest
        return self.pending if latest is None or latest.progress is None else latest.progress

    def next_up(self) -> Progress:
        """Return the pending epoch. One that had ended when its state was taken gives way to the next."""
        if self.pending.ended:
            self.pending = Progress(epoch=self.pending.next_epoch, loaded=True)
        return self.pending

    def begin(self, place: Place) -> Progress:
        """Give an iterator the pending epoch."""
        progress = place.progress = self.next_up()
        self.pending = Progress(epoch=progress.epoch + 1)
        return progress

    def resume(self, progress: Progress) -> None:
        """Let the next iterator begin at ``progress``."""
        self.pending, self.latest = progress, None

    def turn_to(self, epoch: int) -> Progress | None:
        """Let the next iterator begin ``epoch``, or go on in it. Return a loaded place that loses batches.

        The rest of an epoch is empty where every batch was given.
        """
        left = self.pending
        if epoch == left.epoch:
            left.ended = False
            self.latest = None
            return None
        self.resume(Progress(epoch=epoch))
        return left if left.loaded and left.is_underway else None


def describe_run(
    nodes: NodeDirectory, plan: BatchPlan, seeds: LoaderInput, schedule: Schedule
) -> dict[str, Any]:
    """Return, as plain values, all that batches depend on but run seed and epoch.

    Equal for every partitioning of a graph.
    """
    described: dict[str, Any] = json.loads(plan.to_json())
    del described["run_seed"]
    schema = nodes.schema
    return {
        **described,
        "batch_size": schedule.batch_size,
        "shuffle": schedule.shuffle,
        "drop_last": schedule.drop_last,
        "sharding": str(schedule.shard),
        **({} if schedule.draw is None else {"drawn_by_weights": True}),
        "edge_dir": schema.edge_dir,
        "number of nodes": {kind: contents.count for kind, contents in schema.nodes.items()},
        "number of edges": {type_name(kind): contents.count for kind, contents in schema.edges.items()},
        **seeds.described(nodes),
    }


@dataclass(frozen=True, slots=True)
class Given:
    """What all ranks together were given of an epoch. Batches are numbered over all ranks."""

    epoch: int
    batches: int
    """Every batch before this one was given."""
    ahead: tuple[int, ...] = ()
    """Batches that this rank was given beyond it; empty where batches come in order."""

    @classmethod
    def of(cls, progress: Progress, schedule: Schedule) -> Given:
        """Return what ``progress`` of this rank says of all ranks. ``schedule``: of this rank."""
        if progress.ended:
            return cls(progress.next_epoch, 0)
        steps, shard = schedule.from_origin(progress.origin), schedule.shard
        ahead = [progress.origin + step * shard.world_size + shard.rank for step in sorted(progress.ahead)]
        return cls(progress.epoch, steps.number_of(progress.first), tuple(ahead))

    def progress(self, schedule: Schedule, *, loaded: bool = True) -> Progress:
        """Return the progress of a rank, whose ``schedule`` may be of another number of ranks.

        The epoch has ended where no rank has a batch left: a state that was taken before the iterator said
        so is no other than one taken after it.
        """
        rank, ranks = schedule.shard.rank, schedule.shard.world_size
        step, origin = divmod(self.batches, ranks)
        steps = schedule.from_origin(origin)
        if self.batches > 0 and steps.num_steps <= step:
            return Progress.at_end(self.epoch, schedule.num_batches, loaded=loaded)
        most = steps.num_batches
        own = [divmod(number - origin, ranks) for number in self.ahead]
        ahead = {each for each, of_rank in own if of_rank == rank and each < most}
        return Progress(epoch=self.epoch, origin=origin, first=min(step, most), ahead=ahead, loaded=loaded)


def agreed_place(progress: Progress, schedule: Schedule) -> dict[str, int]:
    """Return epoch and batch of ``progress``, equal on all ranks that begin at the same place."""
    steps = schedule.from_origin(progress.origin)
    return {"epoch": progress.epoch, "batch": steps.number_of(progress.first + len(progress.ahead))}


def state_of(
    progress: Progress, schedule: Schedule, run: Mapping[str, Any], *, in_order: bool
) -> dict[str, Any]:
    """Return the state of a loader as plain values (JSON will do). ``run``: its seed, and ``made_with``.

    It names its rank where batches come in any order: the other ranks may be elsewhere.
    """
    given, shard = Given.of(progress, schedule), schedule.shard
    return {
        "format": _FORMAT,
        "draws": draws.DRAW_SPECIFICATION,
        "epoch": given.epoch,
        "batches": given.batches,
        "ahead": list(given.ahead),
        **({} if in_order or shard.world_size == 1 else {"of": _name(shard)}),
        **run,
    }


def read_state(state: Any, made_with: Mapping[str, Any], schedule: Schedule) -> Progress:
    """Return the progress that ``state`` holds. ``ValueError`` names what differs or is wrong."""
    check_same_run(state, made_with)
    if state["format"] == _OF_A_RANK:
        return _of_a_rank(state, schedule)
    epoch, batches, ahead = _place(state, most=schedule.total, count=_beyond(schedule))
    here = _name(schedule.shard)
    if state.get("of", here) != here:
        raise ValueError(
            f"the state is of {state['of']}, where batches came in any order (in_order=False), and this is "
            f"{here}: each rank of such a run loads the state that it left, on as many ranks"
        )
    return Given(epoch, batches, tuple(ahead)).progress(schedule)


def _name(shard: Shard) -> str:
    return f"rank {shard.rank} of {shard.world_size}"


def _beyond(schedule: Schedule) -> int:
    """Return the number after the last that a batch may have: what remains may give each rank a batch."""
    return schedule.total + schedule.shard.world_size - 1


def state_at(state: Mapping[str, Any], step: int, schedule: Schedule) -> dict[str, Any]:
    """Return ``state`` with all steps of its epoch before ``step`` given."""
    number = step if state["format"] == _OF_A_RANK else schedule.number_of(step)
    return {**state, "batches": number, "ahead": []}


def state_before(
    state: Mapping[str, Any], steps: int, progress: Progress, schedule: Schedule
) -> Mapping[str, Any]:
    """Return ``state`` without the last ``steps`` of its epoch: batches that were handed out and not used.

    ``progress``: of the loader. Where batches come in any order, the last ones are not known.
    """
    if progress.ended or progress.ahead or progress.first < steps:
        return state
    return state_at(state, progress.first - steps, schedule.from_origin(progress.origin))


def _of_a_rank(state: Mapping[str, Any], schedule: Schedule) -> Progress:
    """Return the progress that a state of version 0.1 holds.

    It may be of a rank with a batch more than this one.
    """
    most = schedule.num_batches
    epoch, first, ahead = _place(state, most=schedule.num_steps, count=schedule.num_steps)
    if 0 < first == schedule.num_steps:
        return Progress.at_end(epoch, most)
    ahead = [batch for batch in ahead if batch < most]
    return Progress(epoch=epoch, first=min(first, most), ahead=set(ahead), loaded=True)


def _place(state: Mapping[str, Any], *, most: int, count: int) -> tuple[int, int, list[int]]:
    """Return epoch, batches and batches ahead, checked."""
    epoch, first, ahead = (state[name] for name in ("epoch", "batches", "ahead"))
    if type(epoch) is not int or not 0 <= epoch < 2**63:
        raise ValueError(f"epoch of the state must lie in [0, 2**63), got {epoch!r}")
    if type(first) is not int or not 0 <= first <= most:
        raise ValueError(f"batches of the state must lie in [0, {most}], got {first!r}")
    if not isinstance(ahead, list) or any(type(n) is not int or not first < n < count for n in ahead):
        raise ValueError(f"ahead of the state must list batches in ({first}, {count}), got {ahead!r}")
    return epoch, first, ahead


def check_same_run(state: Any, made_with: Mapping[str, Any]) -> None:
    """Refuse, with ``ValueError``, a state that a loader of other inputs or options left."""
    fields = {"format", "run_seed", "epoch", "batches", "ahead", "made_with"}
    if not isinstance(state, dict) or not fields <= state.keys():
        raise ValueError(f"not the state of a loader: it needs {', '.join(sorted(fields))}")
    if state["format"] not in (_OF_A_RANK, _FORMAT):
        raise ValueError(
            f"a state of format {state['format']!r}; this version reads {_OF_A_RANK} and {_FORMAT}"
        )
    if type(state["run_seed"]) is not int or not 0 <= state["run_seed"] < 2**64:
        raise ValueError(f"run_seed of the state must lie in [0, 2**64), got {state['run_seed']!r}")
    specification = state.get("draws", _FIRST_DRAWS)
    if specification != draws.DRAW_SPECIFICATION:
        raise ValueError(
            f"the state is of draw specification {specification!r}, and this version of gigl-loader has "
            f"{draws.DRAW_SPECIFICATION}: the batches that follow would differ; resume it with the version "
            "that wrote it, or begin the run again"
        )
    theirs = state["made_with"]
    if not isinstance(theirs, dict):
        raise ValueError(f"made_with of the state must be a mapping, got {theirs!r}")
    names = sorted(made_with.keys() | theirs.keys())
    if state["format"] != _OF_A_RANK:
        names.remove("sharding")
    differ = [name for name in names if made_with.get(name) != theirs.get(name)]
    if differ:
        what = "; ".join(
            f"{name} is {made_with.get(name)} here, {theirs.get(name)} in the state" for name in differ
        )
        raise ValueError(f"the state is of other inputs or options: {what}")
