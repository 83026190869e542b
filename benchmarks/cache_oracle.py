"""Offline oracle of a cache of rows: what windows of batches must read if their future is known.

Replaces the row whose next use is farthest (Belady, "A study of replacement algorithms", 1966). With the
whole future known, no cache of as many slots reads fewer rows for the same windows. With the future known as
far as a loader knows it, the rows are those that ``gigl_loader.native.CacheIndex`` has read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

BLOCK = 4096
"""Bytes. A disk reads whole blocks."""

_Rows = npt.NDArray[np.integer]
_NEVER = np.iinfo(np.int32).max


def rows_read(
    batches: Sequence[_Rows], *, window: int, num_slots: int, ahead: int | None = None
) -> list[npt.NDArray[np.int64]]:
    """Return the rows, ascending, that each window reads; the cache begins empty.

    ``ahead`` is the number of batches after a window whose rows are known, ``None``: all. Of rows with an
    equal next use, those go first that were wanted least recently, then those in lower slots. ``ValueError``
    for a window of more distinct rows than ``num_slots``.
    """
    next_uses = _next_uses(batches)
    next_use = np.full(_num_rows(batches), _NEVER, np.int32)  # of each row
    slot_of = np.full(len(next_use), -1, np.int32)
    held = np.full(num_slots, -1, np.int64)
    last = np.zeros(num_slots, np.int64)  # window that wanted the row of a slot last
    found = []
    begins = [*range(0, len(batches), window), len(batches)]
    for number, (begin, end) in enumerate(pairwise(begins)):
        for rows, uses in zip(batches[begin:end], next_uses[begin:end], strict=True):
            next_use[rows] = uses
        wanted = np.unique(np.concatenate(batches[begin:end])).astype(np.int64)
        if len(wanted) > num_slots:
            raise ValueError(f"window {number} wants {len(wanted)} rows, the cache has {num_slots} slots")
        missing = wanted[slot_of[wanted] < 0]
        last[slot_of[wanted[slot_of[wanted] >= 0]]] = number
        known = _NEVER if ahead is None else end + ahead
        slots = _room(held, last, next_use, number=number, known=known, count=len(missing))
        slot_of[held[slots][held[slots] >= 0]] = -1
        held[slots], last[slots], slot_of[missing] = missing, number, slots
        found.append(missing)
    return found


def _num_rows(batches: Sequence[_Rows]) -> int:
    return max((int(rows.max()) + 1 for rows in batches if len(rows)), default=0)


def _next_uses(batches: Sequence[_Rows]) -> list[npt.NDArray[np.int32]]:
    """Return, for each row of each batch, the number of the next batch that has it."""
    upcoming = np.full(_num_rows(batches), _NEVER, np.int32)
    found = []
    for number in reversed(range(len(batches))):
        found.append(upcoming[batches[number]])
        upcoming[batches[number]] = number
    return found[::-1]


def _room(
    held: npt.NDArray[np.int64],
    last: npt.NDArray[np.int64],
    next_use: npt.NDArray[np.int32],
    *,
    number: int,
    known: int,
    count: int,
) -> npt.NDArray[np.int64]:
    """Return ``count`` slots, ascending: free ones, then those whose rows go first."""
    free = np.flatnonzero(held < 0)[:count]
    missing = count - len(free)
    if not missing:
        return free
    able = np.flatnonzero((held >= 0) & (last < number))
    uses = next_use[held[able]].astype(np.int64)
    uses[uses >= known] = _NEVER
    order = ((_NEVER - uses) << 32) + last[able]
    limit = np.partition(order, missing - 1)[missing - 1]
    first = able[order < limit]
    ties = able[order == limit][: missing - len(first)]
    return np.sort(np.concatenate([free, first, ties]))


def bytes_read(missing: Sequence[_Rows], *, row_bytes: int, gap: int) -> tuple[int, int]:
    """Return the bytes and the number of reads that windows take from a disk for the rows they miss.

    Rows lie one after another. A read covers whole blocks, and goes on over up to ``gap`` unwanted bytes.
    """
    nbytes = count = 0
    for rows in missing:
        begins = rows * row_bytes // BLOCK * BLOCK
        ends = -(-(rows + 1) * row_bytes // BLOCK) * BLOCK
        apart = begins[1:] - ends[:-1] > gap
        nbytes += int((ends - begins)[:1].sum() + (ends[1:] - np.where(apart, begins[1:], ends[:-1])).sum())
        count += len(rows[:1]) + int(apart.sum())
    return nbytes, count
