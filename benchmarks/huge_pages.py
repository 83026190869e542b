"""Rows at random from a mapped file beside rows from huge pages: what looking up addresses costs.

    python benchmarks/huge_pages.py --work FOLDER

One thread copies rows of 128 bytes with the kernel of the loaders, from columns of growing size that are in
memory: as they were written, read again from the disk in sequence, and in huge pages. All miss the caches
equally often. Where the system gives no huge pages, there is no difference.
"""

from __future__ import annotations

import argparse
import mmap
import os
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from gigl_loader.native import gather

_ROW_BYTES = 128
_ROWS = 400_000
_CALLS = 7
_PAGE = 4096


def main() -> None:
    """Print nanoseconds per row for each size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()), help="folder on a disk")
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 64, 256, 768, 2560], help="MiB")
    options = parser.parse_args()
    table = Table("column, MiB", "file as written, ns a row", "as read", "huge pages", "ratio of written")
    for mebibytes in options.sizes:
        shape = (mebibytes * (1 << 20) // _ROW_BYTES, _ROW_BYTES)
        with tempfile.NamedTemporaryFile(dir=options.work) as file:
            np.zeros(shape, np.uint8).tofile(file)
            written = _row_ns(np.memmap(file.name, np.uint8, "r", shape=shape))
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            read = _row_ns(np.memmap(file.name, np.uint8, "r", shape=shape))
        memory = mmap.mmap(-1, shape[0] * _ROW_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        column = np.frombuffer(memory, np.uint8).reshape(shape)
        column[:] = 0
        huge = _row_ns(column)
        figures = (f"{ns:.0f}" for ns in (written, read, huge))
        table.add_row(f"{mebibytes:,}", *figures, f"{written / huge:.1f}")
    Console().print(table)


def _row_ns(column: np.ndarray) -> float:
    """Return the median nanoseconds to copy a row, after every page was touched."""
    column.reshape(-1)[::_PAGE].sum()
    random = np.random.default_rng(0)
    out = np.empty((_ROWS, _ROW_BYTES), np.uint8)
    bounds = np.array([0, len(column)])
    times = []
    for _ in range(_CALLS):
        positions = random.integers(0, len(column), _ROWS)
        start = time.perf_counter()
        gather([column], bounds, positions, out)
        times.append(time.perf_counter() - start)
    return median(times[1:]) / _ROWS * 1e9


if __name__ == "__main__":
    main()
