"""PyG's ``FeatureStore`` over a dataset: rows of columns, fetched from the owners of nodes and edges."""

from __future__ import annotations

import operator
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch_geometric.data import FeatureStore, TensorAttr

from gigl_loader.graph.schema import HOMOGENEOUS_NODE, Column
from gigl_loader.loaders.dequantize import Dequantizer
from gigl_loader.pyg.dataset import (
    EdgeRows,
    NodeIndex,
    check_pickled,
    check_process,
    close_at_exit,
    close_here,
    edge_rows,
)
from gigl_loader.sampling.store import GatherRequest
from gigl_loader.tensors import STORAGE_DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

    from gigl_loader.arrays import Bytes, Int64Array
    from gigl_loader.graph.schema import EdgeType, NodeType
    from gigl_loader.pyg.dataset import PygDataset
    from gigl_loader.sampling.partitioned import PartitionedStore


class RowSelection:
    """Rows of a tensor of ``count`` rows, as ``tensor[index]`` selects them along its first dimension.

    ``index`` is ``None`` for all rows, a slice, an integer, or a 1-D tensor or array of integers or of
    ``count`` booleans. ``IndexError`` for a row that does not exist, ``TypeError`` for another index.
    """

    def __init__(self, index: Any, count: int) -> None:
        self.is_single = False
        """An integer selects a row, without the dimension of rows."""
        self.rows: Int64Array = self._rows(index, count)
        """Row numbers, int64 [N], from 0."""

    def shape(self, column: Column) -> tuple[int, ...]:
        """Return the shape of the selected rows of a column."""
        return column.shape if self.is_single else (len(self.rows), *column.shape)

    def _rows(self, index: Any, count: int) -> Int64Array:
        if index is None:
            return np.arange(count, dtype=np.int64)
        if isinstance(index, slice):
            return np.arange(*index.indices(count), dtype=np.int64)
        array = self._array(index)
        if array.dtype == np.bool_:
            if len(array) != count:
                raise IndexError(f"a mask over {count} rows is needed, got one of {len(array)}")
            return np.flatnonzero(array).astype(np.int64, copy=False)
        rows = array.astype(np.int64, copy=False)
        wrong = rows[(rows < -count) | (rows >= count)]
        if len(wrong):
            raise IndexError(f"row {wrong[0]} of {count}")
        return np.where(rows < 0, rows + count, rows)

    def _array(self, index: Any) -> np.ndarray[Any, Any]:
        if isinstance(index, torch.Tensor):
            index = index.detach().cpu().numpy()
        if isinstance(index, (list, range)):
            index = np.asarray(index, np.int64 if not len(index) else None)
        if not isinstance(index, np.ndarray) or not index.ndim:
            try:
                index = np.array([operator.index(index)])
            except TypeError:
                raise TypeError(
                    "an index must be None, a slice, an integer, or a 1-D tensor of integers or booleans, "
                    f"got {index!r:.200}"
                ) from None
            self.is_single = True
        if index.ndim != 1 or index.dtype.kind not in "biu":
            raise TypeError(
                f"an index must be 1-D, of integers or booleans, got {index.dtype} {list(index.shape)}"
            )
        array: np.ndarray[Any, Any] = index
        return array


def as_tensor(rows: Bytes, column: Column, shape: tuple[int, ...]) -> torch.Tensor:
    """Return uint8 [N, row bytes] as a tensor of a column's dtype, without a copy. bfloat16 as such.

    The values of a quantised column are float32, in memory of their own.
    """
    if column.quantized is not None:
        values = Dequantizer(column).on_host(rows, lambda nbytes: np.empty(nbytes, np.uint8))
        return values.reshape(shape)
    array = rows.reshape(-1).view(STORAGE_DTYPES[column.dtype]).reshape(shape)
    if column.dtype == "BF16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


NODE_ID, EDGE_ID = "n_id", "e_id"
_ID_COLUMN = Column("I64")


class GiglFeatureStore(FeatureStore):  # type: ignore[misc]  # PyG is not typed.
    """Columns of nodes and edges by index, wherever their partitions lie. Read-only.

    Made by ``dataset.as_pyg()``. Values, dtypes and shapes are those of the graph;
    quantised columns are float32.

    **Groups.** A node type or an edge type; ``None`` for the nodes of a homogeneous graph, whose edges are
    ``("node", "to", "node")``. PyG takes every listed attribute of a homogeneous graph for one of its nodes:
    attributes of its edges are fetched by name, and not listed.

    **Index.** Of a node: the rank of its node id, by ascending id; the node id itself where the ids of its
    type are ``0 .. N - 1``. The attribute ``n_id`` (int64 [N]) is the node id of each node. It is listed, and
    so in PyG's batches, for types whose ids have gaps or that have no column. Of an edge: the rank of its
    edge id, its column in ``edge_index``; the edge id itself where the ids of its type are ``0 .. E - 1``.
    The attribute ``e_id`` (int64 [E]) is the edge id of each edge. The first fetch of an edge type reads all
    of its edges, and keeps 8 bytes for each, 16 where ids have gaps. As PyG's, an index is ``None`` for all
    rows, a slice, an integer, or a 1-D tensor of integers or booleans.

    **Columns of edges.** PyG's loaders fetch those of nodes alone: pass :meth:`edge_columns` as their
    ``transform``.

    **Errors.** ``KeyError`` for a group or attribute that the graph does not have, ``IndexError`` for a row
    that does not exist, ``StorageUnavailable`` where an owner does not answer, ``TypeError`` for an attempt
    to change something, ``ValueError`` once the dataset was closed.

    **Processes.** Where the whole graph lies on this host, the store works in the worker processes of a
    ``DataLoader``. Elsewhere these are refused: ``num_workers=0``. Connections are closed by :meth:`close`,
    by closing the dataset, or when the store is collected.
    """

    def __init__(self, dataset: PygDataset) -> None:
        """Use ``dataset.as_pyg()``."""
        super().__init__()
        self._dataset = dataset
        self._nodes = NodeIndex(dataset)
        self._start()

    def _start(self) -> None:
        self._owner = os.getpid()
        self._edges: dict[EdgeType, EdgeRows] = {}
        self._opening = threading.Lock()
        self._store: PartitionedStore | None = None

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Return the group and name of every attribute, without index."""
        schema = self._dataset.schema
        attrs = [
            TensorAttr(self._listed(node_type), name)
            for node_type, nodes in schema.nodes.items()
            for name in (
                *nodes.columns,
                *([NODE_ID] if not nodes.columns or self._nodes.has_gaps(node_type) else []),
            )
        ]
        if schema.homogeneous:
            return attrs
        of_edges = [TensorAttr(kind, name) for kind, edges in schema.edges.items() for name in edges.columns]
        return attrs + of_edges

    def edge_columns(self, batch: Any) -> Any:
        """Return a batch of PyG's loaders over ``GiglSampler`` with the columns of its edges.

        Pass it as their ``transform``, which ``filter_fn`` calls last. ``batch.e_id`` says which edges. In a
        homogeneous graph, a column that has the name of a node column gets the prefix ``edge_``, as in this
        library's batches. ``ValueError`` where a type with columns has no ``e_id``.
        """
        schema = self._dataset.schema
        taken = {name for nodes in schema.nodes.values() for name in nodes.columns}
        for kind, edges in schema.edges.items():
            if not edges.columns or not (schema.homogeneous or kind in batch.edge_types):
                continue
            store = batch if schema.homogeneous else batch[kind]
            if EDGE_ID not in store:
                raise ValueError(
                    f"edges {kind} of the batch have no e_id: leave with_edge=False of GiglSampler out "
                    "(bidirectional batches of heterogeneous graphs have none)"
                )
            index = torch.from_numpy(self._edges_of(kind).of_edge_ids(store.e_id.numpy()))
            attrs = [TensorAttr(kind, name, index) for name in edges.columns]
            for name, rows in zip(edges.columns, self.multi_get_tensor(attrs), strict=True):
                store[f"edge_{name}" if schema.homogeneous and name in taken else name] = rows
        return batch

    def close(self) -> None:
        """Close connections; a later fetch opens them again. Closing twice is fine."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Number of attributes."""
        return len(self.get_all_tensor_attrs())

    def __getstate__(self) -> dict[str, Any]:
        check_pickled(self._dataset, self)
        return {"dataset": self._dataset}

    def __setstate__(self, state: dict[str, Any]) -> None:
        GiglFeatureStore.__init__(self, state["dataset"])
        close_at_exit(self)

    def __repr__(self) -> str:
        return f"GiglFeatureStore({self._dataset!r})"

    # Called by PyG's class

    def _get_tensor(self, attr: TensorAttr) -> torch.Tensor:
        return self._multi_get_tensor([attr])[0]

    def _multi_get_tensor(self, attrs: list[TensorAttr]) -> list[torch.Tensor]:
        """Fetch all at once: attributes with one index of one group go in one request."""
        self._check_usable()
        fetches: dict[tuple[Any, int], _Fetch] = {}
        for place, attr in enumerate(attrs):
            kind = self._kind(attr.group_name)
            column = self._column(kind, attr.attr_name)
            fetch = fetches.get((kind, id(attr.index)))
            if fetch is None:
                selection = RowSelection(attr.index, self._count(kind))
                fetch = fetches[kind, id(attr.index)] = _Fetch(kind, selection)
            fetch.columns.append((place, attr.attr_name, column))
        requests = []
        for fetch in fetches.values():
            outs = fetch.buffers()
            stored = fetch.stored(self._columns(fetch.kind))
            if len(fetch.selection.rows) and stored:
                requests.append(self._request(fetch, {name: outs[name] for name in stored}))
            for name in outs.keys() - set(stored) & {NODE_ID, EDGE_ID}:
                ids = self._ids(fetch.kind, fetch.selection.rows)
                outs[name] = np.ascontiguousarray(ids).view(np.uint8).reshape(len(ids), 8)
            fetch.outs = outs
        if requests:
            self._opened().gather(requests)
        found = {
            place: as_tensor(fetch.outs[name], column, fetch.selection.shape(column))
            for fetch in fetches.values()
            for place, name, column in fetch.columns
        }
        return [found[place] for place in range(len(attrs))]

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        try:
            kind = self._kind(attr.group_name)
            column = self._column(kind, attr.attr_name)
        except KeyError:
            return None
        return RowSelection(attr.index, self._count(kind)).shape(column)

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> NoReturn:
        raise TypeError("the feature store of a dataset is read-only: put_tensor cannot change the graph")

    def _remove_tensor(self, attr: TensorAttr) -> NoReturn:
        raise TypeError("the feature store of a dataset is read-only: remove_tensor cannot change the graph")

    # Inside

    def _request(self, fetch: _Fetch, outs: Mapping[str, Bytes]) -> GatherRequest:
        rows, kind = fetch.selection.rows, fetch.kind
        return GatherRequest(
            kind=kind,
            columns=tuple(outs),
            rows=self._nodes.positions(kind, rows)
            if isinstance(kind, str)
            else self._edges_of(kind).slots[rows],
            distinct=False,
            out=list(outs.values()),
        )

    def _ids(self, kind: NodeType | EdgeType, rows: Int64Array) -> Int64Array:
        """Return the ids of nodes or edges by index, int64 [N]."""
        if isinstance(kind, str):
            return self._nodes.node_ids(kind, rows)
        edge_ids = self._edges_of(kind).edge_ids
        return rows if edge_ids is None else edge_ids[rows]

    def _edges_of(self, edge_type: EdgeType) -> EdgeRows:
        with self._opening:  # It may read many edges.
            found = self._edges.get(edge_type)
            if found is None:
                found = self._edges[edge_type] = edge_rows(self._dataset, self._nodes, edge_type)
            return found

    def _opened(self) -> PartitionedStore:
        with self._opening:
            if self._store is None:
                self._store = store = self._dataset._open_store()
                weakref.finalize(self, close_here, store, os.getpid())
            return self._store

    def _check_usable(self) -> None:
        check_process(self._dataset, self._owner, os.getpid())
        self._dataset._check_usable()

    def _kind(self, group: Any) -> NodeType | EdgeType:
        schema = self._dataset.schema
        if group is None and schema.homogeneous:
            return HOMOGENEOUS_NODE
        if isinstance(group, list):
            group = tuple(group)
        if group in schema.nodes or group in schema.edges:
            kind: NodeType | EdgeType = group
            return kind
        known = ", ".join(map(repr, [*schema.nodes, *schema.edges]))
        raise KeyError(f"the graph has no node or edge type {group!r:.200}; known: {known}")

    def _listed(self, node_type: NodeType) -> NodeType | None:
        return None if self._dataset.schema.homogeneous else node_type

    def _count(self, kind: NodeType | EdgeType) -> int:
        schema = self._dataset.schema
        return schema.nodes[kind].count if isinstance(kind, str) else schema.edges[kind].count

    def _columns(self, kind: NodeType | EdgeType) -> Mapping[str, Column]:
        schema = self._dataset.schema
        return schema.nodes[kind].columns if isinstance(kind, str) else schema.edges[kind].columns

    def _column(self, kind: NodeType | EdgeType, name: Any) -> Column:
        columns = self._columns(kind)
        if name in columns:
            return columns[name]
        if name == (NODE_ID if isinstance(kind, str) else EDGE_ID):
            return _ID_COLUMN
        known = ", ".join(map(repr, columns)) or "none"
        raise KeyError(f"{kind!r} has no attribute {name!r:.200}; known: {known}")


class _Fetch:
    """Rows of some columns of one group."""

    def __init__(self, kind: NodeType | EdgeType, selection: RowSelection) -> None:
        self.kind = kind
        self.selection = selection
        self.columns: list[tuple[int, str, Column]] = []
        """Place among the requested attributes, name and column."""
        self.outs: Mapping[str, Bytes] = {}

    def buffers(self) -> dict[str, Bytes]:
        """Return memory for the rows of each column, uint8 [N, row bytes]."""
        count = len(self.selection.rows)
        return {name: np.empty((count, column.row_bytes), np.uint8) for _, name, column in self.columns}

    def stored(self, columns: Mapping[str, Column]) -> Sequence[str]:
        """Return the names of the columns whose rows have to be read."""
        return [name for _, name, column in self.columns if name in columns and column.row_bytes]
