"""Progress of an epoch, and the description that tells one run from another."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gigl_loader.graph.schema import type_name
from gigl_loader.native import draws

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gigl_loader.loaders.seeds import LoaderInput, NodeDirectory
    from gigl_loader.sampling.plan import BatchPlan


__all__ = ["Progress", "check_same_run", "describe_run", "read_state"]

_FIRST_DRAWS = 1  # Of states that name no draw specification: they are older than its second number.
FORMAT = 1
"""Version of a loader's state. Raised when the meaning of a field changes."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """Which batches of an epoch the user was given.

    Batches may come out of order and one may fail, so what was given is a prefix and some beyond it.
    """

    epoch: int
    first: int = 0
    """Every batch before this one was given."""
    ahead: set[int] = field(default_factory=set)
    """Batches given beyond ``first``; empty when all come, and in order."""
    ended: bool = False
    """The user was told that the epoch is over."""
    loaded: bool = False
    """Put back by ``load_state_dict``."""

    @property
    def is_under_way(self) -> bool:
        """Whether the user was given some batch of the epoch."""
        return bool(self.first or self.ahead)

    def lacks(self, batch: int) -> bool:
        return batch >= self.first and batch not in self.ahead

    def give(self, batch: int) -> None:
        """Count a batch as given."""
        self.ahead.add(batch)
        while self.first in self.ahead:
            self.ahead.remove(self.first)
            self.first += 1

    def state(self) -> dict[str, Any]:
        """Return epoch and batches as plain values. An ended epoch is the start of the next."""
        if self.ended:
            return {"epoch": self.epoch + 1, "batches": 0, "ahead": []}
        return {"epoch": self.epoch, "batches": self.first, "ahead": sorted(self.ahead)}


def read_state(state: Mapping[str, Any], *, num_batches: int, most_batches: int) -> Progress:
    """Return the progress that ``state`` holds. ``ValueError`` names the field that cannot be.

    The state may be of a rank with more batches an epoch than the ``num_batches`` of this one: of up to
    ``most_batches``.
    """
    epoch, first, ahead = (state[name] for name in ("epoch", "batches", "ahead"))
    if type(epoch) is not int or not 0 <= epoch < 2**63:
        raise ValueError(f"epoch of the state must lie in [0, 2**63), got {epoch!r}")
    if type(first) is not int or not 0 <= first <= most_batches:
        raise ValueError(f"batches of the state must lie in [0, {most_batches}], got {first!r}")
    if not isinstance(ahead, list) or any(type(n) is not int or not first < n < most_batches for n in ahead):
        raise ValueError(f"ahead of the state must list batches in ({first}, {most_batches}), got {ahead!r}")
    ahead = {batch for batch in ahead if batch < num_batches}
    return Progress(epoch=epoch, first=min(first, num_batches), ahead=ahead, loaded=True)


def describe_run(
    nodes: NodeDirectory, plan: BatchPlan, seeds: LoaderInput, **cut: int | bool | str
) -> dict[str, Any]:
    """Return, as plain values, all that batches depend on but run seed and epoch.

    ``cut`` says how the seeds are cut into batches. Equal for every partitioning of a graph.
    """
    described: dict[str, Any] = json.loads(plan.to_json())
    del described["run_seed"]
    schema = nodes.schema
    return {
        **described,
        **cut,
        "edge_dir": schema.edge_dir,
        "number of nodes": {kind: contents.count for kind, contents in schema.nodes.items()},
        "number of edges": {type_name(kind): contents.count for kind, contents in schema.edges.items()},
        **seeds.described(nodes),
    }


def check_same_run(state: Any, made_with: Mapping[str, Any]) -> None:
    """Refuse, with ``ValueError``, a state that a loader of other inputs or options left."""
    fields = {"format", "run_seed", "epoch", "batches", "ahead", "made_with"}
    if not isinstance(state, dict) or not fields <= state.keys():
        raise ValueError(f"not the state of a loader: it needs {', '.join(sorted(fields))}")
    if state["format"] != FORMAT:
        raise ValueError(f"a state of format {state['format']!r}; this version reads {FORMAT}")
    if type(state["run_seed"]) is not int or not 0 <= state["run_seed"] < 2**64:
        raise ValueError(f"run_seed of the state must lie in [0, 2**64), got {state['run_seed']!r}")
    specification = state.get("draws", _FIRST_DRAWS)
    if specification != draws.DRAW_SPECIFICATION:
        raise ValueError(
            f"the state is of draw specification {specification!r}, and this version of gigl-loader has "
            f"{draws.DRAW_SPECIFICATION}: the batches that follow would differ; resume it with the version "
            "that wrote it"
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
