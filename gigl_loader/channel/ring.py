"""The memory that one sampling process shares with its trainer.

One memory file without a name: nothing is left in ``/dev/shm`` after SIGKILL, and a container's limit
on ``/dev/shm`` does not bind. Pages are committed when touched. In order it holds

- the control page: the generation that is wanted, what the worker is doing, and the slots' flags;
- request slots, into which the trainer writes the entries of a request;
- slots, into which the worker writes frames.

The worker takes slots, the trainer gives them back. Everything that must survive the death of a
worker (which slots are lent, which requests are open) is known to the trainer alone, so a new process
goes on with the same ring.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gigl_loader.channel.slots import SlotPool
from gigl_loader.memfile import create_memory, map_memory

__all__ = ["Doing", "Ring", "RingLayout", "State", "create_memory", "map_memory"]

_PAGE = 4096
_FLAGS_AT = 1024
_MAX_SLOTS = _PAGE - _FLAGS_AT


class State(IntEnum):
    """What a worker says that it is doing."""

    STARTING = 0
    IDLE = 1
    SAMPLING = 2


class Doing(NamedTuple):
    """What a worker says that it is doing, and for how long."""

    state: State
    epoch: int
    batch: int
    """The oldest batch under way."""
    seconds: float
    others: int
    """How many other batches are under way."""

    @property
    def batches(self) -> str:
        """The batches under way, in words."""
        more = f" and {self.others} more" if self.others else ""
        return f"batch {self.batch} of epoch {self.epoch}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RingLayout:
    """Sizes in a ring."""

    request_slots: int
    """Requests that may wait at the worker."""
    request_bytes: int
    """Of the entries of a request: a multiple of 8."""
    slots: int
    """Frames that may lie in the ring."""
    slot_bytes: int
    """Room for a frame. Larger ones get a memory file of their own."""

    def __post_init__(self) -> None:
        if self.request_bytes % 8:
            raise ValueError(f"requests take a multiple of 8 bytes, not {self.request_bytes}")
        if not 1 <= self.slots <= _MAX_SLOTS:
            raise ValueError(
                f"a ring holds 1 to {_MAX_SLOTS} frames, not {self.slots}: lower worker_concurrency"
            )

    @classmethod
    def fit(cls, nbytes: int, *, request_slots: int, request_bytes: int, slots: int) -> RingLayout:
        """Cut ``nbytes`` in slots of whole pages, at least one page each."""
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
    """A ring, seen from either side. Arrays lent from ``slots`` keep its memory mapped."""

    def __init__(self, fd: int, layout: RingLayout) -> None:
        """Map the ring in memory file ``fd``, which stays the caller's."""
        memory = map_memory(fd, layout.nbytes)
        flags = memory[_FLAGS_AT : _FLAGS_AT + layout.slots]
        self.slots = SlotPool(memory[layout.slots_at :], flags)
        self._words: npt.NDArray[np.int64] = memory[:_FLAGS_AT].view(np.int64)
        requests = memory[_PAGE : _PAGE + layout.request_slots * layout.request_bytes]
        self._request_slots = requests.reshape(layout.request_slots, layout.request_bytes)

    @property
    def generation(self) -> int:
        """Requests of another generation need no answer but ``SKIPPED``. Set by the trainer."""
        return int(self._words[0])

    @generation.setter
    def generation(self, value: int) -> None:
        self._words[0] = value

    def request_slot(self, request_slot: int) -> npt.NDArray[np.uint8]:
        """Return the memory of a request: its index, then its input columns one after the other."""
        found: npt.NDArray[np.uint8] = self._request_slots[request_slot]
        return found

    def note(
        self, state: State, *, epoch: int = 0, batch: int = 0, since_ns: int | None = None, others: int = 0
    ) -> None:
        """Say what the worker is doing: ``batch``, its oldest, since then (monotonic), and ``others``."""
        since = time.monotonic_ns() if since_ns is None else since_ns
        self._words[8:13] = state, epoch, batch, since, others

    def doing(self) -> Doing:
        """Return what the worker said that it is doing."""
        state, epoch, batch, since, others = self._words[8:13].tolist()
        return Doing(State(state), epoch, batch, (time.monotonic_ns() - since) / 1e9, others)
