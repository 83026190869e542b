"""Schema of the frames of a plan: their arrays. Layout, parser and checks are generated from it.

The plan that makes a frame states its contents once; the bytes that arrive are compared with the schema.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from gigl_loader.channel.frame import (
    MAX_HEADER_BYTES,
    POSITION,
    SLOT,
    VALUES,
    Frame,
    check_number,
    read_failure,
    read_metadata,
)
from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import Column, type_name
from gigl_loader.sampling.request import SEED_TIME, SEEDS_WITHOUT_PAST
from gigl_loader.sampling.store import GatherRequest, Values
from gigl_loader.tensors import ArraySpec, Layout, as_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gigl_loader.arrays import Bytes, Int64Array
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.columns import ColumnPlan

_I64, _I32 = Column("I64"), Column("I32")
_DEFERRED = {"node": POSITION, "edge": SLOT}
"""By what a type is of: the array that a frame with deferred features has in place of all of them."""

Origin = Literal["input", "computed", "sampled", "feature", "deferred", "values"]


@dataclass(frozen=True, slots=True)
class FrameArray:
    """One array of a frame."""

    name: str
    """In the frame."""
    column: Column
    """Dtype, and shape of a row."""
    origin: Origin
    """Origin of the values. Only values of a ``feature`` may be deferred. ``values``: those of its codes."""
    feature: str = ""
    """Name of the feature in the graph."""
    indexes: str = ""
    """Encoded node type whose seeds the values are local indices of, if they are."""
    nodes: tuple[str, ...] = ()
    """Encoded node types whose nodes the values are local indices of, or -1: one type per value of a row."""
    edges: tuple[str, ...] = ()
    """Encoded edge types whose sampled edges, one type after the other, the values are places in."""
    as_long_as: str = ""
    """Name of an array of the same length."""
    count: int | None = None
    """Number of values, where it is fixed."""
    per_entry: float | None = None
    """Values for each entry of the input, rounded up in all. ``None``: read from the frame."""
    in_rows: bool = False
    """Each entry has equally many values."""

    def length(self, num_entries: int) -> int | None:
        """Return the number of values for ``num_entries``; ``None`` where only the frame has it."""
        return self.count if self.per_entry is None else math.ceil(self.per_entry * num_entries)


@dataclass(frozen=True, slots=True)
class TypeArrays:
    """The arrays of one node type, or of one edge type."""

    kind: NodeType | EdgeType
    name: str
    """The type, encoded."""
    arrays: tuple[FrameArray, ...]
    ends: tuple[str, str] = ("", "")
    """Of an edge type: the encoded node types of neighbours and of targets."""

    @classmethod
    def of_nodes(
        cls, schema: GraphSchema, kind: NodeType, features: Sequence[str], *, disjoint: bool = False
    ) -> TypeArrays:
        """Return ``n_id``, ``tree`` where trees are disjoint, and the features of a node type."""
        name = type_name(kind)
        node_ids = FrameArray(f"node/{name}/n_id", _I64, "sampled")
        trees = [FrameArray(f"node/{name}/tree", _I32, "sampled")] if disjoint else []
        columns = schema.nodes[kind].columns
        return cls(kind, name, (node_ids, *trees, *_features("node", kind, features, columns)))

    @classmethod
    def of_edges(
        cls, schema: GraphSchema, kind: EdgeType, features: Sequence[str], *, with_edge: bool
    ) -> TypeArrays:
        """Return ``rows``, ``colptr``, the edge ids with ``with_edge``, and the features."""
        prefix = f"edge/{type_name(kind)}"
        rows = FrameArray(f"{prefix}/rows", _I32, "sampled")
        colptr = FrameArray(f"{prefix}/colptr", _I64, "sampled")
        ids = [FrameArray(f"{prefix}/e_id", _I64, "sampled")] if with_edge else []
        columns = schema.edges[kind].columns
        arrays = (rows, colptr, *ids, *_features("edge", kind, features, columns))
        ends = (type_name(schema.neighbor_type(kind)), type_name(schema.target_type(kind)))
        return cls(kind, type_name(kind), arrays, ends)

    @property
    def prefix(self) -> str:
        return self.arrays[0].name.rpartition("/")[0]

    @property
    def features(self) -> tuple[FrameArray, ...]:
        return tuple(each for each in self.arrays if each.origin == "feature")

    @property
    def deferred(self) -> FrameArray | None:
        """The array that stands for the features, where they are deferred."""
        return next((each for each in self.arrays if each.origin == "deferred"), None)

    @property
    def gathered(self) -> tuple[FrameArray, ...]:
        """The arrays that a ``FeatureSource`` fills: the features, or the one that stands for them."""
        return tuple(each for each in self.arrays if each.origin in ("feature", "deferred"))

    @property
    def with_ids(self) -> bool:
        """Whether the ids of sampled edges are there."""
        return any(each.name == f"{self.prefix}/e_id" and each.origin == "sampled" for each in self.arrays)

    def gather_request(
        self, rows: Int64Array, layout: Layout, buffer: Bytes, *, distinct: bool
    ) -> GatherRequest:
        """Return what is to be gathered into a frame. Arrays whose rows have no bytes are complete already.

        ``rows``: int64 [N], positions of nodes or slots of edges. ``distinct``: none is named twice.
        """
        filled = [each for each in self.gathered if each.column.row_bytes]
        places = {each.feature: each for each in self.arrays if each.origin == "values"}

        def values_of(array: FrameArray) -> Values | None:
            place = places.get(array.feature)
            if place is None or array.column.quantized is None:
                return None
            out = layout.view(buffer, place.name)
            return Values(array.column.quantized, out.reshape(len(rows), math.prod(place.column.shape)))

        return GatherRequest(
            kind=self.kind,
            columns=tuple(each.feature for each in filled),
            rows=rows,
            distinct=distinct,
            out=[as_rows(layout.view(buffer, each.name), each.column.row_bytes) for each in filled],
            values=[values_of(each) for each in filled] if places else (),
        )

    def with_values(self) -> TypeArrays:
        """Return the arrays with one more for each quantised feature: its values."""
        values = (
            FrameArray(each.name + VALUES, replace(each.column, quantized=None), "values", each.feature)
            for each in self.features
            if each.column.quantized is not None
        )
        return replace(self, arrays=(*self.arrays, *values))

    def with_deferred_features(self) -> TypeArrays:
        """Return the arrays with the places of the features instead of the features, if there are any."""
        if not self.features:
            return self
        kept = tuple(each for each in self.arrays if each.origin not in ("feature", "values"))
        name = f"{self.prefix}/{_DEFERRED[self.prefix.partition('/')[0]]}"
        return replace(self, arrays=(*kept, FrameArray(name, _I64, "deferred")))


def _features(
    what: str, kind: NodeType | EdgeType, names: Sequence[str], columns: Mapping[str, Column]
) -> Iterator[FrameArray]:
    for name in names:
        yield FrameArray(f"{what}/{type_name(kind)}/{type_name(name)}", columns[name], "feature", name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameCounts:
    """Numbers that a layout depends on, in addition to the schema. Keys are encoded types."""

    epoch: int
    batch: int
    num_entries: int
    """Of the input."""
    num_nodes: Mapping[str, list[int]]
    """Per hop."""
    num_edges: Mapping[str, list[int]]
    num_targets: Mapping[str, int]
    """Expanded nodes of the edge type's target type: ``len(colptr) - 1``."""
    lengths: Mapping[str, int] = field(default_factory=dict)
    """Of the computed arrays, by name."""
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSchema:
    """The arrays of the frames of a plan, whole or with deferred features."""

    num_hops: int
    inputs: tuple[FrameArray, ...]
    """Arrays with a value for each entry of the request."""
    nodes: tuple[TypeArrays, ...]
    edges: tuple[TypeArrays, ...]
    seed_type: NodeType | None = None
    """Of input nodes: the batch has at most one seed for each. ``None`` for input of another kind."""
    computed: tuple[FrameArray, ...] = ()
    """Arrays that belong to the seeds, of lengths of their own."""
    counters: tuple[str, ...] = ()
    """Names of the numbers in the metadata of a frame."""
    distinct_edges: bool = True
    """No frame holds an edge twice."""
    edges_by_hop: bool = True
    """Edges are counted by hop. Else there is one number for each type."""
    disjoint: bool = False
    """Nodes have trees, and may occur in several."""
    extra_trees: int = 0
    """Trees of a disjoint batch in addition to one for each entry."""

    @classmethod
    def around_seeds(
        cls,
        schema: GraphSchema,
        columns: ColumnPlan,
        *,
        num_hops: int,
        edge_types: Sequence[EdgeType],
        with_edge: bool,
        seed_type: NodeType | None = None,
        inputs: tuple[str, ...] = ("input_id",),
        computed: tuple[FrameArray, ...] = (),
        counters: tuple[str, ...] = (),
        distinct_edges: bool = True,
        edges_by_hop: bool = True,
        disjoint: bool = False,
        timed: bool = False,
        extra_trees: int = 0,
    ) -> FrameSchema:
        """Return the schema of batches of nodes and edges around seeds: nodes of one type, or as computed."""
        names = inputs if seed_type is None else ("seeds", "input_id")
        if timed:
            names = (*names, SEED_TIME)
            counters = (*counters, SEEDS_WITHOUT_PAST)
        nodes = (
            TypeArrays.of_nodes(schema, each, columns.nodes.get(each, ()), disjoint=disjoint)
            for each in schema.nodes
        )
        edges = (
            TypeArrays.of_edges(schema, each, columns.edges.get(each, ()), with_edge=with_edge)
            for each in edge_types
        )
        return cls(
            seed_type=seed_type,
            num_hops=num_hops,
            inputs=tuple(FrameArray(name, _I64, "input") for name in names),
            nodes=tuple(nodes),
            edges=tuple(edges),
            computed=computed,
            counters=counters,
            distinct_edges=distinct_edges and not disjoint,
            edges_by_hop=edges_by_hop,
            disjoint=disjoint,
            extra_trees=extra_trees,
        )

    def with_values(self) -> FrameSchema:
        """Return the schema of frames that have the values of quantised features beside their codes."""
        return replace(
            self,
            nodes=tuple(each.with_values() for each in self.nodes),
            edges=tuple(each.with_values() for each in self.edges),
        )

    def with_deferred_features(self) -> FrameSchema:
        """Return the schema of frames with ``position`` or ``slot`` (I64) for all features of a type."""
        return replace(
            self,
            nodes=tuple(each.with_deferred_features() for each in self.nodes),
            edges=tuple(each.with_deferred_features() for each in self.edges),
        )

    def layout(self, counts: FrameCounts) -> Layout:
        """Return the layout of a frame with so many of everything."""
        seed_type = {} if self.seed_type is None else {"seed_type": json.dumps(type_name(self.seed_type))}
        metadata = {
            "epoch": str(counts.epoch),
            "batch": str(counts.batch),
            **seed_type,
            "num_sampled_nodes": json.dumps(dict(counts.num_nodes)),
            "num_sampled_edges": json.dumps(dict(counts.num_edges)),
        }
        if self.counters:
            metadata["counters"] = json.dumps({name: counts.counters[name] for name in self.counters})
        return Layout.plan(self._specs(counts), metadata)

    def parse(self, buffer: Bytes) -> Frame:
        """Return the frame in ``buffer`` (uint8), or of the failure of its batch.

        Everything is checked: afterwards the arrays are exactly the schema's, and all local indices are in
        bounds. ``FormatError`` names the rule that is broken.
        """
        layout = Layout.parse(buffer, what="frame", max_header=MAX_HEADER_BYTES)
        for key in ("epoch", "batch"):
            check_number(layout.metadata, key)
        if read_failure(layout) is None:
            counts = self.counts(layout)
            _check_arrays(layout, self._specs(counts))
            for edges in self.edges:
                _check_edges(buffer, layout, edges, counts)
            for array in self.computed:
                _check_indices(buffer, layout, array, counts)
            if self.disjoint:
                for nodes in self.nodes:
                    _check_trees(buffer, layout, nodes, counts.num_entries + self.extra_trees)
        return Frame(buffer, layout)

    def counts(self, layout: Layout) -> FrameCounts:
        """Return what the layout of a frame was made of. ``FormatError`` where it cannot be one."""
        if self.seed_type is not None:
            _check_seed_type(layout, self.seed_type)
        nodes = _per_hop(layout.metadata, "num_sampled_nodes", self.nodes, self.num_hops + 1)
        hops = self.num_hops if self.edges_by_hop else 1
        edges = _per_hop(layout.metadata, "num_sampled_edges", self.edges, hops)
        num_entries = _length(layout, self.inputs[0].name)
        if self.seed_type is not None:
            distinct = nodes[type_name(self.seed_type)][0]
            if distinct > num_entries:
                raise FormatError(f"frame: {distinct} distinct seeds among {num_entries}")
        targets = {each.name: _length(layout, f"{each.prefix}/colptr") - 1 for each in self.edges}
        return FrameCounts(
            epoch=int(layout.metadata["epoch"]),
            batch=int(layout.metadata["batch"]),
            num_entries=num_entries,
            num_nodes=nodes,
            num_edges=edges,
            num_targets=targets,
            lengths={each.name: _computed_length(layout, each, num_entries) for each in self.computed},
            counters=_counters(layout, self.counters),
        )

    def _specs(self, counts: FrameCounts) -> dict[str, ArraySpec]:
        specs = {each.name: each.column.spec(counts.num_entries) for each in self.inputs}
        specs.update((each.name, each.column.spec(counts.lengths[each.name])) for each in self.computed)
        for nodes in self.nodes:
            count = sum(counts.num_nodes[nodes.name])
            specs.update((each.name, each.column.spec(count)) for each in nodes.arrays)
        for edges in self.edges:
            count = sum(counts.num_edges[edges.name])
            specs.update((each.name, each.column.spec(count)) for each in edges.arrays)
            specs[f"{edges.prefix}/colptr"] = _I64.spec(counts.num_targets[edges.name] + 1)
        return specs


def _check_seed_type(layout: Layout, expected: NodeType) -> None:
    seed_type = read_metadata(layout.metadata, "seed_type")
    if seed_type != type_name(expected):
        raise FormatError(f"frame: seed_type is {str(seed_type)[:100]!r}, not {expected!r}")


def _computed_length(layout: Layout, array: FrameArray, num_entries: int) -> int:
    length, expected = _length(layout, array.name), array.length(num_entries)
    if array.as_long_as:
        expected = _length(layout, array.as_long_as)
    if expected is not None and length != expected:
        raise FormatError(
            f"frame: {array.name!r} has {length} values for {num_entries} entries, not {expected}"
        )
    if array.in_rows and length % max(num_entries, 1):
        raise FormatError(f"frame: {array.name!r} has {length} values, no rows of {num_entries} entries")
    if array.nodes and length % len(array.nodes):
        raise FormatError(f"frame: {array.name!r} has {length} values in rows of {len(array.nodes)}")
    return length


def _counters(layout: Layout, names: Sequence[str]) -> dict[str, int]:
    if not names:
        return {}
    counters = read_metadata(layout.metadata, "counters")
    if (
        not isinstance(counters, dict)
        or counters.keys() != set(names)
        or not _is_counts([*counters.values()])
    ):
        raise FormatError(f"frame: counters must be numbers named {', '.join(names)}")
    return counters


def _per_hop(
    metadata: Mapping[str, str], key: str, types: Sequence[TypeArrays], length: int
) -> dict[str, list[int]]:
    counts = read_metadata(metadata, key)
    if not isinstance(counts, dict) or not all(_is_counts(value) for value in counts.values()):
        raise FormatError(f"frame: {key} must map types to lists of numbers per hop")
    expected = [each.name for each in types]
    if counts.keys() != set(expected):
        raise FormatError(f"frame: {key} has types {sorted(counts)!r:.200}, not {sorted(expected)!r:.200}")
    for name, value in counts.items():
        if len(value) != length:
            raise FormatError(f"frame: {key} of {name} has {len(value)} numbers, not {length}")
    return counts


def _is_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _length(layout: Layout, name: str) -> int:
    spec = layout.specs.get(name)
    if spec is None:
        raise FormatError(f"frame: array {name!r} is missing")
    if len(spec.shape) != 1:
        raise FormatError(f"frame: {name!r} is {spec.dtype} {list(spec.shape)}, not 1-D I64")
    return spec.shape[0]


def _check_arrays(layout: Layout, expected: Mapping[str, ArraySpec]) -> None:
    """Raise ``FormatError`` unless exactly the expected arrays are there."""
    if layout.specs == expected:
        return
    for name, spec in expected.items():
        found = layout.specs.get(name)
        if found is None:
            raise FormatError(f"frame: array {name!r} is missing")
        if found != spec:
            raise FormatError(
                f"frame: {name!r} is {found.dtype} {list(found.shape)}, not {spec.dtype} {list(spec.shape)}"
            )
    unknown = next(name for name in layout.specs if name not in expected)
    raise FormatError(f"frame: array {unknown!r:.200} belongs to no frame of this plan")


def _check_indices(buffer: Bytes, layout: Layout, array: FrameArray, counts: FrameCounts) -> None:
    if array.nodes:
        rows = layout.view(buffer, array.name).reshape(-1, len(array.nodes))
        ends = [sum(counts.num_nodes[name]) for name in array.nodes]
        if len(rows) and not (rows.min() >= -1 and (rows.max(axis=0) < ends).all()):
            raise FormatError(f"frame: {array.name!r} leaves the nodes of the batch")
    if array.edges:
        count = sum(sum(counts.num_edges[name]) for name in array.edges)
        places = layout.view(buffer, array.name)
        if len(places) and places.view("u4").max() >= count:
            raise FormatError(f"frame: {array.name!r} leaves the {count} sampled edges")
    if not array.indexes:
        return
    values, seeds = layout.view(buffer, array.name), counts.num_nodes[array.indexes][0]
    # As unsigned numbers, negative ones are larger than any other.
    if len(values) and values.view("u4").max() >= seeds:
        raise FormatError(f"frame: {array.name!r} leaves the {seeds} seeds")


def _check_trees(buffer: Bytes, layout: Layout, nodes: TypeArrays, num_trees: int) -> None:
    trees = layout.view(buffer, f"{nodes.prefix}/tree")
    if len(trees) and trees.view("u4").max() >= num_trees:
        raise FormatError(f"frame: trees of {nodes.name} leave the {num_trees} of the batch")


def _check_edges(buffer: Bytes, layout: Layout, edges: TypeArrays, counts: FrameCounts) -> None:
    """Rows are neighbours that exist, and colptr cuts them in groups of targets that exist."""
    neighbors, targets = (sum(counts.num_nodes[end]) for end in edges.ends)
    rows, colptr = (layout.view(buffer, f"{edges.prefix}/{name}") for name in ("rows", "colptr"))
    if not 1 <= len(colptr) <= targets + 1:
        raise FormatError(f"frame: colptr of {edges.name} has {len(colptr)} entries for {targets} nodes")
    if colptr[0] != 0 or colptr[-1] != len(rows) or (colptr[1:] < colptr[:-1]).any():
        raise FormatError(f"frame: colptr of {edges.name} does not rise from 0 to {len(rows)}")
    # As unsigned numbers, negative rows are larger than any other: one pass checks both bounds.
    if len(rows) and rows.view("u4").max() >= neighbors:
        raise FormatError(f"frame: rows of {edges.name} leave the {neighbors} sampled nodes")
