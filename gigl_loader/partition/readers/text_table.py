"""Text files as tables: read by DuckDB as texts, of which columns are made that lose nothing unasked."""

from __future__ import annotations

import bisect
import codecs
import io
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from csv import Error as CsvError
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import Column
from gigl_loader.partition.readers import TEXT, Kind, NewColumn, file_stamp
from gigl_loader.partition.readers.column_types import (
    INTEGER,
    MARK,
    MISSING,
    TextColumn,
    column_of,
    said,
)
from gigl_loader.partition.readers.sql_table import (
    SqlTable,
    alias,
    connected,
    literal,
    read_all,
    shortened,
    sql_errors,
)
from gigl_loader.partition.readers.text_format import (
    BLANKS,
    COMMENTS,
    UNREADABLE,
    CsvFormat,
    encoding_of,
    layout_of,
    only_integers,
    open_bytes,
)
from gigl_loader.partition.remote_files import RemotePath
from gigl_loader.tensors import STORAGE_DTYPES

_PIECE_BYTES = 1 << 20
_BUFFER_BYTES = 16 << 20
_MAX_LINE_BYTES = 8 << 20
_QUERY_MEMORY = 256 << 20
_COMPARED = 64
"""Names that tell a header line from a row."""
_IDS = ("src", "dst", "id")

logger = logging.getLogger(__name__)

_HEADER = "gigl-loader: the header again"
_NAMES = {name: str(dtype) for name, dtype in STORAGE_DTYPES.items()}
_BEYOND_INT64 = r"^\s*[-+]?\d{19,}\s*$"


class TextTable(SqlTable):
    """One text file with a row in each line. The first 4 MiB say how it is laid out, and what columns hold.

    Decimal numbers are read as float32 unless these have one that loses digits, dates and timestamps as
    nanoseconds. Empty lines are skipped. A later value that would become another one is refused.
    """

    def __init__(
        self,
        path: Path | RemotePath,
        *,
        columns_of: Callable[[Sequence[str]], Mapping[str, NewColumn]],
        masks: bool = False,
        form: CsvFormat = CsvFormat(),  # noqa: B008 - a frozen value
    ) -> None:
        """``columns_of`` returns what becomes of the columns with the given names. Ids and ends are read as
        integers or texts, with ``masks`` also as booleans."""
        self.name = str(path)
        self._path = path
        self._form = form
        self.layout = layout_of(path, form)
        self._new = columns_of(self.layout.names)
        self._columns: dict[str, TextColumn] = {}
        self._piped = self._must_be_piped()
        self._knows_headers = self._is_plain = False
        self.columns: dict[str, Kind] = dict.fromkeys(self.layout.names, TEXT)
        if self.layout.num_comments:
            count = self.layout.num_comments
            logger.warning("%s: left out %d lines of comments at the top", self.name, count)
        sample = self._sample()
        for at, name in enumerate(self.layout.names):
            self._columns[name] = column_of(
                sample.column(at),
                is_id=self._new[name].name in _IDS,
                name=name,
                dtype=self._new[name].dtype,
                masks=masks,
            )
        self.columns = {name: each.kind for name, each in self._columns.items()}
        self._text_bytes = sample.nbytes // max(len(sample), 1)
        for at, (name, each) in enumerate(self._columns.items()):
            if not each.asked and each.is_id:
                self._refuse_stray_text(name, sample.column(at))
                self._refuse_comments(name, sample.column(at))
            elif not each.asked and each.reading in ("decimal", "text"):
                self._refuse_large_integers(name, sample.column(at))
        row = {name: sample.column(at) for at, name in enumerate(self.columns)}
        self.only_row = {name: each[0].as_py() for name, each in row.items()} if len(sample) == 1 else None
        self.repeats_header = any(
            compute.any(compute.equal(row[name], name)).as_py()
            for name, kind in self.columns.items()
            if kind == TEXT and self.header
        )

    @property
    def stamp(self) -> object:
        return file_stamp(self._path)

    @property
    def header(self) -> list[str]:
        """Names that a line of the file gives; none where the names were given."""
        return list(self.layout.header)

    @property
    def id_columns(self) -> list[str]:
        """Columns that are ids or ends, as the file names them."""
        return [name for name, new in self._new.items() if new.name in _IDS]

    @property
    def read_as(self) -> str:
        """How the file is read, for people."""
        names = {",": "comma", "\t": "tab", BLANKS: "blanks", ";": "semicolon", "|": "bar"}
        delimiter = names.get(self.layout.delimiter, repr(self.layout.delimiter))
        return f"text, {delimiter}" if len(self.columns) > 1 else "text"

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return file_stamp(self._path)[1]

    def where(self, column: str, row: int) -> str:
        return f"{self.name}, line {self._line(row)}, column {column!r}"

    def convert(self, path: Path, *, memory_bytes: int, threads: int) -> None:
        self._is_plain = not self._piped and self.layout.compression is None and self._has_plain_integers()
        super().convert(path, memory_bytes=memory_bytes, threads=threads)

    def _has_plain_integers(self) -> bool:
        """Whether all values are integers by their characters, which DuckDB then need not check."""
        delimiter = self.layout.delimiter
        if {(each.reading, each.kind) for each in self._columns.values()} != {("integer", Column("I64"))}:
            return False
        with open_bytes(self._path) as file:
            for _ in range(self.layout.skipped):
                file.readline()
            return len(delimiter) == 1 and only_integers(file, delimiter.encode())

    @contextmanager
    def _selecting(self, names: Sequence[str]) -> Iterator[str]:
        places = {name: at for at, name in enumerate(self._columns)}
        values = {
            name: f"CAST(c{at} AS BIGINT)" if self._is_plain else self._columns[name].sql(f"c{at}", at)
            for name, at in places.items()
        }
        chosen = [f"{values[name]} AS {alias(at)}" for at, name in enumerate(names)]
        with self._source() as source:
            yield f"SELECT {', '.join(chosen) or '1'} FROM {source}"

    @contextmanager
    def _source(self, where: str | None = None) -> Iterator[str]:
        """Lend what to select texts ``c0``, ``c1``, ... from: the rows of the file, or those ``where``."""
        layout = self.layout
        with self._location() as (path, skipped):
            columns = ", ".join(f"'c{at}': 'VARCHAR'" for at in range(len(layout.names)))
            compression = "none" if self._piped else layout.compression or "none"
            delimiter = " " if layout.delimiter == BLANKS else layout.delimiter
            read = (
                f"read_csv({literal(path)}, auto_detect = false, columns = {{{columns}}}, header = false, "
                f"skip = {skipped}, delim = {literal(delimiter)}, quote = {literal(layout.quote)}, "
                f"escape = {literal(layout.quote)}, compression = '{compression}', "
                f"buffer_size = {_BUFFER_BYTES}, max_line_size = {_MAX_LINE_BYTES})"
            )
            yield f"{read} WHERE {where or self._is_row()}"

    def _is_row(self) -> str:
        """Return the condition in SQL on rows: no header line that comes again, and no empty line."""
        again, filled = self._is_header(), "c0 IS NOT NULL" if len(self.layout.names) == 1 else "true"
        if self._is_plain:
            return filled
        if self._knows_headers:
            return f"({again}) IS NOT TRUE AND {filled}"
        return f"CASE WHEN {again} THEN error({literal(_HEADER)}) ELSE {filled} END"

    def _is_header(self) -> str:
        names = enumerate(self.layout.names[:_COMPARED])
        return " AND ".join(f"c{at} = {literal(name)}" for at, name in names)

    def _must_be_piped(self) -> bool:
        """Whether this process prepares the bytes that DuckDB reads."""
        layout = self.layout
        return (
            not isinstance(self._path, Path)
            or layout.compression in ("bz2", "xz")
            or layout.has_returns
            or layout.delimiter == BLANKS
            or layout.num_comments > 0
            or encoding_of(b"", self._form) != "utf-8-sig"
            or layout.is_utf16
        )

    @contextmanager
    def _location(self) -> Iterator[tuple[str, int]]:
        """Lend the path that DuckDB reads, and the number of lines to skip there."""
        if not self._piped:
            yield self.name, self.layout.skipped
            return
        reading, writing = os.pipe()
        failures: list[Exception] = []
        thread = threading.Thread(target=self._feed, args=(writing, failures), daemon=True)
        thread.start()
        try:
            yield f"/dev/fd/{reading}", 0
        finally:
            os.close(reading)
            thread.join()
        if failures:
            raise failures[0]

    def _feed(self, writing: int, failures: list[Exception]) -> None:
        """Write the rows as UTF-8 with plain line ends."""
        try:
            with os.fdopen(writing, "wb", buffering=0) as out:
                for piece in self._pieces():
                    out.write(piece)
        except BrokenPipeError:
            pass  # DuckDB has read enough.
        except (*UNREADABLE, UnicodeDecodeError, pa.ArrowException) as error:
            failures.append(FormatError(f"{self.name}: cannot be read: {error}"))

    def _pieces(self) -> Iterator[bytes]:
        skipped, rest = self.layout.skipped, b""
        for text in self._texts():
            data = rest + text.encode()
            cut = data.rfind(b"\n") + 1
            data, rest = data[:cut], data[cut:]
            while skipped and data:
                data = data.partition(b"\n")[2]
                skipped -= 1
            yield self._prepared(data)
        if rest and not skipped:
            yield self._prepared(rest + b"\n")

    def _prepared(self, lines: bytes) -> bytes:
        if self.layout.delimiter != BLANKS:
            return lines
        if self.layout.quote.encode() in lines and self.layout.quote:
            quote = re.escape(self.layout.quote.encode())
            blanks = re.compile(rb"(" + quote + rb"[^\n" + quote + rb"]*" + quote + rb")|[ \t]+")
            lines = blanks.sub(lambda found: found[1] or b" ", lines)
        else:
            lines = re.sub(rb"[ \t]+", b" ", lines)
        return re.sub(rb"(?m)^ | $", b"", lines)

    def _texts(self) -> Iterator[str]:
        """Yield the whole file, decoded, with plain line ends."""
        with open_bytes(self._path) as file:
            piece = file.read(_PIECE_BYTES)
            decoder = codecs.getincrementaldecoder(encoding_of(piece, self._form))()
            ends = io.IncrementalNewlineDecoder(decoder, translate=True)
            while piece:
                yield ends.decode(piece)
                piece = file.read(_PIECE_BYTES)
            yield ends.decode(b"", final=True)

    def _sample(self) -> Any:
        """Return the rows of the first 4 MiB, as texts."""
        texts = ", ".join(f"c{at}" for at in range(len(self.layout.names)))
        while True:
            found = self._fetched(f"SELECT {texts} FROM {{}} LIMIT {self.layout.head_rows}")
            if not isinstance(found, Exception):
                return found
            self._raise(found)

    def _fetched(self, query: str, where: str | None = None) -> Any:
        """Return the rows of a query, or its error. ``{}`` stands for the rows of the file."""
        with (
            self._source(where) as source,
            connected(
                memory_bytes=_QUERY_MEMORY, threads=1, temporary=None, columns=len(self.layout.names)
            ) as connection,
        ):
            try:
                return read_all(connection.sql(query.replace("{}", source)))
            except sql_errors() as error:
                return error

    def _explained(self, error: Exception) -> Exception | None:
        text = str(error)
        if self._is_plain:
            self._is_plain = False
            return None
        if _HEADER in text:
            self._knows_headers = True
            count = self._fetched(f"SELECT count(*) AS n FROM {{}} AND ({self._is_header()})", where="true")
            logger.warning(
                "%s: left out %d header lines that came again", self.name, count.column(0)[0].as_py()
            )
            return None
        if found := re.search(rf"{MARK} (\d+)", text):
            return self._explained_value(int(found[1]))
        if (fault := self._fault_of_lines()) is not None:
            return fault
        if not self._piped:
            self._piped = True  # Line ends of several kinds, or several blanks, which this process mends.
            return None
        return FormatError(f"{self.name}: {shortened(error)}")

    def _explained_value(self, place: int) -> Exception:
        """Return a refusal that names the first value that does not fit its column."""
        name, column = list(self._columns.items())[place]
        query = (
            f"SELECT row, text FROM (SELECT row_number() OVER () - 1 AS row, c{place} AS text FROM {{}}) "
            f"WHERE {column.does_not_fit('text')} LIMIT 1"
        )
        found = self._fetched(query, where=f"({self._is_header()}) IS NOT TRUE")
        if isinstance(found, Exception) or not len(found):
            return FormatError(f"{self.name}, column {name!r}: a value is no {said(column)}")
        row, text = found.column(0)[0].as_py(), found.column(1)[0].as_py()
        return FormatError(f"{self.where(name, row)}: {self._mismatch(name, column, text)}")

    def _mismatch(self, name: str, column: TextColumn, text: str) -> str:
        """Return why a text does not fit its column, and what helps."""
        new, shown = self._new[name].name, f"{text!r:.100}"
        is_number = re.fullmatch(INTEGER, text) is not None
        if column.reading == "narrow" and _is_decimal(text):
            narrow = float(np.float32(float(text)))
            return (
                f"{text.strip()} would be {narrow} in float32: --dtype {new}=float64 keeps its digits, "
                f"--dtype {new}=float32 does not"
            )
        if column.reading in ("time", "zoned") and re.match(r"\s*\d{4}-", text):
            what = "is no date, or lies outside 1677 to 2262, the range of nanoseconds in int64"
            return f"{text.strip()} {what}: leave the column out, or store a number (seconds, days)"
        if column.reading != "integer":
            return f"{shown} is no {said(column)} (the type of the rows before it)"
        if column.is_id and not column.asked:
            return f"{shown} among integers: --dtype {new}=text reads all as texts"
        if is_number:
            dtype = str(column.kind.dtype if isinstance(column.kind, Column) else column.kind)
            return f"{text.strip():.100} does not fit in {_NAMES[dtype]}: {self._advice_of_large(name)}"
        advice = f": --dtype {new}=float64" if _is_decimal(text) and not column.is_id else ""
        return f"{shown} is no integer (the type of the rows before it){advice}"

    def _advice_of_large(self, name: str) -> str:
        return f"leave the column out (--drop {name}), or round it (--dtype {self._new[name].name}=float64)"

    def _refuse_stray_text(self, name: str, texts: Any) -> None:
        """Raise ``FormatError`` for a text that stands alone among the integers of the first rows.

        It is likely to be a header line, a comment, or a word for a missing value.
        """
        if self.columns[name] != TEXT:
            return
        is_integer = compute.match_substring_regex(texts, f"^({INTEGER})$")
        strays = {*compute.unique(texts.filter(compute.invert(is_integer))).to_pylist()} - {*MISSING}
        if len(strays) != 1 or not compute.any(is_integer).as_py():
            return
        [stray] = strays
        row, count = compute.index(texts, stray).as_py(), compute.sum(is_integer).as_py()
        is_header = row == 0 and not self.header
        if is_header or stray[0] in COMMENTS or count >= 2 * (len(texts) - count):
            raise FormatError(
                f"{self.where(name, row)}: {stray!r:.200} among integers: "
                f"correct it, or read all as texts (--dtype {self._new[name].name}=text)"
            )

    def _refuse_comments(self, name: str, texts: Any) -> None:
        """Raise ``FormatError`` for a line among texts that looks like a comment."""
        is_comment = compute.match_substring_regex(texts, r"^[#%]\s").fill_null(False)
        if (
            self.columns[name] == TEXT
            and compute.any(is_comment).as_py()
            and not compute.all(is_comment).as_py()
        ):
            row = compute.index(is_comment, True).as_py()
            raise FormatError(
                f"{self.where(name, row)}: {texts[row].as_py()!r:.200} looks like a comment: leave it out, "
                f"or read all as texts (--dtype {self._new[name].name}=text)"
            )

    def _refuse_large_integers(self, name: str, texts: Any) -> None:
        """Raise ``FormatError`` for integers beyond int64 among the numbers of the first rows."""
        is_large = compute.match_substring_regex(texts, _BEYOND_INT64).fill_null(False)
        if not compute.any(is_large).as_py():
            return
        present = compute.invert(compute.is_in(texts, pa.array(MISSING)))
        if not compute.all(compute.match_substring_regex(texts.filter(present), r"^[-+.eE\d\s]*$")).as_py():
            return
        for row in np.flatnonzero(is_large.to_numpy(zero_copy_only=False)).tolist():
            if abs(int(text := texts[row].as_py())) >= 1 << 63:
                raise FormatError(
                    f"{self.where(name, row)}: {text.strip():.100} does not fit in int64: "
                    f"{self._advice_of_large(name)}"
                )

    def _fault_of_lines(self) -> FormatError | None:
        """Return the first line that is not as long as the others, or no text, or begins an open quote."""
        width = len(self.layout.names)
        line = self.layout.skipped
        with self._records(strict=True) as records:
            try:
                for values in records:
                    if values and len(values) != width and (len(values), values[-1]) != (width + 1, ""):
                        what = f"{len(values)} value{'s' * (len(values) != 1)} of {width} columns"
                        return FormatError(f"{self.name}, line {line + 1}: {what}")
                    line = self.layout.skipped + records.line_num
            except CsvError as error:
                open_quote = "unexpected end of data" in str(error)
                what = "a quote that is not closed" if open_quote else f"{error}"
                return FormatError(
                    f"{self.name}, line {line + 1}: {what} (--csv-quote none reads it as it is)"
                )
            except UnicodeDecodeError:
                what = f"no {self._form.encoding}: name the encoding, such as --csv-encoding latin-1"
                return FormatError(f"{self.name}, line {line + 1} or later: {what}")
            except UNREADABLE as error:
                return FormatError(f"{self.name}: cannot be read: {error}")
        return None

    def _line(self, row: int) -> int:
        """Return the line, from 1, in which a row begins."""
        at = bisect.bisect_right(self._shifts, row, key=lambda shift: shift[0])
        return row + 1 + (self._shifts[at - 1][1] if at else self.layout.skipped)

    @cached_property
    def _shifts(self) -> list[tuple[int, int]]:
        """Rows from which on more lines than rows lie before them, and how many. Reads the whole file.

        Empty lines and header lines are no rows, and a quoted value may have several lines.
        """
        shifts: list[tuple[int, int]] = []
        row, shift, line = 0, self.layout.skipped, self.layout.skipped
        names = list(self.layout.names)
        with suppress(CsvError, UnicodeDecodeError, *UNREADABLE), self._records() as records:
            for values in records:  # What was found so far is better than nothing.
                if values and values != names:
                    if line - row > shift:
                        shift = line - row
                        shifts.append((row, shift))
                    row += 1
                line = self.layout.skipped + records.line_num
        return shifts

    @contextmanager
    def _records(self, *, strict: bool = False) -> Iterator[Any]:
        """Lend a reader of the rows by Python's parser, which knows the lines, and is slow."""
        encoding = encoding_of(b"\xff\xfe" if self.layout.is_utf16 else b"", self._form)
        with open_bytes(self._path) as file, io.TextIOWrapper(file, encoding, newline="") as text:
            yield self.layout.split(islice(text, self.layout.skipped, None), strict=strict)


def _is_decimal(text: str) -> bool:
    try:
        return np.isfinite(float(text)) and "_" not in text
    except ValueError:
        return False
