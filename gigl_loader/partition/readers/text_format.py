"""Format of a text file: what its first bytes say of compression, delimiter, comments and names."""

from __future__ import annotations

import codecs
import csv
import importlib
import io
import lzma
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from gigl_loader.errors import FormatError
from gigl_loader.partition.refusals import foreign_text
from gigl_loader.regular_files import open_regular

if TYPE_CHECKING:
    from gigl_loader.partition.remote_files import RemotePath

HEAD_BYTES = 4 << 20
"""Bytes that decide the format, and the types of columns."""
COMMENTS = ("#", "%")
BLANKS = " "
"""Delimiter that stands for any number of spaces and tabs."""
_DELIMITERS = (",", "\t", ";", "|", "\x01", "::", BLANKS)
_BY_ENDING = {".csv": ",", ".tsv": "\t", ".psv": "|"}
_SAMPLE_LINES = 200
_SCAN_BYTES = 1 << 18
_MAX_VALUE_BYTES = 1 << 30
_MAX_NAME = 1 << 12
"""Characters of the name of a column."""
_MAX_COLUMNS = 1 << 14
"""DuckDB needs 160 KiB of memory and 2 ms for each."""
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError)
"""Errors of files that are cut off or damaged."""
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"\xfd7zXZ": "xz"}
csv.field_size_limit(_MAX_VALUE_BYTES)


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """Characters that have a meaning in text files, and the columns of files without a header line."""

    delimiter: str | None = None
    """Between values, one to four characters. A space stands for any number of spaces and tabs.
    ``None``: what splits all lines alike."""
    quote: str = '"'
    """Around values that have delimiters or line ends in them, doubled within. Empty: no quoting."""
    columns: tuple[str, ...] = ()
    """Names of the columns, where the first line is a row. Empty: the first line names them."""
    encoding: str = "utf-8"
    """Encoding of the text, by a name that Python knows, such as ``latin-1``."""

    def __post_init__(self) -> None:
        for name, value, least, most in (("delimiter", self.delimiter, 1, 4), ("quote", self.quote, 0, 1)):
            if value is None:
                continue
            if not least <= len(value) <= most or not value.isascii() or set(value) & {"\n", "\r", "\0"}:
                wanted = "one ASCII character" if most == 1 else "one to four ASCII characters"
                raise ValueError(f"the {name} of CSV files must be {wanted}, got {value!r}")
        if self.quote and self.quote == self.delimiter:
            raise ValueError(f"the delimiter and the quote of CSV files are the same: {self.quote!r}")
        if len(set(self.columns)) < len(self.columns) or not all(self.columns or ("none",)):
            raise ValueError(f"the columns of CSV files need a name each, got {','.join(self.columns)!r}")
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise ValueError(
                f"unknown encoding {self.encoding!r}; known are latin-1, cp1252, utf-16, ..."
            ) from None


@dataclass(frozen=True, slots=True)
class TextLayout:
    """What was found out about a text file."""

    delimiter: str
    quote: str
    names: tuple[str, ...]
    """Names of all columns."""
    header: tuple[str, ...]
    """Names as a line of the file has them. Empty: none does."""
    skipped: int
    """Lines before the first row: comments, empty lines, the header."""
    num_comments: int
    compression: str | None
    has_returns: bool
    """Whether lines end in other ways than with a newline, or values have carriage returns."""
    head_rows: int
    """Rows in the first ``HEAD_BYTES``, at least."""
    is_utf16: bool

    def split(self, lines: Iterator[str] | Sequence[str], *, strict: bool = False) -> Any:
        """Return an iterator over the values of each line. It has the number of the line, ``line_num``."""
        return _split(lines, self.delimiter, self.quote, strict=strict)


class _BlankSeparated:
    """Values of lines that are separated by runs of blanks, and may be quoted, or by several characters."""

    def __init__(self, lines: Iterator[str] | Sequence[str], delimiter: str, quote: str) -> None:
        self._lines = iter(lines)
        self._delimiter = delimiter
        self._quote = quote
        self.line_num = 0

    def __iter__(self) -> _BlankSeparated:
        return self

    def __next__(self) -> list[str]:
        line = next(self._lines).rstrip("\r\n")
        self.line_num += 1
        if self._delimiter != BLANKS:
            return line.split(self._delimiter) if line else []
        if not self._quote or self._quote not in line:
            return line.split()
        line = re.sub(r"[ \t]+", " ", line.strip())
        return next(csv.reader([line], delimiter=" ", quotechar=self._quote), [])


def _split(lines: Iterator[str] | Sequence[str], delimiter: str, quote: str, *, strict: bool = False) -> Any:
    if delimiter == BLANKS or len(delimiter) > 1:
        return _BlankSeparated(lines, delimiter, quote)
    quoting: Any = csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE
    return csv.reader(lines, delimiter=delimiter, quotechar=quote or None, quoting=quoting, strict=strict)


def open_bytes(path: Path | RemotePath) -> BinaryIO:
    """Open a text file, decompressed. ``FormatError`` for what is no regular file."""
    raw: Any = open(open_regular(path), "rb") if isinstance(path, Path) else path.open_file()  # noqa: SIM115
    kind = compression_of(bytes(raw.read(8)))
    raw.seek(0)
    if kind == "zstd":
        import pyarrow as pa

        return io.BufferedReader(pa.CompressedInputStream(raw, "zstd"))
    if kind is None:
        return raw if isinstance(path, Path) else io.BufferedReader(raw)
    source: Any = path if isinstance(path, Path) else raw
    if source is path:
        raw.close()
    opened: Any = importlib.import_module({"gzip": "gzip", "bz2": "bz2", "xz": "lzma"}[kind]).open(source)
    return io.BufferedReader(opened)


def compression_of(start: bytes) -> str | None:
    """Return how a file is compressed that begins so."""
    return next((kind for magic, kind in _COMPRESSED.items() if start.startswith(magic)), None)


def layout_of(path: Path | RemotePath, form: CsvFormat) -> TextLayout:
    """Return the layout of a text file. ``FormatError`` for one that is no text."""
    name = str(path)
    try:
        with open_bytes(path) as file:
            head = file.read(HEAD_BYTES)
        with path.open("rb") if isinstance(path, Path) else path.open_file() as raw:
            compression = compression_of(bytes(raw.read(8)))
    except UNREADABLE as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise FormatError(f"{name}: cannot be read: {error}") from None
    whole = len(head) < HEAD_BYTES
    if not head:
        raise FormatError(f"{name}: an empty file")
    text = _decoded(head, name, form, whole=whole)
    if not text.strip():
        raise FormatError(f"{name}: no line with a value")
    if (refused := foreign_text(path, text[:_SCAN_BYTES])) is not None:
        raise refused
    lines = text.splitlines(keepends=True) if "\r" not in text else io.StringIO(text, newline="").readlines()
    if not whole and len(lines) > 1:
        lines.pop()
    start, comments = _begin(lines)
    given = form.delimiter
    if (named := re.fullmatch(r"sep=(.)\s*", lines[start])) is not None:  # Excel's own first line.
        start, given = start + 1, given or named[1]
    rows = lines[start : start + _SAMPLE_LINES]
    delimiter = given or _delimiter_in(rows, name, form.quote)
    records = _split(rows, delimiter, form.quote)
    first: list[str] = next(records, [])
    header_lines = max(records.line_num, 1) if first else 0
    records = [each for each in records if each]
    widths = list(map(len, records))
    width = max(set(widths), key=widths.count) if widths else len(first)
    names, header, skipped = list(form.columns), [], start
    if not names:
        names = header = _commented_names(comments, delimiter, form.quote, first, max(width, len(first)))
        if not names:
            names, header, skipped = first, first, start + header_lines
    _check_names(names, f"{name}, line {skipped}")
    if widths and len(names) < width == min(widths) and not form.columns:  # More values than names.
        if len(names) == width - 1 and _count([each[0] for each in records]):
            names = ["", *names]  # R and pandas write no name above the numbers of the rows.
        names = [*names, *(f"{names[-1]}_{at}" for at in range(1, 1 + width - len(names)))]
    return TextLayout(
        delimiter=delimiter,
        quote=form.quote if _has_quotes(text, delimiter, form.quote) else "",
        names=tuple(_distinct([each.strip() for each in names])),
        header=tuple(header),
        skipped=skipped,
        num_comments=len(comments),
        compression=compression,
        has_returns="\r" in text,
        head_rows=len(lines),
        is_utf16=encoding_of(head, form) == "utf-16",
    )


def _begin(lines: Sequence[str]) -> tuple[int, list[str]]:
    """Return the first line that is no comment, and the comments before it."""
    start = next((at for at, line in enumerate(lines) if line.strip() and line[0] not in COMMENTS), None)
    if start is None:  # All lines begin so: they are no comments.
        return next((at for at, line in enumerate(lines) if line.strip()), 0), []
    return start, [line for line in lines[:start] if line.strip()]


def _has_quotes(text: str, delimiter: str, quote: str) -> bool:
    """Return whether values may be quoted: between blanks, only where some are."""
    if delimiter != BLANKS or not quote:
        return len(delimiter) == 1
    return re.search(rf"(?m)(^|[ \t]){re.escape(quote)}", text) is not None


def _count(values: Sequence[str]) -> bool:
    """Return whether these are the numbers of rows, from 0 or 1 on."""
    begin = int(values[0]) if values[0] in ("0", "1") else 2
    return begin < 2 and list(values) == list(map(str, range(begin, begin + len(values))))


def _check_names(names: Sequence[str], where: str) -> None:
    if len(names) > _MAX_COLUMNS:
        what = f"{len(names)} columns: text files may have {_MAX_COLUMNS}: write vectors as .npy or Parquet"
        raise FormatError(f"{where}: {what}")
    if max((len(each) for each in names), default=0) > _MAX_NAME:
        raise FormatError(f"{where}: no header: a name would have over {_MAX_NAME} characters")


def only_integers(file: BinaryIO, delimiter: bytes) -> bool:
    """Return whether lines have only digits, signs and delimiters, and no number begins with a zero."""
    allowed = b"0123456789-\n" + delimiter
    before = b"\n"
    if delimiter >= b"0":  # What is less than a digit ends a value.
        return False
    while piece := file.read(_SCAN_BYTES):
        data = np.frombuffer(before + piece, np.uint8)
        begins = (data[:-2] < ord("0")) & (data[1:-1] == ord("0")) & (data[2:] >= ord("0"))
        if begins.any() or piece.translate(None, allowed):
            return False
        before = data[-2:].tobytes()
    return True


def _decoded(head: bytes, name: str, form: CsvFormat, *, whole: bool) -> str:
    encoding = encoding_of(head, form)
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(head, final=whole)
    except UnicodeDecodeError as error:
        line = head[: error.start].count(b"\n") + 1
        raise FormatError(
            f"{name}, line {line}: not {encoding}; if it is a text, name its encoding, --csv-encoding latin-1"
        ) from None
    if "\0" in text[:1024]:
        raise FormatError(f"{name}: not a text file")
    return text


def encoding_of(head: bytes, form: CsvFormat) -> str:
    """Return the encoding of a text file: as its byte order mark says, or else the given one."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8-sig" if form.encoding.lower().replace("_", "-") in ("utf-8", "utf8") else form.encoding


def _delimiter_in(lines: Sequence[str], name: str, quote: str) -> str:
    """Return what splits all lines into the same number of values, or else what the name of the file says."""
    ending = next((_BY_ENDING[each] for each in reversed(Path(name).suffixes) if each in _BY_ENDING), None)
    usual = ending or ("\t" if any("\t" in line for line in lines) else ",")
    order = dict.fromkeys([usual, *_DELIMITERS])
    ragged: str | None = None
    for delimiter in order:
        records = [each for each in _split(lines, delimiter, quote) if each]
        widths = {len(each) for each in records}
        if min(widths, default=0) < 2:
            continue
        numbers = all(_NUMBER.fullmatch(value) for each in records[1:] for value in each)
        if delimiter == BLANKS and (ending is not None or len(records) < 2) and not numbers:
            continue
        if len(widths) == 1 or len({len(each) for each in records[1:]}) == 1:
            return _with_blank(delimiter, lines, quote)
        if delimiter in (usual, "\t", ";", "|"):
            ragged = ragged or delimiter
    return ragged or usual


def _with_blank(delimiter: str, lines: Sequence[str], quote: str) -> str:
    """Return the delimiter with a blank where all lines have one after it: it is no part of texts."""
    text = "".join(lines)
    if delimiter not in (",", ";", "|") or (quote and quote in text):
        return delimiter
    return f"{delimiter} " if text.count(delimiter) == text.count(f"{delimiter} ") else delimiter


def _commented_names(
    comments: Sequence[str], delimiter: str, quote: str, first: Sequence[str], width: int
) -> list[str]:
    """Return the names that the last comment gives to rows of numbers, as in files of SNAP."""
    if not comments or not first or not all(_NUMBER.fullmatch(value.strip()) for value in first):
        return []
    text = comments[-1].lstrip("".join(COMMENTS) + " \t")
    found: list[str] = next(_split([text], delimiter, quote), [])
    fits = len(found) == width and all(value.strip() and not _NUMBER.fullmatch(value) for value in found)
    return found if fits else []


def _distinct(names: Sequence[str]) -> Iterator[str]:
    """Yield the names. One that comes again gets a number."""
    seen: set[str] = set()
    for name in names:
        new, count = name, 0
        while new in seen:
            count += 1
            new = f"{name}_{count}"
        seen.add(new)
        yield new
