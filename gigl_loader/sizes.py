"""Numbers and sizes, in the forms in which users give them."""

from __future__ import annotations

import operator
import re
from typing import Any

__all__ = ["byte_count", "byte_text", "whole_number"]

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)I?B?\s*", re.IGNORECASE)
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def whole_number(name: str, value: Any, *, minimum: int) -> int:
    """Return ``value`` as an int of at least ``minimum``. Bools and floats are no whole numbers."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {number}")
    return number


def byte_count(name: str, value: Any, *, minimum: int = 1) -> int:
    """Return a size in bytes, given as a number or as text such as ``"4GB"``.

    Units are K, M, G and T, with or without ``B`` or ``iB``: all are powers of 1024, as in GLT.
    """
    if not isinstance(value, str):
        return whole_number(name, value, minimum=minimum)
    match = _SIZE.fullmatch(value)
    size = int(float(match[1]) * 2 ** _UNITS[match[2].upper()]) if match else 0
    if match is None or size < minimum:
        raise ValueError(f'{name} must be a size such as "4GB" or a number of bytes, got {value!r}')
    return size


def byte_text(nbytes: int) -> str:
    """Return a size as ``byte_count`` reads it, in the largest unit of which it is a multiple."""
    fitting = [(shift, unit) for unit, shift in _UNITS.items() if nbytes % (1 << shift) == 0]
    shift, unit = max(fitting)
    return f"{nbytes >> shift}{unit}B" if unit and nbytes else str(nbytes)
