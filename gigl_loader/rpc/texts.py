"""Lists of texts as two arrays, as requests and replies carry them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gigl_loader.errors import FormatError
from gigl_loader.native import check_stop, texts_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.arrays import Bytes, Int64Array

__all__ = ["TEXT_ARRAYS", "text_arrays", "texts_of"]

TEXT_ARRAYS = ("bytes", "offsets")

_TOGETHER = 256
"""Texts of one native call, which keeps other Python threads waiting: 4,096 of 8 KiB took 42 ms."""


def text_arrays(texts: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Return texts as ``bytes`` (their UTF-8, uint8 [B]) and ``offsets`` (int64 [N + 1])."""
    encoded = [text.encode() for text in texts]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(each) for each in encoded], out=offsets[1:])
    return {"bytes": np.frombuffer(b"".join(encoded), np.uint8), "offsets": offsets}


def texts_of(data: Bytes, offsets: Int64Array, what: str) -> list[str]:
    """Return the texts of ``text_arrays``. ``FormatError`` for arrays that hold no texts."""
    utf8, count = np.ascontiguousarray(data), len(offsets) - 1
    texts: list[str] = []
    try:
        for start in range(0, count, _TOGETHER):
            check_stop()
            texts += texts_at(utf8, offsets, np.arange(start, min(start + _TOGETHER, count)))
    except (RuntimeError, UnicodeDecodeError) as error:
        raise FormatError(f"{what}: bad texts: {error}") from None
    return texts
