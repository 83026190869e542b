"""Index of edge weights: what weighted draws need beyond the adjacency lists.

For each list: the running sums of its weights as whole numbers, and how many weights are above 0. A draw is
then a binary search, and equal on every machine. ``docs/internals/randomness.md`` has the arithmetic.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gigl_loader.arrays import Array, Int64Array, first_true
from gigl_loader.errors import FormatError
from gigl_loader.graph.manifest import Document, edges_path, topology_path, weights_path
from gigl_loader.graph.schema import Column, type_name
from gigl_loader.graph.weights import running_sums
from gigl_loader.partition.stage import Stage
from gigl_loader.tensors import ArraySpec, as_float64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gigl_loader.graph.schema import EdgeSchema, EdgeType
    from gigl_loader.partition.job import Job

_BYTES_PER_EDGE = 100
"""Working memory while a piece is indexed. Measured: 35 with 8 edges a list, 84 with one; and the weights."""


def check_weights(values: Array, column: Column, where: Callable[[int], str]) -> None:
    """Raise ``FormatError`` naming the place of the first value that is no weight."""
    weights = as_float64(values, column.dtype)
    if (row := first_true(~(np.isfinite(weights) & (weights >= 0)))) is not None:
        raise FormatError(f"{where(row)}: a weight is finite and not negative, got {weights[row]:g}")


def index_weights(
    job: Job, edge_type: EdgeType, name: str, edges: EdgeSchema, *, check: bool = False
) -> None:
    """Write the index of a weight column whose edges lie in the job's folder already, for all partitions.

    With ``check``, ``FormatError`` names the file and row of the first value that is no weight.
    """
    path = f"weights/{type_name(edge_type)}/{type_name(name)}"
    step = f"edges {','.join(edge_type)}: indexing {name}"
    run = partial(_index_part, edge_type=edge_type, name=name, edges=edges, check=check)
    job.runner.run(job, Stage(path, step, edges.count, job.num_partitions, run))


def _index_part(
    job: Job, part: int, *, edge_type: EdgeType, name: str, edges: EdgeSchema, check: bool
) -> dict[str, Any]:
    """Write the index of a weight column in one partition."""
    column, bounds = edges.columns.get(name, Column("F32")), topology_path(part, edge_type)
    file = edges_path(part, edge_type) if name in edges.columns else bounds
    if check:
        for each in {bounds, file}:
            opened(job, each).verify(lambda _: None)
    num_lists, num_edges = len(opened(job, bounds).array("indptr")) - 1, len(opened(job, file).array(name))
    specs = {"sums": ArraySpec("I64", (num_edges,)), "counts": ArraySpec("I64", (num_lists,))}
    writer = job.create(weights_path(part, edge_type, name), specs)
    for indptr in pieces(job, edge_type, part, _BYTES_PER_EDGE):
        begin, end = int(indptr[0]), int(indptr[-1])
        values = opened(job, file).array(name)[begin:end]
        if check:
            check_weights(values, column, partial(_where, file, name, begin))
        sums, counts = running_sums(as_float64(values, column.dtype), indptr - begin)
        writer.append("sums", sums)
        writer.append("counts", counts)
        job.advance(end - begin)
    job.finish(writer)
    return {"rows": num_edges}


def pieces(job: Job, edge_type: EdgeType, part: int, bytes_per_edge: int) -> Iterator[Int64Array]:
    """Yield the bounds of the lists of a partition, in pieces of as many edges as fit the memory.

    Callers open files anew for each piece, too: a map that stays open would grow by every page that is read.
    """
    rows = job.budget.chunk_rows(bytes_per_edge)
    bounds, first = topology_path(part, edge_type), 0
    while first < len(indptr := opened(job, bounds).array("indptr")) - 1:
        found = _piece(indptr, first, rows)
        yield found
        first += len(found) - 1


def _piece(indptr: Int64Array, first: int, rows: int) -> Int64Array:
    """Return the bounds of the lists from ``first`` on that have ``rows`` edges together, or of one list."""
    end = int(np.searchsorted(indptr, indptr[first] + rows, side="right")) - 1
    return indptr[first : min(max(end, first + 1), first + rows) + 1]


def opened(job: Job, name: str) -> Document:
    """Open a file that the job has written."""
    return Document(job.folder, name, job.files[name])


def _where(file: str, column: str, first_row: int, row: int) -> str:
    return f"{file}, column {column!r}, row {first_row + row}"
