"""A table with vectors in place of texts that are lists of numbers, or of lists that differ in length."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gigl_loader.arrays import Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import Column
from gigl_loader.partition.readers import TEXT, Kind, NewColumn, Table
from gigl_loader.partition.readers.arrow import LENGTHS, PaddedColumn, to_numpy
from gigl_loader.partition.readers.column_types import MISSING, loses_digits
from gigl_loader.partition.views import TableView, readers_of

_DELIMITERS = (";", "|", ",")
_BLANKS = " "
_BRACKETS = (("[", "]"), ("(", ")"), ("{", "}"))
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_LIST = rf"^\s*[\[({{]?\s*{_NUMBER}(?:\s*[;|,]\s*{_NUMBER}|\s+{_NUMBER})+\s*[\])}}]?\s*$"

_ONE_NUMBER = r"^\s*[-+]?(?:\d+,\d+|\d{1,3}(?:,\d{3})+(?:\.\d+)?)\s*$"
"""Texts that may be a number, with a decimal comma or with commas between thousands."""


def present(cells: Any) -> Any:
    """Return an array of texts as one of Arrow, in which those that stand for a missing value are null."""
    texts = pa.array(cells, pa.large_string())
    missing = pc.is_in(texts, pa.array(MISSING, texts.type))
    return pc.if_else(missing, pa.scalar(None, texts.type), texts)


def delimiter_of(texts: Any) -> str:
    """Return what delimits the numbers of the first text that has two: a semicolon, bar, comma, or blanks."""
    several = texts.filter(pc.match_substring_regex(texts, r"[;|,]|[\d.]\s+[-+.\d]"))
    first = several[0].as_py() if len(several) else ""
    return next((each for each in _DELIMITERS if each in first), _BLANKS)


def number_lists(texts: Any, delimiter: str, dtype: Any) -> Any:
    """Return the lists of numbers that texts are, of an Arrow type. NaN and null are null.

    ``ArrowInvalid`` where a text is none.
    """
    inner = _without_brackets(pc.utf8_trim_whitespace(texts))
    inner = pc.if_else(pc.equal(inner, ""), pa.scalar(None, inner.type), inner)
    if delimiter == _BLANKS:
        parts = pc.ascii_split_whitespace(inner)
    else:
        if _has_blanks(inner):
            inner = pc.replace_substring(inner, delimiter + " ", delimiter)
        if _has_blanks(inner):
            inner = pc.replace_substring_regex(inner, rf"\s*{re.escape(delimiter)}\s*", delimiter)
        parts = pc.split_pattern(inner, delimiter)
    if pa.types.is_integer(dtype) and pc.any(pc.match_substring(inner, "x")).as_py():
        raise pa.ArrowInvalid("hexadecimal digits")
    values = parts.flatten().cast(dtype)
    if pa.types.is_floating(dtype) and pc.any(gone := pc.is_nan(values)).as_py():
        values = pc.if_else(gone, pa.scalar(None, dtype), values)
    lengths = pc.list_value_length(parts).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
    return pa.LargeListArray.from_arrays(offsets, values, mask=texts.is_null())


def _has_blanks(texts: Any) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, r"\s")).as_py())


def _without_brackets(texts: Any) -> Any:
    for opening, closing in _BRACKETS:
        opened = pc.starts_with(texts, opening)
        if pc.any(opened).as_py():
            if not pc.all(pc.equal(opened, pc.ends_with(texts, closing))).as_py():
                raise pa.ArrowInvalid("a bracket that is not closed")
            inner = pc.utf8_trim_whitespace(pc.utf8_slice_codeunits(texts, 1, -1))
            texts = pc.if_else(opened, inner, texts)
    return texts


def first_wrong(texts: Any, delimiter: str, dtype: Any) -> int:
    """Return the first of the texts that is no list of numbers, of which there must be one."""
    low, high = 0, len(texts)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            number_lists(texts.slice(low, middle - low), delimiter, dtype)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def first_rounded(lists: Any) -> tuple[int, float] | None:
    """Return the first list of float64 with a number that float32 cannot hold, and the number."""
    values = lists.flatten()
    if (at := loses_digits(values.fill_null(0))) is None:
        return None
    ends = np.cumsum(pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False))
    return int(np.searchsorted(ends, at, side="right")), values[at].as_py()


def common_length(cells: Any) -> int | None:
    """Return how many numbers each text has. ``None``: that differs, or a text is no list of numbers."""
    found = present(cells).drop_null()
    if not len(found) or not pc.all(pc.match_substring_regex(found, _LIST)).as_py():
        return None
    if pc.all(pc.match_substring_regex(found, _ONE_NUMBER)).as_py():
        return None
    try:
        lists = number_lists(found, delimiter_of(found), pa.float64())
    except pa.ArrowInvalid:
        return None
    lengths = pc.unique(pc.list_value_length(lists)).to_pylist()
    return lengths[0] if len(lengths) == 1 else None


logger = logging.getLogger(__name__)

_FIRST_ROWS = 1 << 14
"""Rows that say what the cells of a column are."""
_ROWS = 1 << 12
"""Cells that are parsed at once: their parts take several times their bytes."""
_TYPES = {"I64": pa.int64(), "F32": pa.float64(), "F64": pa.float64()}
"""Types in which numbers are parsed."""


@dataclass(frozen=True, slots=True)
class _Cells:
    """How the texts of a column are read."""

    kind: Column
    delimiter: str
    asked: bool
    """Whether the user named the dtype."""

    @property
    def parsed(self) -> Any:
        return _TYPES[self.kind.dtype]


class VectorTable(TableView):
    """A table whose columns ``lengths`` are vectors of numbers: of that length, or of that of the first row.

    The first rows say whether texts hold integers (int64) or decimal numbers (float32, or float64 where one
    would lose digits). Missing texts and lists, and NaN in texts, are masked. ``FormatError`` names the row
    of a text that is no list of numbers, or has another length.
    """

    def __init__(
        self,
        table: Table,
        lengths: Mapping[str, int | None],
        new: Mapping[str, NewColumn],
    ) -> None:
        """``new`` says what becomes of the columns."""
        super().__init__(table)
        self._new = new
        self._cells: dict[str, _Cells] = {}
        kinds: dict[str, Kind] = {}
        for name, length in lengths.items():
            kind = table.columns[name]
            if kind == TEXT:
                self._cells[name] = _cells_of(table, name, length, new[name].dtype)
                kind = self._cells[name].kind
            if not isinstance(kind, Column) or kind.shape != (length or math.prod(kind.shape),):
                of_length = "" if length is None else f" of {length}"
                what = f"holds no lists of numbers of which to make vectors{of_length}"
                raise FormatError(f"{table.name}, column {name!r}: {what}")
            kinds[name] = Column(kind.dtype, kind.shape, kind.unit)
            if isinstance(kind, PaddedColumn):
                _tell_lengths(table, name, kind.shape[0], self._first_lengths(name))
        self.columns = {**table.columns, **kinds}

    def _first_lengths(self, name: str) -> Array:
        """Return the lengths of the lists in the first rows, NaN for missing ones."""
        if name in self._cells:
            lists = _parsed(_first_cells(self._table, name), self._cells[name].delimiter, pa.float64())
            lengths = pc.list_value_length(pa.array([], pa.list_(pa.int8())) if lists is None else lists)
            return np.asarray(lengths.to_numpy(zero_copy_only=False))
        reader: Any = copy(next(reader for reader in readers_of(self._table) if name in reader.columns))
        reader.columns = {**reader.columns, name: LENGTHS}
        chunk: dict[str, Array] = next(reader.read([name], _FIRST_ROWS), {name: np.empty(0)})
        return chunk[name]

    def _values(self, name: str, array: Array, first_row: int) -> Array:
        cells = self._cells.get(name)
        if cells is None:
            return array
        found = [
            self._piece(name, cells, array[begin : begin + _ROWS], first_row + begin)
            for begin in range(0, max(len(array), 1), _ROWS)
        ]
        whole: Array = np.concatenate([np.ma.getdata(piece) for piece in found])
        if not any(isinstance(piece, np.ma.MaskedArray) for piece in found):
            return whole
        return np.ma.MaskedArray(whole, np.concatenate([np.ma.getmaskarray(piece) for piece in found]))

    def _piece(self, name: str, cells: _Cells, texts: Array, first_row: int) -> Array:
        given = present(texts)
        try:
            lists = number_lists(given, cells.delimiter, cells.parsed)
        except pa.ArrowInvalid:
            row = first_wrong(given, cells.delimiter, cells.parsed)
            raise FormatError(
                f"{self.where(name, first_row + row)}: {self._mismatch(name, cells, texts[row])}"
            ) from None
        if cells.kind.dtype == "F32":
            if not cells.asked and (rounded := first_rounded(lists)) is not None:
                row, value = rounded
                new, narrow = self._new[name].name, float(np.float32(value))
                raise FormatError(
                    f"{self.where(name, first_row + row)}: {value!r} would be {narrow} in float32: "
                    f"--dtype {new}=float64 keeps its digits, --dtype {new}=float32 does not"
                )
            lists = lists.cast(pa.large_list(pa.float32()), safe=False)
        return to_numpy(lists, cells.kind, lambda row: self.where(name, first_row + row))

    def _mismatch(self, name: str, cells: _Cells, text: str) -> str:
        """Return why a text does not fit its column, and what helps."""
        if cells.kind.dtype != "I64" or common_length([text]) is None:
            return f"{text!r:.200} is no list of numbers"
        advice = f": --dtype {self._new[name].name}=float32"
        return f"{text!r:.200} has numbers that are no integers (the type of the rows before it){advice}"


def _cells_of(table: Table, name: str, length: int | None, dtype: str | None) -> _Cells:
    """Return how to read the texts of a column, by its first rows."""
    texts = _first_cells(table, name)
    if not len(texts):
        raise FormatError(f"{table.name}, column {name!r}: no list of numbers in any row")
    delimiter = delimiter_of(texts)
    if dtype is not None:
        held = dtype if dtype == "F64" else "F32" if dtype in ("F32", "F16") else "I64"
    else:
        held = _dtype_of(texts, delimiter)
    lists = _parsed(texts[:1], delimiter, pa.float64())
    width = len(lists[0]) if lists is not None else 0
    kind = Column(held, (width,)) if length is None else PaddedColumn(held, (length,))
    return _Cells(kind, delimiter, dtype is not None)


def _first_cells(table: Table, name: str) -> Any:
    """Return the texts of the first rows that have some, without missing ones."""
    for chunk in table.read([name], _FIRST_ROWS):
        if len(found := present(chunk[name]).drop_null()):
            return found
    return pa.array([], pa.large_string())


def _dtype_of(texts: Any, delimiter: str) -> str:
    if _parsed(texts, delimiter, pa.int64()) is not None:
        return "I64"
    lists = _parsed(texts, delimiter, pa.float64())
    return "F32" if lists is None or first_rounded(lists) is None else "F64"


def _parsed(texts: Any, delimiter: str, dtype: Any) -> Any:
    try:
        return number_lists(texts, delimiter, dtype)
    except pa.ArrowInvalid:
        return None


def _tell_lengths(table: Table, name: str, length: int, lengths: Array) -> None:
    """Log how many lists get zeros, and how many lose elements."""
    lengths = lengths[lengths >= 0]  # Those of missing lists are NaN.
    padded, cut = int((lengths < length).sum()), int((lengths > length).sum())
    if padded or cut:
        logger.warning(
            "%s: column %r has vectors of %d: of the first %s lists, %s get zeros at their ends, "
            "%s lose elements",
            *(table.name, name, length, f"{len(lengths):,}", f"{padded:,}", f"{cut:,}"),
        )
