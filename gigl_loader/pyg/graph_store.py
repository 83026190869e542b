"""PyG's ``GraphStore`` over a dataset: the edges of each type."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch_geometric.data import EdgeAttr, GraphStore
from torch_geometric.data.graph_store import EdgeLayout

from gigl_loader.graph.schema import HOMOGENEOUS_EDGE
from gigl_loader.pyg.dataset import NodeIndex, check_pickled, check_process, edge_ends

if TYPE_CHECKING:
    from gigl_loader.arrays import Int64Array
    from gigl_loader.options import EdgeType
    from gigl_loader.pyg.dataset import PygDataset


class GiglGraphStore(GraphStore):  # type: ignore[misc]  # PyG is not typed.
    """Edges of each type as indices of nodes, row 0 = source, in the direction of the graph. Read-only.

    Made by ``dataset.as_pyg()``. Indices are those of :class:`GiglFeatureStore`. Edges come by ascending edge
    id, so where edge ids are ``0 .. E - 1``, column i of ``edge_index`` is edge i. The edge type of a
    homogeneous graph is ``None``, as PyG has it.

    ``coo()``, ``csr()`` and ``csc()`` are PyG's: they return rows, columns and the permutation of the edges.
    ``get_edge_index(edge_type, layout)`` gives any of the three layouts; edges of a node come by ascending
    edge id. Edges that are held out of the graph are not there.

    Each call reads all edges of a type into this process, 24 bytes an edge, and keeps none of them: PyG's own
    samplers hold what they need. ``GiglSampler`` samples where the edges lie, and needs none of it.

    ``KeyError`` for an edge type that the graph does not have, ``StorageUnavailable`` where a holder of edges
    does not answer, ``TypeError`` for an attempt to change something. In the worker processes of a
    ``DataLoader`` it works where the whole graph lies on this host.
    """

    def __init__(self, dataset: PygDataset) -> None:
        """Use ``dataset.as_pyg()``."""
        super().__init__()
        self._dataset = dataset
        self._nodes = NodeIndex(dataset)
        self._owner = os.getpid()

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """Return one attribute per edge type, of layout COO, with the numbers of sources and destinations."""
        types = [HOMOGENEOUS_EDGE] if self._dataset.schema.homogeneous else self._dataset.schema.edges
        return [EdgeAttr(self._listed(each), EdgeLayout.COO, size=self._size(each)) for each in types]

    def __len__(self) -> int:
        """Number of edge types."""
        return len(self.get_all_edge_attrs())

    def __getstate__(self) -> dict[str, Any]:
        check_pickled(self._dataset, self)
        return {"dataset": self._dataset}

    def __setstate__(self, state: dict[str, Any]) -> None:
        GiglGraphStore.__init__(self, state["dataset"])

    def __repr__(self) -> str:
        return f"GiglGraphStore({self._dataset!r})"

    # Called by PyG's class

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[torch.Tensor, torch.Tensor] | None:
        edge_type = self._known(edge_attr.edge_type)
        if edge_type is None:
            return None
        check_process(self._dataset, self._owner, os.getpid())
        self._dataset._check_usable()
        src, dst = self._ends(edge_type)
        num_src, num_dst = self._size(edge_type)
        if edge_attr.layout == EdgeLayout.CSR:
            order = np.argsort(src, kind="stable")
            return _pointers(src, num_src), torch.from_numpy(dst[order])
        if edge_attr.layout == EdgeLayout.CSC or edge_attr.is_sorted:
            order = np.argsort(dst, kind="stable")
            if edge_attr.layout == EdgeLayout.CSC:
                return torch.from_numpy(src[order]), _pointers(dst, num_dst)
            src, dst = src[order], dst[order]
        return torch.from_numpy(src), torch.from_numpy(dst)

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> NoReturn:
        raise TypeError("the graph store of a dataset is read-only: put_edge_index cannot change the graph")

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> NoReturn:
        raise TypeError(
            "the graph store of a dataset is read-only: remove_edge_index cannot change the graph"
        )

    # Inside

    def _ends(self, edge_type: EdgeType) -> tuple[Int64Array, Int64Array]:
        if edge_type not in self._dataset.schema.edges:  # A homogeneous graph without edges.
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return edge_ends(self._dataset, self._nodes, edge_type)

    def _known(self, edge_type: Any) -> EdgeType | None:
        schema = self._dataset.schema
        if schema.homogeneous and (edge_type is None or edge_type == HOMOGENEOUS_EDGE):
            return HOMOGENEOUS_EDGE
        return edge_type if edge_type in schema.edges else None

    def _listed(self, edge_type: EdgeType) -> EdgeType | None:
        return None if self._dataset.schema.homogeneous else edge_type

    def _size(self, edge_type: EdgeType) -> tuple[int, int]:
        return self._nodes.count(edge_type[0]), self._nodes.count(edge_type[2])


def _pointers(ends: Int64Array, count: int) -> torch.Tensor:
    """Return where the edges of each of ``count`` nodes begin, int64 [count + 1]."""
    pointers = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(ends, minlength=count), out=pointers[1:])
    return torch.from_numpy(pointers)
