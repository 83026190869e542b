"""Sources of the features of a frame."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gigl_loader.arrays import Array, Bytes, Int64Array
from gigl_loader.native import gather
from gigl_loader.tensors import as_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gigl_loader.graph.graph import Graph
    from gigl_loader.graph.schema import Column
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.plan import ColumnPlan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GatherRequest:
    """Rows of some columns of one type, and where they go."""

    kind: NodeType | EdgeType
    columns: tuple[str, ...]
    rows: Int64Array
    """Positions of nodes, or slots of edges [N]."""
    distinct: bool
    """No row is named twice."""
    out: Sequence[Bytes]
    """Per column, uint8 [N, row bytes]: row i of it receives ``rows[i]``."""


class FeatureSource(Protocol):
    """Fills columns of frames."""

    def gather(self, wants: Sequence[GatherRequest]) -> None:
        """Write all that is wanted. When this returns or raises, nothing more is written."""


class LocalFeatures:
    """The columns of a graph that lies wholly on this host. Slots of edges count through all partitions."""

    def __init__(self, graph: Graph, columns: ColumnPlan) -> None:
        self._graph = graph
        self._stored: dict[tuple[NodeType | EdgeType, str], _Stored] = {}
        for node_type, names in columns.nodes.items():
            bounds, known = graph.bounds(node_type), graph.schema.nodes[node_type].columns
            self._open(node_type, names, known, bounds, partial(graph.node_column, node_type))
        for edge_type, names in columns.edges.items():
            counts = [len(graph.topology(edge_type, part)["indices"]) for part in self._parts]
            bounds = np.cumsum([0, *counts], dtype=np.int64)
            known = graph.schema.edges[edge_type].columns
            self._open(edge_type, names, known, bounds, partial(graph.edge_column, edge_type))

    def gather(self, wants: Sequence[GatherRequest]) -> None:
        for want in wants:
            for name, out in zip(want.columns, want.out, strict=True):
                stored = self._stored[want.kind, name]
                gather(stored.parts, stored.bounds, want.rows, out)

    @property
    def _parts(self) -> range:
        return range(self._graph.schema.num_partitions)

    def _open(
        self,
        kind: NodeType | EdgeType,
        names: Sequence[str],
        columns: Any,
        bounds: Int64Array,
        read: Callable[[str, int], Array],
    ) -> None:
        for name in names:
            column: Column = columns[name]
            parts = [as_rows(read(name, part), column.row_bytes) for part in self._parts]
            self._stored[kind, name] = _Stored(parts, bounds)


@dataclass(frozen=True, slots=True)
class _Stored:
    """A column as the kernels read it: one uint8 matrix per partition."""

    parts: list[Bytes]
    bounds: Int64Array
