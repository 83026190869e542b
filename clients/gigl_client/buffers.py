"""Buffers for received frames: slots of a server's ring, or private memory. No allocation per batch."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.channel.slots import SlotPool, private_slots
from gigl_loader.errors import FormatError
from gigl_loader.memfile import map_memory
from gigl_loader.resources import naming_channel

if TYPE_CHECKING:
    from gigl_loader.arrays import Bytes

__all__ = ["SPARE_SLOTS", "PrivateBuffers", "RingBuffers"]

SPARE_SLOTS = 8
"""Slots beyond the batches in flight: for frames that the consumer keeps or that a left epoch holds."""


class RingBuffers:
    """A ring that a server on this host writes to. Only the trainer takes slots: requests name theirs."""

    def __init__(self, fd: int, *, slots: int, slot_bytes: int) -> None:
        """Map the memory file, and close ``fd``."""
        try:
            with naming_channel(slots * slot_bytes):
                memory = map_memory(fd, slots * slot_bytes)
        finally:
            os.close(fd)
        self._slots = SlotPool(memory, np.zeros(slots, np.uint8))
        self._lock = threading.Lock()

    def take(self) -> int | None:
        """Return a free slot, now taken. ``None`` where all are taken."""
        with self._lock:
            return self._slots.take()

    def give(self, slot: int) -> None:
        """Free a taken slot that was not lent."""
        self._slots.give(slot)

    def view(self, slot: int, nbytes: int) -> Bytes:
        """Return the first ``nbytes`` of a taken slot, uint8 [nbytes]. Valid until the slot is freed."""
        self._check(nbytes)
        return self._slots.buffer(slot)[:nbytes]

    def lend(self, slot: int, nbytes: int) -> Bytes:
        """Return the first ``nbytes`` of a taken slot, uint8 [nbytes]. The last reference frees the slot."""
        self._check(nbytes)
        return self._slots.lend(slot, nbytes)

    def _check(self, nbytes: int) -> None:
        if not 0 < nbytes <= self._slots.slot_bytes:
            raise FormatError(f"a frame of {nbytes} bytes in a slot of {self._slots.slot_bytes}")


class PrivateBuffers:
    """Memory of this process for frames that come over a network. Thread-safe."""

    def __init__(self, nbytes: int, slots: int) -> None:
        """Reserve ``nbytes`` of address space. Memory is committed when touched."""
        self._slots = private_slots(nbytes, slots)
        self._lock = threading.Lock()
        self.oversize = 0
        """Number of frames larger than a slot that found no room."""
        self.crowded_out = 0
        """Number of frames that would fit a slot and found none free."""

    def lend(self, nbytes: int) -> Bytes:
        """Return memory for a frame, uint8 [nbytes]: slots, or fresh memory where too few are free."""
        span = self._slots.span(nbytes)
        with self._lock:
            slot = self._slots.take(span)
            if slot is None:
                self.oversize += span > 1
                self.crowded_out += span == 1
        return np.empty(nbytes, np.uint8) if slot is None else self._slots.lend(slot, nbytes)
