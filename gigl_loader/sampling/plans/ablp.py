"""Plan of anchor-based link prediction: neighbourhoods of anchors, their labels and random negatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from gigl_loader.graph.reverses import reverses_of
from gigl_loader.graph.schema import Column, type_name
from gigl_loader.native import BatchTooLarge as NativeTooLarge
from gigl_loader.sampling.frame_schema import FrameArray, FrameSchema
from gigl_loader.sampling.khop import KHop
from gigl_loader.sampling.labels import LABEL_HOP, LabelLookup, distinct_ranks
from gigl_loader.sampling.partitioned import PartitionedStore
from gigl_loader.sampling.plans.around import Around, around_frame, around_json, open_around, read_around
from gigl_loader.sampling.request import SEED, InputColumn
from gigl_loader.sampling.seeds import (
    BatchSeeds,
    EntryTimes,
    Exclusion,
    check_entry_times,
    in_trees,
    time_inputs,
    timed,
)

if TYPE_CHECKING:
    from gigl_loader.arrays import Array, Int64Array
    from gigl_loader.graph.schema import GraphSchema, LabelSign
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.columns import ColumnPlan
    from gigl_loader.sampling.costs import BatchBounds
    from gigl_loader.sampling.plan import PlanFields, PlanSampler, SamplerContext
    from gigl_loader.sampling.request import BatchRequest

NUM_ANCHORS = "num_anchors"
"""Counter of the distinct anchors of a batch, the first nodes of their type."""

_LOCAL = Column("I32")


@dataclass(frozen=True, slots=True, kw_only=True)
class ABLPPlan:
    """The sampled neighbourhood of anchors, of their labels by supervision edges, and of random negatives."""

    kind: ClassVar[str] = "ablp"

    supervision: tuple[EdgeType, ...]
    """Supervision types, ascending, each from the anchors' type to that of their labels."""
    hops: Around
    """What is sampled around the seeds."""
    max_labels: int | None = None
    """Labels that are kept of each anchor and type; ``None``: all."""
    random_negatives: int = 0
    """Nodes of each supervision type's destination that are added to a batch."""
    exclude: bool = False
    """Remove sampled edges of a supervision type, and of its reverses, that join an anchor with a label."""
    reverses: tuple[tuple[EdgeType, EdgeType], ...] = ()
    """Supervision types, each with an edge type that holds its edges the other way round, in addition to
    what ``excluded_types`` finds."""
    without_reverses: bool = False
    """No edge type holds edges of a supervision type the other way round, whatever its name."""
    with_times: bool = False
    """Each anchor comes with a time, that of its tree. Without, trees have the times of their anchors."""

    def __post_init__(self) -> None:
        if not self.supervision or list(self.supervision) != sorted(set(self.supervision)):
            raise ValueError("supervision types are different, in ascending order, and at least one")
        if len({each[0] for each in self.supervision}) > 1:
            raise ValueError("all supervision types lead from the anchors' type")
        if self.max_labels is not None and not 0 < self.max_labels < 2**31:
            raise ValueError(f"max_labels must lie in [1, 2**31), got {self.max_labels}")
        if not 0 <= self.random_negatives < 2**24:
            raise ValueError(f"random_negatives must lie in [0, 2**24), got {self.random_negatives}")
        if isinstance(self.hops, KHop) and self.hops.num_hops > LABEL_HOP:
            raise ValueError(f"at most {LABEL_HOP} hops beside labels, got {self.hops.num_hops}")
        if self.reverses and self.without_reverses:
            raise ValueError("reverses are named, and there are none: one of these")
        if self.random_negatives and self.hops.time_attr is not None:
            raise ValueError(
                "num_random_negatives has no meaning with time_attr: they have no time of their own"
            )

    @property
    def anchor_type(self) -> NodeType:
        return self.supervision[0][0]

    @property
    def seed_types(self) -> list[NodeType]:
        """Node types of the seeds: anchors first."""
        return list(dict.fromkeys([self.anchor_type, *(each[2] for each in self.supervision)]))

    @property
    def inputs(self) -> tuple[InputColumn, ...]:
        return (InputColumn(SEED, "I64", self.anchor_type), *time_inputs(self.hops, given=self.with_times))

    def frame(self, schema: GraphSchema, columns: ColumnPlan) -> FrameSchema:
        computed = [array for each in self.supervision for array in self._arrays(schema, each)]
        of_plan: dict[str, Any] = {
            "inputs": ("seeds", "input_id"),
            "computed": tuple(computed),
            "counters": (NUM_ANCHORS,),
            "extra_trees": self.random_negatives * len(self.supervision),
        }
        return around_frame(self.hops, schema, columns, self.seed_types, **of_plan)

    def open(self, context: SamplerContext) -> PlanSampler:
        seeder = ABLPSeeder(context, self, context.store or PartitionedStore.whole(context.graph))
        return open_around(context, self.hops, self.seed_types, seeder, per_entry=False)

    def check_here(self) -> None:
        """Do nothing: the library has all that it takes."""

    def to_json(self) -> dict[str, Any]:
        return {
            "supervision": [list(each) for each in self.supervision],
            **around_json(self.hops),
            "max_labels": self.max_labels,
            "random_negatives": self.random_negatives,
            "exclude": self.exclude,
            **(
                {"reverses": [list(each) for pair in self.reverses for each in pair]} if self.reverses else {}
            ),
            **({name: True for name in ("with_times", "without_reverses") if getattr(self, name)}),
        }

    @classmethod
    def from_json(cls, fields: PlanFields) -> ABLPPlan:
        cap = fields.take("max_labels")
        if cap is not None and type(cap) is not int:
            raise ValueError("max_labels is a whole number or null")
        known = [*fields.schema.edges, *fields.schema.label_types]
        reverses = fields.edge_types("reverses", known, [])
        if len(reverses) % 2:
            raise ValueError("reverses are pairs of edge types")
        plan = cls(
            supervision=fields.edge_types("supervision", known),
            hops=read_around(fields),
            max_labels=cap,
            random_negatives=fields.whole("random_negatives"),
            exclude=fields.flag("exclude"),
            reverses=tuple(zip(reverses[::2], reverses[1::2], strict=True)),
            with_times=fields.flag("with_times", False),
            without_reverses=fields.flag("without_reverses", False),
        )
        plan.check(fields.schema)
        return plan

    def check(self, schema: GraphSchema) -> None:
        """Raise ``ValueError`` unless the times of trees are known, and reverses join the right types."""
        check_entry_times(schema, self.anchor_type, self.hops, given=self.with_times)
        for edge_type, reverse in self.reverses:
            if reverse not in schema.edges or (reverse[2], reverse[0]) != (edge_type[0], edge_type[2]):
                raise ValueError(f"{reverse} are no edges from {edge_type[2]!r} to {edge_type[0]!r}")

    def _arrays(self, schema: GraphSchema, edge_type: EdgeType) -> list[FrameArray]:
        anchor, _, label = map(type_name, edge_type)
        arrays: list[FrameArray] = []
        for sign in schema.label_lists(edge_type):
            names = pair_arrays(edge_type, sign)
            arrays += [
                FrameArray(names.anchors, _LOCAL, "computed", indexes=anchor),
                FrameArray(names.labels, _LOCAL, "computed", indexes=label, as_long_as=names.anchors),
            ]
        if self.random_negatives:
            name = random_array(edge_type)
            arrays.append(FrameArray(name, _LOCAL, "computed", indexes=label, count=self.random_negatives))
        return arrays


class PairArrays(NamedTuple):
    """Names of the arrays of the labels of one supervision type and sign in a frame: local indices."""

    anchors: str
    labels: str


def pair_arrays(edge_type: EdgeType, sign: LabelSign) -> PairArrays:
    """Return the names of the arrays of the labels of a supervision type and sign."""
    prefix = f"label/{type_name(edge_type)}/{sign}"
    return PairArrays(f"{prefix}/anchor", f"{prefix}/label")


def random_array(edge_type: EdgeType) -> str:
    """Return the name of the array of a supervision type's random negatives."""
    return f"label/{type_name(edge_type)}/random"


def excluded_types(
    schema: GraphSchema, plan: ABLPPlan, edge_type: EdgeType
) -> dict[tuple[EdgeType, bool], None]:
    """Return the edge types that join anchors with labels of a supervision type: True for the reverse ones.

    They are the type itself and its reverses, declared, by name, and as the plan has them; in a homogeneous
    graph, its edge type in both directions, whatever the supervision type is called.
    """
    edges = schema.edges
    own = list(edges) if schema.homogeneous else [each for each in edges if each == edge_type]
    reverses: list[EdgeType] = []
    if not plan.without_reverses:
        reverses += edges if schema.homogeneous else reverses_of(edge_type, edges, schema.reverses)
        reverses += [reverse for each, reverse in plan.reverses if each == edge_type]
    return {**{(each, False): None for each in own}, **{(each, True): None for each in reverses}}


class ABLPSeeder:
    """The seeds of a batch of anchors: the anchors, their labels type by type, then the random negatives."""

    def __init__(self, context: SamplerContext, plan: ABLPPlan, store: PartitionedStore) -> None:
        graph = context.graph
        self._graph = graph
        self._plan = plan
        self._run_seed = context.plan.run_seed
        self._ids = graph.node_ids(plan.anchor_type)
        self._types = {node_type: number for number, node_type in enumerate(graph.schema.nodes)}
        self._lookups = {
            (each, sign): LabelLookup.in_graph(
                graph, store, lists, plan.max_labels, disjoint=plan.hops.disjoint
            )
            for each in plan.supervision
            for sign, lists in graph.schema.label_lists(each).items()
        }
        self._times = EntryTimes(context, plan.anchor_type, plan.hops, given=plan.with_times)
        self._inward = graph.schema.edge_dir == "in"
        known = plan.hops.num_neighbors if isinstance(plan.hops, KHop) else graph.schema.edges
        self._edge_types = [each for each in graph.schema.edges if each in known]

    def seeds(self, request: BatchRequest, bounds: BatchBounds) -> BatchSeeds:
        plan, anchors = self._plan, request.inputs[SEED]
        ids = anchors if self._ids is None else self._ids[anchors]
        key = request.key(self._run_seed, ids)
        disjoint = plan.hops.disjoint
        distinct = anchors if disjoint else anchors[np.sort(np.unique(anchors, return_index=True)[1])]
        if len(distinct) + plan.random_negatives * len(plan.supervision) > bounds.edges:
            raise bounds.too_many_edges(len(request))
        groups: list[tuple[int, Int64Array]] = []
        times = self._times.of(request)
        arrays: dict[str, Array] = {"seeds": ids, "input_id": request.index, **timed(times)}
        indices: dict[str, slice | Array] = {}
        excluded: list[Exclusion] = []
        end = 0

        def add(node_type: NodeType, positions: Int64Array, trees: Array) -> slice:
            nonlocal end
            groups.append((self._types[node_type], in_trees(positions, trees, disjoint=disjoint)))
            begin, end = end, end + len(positions)
            return slice(begin, end)

        add(plan.anchor_type, distinct, np.arange(len(distinct)))

        for (edge_type, sign), lookup in self._lookups.items():
            try:
                labels = lookup.labels(distinct, key, max_labels=bounds.edges - end)
            except NativeTooLarge:
                raise bounds.too_many_edges(len(request)) from None
            if end + len(labels.nodes) > bounds.edges:
                raise bounds.too_many_edges(len(request))
            names = pair_arrays(edge_type, sign)
            owners = np.repeat(np.arange(len(distinct), dtype=np.int32), labels.counts)
            indices[names.anchors] = owners
            indices[names.labels] = place = add(edge_type[2], labels.nodes, owners)
            if plan.exclude:
                excluded += self._exclusions(edge_type, owners, np.arange(place.start, place.stop))
        if plan.random_negatives:
            for number, edge_type in enumerate(plan.supervision):
                trees = np.arange(plan.random_negatives) + len(distinct) + number * plan.random_negatives
                indices[random_array(edge_type)] = add(edge_type[2], self._randoms(edge_type, key), trees)
        return BatchSeeds(
            key=key,
            groups=groups,
            arrays=arrays,
            indices=indices,
            excluded=excluded,
            counters={NUM_ANCHORS: len(distinct)},
            times=times,
        )

    def _randoms(self, edge_type: EdgeType, key: int) -> Int64Array:
        """Return the positions of the random negatives of a supervision type."""
        count = self._graph.schema.nodes[edge_type[2]].count
        ranks = distinct_ranks(key, edge_type, count, self._plan.random_negatives)
        return self._graph.at_ranks(edge_type[2], ranks)

    def _exclusions(self, edge_type: EdgeType, anchors: Array, labels: Array) -> list[Exclusion]:
        return [
            Exclusion(
                self._edge_types.index(each),
                *((anchors, labels) if turned == self._inward else (labels, anchors)),
            )
            for each, turned in excluded_types(self._graph.schema, self._plan, edge_type)
            if each in self._edge_types
        ]
