"""Tables from PyG's ``Data`` and ``HeteroData``."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Set
from copy import copy
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from gigl_loader.arrays import Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.column_names import names_of_batches
from gigl_loader.graph.reverses import read_reverses
from gigl_loader.graph.schema import (
    HOMOGENEOUS_EDGE,
    HOMOGENEOUS_NODE,
    Column,
    EdgeType,
    LabelSign,
    NodeType,
    label_list,
)
from gigl_loader.partition.array_table import ArrayTable, without_dates
from gigl_loader.partition.declared import declared, declared_times, read_quantize
from gigl_loader.partition.readers import Table
from gigl_loader.partition.reversed_edges import with_declared_reverses
from gigl_loader.partition.table import (
    EDGE_ROLES,
    NODE_ROLES,
    SPLIT_MASKS,
    GraphTables,
    NodeTable,
    known_columns,
)
from gigl_loader.tensors import spec_of

logger = logging.getLogger(__name__)

_STRUCTURE = {"edge_index", "num_nodes", "adj_t", "adj"}
_WRITTEN_OVER = {"batch", "input_id"}
"""Attributes that PyG's loaders, too, write over in each batch."""

_Sides: TypeAlias = Mapping[str, set[bool]]
"""Names that arguments use for columns of edges (``True``) or nodes (``False``) of a ``Data``."""


def tables_from_pyg(
    data: Any,
    *,
    weight_attr: str | Mapping[Any, str] | None = None,
    time_attr: str | Mapping[Any, str] | None = None,
    labels: Mapping[EdgeType, Any] | None = None,
    quantize: Mapping[Any, Any] | None = None,
    reverses: Mapping[Any, Any] | None = None,
) -> GraphTables:
    """Return the tables of a ``Data`` or ``HeteroData``, without copying its tensors where possible.

    Tensors with a row per node or edge become columns under their own names. Boolean ``train_mask``,
    ``val_mask`` and ``test_mask`` become the splits ``train``, ``val`` and ``test``. A ``TensorFrame`` of
    ``torch_frame`` becomes a column for each of its semantic types (``tf.numerical``), of which batches make
    ``tf`` again. Other attributes (texts, settings, tensors of another length, lists of any length in a
    ``TensorFrame``) are left out, and a logged warning names them. So are those that every batch has of its
    own: ``batch`` of a ``Batch``, ``n_id`` and ``e_id`` that count rows from 0. ``FormatError`` for others of
    such names. Edge ids are places in ``edge_index``.

    Where an edge type has an ``adj_t`` alone (``T.ToSparseTensor``; of torch, or a ``SparseTensor`` of
    ``torch_sparse``), its edges come by ascending target, then by ascending source, as PyG's other attributes
    of edges do then. Its values become ``edge_weight``, or ``edge_attr`` where each edge has several; values
    of torch that are all 1 say nothing. Other sparse tensors are left out, and a logged warning names them.

    ``weight_attr`` names the edge column by which loaders may draw edges, for every type that has it, or by
    type. ``ValueError`` where it is not there, or holds more than one number an edge.

    ``time_attr`` names the column by which loaders may draw in time, one integer or ``datetime64`` (an array
    of NumPy) for each node or edge: of every node type that has it, or else of every edge type, or by type.

    Where a ``Data`` has as many edges as nodes, PyG takes a column for one of nodes unless its name has
    ``edge`` in it. A column of ``weight_attr`` is of edges, one of a mapping ``time_attr`` of what it says.

    ``labels`` are label sets by supervision type: node ids [2, P], row 0 the anchors, or a pair of positive
    and negative ones. The type need not be one of the edges.

    ``quantize`` names columns of floats to store as codes of a few bits: ``{"x": "int8"}`` for every type
    that has ``x``, ``{"paper": {"x": "uint4:per-row"}}`` by type. See ``DistDataset.from_pyg``.

    ``reverses`` declares, for some edge types, the type that holds their edges the other way round. Types
    that are named ``rev_`` need not be declared.
    """
    if not hasattr(data, "stores"):
        hint = ": pass its graph, dataset[0]" if hasattr(data, "num_classes") else ""
        if isinstance(data, tuple):
            hint = ": read the stores into one, or build the graph from tables"
        raise TypeError(
            f"data must be a Data or HeteroData of torch_geometric, got {type(data).__name__}{hint}"
        )
    data, sizes = _with_edge_index(data)
    node_stores, edge_stores = dict(_node_stores(data)), dict(_edge_stores(data))
    homogeneous = not hasattr(data, "node_types")
    sides = _sides(weight_attr, time_attr) if homogeneous else {}
    of_nodes, of_edges = names_of_batches(homogeneous=homogeneous)
    edges = {key: _edge_table(key, store, sides, of_edges) for key, store in edge_stores.items()}
    counts = {key: _num_nodes(key, store, edges, sizes) for key, store in node_stores.items()}
    nodes = {key: _node_table(key, store, counts[key], sides, of_nodes) for key, store in node_stores.items()}
    _warn_of_wide_masks(node_stores)
    _warn_of_left_out(
        data,
        [
            *((store, nodes[key].rows) for key, store in node_stores.items()),
            *((store, edges[key]) for key, store in edge_stores.items()),
        ],
        of_nodes | of_edges,
    )
    for end in {end for edge_type in edges for end in (edge_type[0], edge_type[2])} - set(nodes):
        nodes[end] = NodeTable(count=max(sizes[end], 1 + _largest_id(end, edges)))
    if isinstance(time_attr, str) and homogeneous:
        _warn_of_either_side(time_attr, nodes, edges)
    columns = {kind: table.columns for kind, table in edges.items()}
    node_columns = {kind: each.rows.columns for kind, each in nodes.items() if each.rows is not None}
    tables = GraphTables(
        edges=edges,
        nodes=nodes,
        weights=declared(columns, weight_attr, "weight_attr"),
        times=declared_times(node_columns, columns, time_attr, "time_attr"),
        labels=_label_tables(labels, nodes),
        quantize=read_quantize(quantize, known_columns(nodes, edges), "quantize"),
    )
    return with_declared_reverses(tables, read_reverses(edges, edges, reverses, "reverses") or {})


def _with_edge_index(data: Any) -> tuple[Any, Counter[NodeType]]:
    """Return the object with an ``edge_index`` in place of each ``adj_t`` that stands alone.

    With the numbers of nodes by type that these say, 0 for other types.
    """
    sizes: Counter[NodeType] = Counter()
    alone = [key for key, store in _edge_stores(data) if "edge_index" not in store and "adj_t" in store]
    data = copy(data) if alone else data
    for edge_type, store in _edge_stores(data):
        if edge_type not in alone:
            continue
        adjacency = store["adj_t"]
        for end, size in ((edge_type[2], adjacency.size(0)), (edge_type[0], adjacency.size(1))):
            sizes[end] = max(sizes[end], size)
        store["edge_index"], values = _edges_of(adjacency, f"edge type {edge_type}")
        if values is None:
            continue
        name = "edge_weight" if values.ndim == 1 else "edge_attr"
        if name in store:
            logger.warning("left out of the graph: the values of adj_t, as there is an %s beside it", name)
        else:
            store[name] = values
    return data, sizes


def _edges_of(adjacency: Any, what: str) -> tuple[Any, Any]:
    """Return the edges of an ``adj_t``, int64 [2, E], by ascending target and source, and their values.

    ``None`` for values that say nothing.
    """
    import torch

    if hasattr(adjacency, "coo"):  # A SparseTensor of torch_sparse.
        target, source, values = adjacency.coo()
    elif _is_dense(adjacency):
        raise ValueError(f"{what}: adj_t is no sparse tensor, and there is no edge_index")
    else:
        pairs = adjacency if adjacency.layout == torch.sparse_coo else adjacency.to_sparse_coo()
        target, source = pairs._indices()  # Not of ``coalesce``, which adds up parallel edges.
        # A sparse tensor of torch always has values.
        values = None if bool((pairs._values() == 1).all()) else pairs._values()
    order = torch.from_numpy(np.lexsort((source.cpu().numpy(), target.cpu().numpy())))
    edges = torch.stack([source.cpu()[order], target.cpu()[order]])
    return edges, None if values is None else values.detach().cpu()[order]


def _label_tables(
    labels: Mapping[EdgeType, Any] | None, node_types: Collection[NodeType]
) -> dict[EdgeType, Table]:
    """Return the tables of label sets by name.

    ``labels``: by supervision type, node ids [2, P] or a pair of positive and negative ones. ``ValueError``
    and ``TypeError`` name the type and the rule that it breaks.
    """
    found: dict[EdgeType, Table] = {}
    for edge_type, given in (labels or {}).items():
        if not (
            isinstance(edge_type, tuple)
            and len(edge_type) == 3
            and all(isinstance(part, str) for part in edge_type)
        ):
            raise TypeError(
                f"labels: a supervision type is (anchor type, relation, label type), got {edge_type!r}"
            )
        for end in (edge_type[0], edge_type[2]):
            if end not in node_types:
                raise ValueError(f"labels of {edge_type}: node type {end!r} is not in the graph")
        signs: tuple[LabelSign, ...] = ("positive", "negative")
        pairs = given if isinstance(given, tuple) else (given,)
        if not 1 <= len(pairs) <= 2:
            raise ValueError(f"labels of {edge_type}: positive ones, or (positive, negative)")
        for sign, each in zip(signs, pairs, strict=False):
            found[label_list(edge_type, sign)] = _label_table(f"{sign} labels of {edge_type}", each)
    return found


def _label_table(what: str, given: Any) -> Table:
    array = np.asarray(given.detach().cpu().numpy() if hasattr(given, "detach") else given)
    if array.ndim != 2 or array.shape[0] != 2 or array.dtype.kind not in "iu":
        raise ValueError(f"{what} are {array.dtype} {list(array.shape)}, not integer node ids [2, P]")
    return ArrayTable(what, {"src": array[0], "dst": array[1]})


def _warn_of_wide_masks(stores: Mapping[NodeType, Any]) -> None:
    """Name the masks that look like splits and are none, as those of datasets with several splits."""
    for store in stores.values():
        for name in SPLIT_MASKS:
            if name in store and getattr(store[name], "ndim", 1) > 1:
                logger.warning(
                    "%s has %d columns and is no split: use one of them, data.%s = data.%s[:, 0]",
                    name,
                    store[name].shape[1],
                    name,
                    name,
                )


def _warn_of_left_out(data: Any, tables: list[tuple[Any, Table | None]], taken: Set[str]) -> None:
    """Name the attributes of PyG's stores that no table has. ``taken``: names that batches have."""
    sparse = {
        name
        for store in data.stores
        for name, value in store.items()
        if name != "adj_t" and hasattr(value, "detach") and not _is_dense(value)
    }
    if sparse:
        logger.warning(
            "left out of the graph, as they are sparse: %s; batches do not have them: make them dense "
            "(to_dense()) where they are needed",
            ", ".join(sorted(sparse)),
        )
    stored: dict[int, set[str]] = {id(store): set() for store in data.stores}
    for store, table in tables:
        stored[id(store)].update(table.columns if table is not None else ())
    unstored = {
        name
        for store in data.stores
        for attribute, value in store.items()
        if attribute not in _STRUCTURE | sparse
        for name, _, _ in _parts(attribute, value)
        if stored[id(store)].isdisjoint({name, f"edge_{name}", f"node_{name}"})
    }
    if own := sorted(unstored & taken):
        logger.warning("left out of the graph, as every batch has its own: %s", ", ".join(own))
    if left_out := sorted(unstored - taken):
        logger.warning(
            "left out of the graph, as they have no row of one size per node or edge: %s; batches do not "
            "have them",
            ", ".join(left_out),
        )


def _sides(weight_attr: Any, time_attr: Any) -> _Sides:
    """Return the sides that arguments name for the columns of a ``Data``."""
    weights = weight_attr.values() if isinstance(weight_attr, Mapping) else [weight_attr]
    found: dict[str, set[bool]] = {str(name): {True} for name in weights if name is not None}
    for kind, name in time_attr.items() if isinstance(time_attr, Mapping) else ():
        found.setdefault(str(name), set()).add(isinstance(kind, tuple))
    return found


def _warn_of_either_side(
    name: str, nodes: Mapping[NodeType, NodeTable], edges: Mapping[EdgeType, Table]
) -> None:
    """Say that a time is of the nodes of a ``Data``, where it could be of its edges."""
    rows, table = nodes[HOMOGENEOUS_NODE].rows, edges.get(HOMOGENEOUS_EDGE)
    if rows is not None and name in rows.columns and table is not None and table.num_rows == rows.num_rows:
        logger.warning(
            "there are as many edges as nodes, and %s is taken for a time of nodes: pass time_attr={%r: %r} "
            "if it is one of edges",
            name,
            HOMOGENEOUS_EDGE,
            name,
        )


def _node_stores(data: Any) -> Iterator[tuple[NodeType, Any]]:
    if hasattr(data, "node_types"):
        for node_type in data.node_types:
            yield node_type, data[node_type]
    else:
        yield HOMOGENEOUS_NODE, data.stores[0]


def _edge_stores(data: Any) -> Iterator[tuple[EdgeType, Any]]:
    if hasattr(data, "node_types"):
        for edge_type in data.edge_types:
            yield edge_type, data[edge_type]
    elif "edge_index" in data or "adj_t" in data:
        yield HOMOGENEOUS_EDGE, data.stores[0]


def _edge_table(edge_type: EdgeType, store: Any, sides: _Sides, taken: Set[str]) -> Table:
    what = f"edge type {edge_type}"
    if "edge_index" not in store:
        raise ValueError(f"{what}: no edge_index, and no adj_t")
    ends = array_and_column(store["edge_index"], f"{what}, edge_index")[0]
    if ends.ndim != 2 or ends.shape[0] != 2 or ends.dtype.kind not in "iu":
        raise FormatError(f"{what}: edge_index is {ends.dtype} {list(ends.shape)}, not int64 [2, E]")
    arrays, columns = {"src": ends[0], "dst": ends[1]}, {}
    for name, array, column in _rows(store, ends.shape[1], what, sides, taken, of_edges=True):
        key = f"edge_{name}" if name in EDGE_ROLES else name
        arrays[key], columns[key] = array, column
    return ArrayTable(what, arrays, columns)


def _node_table(node_type: NodeType, store: Any, count: int, sides: _Sides, taken: Set[str]) -> NodeTable:
    what = f"node type {node_type!r}"
    arrays, columns = {}, {}
    for name, array, column in _rows(store, count, what, sides, taken, of_edges=False):
        key = f"node_{name}" if name in NODE_ROLES else name
        arrays[key], columns[key] = array, column
    if not arrays:
        return NodeTable(count=count)
    return NodeTable(ArrayTable(what, arrays, columns))


def _num_nodes(
    node_type: NodeType, store: Any, edges: Mapping[EdgeType, Table], sizes: Mapping[NodeType, int]
) -> int:
    if "num_nodes" in store:
        return int(store["num_nodes"])
    for name, value in store.items():
        known = name in ("x", "tf", "pos", "batch", "n_id", *SPLIT_MASKS) or name.startswith("node_")
        if known and hasattr(value, "detach") and not _is_dense(value):
            return int(value.size(0))
        if known and _has_rows(value):
            return len(value)
    labels = len(store["y"]) if "y" in store and _has_rows(store["y"]) else 0
    return max(labels, sizes[node_type], 1 + _largest_id(node_type, edges))


def _largest_id(node_type: NodeType, edges: Mapping[EdgeType, Table]) -> int:
    largest = -1
    for edge_type, table in edges.items():
        for end, column in ((edge_type[0], "src"), (edge_type[2], "dst")):
            if end == node_type and table.num_rows:
                chunk = next(table.read([column], table.num_rows))
                largest = max(largest, int(chunk[column].max()))
    return largest


def _is_edge_attr(store: Any, name: str) -> bool:
    if not hasattr(store, "is_edge_attr"):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG warns where it must guess the number of nodes
        return bool(store.is_edge_attr(name))


def _rows(
    store: Any, count: int, what: str, sides: _Sides, taken: Set[str], *, of_edges: bool
) -> Iterator[tuple[str, Array, Column]]:
    """Yield the columns that have a row for each of ``count`` nodes or edges.

    ``FormatError`` for one with a name of an attribute of every batch (``taken``) that says something else.
    """
    for name, value in store.items():
        if name in _STRUCTURE or not _has_rows(value) or len(value) != count:
            continue
        if of_edges in sides[name] if name in sides else _is_edge_attr(store, name) == of_edges:
            if name in taken:
                _check_taken(name, value, what)
                continue
            for key, tensor, frame in _parts(name, value):
                if tensor is not None:
                    array, column = array_and_column(tensor, f"{what}, {key}")
                    yield key, array, replace(column, frame=frame)


def _check_taken(name: str, value: Any, what: str) -> None:
    """Raise ``FormatError`` for an attribute that batches would have instead of their own."""
    if name in _WRITTEN_OVER:
        return
    if name in ("n_id", "e_id") and not _is_frame(value):
        array, _ = array_and_column(value, f"{what}, {name}")
        if np.array_equal(array, np.arange(len(array))):
            return
    raise FormatError(
        f"{what}: every batch has a {name!r} of its own: give that of the object another name, or delete it"
    )


def _has_rows(value: Any) -> bool:
    return _is_frame(value) or (_is_dense(value) and value.ndim > 0)


def _is_dense(value: Any) -> bool:
    """Return whether a value is an array or a tensor that is not sparse, nor nested."""
    if not hasattr(value, "detach"):
        return isinstance(value, np.ndarray)
    return str(getattr(value, "layout", "")) == "torch.strided" and not value.is_nested


def _is_frame(value: Any) -> bool:
    """Return whether a value is a ``TensorFrame``. Its package, which takes seconds, is not imported."""
    return hasattr(value, "feat_dict") and hasattr(value, "col_names_dict")


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any, tuple[tuple[str, int], ...]]]:
    """Yield name, tensor and ``Column.frame`` of a tensor, or of each semantic type of a ``TensorFrame``.

    The tensor is ``None`` for lists of any length.
    """
    if not _is_frame(value):
        yield name, value, ()
        return
    for kind, data in value.feat_dict.items():
        names, key = value.col_names_dict[kind], f"{name}.{kind.value}"
        if hasattr(data, "detach"):
            yield key, data, tuple((each, 1) for each in names)
        elif len(getattr(data, "offset", ())) == len(names) + 1 and data.values.ndim == 2:
            yield key, data.values, tuple(zip(names, data.offset.diff().tolist(), strict=True))
        else:
            yield key, None, ()
    if value.y is not None:
        yield f"{name}.y", value.y, (("y", (*value.y.shape, 1)[1]),)


def array_and_column(value: Any, what: str) -> tuple[Array, Column]:
    """Return a tensor as an array and its column. bfloat16, unknown to NumPy, travels as uint16."""
    unit = None
    if isinstance(value, np.ndarray):
        (array, unit), dtype = without_dates(value, what), None
    else:
        import torch

        if value.layout != torch.strided:
            raise FormatError(f"{what}: a sparse tensor; make it dense first")
        tensor = value.detach().cpu().contiguous()
        dtype = "BF16" if tensor.dtype == torch.bfloat16 else None
        array = tensor.view(torch.int16).numpy().view(np.uint16) if dtype else tensor.numpy()
    try:
        spec = spec_of(np.asarray(array))
    except FormatError as error:
        raise FormatError(f"{what}: {error}") from None
    return np.asarray(array), Column(dtype or spec.dtype, spec.shape[1:], unit)
