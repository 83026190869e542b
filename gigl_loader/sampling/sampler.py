"""Samples batches from a graph on this host and writes them, in place, as frames."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import Column, EdgeType, NodeType, edge_type_address, type_name
from gigl_loader.native import Adjacency, NeighborSampler, batch_key, gather
from gigl_loader.tensors import ArraySpec, Layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gigl_loader.graph.graph import Graph
    from gigl_loader.options import SamplingPlan
    from gigl_loader.sampling.schedule import Request

__all__ = ["Sampled", "Sampler"]

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _StoredColumn:
    """A column as the kernels read it: one uint8 matrix per partition."""

    frame_name: str
    column: Column
    parts: list[Bytes]
    bounds: Int64Array

    def gather(self, rows: Int64Array, out: Array) -> None:
        if self.column.row_bytes:
            gather(self.parts, self.bounds, rows, _as_rows(out, self.column.row_bytes))


class Sampler:
    """Samples one batch after the other, in scratch memory that it keeps.

    A batch depends only on the graph, the plan, the epoch and the seeds: not on earlier batches, nor
    on how the graph is partitioned. Not thread-safe.
    """

    def __init__(self, graph: Graph, plan: SamplingPlan) -> None:
        self._graph = graph
        self._plan = plan
        self._node_types = list(graph.schema.nodes)
        self._edge_types = [edge_type for edge_type in graph.schema.edges if edge_type in plan.num_neighbors]
        self._node_ids = [graph.node_ids(node_type) for node_type in self._node_types]
        self._seed_type = self._node_types.index(plan.seed_type)
        self._node_columns = [self._stored_node_columns(node_type) for node_type in self._node_types]
        self._edge_columns = [self._stored_edge_columns(edge_type) for edge_type in self._edge_types]
        self._native = self._make_native()
        self._scratch = np.empty(0, np.int64)

    def sample(self, request: Request) -> Sampled:
        """Sample the batch; its nodes and edges are then known, its columns not yet gathered.

        The result is valid until the next call. ``FormatError`` if the graph turns out damaged.
        """
        ids = self._node_ids[self._seed_type]
        seed_ids = request.seeds if ids is None else ids[request.seeds]
        key = batch_key(self._plan.run_seed, request.epoch, seed_ids)
        try:
            self._native.sample(self._seed_type, request.seeds, key)
        except RuntimeError as error:
            raise FormatError(str(error)) from None
        return Sampled(self, request, seed_ids)

    def layout(self, request: Request) -> Layout:
        """Return the layout of the frame of the batch sampled last."""
        native = self._native
        num_seeds = len(request.seeds)
        specs = {"seeds": ArraySpec("I64", (num_seeds,)), "input_id": ArraySpec("I64", (num_seeds,))}
        num_nodes, num_edges = {}, {}
        for index, node_type in enumerate(self._node_types):
            name = type_name(node_type)
            num_nodes[name] = native.nodes_per_hop(index)
            count = sum(num_nodes[name])
            specs[f"node/{name}/n_id"] = ArraySpec("I64", (count,))
            specs.update(
                (stored.frame_name, stored.column.spec(count)) for stored in self._node_columns[index]
            )
        for index, edge_type in enumerate(self._edge_types):
            name = type_name(edge_type)
            num_edges[name] = native.edges_per_hop(index)
            count = sum(num_edges[name])
            specs[f"edge/{name}/rows"] = ArraySpec("I32", (count,))
            specs[f"edge/{name}/colptr"] = ArraySpec("I64", (native.num_targets(index) + 1,))
            if self._plan.with_edge:
                specs[f"edge/{name}/e_id"] = ArraySpec("I64", (count,))
            specs.update(
                (stored.frame_name, stored.column.spec(count)) for stored in self._edge_columns[index]
            )
        metadata = {
            "epoch": str(request.epoch),
            "batch": str(request.batch),
            "seed_type": json.dumps(type_name(self._plan.seed_type)),
            "num_sampled_nodes": json.dumps(num_nodes),
            "num_sampled_edges": json.dumps(num_edges),
        }
        return Layout.plan(specs, metadata)

    def write_arrays(self, layout: Layout, buffer: Bytes) -> None:
        """Write nodes, edges and gathered columns of the batch sampled last."""
        for index, node_type in enumerate(self._node_types):
            out = layout.view(buffer, f"node/{type_name(node_type)}/n_id")
            self._native.write_node_ids(index, out)
            if self._node_columns[index]:
                positions = self._borrow(len(out))
                self._native.write_positions(index, positions)
                _gather_all(self._node_columns[index], positions, layout, buffer)
        for index, edge_type in enumerate(self._edge_types):
            self._write_edges(index, f"edge/{type_name(edge_type)}", layout, buffer)

    def _write_edges(self, index: int, prefix: str, layout: Layout, buffer: Bytes) -> None:
        rows = layout.view(buffer, f"{prefix}/rows")
        self._native.write_rows(index, rows)
        self._native.write_colptr(index, layout.view(buffer, f"{prefix}/colptr"))
        if self._plan.with_edge:
            self._native.write_edge_ids(index, layout.view(buffer, f"{prefix}/e_id"))
        if self._edge_columns[index]:
            slots = self._borrow(len(rows))
            self._native.write_slots(index, slots)
            _gather_all(self._edge_columns[index], slots, layout, buffer)

    def _make_native(self) -> NeighborSampler:
        schema = self._graph.schema
        place = {node_type: index for index, node_type in enumerate(self._node_types)}
        return NeighborSampler(
            adjacencies=[self._adjacency(edge_type) for edge_type in self._edge_types],
            target_types=[place[schema.target_type(edge_type)] for edge_type in self._edge_types],
            neighbor_types=[place[schema.neighbor_type(edge_type)] for edge_type in self._edge_types],
            addresses=[edge_type_address(edge_type) for edge_type in self._edge_types],
            fanouts=[self._plan.num_neighbors[edge_type] for edge_type in self._edge_types],
            node_ids=self._node_ids,
            num_nodes=[nodes.count for nodes in schema.nodes.values()],
            replace=self._plan.replace,
            with_edge_ids=self._plan.with_edge,
            with_slots=any(self._edge_columns),
        )

    def _adjacency(self, edge_type: EdgeType) -> Adjacency:
        topologies = [self._graph.topology(edge_type, part) for part in self._parts]
        narrow = all(topology["edge_ids"].dtype == np.int32 for topology in topologies)
        dtype = np.int32 if narrow else np.int64
        return Adjacency(
            self._graph.bounds(self._graph.schema.target_type(edge_type)),
            [topology["indptr"] for topology in topologies],
            [topology["indices"] for topology in topologies],
            [topology["edge_ids"].astype(dtype, copy=False) for topology in topologies],
        )

    def _stored_node_columns(self, node_type: NodeType) -> list[_StoredColumn]:
        columns = self._graph.schema.nodes[node_type].columns
        prefix, bounds = f"node/{type_name(node_type)}", self._graph.bounds(node_type)
        return [
            self._stored(prefix, name, columns[name], bounds, partial(self._graph.node_column, node_type))
            for name in self._plan.node_columns.get(node_type, ())
        ]

    def _stored_edge_columns(self, edge_type: EdgeType) -> list[_StoredColumn]:
        columns = self._graph.schema.edges[edge_type].columns
        counts = [len(self._graph.topology(edge_type, part)["indices"]) for part in self._parts]
        prefix, bounds = f"edge/{type_name(edge_type)}", np.cumsum([0, *counts], dtype=np.int64)
        return [
            self._stored(prefix, name, columns[name], bounds, partial(self._graph.edge_column, edge_type))
            for name in self._plan.edge_columns.get(edge_type, ())
        ]

    def _stored(
        self, prefix: str, name: str, column: Column, bounds: Int64Array, read: Callable[[str, int], Array]
    ) -> _StoredColumn:
        parts = [_as_rows(read(name, part), column.row_bytes) for part in self._parts]
        return _StoredColumn(f"{prefix}/{type_name(name)}", column, parts, bounds)

    @property
    def _parts(self) -> range:
        return range(self._graph.schema.num_partitions)

    def _borrow(self, count: int) -> Int64Array:
        if len(self._scratch) < count:
            self._scratch = np.empty(count + count // 2, np.int64)
        return self._scratch[:count]


class Sampled:
    """A batch whose nodes and edges are drawn: its size is known, and it can be written anywhere."""

    def __init__(self, sampler: Sampler, request: Request, seed_ids: Int64Array) -> None:
        self._sampler = sampler
        self._request = request
        self._seed_ids = seed_ids
        self.layout = sampler.layout(request)

    def write(self, buffer: Bytes) -> None:
        """Write the frame to the start of ``buffer`` (uint8, at least ``layout.nbytes`` long).

        The gather into ``buffer`` is the only copy of the columns.
        """
        layout = self.layout
        buffer[: len(layout.header)] = np.frombuffer(layout.header, np.uint8)
        layout.view(buffer, "seeds")[:] = self._seed_ids
        layout.view(buffer, "input_id")[:] = self._request.input_ids
        self._sampler.write_arrays(layout, buffer)


def _gather_all(columns: Iterable[_StoredColumn], rows: Int64Array, layout: Layout, buffer: Bytes) -> None:
    for stored in columns:
        stored.gather(rows, layout.view(buffer, stored.frame_name))


def _as_rows(array: Array, row_bytes: int) -> Bytes:
    """View an array as one row of bytes per entry of its first axis."""
    return (
        array.view(np.uint8).reshape(len(array), row_bytes)
        if row_bytes
        else np.empty((len(array), 0), np.uint8)
    )
