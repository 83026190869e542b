"""Tables in CSV files, read block by block."""

from __future__ import annotations

import bisect
import csv
import fnmatch
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc

from gigl_loader.arrays import Array
from gigl_loader.errors import FormatError
from gigl_loader.partition.readers import TEXT, Kind
from gigl_loader.partition.readers.arrow import kind_of, to_numpy
from gigl_loader.partition.remote_files import RemotePath
from gigl_loader.partition.sources import CsvFormat
from gigl_loader.partition.stage import file_stamp

_BLOCK_BYTES = 4 << 20
_MAX_VALUE_BYTES = 1 << 30
_IDS = ("src", "dst", "id")
_TYPES = {
    "F32": pa.float32(),
    "F64": pa.float64(),
    "I8": pa.int8(),
    "I16": pa.int16(),
    "I32": pa.int32(),
    "I64": pa.int64(),
    "U8": pa.uint8(),
    "U16": pa.uint16(),
    "U32": pa.uint32(),
    "U64": pa.uint64(),
    "BOOL": pa.bool_(),
    "TEXT": pa.string(),
}


class CsvTable:
    """One CSV file, comma-separated (``.tsv``: by tabs), possibly compressed.

    A column has the type of its first 4 MiB. Decimal numbers are read as float32, dates and timestamps as
    nanoseconds. Empty lines are skipped.
    """

    def __init__(
        self,
        path: Path | RemotePath,
        *,
        ids: Sequence[str] = _IDS,
        dtypes: Mapping[str, str] | None = None,
        masks: bool = False,
        form: CsvFormat = CsvFormat(),  # noqa: B008 - a frozen value
    ) -> None:
        """``ids`` are columns of integers or texts, with ``masks`` also of booleans. ``dtypes`` gives the
        types of columns by name or pattern."""
        self.name = str(path)
        self._path = path
        self._delimiter = form.delimiter_of(path)
        self._quote = form.quote
        self._given_names = list(form.columns)
        self._types: dict[str, Any] = {}
        found = self._schema()
        for field in found:
            self._types[field.name] = _chosen(field, ids, _dtype_of(field.name, dtypes or {}), masks=masks)
        if len(self._types) != len(found):
            first = ",".join(field.name for field in found)
            raise FormatError(
                f"{path}: a column name occurs twice in the first line, {first!r:.200}; "
                "if that is a row, add --csv-columns NAME,..."
            )
        self._check_delimiter()
        self.columns: dict[str, Kind] = {name: kind_of(dtype) for name, dtype in self._types.items()}

    @cached_property
    def num_rows(self) -> int:
        """The number of rows. Counting them reads the whole file."""
        return sum(len(batch) for batch in self._batches(list(self.columns)[:1]))

    @property
    def stamp(self) -> object:
        return file_stamp(self._path)

    @property
    def header(self) -> list[str]:
        """Names that the first line gives; none where the names were given."""
        return [] if self._given_names else list(self.columns)

    @cached_property
    def repeats_header(self) -> bool:
        """Whether a column has its name among the texts of its first 4 MiB."""
        texts = [name for name in self.header if self.columns[name] == TEXT]
        first = next(self._batches(texts), None) if texts else None
        return first is not None and any(name in first.column(name).to_pylist() for name in texts)

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        row = 0
        for block in self._batches(names):
            for start in range(0, len(block), rows):
                batch = block.slice(start, rows)
                yield {name: self._column(batch, name, row) for name in names}
                row += len(batch)

    def where(self, column: str, row: int) -> str:
        return f"{self.name}, line {self._line(row + (not self._given_names))}, column {column!r}"

    def _check_delimiter(self) -> None:
        """Raise ``FormatError`` where the header looks like one of another delimiter."""
        [name, *others] = self._types or [""]
        found = next((mark for mark in ";\t|," if mark in name), None)
        if not others and found is not None:
            shown = "tab" if found == "\t" else f"'{found}'"
            raise FormatError(
                f"{self.name}: one column, {name!r}: give its delimiter, --csv-delimiter {shown}"
            )

    def _column(self, batch: Any, name: str, first_row: int) -> Array:
        return to_numpy(batch.column(name), self.columns[name], lambda row: self.where(name, first_row + row))

    def _schema(self) -> Any:
        with self._source() as source, self._open(None, source) as reader:
            return reader.schema

    def _batches(self, names: Sequence[str]) -> Iterator[Any]:
        with self._source() as source, self._open(names, source) as reader:
            while (batch := self._next(reader)) is not None:
                yield batch
            if source.num_quotes % 2:
                self._check_closed()

    @contextmanager
    def _source(self) -> Iterator[_Source]:
        if isinstance(self._path, Path) and not self._path.exists():
            raise FileNotFoundError(2, "no such file", self.name)
        try:
            path = self._path
            stream = pa.input_stream(self.name) if isinstance(path, Path) else path.open_stream()
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{self.name}: cannot be read: {error}") from None
        with stream:
            yield _Source(stream, self._quote.encode())

    def _next(self, reader: Any) -> Any:
        try:
            return reader.read_next_batch()
        except StopIteration:
            return None
        except (pa.ArrowException, OSError) as error:
            if "\n" in str(error):  # A value of several lines: has it swallowed them?
                self._check_closed()
            raise FormatError(self._explained(error)) from None

    def _open(self, names: Sequence[str] | None, source: _Source) -> Any:
        try:
            return pc.open_csv(
                pa.PythonFile(source, mode="r"),
                read_options=pc.ReadOptions(
                    use_threads=False, block_size=_BLOCK_BYTES, column_names=self._given_names
                ),
                parse_options=pc.ParseOptions(
                    delimiter=self._delimiter,
                    quote_char=self._quote or False,
                    newlines_in_values=bool(self._quote),
                ),
                convert_options=pc.ConvertOptions(
                    column_types=self._types or None, include_columns=None if names is None else list(names)
                ),
            )
        except (pa.ArrowException, OSError) as error:
            if "\n" in str(error):
                self._check_closed()
            raise FormatError(self._explained(error)) from None

    def _explained(self, error: Exception) -> str:
        text = " ".join(str(error).split())
        if "straddling" in text:
            return f"{self.name}: a quote that is not closed, or a row of more than {_BLOCK_BYTES >> 20} MiB"
        found = re.search(r"Row #(\d+): (.*)", text)
        if found is None:
            return f"{self.name}: {text:.500}"
        place = f"{self.name}, line {self._line(int(found[1]) - 1)}"
        column = re.search(r"CSV column #(\d+)", text)
        if column is None:
            return f"{place}: {found[2]:.500}"
        name = list(self.columns)[int(column[1])]
        return f"{place}, column {name!r}: {found[2]:.500} (the type of the rows before it)"

    def _line(self, record: int) -> int:
        """Return the line, from 1, in which a record begins. Record 0 is the header, if there is one."""
        at = bisect.bisect_right(self._shifts, record, key=lambda shift: shift[0])
        return record + 1 + (self._shifts[at - 1][1] if at else 0)

    @cached_property
    def _shifts(self) -> list[tuple[int, int]]:
        """Records from which on more lines than records lie before them, and how many. Reads the whole file.

        Empty lines are no records, and a quoted value may have several lines.
        """
        shifts: list[tuple[int, int]] = []
        record = shift = line = 0
        with suppress(csv.Error), self._records() as records:  # What was found so far is better than nothing.
            for values in records:
                if values:
                    if line - record > shift:
                        shift = line - record
                        shifts.append((record, shift))
                    record += 1
                line = records.line_num
        return shifts

    def _check_closed(self) -> None:
        """Raise ``FormatError`` if the file ends within a quoted value: it has swallowed what follows it."""
        line = 0
        with self._records(strict=True) as records:
            try:
                for _ in records:
                    line = records.line_num
            except csv.Error as error:
                if "unexpected end of data" in str(error):
                    raise FormatError(f"{self.name}, line {line + 1}: a quote that is not closed") from None

    @contextmanager
    def _records(self, *, strict: bool = False) -> Iterator[Any]:
        """Lend a reader of the records by Python's parser, which knows the lines, and is slow."""
        quoting: Any = csv.QUOTE_MINIMAL if self._quote else csv.QUOTE_NONE
        options: dict[str, Any] = {"quotechar": self._quote or None, "quoting": quoting, "strict": strict}
        limit = csv.field_size_limit(_MAX_VALUE_BYTES)
        try:
            with self._source() as source, io.TextIOWrapper(source.stream, "utf-8", "replace", "") as text:
                yield csv.reader(text, delimiter=self._delimiter, **options)
        finally:
            csv.field_size_limit(limit)


class _Source:
    """A file as bytes, which counts the quotes that pass."""

    def __init__(self, stream: Any, quote: bytes) -> None:
        self.stream = stream
        self.num_quotes = 0
        self.closed = False
        self._quote = quote

    def read(self, nbytes: int = -1) -> bytes:
        data: bytes = self.stream.read(None if nbytes < 0 else nbytes)
        if self._quote:
            self.num_quotes += data.count(self._quote)
        return data

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


def _is_number(dtype: Any) -> bool:
    return bool(pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_null(dtype))


def _dtype_of(name: str, dtypes: Mapping[str, str]) -> str | None:
    """Return the dtype of a column, by its name or else the first pattern that it matches."""
    matching = (dtype for pattern, dtype in dtypes.items() if fnmatch.fnmatchcase(name, pattern))
    return dtypes.get(name) or next(matching, None)


def _chosen(field: Any, ids: Sequence[str], dtype: str | None, *, masks: bool) -> Any:
    """Return the type to read a column with, given the type that its first rows look like."""
    if dtype is not None:
        return _TYPES.get(dtype, field.type)
    if field.name in ids:
        if masks and pa.types.is_boolean(field.type):
            return field.type
        # Decimals may be integers, up to 2^53, as pandas writes them where some are missing.
        number = pa.float64() if pa.types.is_floating(field.type) else pa.int64()
        return number if _is_number(field.type) else pa.string()
    if field.name == "split" and not pa.types.is_integer(field.type):
        return pa.string()
    if pa.types.is_timestamp(field.type) or pa.types.is_date(field.type):
        return pa.timestamp("ns", tz=getattr(field.type, "tz", None))
    return pa.float32() if pa.types.is_float64(field.type) else field.type
