"""Types of NumPy arrays, as annotations name them, and what is computed of any."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

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


Values: TypeAlias = "torch.Tensor | npt.ArrayLike"
"""Numbers or texts in any form: a tensor, an array, a list, a column of pandas, Polars or Arrow."""


def plain_values(name: str, value: Any) -> Any:
    """Return a column of pandas, Polars or Arrow as an array, and any other sequence as a list.

    Tensors, arrays, lists, tuples, texts and what is no sequence come back as they are. ``ValueError`` begins
    with ``name`` and gives the entry that is missing.
    """
    if isinstance(value, (np.ndarray, list, tuple, range, str, bytes)) or hasattr(value, "detach"):
        return value
    if not hasattr(value, "__array__"):
        return list(value) if isinstance(value, Sequence) else value
    array = np.asarray(value)
    is_missing = getattr(value, "is_null", None) or getattr(value, "isna", None)
    # NumPy has no missing integers and texts: they come as floats and objects.
    missing = is_missing() if is_missing is not None and array.dtype.kind in "fO" else ()
    if (entry := first_true(np.asarray(missing).reshape(-1))) is not None:
        raise ValueError(f"{name}: entry {entry} is missing")
    if array.dtype.kind == "O" and all(isinstance(each, Real) for each in array.flat):
        return np.asarray(array.tolist())
    return array


def tensor_of(name: str, value: Any) -> torch.Tensor:
    """Return any form of values as a tensor on the CPU, detached. ``name``: see ``plain_values``."""
    import torch

    value = plain_values(name, value)
    if isinstance(value, (list, tuple)) and len(value) and hasattr(value[0], "__len__"):
        rows = [plain_values(name, row) for row in value]
        is_of_tensors = any(isinstance(row, torch.Tensor) for row in rows)
        value = torch.stack([tensor_of(name, row) for row in rows]) if is_of_tensors else np.asarray(rows)
    if isinstance(value, np.ndarray):
        value = np.require(value, requirements="W")  # Of memory that is read-only, torch warns.
    return torch.as_tensor(value).detach().cpu()
