"""Edge ids of tables: a warning names one that several edges of a type have."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np

from gigl_loader.arrays import Int64Array
from gigl_loader.graph.schema import EdgeType
from gigl_loader.partition.job import Job
from gigl_loader.partition.readers import Table
from gigl_loader.partition.readers.shards import numbered
from gigl_loader.partition.steps.ids import as_ids, require_integers

logger = logging.getLogger(__name__)


def warn_of_repeated_edge_ids(job: Job, edge_type: EdgeType, table: Table, *, times: int = 1) -> None:
    """Log the first edge id that more than ``times`` rows of a table have.

    Ids that ascend are read once, with no memory. Others are sorted, in as many shares as fit in memory.
    """
    if "id" not in table.columns:
        return
    require_integers(table, "id")
    count = table.num_rows
    step, last = job.budget.chunk_rows(8), np.iinfo(np.int64).min
    for _, ids in _ids(table, step):
        if len(ids) and not (ids[0] > last and bool((ids[1:] > ids[:-1]).all())):
            break
        last = int(ids[-1]) if len(ids) else last
    else:
        return
    shares = -(-8 * count // max(job.budget.total // 4, 1))
    advance = job.track(f"edges {','.join(edge_type)}: ids", shares * count)
    for share in range(shares):
        pieces = []
        for _, ids in _ids(table, step):
            pieces.append(ids[ids % shares == share])
            advance(len(ids))
        found = np.concatenate(pieces)
        found.sort()
        twins = np.flatnonzero(found[times:] == found[: max(len(found) - times, 0)])
        if len(twins):
            _warn(table, int(found[twins[0]]), step, times)
            advance((shares - share - 1) * count)
            return


def _ids(table: Table, step: int) -> Iterator[tuple[int, Int64Array]]:
    for row, chunk in numbered(table, ["id"], step):
        yield row, as_ids(table, "id", chunk["id"], row)


def _warn(table: Table, edge_id: int, step: int, times: int) -> None:
    rows = [row + int(at) for row, ids in _ids(table, step) for at in np.flatnonzero(ids == edge_id)]
    logger.warning(
        "%s: edge id %d comes again, and others may: batches do not tell these edges apart by e_id",
        table.where("id", rows[times]),
        edge_id,
    )
