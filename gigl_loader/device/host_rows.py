"""Rows of a column in page-locked memory of this host, which the device reads beside its own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from gigl_loader.device import row_kernels
from gigl_loader.device.page_locks import PageLocked, locked_copy, tensor_of
from gigl_loader.resources import free_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from gigl_loader.arrays import Bytes

logger = logging.getLogger(__name__)

_CHECKED_ROWS = 256
_COPY_SHARE = 1 / 2
"""Of free memory that a copy of a column may take."""


class Codes(Protocol):
    """Form of a quantised column."""

    elements: int
    bits: int
    header_bytes: int
    """Before the codes of a row: its scale and zero point, or nothing."""

    def scales_on(self, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
        """Return scales and zero points by element, float64 [elements]; ``None`` where rows have them."""

    def values_of(self, packed: Tensor) -> Tensor:
        """Return the values, float32 [N, elements], of rows, uint8 [N, row bytes], by PyTorch."""


class HostRows:
    """All rows of a column. Batches have *places* of their rows: see ``row_kernels``."""

    def __init__(self, name: str, parts: Sequence[Bytes], device: torch.device, *, word: torch.dtype) -> None:
        """``name`` is that of the column in frames. ``parts`` are rows of whole words by partition, uint8 [R,
        row bytes], in their order.

        The rows of one partition are read where they lie, if CUDA page-locks their map; else, and those of
        several partitions, they are copied. ``OSError`` where neither can be, and ``RuntimeError`` (also of
        Triton) where what the device reads is not what the CPU reads.
        """
        self._name = name
        self._device = device
        self._lock, rows = _locked(parts, device)
        self._rows = tensor_of(rows)
        self._words = self._rows.view(word)
        self._memory = rows
        """Keeps the memory of the tensors."""
        self._is_fused: bool | None = None
        """Whether values are read by one kernel. ``None``: not tried yet."""
        self._check()

    def __len__(self) -> int:
        return len(self._memory)

    def gather(self, places: Tensor, resident: Tensor | None) -> Tensor:
        """Return the row of each place, int32 [N], in words [N, words], without a wait.

        ``resident`` are the rows on the device in words, if there are any.
        """
        return row_kernels.gather_rows(places, self._words if resident is None else resident, self._words)

    def values(self, places: Tensor, resident: Tensor | None, codes: Codes) -> Tensor:
        """Return the values of the row of each place, float32 [N, elements].

        The values of the first batch are compared with those that PyTorch computes, which then go on where
        they differ.
        """
        if self._is_fused:
            return self._fused(places, resident, codes)
        expected = codes.values_of(self.gather(places, resident).view(torch.uint8))
        if self._is_fused is None and len(places):
            self._is_fused = self._agrees(places, resident, codes, expected)
        return expected

    def _fused(self, places: Tensor, resident: Tensor | None, codes: Codes) -> Tensor:
        scales, zero_points = codes.scales_on(places.device)
        return row_kernels.dequantize_rows(
            places,
            self._rows if resident is None else resident.view(torch.uint8),
            self._rows,
            elements=codes.elements,
            bits=codes.bits,
            header_bytes=codes.header_bytes,
            scales=scales,
            zero_points=zero_points,
        )

    def _agrees(self, places: Tensor, resident: Tensor | None, codes: Codes, expected: Tensor) -> bool:
        try:
            found = self._fused(places, resident, codes)
            if torch.equal(found.view(torch.int32), expected.view(torch.int32)):
                return True
            reason = "its values differ"
        except Exception as error:  # Of Triton or the compiler that it calls: they have no base in common.
            reason = _first_line(error)
        logger.warning("%s is read as codes, not dequantised by the same kernel: %s", self._name, reason)
        return False

    def _check(self) -> None:
        """Compare some rows, the first and the last among them, with those that the CPU reads."""
        count = len(self._memory)
        if not count:
            return
        chosen = np.unique(np.linspace(0, count - 1, _CHECKED_ROWS).astype(np.int32))
        places = torch.from_numpy(-1 - chosen).to(self._device)
        found = self.gather(places, None).cpu().view(torch.uint8).numpy()
        if not np.array_equal(found, self._memory[chosen]):
            raise RuntimeError("the device reads other rows than the CPU")


def why_not(device: torch.device) -> str | None:
    """Return why kernels do not run on a device; ``None`` where they do."""
    if device.type == "cuda" or row_kernels.IS_INTERPRETED:
        return None
    return "the device is the CPU"


def _locked(parts: Sequence[Bytes], device: torch.device) -> tuple[PageLocked, Bytes]:
    if len(parts) == 1:
        try:
            return PageLocked.map_of(parts[0], device), parts[0]
        except OSError as error:
            logger.info("%s: rows are copied into memory that it does", error)
    nbytes, free = sum(each.nbytes for each in parts), free_memory()
    if nbytes > free.nbytes * _COPY_SHARE:
        raise OSError(f"a copy of {nbytes / 1e6:.0f} MB needs more than half of {free.source}")
    return locked_copy(parts, device)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]:.200}"
