"""JSON from files, peers and callers: one document, bounded in bytes, read by strict rules.

RFC 8259 leaves open what a reader does with repeated names, huge numbers and lone surrogates, and Python's
reader also takes ``NaN`` and ``Infinity``. Here each of these is refused: a value that was read fits the
types of the formats (64-bit integers, finite floats, encodable text).
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from gigl_loader.errors import FormatError

_MAX_DIGITS = 20  # Of 2**64 - 1. Python's own limit (4,300) is off by an environment variable.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_json(data: bytes | str, *, what: str, max_bytes: int) -> Any:
    """Return the value of one JSON document in UTF-8.

    ``FormatError``, naming ``what``, for more than ``max_bytes``, for what is not JSON, nested too deeply, a
    name that occurs twice in an object, a number of more than 20 digits or beyond float64, and for text that
    UTF-8 cannot encode. Time is linear in the bytes, memory at most some 40 times them.
    """
    try:
        text = _text(data, what, max_bytes)
        value = _DECODER.decode(text)
        if _SURROGATE.search(text):  # Whole pairs are fine, and rare.
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError:
        raise FormatError(f"{what} is not JSON: text that is no UTF-8") from None
    except RecursionError:
        raise FormatError(f"{what} is not JSON: nested too deeply") from None
    except ValueError as error:
        raise FormatError(f"{what} is not JSON: {str(error)[:200]}") from None
    return value


def _text(data: bytes | str, what: str, max_bytes: int) -> str:
    if len(data) <= max_bytes:
        text = data if isinstance(data, str) else data.decode()
        if text.isascii() or len(text.encode()) <= max_bytes:
            return text
    raise FormatError(f"{what} has {len(data)} bytes; at most {max_bytes} are read")


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name occurs twice")
    return document


def _integer(digits: str) -> int:
    if len(digits.removeprefix("-")) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits; at most {_MAX_DIGITS} are read")
    return int(digits)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number beyond float64")
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_names, parse_int=_integer, parse_float=_finite, parse_constant=_no_constant
)
