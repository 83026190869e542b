"""Index of a node in PyG's stores: the rank of its node id among those of its type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gigl_loader.arrays import Int64Array
    from gigl_loader.options import NodeType
    from gigl_loader.pyg.dataset import PygDataset

__all__ = ["NodeIndex"]


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
