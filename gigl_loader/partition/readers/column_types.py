"""What the texts of a column are, and the SQL that makes values of them without losing any."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyarrow import compute

from gigl_loader.graph.schema import Column
from gigl_loader.partition.readers import TEXT, Kind
from gigl_loader.partition.readers.sql_table import literal
from gigl_loader.tensors import STORAGE_DTYPES

MISSING = (
    *("", "NA", "N/A", "n/a", "<NA>", "NULL", "null", "None", "nan", "NaN", "-nan", "-NaN", "\\N"),
    *("#NA", "#N/A", "#N/A N/A", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)
"""Values that stand for none: of numbers, and of ids."""
MARK = "gigl-loader: value of column"
"""Beginning of the error by which SQL tells of a value that does not fit its column."""
INTEGER = r"\s*[-+]?\d+\s*"
_DECIMAL = r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*|\s*[-+]?(?i:inf(inity)?)\s*"
_TIME = r"\s*\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?)?\s*"
_ZONED = r"\s*\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?\s*(Z|[-+]\d{2}(:?\d{2})?)\s*"
_DECIMAL_DIGITS = r"\s*[-+]?(0|[1-9]\d*)\.?\d*([eE][-+]?\d+)?\s*"
_ALL_DIGITS = r"\s*[-+]?((0|[1-9]\d*)(\.0*)?([eE][-+]?0+)?|\d\.\d{15,}[eE][-+]?\d{1,2})\s*"
"""Decimal numbers with all of their digits: ``1.23457E+15`` may stand for several integers."""
_ZERO_LED = r"^\s*[-+]?0\d"
_FEW = 16
"""Distinct texts that may all be ways to write true and false."""
_WORDS = ("true",), ("false",)
"""Texts that are booleans unasked."""
BOOLEANS = (*_WORDS[0], "t", "yes", "y", "1"), (*_WORDS[1], "f", "no", "n", "0")
"""Texts that are booleans in a column of them."""
_WHOLE_FLOAT32 = 1 << 24
"""Up to here, float32 has all whole numbers."""
_WHOLE_FLOAT64 = 1 << 53
_MAX_MICROSECONDS = ((1 << 63) - 1) // 1000
_MASKS = ("train_mask", "val_mask", "test_mask")
_SQL_TYPES = {
    "I8": "TINYINT",
    "I16": "SMALLINT",
    "I32": "INTEGER",
    "I64": "BIGINT",
    "U8": "UTINYINT",
    "U16": "USMALLINT",
    "U32": "UINTEGER",
    "U64": "UBIGINT",
}
_PLAIN = Column("I64"), Column("F32"), Column("F64"), Column("BOOL"), Column("I64", unit="ns")
_I64, _F32, _F64, _BOOL, _NS = _PLAIN

Reading = Literal["text", "integer", "decimal", "narrow", "boolean", "time", "zoned", "nothing"]


@dataclass(frozen=True, slots=True)
class TextColumn:
    """How the texts of a column are read."""

    kind: Kind
    reading: Reading
    is_id: bool = False
    asked: bool = False
    """Whether the user named the dtype."""
    from_decimals: bool = False
    """Whether ``1.0`` is the integer 1, as pandas writes it where others are missing."""

    def cases(self, text: str) -> list[tuple[str, str]]:
        """Return conditions in SQL on a text, each with the value that it then has. No other text fits."""
        missing = f"{text} IS NULL OR trim({text}) IN ({', '.join(map(literal, MISSING))})"
        none = (missing, "NULL")
        assert isinstance(self.kind, Column)
        if self.reading == "integer":
            value = f"TRY_CAST({text} AS {_SQL_TYPES[self.kind.dtype]})"
            digits = r"\s*[-+]?(0|[1-9]\d*)\s*" if self.is_id and not self.asked else INTEGER
            fits = f"regexp_full_match({text}, '{digits}') AND {value} IS NOT NULL"
            found = [(f"CAST({value} AS VARCHAR) = {text}", value), none, (fits, value)]
            return [*found, self._whole(text)] if self.from_decimals or self.asked else found
        if self.reading in ("decimal", "narrow"):
            return self._decimals(text, none)
        if self.reading == "boolean":
            lower = f"lower(trim({text}))"
            true, false = (f"{lower} IN ({', '.join(map(literal, each))})" for each in BOOLEANS)
            return [(true, "true"), (false, "false"), none]
        if self.reading == "zoned":
            return [_zoned(text), none]
        value = f"TRY_CAST({text} AS TIMESTAMP_NS)"
        return [(f"regexp_full_match({text}, '{_TIME}') AND {value} IS NOT NULL", value), none]

    def _whole(self, text: str) -> tuple[str, str]:
        """Return the condition on a decimal number that is an integer and not rounded, and its value."""
        assert isinstance(self.kind, Column)
        value = f"TRY_CAST({text} AS DOUBLE)"
        digits = _DECIMAL_DIGITS if self.asked else _ALL_DIGITS
        cast = f"TRY_CAST(TRY_CAST({value} AS BIGINT) AS {_SQL_TYPES[self.kind.dtype]})"
        is_whole = f"{value} = floor({value}) AND abs({value}) < {_WHOLE_FLOAT64} AND {cast} IS NOT NULL"
        return f"regexp_full_match({text}, '{digits}') AND {is_whole}", cast

    def _decimals(self, text: str, none: tuple[str, str]) -> list[tuple[str, str]]:
        value = f"TRY_CAST({text} AS DOUBLE)"
        narrow = f"TRY_CAST({value} AS FLOAT)"
        plain = f"NOT contains({text}, '_')"  # DuckDB reads 1_0 as 10.
        finite = f"isfinite({value}) AND {plain}"
        infinite = (f"isinf({value}) AND contains(lower({text}), 'inf')", f"CAST({value} AS FLOAT)")
        if self.kind == _F64:
            return [(finite, value), none, (infinite[0], value)]
        if self.asked:
            return [(f"{finite} AND isfinite({narrow})", narrow), none, infinite]
        same = f"CAST({narrow} AS DOUBLE) = {value} OR CAST(CAST({narrow} AS VARCHAR) AS DOUBLE) = {value}"
        small = f"abs({value}) <= {_WHOLE_FLOAT32} AND {plain}"
        return [(small, narrow), none, (f"{finite} AND ({same})", narrow), infinite]

    def sql(self, text: str, place: int) -> str:
        """Return the value of a text in SQL, which fails with ``MARK`` and ``place`` if it does not fit."""
        if self.reading == "nothing":
            return "CAST(NULL AS VARCHAR)"
        if not isinstance(self.kind, Column):
            missing = MISSING[1:] if self.is_id and not self.asked else ("\\N",)
            words = ", ".join(map(literal, missing))
            return f"CASE WHEN {text} IS NULL OR {text} IN ({words}) THEN '' ELSE {text} END"
        cases = " ".join(f"WHEN {condition} THEN {value}" for condition, value in self.cases(text))
        return f"CASE {cases} ELSE error('{MARK} {place}') END"

    def does_not_fit(self, text: str) -> str:
        """Return the condition in SQL on a text that the column cannot hold."""
        return " AND ".join(f"NOT coalesce({condition}, false)" for condition, _ in self.cases(text))


def _zoned(text: str) -> tuple[str, str]:
    """Return the condition on a time with its zone, and its value. DuckDB's own have microseconds."""
    micros = f"epoch_us(TRY_CAST(regexp_replace({text}, '([.][0-9]{{6}})[0-9]+', '\\1') AS TIMESTAMPTZ))"
    rest = f"rpad(regexp_extract({text}, '[.][0-9]{{6}}([0-9]+)', 1), 3, '0')"
    fits = f"regexp_full_match({text}, '{_ZONED}') AND abs({micros}) < {_MAX_MICROSECONDS}"
    return fits, f"make_timestamp_ns({micros} * 1000 + CAST({rest} AS BIGINT))"


_ASKED: Mapping[str | None, TextColumn] = {
    "TEXT": TextColumn(TEXT, "text", asked=True),
    "BOOL": TextColumn(_BOOL, "boolean", asked=True),
    "F32": TextColumn(_F32, "decimal", asked=True),
    "F64": TextColumn(_F64, "decimal", asked=True),
    **{dtype: TextColumn(Column(dtype), "integer", asked=True) for dtype in _SQL_TYPES},
}
"""Readings by the dtype that a user names."""


def column_of(texts: Any, *, is_id: bool, name: str, dtype: str | None, masks: bool) -> TextColumn:
    """Return how to read a column of these first texts, an Arrow array.

    ``is_id``: it holds integers or texts, with ``masks`` also booleans. ``dtype`` is the one that a user
    asked for.
    """
    if dtype in _ASKED:
        return replace(_ASKED[dtype], is_id=is_id)
    found = _looks_like(_present(texts), is_id=is_id)
    if name == "split" and found.reading != "integer":
        return TextColumn(TEXT, "text")
    if name in _MASKS and {*compute.unique(_present(texts)).to_pylist()} <= {"0", "1"}:
        return TextColumn(_BOOL, "boolean")
    if not is_id or found.reading == "integer" or (found.reading == "boolean" and masks):
        return replace(found, is_id=is_id)
    return _as_ids(texts, found)


def _as_ids(texts: Any, found: TextColumn) -> TextColumn:
    """Return how to read ids that are no integers."""
    if found.reading == "nothing":
        return TextColumn(_I64, "integer", is_id=True)
    if found.reading not in ("decimal", "narrow"):
        return TextColumn(TEXT, "text", is_id=True)
    values = np.asarray(compute.cast(_present(texts), pa.float64()))
    if not compute.all(compute.match_substring_regex(_present(texts), f"^({_ALL_DIGITS})$")).as_py():
        return TextColumn(_F64, "decimal", is_id=True)
    if bool(((values == np.floor(values)) & (np.abs(values) < _WHOLE_FLOAT64)).all()):
        return TextColumn(_I64, "integer", is_id=True, from_decimals=True)
    return TextColumn(_F64, "decimal", is_id=True)


def _present(texts: Any) -> Any:
    """Return the texts that stand for a value."""
    return texts.filter(compute.invert(compute.is_in(texts, pa.array(MISSING)))).drop_null()


def _looks_like(texts: Any, *, is_id: bool) -> TextColumn:
    if not len(texts):
        return TextColumn("nothing", "nothing")
    if (as_integers := _matching(texts, INTEGER, pa.int64())) is not None:
        if is_id and compute.any(compute.match_substring_regex(texts, _ZERO_LED)).as_py():
            return TextColumn(TEXT, "text")
        return TextColumn(_I64 if len(as_integers) else TEXT, "integer" if len(as_integers) else "text")
    if (values := _matching(texts, _DECIMAL, pa.float64())) is not None and len(values):
        return TextColumn(_F64, "decimal") if loses_digits(values) is not None else TextColumn(_F32, "narrow")
    return _looks_like_words(texts)


def _looks_like_words(texts: Any) -> TextColumn:
    words = compute.unique(texts)
    if len(words) <= _FEW and {each.strip().lower() for each in words.to_pylist()} <= {
        *_WORDS[0],
        *_WORDS[1],
    }:
        return TextColumn(_BOOL, "boolean")
    for pattern, reading in ((_TIME, "time"), (_ZONED, "zoned")):
        if compute.all(compute.match_substring_regex(texts, f"^({pattern})$")).as_py():
            return TextColumn(_NS, reading)  # type: ignore[arg-type]
    return TextColumn(TEXT, "text")


def _matching(texts: Any, pattern: str, dtype: Any) -> Any:
    """Return the numbers that all texts are by a pattern. Without any, they do not fit the type.

    ``None``: some are none.
    """
    if pattern == INTEGER and not compute.any(compute.match_substring(texts, "x", ignore_case=True)).as_py():
        with suppress(pa.ArrowInvalid):  # Its only integers that are none of ours are hexadecimal.
            return compute.cast(texts, dtype)
    if not compute.all(compute.match_substring_regex(texts, f"^({pattern})$")).as_py():
        return None
    try:
        return compute.cast(
            compute.replace_substring_regex(texts, pattern=r"^\s*\+?|\s+$", replacement=""), dtype
        )
    except pa.ArrowInvalid:
        return pa.array([], dtype)


def loses_digits(values: Any) -> int | None:
    """Return the first place of a number above 2^24 that float32, which has seven digits, cannot hold."""
    wide = np.asarray(values.to_numpy(zero_copy_only=False))
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float32)
    changed = np.flatnonzero((np.abs(wide) > _WHOLE_FLOAT32) & (narrow != wide))
    return next((row for row in changed.tolist() if float(str(narrow[row])) != wide[row]), None)


def said(column: TextColumn) -> str:
    """Return what a column holds, for a message."""
    if not isinstance(column.kind, Column):
        return column.kind
    whole = STORAGE_DTYPES[column.kind.dtype].kind in "iu"
    names = {"boolean": "true or false", "time": "a date", "zoned": "a time with its zone"}
    return names.get(column.reading, "integer" if whole else "number")
