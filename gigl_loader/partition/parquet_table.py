"""Tables in Parquet files, read batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gigl_loader.arrays import Array
from gigl_loader.errors import FormatError
from gigl_loader.partition.arrow import is_ragged, kind_of, to_numpy
from gigl_loader.partition.table import Kind

__all__ = ["ParquetTable"]


_BUFFER_BYTES = 1 << 20


class ParquetTable:
    """One Parquet file. Memory is a batch and the pages being decoded, not a row group."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        with self._open() as file:
            self.num_rows: int = file.metadata.num_rows
            schema = file.schema_arrow
            self.columns: dict[str, Kind] = {
                field.name: kind_of(field.type, self._width(file, field)) for field in schema
            }
        if len(self.columns) != len(schema):
            raise FormatError(f"{path}: a column name occurs twice")

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        row = 0
        with self._open() as file:
            for batch in self._batches(file, names, rows):
                yield {name: self._column(batch, name, row) for name in names}
                row += len(batch)

    def where(self, column: str, row: int) -> str:
        return f"{self.name}, column {column!r}, row {row}"

    def _open(self) -> Any:
        try:
            return pq.ParquetFile(self._path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        except (pa.ArrowInvalid, pa.ArrowException) as error:
            raise FormatError(f"{self.name}: not a readable Parquet file: {error}") from None

    def _batches(self, file: Any, names: Sequence[str], rows: int) -> Iterator[Any]:
        try:
            yield from file.iter_batches(batch_size=rows, columns=list(names), use_threads=False)
        except (pa.ArrowInvalid, pa.ArrowException, OSError) as error:
            raise FormatError(f"{self.name}: cannot be read: {error}") from None

    def _column(self, batch: Any, name: str, first_row: int) -> Array:
        return to_numpy(batch.column(name), self.columns[name], lambda row: self.where(name, first_row + row))

    def _width(self, file: Any, field: Any) -> int:
        """Return the length of the lists in a column: that of the first row."""
        if not is_ragged(field.type) or self.num_rows == 0:
            return 0
        batch = next(self._batches(file, [field.name], 1))
        first = batch.column(0)[0].as_py()
        return 0 if first is None else len(first)
