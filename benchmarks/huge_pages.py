"""Rows at random from a mapped file beside rows from huge pages, as they come and in ascending order.

    python benchmarks/huge_pages.py --work FOLDER

One thread copies rows with the kernel of the loaders, from columns of growing size that are in memory: as
they were written, read again from the disk in sequence, and in huge pages. All miss the caches equally often;
the rest is the translation of addresses. Where the system gives no huge pages, pages do not differ.
"""

from __future__ import annotations

import argparse
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from gigl_loader.native import ReadOrder, gather

_PAGE = 4096
_PIECE = 1 << 20

_Column = npt.NDArray[np.uint8]


def main() -> None:
    """Print GB/s and the share of a warm memcpy, for each size, kind of pages and order."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()), help="folder on a disk")
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 512, 2048, 4096], help="MiB of a column")
    parser.add_argument("--row-bytes", type=int, default=512)
    parser.add_argument("--rows", type=int, default=219_000, help="rows of a copy")
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    orders = [each.name.lower() for each in ReadOrder]
    table = Table("column, MiB", "pages", "memcpy, GB/s", *(f"{each}, GB/s; share" for each in orders))
    for mebibytes in options.sizes:
        shape = (mebibytes * (1 << 20) // options.row_bytes, options.row_bytes)
        for pages, column in _columns(shape, options.work):
            column.reshape(-1)[::_PAGE].sum()
            taken = _rates(column, options.rows, options.rounds)
            rates = {name: median(each) for name, each in taken.items()}
            shares = (median(np.divide(taken[each], taken["memcpy"])) for each in orders)
            figures = (f"{rates[each]:.1f}; {share:.2f}" for each, share in zip(orders, shares, strict=True))
            table.add_row(f"{mebibytes:,}", pages, f"{rates['memcpy']:.1f}", *figures)
    Console().print(table)


def _columns(shape: tuple[int, int], work: Path) -> Iterator[tuple[str, _Column]]:
    """Yield one column after the other, each with what its pages are."""
    with tempfile.NamedTemporaryFile(dir=work) as file:
        for begin in range(0, shape[0] * shape[1], _PIECE):
            file.write(bytes(min(_PIECE, shape[0] * shape[1] - begin)))
        file.flush()
        yield "file, as written", np.memmap(file.name, np.uint8, "r", shape=shape)
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        yield "file, as read", np.memmap(file.name, np.uint8, "r", shape=shape)
    yield "huge", _huge(shape)


def _huge(shape: tuple[int, int]) -> _Column:
    """Return memory in huge pages, where the system gives them."""
    memory = mmap.mmap(-1, shape[0] * shape[1], flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    column = np.frombuffer(memory, np.uint8).reshape(shape)
    column[:] = 0
    return column


def _rates(column: _Column, rows: int, rounds: int) -> dict[str, list[float]]:
    """Return GB per CPU second of each way to copy rows, and of memcpy, by round. They take turns."""
    random = np.random.default_rng(0)
    out, warm = (np.ones((rows, column.shape[1]), np.uint8) for _ in range(2))
    bounds = np.array([0, len(column)])
    ways: dict[str, Callable[[Any], None]] = {"memcpy": lambda _: np.copyto(out, warm)}
    for order in ReadOrder:
        ways[order.name.lower()] = lambda at, order=order: gather([[column]], bounds, at, [out], order=order)
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        positions = random.integers(0, len(column), rows)
        for name in random.permutation(list(ways)):
            start = time.thread_time()
            ways[name](positions)
            rates[name].append(out.nbytes / (time.thread_time() - start) / 1e9)
    return {name: each[rounds // 4 :] for name, each in rates.items()}  # Without those that try both orders.


if __name__ == "__main__":
    main()
