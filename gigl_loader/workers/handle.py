"""One worker as its trainer sees it: its ring and its open requests, which survive its processes."""

from __future__ import annotations

import logging
import os
import time
import weakref
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gigl_loader.channel.message import Request, Response, Result, receive
from gigl_loader.channel.ring import Ring, State, create_memory, map_memory
from gigl_loader.errors import FormatError
from gigl_loader.workers.process import Incarnation
from gigl_loader.workers.stats import WorkerStats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.arrays import Bytes
    from gigl_loader.sampling.request import BatchRequest
    from gigl_loader.workers.config import WorkerConfig

__all__ = ["Death", "Delivery", "WorkerHandle"]

_LOGGER = logging.getLogger(__name__)
_MAX_MAPS = 32
_NOBODY = -1


class Delivery(NamedTuple):
    """A finished frame that was not handed out yet: in a slot, or in memory of its own."""

    handle: WorkerHandle
    batch: int
    slot: int
    apart: Bytes | None
    nbytes: int
    unavailable: bool
    """It is the record of a ``StorageUnavailable``: the batch may be asked for again."""


class Death(NamedTuple):
    """How a process ended."""

    account: str
    trace: str
    hopeless: bool
    """It ended by itself before it was up: another would end alike."""
    pending: list[int]
    """Batches that were asked of it, and neither answered nor given up."""


class WorkerHandle:
    """Sends requests to one process at a time and takes its answers. Waits only to reap and to close."""

    def __init__(self, config: WorkerConfig, *, method: str, spare_slots: int) -> None:
        """Start the first process. Arrays keep at most ``spare_slots`` slots at any time."""
        self.worker = config.worker
        self.tally = WorkerStats()
        self._config = config
        self._method = method
        self._spare_slots = spare_slots
        self._generation = 0
        self._open: dict[int, Request] = {}
        self._free_request_slots = list(range(config.ring.request_slots))
        self._undelivered = 0
        self._finished_slots: set[int] = set()
        self._maps: set[int] = set()
        self._ring_fd = create_memory(f"gigl-ring-{config.worker}", config.ring.nbytes)
        try:
            self._ring = Ring(self._ring_fd, config.ring)
            self._start()
        except BaseException:
            os.close(self._ring_fd)
            raise

    @property
    def has_room(self) -> bool:
        """Whether one more request stays within the batches in flight."""
        return len(self._free_request_slots) > self._undelivered

    @property
    def load(self) -> tuple[int, int]:
        """Requests that the next one waits for, then finished frames. Less is better."""
        return len(self._open), self._undelivered

    @property
    def is_awaited(self) -> bool:
        """Whether the process owes an answer."""
        return bool(self._open) or not self.incarnation.started

    def leave_epoch(self, generation: int) -> None:
        """Only requests of ``generation`` are wanted from now on."""
        self._generation = self._ring.generation = generation

    def send(self, request: BatchRequest) -> None:
        """Send a request. If the process is gone, its end of file will tell."""
        request_slot = self._free_request_slots.pop()
        entries = np.frombuffer(request.index.tobytes() + request.input_bytes(), np.uint8)
        self._ring.request_slot(request_slot)[: len(entries)] = entries
        message = self._open[request_slot] = Request(
            request_slot, len(request), self._generation, request.epoch, request.batch
        )
        with suppress(BrokenPipeError, ConnectionResetError):
            self.incarnation.link.send(message.pack())

    def deliveries(self) -> Iterator[Delivery]:
        """Yield the frames that have come. Those of an epoch that was left are dropped here.

        ``EOFError`` when the process is gone, ``FormatError`` when it breaks the protocol.
        """
        while True:
            try:
                data, fds = receive(self.incarnation.link)
            except BlockingIOError:
                return
            if not data:
                raise EOFError(f"worker {self.worker} is gone")
            try:
                delivery = self._take(Response.unpack(data), fds)
            finally:
                for fd in fds:
                    os.close(fd)
            if delivery is not None:
                yield delivery

    def hand_out(self, delivery: Delivery) -> Bytes:
        """Return the memory of a frame, for good: its slot, or a copy when arrays keep many slots."""
        slots = self._ring.slots
        self._undelivered -= 1
        self.tally.batches += 1
        self.tally.bytes += delivery.nbytes
        if delivery.apart is not None:
            return self._lend_apart(delivery.apart)
        self._finished_slots.remove(delivery.slot)
        if slots.lent < self._spare_slots:
            return slots.lend(delivery.slot, delivery.nbytes)
        self.tally.copied_out += 1
        try:
            return slots.buffer(delivery.slot)[: delivery.nbytes].copy()
        finally:
            slots.give(delivery.slot)

    def take_back(self, delivery: Delivery) -> Bytes:
        """Return a copy of a frame that does not count as delivered, and give it up."""
        try:
            memory = delivery.apart
            if memory is None:
                memory = self._ring.slots.buffer(delivery.slot)[: delivery.nbytes]
            return memory.copy()
        finally:
            self.drop(delivery)

    def drop(self, delivery: Delivery) -> None:
        """Give up a frame that was not handed out."""
        self._undelivered -= 1
        if delivery.apart is None:
            self._finished_slots.remove(delivery.slot)
            self._ring.slots.give(delivery.slot)

    def describe(self) -> str:
        """Say who the worker is and what it does."""
        return f"worker {self.worker} (pid {self.incarnation.pid}): {self._activity()}"

    def put_down(self, stopped_s: float) -> None:
        """Kill a process that a signal stopped: it is then gone like any other."""
        self.incarnation.put_down(f"was stopped by a signal for {stopped_s:.1f} s, and killed for it")

    def reap(self) -> Death:
        """Settle the affairs of a process that is gone. Its finished frames are still good."""
        account, status = self.incarnation.reap()
        death = Death(
            account=f"{account} {self._last_seen()}",
            trace=self.incarnation.take_trace(),
            hopeless=not self.incarnation.started and status is not None and status >= 0,
            pending=[
                request.batch for request in self._open.values() if request.generation == self._generation
            ],
        )
        self.incarnation.hang_up()
        self.incarnation.end(time.monotonic())
        self._free_request_slots += self._open
        self._open.clear()
        self._ring.slots.give_all(but=self._finished_slots)
        return death

    def restart(self) -> None:
        """Start another process in the place of one that was buried."""
        self.tally.reap()
        self._config = replace(self._config, incarnation=self._config.incarnation + 1)
        self._start()

    def hang_up(self) -> None:
        """Tell the process to leave, and not to begin another batch. Does not wait."""
        self._ring.generation = _NOBODY
        self.incarnation.hang_up()

    def end(self, deadline: float) -> None:
        """Wait until ``deadline`` (monotonic) for the process to leave, then make it. Close everything."""
        self.incarnation.end(deadline)
        os.close(self._ring_fd)

    def abandon(self) -> None:
        """Close files only: in a forked child, the process is the parent's."""
        self.incarnation.abandon()
        os.close(self._ring_fd)

    def _start(self) -> None:
        self._ring.note(State.STARTING)
        self.incarnation = Incarnation(self._config, method=self._method, ring_fd=self._ring_fd)
        self.tally.pid = self.incarnation.pid

    def _take(self, response: Response, fds: list[int]) -> Delivery | None:
        self.tally.spent = response.spent
        if response.result == Result.STARTED:
            self.incarnation.started = True
            return None
        request = self._open.pop(response.request_slot, None)
        if request is None:
            raise FormatError(f"worker {self.worker} answered what it was not asked")
        self._free_request_slots.append(request.request_slot)
        self.tally.sampling_ns += response.sampling_ns
        delivery = self._delivery(request, response, fds)
        if request.generation == self._generation:
            return delivery
        if delivery is not None:
            self.drop(delivery)
        return None

    def _delivery(self, request: Request, response: Response, fds: list[int]) -> Delivery | None:
        if response.result == Result.SKIPPED and request.generation != self._generation:
            return None
        if response.result == Result.OVERSIZE and len(fds) == 1:
            self._count_oversize(response.nbytes)
            self._undelivered += 1
            memory = map_memory(fds[0], response.nbytes)
            return Delivery(self, request.batch, 0, memory, response.nbytes, bool(response.unavailable))
        slots, slot = self._ring.slots, response.slot
        free = slot < len(slots) and not slots.is_lent(slot) and slot not in self._finished_slots
        if response.result != Result.FRAME or not free or response.nbytes > slots.slot_bytes:
            raise FormatError(f"worker {self.worker} sent {response}")
        self._undelivered += 1
        self._finished_slots.add(slot)
        return Delivery(self, request.batch, slot, None, response.nbytes, bool(response.unavailable))

    def _lend_apart(self, memory: Bytes) -> Bytes:
        # A mapping holds a file descriptor, of which a process may have only a thousand.
        if len(self._maps) == _MAX_MAPS:
            self.tally.copied_out += 1
            return memory.copy()
        self._maps.add(id(memory))
        weakref.finalize(memory, self._maps.discard, id(memory)).atexit = False
        return memory

    def _count_oversize(self, nbytes: int) -> None:
        self.tally.oversize += 1
        if self.tally.oversize == 1:
            _LOGGER.warning(
                "a frame of %.1f MB fits no slot of worker %d, which hold %.1f MB: a larger channel_size "
                "saves the cost of fresh memory",
                nbytes / 1e6,
                self.worker,
                self._ring.slots.slot_bytes / 1e6,
            )

    def _activity(self) -> str:
        run_state = self.incarnation.run_state
        if run_state.startswith(("stopped", "dead")):
            return f"{run_state}, {self._last_seen()}"
        doing = self._ring.doing()
        verb = {State.STARTING: "starting", State.IDLE: "idle", State.SAMPLING: "sampling"}[doing.state]
        what = f" {doing.batches}" if doing.state == State.SAMPLING else ""
        return f"{verb}{what} for {doing.seconds:.1f} s ({run_state})"

    def _last_seen(self) -> str:
        doing = self._ring.doing()
        if doing.state == State.SAMPLING:
            return f"while it sampled {doing.batches}"
        return "while it started" if doing.state == State.STARTING else "while it had nothing to sample"
