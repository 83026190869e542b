"""Schema of a graph, as frozen values: types, sizes, columns. No arrays and no I/O."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

from gigl_loader.errors import FormatError
from gigl_loader.graph.column_names import check_encodable, check_names, check_type_names
from gigl_loader.graph.quantization import Quantized
from gigl_loader.options import EdgeType, NodeType
from gigl_loader.tensors import STORAGE_DTYPES, ArraySpec

__all__ = [
    "HOMOGENEOUS_EDGE",
    "HOMOGENEOUS_NODE",
    "Column",
    "EdgeSchema",
    "EdgeSplits",
    "EdgeType",
    "GraphSchema",
    "LabelSign",
    "NodeSchema",
    "NodeType",
    "VocabularyFile",
    "edge_type_address",
    "held_out_list",
    "is_hidden_list",
    "label_list",
    "type_name",
]

HOMOGENEOUS_NODE: NodeType = "node"
HOMOGENEOUS_EDGE: EdgeType = ("node", "to", "node")

_WIDE = 2**31
_ID_KINDS = ("identity", "dense", "sparse")


@lru_cache(maxsize=4096)
def type_name(kind: NodeType | EdgeType) -> str:
    """Return a name for a node or edge type that is safe in file and array names, and unambiguous."""
    parts = (kind,) if isinstance(kind, str) else kind
    try:
        return "+".join(quote(part, safe="") for part in parts)
    except UnicodeEncodeError:
        check_type_names(kind, parts)  # Raises, and names the part.
        raise


LabelSign: TypeAlias = Literal["positive", "negative"]


def label_list(edge_type: EdgeType, sign: LabelSign) -> EdgeType:
    """Return the name of the lists that hold the labels of anchors, among the edge types of a graph."""
    source, relation, destination = edge_type
    return (source, f"{relation}#{sign}", destination)


def held_out_list(edge_type: EdgeType) -> EdgeType:
    """Return the name of the lists that hold the edges of a type that no batch may have."""
    source, relation, destination = edge_type
    return (source, f"{relation}#held", destination)


def is_hidden_list(name: EdgeType) -> bool:
    """Return whether this is the name of a label set, or of edges that are held out."""
    return name[1].endswith(("#positive", "#negative", "#held"))


def edge_type_address(edge_type: EdgeType) -> int:
    """Return the 24 bits of an edge type in the address of a draw.

    They depend on the name alone, so that adding a type to a graph changes no draws of other types.
    """
    return zlib.crc32(type_name(edge_type).encode()) & 0xFFFFFF


@dataclass(frozen=True, slots=True)
class Column:
    """One named array with a row per node or edge: its dtype and the shape of a row."""

    dtype: str
    """A safetensors dtype name, for example ``F32``, which a quantised column has in batches, too."""
    shape: tuple[int, ...] = ()
    """Shape of one row: ``()`` for a number, ``(128,)`` for a vector."""
    unit: str | None = None
    """``"ns"`` for points in time: nanoseconds since 1970-01-01 UTC, int64. ``None`` for plain numbers."""
    quantized: Quantized | None = None
    """Stored form of the values, where they are quantised: rows are bytes in files and frames."""
    frame: tuple[tuple[str, int], ...] = ()
    """Names and widths of columns of a ``TensorFrame`` that a row has side by side. Empty: it is of none."""

    def __post_init__(self) -> None:
        if self.dtype not in STORAGE_DTYPES:
            raise ValueError(f"unknown dtype {self.dtype!r}; known: {', '.join(STORAGE_DTYPES)}")
        if any(size < 0 for size in self.shape):
            raise ValueError(f"negative size in row shape {self.shape}")
        if self.frame and sum(width for _, width in self.frame) != (*self.shape, 1)[0]:
            raise ValueError(f"a row of shape {self.shape} cannot hold the columns {self.frame}")
        if self.unit is not None and (self.unit, self.dtype) != ("ns", "I64"):
            raise ValueError(f"a unit must be 'ns' of I64, got {self.unit!r} of {self.dtype}")
        if self.quantized is not None:
            if self.dtype != "F32":
                raise ValueError(f"quantised values are read as F32, not as {self.dtype}")
            self.quantized.check(math.prod(self.shape))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in files and frames."""
        elements = math.prod(self.shape)
        if self.quantized is not None:
            return self.quantized.how.row_bytes(elements)
        return elements * STORAGE_DTYPES[self.dtype].itemsize

    @property
    def holds_times(self) -> bool:
        """Whether a row is one integer."""
        return self.shape in ((), (1,)) and STORAGE_DTYPES[self.dtype].kind in "iu" and self.dtype != "BF16"

    def spec(self, rows: int) -> ArraySpec:
        """Return the spec of ``rows`` rows of this column in files and frames."""
        if self.quantized is not None:
            return ArraySpec("U8", (rows, self.row_bytes))
        return ArraySpec(self.dtype, (rows, *self.shape))


class VocabularyFile(NamedTuple):
    """A file with the texts that the integers of a column stand for. Several columns may share it."""

    number: int
    """Number in the name of the file."""
    num_texts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSchema:
    """Schema of the nodes of one type."""

    count: int
    bounds: tuple[int, ...]
    """Partition p owns the positions ``[bounds[p], bounds[p + 1])``."""
    ids: Literal["identity", "dense", "sparse"] = "identity"
    """Node ids: equal to positions, a permutation of 0..count-1, or arbitrary int64."""
    columns: Mapping[str, Column]
    splits: Mapping[str, int]
    """Number of nodes in each named split."""
    text_ids: bool = False
    """The tables named the nodes by texts. Node ids are 0..count-1, and a file holds the text of each."""
    times: tuple[str, ...] = ()
    """Columns declared as times, by which lists of these nodes are ordered, too."""
    vocabularies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Texts that the integers of a column stand for, by column."""
    vocabulary_files: Mapping[str, VocabularyFile] = field(default_factory=dict)
    """Files of such texts, where ``graph.json`` would be too large with them."""

    def __post_init__(self) -> None:
        if self.text_ids and self.ids == "sparse":
            raise ValueError("nodes with text ids have the node ids 0..count-1, not sparse ones")
        if self.ids not in _ID_KINDS:
            raise ValueError(f"ids must be one of {', '.join(_ID_KINDS)}, got {self.ids!r}")
        if len(self.bounds) < 2 or self.bounds[0] != 0 or self.bounds[-1] != self.count:
            raise ValueError(f"bounds must run from 0 to {self.count}, got {self.bounds}")
        if any(low > high for low, high in zip(self.bounds, self.bounds[1:], strict=False)):
            raise ValueError(f"bounds must not fall, got {self.bounds}")
        check_names(self.splits, "split")
        _check_columns(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSplits:
    """Splits of the edges of one type: by a hash of the two node ids of an edge (``gigl_loader.splits``)."""

    fractions: Mapping[str, float]
    """Of each named split, in the order in which they divide the range of the hash."""
    hashed: Literal["src,dst", "dst,src", "both"] = "src,dst"
    """Order of the two ids. Reversed edges have ``"dst,src"``, to be in the split of their edge; ``"both"``
    takes the smaller id first, for types that hold both directions."""
    seed: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of edges in each split, in the built graph."""

    def __post_init__(self) -> None:
        if self.hashed not in ("src,dst", "dst,src", "both"):
            raise ValueError(f"splits are hashed by 'src,dst', 'dst,src' or 'both', not {self.hashed!r}")
        check_names(self.fractions, "split")
        if self.counts and self.counts.keys() != self.fractions.keys():
            raise ValueError(f"counts of the splits {sorted(self.counts)}, not of {sorted(self.fractions)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSchema:
    """Schema of the edges of one type."""

    count: int
    wide_indices: bool
    """Whether neighbour positions are int64, because their type has 2^31 nodes or more."""
    columns: Mapping[str, Column]
    weight: bool = False
    """The topology carries a weight (float32) per edge. Only in graphs that version 0.1 alphas built."""
    time: bool = False
    """The topology carries a time (int64) per edge. Only in graphs that version 0.1 alphas built."""
    weights: tuple[str, ...] = ()
    """Columns declared as weights, in proportion to which edges can be drawn."""
    splits: EdgeSplits | None = None
    """Splits of the edges of this type, with those that are held out."""
    times: tuple[str, ...] = ()
    """Columns declared as times, by which lists are ordered, too."""
    reverse: EdgeType | None = None
    """Type that is declared to hold these edges the other way round. It may be this type itself."""
    vocabularies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    vocabulary_files: Mapping[str, VocabularyFile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"an edge type cannot have {self.count} edges")
        _check_columns(self)
        for name in self.weights:
            if name not in self.columns and not (self.weight and name == "weight"):
                raise ValueError(f"the weights {name!r} are no column of the edges")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSchema:
    """Schema of a graph. Types are sorted: their order is their index in native code."""

    edge_dir: Literal["in", "out"]
    """``in`` keeps the in-edges of each node (by destination), ``out`` its out-edges (by source)."""
    homogeneous: bool
    nodes: Mapping[NodeType, NodeSchema]
    edges: Mapping[EdgeType, EdgeSchema]
    num_partitions: int
    labels: Mapping[EdgeType, EdgeSchema] = field(default_factory=dict)
    """Lists of pairs that no batch has as edges, by source, whatever ``edge_dir`` is: label sets (pairs of an
    anchor and a label) by ``label_list``, edges that are held out by ``held_out_list``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", dict(sorted(self.nodes.items())))
        object.__setattr__(self, "edges", dict(sorted(self.edges.items())))
        object.__setattr__(self, "labels", dict(sorted(self.labels.items())))
        if self.edge_dir not in ("in", "out"):
            raise ValueError(f'edge_dir must be "in" or "out", got {self.edge_dir!r}')
        if self.num_partitions < 1:
            raise ValueError(f"a graph needs at least 1 partition, got {self.num_partitions}")
        if self.homogeneous and (
            set(self.nodes) != {HOMOGENEOUS_NODE} or not set(self.edges) <= {HOMOGENEOUS_EDGE}
        ):
            raise ValueError("a homogeneous graph has one node type and at most one edge type")
        for node_type, nodes in self.nodes.items():
            check_type_names(node_type, (node_type,))
            if len(nodes.bounds) != self.num_partitions + 1:
                raise ValueError(
                    f"node type {node_type!r}: {len(nodes.bounds)} bounds, {self.num_partitions} partitions"
                )
        for edge_type in self.lists:
            self._check_edge_type(edge_type)
        for name in self.labels:
            if name in self.edges or not is_hidden_list(name):
                raise ValueError(f"{name} cannot name a label set")

    @property
    def reverses(self) -> dict[EdgeType, EdgeType]:
        """Declared reverse of each edge type that has one."""
        return {each: edges.reverse for each, edges in self.edges.items() if edges.reverse is not None}

    def _check_edge_type(self, edge_type: EdgeType) -> None:
        if len(edge_type) != 3:
            raise ValueError(f"an edge type is (source, relation, destination), got {edge_type!r}")
        check_type_names(edge_type, edge_type)
        for end in (edge_type[0], edge_type[2]):
            if end not in self.nodes:
                raise ValueError(f"edge type {edge_type}: node type {end!r} is not in the graph")
        wide = self.nodes[self.neighbor_type(edge_type)].count >= _WIDE
        if self.lists[edge_type].wide_indices != wide:
            raise ValueError(f"edge type {edge_type}: wide_indices must be {wide}")
        reverse = self.lists[edge_type].reverse
        if reverse is not None and (reverse not in self.edges or reverse[::2] != edge_type[::-2]):
            raise ValueError(f"edge type {edge_type}: {reverse} cannot be its reverse")
        neighbor = self.neighbor_type(edge_type)
        twice = sorted({*self.lists[edge_type].times} & {*self.nodes[neighbor].times})
        if twice and edge_type in self.edges:
            raise ValueError(
                f"{twice[0]!r} is declared as a time of edges {edge_type} and of their neighbours, nodes of "
                f"type {neighbor!r}: declare one of the two"
            )

    @property
    def lists(self) -> dict[EdgeType, EdgeSchema]:
        """Everything that is stored as adjacency lists: edges and label sets."""
        return {**self.edges, **self.labels}

    @property
    def columns(self) -> dict[NodeType | EdgeType, Mapping[str, Column]]:
        """Columns of every node and edge type."""
        found: dict[NodeType | EdgeType, Mapping[str, Column]] = {
            node_type: nodes.columns for node_type, nodes in self.nodes.items()
        }
        return {**found, **{edge_type: edges.columns for edge_type, edges in self.edges.items()}}

    @property
    def has_quantized_columns(self) -> bool:
        """Whether a column of any type is stored quantised."""
        return any(
            column.quantized is not None for columns in self.columns.values() for column in columns.values()
        )

    @property
    def vocabulary_files(self) -> set[VocabularyFile]:
        """Files of vocabularies, of all types."""
        types: list[NodeSchema | EdgeSchema] = [*self.nodes.values(), *self.edges.values()]
        return {file for each in types for file in each.vocabulary_files.values()}

    @property
    def label_types(self) -> list[EdgeType]:
        """Supervision types that have a label set."""
        return [
            (source, relation.removesuffix("#positive"), destination)
            for source, relation, destination in self.labels
            if relation.endswith("#positive")
        ]

    @property
    def supervision_type(self) -> EdgeType:
        """The supervision type of a graph that has one label set, or no label set and one edge type.

        ``ValueError`` lists what there is to choose from in every other graph.
        """
        known = self.label_types or list(self.edges)
        if len(known) == 1:
            return known[0]
        listed = ", ".join(map(str, sorted({*known, *self.edges}))) or "none"
        raise ValueError(f"supervision_edge_type must be one of {listed}")

    def label_lists(self, edge_type: EdgeType) -> dict[LabelSign, EdgeType]:
        """Return the lists that have the labels of a supervision type, by sign.

        Without a label set, the edges of the type are the positive ones. ``ValueError`` where there is
        neither.
        """
        signs: tuple[LabelSign, ...] = ("positive", "negative")
        found = {sign: label_list(edge_type, sign) for sign in signs}
        stored = {sign: name for sign, name in found.items() if name in self.labels}
        if stored:
            return stored
        if edge_type not in self.edges:
            raise ValueError(f"no edge type or label set {edge_type!r:.200}")
        return {"positive": edge_type}

    def target_type(self, edge_type: EdgeType) -> NodeType:
        """Return the type of the nodes whose adjacency lists hold edges of this type."""
        inward = self.edge_dir == "in" and edge_type not in self.labels
        return edge_type[2] if inward else edge_type[0]

    def neighbor_type(self, edge_type: EdgeType) -> NodeType:
        """Return the type of the neighbours in the lists of this edge type."""
        inward = self.edge_dir == "in" and edge_type not in self.labels
        return edge_type[0] if inward else edge_type[2]

    def list_times(self, edge_type: EdgeType) -> tuple[str, ...]:
        """Return the times by which the lists of an edge type are ordered: its own, and the neighbours'."""
        return tuple(sorted({*self.edges[edge_type].times, *self.nodes[self.neighbor_type(edge_type)].times}))

    def to_json(self) -> dict[str, Any]:
        """Return the schema as JSON-able values."""
        from gigl_loader.graph.schema_json import edges_to_json, nodes_to_json

        return {
            "edge_dir": self.edge_dir,
            "homogeneous": self.homogeneous,
            "num_partitions": self.num_partitions,
            "nodes": [nodes_to_json(node_type, nodes) for node_type, nodes in self.nodes.items()],
            "edges": [edges_to_json(edge_type, edges) for edge_type, edges in self.edges.items()],
            **(
                {"labels": [edges_to_json(name, pairs) for name, pairs in self.labels.items()]}
                if self.labels
                else {}
            ),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> GraphSchema:
        """Return the schema that ``to_json`` wrote. ``FormatError`` for other values."""
        from gigl_loader.graph.schema_json import edges_from_json, nodes_from_json

        try:
            return cls(
                edge_dir=document["edge_dir"],
                homogeneous=bool(document["homogeneous"]),
                num_partitions=int(document["num_partitions"]),
                nodes=dict(nodes_from_json(entry) for entry in document["nodes"]),
                edges=dict(edges_from_json(entry) for entry in document["edges"]),
                labels=dict(edges_from_json(entry) for entry in document.get("labels", [])),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"bad graph schema: {type(error).__name__}: {error}") from None


def _check_columns(each: NodeSchema | EdgeSchema) -> None:
    check_names(each.columns, "column")
    for name in each.times:
        if name not in each.columns or not each.columns[name].holds_times:
            raise ValueError(f"the times {name!r} are no column of integers")
    for name, texts in each.vocabularies.items():
        if name not in each.columns or len(set(texts)) < len(texts):
            raise ValueError(f"the vocabulary of {name!r} is of no column, or repeats texts")
        check_encodable("".join(texts), "text of a vocabulary")
    for name, file in each.vocabulary_files.items():
        if name not in each.columns or name in each.vocabularies or min(file) < 0:
            raise ValueError(f"the vocabulary of {name!r} is of no column, or comes twice")
