"""Ring: the memory that one sampling process shares with its trainer, in slots that are lent out as arrays.

Frames are large (125 MB is usual), and the first touch of a page costs a fault, several times the price
of copying the page. So slots are reused, lowest first: the number of touched slots stays as small as
the number of batches alive. A slot has address space for a far larger frame than is usual, of which only
touched pages are memory.

A ring is one memory file without a name: nothing is left in ``/dev/shm`` after SIGKILL, and a container's
limit on ``/dev/shm`` does not apply. Pages are committed when touched. The file holds, in order,

- the control page: the current generation, what the worker is doing, and the flags of the slots;
- request slots, into which the trainer writes the entries of a request;
- slots, into which the worker writes frames.

The worker takes slots, the trainer gives them back. The trainer alone keeps the state that must survive
the death of a worker (which slots are lent, which requests are open), so that a new process can use the
same ring.
"""

from __future__ import annotations

import mmap
import sys
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gigl_loader.arrays import Bytes
from gigl_loader.memfile import map_memory
from gigl_loader.native import lease_slot
from gigl_loader.resources import address_bytes, naming_channel


class SlotPool:
    """Equal slots of one memory. A lent slot is free again when the last array made from it is collected.

    ``flags`` has one byte per slot, 1 where the slot is taken. Memory and flags may be shared by two
    processes. One of them then only takes slots, and the other only lends them and gives them back.
    """

    def __init__(self, memory: Bytes, flags: Bytes) -> None:
        self._memory = memory
        self._flags = flags
        self._lent = np.zeros(len(flags), np.uint8)
        self.slot_bytes = len(memory) // len(flags)

    def __len__(self) -> int:
        return len(self._flags)

    @property
    def lent(self) -> int:
        """Number of slots that arrays of this process hold."""
        return int(np.count_nonzero(self._lent))

    def take(self, nbytes: int = 0) -> int | None:
        """Take the lowest free slot. ``None`` where none is free, and for ``nbytes`` that no slot holds."""
        if nbytes > self.slot_bytes or self._flags.all():
            return None
        slot = int(self._flags.argmin())
        self._flags[slot] = 1
        return slot

    def give(self, slot: int) -> None:
        """Free a taken slot that was not lent."""
        self._flags[slot] = 0

    def give_all(self, *, but: set[int]) -> None:
        """Free every slot that is neither lent nor in ``but``, after the process that took slots has died."""
        for slot in range(len(self)):
            if slot not in but and not self._lent[slot]:
                self._flags[slot] = 0

    def is_lent(self, slot: int) -> bool:
        """Whether arrays of this process hold a slot."""
        return bool(self._lent[slot])

    def buffer(self, slot: int) -> Bytes:
        """Return the memory of a taken slot, uint8 [``slot_bytes``]. Valid until it is freed."""
        return self._memory[slot * self.slot_bytes : (slot + 1) * self.slot_bytes]

    def lend(self, slot: int, nbytes: int) -> Bytes:
        """Return ``nbytes`` from the start of a taken slot as an array, uint8 [nbytes], that owns the slot.

        Views and tensors made from the array own it, too. It is freed with the last of these, in any
        thread, without a line of Python: an interrupt cannot lose it. The memory outlives the pool.
        """
        return np.asarray(_Lease(self.buffer(slot), nbytes, lease_slot(self._lent, self._flags, slot)))


class _Lease:
    """Base object of every array in a lent slot, which it keeps mapped. NumPy and torch keep it alive."""

    __slots__ = ("__array_interface__", "_lease", "memory")

    def __init__(self, memory: Bytes, nbytes: int, lease: object) -> None:
        self.memory = memory
        self._lease = lease
        self.__array_interface__: dict[str, Any] = memory[:nbytes].__array_interface__


def slot_bytes_of(nbytes: int, slots: int) -> int:
    """Return the bytes of each of ``slots`` slots that share ``nbytes``: whole pages, at least one."""
    return max(nbytes // slots // mmap.PAGESIZE, 1) * mmap.PAGESIZE


def private_slots(nbytes: int, slots: int) -> SlotPool:
    """Return a pool of ``slots`` slots in private memory, for frames that take ``nbytes`` together.

    Pages are committed when they are touched. Raises ``MemoryError`` where there is no address space.
    """
    slot_bytes = slot_bytes_of(address_bytes(nbytes), slots)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if sys.platform == "linux":  # Reserves address space only: a machine may map more memory than it has.
        flags |= getattr(mmap, "MAP_NORESERVE", 0x4000)
    with naming_channel(nbytes):
        memory = np.frombuffer(mmap.mmap(-1, slot_bytes * slots, flags=flags), np.uint8)
    return SlotPool(memory, np.zeros(slots, np.uint8))


def slot_of(array: Bytes) -> Bytes | None:
    """Return the slot whose start ``array`` is, uint8 [``slot_bytes``]. ``None`` for other memory.

    Every array lent from the same slot, now or later, has the same memory.
    """
    lease: object = array.base
    return lease.memory if isinstance(lease, _Lease) else None


_PAGE = 4096
_FLAGS_AT = 1024
_MAX_SLOTS = _PAGE - _FLAGS_AT


class State(IntEnum):
    """Activity of a worker, as the worker notes it in the ring."""

    STARTING = 0
    IDLE = 1
    SAMPLING = 2


class Doing(NamedTuple):
    """Activity of a worker, and for how long."""

    state: State
    epoch: int
    batch: int
    """The oldest batch under way."""
    seconds: float
    others: int
    """Number of other batches under way."""

    @property
    def batches(self) -> str:
        """Batches under way, as text."""
        more = f" and {self.others} more" if self.others else ""
        return f"batch {self.batch} of epoch {self.epoch}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RingLayout:
    """Sizes of the parts of a ring."""

    request_slots: int
    """Number of requests that may be open at the worker."""
    request_bytes: int
    """Size of the entries of a request, a multiple of 8."""
    slots: int
    """Number of frames that may lie in the ring."""
    slot_bytes: int
    """Address space of a slot. A larger frame gets a memory file of its own."""

    def __post_init__(self) -> None:
        if self.request_bytes % 8:
            raise ValueError(f"requests take a multiple of 8 bytes, not {self.request_bytes}")
        if not 1 <= self.slots <= _MAX_SLOTS:
            raise ValueError(
                f"a ring holds 1 to {_MAX_SLOTS} frames, not {self.slots}: lower worker_concurrency"
            )

    @classmethod
    def fit(cls, nbytes: int, *, request_slots: int, request_bytes: int, slots: int) -> RingLayout:
        """Return a layout whose ``slots`` share ``nbytes``: whole pages, at least one page each."""
        slot_bytes = max(nbytes // slots // _PAGE, 1) * _PAGE
        return cls(
            request_slots=request_slots,
            request_bytes=-(-request_bytes // 8) * 8,
            slots=slots,
            slot_bytes=slot_bytes,
        )

    @property
    def slots_at(self) -> int:
        return _PAGE + -(-self.request_slots * self.request_bytes // _PAGE) * _PAGE

    @property
    def nbytes(self) -> int:
        return self.slots_at + self.slots * self.slot_bytes


class Ring:
    """A mapped ring, in the trainer or in the worker. Arrays lent from ``slots`` keep its memory mapped."""

    def __init__(self, fd: int, layout: RingLayout) -> None:
        """Map the ring in memory file ``fd``, which the caller still owns."""
        memory = map_memory(fd, layout.nbytes)
        flags = memory[_FLAGS_AT : _FLAGS_AT + layout.slots]
        self.slots = SlotPool(memory[layout.slots_at :], flags)
        self._words: npt.NDArray[np.int64] = memory[:_FLAGS_AT].view(np.int64)
        requests = memory[_PAGE : _PAGE + layout.request_slots * layout.request_bytes]
        self._request_slots = requests.reshape(layout.request_slots, layout.request_bytes)

    @property
    def generation(self) -> int:
        """Set by the trainer. The worker responds ``SKIPPED`` to requests of any other generation."""
        return int(self._words[0])

    @generation.setter
    def generation(self, value: int) -> None:
        self._words[0] = value

    def request_slot(self, request_slot: int) -> npt.NDArray[np.uint8]:
        """Return a request slot, uint8 [``request_bytes``]: the index, then each input column in turn."""
        found: npt.NDArray[np.uint8] = self._request_slots[request_slot]
        return found

    def note(
        self, state: State, *, epoch: int = 0, batch: int = 0, since_ns: int | None = None, others: int = 0
    ) -> None:
        """Note the oldest ``batch``, since when it runs (monotonic), and the number of other batches."""
        since = time.monotonic_ns() if since_ns is None else since_ns
        self._words[8:13] = state, epoch, batch, since, others

    def doing(self) -> Doing:
        """Return the last note of the worker."""
        state, epoch, batch, since, others = self._words[8:13].tolist()
        return Doing(State(state), epoch, batch, (time.monotonic_ns() - since) / 1e9, others)
