"""Plan of neighbourhoods of seed nodes of several types, which one batch has together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gigl_loader.native import batch_key
from gigl_loader.sampling.plans.around import Around, around_frame, around_json, open_around, read_around
from gigl_loader.sampling.request import SEED, SEED_TYPE, BatchRequest, InputColumn
from gigl_loader.sampling.seeds import (
    BatchSeeds,
    EntryTimes,
    TreeTimes,
    check_entry_times,
    in_trees,
    time_inputs,
    timed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.arrays import Int64Array
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import NodeType
    from gigl_loader.sampling.columns import ColumnPlan
    from gigl_loader.sampling.costs import BatchBounds
    from gigl_loader.sampling.frame_schema import FrameSchema
    from gigl_loader.sampling.plan import PlanFields, PlanSampler, SamplerContext


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTypesPlan:
    """The sampled neighbourhood of seed nodes of several types.

    A batch depends on the seeds of each type in their order, and not on how the types alternate.
    """

    kind: ClassVar[str] = "node_types"

    seed_types: tuple[NodeType, ...]
    """Ascending, at least two."""
    hops: Around
    """What is sampled around the seeds."""
    with_times: bool = False
    """Each seed comes with a time, that of its tree. Without, trees have the times of their seeds."""

    def __post_init__(self) -> None:
        if len(self.seed_types) < 2 or list(self.seed_types) != sorted(set(self.seed_types)):
            raise ValueError("seed types are different, in ascending order, and at least two")

    @property
    def inputs(self) -> tuple[InputColumn, ...]:
        seeds = InputColumn(SEED, "I64", node_types=self.seed_types)
        return (InputColumn(SEED_TYPE, "U16"), seeds, *time_inputs(self.hops, given=self.with_times))

    def frame(self, schema: GraphSchema, columns: ColumnPlan) -> FrameSchema:
        inputs = ("seeds", "input_id", SEED_TYPE)
        return around_frame(self.hops, schema, columns, self.seed_types, inputs=inputs)

    def open(self, context: SamplerContext) -> PlanSampler:
        return open_around(context, self.hops, self.seed_types, _Seeder(context, self), per_entry=True)

    def check_here(self) -> None:
        """Do nothing: the library has all that it takes."""

    def to_json(self) -> dict[str, Any]:
        with_times = {"with_times": True} if self.with_times else {}
        return {"seed_types": list(self.seed_types), **around_json(self.hops), **with_times}

    @classmethod
    def from_json(cls, fields: PlanFields) -> NodeTypesPlan:
        plan = cls(
            seed_types=fields.node_types("seed_types"),
            hops=read_around(fields),
            with_times=fields.flag("with_times", False),
        )
        plan.check(fields.schema)
        return plan

    def check(self, schema: GraphSchema) -> None:
        """Raise ``ValueError`` unless the times of trees are known."""
        for node_type in self.seed_types:
            check_entry_times(schema, node_type, self.hops, given=self.with_times)


class _Seeder:
    """The seeds of a batch, type after type, those of a type in the order of the request."""

    def __init__(self, context: SamplerContext, plan: NodeTypesPlan) -> None:
        graph, self._plan = context.graph, plan
        self._run_seed = context.plan.run_seed
        numbers = list(graph.schema.nodes)
        self._numbers = [numbers.index(each) for each in plan.seed_types]
        self._ids = [graph.node_ids(each) for each in plan.seed_types]
        self._times = [
            EntryTimes(context, each, plan.hops, given=plan.with_times) for each in plan.seed_types
        ]

    def seeds(self, request: BatchRequest, bounds: BatchBounds) -> BatchSeeds:
        types, positions = request.inputs[SEED_TYPE], request.inputs[SEED]
        order = np.argsort(types, kind="stable")
        counts = np.bincount(types, minlength=len(self._numbers))
        ends = np.cumsum(counts)
        entries_of = np.split(order, ends[:-1])
        ids = positions.copy()
        for known, entries in zip(self._ids, entries_of, strict=True):
            if known is not None:
                ids[entries] = known[positions[entries]]
        numbers = np.concatenate([counts, request.index[order], ids[order]])
        times = self._tree_times(request, entries_of)
        return BatchSeeds(
            key=batch_key(self._run_seed, request.epoch, numbers),
            groups=[
                (
                    number,
                    in_trees(
                        positions[entries],
                        np.arange(end - len(entries), end),
                        disjoint=self._plan.hops.disjoint,
                    ),
                )
                for number, entries, end in zip(self._numbers, entries_of, ends, strict=True)
            ],
            arrays={
                "seeds": ids,
                "input_id": request.index,
                SEED_TYPE: types.astype(np.int64),
                **timed(times),
            },
            times=times,
        )

    def _tree_times(self, request: BatchRequest, entries_of: Sequence[Int64Array]) -> TreeTimes | None:
        """Return the times of trees by their numbers, and those of entries in the order of the request."""
        found = [
            of_type.of(
                BatchRequest(
                    request.epoch,
                    request.batch,
                    request.index[entries],
                    {name: column[entries] for name, column in request.inputs.items()},
                )
            )
            for of_type, entries in zip(self._times, entries_of, strict=True)
        ]
        there = [each for each in found if each is not None]
        if not there:
            return None
        of_entries = np.empty(len(request), np.int64)
        of_entries[np.concatenate(entries_of)] = np.concatenate([each.of_entries for each in there])
        firsts = [each.first for each in there if each.first is not None]
        return TreeTimes(
            of_entries,
            np.concatenate([each.last for each in there]),
            np.concatenate(firsts) if firsts else None,
        )
