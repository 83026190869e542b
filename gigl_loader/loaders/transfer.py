"""Transfer of a frame's arrays to tensors on the trainer's device.

On the CPU they alias the frame. For CUDA the frame is one packed buffer: it goes to the device in one
copy on a side stream, straight out of its slot of the ring, which is page-locked where it lies; tensors
are views of it there, and ``edge_index`` is expanded on the device. Nothing waits for the device but a
third copy, when two are still under way.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from gigl_loader import native
from gigl_loader.channel.ring import SlotPool, slot_of
from gigl_loader.graph.schema import type_name

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

    from gigl_loader.arrays import Bytes
    from gigl_loader.channel.frame import Frame
    from gigl_loader.device.host_rows import Codes
    from gigl_loader.graph.schema import EdgeType, NodeType

_SLOTS = 8
_PAGE_BYTES = 4096
_SLOT_ROOM = 2


class ReusedMemory:
    """Lends memory that is taken back when the last array or tensor made from it dies.

    Memory that was never touched costs a page fault per 4 KiB: writing the ``edge_index`` of 700,000
    edges takes 5.9 ms there and 2.3 ms in memory used before. A trainer that keeps many batches gets fresh
    memory.
    """

    def __init__(self) -> None:
        self._slots = _slots(_PAGE_BYTES)

    def lend(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return ``nbytes`` of memory, aligned for any dtype. Its contents are undefined."""
        if nbytes > self._slots.slot_bytes:
            # Only address space is taken here: pages are committed when they are touched.
            self._slots = _slots(_SLOT_ROOM * nbytes)
        slot = self._slots.take()
        return np.empty(nbytes, np.uint8) if slot is None else self._slots.lend(slot, nbytes)


def _slots(slot_bytes: int) -> SlotPool:
    pages = -(-slot_bytes // _PAGE_BYTES)
    return SlotPool(np.empty(_SLOTS * pages * _PAGE_BYTES, np.uint8), np.zeros(_SLOTS, np.uint8))


_LOGGER = logging.getLogger(__name__)
_PINNED_ROOM = 9 / 8
"""Frames of a run differ by a few per cent in size: what is pinned holds the next ones, too."""


class PinnedSlots:
    """Page-locked parts of slots.

    Only what a frame has touched, and a little room, is ever registered with CUDA: a ring has gigabytes
    of address space, and registering memory commits it. That is done once for a slot, or again when a
    frame outgrows it, and undone just before the ring is unmapped. The memory may be shared with
    another process: what is locked are its pages.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memories: dict[int, dict[int, int]] = {}
        """By ``id`` of a memory that is cut in slots: pinned bytes by address."""
        self._refused = False
        self._cuda: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]

    def pin(self, slot: Bytes, nbytes: int) -> bool:
        """Have the first ``nbytes`` of a slot page-locked, and return whether they are.

        Nothing may be copying from the slot. After one refusal by CUDA, no more memory is registered.
        """
        pinned, address = self._pinned_in(slot), slot.ctypes.data
        if pinned.get(address, 0) >= nbytes:
            return True
        if self._refused:
            return False
        if pinned.pop(address, 0):
            self._cuda.cudaHostUnregister(address)
        pages = -(-int(nbytes * _PINNED_ROOM) // _PAGE_BYTES)
        size = min(pages * _PAGE_BYTES, len(slot))
        status = int(self._cuda.cudaHostRegister(address, size, 0))
        if status:
            self._accept_refusal(status, size)
            return False
        pinned[address] = size
        return True

    def _pinned_in(self, slot: Bytes) -> dict[int, int]:
        memory: Any = slot.base
        if id(memory) not in self._memories:
            self._memories[id(memory)] = {}
            # The finalizer of an array runs before its memory is unmapped.
            finalizer = weakref.finalize(memory, _unpin, os.getpid(), self._cuda, self._memories, id(memory))
            finalizer.atexit = False
        return self._memories[id(memory)]

    def _accept_refusal(self, status: int, size: int) -> None:
        self._refused = True
        # CUDA keeps the error for its next call, which would be the user's next kernel.
        with suppress(RuntimeError):
            torch.ones(1, device=self._device)
        _LOGGER.warning(
            "CUDA cannot page-lock %.0f MB of shared memory (error %d): batches are copied once more, into "
            "pinned memory",
            size / 1e6,
            status,
        )


def _unpin(pid: int, cuda: Any, memories: dict[int, dict[int, int]], memory: int) -> None:
    pinned = memories.pop(memory)
    if os.getpid() == pid:  # In a forked child, what is registered is the parent's.
        for address in pinned:
            cuda.cudaHostUnregister(address)


DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "F32": torch.float32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
}
"""Dtypes of PyTorch by their safetensors names."""

_MAX_COPIES = 2
SMALL_BYTES = 1 << 18
"""Smaller arrays come warm out of the heap; larger ones are often mapped afresh."""


class FrameTensors(Protocol):
    """The arrays of one frame as tensors on the target device."""

    frame: Frame

    def tensor(self, name: str) -> Tensor:
        """Return an array of the frame, without another copy. bfloat16 arrives as such."""

    def edge_index(self, edge_type: EdgeType) -> Tensor:
        """Return int64 ``[2, E]``: row 0 = local index of the neighbour, row 1 = of the target."""

    def values(self, name: str, codes: Codes) -> Tensor | None:
        """Return the values of a quantised column, float32 [N, elements], where one kernel reads them."""
        return None

    def of_nodes(self, node_type: NodeType, column: str) -> Tensor:
        """Return a column of the sampled nodes of a type; ``n_id`` are their node ids."""
        return self.tensor(f"node/{type_name(node_type)}/{type_name(column)}")

    def of_edges(self, edge_type: EdgeType, column: str) -> Tensor:
        """Return a column of the sampled edges of a type; ``e_id`` are their edge ids."""
        return self.tensor(f"edge/{type_name(edge_type)}/{type_name(column)}")


class HostTensors(FrameTensors):
    """Tensors that alias the frame, and keep its memory from being used again."""

    def __init__(self, frame: Frame, memory: ReusedMemory) -> None:
        self.frame = frame
        self._memory = memory

    def tensor(self, name: str) -> Tensor:
        array = self.frame.array(name)
        if self.frame.layout.specs[name].dtype == "BF16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    def edge_index(self, edge_type: EdgeType) -> Tensor:
        rows, colptr = (self.frame.array(name) for name in _edge_arrays(edge_type))
        # Small ones are not worth a slot of their own; a graph may have many types.
        nbytes = 2 * len(rows) * np.dtype(np.int64).itemsize
        memory = np.empty(nbytes, np.uint8) if nbytes < SMALL_BYTES else self._memory.lend(nbytes)
        out = memory.view(np.int64).reshape(2, len(rows))
        native.expand_edges(rows, colptr, out)
        return torch.from_numpy(out)


class PackedTensors(FrameTensors):
    """Tensors that are views of the whole frame in one uint8 tensor, on any device."""

    def __init__(self, frame: Frame, packed: Tensor) -> None:
        self.frame = frame
        self._packed = packed

    def tensor(self, name: str) -> Tensor:
        spec, begin = self.frame.layout.specs[name], self.frame.layout.offsets[name]
        return self._packed[begin : begin + spec.nbytes].view(DTYPES[spec.dtype]).view(spec.shape)

    def edge_index(self, edge_type: EdgeType) -> Tensor:
        rows, colptr = (self.tensor(name) for name in _edge_arrays(edge_type))
        targets = torch.arange(len(colptr) - 1, device=rows.device)
        # output_size is known here, so that the host need not wait for the device.
        columns = torch.repeat_interleave(targets, colptr.diff(), output_size=len(rows))
        return torch.stack((rows.to(torch.int64), columns))


class Transfer(Protocol):
    """Brings frames to a device."""

    def load(self, frame: Frame) -> FrameTensors: ...


class HostTransfer:
    """The device is the CPU: nothing is copied."""

    def __init__(self) -> None:
        self._memory = ReusedMemory()

    def load(self, frame: Frame) -> FrameTensors:
        return HostTensors(frame, self._memory)


class SynchronousTransfer:
    """Copies each frame and waits for it: ``non_blocking_transfers=False``."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def load(self, frame: Frame) -> FrameTensors:
        return PackedTensors(frame, _packed(frame).to(self._device, copy=True))


class StreamTransfer:
    """Copies on a side stream, while the trainer's stream computes, two frames at once at most.

    A frame in a slot is copied from there, and keeps the slot until the copy is done. One that lies
    elsewhere is copied into pinned memory first.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._slots = PinnedSlots(device)
        self._staging = [_pinned(0), _pinned(0)]
        self._under_way: deque[tuple[torch.cuda.Event, Tensor]] = deque()
        """Copies that may not be done, and what they read."""
        weakref.finalize(self, _finish, os.getpid(), self._under_way)

    def load(self, frame: Frame) -> FrameTensors:
        self._settle()
        source = self._pinned_source(frame)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        consumer = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            packed = source.to(self._device, non_blocking=True, copy=True)
            copied.record(self._stream)
        self._under_way.append((copied, source))
        consumer.wait_event(copied)
        # The allocator must not hand the buffer to the side stream while the consumer still reads it.
        packed.record_stream(consumer)
        return PackedTensors(frame, packed)

    def _settle(self) -> None:
        """Let go of what was copied; wait for a copy only where two are under way."""
        while self._under_way and self._under_way[0][0].query():  # type: ignore[no-untyped-call]
            self._under_way.popleft()
        while len(self._under_way) >= _MAX_COPIES:
            self._under_way.popleft()[0].synchronize()

    def _pinned_source(self, frame: Frame) -> Tensor:
        slot = slot_of(frame.buffer)
        if slot is not None and self._slots.pin(slot, frame.nbytes):
            return _packed(frame)
        # The one that was used last may be under way; the other is not.
        self._staging.reverse()
        if len(self._staging[0]) < frame.nbytes:
            # Half as much again: frames of a run differ a little in size, and pinning memory is slow.
            self._staging[0] = _pinned(frame.nbytes * 3 // 2)
        return self._staging[0][: frame.nbytes].copy_(_packed(frame))


def _finish(pid: int, under_way: deque[tuple[torch.cuda.Event, Tensor]]) -> None:
    """Wait for the last copies of a transfer that is gone: what they read may be unmapped next."""
    if os.getpid() == pid:  # In a forked child, the device is the parent's.
        for copied, _ in under_way:
            copied.synchronize()
    under_way.clear()


def _packed(frame: Frame) -> Tensor:
    return torch.from_numpy(frame.buffer[: frame.layout.nbytes])


def _pinned(nbytes: int) -> Tensor:
    # The device is named: the user may have set another default, where nothing can be pinned.
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=nbytes > 0)


def target_device(device: Any, alias: Any, *, local_rank: int) -> torch.device:
    """Return the device batches go to: ``device``, else this rank's CUDA device, else the CPU.

    ``alias`` is ``pin_memory_device``, the name that GiGL gives the same argument.
    """
    if alias is not None:
        if device is not None and torch.device(device) != torch.device(alias):
            raise ValueError(f"device={device!r} and its alias pin_memory_device={alias!r} differ")
        device = alias
    if device is None:
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return _usable(device)


def _usable(value: Any) -> torch.device:
    try:
        device = torch.device(value)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device {value!r} is not a device: {str(error).splitlines()[0]}") from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise ValueError(f"device must be a cpu or cuda device, got {value!r}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = device.index if device.index is not None else 0
    if index >= count:
        raise ValueError(f"device {value!r} does not exist: this process sees {count} CUDA devices")
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else index)


def transfer_to(device: torch.device, *, non_blocking: bool) -> Transfer:
    """Return the way of frames to ``device``."""
    if device.type == "cpu":
        return HostTransfer()
    return StreamTransfer(device) if non_blocking else SynchronousTransfer(device)


def _edge_arrays(edge_type: EdgeType) -> tuple[str, str]:
    prefix = f"edge/{type_name(edge_type)}/"
    return prefix + "rows", prefix + "colptr"
