"""Plan of neighbourhoods around links: pairs of nodes, with negatives that are drawn, given, or a user's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from gigl_loader.graph.schema import Column, type_name
from gigl_loader.graph.type_columns import column_of
from gigl_loader.sampling.custom import CustomNegatives, LinkBatch
from gigl_loader.sampling.frame_schema import FrameArray, FrameSchema
from gigl_loader.sampling.khop import KHop
from gigl_loader.sampling.negatives import MAX_AMOUNT, DrawnNegatives, NegativeDrawer, Negatives
from gigl_loader.sampling.neighbor_sampler import open_sampler
from gigl_loader.sampling.partitioned import PartitionedStore
from gigl_loader.sampling.plans.custom import UserCode
from gigl_loader.sampling.request import InputColumn
from gigl_loader.sampling.seeds import (
    BatchSeeds,
    EntryTimes,
    Exclusion,
    in_trees,
    time_inputs,
    timed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.arrays import Array, Int64Array
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType
    from gigl_loader.sampling.columns import ColumnPlan
    from gigl_loader.sampling.costs import BatchBounds
    from gigl_loader.sampling.plan import PlanFields, PlanSampler, SamplerContext
    from gigl_loader.sampling.request import BatchRequest

NOT_STRICT = "negatives_not_strict"
"""Counter of the strict negatives of a batch that are edges, because no other pair was found."""

TOO_LATE = "negatives_too_late"
"""Counter of the negatives of a batch that are not early enough for their link: of drawn ones, where no node
is."""

GIVEN = "negatives"
"""Name of the input column of given negatives."""

_LOCAL = Column("I32")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPlan:
    """The sampled neighbourhood of the ends of links of one edge type, and of their negatives."""

    kind: ClassVar[str] = "link"

    edge_type: EdgeType
    """Of the links: from its source type to its destination type. The graph may have no such edges."""
    hops: KHop
    negatives: Negatives | None = None
    """Drawn ones."""
    given: int = 0
    """Destinations of negatives that come with each link. 0: none come."""
    custom: UserCode | None = None
    """Finds the destinations of negatives."""
    excluded: tuple[EdgeType, ...] = ()
    """Types of which sampled edges from source to destination of a link of the batch are removed."""
    excluded_reverse: tuple[EdgeType, ...] = ()
    """Types of which sampled edges from destination to source of a link of the batch are removed."""

    def __post_init__(self) -> None:
        if not 0 <= self.given <= MAX_AMOUNT:
            raise ValueError(f"given negatives of a link are 0 to {MAX_AMOUNT}, got {self.given}")
        if (self.negatives is not None) + (self.given > 0) + (self.custom is not None) > 1:
            raise ValueError("negatives are drawn, given or a user's: one of these")

    @property
    def mode(self) -> Literal["binary", "triplet"] | None:
        """Form of the negatives, where there are any."""
        if self.negatives is not None:
            return self.negatives.mode
        return "triplet" if self.given or self.custom is not None else None

    @property
    def inputs(self) -> tuple[InputColumn, ...]:
        source, _, destination = self.edge_type
        columns = (InputColumn("src", "I64", source), InputColumn("dst", "I64", destination))
        times = time_inputs(self.hops, given=self.hops.time_attr is not None)
        given = InputColumn(GIVEN, "I64", destination, width=self.given, optional=True)
        return (*columns, *times, *([given] if self.given else []))

    def frame(self, schema: GraphSchema, columns: ColumnPlan) -> FrameSchema:
        return self.hops.around_seeds(
            schema,
            columns,
            computed=tuple(self._arrays()),
            counters=tuple(self._counters()),
        )

    def open(self, context: SamplerContext) -> PlanSampler:
        store = context.store
        lookup = PartitionedStore.whole(context.graph) if store is None and self._is_strict else store
        seeder = LinkSeeder(context, self, lookup)
        return open_sampler(context, self.hops, seeder)

    def check_here(self) -> None:
        if self.custom is not None:
            self.custom.check_here()

    def to_json(self) -> dict[str, Any]:
        return {
            "edge_type": list(self.edge_type),
            **self.hops.to_json(),
            **({} if self.negatives is None else {"negatives": self.negatives.to_json()}),
            **({"given": self.given} if self.given else {}),
            **({} if self.custom is None else {"custom": self.custom.to_json()}),
            "excluded": [list(each) for each in self.excluded],
            "excluded_reverse": [list(each) for each in self.excluded_reverse],
        }

    @classmethod
    def from_json(cls, fields: PlanFields) -> LinkPlan:
        edge_type = fields.link_type("edge_type")
        negatives, custom = fields.take("negatives", None), fields.take("custom", None)
        if custom is not None and (not isinstance(custom, dict) or custom.keys() != {"sampler", "arguments"}):
            raise ValueError("custom is an object of sampler and arguments")
        plan = cls(
            edge_type=edge_type,
            hops=KHop.read(fields),
            negatives=None if negatives is None else Negatives.from_json(negatives, fields.schema, edge_type),
            given=fields.whole("given", 0),
            custom=None if custom is None else UserCode.from_json(**custom, allowed=fields.allowed_samplers),
            excluded=fields.edge_types("excluded"),
            excluded_reverse=fields.edge_types("excluded_reverse"),
        )
        plan.check_excluded()
        return plan

    def check_excluded(self) -> None:
        """Raise ``ValueError`` for an excluded type that does not join the ends of links."""
        source, _, destination = self.edge_type
        for types, ends in (
            (self.excluded, (source, destination)),
            (self.excluded_reverse, (destination, source)),
        ):
            for each in types:
                if (each[0], each[2]) != ends:
                    raise ValueError(
                        f"edges {each} cannot be excluded with links {self.edge_type}: they lead from "
                        f"{each[0]!r} to {each[2]!r}, not from {ends[0]!r} to {ends[1]!r}"
                    )

    @property
    def _is_strict(self) -> bool:
        return self.negatives is not None and self.negatives.strict

    def _counters(self) -> Iterator[str]:
        if self._is_strict:
            yield NOT_STRICT
        if self.mode is not None and self.hops.time_attr is not None:
            yield TOO_LATE

    def _arrays(self) -> list[FrameArray]:
        """Return the arrays of local indices of the ends of links and negatives."""
        source, _, destination = map(type_name, self.edge_type)
        arrays = [_locals("src", source, 1.0), _locals("dst", destination, 1.0)]
        if self.negatives is not None:
            amount = self.negatives.amount
            if self.negatives.mode == "binary":
                arrays.append(_locals("neg_src", source, amount))
            arrays.append(_locals("neg_dst", destination, amount))
        elif self.mode is not None:  # Some links may have fewer: -1.
            found = FrameArray("neg_dst", _LOCAL, "computed", nodes=(destination,), in_rows=True)
            arrays.append(replace(found, per_entry=self.given or None))
        return arrays


class LinkSeeder:
    """The seeds of a batch of links: sources, destinations, then the same of the negatives.

    Negative ``a * M + i`` of M links is number a of link i.
    """

    def __init__(self, context: SamplerContext, plan: LinkPlan, store: PartitionedStore | None) -> None:
        graph = context.graph
        self._plan = plan
        self._run_seed = context.plan.run_seed
        ends = (plan.edge_type[0], plan.edge_type[2])
        self._ids = [graph.node_ids(end) for end in ends]
        self._types = [list(graph.schema.nodes).index(end) for end in ends]
        self._inward = graph.schema.edge_dir == "in"
        self._edge_types = [each for each in graph.schema.edges if each in plan.hops.num_neighbors]
        self._negatives = (
            None
            if plan.negatives is None
            else NegativeDrawer(
                graph,
                store,
                plan.edge_type,
                plan.negatives,
                time_attr=plan.hops.time_attr,
                strictly_earlier=plan.hops.strictly_earlier,
            )
        )
        self._custom = None if plan.custom is None else CustomNegatives(context, ends[1], plan.custom.open)
        self._times = EntryTimes(context, ends[0], plan.hops, given=plan.hops.time_attr is not None)
        self._node_times = None
        name = column_of(plan.hops.time_attr, ends[1], graph.schema.nodes[ends[1]].times)
        if name is not None:
            self._node_times = graph.node_times(ends[1], name).times

    def seeds(self, request: BatchRequest, bounds: BatchBounds) -> BatchSeeds:
        plan, count = self._plan, len(request)
        drawn = plan.given * count if plan.negatives is None else plan.negatives.count(count)
        if 2 * (count + drawn) > bounds.edges:
            raise bounds.too_many_edges(count)
        ends = (request.inputs["src"], request.inputs["dst"])
        ids = [each if known is None else known[each] for each, known in zip(ends, self._ids, strict=True)]
        key = request.key(self._run_seed, *ids)
        columns: dict[str, tuple[int, Int64Array]] = {
            "src": (self._types[0], ends[0]),
            "dst": (self._types[1], ends[1]),
        }
        counters: dict[str, int] = {}
        times = self._times.of(request)
        negatives = self._found(request, key, None if times is None else times.of_entries, bounds)
        if negatives is not None:
            if plan.mode == "binary":
                columns["neg_src"] = (self._types[0], negatives.src)
            columns["neg_dst"] = (self._types[1], negatives.dst)
            counters = {NOT_STRICT: negatives.not_strict, TOO_LATE: negatives.too_late}
        trees = {name: np.arange(len(positions)) % count for name, (_, positions) in columns.items()}
        indices: dict[str, slice | Array] = {}
        if negatives is not None and plan.negatives is None:
            there = negatives.dst >= 0
            columns["neg_dst"] = (self._types[1], negatives.dst[there])
            trees["neg_dst"] = trees["neg_dst"][there]
            indices["neg_dst"] = np.where(there, 2 * count + np.cumsum(there) - 1, -1)
        bounds_of = _slices({name: len(positions) for name, (_, positions) in columns.items()})
        return BatchSeeds(
            key=key,
            groups=[
                (kind, in_trees(positions, trees[name], disjoint=plan.hops.disjoint))
                for name, (kind, positions) in columns.items()
            ],
            arrays={"input_id": request.index, **timed(times)},
            indices={**bounds_of, **indices},
            excluded=self._exclusions(bounds_of["src"], bounds_of["dst"]),
            counters=counters,
            times=times,
        )

    def _found(
        self, request: BatchRequest, key: int, times: Int64Array | None, bounds: BatchBounds
    ) -> DrawnNegatives | None:
        """Return the negatives of a batch. Destinations that are not drawn may be -1."""
        src, dst = request.inputs["src"], request.inputs["dst"]
        if self._negatives is not None:
            return self._negatives.draw(key, src, times)
        if self._custom is not None:
            rows = self._custom.find(LinkBatch(src, key, dst, times), bounds)
        elif self._plan.given:
            rows = request.inputs[GIVEN].reshape(len(request), self._plan.given)
        else:
            return None
        if 2 * (len(request) + rows.size) > bounds.edges:
            raise bounds.too_many_edges(len(request))
        found = rows.T.reshape(-1)
        late = 0
        if times is not None and self._node_times is not None:
            there = found >= 0
            is_late = np.greater_equal if self._plan.hops.strictly_earlier else np.greater
            late = int(is_late(self._node_times[found[there]], np.resize(times, len(found))[there]).sum())
        return DrawnNegatives(src[:0], found, 0, late)

    def _exclusions(self, src: slice, dst: slice) -> list[Exclusion]:
        types = [(each, src, dst) for each in self._plan.excluded]
        types += [(each, dst, src) for each in self._plan.excluded_reverse]
        return [
            Exclusion(self._edge_types.index(each), *((end, begin) if self._inward else (begin, end)))
            for each, begin, end in types
            if each in self._edge_types
        ]


def _locals(name: str, node_type: str, per_entry: float) -> FrameArray:
    return FrameArray(name, _LOCAL, "computed", indexes=node_type, per_entry=per_entry)


def _slices(lengths: dict[str, int]) -> dict[str, slice]:
    """Return where each of several arrays lies when they follow each other."""
    slices, begin = {}, 0
    for name, length in lengths.items():
        slices[name] = slice(begin, begin + length)
        begin += length
    return slices
