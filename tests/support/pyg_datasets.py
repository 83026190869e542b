"""Datasets of PyG objects in every place, with PyG's stores, and what these must equal."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch_geometric.data import HeteroData

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.clusters import addresses_of, servers_of
from tests.support.sparse_ids import ranks_of, sparse_ids, sparse_tables

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PLACES = ("1 range", "3 hash", "3 sparse", "2 servers", "2 servers sparse")
"""Partitions or servers, and how node ids lie. Servers hold three partitions."""


class Built:
    """An object, the dataset of its graph, and the index of each row of the object."""

    def __init__(self, data: Any, dataset: Any, *, sparse: bool) -> None:
        self.data = data
        self.dataset = dataset
        self.hetero = isinstance(data, HeteroData)
        self.sparse = sparse
        self.features, self.graph = dataset.as_pyg()

    def group(self, node_type: str) -> str | None:
        return node_type if self.hetero else None

    def store(self, kind: Any) -> Any:
        return self.data[kind] if self.hetero else self.data

    def ranks(self, node_type: str) -> torch.Tensor:
        """Return the index of each row."""
        count = self.store(node_type).num_nodes
        return torch.from_numpy(ranks_of(sparse_ids(count))) if self.sparse else torch.arange(count)

    @property
    def node_columns(self) -> list[tuple[str, str]]:
        types = self.data.node_types if self.hetero else ["node"]
        return [(kind, name) for kind in types for name in ("x", "y") if name in self.store(kind)]

    @property
    def edge_types(self) -> list[Any]:
        return self.data.edge_types if self.hetero else [HOMOGENEOUS_EDGE]

    def edge_index(self, edge_type: Any) -> torch.Tensor:
        """Return the edges of the object by indices."""
        ends = self.store(edge_type).edge_index
        return torch.stack([self.ranks(edge_type[0])[ends[0]], self.ranks(edge_type[2])[ends[1]]])


@contextmanager
def open_variant(kind: str, data: Any, edge_dir: Any, folder: Path) -> Iterator[Built]:
    """Build the graph of an object as one of ``VARIANTS``, in memory or in ``folder``, and open it."""
    sparse = "sparse" in kind
    tables = sparse_tables(data) if sparse else tables_from_pyg(data)
    options: dict[str, Any] = {
        "num_partitions": 1 if kind.startswith("1") else 3,
        "assigner": "range" if "range" in kind else "hash",
        "edge_dir": edge_dir,
    }
    if "servers" not in kind:
        memory = MemoryFolder()
        build_graph(tables, memory, **options)
        yield Built(data, DistDataset(Graph.open(memory)), sparse=sparse)
        return
    build_graph(tables, folder / "graph", **options)
    with (
        servers_of(folder / "graph", 2) as servers,
        RemoteDistDataset.connect(addresses_of(servers), timeout=30) as dataset,
    ):
        yield Built(data, dataset, sparse=sparse)
