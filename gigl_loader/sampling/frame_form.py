"""The frames of a plan: what they hold, and how they are written, whoever draws the edges."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from gigl_loader.graph.schema import Column, type_name
from gigl_loader.native import batch_key
from gigl_loader.sampling.columns import RowWant
from gigl_loader.sampling.rows import as_rows
from gigl_loader.tensors import ArraySpec, Layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gigl_loader.graph.graph import Graph
    from gigl_loader.native import Batch
    from gigl_loader.options import EdgeType, NodeType, SamplingPlan
    from gigl_loader.sampling.columns import ColumnSource
    from gigl_loader.sampling.ledger import Ledger
    from gigl_loader.sampling.schedule import Request

__all__ = ["FrameForm", "Sampled"]

Bytes = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]


class FrameForm:
    """Lays out and writes the frames of a plan over a graph. Used by one sampler: not thread-safe."""

    def __init__(self, graph: Graph, plan: SamplingPlan) -> None:
        """Of ``graph``, the schema and the node ids are used."""
        schema = graph.schema
        self.plan = plan
        self.node_types: list[NodeType] = list(schema.nodes)
        self.edge_types: list[EdgeType] = [each for each in schema.edges if each in plan.num_neighbors]
        self.node_ids = [graph.node_ids(node_type) for node_type in self.node_types]
        self.seed_type = self.node_types.index(plan.seed_type)
        self._nodes = [
            _Part.of("node", each, plan.node_columns.get(each, ()), schema.nodes[each].columns)
            for each in self.node_types
        ]
        self._edges = [
            _Part.of("edge", each, plan.edge_columns.get(each, ()), schema.edges[each].columns)
            for each in self.edge_types
        ]
        place = {node_type: index for index, node_type in enumerate(self.node_types)}
        self.target_types = [place[schema.target_type(each)] for each in self.edge_types]
        self.neighbor_types = [place[schema.neighbor_type(each)] for each in self.edge_types]
        self.num_nodes = [nodes.count for nodes in schema.nodes.values()]
        self._scratch = [np.empty(0, np.int64) for _ in [*self._nodes, *self._edges]]

    @property
    def with_slots(self) -> bool:
        """The places of edges are needed, for their columns."""
        return any(part.columns for part in self._edges)

    def seed_ids(self, request: Request) -> Int64Array:
        """Return the node ids of the request's seeds."""
        ids = self.node_ids[self.seed_type]
        return request.seeds if ids is None else ids[request.seeds]

    def key(self, request: Request) -> int:
        """Return the key of every draw of the request's batch."""
        return batch_key(self.plan.run_seed, request.epoch, self.seed_ids(request))

    def layout(self, batch: Batch, request: Request) -> Layout:
        """Return the layout of the frame of ``batch``."""
        num_seeds = len(request.seeds)
        specs = {"seeds": ArraySpec("I64", (num_seeds,)), "input_id": ArraySpec("I64", (num_seeds,))}
        num_nodes, num_edges = {}, {}
        for index, part in enumerate(self._nodes):
            num_nodes[part.name] = batch.nodes_per_hop(index)
            count = sum(num_nodes[part.name])
            specs[f"{part.prefix}/n_id"] = ArraySpec("I64", (count,))
            specs.update(part.column_specs(count))
        for index, part in enumerate(self._edges):
            num_edges[part.name] = batch.edges_per_hop(index)
            count = sum(num_edges[part.name])
            specs[f"{part.prefix}/rows"] = ArraySpec("I32", (count,))
            specs[f"{part.prefix}/colptr"] = ArraySpec("I64", (batch.num_targets(index) + 1,))
            if self.plan.with_edge:
                specs[f"{part.prefix}/e_id"] = ArraySpec("I64", (count,))
            specs.update(part.column_specs(count))
        metadata = {
            "epoch": str(request.epoch),
            "batch": str(request.batch),
            "seed_type": json.dumps(type_name(self.plan.seed_type)),
            "num_sampled_nodes": json.dumps(num_nodes),
            "num_sampled_edges": json.dumps(num_edges),
        }
        return Layout.plan(specs, metadata)

    def write(self, batch: Batch, columns: ColumnSource, layout: Layout, buffer: Bytes) -> None:
        """Write nodes and edges of ``batch``, and have the columns filled."""
        for index, part in enumerate(self._nodes):
            batch.write_node_ids(index, layout.view(buffer, f"{part.prefix}/n_id"))
        for index, part in enumerate(self._edges):
            batch.write_rows(index, layout.view(buffer, f"{part.prefix}/rows"))
            batch.write_colptr(index, layout.view(buffer, f"{part.prefix}/colptr"))
            if self.plan.with_edge:
                batch.write_edge_ids(index, layout.view(buffer, f"{part.prefix}/e_id"))
        columns.gather(list(self._wants(batch, layout, buffer)))

    def _wants(self, batch: Batch, layout: Layout, buffer: Bytes) -> Iterator[RowWant]:
        for index, part in enumerate(self._nodes):
            if part.columns:
                positions = self._borrow(index, sum(batch.nodes_per_hop(index)))
                batch.write_positions(index, positions)
                yield part.want(positions, layout, buffer, distinct=True)
        for index, part in enumerate(self._edges):
            if part.columns:
                slots = self._borrow(len(self._nodes) + index, sum(batch.edges_per_hop(index)))
                batch.write_slots(index, slots)
                yield part.want(slots, layout, buffer, distinct=not self.plan.replace)

    def _borrow(self, index: int, count: int) -> Int64Array:
        if len(self._scratch[index]) < count:
            self._scratch[index] = np.empty(count + count // 2, np.int64)
        return self._scratch[index][:count]


class _Part(NamedTuple):
    """What a frame holds of one type."""

    kind: NodeType | EdgeType
    name: str
    prefix: str
    columns: dict[str, tuple[str, Column]]
    """By column: its name in the frame, and what it is."""

    @classmethod
    def of(
        cls, what: str, kind: NodeType | EdgeType, names: Sequence[str], columns: Mapping[str, Column]
    ) -> _Part:
        prefix = f"{what}/{type_name(kind)}"
        stored = {name: (f"{prefix}/{type_name(name)}", columns[name]) for name in names}
        return cls(kind, type_name(kind), prefix, stored)

    def column_specs(self, count: int) -> Iterator[tuple[str, ArraySpec]]:
        return ((frame_name, column.spec(count)) for frame_name, column in self.columns.values())

    def want(self, rows: Int64Array, layout: Layout, buffer: Bytes, *, distinct: bool) -> RowWant:
        """Return what the columns need. Those of rows without bytes are complete already."""
        filled = {name: each for name, each in self.columns.items() if each[1].row_bytes}
        out = [as_rows(layout.view(buffer, name), column.row_bytes) for name, column in filled.values()]
        return RowWant(kind=self.kind, columns=tuple(filled), rows=rows, distinct=distinct, out=out)


class Sampled:
    """A batch whose nodes and edges are drawn: its size is known, and it can be written anywhere.

    Valid until its sampler begins another.
    """

    def __init__(
        self, *, form: FrameForm, batch: Batch, request: Request, columns: ColumnSource, ledger: Ledger
    ) -> None:
        self._form = form
        self._batch = batch
        self._request = request
        self._columns = columns
        self._ledger = ledger
        self.layout = form.layout(batch, request)

    def write(self, buffer: Bytes) -> None:
        """Write the frame to the start of ``buffer`` (uint8, at least ``layout.nbytes`` long).

        The gather into ``buffer`` is the only copy of the columns.
        """
        layout = self.layout
        with self._ledger.gathering():
            buffer[: len(layout.header)] = np.frombuffer(layout.header, np.uint8)
            layout.view(buffer, "seeds")[:] = self._form.seed_ids(self._request)
            layout.view(buffer, "input_id")[:] = self._request.input_ids
            self._form.write(self._batch, self._columns, layout, buffer)
