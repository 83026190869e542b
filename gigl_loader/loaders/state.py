"""State of a loader: which batches of which epoch the user was given, and the run that they belong to."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gigl_loader.graph.schema import type_name
from gigl_loader.loaders.stream import Progress
from gigl_loader.native import draws

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gigl_loader.loaders.dataset import NodeDirectory
    from gigl_loader.loaders.inputs import LoaderInput
    from gigl_loader.sampling.plan import BatchPlan
    from gigl_loader.sampling.schedule import Schedule

_FORMAT = 1
"""Version of a loader's state. Raised when the meaning of a field changes."""
_FIRST_DRAWS = 1  # Draw specification of states that name none: they are older than the second one.


@dataclass(slots=True, eq=False)
class Place:
    """Place of one iterator."""

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

    def begin(self, place: Place) -> Progress:
        """Give an iterator the pending epoch."""
        progress = place.progress = self.pending
        self.pending = Progress(epoch=progress.epoch + 1)
        return progress

    def resume(self, progress: Progress) -> None:
        """Let the next iterator begin at ``progress``."""
        self.pending, self.latest = progress, None


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


def state_of(progress: Progress, *, run_seed: int, made_with: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a loader as plain values (JSON will do)."""
    epoch, first, ahead = progress.next
    return {
        "format": _FORMAT,
        "draws": draws.DRAW_SPECIFICATION,
        "run_seed": run_seed,
        "epoch": epoch,
        "batches": first,
        "ahead": ahead,
        "made_with": made_with,
    }


def read_state(state: Any, made_with: Mapping[str, Any], *, num_batches: int, most_batches: int) -> Progress:
    """Return the progress that ``state`` holds. ``ValueError`` names what differs or is wrong.

    The state may be of a rank with more batches an epoch than the ``num_batches`` of this one: of up to
    ``most_batches``.
    """
    check_same_run(state, made_with)
    epoch, first, ahead = (state[name] for name in ("epoch", "batches", "ahead"))
    if type(epoch) is not int or not 0 <= epoch < 2**63:
        raise ValueError(f"epoch of the state must lie in [0, 2**63), got {epoch!r}")
    if type(first) is not int or not 0 <= first <= most_batches:
        raise ValueError(f"batches of the state must lie in [0, {most_batches}], got {first!r}")
    if not isinstance(ahead, list) or any(type(n) is not int or not first < n < most_batches for n in ahead):
        raise ValueError(f"ahead of the state must list batches in ({first}, {most_batches}), got {ahead!r}")
    ahead = {batch for batch in ahead if batch < num_batches}
    return Progress(epoch=epoch, first=min(first, num_batches), ahead=ahead, loaded=True)


def check_same_run(state: Any, made_with: Mapping[str, Any]) -> None:
    """Refuse, with ``ValueError``, a state that a loader of other inputs or options left."""
    fields = {"format", "run_seed", "epoch", "batches", "ahead", "made_with"}
    if not isinstance(state, dict) or not fields <= state.keys():
        raise ValueError(f"not the state of a loader: it needs {', '.join(sorted(fields))}")
    if state["format"] != _FORMAT:
        raise ValueError(f"a state of format {state['format']!r}; this version reads {_FORMAT}")
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
    differ = [name for name in names if made_with.get(name) != theirs.get(name)]
    if differ:
        what = "; ".join(
            f"{name} is {made_with.get(name)} here, {theirs.get(name)} in the state" for name in differ
        )
        raise ValueError(f"the state is of other inputs or options: {what}")
