"""Columns of a graph: dtype and shape of their rows, and the texts that their integers stand for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gigl_loader.graph.quantization import Quantized
from gigl_loader.tensors import STORAGE_DTYPES, ArraySpec


@dataclass(frozen=True, slots=True)
class Column:
    """One named array with a row per node or edge: its dtype and the shape of a row."""

    dtype: str
    """A safetensors dtype name, for example ``F32``, which a quantised column has in batches, too."""
    shape: tuple[int, ...] = ()
    """Shape of one row: ``()`` for a number, ``(128,)`` for a vector."""
    unit: str | None = None
    """``"ns"`` for points in time: nanoseconds since 1970-01-01 UTC, int64. ``None`` for plain numbers."""
    quantized: Quantized | None = None
    """Stored form of the values, where they are quantised: rows are bytes in files and frames."""
    frame: tuple[tuple[str, int], ...] = ()
    """Names and widths of columns of a ``TensorFrame`` that a row has side by side. Empty: it is of none."""

    def __post_init__(self) -> None:
        if self.dtype not in STORAGE_DTYPES:
            raise ValueError(f"unknown dtype {self.dtype!r}; known: {', '.join(STORAGE_DTYPES)}")
        if any(size < 0 for size in self.shape):
            raise ValueError(f"negative size in row shape {self.shape}")
        if self.frame and sum(width for _, width in self.frame) != (*self.shape, 1)[0]:
            raise ValueError(f"a row of shape {self.shape} cannot hold the columns {self.frame}")
        if self.unit is not None and (self.unit, self.dtype) != ("ns", "I64"):
            raise ValueError(f"a unit must be 'ns' of I64, got {self.unit!r} of {self.dtype}")
        if self.quantized is not None:
            if self.dtype != "F32":
                raise ValueError(f"quantised values are read as F32, not as {self.dtype}")
            self.quantized.check(math.prod(self.shape))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in files and frames."""
        elements = math.prod(self.shape)
        if self.quantized is not None:
            return self.quantized.how.row_bytes(elements)
        return elements * STORAGE_DTYPES[self.dtype].itemsize

    @property
    def holds_times(self) -> bool:
        """Whether a row is one integer."""
        return self.shape in ((), (1,)) and STORAGE_DTYPES[self.dtype].kind in "iu" and self.dtype != "BF16"

    def spec(self, rows: int) -> ArraySpec:
        """Return the spec of ``rows`` rows of this column in files and frames."""
        if self.quantized is not None:
            return ArraySpec("U8", (rows, self.row_bytes))
        return ArraySpec(self.dtype, (rows, *self.shape))


class VocabularyFile(NamedTuple):
    """A file with the texts that the integers of a column stand for. Several columns may share it."""

    number: int
    """Number in the name of the file."""
    num_texts: int


def columns_to_json(columns: Mapping[str, Column]) -> dict[str, Any]:
    """Return columns as JSON-able values."""
    return {
        name: {
            "dtype": column.dtype,
            "shape": list(column.shape),
            **({} if column.unit is None else {"unit": column.unit}),
            **({} if column.quantized is None else {"quantized": column.quantized.to_json()}),
            **({"frame": [list(each) for each in column.frame]} if column.frame else {}),
        }
        for name, column in columns.items()
    }


def columns_from_json(document: Mapping[str, Any]) -> dict[str, Column]:
    """Return the columns that ``columns_to_json`` wrote."""
    return {
        name: Column(
            str(entry["dtype"]),
            tuple(int(size) for size in entry["shape"]),
            entry.get("unit"),
            Quantized.from_json(entry["quantized"]) if "quantized" in entry else None,
            tuple((str(part), int(width)) for part, width in entry.get("frame", ())),
        )
        for name, entry in document.items()
    }
