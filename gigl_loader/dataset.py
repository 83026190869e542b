"""What this host holds of a graph, and the batches it can make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from gigl_loader.graph.graph import Graph
from gigl_loader.sampling.sampler import Sampler
from gigl_loader.sampling.source import InlineSource

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt
    from torch_geometric.data import Data, HeteroData

    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType, NodeType, SamplingPlan, WorkerOptions
    from gigl_loader.sampling.schedule import Schedule
    from gigl_loader.sampling.source import BatchSource

    Int64Array = npt.NDArray[np.int64]

__all__ = ["DistDataset"]


class DistDataset:
    """A graph whose partitions all lie on this host.

    Made by :meth:`open` (a directory that ``gigl-loader partition`` wrote) or :meth:`from_pyg` (an
    object in memory). Opening maps files and copies nothing, so sampling processes share its memory.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> DistDataset:
        """Map the graph directory at ``path``, whatever its size.

        Raises ``FileNotFoundError`` where there is none, and ``FormatError`` for one that is damaged
        or half written.
        """
        return cls(Graph.open(path))

    @classmethod
    def from_pyg(
        cls,
        data: Data | HeteroData,
        *,
        num_partitions: int = 1,
        edge_dir: Literal["in", "out"] = "in",
        assigner: Literal["range", "hash"] = "range",
    ) -> DistDataset:
        """Build the graph of a PyG object in shared memory.

        Node ids are the rows of the object, edge ids the columns of each ``edge_index``. Tensors with
        one row per node or edge become columns (bfloat16 too); ``train_mask``, ``val_mask`` and
        ``test_mask`` become the splits ``train``, ``val`` and ``test``. Raises ``ValueError`` naming
        the attribute that cannot be stored.
        """
        from gigl_loader.graph.folder import MemoryFolder
        from gigl_loader.partition import build_graph, tables_from_pyg

        folder = MemoryFolder()
        build_graph(
            tables_from_pyg(data),
            folder,
            num_partitions=num_partitions,
            edge_dir=edge_dir,
            assigner=assigner,
        )
        return cls(Graph.open(folder))

    @property
    def schema(self) -> GraphSchema:
        """Types, sizes, columns and splits."""
        return self._graph.schema

    @property
    def node_types(self) -> list[NodeType]:
        return list(self.schema.nodes)

    @property
    def edge_types(self) -> list[EdgeType]:
        return list(self.schema.edges)

    @property
    def edge_dir(self) -> Literal["in", "out"]:
        """``"in"`` follows edges to their sources (as message passing wants), ``"out"`` to their targets."""
        return self.schema.edge_dir

    @property
    def num_nodes(self) -> int:
        """Nodes of all types; ``schema.nodes[node_type].count`` has each."""
        return sum(nodes.count for nodes in self.schema.nodes.values())

    @property
    def num_edges(self) -> int:
        """Edges of all types; ``schema.edges[edge_type].count`` has each."""
        return sum(edges.count for edges in self.schema.edges.values())

    def all_positions(self, node_type: NodeType) -> Int64Array:
        """Return the positions of all nodes of a type, by ascending node id."""
        return self._graph.all_positions(node_type)

    def split_positions(self, node_type: NodeType, split: str) -> Int64Array:
        """Return the positions of a split, by ascending node id. ``ValueError`` lists the known splits."""
        return self._graph.split(node_type, split)

    def positions(self, node_type: NodeType, node_ids: Int64Array) -> Int64Array:
        """Return the positions of these nodes, in order. ``ValueError`` names the first ten unknown."""
        return self._graph.positions(node_type, node_ids)

    def node_ids(self, node_type: NodeType, positions: Int64Array) -> Int64Array:
        """Return the node ids at these positions, in order."""
        ids = self._graph.node_ids(node_type)
        return positions if ids is None else ids[positions]

    @property
    def graph_digest(self) -> str:
        """Equal for graphs with the same contents, however this host came by them."""
        return self._graph.manifest.digest

    def open_source(
        self,
        plan: SamplingPlan,
        schedule: Schedule,
        options: WorkerOptions | None,
        *,
        timeout: float = 300.0,
        channel_bytes: int = 4 << 30,
    ) -> BatchSource:
        """Return where the batches of this plan come from: sampling processes, or inline without options."""
        if options is None:
            return InlineSource(Sampler(self._graph, plan), schedule, channel_bytes=channel_bytes)
        # Loaded on demand: it needs Linux, sampling inline does not.
        from gigl_loader.sampling.producer import WorkerSource

        return WorkerSource(self._graph, plan, schedule, options)

    def __reduce__(self) -> tuple[Callable[[str], DistDataset], tuple[Any, ...]]:
        path = self._graph.reference.get("path")
        if path is None:
            raise TypeError(
                "a DistDataset in memory cannot be pickled; partition the graph to a directory and "
                "DistDataset.open it in each process"
            )
        return DistDataset.open, (path,)

    def __repr__(self) -> str:
        return (
            f"DistDataset({self.num_nodes:,} nodes of {len(self.node_types)} types, "
            f"{self.num_edges:,} edges of {len(self.edge_types)} types, edge_dir={self.edge_dir!r})"
        )
