"""Graphs of PyG objects whose node ids have gaps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from gigl_loader.partition.array_table import ArrayTable
from gigl_loader.partition.table import GraphTables, NodeTable


def sparse_ids(count: int) -> npt.NDArray[np.int64]:
    """Return the node id of each row: distinct, with gaps, in no order."""
    return np.random.default_rng(count).permutation(1000 + 7 * np.arange(count, dtype=np.int64))


def ranks_of(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the place of each id by ascending id."""
    return np.argsort(np.argsort(ids))


def sparse_tables(data: Any) -> GraphTables:
    """Return the tables of an object with ``sparse_ids``. All numbers and vectors are columns."""
    hetero = hasattr(data, "node_types")
    node_stores = {key: data[key] for key in data.node_types} if hetero else {HOMOGENEOUS_NODE: data}
    edge_stores = {key: data[key] for key in data.edge_types} if hetero else {HOMOGENEOUS_EDGE: data}
    ids = {key: sparse_ids(store.num_nodes) for key, store in node_stores.items()}
    nodes = {
        key: NodeTable(
            ArrayTable(key, {"id": ids[key]} | {name: store[name].numpy() for name in _names(store, "xy")})
        )
        for key, store in node_stores.items()
    }
    edges = {}
    for key, store in edge_stores.items():
        src, dst = store.edge_index.numpy()
        columns = {name: store[name].numpy() for name in _names(store, ("edge_attr",))}
        ends = {"src": ids[key[0]][src], "dst": ids[key[2]][dst]}
        edges[key] = ArrayTable(str(key), ends | columns)
    return GraphTables(edges=edges, nodes=nodes)


def _names(store: Any, wanted: Any) -> list[str]:
    return [name for name in wanted if name in store]
