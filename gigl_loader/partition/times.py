"""Indexes by time: what draws in time need beyond the adjacency lists.

For each list of edges: its entries by ascending time, and the running sums of its weights in that order.
For the nodes of a type: their times by position, and the nodes by ascending time. ``docs/graph-format.md``
has the arrays, ``docs/randomness.md`` what is drawn with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gigl_loader.graph.paths import (
    edges_path,
    node_times_path,
    nodes_path,
    timed_weights_path,
    times_path,
    topology_path,
)
from gigl_loader.graph.schema import Column, type_name
from gigl_loader.native import build_adjacency
from gigl_loader.partition.stage import StageInfo
from gigl_loader.partition.weights import as_float64, opened, pieces, running_sums
from gigl_loader.tensors import ArraySpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.arrays import Int64Array
    from gigl_loader.graph.node_ids import Directory
    from gigl_loader.graph.schema import EdgeType, GraphSchema, NodeType
    from gigl_loader.partition.job import Job

__all__ = ["index_node_times", "index_timed_weights", "index_times"]

_BYTES_PER_EDGE = 120
"""Working memory while a piece is put in order of time."""

_BYTES_PER_NODE = 40
"""Working memory while the nodes of a type are put in order of time, all at once."""


def index_node_times(
    job: Job, schema: GraphSchema, node_type: NodeType, name: str, directory: Directory
) -> None:
    """Write the times of all nodes of a type and their order. ``ValueError`` for too low a memory limit."""
    count = schema.nodes[node_type].count
    job.budget.require(count * _BYTES_PER_NODE, f"the order by time of {count:,} nodes of type {node_type!r}")
    advance = job.track(f"nodes {node_type}: ordering by {name}", count)
    parts = [opened(job, nodes_path(part, node_type)).array(name) for part in range(job.num_partitions)]
    times = np.concatenate([np.empty(0, np.int64), *parts])
    by_id = directory.in_id_order()
    order = by_id[np.argsort(times[by_id], kind="stable")]
    width = np.dtype(np.int32 if count < 2**31 else np.int64)
    specs = {"times": ArraySpec("I64", (count,)), "order": ArraySpec(f"I{8 * width.itemsize}", (count,))}
    writer = job.create(node_times_path(node_type, name), specs)
    writer.append("times", times)
    writer.append("order", order.astype(width))
    job.finish(writer)
    advance(count)


def index_times(job: Job, schema: GraphSchema, edge_type: EdgeType, name: str) -> None:
    """Write the lists of an edge type in order of a time, for all partitions."""
    job.runner.run(job, _TimeStage(schema, edge_type, name))


def index_timed_weights(job: Job, schema: GraphSchema, edge_type: EdgeType, time: str, name: str) -> None:
    """Write the running sums of a weight column in order of a time, whose index is there."""
    job.runner.run(job, _TimedWeightStage(schema, edge_type, time, name))


@dataclass(frozen=True, slots=True)
class _TimeStage:
    """Writes lists in order of a time, a partition a task."""

    schema: GraphSchema
    edge_type: EdgeType
    time: str

    @property
    def info(self) -> StageInfo:
        return StageInfo(
            name=f"times/{type_name(self.edge_type)}/{type_name(self.time)}",
            step=f"edges {','.join(self.edge_type)}: ordering by {self.time}",
            num_rows=self.schema.edges[self.edge_type].count,
            num_tasks=self.schema.num_partitions,
        )

    def run(self, job: Job, part: int) -> dict[str, Any]:
        times_of = _times_of(job, self.schema, self.edge_type, self.time)
        num_edges = len(opened(job, topology_path(part, self.edge_type)).array("indices"))
        width = np.dtype(np.int32 if num_edges < 2**31 else np.int64)
        specs = {
            "times": ArraySpec("I64", (num_edges,)),
            "slots": ArraySpec(f"I{8 * width.itemsize}", (num_edges,)),
        }
        writer = job.create(times_path(part, self.edge_type, self.time), specs)
        for indptr in pieces(job, self.edge_type, part, _BYTES_PER_EDGE):
            begin, end = int(indptr[0]), int(indptr[-1])
            times = times_of(part, begin, end)
            order = _in_order(times, indptr - begin)
            writer.append("times", times[order])
            writer.append("slots", (order + begin).astype(width))
            job.advance(end - begin)
        job.finish(writer)
        return {"rows": num_edges}


@dataclass(frozen=True, slots=True)
class _TimedWeightStage:
    """Writes the running sums of a weight column in order of a time, a partition a task."""

    schema: GraphSchema
    edge_type: EdgeType
    time: str
    column: str

    @property
    def info(self) -> StageInfo:
        return StageInfo(
            name=f"times/{type_name(self.edge_type)}/{type_name(self.time)}/{type_name(self.column)}",
            step=f"edges {','.join(self.edge_type)}: indexing {self.column} by {self.time}",
            num_rows=self.schema.edges[self.edge_type].count,
            num_tasks=self.schema.num_partitions,
        )

    def run(self, job: Job, part: int) -> dict[str, Any]:
        stored = self.schema.edges[self.edge_type].columns
        column = stored.get(self.column, Column("F32"))
        file = (edges_path if self.column in stored else topology_path)(part, self.edge_type)
        num_edges = len(opened(job, file).array(self.column))
        path = timed_weights_path(part, self.edge_type, self.time, self.column)
        writer = job.create(path, {"sums": ArraySpec("I64", (num_edges,))})
        for indptr in pieces(job, self.edge_type, part, _BYTES_PER_EDGE):
            begin, end = int(indptr[0]), int(indptr[-1])
            slots = opened(job, times_path(part, self.edge_type, self.time)).array("slots")[begin:end]
            values = opened(job, file).array(self.column)[begin:end][slots.astype(np.int64) - begin]
            writer.append("sums", running_sums(as_float64(values, column), indptr - begin)[0])
            job.advance(end - begin)
        job.finish(writer)
        return {"rows": num_edges}


def _times_of(
    job: Job, schema: GraphSchema, edge_type: EdgeType, name: str
) -> Callable[[int, int, int], Int64Array]:
    """Return what reads the times of the edges ``[begin, end)`` of a partition."""

    # Files are opened anew for each piece: a map that stays open would grow by every page that is read.
    def of_edges(part: int, begin: int, end: int) -> Int64Array:
        return np.array(opened(job, edges_path(part, edge_type)).array(name)[begin:end])

    def of_neighbors(part: int, begin: int, end: int) -> Int64Array:
        neighbors = opened(job, topology_path(part, edge_type)).array("indices")[begin:end]
        path = node_times_path(schema.neighbor_type(edge_type), name)
        return np.asarray(opened(job, path).array("times")[neighbors])

    return of_edges if name in schema.edges[edge_type].times else of_neighbors


def _in_order(times: Int64Array, indptr: Int64Array) -> Int64Array:
    """Return the places of the entries of lists by ascending time, those of equal times as they are."""
    numbers = np.arange(len(times), dtype=np.int64)
    lists = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    order = np.empty(len(times), np.int64)
    build_adjacency(lists, times, numbers, np.empty(len(indptr), np.int64), order)
    return order
