"""Dequantisation: the values of quantised columns, on the device that batches go to."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gigl_loader.channel.frame import VALUES
from gigl_loader.graph.quantization import HEADER_BYTES
from gigl_loader.graph.schema import type_name
from gigl_loader.loaders.transfer import SMALL_BYTES, FrameTensors, ReusedMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from gigl_loader.arrays import Bytes, Float64Array
    from gigl_loader.channel.frame import Frame
    from gigl_loader.graph.schema import Column, GraphSchema
    from gigl_loader.loaders.transfer import Transfer
    from gigl_loader.options import EdgeType

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
"""Dtypes that batches may have quantised columns in."""


class Dequantizer:
    """Values of one quantised column: ``zero_point + code * scale``, equal bit for bit on every device."""

    def __init__(self, column: Column, dtype: torch.dtype = torch.float32) -> None:
        """``dtype`` is that of the result. Values are computed as float32 and converted."""
        assert column.quantized is not None
        self._quantized, self._how = column.quantized, column.quantized.how
        self._shape, self._dtype = column.shape, dtype
        self.elements, self.bits = math.prod(self._shape), self._how.bits
        self.header_bytes = 0 if self._how.per == "column" else HEADER_BYTES
        self._scales: Float64Array | None = None
        self._zero_points: Float64Array | None = None
        if self._how.per == "column":
            self._scales = column.quantized.scales.astype(np.float64)
            self._zero_points = column.quantized.zero_points.astype(np.float64)
        self._on_device: dict[torch.device, tuple[Tensor, Tensor]] = {}
        """Scales and zero points per column, by device."""

    def on_host(self, packed: Bytes, memory: Callable[[int], Bytes]) -> Tensor:
        """Return the values [N, ...] of rows, uint8 [N, row bytes], in bytes that ``memory`` lends."""
        elements = math.prod(self._shape)
        out = memory(4 * len(packed) * elements).view(np.float32).reshape(len(packed), elements)
        self._quantized.decode(packed, out)
        return torch.from_numpy(out).view(-1, *self._shape).to(self._dtype)

    def on_device(self, packed: Tensor) -> Tensor:
        """Return the values [N, ...] of rows, uint8 [N, row bytes], on their device, without a wait."""
        return self.shaped(self.values_of(packed))

    def values_of(self, packed: Tensor) -> Tensor:
        """Return the values, float32 [N, elements], of rows, uint8 [N, row bytes], on their device."""
        scales, zero_points = self.scales_on(packed.device)
        if scales is None or zero_points is None:
            header = packed[:, :HEADER_BYTES].reshape(-1).view(torch.float32).view(-1, 2).to(torch.float64)
            scales, zero_points = header[:, :1], header[:, 1:]
            packed = packed[:, HEADER_BYTES:]
        codes = self._unpacked(packed).to(torch.float64)
        return codes.mul_(scales).add_(zero_points).to(torch.float32)

    def shaped(self, values: Tensor) -> Tensor:
        """Return values, float32 [N, elements], in the shape and dtype that batches have them in."""
        return values.view(-1, *self._shape).to(self._dtype)

    def _unpacked(self, packed: Tensor) -> Tensor:
        """Return the codes of packed rows, uint8 [N, E]."""
        if self._how.bits == 8:
            return packed
        shifts = torch.arange(0, 8, self._how.bits, dtype=torch.uint8, device=packed.device)
        codes = (packed.unsqueeze(-1) >> shifts) & self._how.levels
        return codes.flatten(1)[:, : math.prod(self._shape)]

    def scales_on(self, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
        """Return scales and zero points, float64 [elements], on a device; ``None``: each row has its own."""
        if self._scales is None or self._zero_points is None:
            return None, None
        if device not in self._on_device:
            scales, zero_points = map(torch.from_numpy, (self._scales, self._zero_points))
            self._on_device[device] = (scales.to(device), zero_points.to(device))
        return self._on_device[device]


class DequantizedTensors(FrameTensors):
    """The arrays of one frame, with the values of quantised columns in place of their codes."""

    def __init__(
        self, tensors: FrameTensors, columns: Mapping[str, Dequantizer], memory: ReusedMemory
    ) -> None:
        self.frame = tensors.frame
        self._tensors = tensors
        self._columns = columns
        self._memory = memory

    def tensor(self, name: str) -> Tensor:
        dequantizer = self._columns.get(name)
        if dequantizer is not None and name + VALUES in self.frame.layout.specs:
            return dequantizer.shaped(self._tensors.tensor(name + VALUES))
        if dequantizer is not None and (values := self._tensors.values(name, dequantizer)) is not None:
            return dequantizer.shaped(values)
        tensor = self._tensors.tensor(name)
        if dequantizer is None:
            return tensor
        if tensor.device.type == "cpu":
            return dequantizer.on_host(tensor.numpy(), self._lend)
        return dequantizer.on_device(tensor)

    def edge_index(self, edge_type: EdgeType) -> Tensor:
        return self._tensors.edge_index(edge_type)

    def _lend(self, nbytes: int) -> Bytes:
        return np.empty(nbytes, np.uint8) if nbytes < SMALL_BYTES else self._memory.lend(nbytes)


class DequantizingTransfer:
    """Transfer of frames as they are, packed, and the values of quantised columns beyond it."""

    def __init__(self, transfer: Transfer, columns: Mapping[str, Dequantizer]) -> None:
        """``columns`` are by the names that the columns have in frames."""
        self._transfer = transfer
        self._columns = columns
        self._memory = ReusedMemory()

    def load(self, frame: Frame) -> FrameTensors:
        return DequantizedTensors(self._transfer.load(frame), self._columns, self._memory)


def dequantizing(transfer: Transfer, schema: GraphSchema, dtype: torch.dtype) -> Transfer:
    """Return ``transfer`` with the values (``dtype``) of the quantised columns of a graph, if it has any."""
    found: dict[str, Dequantizer] = {}
    for kind, columns in schema.columns.items():
        prefix = f"{'node' if isinstance(kind, str) else 'edge'}/{type_name(kind)}"
        for name, column in columns.items():
            if column.quantized is not None:
                found[f"{prefix}/{type_name(name)}"] = Dequantizer(column, dtype)
    return DequantizingTransfer(transfer, found) if found else transfer


def value_dtype(value: Any) -> torch.dtype:
    """Return the dtype that batches have quantised columns in, as the user says."""
    if not isinstance(value, torch.dtype):
        raise TypeError(f"dequantize_to must be a dtype such as torch.float32, got {value!r:.200}")
    if value not in _DTYPES:
        raise ValueError(f"dequantize_to must be one of {', '.join(map(str, _DTYPES))}, got {value}")
    return value
