"""Tables in Parquet files, read batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gigl_loader.arrays import Array
from gigl_loader.errors import FormatError
from gigl_loader.partition.readers import Kind
from gigl_loader.partition.readers.arrow import is_ragged, kind_of, to_numpy
from gigl_loader.partition.readers.shards import file_stamp
from gigl_loader.partition.remote_files import RemotePath

_BUFFER_BYTES = 1 << 20
_FIRST_ROWS = 1024
"""Read at once in search of the first list of a column."""


class ParquetTable:
    """One Parquet file. Memory is a batch and the pages being decoded, not a row group."""

    read_as = "Parquet"
    """How the table is read, for people."""

    def __init__(self, path: Path | RemotePath) -> None:
        self.name = str(path)
        self._path = path
        with self._open() as file:
            self._groups = range(file.metadata.num_row_groups)
            self._group_rows = [file.metadata.row_group(group).num_rows for group in self._groups]
            self._first_row = 0
            self.num_rows: int = file.metadata.num_rows
            schema = file.schema_arrow
            self.columns: dict[str, Kind] = {
                field.name: kind_of(field.type, self._width(file, field)) for field in schema
            }
            leaves = [file.schema.column(at) for at in range(len(file.schema))]
            self._old_times = [
                each.path for each in leaves if each.physical_type == "INT96" and each.path in self.columns
            ]
        if len(self.columns) != len(schema):
            raise FormatError(f"{path}: a column name occurs twice")

    @property
    def stamp(self) -> object:
        return file_stamp(self._path)

    def shards(self, rows: int) -> list[ParquetTable]:
        """Return shards of whole row groups."""
        found, begin, size = [], self._groups.start, 0
        for group in self._groups:
            size += self._group_rows[group]
            if size >= rows or group == self._groups[-1]:
                found.append(self._span(range(begin, group + 1)))
                begin, size = group + 1, 0
        return found or [self]

    def _span(self, groups: range) -> ParquetTable:
        shard = copy(self)
        shard._groups = groups
        shard._first_row = sum(self._group_rows[: groups.start])
        shard.num_rows = sum(self._group_rows[groups.start : groups.stop])
        return shard

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        self._check_old_times([name for name in self._old_times if name in names], rows)
        row = 0
        with self._open() as file:
            for batch in self._batches(file, names, rows):
                yield {name: self._column(batch, name, row) for name in names}
                row += len(batch)

    def where(self, column: str, row: int) -> str:
        return f"{self.name}, column {column!r}, row {self._first_row + row}"

    def _check_old_times(self, names: Sequence[str], rows: int) -> None:
        """Raise ``FormatError`` for a time (INT96) beyond nanoseconds. Arrow reads it as another one then."""
        row = 0
        with self._open(int96_unit="us") as file:
            for batch in self._batches(file, names, rows) if names else ():
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

    def _batches(self, file: Any, names: Sequence[str], rows: int) -> Iterator[Any]:
        try:
            yield from file.iter_batches(rows, list(self._groups), list(names), use_threads=False)
        except (pa.ArrowInvalid, pa.ArrowException, OSError) as error:
            raise FormatError(f"{self.name}: cannot be read: {error}") from None

    def _column(self, batch: Any, name: str, first_row: int) -> Array:
        return to_numpy(batch.column(name), self.columns[name], lambda row: self.where(name, first_row + row))

    def _width(self, file: Any, field: Any) -> int:
        """Return the length of the lists in a column: that of the first one."""
        if not is_ragged(field.type) or self.num_rows == 0:
            return 0
        for batch in self._batches(file, [field.name], _FIRST_ROWS):
            lists = batch.column(0).drop_null()
            if len(lists):
                return len(lists[0])
        return 0
