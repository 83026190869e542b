"""Types of NumPy arrays, as annotations name them, and what is computed of any."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
"""Also what memory is cut in: an array of bytes, not ``bytes``."""
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]


def digest_of_integers(*arrays: Int64Array | None) -> str:
    """Return the digest of arrays, one after the other, as int64, in 32 hex digits. ``None`` is left out."""
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        if array is not None:
            digest.update(np.ascontiguousarray(array, dtype="<i8").data)
    return digest.hexdigest()


def first_true(mask: npt.ArrayLike) -> int | None:
    """Return the first place where ``mask`` (bool [N]) is true, ``None`` where it is nowhere."""
    places = np.flatnonzero(mask)
    return int(places[0]) if len(places) else None
