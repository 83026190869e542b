"""Texts that are lists of numbers, such as ``0.1,0.2`` or ``[1; 2]``, as lists of Arrow."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gigl_loader.partition.readers.column_types import MISSING, loses_digits

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
