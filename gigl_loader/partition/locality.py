"""Assigners that cut few edges: linear deterministic greedy in one pass, and KaMinPar.

Linear deterministic greedy is of I. Stanton and G. Kliot, "Streaming graph partitioning for large
distributed graphs", KDD 2012. KaMinPar's cut is far smaller, and takes several times as long. The package
``kaminpar`` is an optional extra; it needs the whole graph in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gigl_loader.arrays import Array, Int64Array
from gigl_loader.graph.ids import Directory
from gigl_loader.graph.schema import EdgeType, NodeType
from gigl_loader.native import GreedyPlacement
from gigl_loader.partition.assigners import Owners
from gigl_loader.partition.exchange import Kinds, Spill, bucket_numbers, scatter
from gigl_loader.partition.job import Job
from gigl_loader.partition.readers import Table, numbered
from gigl_loader.partition.steps.ids import find_all, node_ids_of, require_integers
from gigl_loader.partition.table import GraphTables

_WINDOWS = 4096
"""The more there are, the closer node types keep in step. Part of the result: never depends on memory."""

_Value = TypeVar("_Value", bound=np.generic)


class NodeStream:
    """The nodes of all types in one order: each type by ascending node id, all types in step.

    The stream is cut into windows, and each type into as many ranges of equal size. A window has the range of
    the first type, then that of the second, and so on: so that the ends of an edge between two types come
    about equally early, whatever the sizes of the types.
    """

    def __init__(self, counts: Mapping[NodeType, int]) -> None:
        """``counts`` are the numbers of nodes by type."""
        self.counts = dict(counts)
        self.size = sum(counts.values())
        self._numbers = {node_type: number for number, node_type in enumerate(counts)}
        windows = np.arange(_WINDOWS + 1, dtype=np.int64)
        # [T, W + 1]: where the range of each type in each window begins, in the order of its own nodes.
        self._ranges = np.array([windows * count // _WINDOWS for count in counts.values()]).reshape(
            len(counts), _WINDOWS + 1
        )
        sizes = np.diff(self._ranges).T.reshape(-1)
        # [W * T + 1]: the same in the order of the stream.
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def places(self, node_type: NodeType, ranks: Int64Array) -> Int64Array:
        """Return the places in the stream of nodes, int64 [N], given by rank among the ids of their type."""
        if len(self.counts) == 1 or len(ranks) == 0:
            return ranks
        number = self._numbers[node_type]
        # Range w is [w * count // W, (w + 1) * count // W).
        window = ((ranks + 1) * _WINDOWS - 1) // self.counts[node_type]
        began = self._ranges[number][window] - self._starts[window * len(self.counts) + number]
        return np.asarray(ranks - began)

    def kinds(self, begin: int, end: int) -> npt.NDArray[np.uint16]:
        """Return the number of the type of each node in ``[begin, end)`` of the stream, uint16 [N]."""
        if len(self.counts) == 1:
            return np.zeros(end - begin, np.uint16)
        low = int(np.searchsorted(self._starts, begin, side="right")) - 1
        high = int(np.searchsorted(self._starts, end, side="left"))
        bounds = np.clip(self._starts[low : high + 1], begin, end)
        numbers = np.arange(low, high) % len(self.counts)
        return np.repeat(numbers.astype(np.uint16), np.diff(bounds))

    def of_type(
        self, node_type: NodeType, values: npt.NDArray[_Value], *, rows: int = 1 << 20
    ) -> npt.NDArray[_Value]:
        """Return those of one type, [N] by ascending node id, of values by place in the stream."""
        if len(self.counts) == 1:
            return values
        count = self.counts[node_type]
        found = np.empty(count, values.dtype)
        for start in range(0, count, rows):
            ranks = np.arange(start, min(start + rows, count))
            found[start : start + rows] = values[self.places(node_type, ranks)]
        return found


class EdgeStream:
    """Edges of a graph for an assigner, as pairs of places in the stream ``nodes``."""

    def __init__(self, job: Job, tables: GraphTables, assigner: str) -> None:
        """``assigner`` is its name, for progress."""
        self._job = job
        self._tables = tables
        self._assigner = assigner
        self._directories: dict[NodeType, Directory] = {}
        for node_type in tables.node_types:
            ids = node_ids_of(job, tables, node_type)
            self._directories[node_type] = Directory(ids.count, ids.ascending)
        job.budget.require(sum(each.nbytes for each in self._directories.values()), "the ids of all nodes")
        self.nodes = NodeStream({kind: each.count for kind, each in self._directories.items()})
        self.dtype: np.dtype[Any] = np.dtype(np.int32 if self.nodes.size < 2**31 else np.int64)
        """Of places."""
        self.num_edges = sum(table.num_rows for table in tables.edges.values())

    def read(self) -> Iterator[tuple[Array, Array]]:
        """Yield the later and the earlier end of edges, [E] each, without those from a node to itself."""
        for edge_type, table in self._tables.edges.items():
            for src, dst in self._read(edge_type, table):
                apart = src != dst
                yield np.maximum(src, dst)[apart], np.minimum(src, dst)[apart]

    def by_type(self, owners: npt.NDArray[np.uint16]) -> dict[NodeType, npt.NDArray[np.uint16]]:
        """Return the owners of each type by ascending node id, of those by place."""
        return {node_type: self.nodes.of_type(node_type, owners) for node_type in self._directories}

    def _read(self, edge_type: EdgeType, table: Table) -> Iterator[tuple[Array, Array]]:
        advance = self._job.track(
            f"edges {','.join(edge_type)}: reading for {self._assigner}", table.num_rows
        )
        for name in ("src", "dst"):
            require_integers(table, name)
        for row, chunk in numbered(table, ["src", "dst"], self._job.budget.chunk_rows(16)):
            ends = ((edge_type[0], "src"), (edge_type[2], "dst"))
            src, dst = (self._ranks(of, chunk[name], table, name, row) for of, name in ends)
            known = (src >= 0) & (dst >= 0)
            advance(len(src))
            yield self._places(edge_type[0], src[known]), self._places(edge_type[2], dst[known])

    def _ranks(self, node_type: NodeType, ids: Array, table: Table, name: str, row: int) -> Int64Array:
        """Return the ranks of nodes among the ids of their type, -1 for unknown ones that are left out."""
        nodes, known = self._directories[node_type], self._tables.unknown_ids != "drop"
        return find_all(nodes, ids, node_type=node_type, table=table, name=name, first_row=row, known=known)

    def _places(self, node_type: NodeType, ranks: Int64Array) -> Array:
        return self.nodes.places(node_type, ranks).astype(self.dtype, copy=False)


_SLACK_PERCENT = 5
_MORE_BUCKETS = 16
"""Pieces that a bucket is cut into where it does not fit in memory."""

_NODE_BYTES = 64
"""Of memory per node of a bucket: 10 are used, while edges take half of all memory."""

_NOTHING = np.empty(0, np.int64)


class LinearGreedyAssigner:
    """Places nodes one after another where most of their neighbours are, less so the fuller a partition is.

    Nodes of each type are balanced among themselves: no partition has over 5 % more or fewer than the mean
    (or one node, where that is more). Edges of all types count alike, in both directions. The stream of nodes
    is by ascending id, all types in step. Takes 2 bytes of memory a node, and as many edges at a time as the
    memory limit allows.
    """

    name: str = "ldg"

    def plan(self, job: Job, tables: GraphTables) -> Owners:
        """Read the edges once and place all nodes."""
        if job.num_partitions == 1:
            return Owners(self.name, {})
        edges = EdgeStream(job, tables, self.name)
        what = f"the owners of {edges.nodes.size:,} nodes"
        job.budget.require(4 * edges.nodes.size, what)  # Once as they are placed, once by type.
        job.hold(2 * edges.nodes.size, what)
        return Owners(self.name, edges.by_type(_Placing(job, edges).run()))


def bounds_of_load(count: int, num_partitions: int) -> tuple[int, int]:
    """Return the fewest and the most of ``count`` nodes that a partition may have: within 5 % of the mean."""
    most = max(-(-count // num_partitions), (100 + _SLACK_PERCENT) * count // (100 * num_partitions))
    fewest = min(count // num_partitions, -((_SLACK_PERCENT - 100) * count // (100 * num_partitions)))
    return fewest, most


class _Placing:
    """One pass over the nodes, each with its neighbours among those before it.

    An edge belongs to the later of its two ends: when the earlier one is placed, the other is not there yet.
    Edges are spread over buckets of the stream as they are read, and a bucket is placed as a whole.
    """

    def __init__(self, job: Job, edges: EdgeStream) -> None:
        self._job = job
        self._edges = edges
        self._nodes = edges.nodes
        self._kinds: Kinds = {"target": (edges.dtype, ()), "neighbor": (edges.dtype, ())}
        self._leaf_rows = job.budget.edge_bucket_rows(0)
        counts = list(edges.nodes.counts.values())
        bounds = [bounds_of_load(count, job.num_partitions) for count in counts]
        self._placement = GreedyPlacement(
            np.array(counts, np.int64),
            np.array([most for _, most in bounds], np.int64),
            np.array([fewest for fewest, _ in bounds], np.int64),
            job.num_partitions,
        )
        self._advance: Callable[[int], None] = lambda _: None

    def run(self) -> npt.NDArray[np.uint16]:
        """Read, spread, place. Return the owners in the order of the stream."""
        rows = self._edges.num_edges
        spill = self._job.spill(self._kinds, rows)
        by_edges = 1 if rows <= self._leaf_rows else -(-4 * rows // (3 * self._leaf_rows))
        by_nodes = -(-self._nodes.size // max(self._job.budget.total // _NODE_BYTES, 1))
        cuts = _cuts(0, self._nodes.size, max(by_edges, by_nodes))
        for later, earlier in self._edges.read():
            self._spread(spill, cuts, {"target": later, "neighbor": earlier})
        self._advance = self._job.track("nodes: placing", self._nodes.size)
        self._place_all(spill, cuts, self._nodes.size)
        return self._placement.owners

    def _spread(self, spill: Spill, cuts: Int64Array, edges: Mapping[str, Array]) -> None:
        scatter(spill, bucket_numbers(cuts, edges["target"]), edges)

    def _place_all(self, spill: Spill, cuts: Int64Array, end: int) -> None:
        """Place the nodes of all buckets, which begin at ``cuts``."""
        for bucket, (low, high) in enumerate(zip(cuts, [*cuts[1:], end], strict=True)):
            if spill.size(bucket) <= self._leaf_rows:
                self._place(int(low), int(high), spill.take(bucket, "target"), spill.take(bucket, "neighbor"))
            elif high - low == 1:
                self._place_hub(int(low), spill, bucket)
            else:
                self._place_finer(int(low), int(high), spill, bucket)
            spill.drop(bucket)

    def _place_finer(self, low: int, high: int, spill: Spill, bucket: int) -> None:
        """Place a bucket whose edges do not fit in memory."""
        cuts = _cuts(low, high, _MORE_BUCKETS)
        finer = self._job.spill(self._kinds, spill.size(bucket))
        for edges in spill.read(bucket, list(self._kinds), self._job.budget.chunk_rows(16)):
            self._spread(finer, cuts, edges)
        spill.drop(bucket)
        self._place_all(finer, cuts, high)

    def _place_hub(self, low: int, spill: Spill, bucket: int) -> None:
        """Place one node whose edges do not fit in memory."""
        near = np.zeros(self._job.num_partitions, np.int64)
        owners = self._placement.owners
        for edges in spill.read(bucket, ["neighbor"], self._job.budget.chunk_rows(16)):
            near += np.bincount(owners[edges["neighbor"]], minlength=len(near))
        none = np.empty(0, self._edges.dtype)
        self._place(low, low + 1, none, none, near)

    def _place(
        self, low: int, high: int, targets: Array, neighbors: Array, more: Int64Array = _NOTHING
    ) -> None:
        self._placement.place(
            self._nodes.kinds(low, high), targets - targets.dtype.type(low), neighbors, more
        )
        self._advance(high - low)


def _cuts(low: int, high: int, pieces: int) -> Int64Array:
    """Return where each of at most so many pieces of ``[low, high)`` begins. Only a sole one may be empty."""
    pieces = max(min(pieces, high - low), 1)
    return low + np.arange(pieces, dtype=np.int64) * (high - low) // pieces


_SLACK = 0.05
_BYTES_PER_EDGE = 120
"""Both directions of an edge as a sorted key, twice, and KaMinPar's own 64-bit graph and its coarser ones."""
_BYTES_PER_NODE = 120
_UNWEIGHTED_64_BIT = 3
"""Version of the ParHIP format."""


class KaMinParAssigner:
    """Cuts as few edges as KaMinPar finds, with partitions of at most 5 % more nodes than the mean.

    Edges of all types count alike, in both directions, and equal ones once. Nodes of all types are balanced
    together. Runs on one thread: the result depends on the graph and on the version of ``kaminpar`` alone.
    """

    name: str = "kaminpar"

    def __init__(self) -> None:
        """``ImportError`` where the package is missing."""
        if find_spec("kaminpar") is None:
            raise ImportError("the assigner kaminpar needs a package: pip install 'gigl-loader[kaminpar]'")

    def plan(self, job: Job, tables: GraphTables) -> Owners:
        """Read the edges once, and cut the graph. ``ValueError`` for too low a memory limit."""
        if job.num_partitions == 1:
            return Owners(self.name, {})
        edges = EdgeStream(job, tables, self.name)
        count, nodes = edges.num_edges, edges.nodes.size
        needed = _BYTES_PER_EDGE * count + _BYTES_PER_NODE * nodes
        job.budget.require(needed, f"kaminpar's graph of {nodes:,} nodes and {count:,} edges")
        if count == 0:
            owners = (np.arange(nodes) % job.num_partitions).astype(np.uint16)
        else:
            path = job.temporary_path()
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_parhip(path, nodes, _neighbors(edges))
            owners = _cut(path, job.num_partitions)
            path.unlink()
        job.hold(owners.nbytes, f"the owners of {nodes:,} nodes")
        return Owners(self.name, edges.by_type(owners))


def _neighbors(edges: EdgeStream) -> Int64Array:
    """Return ``node * N + neighbour`` of all edges in both directions, ascending, each once."""
    count = edges.nodes.size
    keys = np.empty(2 * edges.num_edges, np.int64)
    filled = 0
    for later, earlier in edges.read():
        for node, neighbor in ((later, earlier), (earlier, later)):
            keys[filled : filled + len(node)] = node.astype(np.int64) * count + neighbor
            filled += len(node)
    keys = keys[:filled]
    keys.sort()
    return np.asarray(keys[np.concatenate([[True], keys[1:] != keys[:-1]])[:filled]])


def _write_parhip(path: Path, count: int, keys: Int64Array) -> None:
    """Write a graph of ``count`` nodes: three numbers, the offset in bytes of each list, and the lists."""
    indptr = np.searchsorted(keys, np.arange(count + 1, dtype=np.int64) * count)
    first = 8 * (3 + count + 1)
    with path.open("wb") as file:
        np.array([_UNWEIGHTED_64_BIT, count, len(keys)], np.uint64).tofile(file)
        (first + 8 * indptr).astype(np.uint64).tofile(file)
        (keys % count).astype(np.uint64).tofile(file)


def _cut(path: Path, num_partitions: int) -> npt.NDArray[np.uint16]:
    kaminpar = import_module("kaminpar")
    graph = kaminpar.load_graph(str(path), kaminpar.GraphFileFormat.PARHIP)
    kaminpar.reseed(0)
    solver = kaminpar.KaMinPar(1, kaminpar.default_context())
    return np.array(solver.compute_partition(graph, num_partitions, _SLACK), np.uint16)
