"""Dataset as PyG's interfaces see it: its protocol, and PyG's indices of nodes and edges."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

import numpy as np

from gigl_loader.loaders.dataset import Dataset
from gigl_loader.native import build_adjacency
from gigl_loader.sampling.store import SLOT_BITS

if TYPE_CHECKING:
    from gigl_loader.arrays import Int64Array
    from gigl_loader.graph.schema import EdgeType, NodeType
    from gigl_loader.sampling.partitioned import PartitionedStore
    from gigl_loader.sampling.store import EdgeList


class PygDataset(Dataset, Protocol):
    """A dataset with what its PyG stores read. ``GraphQueries`` says what each member promises."""

    @property
    def _is_on_this_host(self) -> bool: ...
    def _check_usable(self) -> None: ...
    def _open_store(self) -> PartitionedStore: ...
    def _edge_list(self, edge_type: EdgeType) -> EdgeList: ...


class PygStores(tuple[Any, ...]):
    """The feature store and the graph store of a dataset, which PyG's loaders take as ``data``."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"the graph is (FeatureStore, GraphStore), no Data that has {name!r}: batches have all columns "
            "and n_id, dataset.schema has sizes, and feature_store.get_tensor(...) has rows of all nodes"
        )

    def __setattr__(self, name: str, _: Any) -> NoReturn:
        raise AttributeError(
            f"the graph is (FeatureStore, GraphStore), and {name!r} cannot be set: leave the line out, or "
            "set it in a transform= of the loader; batches have n_id"
        )

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"the graph is (FeatureStore, GraphStore), and {name!r} cannot be deleted: leave the line out; "
            "node_columns= and edge_columns= of a loader name the columns of its batches"
        )


_HINT = "pass num_workers=0 (the graph's own processes and servers sample and read in parallel)"


def check_process(dataset: PygDataset, owner: int, pid: int) -> None:
    """Raise ``RuntimeError`` in a process that a fork made, where the dataset has network connections."""
    if pid != owner and not dataset._is_on_this_host:
        raise RuntimeError(
            f"network connections of process {owner} do not survive a fork: workers of a DataLoader cannot "
            f"use a graph on other hosts; {_HINT}"
        )


def check_pickled(dataset: PygDataset, what: Any) -> None:
    """Raise ``TypeError`` where the dataset cannot go to another process."""
    if not dataset._is_on_this_host:
        raise TypeError(
            f"a {type(what).__name__} of a graph on other hosts cannot be pickled: workers of a DataLoader "
            f"cannot use it; {_HINT}"
        )


def close_at_exit(user: Any) -> None:
    """Close what a worker process still has when it ends: its interpreter may not collect it."""
    alive = weakref.ref(user)

    def close() -> None:
        found = alive()
        if found is not None:
            found.close()

    atexit.register(close)


def close_here(resource: Any, owner: int) -> None:
    """Close the resource of an object that was collected."""
    # A forked child runs the finalizers that it inherited: connections are its parent's.
    if os.getpid() == owner:
        resource.close()


class NodeIndex:
    """Conversion between indices, node ids and positions. All arrays are int64 [N].

    The index of a node is its rank by ascending node id. It equals the node id where the ids of a type are
    ``0 .. N - 1``. For a type whose ids have gaps, 16 bytes a node are kept here, from the first use on.
    """

    def __init__(self, dataset: PygDataset) -> None:
        self._dataset = dataset
        self._sparse: dict[NodeType, tuple[Int64Array, Int64Array]] = {}

    def count(self, node_type: NodeType) -> int:
        """Return the number of nodes of a type."""
        return self._dataset.schema.nodes[node_type].count

    def has_gaps(self, node_type: NodeType) -> bool:
        """Return whether the node ids of a type are not ``0 .. N - 1``."""
        return self._dataset.schema.nodes[node_type].ids == "sparse"

    def positions(self, node_type: NodeType, index: Int64Array) -> Int64Array:
        """Return the positions of nodes. ``index`` lies in ``[0, N)``."""
        if self.has_gaps(node_type):
            return self._order(node_type)[0][index]
        return self._dataset.positions(node_type, index)

    def node_ids(self, node_type: NodeType, index: Int64Array) -> Int64Array:
        """Return the node ids of nodes. ``index`` lies in ``[0, N)``."""
        return self._order(node_type)[1][index] if self.has_gaps(node_type) else index

    def of_node_ids(self, node_type: NodeType, node_ids: Int64Array) -> Int64Array:
        """Return the indices of node ids, all of which the graph has."""
        if not self.has_gaps(node_type):
            return node_ids
        return np.searchsorted(self._order(node_type)[1], node_ids).astype(np.int64, copy=False)

    def of_positions(self, node_type: NodeType, positions: Int64Array) -> Int64Array:
        """Return the indices of positions. For many at once: it reads the positions of all nodes."""
        if self._dataset.schema.nodes[node_type].ids == "identity":
            return positions
        order = (
            self._order(node_type)[0] if self.has_gaps(node_type) else self._dataset.all_positions(node_type)
        )
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        return ranks[positions]

    def _order(self, node_type: NodeType) -> tuple[Int64Array, Int64Array]:
        """Return positions and node ids of all nodes of a type, by ascending node id."""
        found = self._sparse.get(node_type)
        if found is None:  # Two threads may read them at once, to the same end.
            positions = self._dataset.all_positions(node_type)
            found = (positions, self._dataset.node_ids(node_type, positions))
            self._sparse[node_type] = found
        return found


def edge_ends(dataset: PygDataset, nodes: NodeIndex, edge_type: EdgeType) -> tuple[Int64Array, Int64Array]:
    """Return the indices of sources and destinations by ascending edge id, both int64 [E].

    It reads all edges of the type: 24 bytes an edge, wherever they lie.
    """
    edges = dataset._edge_list(edge_type)
    inward = dataset.schema.edge_dir == "in"
    src, dst = (edges.neighbors, edges.targets) if inward else (edges.targets, edges.neighbors)
    return nodes.of_positions(edge_type[0], src), nodes.of_positions(edge_type[2], dst)


class EdgeRows(NamedTuple):
    """Edges of one type by index: the rank of their edge ids, which is their column in ``edge_index``."""

    slots: Int64Array
    """Slot of each edge, int64 [E]."""
    edge_ids: Int64Array | None
    """Ascending, int64 [E]; ``None`` where they are ``0 .. E - 1``."""

    def of_edge_ids(self, edge_ids: Int64Array) -> Int64Array:
        """Return the indices of edge ids, all of which the graph has."""
        return edge_ids if self.edge_ids is None else np.searchsorted(self.edge_ids, edge_ids)


def edge_rows(dataset: PygDataset, nodes: NodeIndex, edge_type: EdgeType) -> EdgeRows:
    """Return the rows of a type's edges. It reads all of them."""
    schema = dataset.schema
    edges = dataset._edge_list(edge_type)
    count = len(edges.edge_ids)
    target_type = schema.target_type(edge_type)
    indptr = np.empty(schema.nodes[target_type].count + 1, np.int64)
    order = np.empty(count, np.int64)
    # The canonical order of lists is that of node ids, which is that of indices.
    neighbors = nodes.of_positions(schema.neighbor_type(edge_type), edges.neighbors)
    build_adjacency(edges.targets, neighbors, edges.edge_ids, indptr, order)
    bounds = np.array(schema.nodes[target_type].bounds, np.int64)
    firsts = indptr[bounds]
    slots = np.empty(count, np.int64)
    for part in range(schema.num_partitions):
        held = order[firsts[part] : firsts[part + 1]]
        slots[held] = np.arange(len(held)) + (part << SLOT_BITS)
    has_gaps = not np.array_equal(edges.edge_ids, np.arange(count))
    return EdgeRows(slots, edges.edge_ids if has_gaps else None)
