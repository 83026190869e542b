"""Memory of this host that is registered with CUDA, so that a device reads it in place."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from gigl_loader.arrays import Bytes

_PORTABLE, _MAPPED, _READ_ONLY = 1, 2, 8
"""Flags of ``cudaHostRegister``."""


class PageLocked:
    """Memory that is page-locked as long as this object lives. On a CPU, nothing is registered."""

    _all: ClassVar[weakref.WeakValueDictionary[tuple[int, str], PageLocked]] = weakref.WeakValueDictionary()
    """By address and type of the device. CUDA registers memory once, and several loaders read one graph."""
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, memory: Bytes, device: torch.device, *, read_only: bool) -> None:
        """``memory`` begins with a page. ``OSError`` where CUDA refuses it."""
        self._memory = memory
        if device.type == "cpu":
            return
        cuda: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        flags = _PORTABLE | _MAPPED | (_READ_ONLY if read_only else 0)
        with torch.cuda.device(device):
            status = int(cuda.cudaHostRegister(memory.ctypes.data, memory.nbytes, flags))
        if status:
            # CUDA keeps the error for its next call, which would be the user's next kernel.
            with suppress(RuntimeError):
                torch.ones(1, device=device)
            raise OSError(f"CUDA cannot page-lock {memory.nbytes / 1e6:.0f} MB (error {status})")
        weakref.finalize(self, _unregister, os.getpid(), cuda, device, memory).atexit = False

    @classmethod
    def map_of(cls, rows: Bytes, device: torch.device) -> PageLocked:
        """Return the lock of the whole map that ``rows`` is a part of. Columns of a file share pages."""
        memory = rows
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        place = (memory.ctypes.data, device.type)
        with cls._lock:
            found = cls._all.get(place)
            if found is None:
                found = cls(memory.reshape(-1).view(np.uint8), device, read_only=not memory.flags.writeable)
                cls._all[place] = found
            return found


def locked_copy(parts: Sequence[Bytes], device: torch.device) -> tuple[PageLocked, Bytes]:
    """Return a copy of rows, uint8 [R, row bytes], behind each other in page-locked memory of its own."""
    count, row_bytes = sum(map(len, parts)), parts[0].shape[1]
    memory = np.frombuffer(mmap.mmap(-1, max(count * row_bytes, 1)), np.uint8)
    rows = memory[: count * row_bytes].reshape(count, row_bytes)
    np.concatenate(parts, out=rows)
    return PageLocked(memory, device, read_only=False), rows


def tensor_of(rows: Bytes) -> Tensor:
    """Return a tensor of memory that may be read-only, and is never written to through it.

    PyTorch warns of arrays that cannot be written to. The tensor does not keep the memory.
    """
    if not rows.nbytes:
        return torch.empty(rows.shape, dtype=torch.uint8)
    memory = (ctypes.c_uint8 * rows.nbytes).from_address(rows.ctypes.data)
    return torch.frombuffer(memory, dtype=torch.uint8).view(rows.shape)


def _unregister(pid: int, cuda: Any, device: torch.device, memory: Bytes) -> None:
    """End the registration, after the kernels that may still read the memory."""
    if os.getpid() == pid:  # In a forked child, what is registered is the parent's.
        with suppress(RuntimeError):  # Of a kernel of the user that failed.
            torch.cuda.synchronize(device)
        cuda.cudaHostUnregister(memory.ctypes.data)
