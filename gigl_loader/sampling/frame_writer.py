"""The frames of a plan: what they hold, and how they are written, whoever draws the edges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.arrays import Bytes, Int64Array
from gigl_loader.native import batch_key
from gigl_loader.sampling.frame_schema import FrameCounts, FrameSchema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.graph.graph import Graph
    from gigl_loader.native import Batch
    from gigl_loader.options import EdgeType, NodeType, SamplingPlan
    from gigl_loader.sampling.costs import CostCounter
    from gigl_loader.sampling.features import FeatureSource, GatherRequest
    from gigl_loader.sampling.schedule import BatchRequest
    from gigl_loader.tensors import Layout

__all__ = ["FrameWriter", "Sampled"]


class FrameWriter:
    """Lays out and writes the frames of a plan over a graph. Used by one sampler: not thread-safe."""

    def __init__(self, graph: Graph, plan: SamplingPlan, *, without_rows: bool = False) -> None:
        """Of ``graph``, the schema and the node ids are used."""
        schema = graph.schema
        whole = FrameSchema.whole(schema, plan)
        self._shape = whole.without_rows() if without_rows else whole
        self.plan = plan
        self.node_types: list[NodeType] = list(schema.nodes)
        self.edge_types: list[EdgeType] = [each for each in schema.edges if each in plan.num_neighbors]
        self.node_ids = [graph.node_ids(node_type) for node_type in self.node_types]
        self.seed_type = self.node_types.index(plan.seed_type)
        place = {node_type: index for index, node_type in enumerate(self.node_types)}
        self.target_types = [place[schema.target_type(each)] for each in self.edge_types]
        self.neighbor_types = [place[schema.neighbor_type(each)] for each in self.edge_types]
        self.num_nodes = [nodes.count for nodes in schema.nodes.values()]
        self._scratch = [np.empty(0, np.int64) for _ in [*self._shape.nodes, *self._shape.edges]]

    @property
    def with_slots(self) -> bool:
        """The places of edges are needed, for their columns."""
        return any(part.columns for part in self._shape.edges)

    @property
    def scratch_bytes(self) -> int:
        return sum(each.nbytes for each in self._scratch)

    def seed_ids(self, request: BatchRequest) -> Int64Array:
        """Return the node ids of the request's seeds."""
        ids = self.node_ids[self.seed_type]
        return request.seeds if ids is None else ids[request.seeds]

    def key(self, request: BatchRequest) -> int:
        """Return the key of every draw of the request's batch."""
        return batch_key(self.plan.run_seed, request.epoch, self.seed_ids(request))

    def layout(self, batch: Batch, request: BatchRequest) -> Layout:
        """Return the layout of the frame of ``batch``."""
        nodes, edges = self._shape.nodes, self._shape.edges
        counts = FrameCounts(
            epoch=request.epoch,
            batch=request.batch,
            num_seeds=len(request.seeds),
            num_nodes={part.name: batch.nodes_per_hop(index) for index, part in enumerate(nodes)},
            num_edges={part.name: batch.edges_per_hop(index) for index, part in enumerate(edges)},
            num_targets={part.name: batch.num_targets(index) for index, part in enumerate(edges)},
        )
        return self._shape.layout(counts)

    def write(self, batch: Batch, columns: FeatureSource, layout: Layout, buffer: Bytes) -> None:
        """Write nodes and edges of ``batch``, and have the columns filled."""
        for index, part in enumerate(self._shape.nodes):
            batch.write_node_ids(index, layout.view(buffer, f"{part.prefix}/n_id"))
        for index, part in enumerate(self._shape.edges):
            batch.write_rows(index, layout.view(buffer, f"{part.prefix}/rows"))
            batch.write_colptr(index, layout.view(buffer, f"{part.prefix}/colptr"))
            if self.plan.with_edge:
                batch.write_edge_ids(index, layout.view(buffer, f"{part.prefix}/e_id"))
        columns.gather(list(self._wants(batch, layout, buffer)))

    def _wants(self, batch: Batch, layout: Layout, buffer: Bytes) -> Iterator[GatherRequest]:
        for index, part in enumerate(self._shape.nodes):
            if part.columns:
                positions = self._borrow(index, sum(batch.nodes_per_hop(index)))
                batch.write_positions(index, positions)
                yield part.want(positions, layout, buffer, distinct=True)
        for index, part in enumerate(self._shape.edges):
            if part.columns:
                slots = self._borrow(len(self._shape.nodes) + index, sum(batch.edges_per_hop(index)))
                batch.write_slots(index, slots)
                yield part.want(slots, layout, buffer, distinct=not self.plan.replace)

    def _borrow(self, index: int, count: int) -> Int64Array:
        if len(self._scratch[index]) < count:
            self._scratch[index] = np.empty(count + count // 2, np.int64)
        return self._scratch[index][:count]


class Sampled:
    """A batch whose nodes and edges are drawn: its size is known, and it can be written anywhere.

    Valid until its sampler begins another.
    """

    def __init__(
        self,
        *,
        form: FrameWriter,
        batch: Batch,
        request: BatchRequest,
        columns: FeatureSource,
        costs: CostCounter,
    ) -> None:
        self._form = form
        self._batch = batch
        self._request = request
        self._columns = columns
        self._costs = costs
        self.layout = form.layout(batch, request)

    def write(self, buffer: Bytes) -> None:
        """Write the frame to the start of ``buffer`` (uint8, at least ``layout.nbytes`` long).

        The gather into ``buffer`` is the only copy of the columns.
        """
        layout = self.layout
        with self._costs.gathering():
            buffer[: len(layout.header)] = np.frombuffer(layout.header, np.uint8)
            layout.view(buffer, "seeds")[:] = self._form.seed_ids(self._request)
            layout.view(buffer, "input_id")[:] = self._request.input_ids
            self._form.write(self._batch, self._columns, layout, buffer)
