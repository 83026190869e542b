"""Named splits of nodes: ``train``, ``val``, ``test`` or any other name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from gigl_loader.arrays import Array, Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.node_ids import Directory
from gigl_loader.graph.schema import NodeType
from gigl_loader.partition.ids import find_all, require_integers
from gigl_loader.partition.job import Job
from gigl_loader.partition.table import SPLIT_MASKS, NodeTable, Table, is_mask
from gigl_loader.splits import hash_splits

__all__ = ["SplitMarks", "mark_splits"]


_NUMBERED = ("train", "val", "test")
_MAX_SPLITS = 8
_ROWS = 1 << 20


class SplitMarks:
    """One bit per node and split: a byte per node, where there are splits at all."""

    def __init__(self, count: int) -> None:
        self.names: list[str] = []
        self._count = count
        self._bits = np.zeros(0, dtype=np.uint8)

    def mark(self, name: str, positions: Int64Array, what: str) -> None:
        """Add nodes to a split. ``what`` names the source, for the message about too many splits."""
        if name not in self.names:
            if len(self.names) == _MAX_SPLITS:
                raise FormatError(f"{what}: split {name!r} is the ninth; at most {_MAX_SPLITS} are possible")
            self.names.append(name)
        if len(self._bits) != self._count:
            self._bits = np.zeros(self._count, dtype=np.uint8)
        self._bits[positions] |= np.uint8(1 << self.names.index(name))

    def members(self, name: str, low: int, high: int) -> Iterator[Int64Array]:
        """Yield the positions of a split in ``[low, high)``, ascending, in pieces."""
        bit = np.uint8(1 << self.names.index(name))
        for start in range(low, high, _ROWS):
            yield np.flatnonzero(self._bits[start : min(start + _ROWS, high)] & bit) + start

    def sizes(self, low: int = 0, high: int | None = None) -> dict[str, int]:
        """Return the number of nodes of each split in ``[low, high)``."""
        high = self._count if high is None else high
        return {name: sum(map(len, self.members(name, low, high))) for name in sorted(self.names)}


def mark_splits(job: Job, node_type: NodeType, entry: NodeTable, directory: Directory) -> SplitMarks:
    """Collect the splits of a node type from its table and its lists of ids."""
    marks = SplitMarks(directory.count)
    if entry.rows is not None:
        masks = {name: split for name, split in SPLIT_MASKS.items() if is_mask(entry.rows, name)}
        if masks or "split" in entry.rows.columns:
            _mark_rows(job, node_type, entry.rows, masks=masks, directory=directory, marks=marks)
    for split, table in entry.splits.items():
        if is_mask(table, "id"):
            _check_mask(table, directory)
        else:
            require_integers(table, "id")
        marks.mark(split, np.empty(0, dtype=np.int64), table.name)
        row = 0
        for chunk in table.read(["id"], job.budget.chunk_rows(8)):
            given = chunk["id"]
            ids = row + np.flatnonzero(given) if given.dtype == np.bool_ else given
            positions = find_all(directory, ids, node_type=node_type, table=table, name="id", first_row=row)
            marks.mark(split, positions, table.name)
            row += len(given)
    if entry.fractions:
        _mark_by_hash(node_type, entry.fractions, directory, marks)
    return marks


def _mark_by_hash(
    node_type: NodeType, fractions: Mapping[str, float], directory: Directory, marks: SplitMarks
) -> None:
    for start in range(0, max(directory.count, 1), _ROWS):
        positions = np.arange(start, min(start + _ROWS, directory.count))
        ids = directory.node_ids(positions)
        for name, which in hash_splits(ids, None, fractions, seed=0).items():
            marks.mark(name, positions[which], f"splits of {node_type}")


def _check_mask(table: Table, directory: Directory) -> None:
    """Raise ``FormatError`` unless a table has one boolean for each of the node ids ``0 .. N - 1``."""
    if directory.kind == "sparse":
        raise FormatError(f"{table.name}: a mask needs node ids 0 .. N - 1, and these have gaps: give ids")
    if table.num_rows != directory.count:
        raise FormatError(f"{table.name}: a mask of {table.num_rows} rows for {directory.count} nodes")


def _mark_rows(
    job: Job,
    node_type: NodeType,
    table: Table,
    *,
    masks: dict[str, str],
    directory: Directory,
    marks: SplitMarks,
) -> None:
    names = [name for name in ("id", "split") if name in table.columns] + list(masks)
    advance = job.track(f"nodes {node_type}: splits", table.num_rows)
    row = 0
    for chunk in table.read(names, job.budget.chunk_rows(64)):
        size = len(chunk[names[0]])
        ids = chunk.get("id", np.arange(row, row + size))
        positions = find_all(directory, ids, node_type=node_type, table=table, name="id", first_row=row)
        for mask, split in masks.items():
            marks.mark(split, positions[chunk[mask]], table.name)
        if "split" in chunk:
            _mark_values(table, chunk["split"], positions, row, marks)
        row += size
        advance(size)


def _mark_values(table: Table, values: Array, positions: Int64Array, row: int, marks: SplitMarks) -> None:
    if values.dtype.kind in "iu":
        wrong = np.flatnonzero((values < -1) | (values >= len(_NUMBERED)))
        if len(wrong):
            place = table.where("split", row + int(wrong[0]))
            raise FormatError(f"{place}: {values[wrong[0]]}, not -1 (none), 0 (train), 1 (val) or 2 (test)")
        for number, split in enumerate(_NUMBERED):
            if (members := positions[values == number]).size:
                marks.mark(split, members, table.name)
    elif values.dtype.kind in "UO":
        for value in np.unique(values):
            if value:
                marks.mark(str(value), positions[values == value], table.name)
    else:
        raise FormatError(f"{table.name}, column 'split': holds {values.dtype}, not names or numbers")
