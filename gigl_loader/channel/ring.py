"""Ring: the memory that one sampling process shares with its trainer.

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
    """Size of a slot. A larger frame takes several, or gets a memory file of its own."""

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
        """Note the oldest ``batch``, since when it runs (monotonic), and the number of ``others``."""
        since = time.monotonic_ns() if since_ns is None else since_ns
        self._words[8:13] = state, epoch, batch, since, others

    def doing(self) -> Doing:
        """Return the last note of the worker."""
        state, epoch, batch, since, others = self._words[8:13].tolist()
        return Doing(State(state), epoch, batch, (time.monotonic_ns() - since) / 1e9, others)
