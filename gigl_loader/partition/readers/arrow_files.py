"""Tables of Arrow: files of Parquet, IPC (Feather, streams) and ORC, and streams of record batches.

Streams are those of DuckDB, Polars, ADBC, Hugging Face datasets, ...
"""

from __future__ import annotations

import mmap
import os
import shutil
import sys
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc

from gigl_loader.arrays import Array
from gigl_loader.errors import FormatError
from gigl_loader.native import crc32c
from gigl_loader.partition.readers import Kind, file_stamp
from gigl_loader.partition.readers.arrow import is_ragged, kind_of, to_numpy
from gigl_loader.partition.remote_files import RemotePath

_ALL = range(sys.maxsize)
_BUFFER_BYTES = 1 << 20
_FIRST_ROWS = 1024
"""Read at once in search of the first list of a column."""
_GROUP_BYTES = 32 << 20  # Of a row group of a stream: the least that a task reads, and the most that is held.


class PieceTable(ABC):
    """One file. Tasks read whole pieces of it: row groups, record batches, stripes."""

    read_as: str
    """How the table is read, for people."""

    def __init__(self, path: Path | RemotePath) -> None:
        self.name = str(path)
        self._path = path
        self._first_row = 0
        schema, self._piece_rows = self._inspected()
        if len(set(schema.names)) != len(schema):
            raise FormatError(f"{path}: a column name occurs twice")
        self._span = range(len(self._piece_rows))
        widths = {field.name: self._width(field.name) if is_ragged(field.type) else 0 for field in schema}
        self.columns: dict[str, Kind] = {
            field.name: kind_of(field.type, widths[field.name]) for field in schema
        }

    @property
    def num_rows(self) -> int:
        return sum(self._piece_rows[at] for at in self._span)

    @property
    def stamp(self) -> object:
        return file_stamp(self._path)

    def shards(self, rows: int) -> list[PieceTable]:
        """Return shards of whole pieces."""
        found, begin, size = [], self._span.start, 0
        for at in self._span:
            size += self._piece_rows[at]
            if size >= rows or at == self._span[-1]:
                found.append(self._part(range(begin, at + 1)))
                begin, size = at + 1, 0
        return found or [self]

    def _part(self, span: range) -> PieceTable:
        shard = copy(self)
        shard._span, shard._first_row = span, sum(self._piece_rows[: span.start])
        return shard

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        row = 0
        for batch in self._batches(names, rows):
            yield {name: self._column(batch, name, row) for name in names}
            row += len(batch)

    def where(self, column: str, row: int) -> str:
        return f"{self.name}, column {column!r}, row {self._first_row + row}"

    @abstractmethod
    def _inspected(self) -> tuple[Any, list[int]]:
        """Return the schema of the file, and the number of rows in each piece."""

    @abstractmethod
    def _batches(self, names: Sequence[str], rows: int) -> Iterator[Any]:
        """Yield record batches of at most ``rows`` rows."""

    def _column(self, batch: Any, name: str, first_row: int) -> Array:
        return to_numpy(batch.column(name), self.columns[name], lambda row: self.where(name, first_row + row))

    def _width(self, name: str) -> int:
        """Return the length of the lists in a column: that of the first one."""
        lists = (batch.column(0).drop_null() for batch in self._batches([name], _FIRST_ROWS))
        return next((len(each[0]) for each in lists if len(each)), 0)


class ParquetTable(PieceTable):
    """One Parquet file. Memory is a batch and the pages being decoded, not a row group."""

    read_as = "Parquet"

    def _inspected(self) -> tuple[Any, list[int]]:
        with self._open() as file:
            groups = [
                file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)
            ]
            leaves = [file.schema.column(at) for at in range(len(file.schema))]
            self._old_times = [each.path for each in leaves if each.physical_type == "INT96"]
            return file.schema_arrow, groups

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        self._check_old_times([name for name in self._old_times if name in names], rows)
        yield from super().read(names, rows)

    def _check_old_times(self, names: Sequence[str], rows: int) -> None:
        """Raise ``FormatError`` for a time (INT96) beyond nanoseconds. Arrow reads it as another one then."""
        row = 0
        for batch in self._batches(names, rows, int96_unit="us") if names else ():
            for name in names:
                self._column(batch, name, row)
            row += len(batch)

    def _open(self, int96_unit: str | None = None) -> Any:
        try:
            source = self._path if isinstance(self._path, Path) else self._path.open_file()
            return pq.ParquetFile(
                source,
                buffer_size=_BUFFER_BYTES,
                pre_buffer=False,
                page_checksum_verification=True,
                coerce_int96_timestamp_unit=int96_unit,
            )
        except (pa.ArrowInvalid, pa.ArrowException) as error:
            raise FormatError(f"{self.name}: not a readable Parquet file: {error}") from None

    def _batches(self, names: Sequence[str], rows: int, int96_unit: str | None = None) -> Iterator[Any]:
        with self._open(int96_unit) as file:
            try:
                yield from file.iter_batches(rows, list(self._span), list(names), use_threads=False)
            except (pa.ArrowInvalid, pa.ArrowException, OSError) as error:
                raise FormatError(f"{self.name}: cannot be read: {error}") from None


class ArrowFileTable(PieceTable):
    """One file of Arrow's IPC format (Feather version 2, or a stream) or of ORC.

    Memory is that of a piece: of a record batch or stripe, of the columns that are read. Pages of IPC files
    that are not compressed are mapped.
    """

    def __init__(self, path: Path | RemotePath, kind: str) -> None:
        """``kind`` is ``Arrow`` or ``ORC``."""
        self.read_as = kind
        super().__init__(path)

    def _inspected(self) -> tuple[Any, list[int]]:
        with self._opened() as source:
            schema = _pieces(source, self.read_as, None)[0]
        self._names = list(schema.names)
        narrowest = min(schema, key=lambda field: _bits(field.type), default=None)
        counted = self._read([narrowest.name] if narrowest is not None else [], _ALL)
        return schema, [len(piece) for piece in counted]

    def _batches(self, names: Sequence[str], rows: int) -> Iterator[Any]:
        for piece in self._read(names, self._span):
            yield from (piece.slice(start, rows) for start in range(0, len(piece), rows))

    def _read(self, names: Sequence[str], span: range) -> Iterator[Any]:
        """Yield some columns of pieces, as record batches."""
        with self._opened() as source:
            yield from _pieces(source, self.read_as, [self._names.index(name) for name in names], span)[1]

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        try:
            path = self._path
            with pa.memory_map(self.name) if isinstance(path, Path) else path.open_file() as source:
                yield source
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{self.name}: not a readable {self.read_as} file: {error}") from None


def _pieces(
    source: Any, kind: str, fields: list[int] | None, span: range = _ALL
) -> tuple[Any, Iterator[Any]]:
    """Return the schema of an open file, and some of its pieces: chosen fields, or all with ``None``."""
    if kind == "ORC":
        from pyarrow import orc

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


class ArrowStreamTable(ParquetTable):
    """Rows of a stream. Builds read a table several times, in several processes, and a stream can be read
    once: it is written to a temporary Parquet file, in bounded memory.

    The file is removed when the table and its shards are collected.
    """

    read_as = "stream"

    def __init__(self, stream: Any, name: str, *, directory: str | os.PathLike[str] | None = None) -> None:
        """``stream`` has ``__arrow_c_stream__``, or is a data set. ``name`` stands for it in messages.

        ``directory`` is where the temporary file lies, by default ``TMPDIR``. Executors on other machines
        need a directory that they share.
        """
        self._kept = _TemporaryDirectory(directory)
        path = self._kept.path / "rows.parquet"
        _write(stream, path, name)
        super().__init__(path)
        self.name = name
        self._checksum = _checksum(path)

    @property
    def stamp(self) -> object:
        """Checksum of the rows: the same stream may be read again to resume a build."""
        return self._checksum

    def _part(self, span: range) -> PieceTable:
        shard = super()._part(span)
        assert isinstance(shard, ArrowStreamTable)
        shard._kept = self._kept  # A copy has the state of a pickle, without it.
        return shard

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_kept"}


class _TemporaryDirectory:
    """A directory that is removed with the last table that reads from it."""

    def __init__(self, parent: str | os.PathLike[str] | None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="gigl-stream-", dir=parent))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def _write(stream: Any, path: Path, name: str) -> None:
    from pyarrow import dataset

    try:
        if isinstance(stream, dataset.Dataset):
            stream = stream.scanner(batch_readahead=1, fragment_readahead=1).to_reader()
        is_reader = isinstance(stream, pa.RecordBatchReader)  # Its own errors arrive whole.
        with stream if is_reader else pa.RecordBatchReader.from_stream(stream) as reader:
            if len(set(reader.schema.names)) != len(reader.schema):
                raise FormatError(f"{name}: a column name occurs twice")
            types = [_stored_type(field.type) for field in reader.schema]
            fields = [field.with_type(each) for field, each in zip(reader.schema, types, strict=True)]
            schema = pa.schema(fields, reader.schema.metadata)
            with pq.ParquetWriter(path, schema, compression="lz4") as writer:
                for group in _groups(reader):
                    columns = map(_stored, group.columns, types)
                    writer.write_table(pa.Table.from_arrays(list(columns), schema=schema))
    except (pa.ArrowException, TypeError) as error:
        raise FormatError(f"{name}: the stream cannot be read: {error}") from None


def _groups(reader: Any) -> Iterator[Any]:
    """Yield the rows of a stream as tables of about ``_GROUP_BYTES``."""
    batches: list[Any] = []
    nbytes = 0
    for batch in reader:
        batches.append(batch)
        nbytes += batch.nbytes
        if nbytes >= _GROUP_BYTES:
            yield pa.Table.from_batches(batches)
            batches, nbytes = [], 0
    if batches:
        yield pa.Table.from_batches(batches)


def _stored_type(dtype: Any) -> Any:
    """Return the type of a column in the file. Views of texts, which Polars sends, become arrays of texts."""
    if pa.types.is_dictionary(dtype):
        return pa.dictionary(dtype.index_type, _stored_type(dtype.value_type), dtype.ordered)
    return {"string_view": pa.large_string(), "binary_view": pa.large_binary()}.get(str(dtype), dtype)


def _stored(column: Any, dtype: Any) -> Any:
    if column.type == dtype:
        return column
    if not pa.types.is_dictionary(dtype):
        return column.cast(dtype)
    chunks = [
        pa.DictionaryArray.from_arrays(
            each.indices, each.dictionary.cast(dtype.value_type), ordered=dtype.ordered
        )
        for each in column.chunks
    ]
    return pa.chunked_array(chunks, dtype)


def _checksum(path: Path) -> int:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        data = np.frombuffer(mapping, np.uint8)
        found = crc32c(data)
        del data  # The map cannot be closed while it is used.
    return found
