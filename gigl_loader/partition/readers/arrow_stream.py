"""Streams of Arrow record batches (DuckDB, Polars, ADBC, Hugging Face datasets, ...) as tables."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from gigl_loader.errors import FormatError
from gigl_loader.native import crc32c
from gigl_loader.partition.readers.parquet_table import ParquetTable

_GROUP_BYTES = 32 << 20  # Of a row group: the least that a task reads, and the most that is held here.


class ArrowStreamTable(ParquetTable):
    """Rows of a stream. Builds read a table several times, in several processes, and a stream can be read
    once: it is written to a temporary Parquet file, in bounded memory.

    The file is removed when the table and its shards are collected.
    """

    read_as = "stream"
    """How the table is read, for people."""

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

    def _span(self, groups: range) -> ParquetTable:
        shard = super()._span(groups)
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
    try:
        if isinstance(stream, ds.Dataset):
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
