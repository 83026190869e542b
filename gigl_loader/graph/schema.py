"""Schema of a graph, as frozen values: types, sizes, columns. No arrays and no I/O."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast
from urllib.parse import quote

from gigl_loader.errors import FormatError
from gigl_loader.graph.column_names import check_encodable, check_names, check_type_names
from gigl_loader.graph.columns import Column, VocabularyFile, columns_from_json, columns_to_json
from gigl_loader.options import EdgeType, NodeType

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
        return {
            "edge_dir": self.edge_dir,
            "homogeneous": self.homogeneous,
            "num_partitions": self.num_partitions,
            "nodes": [_nodes_to_json(node_type, nodes) for node_type, nodes in self.nodes.items()],
            "edges": [_edges_to_json(edge_type, edges) for edge_type, edges in self.edges.items()],
            **(
                {"labels": [_edges_to_json(name, pairs) for name, pairs in self.labels.items()]}
                if self.labels
                else {}
            ),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> GraphSchema:
        """Return the schema that ``to_json`` wrote. ``FormatError`` for other values."""
        try:
            return cls(
                edge_dir=document["edge_dir"],
                homogeneous=bool(document["homogeneous"]),
                num_partitions=int(document["num_partitions"]),
                nodes=dict(_nodes_from_json(entry) for entry in document["nodes"]),
                edges=dict(_edges_from_json(entry) for entry in document["edges"]),
                labels=dict(_edges_from_json(entry) for entry in document.get("labels", [])),
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


def _vocabularies_to_json(each: NodeSchema | EdgeSchema) -> dict[str, Any]:
    words = {name: list(texts) for name, texts in each.vocabularies.items()}
    files = {name: list(file) for name, file in each.vocabulary_files.items()}
    return {
        **({"vocabularies": words} if words else {}),
        **({"vocabulary_files": files} if files else {}),
    }


def _vocabularies_from_json(entry: Mapping[str, Any]) -> dict[str, Any]:
    words, files = entry.get("vocabularies", {}), entry.get("vocabulary_files", {})
    return {
        "vocabularies": {name: tuple(map(str, texts)) for name, texts in words.items()},
        "vocabulary_files": {name: VocabularyFile(*map(int, file)) for name, file in files.items()},
    }


def _nodes_to_json(node_type: NodeType, nodes: NodeSchema) -> dict[str, Any]:
    return {
        "type": node_type,
        "count": nodes.count,
        "bounds": list(nodes.bounds),
        "ids": nodes.ids,
        "columns": columns_to_json(nodes.columns),
        "splits": dict(nodes.splits),
        **({"text_ids": True} if nodes.text_ids else {}),
        **({"times": list(nodes.times)} if nodes.times else {}),
        **_vocabularies_to_json(nodes),
    }


def _nodes_from_json(entry: Mapping[str, Any]) -> tuple[NodeType, NodeSchema]:
    return entry["type"], NodeSchema(
        count=int(entry["count"]),
        bounds=tuple(int(bound) for bound in entry["bounds"]),
        ids=entry["ids"],
        columns=columns_from_json(entry["columns"]),
        splits={name: int(count) for name, count in entry["splits"].items()},
        text_ids=bool(entry.get("text_ids", False)),
        times=tuple(str(name) for name in entry.get("times", ())),
        **_vocabularies_from_json(entry),
    )


def _edges_to_json(edge_type: EdgeType, edges: EdgeSchema) -> dict[str, Any]:
    return {
        "type": list(edge_type),
        "count": edges.count,
        "wide_indices": edges.wide_indices,
        "columns": columns_to_json(edges.columns),
        "weight": edges.weight,
        "time": edges.time,
        **({"weights": list(edges.weights)} if edges.weights else {}),
        **({"times": list(edges.times)} if edges.times else {}),
        **({} if edges.splits is None else {"splits": _splits_to_json(edges.splits)}),
        **({} if edges.reverse is None else {"reverse": list(edges.reverse)}),
        **_vocabularies_to_json(edges),
    }


def _edges_from_json(entry: Mapping[str, Any]) -> tuple[EdgeType, EdgeSchema]:
    source, relation, destination = entry["type"]
    return (source, relation, destination), EdgeSchema(
        count=int(entry["count"]),
        wide_indices=bool(entry["wide_indices"]),
        columns=columns_from_json(entry["columns"]),
        weight=bool(entry["weight"]),
        time=bool(entry["time"]),
        weights=tuple(str(name) for name in entry.get("weights", ())),
        splits=_splits_from_json(entry["splits"]) if "splits" in entry else None,
        times=tuple(str(name) for name in entry.get("times", ())),
        reverse=cast("EdgeType", tuple(entry["reverse"])) if "reverse" in entry else None,
        **_vocabularies_from_json(entry),
    )


def _splits_to_json(splits: EdgeSplits) -> dict[str, Any]:
    return {
        "fractions": [[name, fraction] for name, fraction in splits.fractions.items()],
        "hashed": splits.hashed,
        "seed": splits.seed,
        "counts": dict(splits.counts),
    }


def _splits_from_json(entry: Mapping[str, Any]) -> EdgeSplits:
    return EdgeSplits(
        fractions={name: float(fraction) for name, fraction in entry["fractions"]},
        hashed=entry["hashed"],
        seed=int(entry["seed"]),
        counts={name: int(count) for name, count in entry["counts"].items()},
    )
