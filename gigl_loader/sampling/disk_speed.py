"""Speed of a disk: reads and bytes a second, and the gap between rows that is better read than skipped."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gigl_loader.native import DiskReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.arrays import Int64Array

DEFAULT_GAP = 24 << 10
"""Bytes. A cloud disk of 56,000 reads and 1.4 GB a second breaks even at 25 KB."""
MEASURABLE_BYTES = 64 << 20
"""Smaller files fit into caches of disks and controllers."""
_BLOCK = 4096
_MEASUREMENTS = 3
_ROOM = 1024
"""Blocks of memory that reads share: memory that is written for the first time would count as well."""


class DiskSpeed(NamedTuple):
    """Speed of a disk with so many reads in flight."""

    depth: int
    reads_per_s: float
    """Of 4 KiB, at random."""
    bytes_per_s: float
    """In sequence."""
    engine: str
    """``"io_uring"`` or ``"threads"``."""
    direct: bool
    """Reads went past the page cache. Some file systems refuse that."""

    @property
    def gap(self) -> int:
        """Bytes that take as long as a read, from 4 to 128 KiB."""
        return int(min(max(self.bytes_per_s / self.reads_per_s, _BLOCK), 128 << 10))


def break_even_gap(path: str | None, depth: int) -> int:
    """Return the bytes that cost as much as a read, measured in 0.1 s. Small files give ``DEFAULT_GAP``.

    Busy processors slow reads down more than bytes, by up to ten times: the least of several gaps is taken.
    """
    if path is None or os.path.getsize(path) < MEASURABLE_BYTES:
        return DEFAULT_GAP
    return min(measure_disk(path, depth=depth, seconds=0.03).gap for _ in range(_MEASUREMENTS))


def measure_disk(path: str, *, depth: int, seconds: float) -> DiskSpeed:
    """Read a file at random, then in sequence, for half of ``seconds`` each. A slow disk may take longer."""
    blocks = max(os.path.getsize(path) // _BLOCK, 1)
    random = np.random.default_rng()

    def scattered(count: int) -> Int64Array:
        return np.unique(random.integers(0, blocks, count))

    def adjacent(count: int) -> Int64Array:
        first = int(random.integers(0, max(blocks - count, 0) + 1))
        return np.arange(first, min(first + count, blocks))

    reader = DiskReader(depth, gap=0)
    try:
        file = reader.open(path)
        out = np.empty((_ROOM, _BLOCK), np.uint8)

        def blocks_per_s(choose: Callable[[int], Int64Array], count: int) -> float:
            """Measure twice as many blocks each time, until there is no time for as many."""
            end = time.monotonic() + seconds / 2
            while True:
                rows = choose(count)
                began = time.monotonic()
                reader.read([(file, 0, blocks, rows, np.arange(len(rows)) % _ROOM, out)])
                now = time.monotonic()
                rate = len(rows) / (now - began)
                count = min(2 * count, int(rate * (end - now)), MEASURABLE_BYTES // _BLOCK)
                if count < len(rows):
                    return rate

        reads = blocks_per_s(scattered, depth)
        in_sequence = blocks_per_s(adjacent, 64 * depth)
        return DiskSpeed(depth, reads, in_sequence * _BLOCK, reader.engine, reader.is_direct(file))
    finally:
        reader.close()
