"""Readers of tables: one module for each format, and what they have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gigl_loader.arrays import Array
from gigl_loader.graph.schema import Column
from gigl_loader.tensors import STORAGE_DTYPES

if TYPE_CHECKING:
    from gigl_loader.partition.remote_files import RemotePath

Kind = Column | str
"""Contents of a column: numbers of a dtype and row shape, ``TEXT``, or the name of another type of values."""

TEXT: Kind = "text"
"""Texts: an object array of ``str`` when read, with empty ones for missing values."""

TEXT_LISTS: Kind = "lists of texts"
"""Lists of texts, which read as texts with ``LIST_DELIMITER`` between those of a row."""

LIST_DELIMITER = "\x1f"
"""The unit separator of ASCII."""


def are_integers(kind: Kind | None) -> bool:
    """Return whether a column holds one integer a row, and no points in time."""
    is_one = isinstance(kind, Column) and not kind.shape and kind.unit is None and kind.dtype != "BF16"
    return is_one and isinstance(kind, Column) and STORAGE_DTYPES[kind.dtype].kind in "iu"


@dataclass(frozen=True, slots=True)
class NewColumn:
    """Name and dtype of a column of a file in the graph."""

    name: str
    dtype: str | None = None
    """``None``: that of the values."""


class Table(Protocol):
    """Rows of named columns. Reading starts afresh with every call, in bounded memory.

    It is pickled for tasks in other processes. Several tasks read it at once if it has ``shards(rows)``,
    which returns tables of about ``rows`` rows each, in order. Their ``where`` gives places in the whole
    table.
    """

    @property
    def name(self) -> str:
        """Name of the table in messages: usually its file."""

    @property
    def columns(self) -> Mapping[str, Kind]:
        """Contents of each column. Columns without numbers are read only for ids and ``split``."""

    @property
    def num_rows(self) -> int: ...

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        """Yield these columns in order, at most ``rows`` rows at a time: [R, ...], dtypes as in ``columns``.

        Missing numbers may be masked (``np.ma``), missing texts are empty.
        """

    def where(self, column: str, row: int) -> str:
        """Return the place of a value for a message: file, column and row."""


def as_texts(array: Array) -> Array:
    """Return fixed-size texts (NumPy's ``U`` and ``S``) as an array of ``str``, any other array as it is."""
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8")
    return array.astype(object) if array.dtype.kind == "U" else array


def shards_of(table: Table, rows: int) -> list[Table]:
    """Return the shards of a table: itself where it cannot be cut, to be read by one task."""
    shards = getattr(table, "shards", None)
    return [table] if shards is None else list(shards(rows))


def stamp_of(table: object) -> object:
    """Return a value that changes when the rows of a table do, such as size and time of its file.

    ``None`` for a table that has none: name, columns and number of rows must do. Assigners that read tables
    have one, too.
    """
    return getattr(table, "stamp", None)


def file_stamp(path: Path | RemotePath) -> tuple[str, int, int]:
    """Return the name of a file with what changes when its content does: size and time of the last change."""
    if not isinstance(path, Path):
        return path.stamp()
    found = path.stat()
    return str(path), found.st_size, found.st_mtime_ns


def cut(count: int, rows: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of pieces of at most ``rows`` rows; one empty piece where there is no row."""
    for begin in range(0, max(count, 1), max(rows, 1)):
        yield begin, min(begin + max(rows, 1), count)


def first_rows(shards: Sequence[Table]) -> list[int]:
    """Return where each shard begins in the whole table, and the number of rows."""
    bounds = [0]
    for shard in shards:
        bounds.append(bounds[-1] + shard.num_rows)
    return bounds


def numbered(table: Table, names: Sequence[str], rows: int) -> Iterator[tuple[int, dict[str, Array]]]:
    """Read a table as ``table.read`` does, and yield each chunk with the number of its first row."""
    row = 0
    for chunk in table.read(names, rows):
        yield row, chunk
        row += len(chunk[names[0]])


def read_span(
    shards: Sequence[Table], bounds: Sequence[int], begin: int, end: int, *, names: Sequence[str], rows: int
) -> Iterator[dict[str, Array]]:
    """Yield these columns of the rows ``[begin, end)`` of a table, at most ``rows`` at a time.

    ``bounds`` are the ``first_rows``. Rows of the first shard before ``begin`` are read and left out.
    """
    for shard, low, high in zip(shards, bounds, bounds[1:], strict=False):
        if high <= begin or low >= end:
            continue
        row = low
        for chunk in shard.read(names, rows):
            size = len(chunk[names[0]])
            first, last = max(begin - row, 0), min(end - row, size)
            if first < last:
                yield {name: array[first:last] for name, array in chunk.items()}
            row += size
            if row >= end:
                return
