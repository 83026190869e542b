"""Page-locking of ring slots in place, so that a device copies straight out of them."""

from __future__ import annotations

import logging
import os
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from gigl_loader.arrays import Bytes


__all__ = ["PinnedSlots"]

_LOGGER = logging.getLogger(__name__)
_PAGE_BYTES = 4096
_ROOM = 9 / 8
"""Frames of a run differ by a few per cent in size: what is pinned holds the next ones, too."""


class PinnedSlots:
    """What is page-locked of the slots that were seen.

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

        Nothing may be copying from the slot. Where CUDA refuses once, it is not asked again.
        """
        pinned, address = self._pinned_in(slot), slot.ctypes.data
        if pinned.get(address, 0) >= nbytes:
            return True
        if self._refused:
            return False
        if pinned.pop(address, 0):
            self._cuda.cudaHostUnregister(address)
        pages = -(-int(nbytes * _ROOM) // _PAGE_BYTES)
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
            # Weak references to an array are told before what it maps is unmapped.
            finalizer = weakref.finalize(memory, _unpin, os.getpid(), self._cuda, self._memories, id(memory))
            finalizer.atexit = False
        return self._memories[id(memory)]

    def _accept_refusal(self, status: int, size: int) -> None:
        self._refused = True
        # CUDA keeps the error for whoever asks next, which would be the user's next kernel.
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
