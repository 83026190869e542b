"""Nodes that the graph does not have, as users pass them to a sampler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gigl_loader.arrays import plain_values, tensor_of
from gigl_loader.errors import FormatError
from gigl_loader.graph.quantization import encode, scales_of
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from gigl_loader.loaders.inputs import read_seed_nodes
from gigl_loader.options import known_edge_type
from gigl_loader.sampling.new_nodes import MAX_NEW_NODES, NewLists, NewNodes, new_nodes_document
from gigl_loader.tensors import STORAGE_DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gigl_loader.arrays import Array, Int64Array
    from gigl_loader.graph.quantization import Quantized
    from gigl_loader.graph.schema import Column, EdgeType, GraphSchema, NodeType
    from gigl_loader.loaders.dataset import NodeDirectory
    from gigl_loader.sampling.columns import ColumnPlan


@dataclass(frozen=True, slots=True, eq=False)
class NewNode:
    """A node that the graph does not have, for one call of a sampler: ``sampler.sample(new=[...])``.

    New nodes of a type have the ids -1, -2, ... in the order in which a call gives them.
    """

    type: NodeType = HOMOGENEOUS_NODE
    features: Any = None
    """Value of each column, by name; the value itself where batches have one column of such nodes."""
    edges: Any = field(default_factory=dict)
    """Ids of the neighbours by edge type, [d] each, of edges that lead to the node (in a graph of out-edges:
    from it). A pair ``(ids, columns)`` gives the edges values, [d, ...] by name. Negative ids are those of
    new nodes. In a homogeneous graph, the ids may be given without the edge type."""


class DirectoryWithNewNodes:
    """A directory that knows new nodes, too: by negative ids."""

    def __init__(self, directory: NodeDirectory, counts: Mapping[NodeType, int]) -> None:
        self._directory = directory
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._directory, name)

    def positions(self, node_type: NodeType, node_ids: Int64Array) -> Int64Array:
        """Return the position of each node, int64 [N]. New ones follow those of the graph."""
        is_new = node_ids < 0
        if not is_new.any():
            return self._directory.positions(node_type, node_ids)
        count = self._counts.get(node_type, 0)
        lowest = int(node_ids.min())
        if lowest < -count:
            raise ValueError(f"{lowest} is no new node of type {node_type!r}: {count} are given")
        positions = self._directory.schema.nodes[node_type].count - 1 - node_ids
        if not is_new.all():
            positions[~is_new] = self._directory.positions(node_type, node_ids[~is_new])
        return positions


def read_new_nodes(
    directory: NodeDirectory, nodes: Sequence[NewNode], wanted: ColumnPlan
) -> tuple[NewNodes, DirectoryWithNewNodes]:
    """Return the new nodes of a call as its request has them, and a directory that knows them.

    ``wanted``: columns that batches have. ``TypeError`` and ``ValueError`` name the node and the broken rule.
    """
    schema = directory.schema
    if isinstance(nodes, NewNode) or not isinstance(nodes, Sequence):
        raise TypeError(f"new must be a list of NewNode, got a {type(nodes).__name__}")
    counts = Counter[str]()
    for number, node in enumerate(nodes):
        if not isinstance(node, NewNode):
            raise TypeError(f"new[{number}] must be a NewNode, got a {type(node).__name__}")
        if node.type not in schema.nodes:
            raise ValueError(
                f"new[{number}]: unknown node type {node.type!r}; known: {', '.join(schema.nodes)}"
            )
        counts[node.type] += 1
        if counts[node.type] > MAX_NEW_NODES:
            raise ValueError(f"a call brings at most {MAX_NEW_NODES:,} new nodes of a type")
    extended = DirectoryWithNewNodes(directory, counts)
    of_type = {
        kind: [(f"new[{number}]", node) for number, node in enumerate(nodes) if node.type == kind]
        for kind in counts
    }
    columns = {
        kind: _node_columns(schema, kind, given, wanted.nodes.get(kind, ()))
        for kind, given in of_type.items()
    }
    lists: dict[EdgeType, NewLists] = {}
    for given in of_type.values():
        edges = [_edges_of(schema, what, node) for what, node in given]
        for edge_type in sorted({each for found in edges for each in found}):
            lists[edge_type] = _lists(
                extended,
                edge_type,
                [what for what, _ in given],
                [found.get(edge_type) for found in edges],
                wanted,
            )
    document = new_nodes_document(schema, counts, columns, lists)
    try:
        return NewNodes.read(document, schema), extended
    except FormatError as error:
        raise ValueError(str(error)) from None


def _node_columns(
    schema: GraphSchema, kind: NodeType, given: Sequence[tuple[str, NewNode]], wanted: Sequence[str]
) -> dict[str, Array]:
    known = schema.nodes[kind].columns
    rows: dict[str, list[Array]] = {}
    for what, node in given:
        features = node.features
        if features is None:
            features = {}
        elif not isinstance(features, Mapping):
            if len(wanted) != 1:
                listed = ", ".join(wanted) or "none"
                raise TypeError(f"{what}: features must be a mapping by column; batches have {listed}")
            features = {wanted[0]: features}
        missing = [name for name in wanted if name not in features]
        if missing:
            raise ValueError(
                f"{what}: the column {missing[0]!r} is missing, which batches have (node_columns=)"
            )
        for name, value in features.items():
            if name not in known:
                raise ValueError(
                    f"{what}: nodes of type {kind!r} have no column {name!r}; known: "
                    f"{', '.join(known) or 'none'}"
                )
            rows.setdefault(name, []).append(_stored(value, known[name], 1, f"{what}: column {name!r}"))
    partly = [name for name, values in rows.items() if len(values) < len(given)]
    if partly:
        raise ValueError(f"some new nodes of type {kind!r} have the column {partly[0]!r}, others do not")
    return {name: np.concatenate(values) for name, values in rows.items()}


def _edges_of(schema: GraphSchema, what: str, node: NewNode) -> dict[EdgeType, Any]:
    edges = node.edges
    if edges is None:
        return {}
    if not isinstance(edges, Mapping):
        if not schema.homogeneous:
            raise TypeError(f"{what}: edges must be a mapping by edge type")
        edges = {HOMOGENEOUS_EDGE: edges}
    found: dict[EdgeType, Any] = {}
    for key, value in edges.items():
        edge_type = known_edge_type(schema.edges, key, f"{what}: edges")
        if schema.target_type(edge_type) != node.type:
            end = "from" if schema.edge_dir == "out" else "to"
            raise ValueError(
                f"{what}: edges of type {edge_type} do not lead {end} nodes of type {node.type!r}"
            )
        if edge_type in found:
            raise ValueError(f"{what}: edges names {edge_type} twice")
        found[edge_type] = value
    return found


def _lists(
    directory: DirectoryWithNewNodes,
    edge_type: EdgeType,
    whats: Iterable[str],
    given: Sequence[Any],
    wanted: ColumnPlan,
) -> NewLists:
    schema: GraphSchema = directory.schema
    known, needed = schema.edges[edge_type].columns, wanted.edges.get(edge_type, ())
    ids: list[Any] = []
    degrees: list[int] = []
    rows: dict[str, list[Array]] = {name: [] for name in needed}
    for what, value in zip(whats, given, strict=True):
        neighbors, columns = value if _is_pair(value) else (value, {})
        if neighbors is None:
            neighbors = []
        if isinstance(neighbors, (str, bytes)) or not hasattr(neighbors, "__len__"):
            raise TypeError(
                f"{what}: edges of {edge_type} are a list or tensor of node ids, got {neighbors!r:.80}"
            )
        neighbors = plain_values(f"{what}: edges of {edge_type}", neighbors)
        neighbors = neighbors.tolist() if hasattr(neighbors, "tolist") else list(neighbors)
        if not isinstance(columns, Mapping):
            raise TypeError(f"{what}: columns of edges {edge_type} must be a mapping by name")
        ids += neighbors
        degrees.append(len(neighbors))
        if not neighbors:
            continue
        missing = [name for name in needed if name not in columns]
        if missing:
            raise ValueError(
                f"{what}: edges of {edge_type} lack the column {missing[0]!r}, which batches have: pass "
                "(ids, columns)"
            )
        for name, values in columns.items():
            if name not in known:
                raise ValueError(f"{what}: edges of {edge_type} have no column {name!r}")
            place = f"{what}: column {name!r} of edges {edge_type}"
            rows.setdefault(name, []).append(_stored(values, known[name], len(neighbors), place))
    total = sum(degrees)
    if any(sum(map(len, values)) < total for values in rows.values()):
        raise ValueError(f"some new nodes give edges of {edge_type} a column that others do not")
    # Of no edges, there is nothing to look up.
    found = read_seed_nodes(directory, (schema.neighbor_type(edge_type), ids)) if ids else None
    return NewLists(
        np.array(degrees, np.int64),
        np.empty(0, np.int64) if found is None else found.positions,
        {name: np.concatenate(values) for name, values in rows.items() if values},
    )


def _is_pair(edges: Any) -> bool:
    """Return whether edges are ids and their columns. A tuple of two ids is not."""
    if not isinstance(edges, tuple) or len(edges) != 2:
        return False
    return isinstance(edges[1], Mapping) or edges[0] is None or hasattr(edges[0], "__len__")


def _stored(value: Any, column: Column, count: int, what: str) -> Array:
    """Return the rows of a column, as they are stored. ``count`` of 1: the row may be given by itself."""
    if column.quantized is not None:
        return _quantized(
            _stored(value, replace(column, quantized=None), count, what), column.quantized, what
        )
    spec = column.spec(count)
    try:
        tensor = tensor_of(what, value)
        dtype = torch.bfloat16 if column.dtype == "BF16" else None
        if dtype is None:
            array = np.asarray(tensor.numpy() if tensor.dtype != torch.bfloat16 else tensor.float().numpy())
            kind = STORAGE_DTYPES[spec.dtype]
            if array.dtype.kind == "f" and kind.kind in "iub":
                raise TypeError(f"holds {array.dtype}")
            stored = array.astype(kind)
            if kind.kind in "iub" and not np.array_equal(stored, array):
                raise TypeError(f"does not fit {spec.dtype}")
        else:
            stored = tensor.to(dtype).contiguous().view(torch.int16).numpy().view(np.uint16)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{what} must hold {column.dtype}: {error}") from None
    if stored.size != int(np.prod(spec.shape)) or (count != 1 and stored.shape[:1] != (count,)):
        raise ValueError(f"{what} must have the shape {list(spec.shape)}, got {list(stored.shape)}")
    return np.ascontiguousarray(stored).reshape(spec.shape)


def _quantized(rows: Array, form: Quantized, what: str) -> Array:
    """Return float rows in the form in which the graph stores the column."""
    values = rows.reshape(len(rows), -1)
    if not np.isfinite(values).all():
        raise ValueError(f"{what} is quantised, and a value is not finite")
    if form.how.per == "column":
        return encode(values, form.scales, form.zero_points, form.how)
    try:
        scales, zero_points = scales_of(values.min(axis=1), values.max(axis=1), form.how)
    except OverflowError:
        raise ValueError(f"{what}: a step of {form.how} is larger than float32 can hold") from None
    return encode(values, scales, zero_points, form.how)
