"""Batches of sampled neighbourhoods around nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import Unpack

from gigl_loader.loaders.arguments import LoaderOptions, flag, whole_number
from gigl_loader.loaders.base import BaseDistLoader, Dataset
from gigl_loader.loaders.collate import Collator, check_column_names
from gigl_loader.loaders.seeds import SeedNodes, read_seed_nodes
from gigl_loader.options import EdgeType, NodeType
from gigl_loader.sampling.plan import BatchPlan, ColumnPlan
from gigl_loader.sampling.plans.neighbor import NeighborPlan, check_weight

if TYPE_CHECKING:
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.loaders.transfer import FrameTensors

__all__ = ["DistNeighborLoader", "read_num_neighbors"]

_Nodes = torch.Tensor | Mapping[int, torch.Tensor] | str | None
InputNodes = _Nodes | tuple[NodeType, _Nodes]


class DistNeighborLoader(BaseDistLoader):
    """K-hop neighbourhoods of seed nodes, as PyG ``Data`` or ``HeteroData``.

    Batches carry ``edge_index`` (row 0 = neighbour, row 1 = target), ``n_id`` (alias ``node``; seeds
    first), ``e_id`` (alias ``edge``; with ``with_edge``), the rows of every column (``x``, ``y``,
    ``edge_attr``, ...), ``batch_size``, ``input_id``, ``batch``, ``seed_index``, ``num_sampled_nodes``
    and ``num_sampled_edges``. ``out[batch.seed_index]`` has one row for each entry of ``input_id``, also
    where seeds repeat. Sampling is that of GraphSAGE (Hamilton et al. 2017); names are PyG's.
    """

    def __init__(
        self,
        dataset: Dataset,
        num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]],
        input_nodes: InputNodes = None,
        *,
        replace: bool = False,
        with_edge: bool | None = None,
        weight_attr: str | None = None,
        **options: Unpack[LoaderOptions],
    ) -> None:
        """Check the arguments, then start the sampling processes.

        ``num_neighbors``
            Neighbours per hop, for every edge type or by edge type: -1 takes all, 0 skips the type.
        ``input_nodes``
            Node ids (1-D tensor), the name of a split, ``None`` for all nodes, or a pair of a node
            type and one of these. Graph store: also node ids by server rank, taken in their order.
        ``replace``
            Draw neighbours with replacement.
        ``with_edge``
            Return the ids of sampled edges. By default, when the edges have columns.
        ``weight_attr``
            Edge column by which neighbours are drawn, declared when the graph was built (``--weight``,
            ``from_pyg(weight_attr=)``) or by ``gigl-loader index``. Without replacement, each draw picks
            among the edges that are left in proportion to their weights. An edge of weight 0 is in no batch,
            also with fanout -1. Edge types without the column draw uniformly.
        ``options``
            Those of :class:`BaseDistLoader`.
        """
        self._num_neighbors = num_neighbors
        self._input_nodes = input_nodes
        self._replace = flag("replace", replace)
        self._with_edge = None if with_edge is None else flag("with_edge", with_edge)
        self._weight_attr = weight_attr
        super().__init__(dataset, **options)

    def seed_nodes(self) -> SeedNodes:
        return read_seed_nodes(self.dataset, self._input_nodes)

    def sampling_plan(self, seed_type: NodeType, run_seed: int) -> BatchPlan:
        schema = self.dataset.schema
        check_column_names(schema)
        num_neighbors = read_num_neighbors(schema, self._num_neighbors)
        edge_columns = {kind: tuple(edges.columns) for kind, edges in schema.edges.items()}
        with_edge = any(edge_columns.values()) if self._with_edge is None else self._with_edge
        sampler = NeighborPlan(
            seed_type=seed_type,
            num_neighbors=num_neighbors,
            replace=self._replace,
            with_edge=with_edge,
            weight_attr=check_weight(schema, self._weight_attr),
        )
        node_columns = {kind: tuple(nodes.columns) for kind, nodes in schema.nodes.items()}
        columns = ColumnPlan(nodes=node_columns, edges=edge_columns)
        return BatchPlan(sampler=sampler, run_seed=run_seed, columns=columns)

    def collate(self, tensors: FrameTensors) -> Any:
        """Return ``Data`` or ``HeteroData``. A subclass may extend it."""
        return self._collator(tensors)

    @cached_property
    def _collator(self) -> Collator:
        places = self._seeds.places
        # The plan of a graph without edges has no hops, while the user may have asked for some.
        asked = None if isinstance(self._num_neighbors, Mapping) else len(self._num_neighbors)
        return Collator(
            self.dataset.schema,
            self.plan.frame(self.dataset.schema),
            num_hops=asked,
            places=None if places is None else torch.from_numpy(places),
        )


def read_num_neighbors(
    schema: GraphSchema, num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]]
) -> dict[EdgeType, tuple[int, ...]]:
    """Return the fanouts of every edge type. ``ValueError`` names what is unknown, missing or negative."""
    if not isinstance(num_neighbors, Mapping):
        fanouts = _fanouts(num_neighbors, "num_neighbors")
        return dict.fromkeys(schema.edges, fanouts)
    unknown = [kind for kind in num_neighbors if kind not in schema.edges]
    if unknown:
        raise ValueError(f"num_neighbors has unknown edge types {unknown}; known: {list(schema.edges)}")
    missing = [kind for kind in schema.edges if kind not in num_neighbors]
    if missing:
        raise ValueError(f"num_neighbors lacks the edge types {missing}; give [0, ...] to skip a type")
    return {kind: _fanouts(num_neighbors[kind], f"num_neighbors of {kind}") for kind in schema.edges}


def _fanouts(values: Any, what: str) -> tuple[int, ...]:
    if isinstance(values, str) or not hasattr(values, "__len__"):
        raise TypeError(f"{what} must be a list of whole numbers, one per hop, got {values!r}")
    fanouts = tuple(
        whole_number(f"{what} at hop {hop}", fanout, minimum=-1) for hop, fanout in enumerate(values)
    )
    if not fanouts:
        raise ValueError(f"{what} needs at least one hop")
    return fanouts
