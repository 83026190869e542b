"""Tables in CSV files, read block by block."""

from __future__ import annotations

import bisect
import csv
import fnmatch
import io
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
from pyarrow import compute

from gigl_loader.arrays import Array, first_true
from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import Column
from gigl_loader.partition.readers import TEXT, Kind
from gigl_loader.partition.readers.arrow import kind_of, to_numpy
from gigl_loader.partition.readers.csv_source import COMMENTS, CsvSource
from gigl_loader.partition.remote_files import RemotePath
from gigl_loader.partition.sources import CsvFormat
from gigl_loader.partition.stage import file_stamp

_BLOCK_BYTES = 4 << 20
_MAX_VALUE_BYTES = 1 << 30
_IDS = ("src", "dst", "id")
_MISSING = [*pc.ConvertOptions().null_values, "\\N", "None"]
"""Values that stand for none: of numbers, and of ids."""
_NO_INTEGER_ID = r"^\s*0[0-9xX]"
_NO_INTEGER = r"^\s*0[xX]"
"""Texts of which Arrow makes integers that are other ones: 007 is no 7, and 0xffffffffffffffff no -1."""
_BEYOND_INT64 = float(1 << 63)
_WHOLE_FLOAT32 = float(1 << 24)
"""Up to here, float32 has all whole numbers."""
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


logger = logging.getLogger(__name__)


class CsvTable:
    """One CSV file, comma-separated (``.tsv``: by tabs), possibly compressed.

    A column has the type of its first 4 MiB. Decimal numbers are read as float32 unless these have one that
    loses digits, dates and timestamps as nanoseconds. Empty lines are skipped.
    """

    def __init__(
        self,
        path: Path | RemotePath,
        *,
        ids: Sequence[str] = _IDS,
        dtypes: Mapping[str, str] | None = None,
        masks: bool = False,
        form: CsvFormat = CsvFormat(),  # noqa: B008 - a frozen value
        new_name: Callable[[str], str] = str,
    ) -> None:
        """``ids`` are columns of integers or texts, with ``masks`` also of booleans. ``dtypes`` gives the
        types of columns by name or pattern. ``new_name`` gives the name by which options know a column."""
        self.name = str(path)
        self._path = path
        self._delimiter = form.delimiter_of(path)
        self._quote = form.quote
        self._given_names = list(form.columns)
        self._new_name = new_name
        self._told = self._told_headers = self._has_no_zeros = False
        self._types: dict[str, Any] = {}
        """Types by which Arrow reads the columns."""
        found = self._first()
        if len(set(found.schema.names)) != len(found.schema):
            first = ",".join(found.schema.names)
            raise FormatError(
                f"{path}: a column name occurs twice in the first line, {first!r:.200}; "
                "if that is a row, add --csv-columns NAME,..."
            )
        chosen = {name: _dtype_of(name, dtypes or {}) for name in found.schema.names}
        for field in found.schema:
            self._types[field.name] = _chosen(field, ids, chosen[field.name], masks=masks)
        self._check_delimiter()
        unasked = [name for name, dtype in chosen.items() if dtype is None]
        self._unasked_ids = [name for name in unasked if name in ids]
        self._integers = {
            name: _NO_INTEGER_ID if name in ids else _NO_INTEGER
            for name in unasked
            if pa.types.is_integer(self._types[name])
        }
        """Columns of integers that were taken for such, and what they cannot have."""
        self._read_as_texts()
        self.columns: dict[str, Kind] = {name: kind_of(dtype) for name, dtype in self._types.items()}
        # Those are read as float64, and narrowed.
        self._narrowed = [
            name
            for name in unasked
            if name not in ids
            and pa.types.is_float64(self._types[name])
            and self._loses_digits(found.column(name)) is None
        ]
        self.columns |= dict.fromkeys(self._narrowed, Column("F32"))
        for name in unasked:
            if name in ids:
                self._refuse_stray_text(name, found)
            elif pa.types.is_float64(found.schema.field(name).type):
                self._refuse_large_integers(name, found.column(name))
        self.only_row = found.slice(0, 1).to_pylist()[0] if len(found) == 1 else None

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
        array, kind = batch.column(name), self.columns[name]
        if kind == TEXT:
            missing = _MISSING if name in self._unasked_ids else ["\\N"]
            if compute.any(mask := compute.is_in(array, pa.array(missing))).as_py():
                array = compute.if_else(mask, "", array)
        if name not in self._narrowed:
            return to_numpy(array, kind, lambda row: self.where(name, first_row + row))
        if (row := self._loses_digits(array)) is not None:
            value, new = array[row].as_py(), self._new_name(name)
            raise FormatError(
                f"{self.where(name, first_row + row)}: {value!r} would be {float(np.float32(value))!r} in "
                f"float32: --dtype {new}=float64 keeps its digits, --dtype {new}=float32 does not"
            )
        return to_numpy(array, Column("F64"), str).astype(np.float32)

    @staticmethod
    def _loses_digits(array: Any) -> int | None:
        """Return the first row above 2^24 that float32, which has seven digits, cannot hold."""
        values = np.asarray(array.fill_null(0).to_numpy(zero_copy_only=False))
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32)
        changed = np.flatnonzero((np.abs(values) > _WHOLE_FLOAT32) & (narrow != values))
        return next((row for row in changed.tolist() if float(str(narrow[row])) != values[row]), None)

    def _read_as_texts(self) -> None:
        """Read columns of integers as texts if the first rows have values that are no integers."""
        if self._integers:
            first = self._first(dict.fromkeys(self._integers, pa.string()))
            for name, pattern in list(self._integers.items()):
                if compute.any(compute.match_substring_regex(first.column(name), pattern)).as_py():
                    self._types[name] = pa.string()
                    del self._integers[name]

    def _refuse_stray_text(self, name: str, first: Any) -> None:
        """Raise ``FormatError`` for a text that stands alone among the integers of the first rows.

        It is likely to be a header line, a comment, or a word for a missing value.
        """
        array = first.column(name)
        if self.columns[name] != TEXT or not pa.types.is_string(array.type):
            return
        is_integer = compute.match_substring_regex(array, r"^\s*[-+]?\d+\s*$")
        strays = {*compute.unique(array.filter(compute.invert(is_integer))).to_pylist()} - {*_MISSING}
        if len(strays) != 1 or not compute.any(is_integer).as_py():
            return
        [stray] = strays
        row, count = compute.index(array, stray).as_py(), compute.sum(is_integer).as_py()
        is_header = row == 0 and bool(self._given_names)
        if is_header or stray.encode()[:1] in COMMENTS or count >= 2 * (len(array) - count):
            raise FormatError(
                f"{self.where(name, row)}: {stray!r:.200} among integers: "
                f"correct it, or read all as texts (--dtype {self._new_name(name)}=text)"
            )

    def _refuse_large_integers(self, name: str, array: Any) -> None:
        """Raise ``FormatError`` for integers beyond int64 in the first rows: Arrow reads decimals."""
        largest = compute.max(compute.abs(array)).as_py()
        if largest is None or not largest >= _BEYOND_INT64:
            return
        texts = self._first({name: pa.string()}).column(name)
        is_integer = compute.match_substring_regex(texts, r"^\s*-?\d{19,}\s*$")
        if (row := first_true(is_integer.to_numpy(zero_copy_only=False))) is not None:
            new = self._new_name(name)
            raise FormatError(
                f"{self.where(name, row)}: {texts[row].as_py():.100} does not fit in int64: leave the "
                f"column out (--drop {name}), or round it (--dtype {new}=float64)"
            )

    def _refuse_zeros(self) -> None:
        """Raise ``FormatError`` for the first value of columns of integers that is another integer."""
        row = 0
        for block in self._batches(list(self._integers), dict.fromkeys(self._integers, pa.string())):
            for name, pattern in self._integers.items():
                mask = compute.match_substring_regex(block.column(name), pattern)
                if (at := first_true(mask.to_numpy(zero_copy_only=False))) is not None:
                    raise FormatError(
                        f"{self.where(name, row + at)}: {block.column(name)[at].as_py()!r} among integers: "
                        f"--dtype {self._new_name(name)}=text reads all as texts"
                    )
            row += len(block)

    def _first(self, types: Mapping[str, Any] | None = None) -> Any:
        """Return the rows of the first 4 MiB: all columns, or some of given types."""
        with self._source() as source, self._open(list(types or ()) or None, source, types) as reader:
            batch = self._next(reader)
            if not self._told and source.num_comments:
                self._told = True
                logger.warning("%s: left out %d lines of comments at the top", self.name, source.num_comments)
            return reader.schema.empty_table() if batch is None else batch

    def _batches(self, names: Sequence[str], types: Mapping[str, Any] | None = None) -> Iterator[Any]:
        finds_zeros = types is None and bool(self._integers) and not self._has_no_zeros
        with (
            self._source(finds_zeros=finds_zeros) as source,
            self._open(names, source, types or self._types) as reader,
        ):
            while (batch := self._next(reader)) is not None:
                yield batch
            if source.num_quotes % 2:
                self._check_closed()
            if source.has_zeros:
                self._refuse_zeros()
            self._has_no_zeros |= finds_zeros
            if source.num_headers and types is None and not self._told_headers:
                self._told_headers = True
                logger.warning("%s: left out %d header lines that came again", self.name, source.num_headers)

    @contextmanager
    def _source(self, *, finds_zeros: bool = False) -> Iterator[CsvSource]:
        if isinstance(self._path, Path) and not self._path.exists():
            raise FileNotFoundError(2, "no such file", self.name)
        try:
            path = self._path
            stream = pa.input_stream(self.name) if isinstance(path, Path) else path.open_stream()
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{self.name}: cannot be read: {error}") from None
        with stream:
            yield CsvSource(
                stream,
                delimiter=self._delimiter,
                quote=self._quote,
                names=self._given_names,
                finds_zeros=finds_zeros,
            )

    def _next(self, reader: Any) -> Any:
        try:
            return reader.read_next_batch()
        except StopIteration:
            return None
        except (pa.ArrowException, OSError) as error:
            if "\n" in str(error):  # A value of several lines: has it swallowed them?
                self._check_closed()
            raise FormatError(self._explained(error)) from None

    def _open(self, names: Sequence[str] | None, source: CsvSource, types: Mapping[str, Any] | None) -> Any:
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
                    column_types=dict(types) if types else None,
                    include_columns=None if names is None else list(names),
                    null_values=_MISSING,
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
        if not self._given_names and "Expected" in text:
            with self._source() as source:
                if source.read(1 << 16).lstrip()[:1] in COMMENTS:
                    return (
                        f"{self.name}: comments at the top are left out where --csv-columns names the columns"
                    )
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
            with (
                self._source() as source,
                io.TextIOWrapper(io.BufferedReader(source), "utf-8", "replace", "") as text,
            ):
                yield csv.reader(text, delimiter=self._delimiter, **options)
        finally:
            csv.field_size_limit(limit)


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
    return field.type
