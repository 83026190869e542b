"""An assigner that has KaMinPar (Gottesbüren and others, ESA 2021) cut the graph.

The cut is far smaller than that of one pass over the edges, and takes several times as long. The package
``kaminpar`` is an optional extra. It needs the whole graph in memory.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.partition.assigners import Owners
from gigl_loader.partition.edge_stream import EdgeStream

if TYPE_CHECKING:
    import numpy.typing as npt

    from gigl_loader.arrays import Int64Array
    from gigl_loader.partition.job import Job
    from gigl_loader.partition.table import GraphTables

__all__ = ["KaMinParAssigner"]

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
