"""Tables in Arrow IPC files (Feather), IPC streams and ORC files, read piece by piece."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import ipc, orc

from gigl_loader.arrays import Array
from gigl_loader.errors import FormatError
from gigl_loader.partition.readers import Kind
from gigl_loader.partition.readers.arrow import is_ragged, kind_of, to_numpy
from gigl_loader.partition.readers.shards import file_stamp
from gigl_loader.partition.remote_files import RemotePath

_ALL = range(sys.maxsize)


class ArrowFileTable:
    """One file of Arrow's IPC format (Feather version 2, or a stream) or of ORC.

    Memory is that of a piece: of a record batch or stripe, of the columns that are read. Pages of IPC files
    that are not compressed are mapped.
    """

    def __init__(self, path: Path | RemotePath, kind: str) -> None:
        """``kind`` is ``Arrow`` or ``ORC``."""
        self.name = str(path)
        self._path = path
        self._kind = kind
        self.read_as = kind
        self._first_row = 0
        with self._opened() as source:
            schema = _pieces(source, kind, None)[0]
        self._names = list(schema.names)
        if len(set(self._names)) != len(self._names):
            raise FormatError(f"{path}: a column name occurs twice")
        narrowest = min(schema, key=lambda field: _bits(field.type), default=None)
        counted = self._read([narrowest.name] if narrowest is not None else [], _ALL)
        self._piece_rows = [len(piece) for piece in counted]
        self._span = range(len(self._piece_rows))
        self.columns: dict[str, Kind] = {
            field.name: kind_of(field.type, self._width(field.name) if is_ragged(field.type) else 0)
            for field in schema
        }

    @property
    def num_rows(self) -> int:
        return sum(self._piece_rows[at] for at in self._span)

    @property
    def stamp(self) -> object:
        return file_stamp(self._path)

    def shards(self, rows: int) -> list[ArrowFileTable]:
        """Return shards of whole pieces."""
        found, begin, size = [], self._span.start, 0
        for at in self._span:
            size += self._piece_rows[at]
            if size >= rows or at == self._span[-1]:
                shard = copy(self)
                shard._span, shard._first_row = range(begin, at + 1), sum(self._piece_rows[:begin])
                found.append(shard)
                begin, size = at + 1, 0
        return found or [self]

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        row = 0
        for piece in self._read(names, self._span):
            for start in range(0, len(piece), rows):
                batch = piece.slice(start, rows)
                yield {name: self._column(batch, name, row + start) for name in names}
            row += len(piece)

    def where(self, column: str, row: int) -> str:
        return f"{self.name}, column {column!r}, row {self._first_row + row}"

    def _column(self, batch: Any, name: str, first_row: int) -> Array:
        return to_numpy(batch.column(name), self.columns[name], lambda row: self.where(name, first_row + row))

    def _width(self, name: str) -> int:
        """Return the length of the lists in a column: that of the first one."""
        lists = (piece.column(name).drop_null() for piece in self._read([name], self._span))
        return next((len(each[0]) for each in lists if len(each)), 0)

    def _read(self, names: Sequence[str], span: range) -> Iterator[Any]:
        """Yield some columns of pieces, as record batches."""
        with self._opened() as source:
            yield from _pieces(source, self._kind, [self._names.index(name) for name in names], span)[1]

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        try:
            path = self._path
            with pa.memory_map(self.name) if isinstance(path, Path) else path.open_file() as source:
                yield source
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{self.name}: not a readable {self._kind} file: {error}") from None


def _pieces(
    source: Any, kind: str, fields: list[int] | None, span: range = _ALL
) -> tuple[Any, Iterator[Any]]:
    """Return the schema of an open file, and some of its pieces: chosen fields, or all with ``None``."""
    if kind == "ORC":
        file = orc.ORCFile(source)
        names = None if fields is None else [file.schema.names[at] for at in fields]
        found = range(span.start, min(span.stop, file.nstripes))
        return file.schema, (file.read_stripe(at, names) for at in found)
    options = ipc.IpcReadOptions(included_fields=fields or [], use_threads=False)
    is_file = source.read(6) == b"ARROW1"
    source.seek(0)
    if not is_file:
        stream = ipc.open_stream(source, options=options)
        return stream.schema, islice(stream, span.start, span.stop)
    reader = ipc.open_file(source, options=options)
    found = range(span.start, min(span.stop, reader.num_record_batches))
    return reader.schema, map(reader.get_batch, found)


def _bits(dtype: Any) -> int:
    """Return the width of the values of a type, a large number for those of any length."""
    try:
        return int(dtype.bit_width)
    except ValueError:
        return sys.maxsize
