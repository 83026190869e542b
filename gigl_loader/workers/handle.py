"""Trainer's side of one worker: its ring and its open requests, which outlive each of its processes."""

from __future__ import annotations

import logging
import os
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gigl_loader.channel.message import NOTHING, Request, Response, Result, Spent, receive
from gigl_loader.channel.ring import Ring, State
from gigl_loader.errors import FormatError
from gigl_loader.memfile import create_memory, map_memory
from gigl_loader.workers.process import Incarnation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gigl_loader.arrays import Bytes
    from gigl_loader.sampling.request import BatchRequest
    from gigl_loader.tracing import OpenSpan
    from gigl_loader.workers.config import WorkerConfig
    from gigl_loader.workers.frame_limit import FrameLimit


@dataclass(slots=True)
class WorkerStats:
    """Counters of one worker. They outlive its processes."""

    pid: int = 0
    batches: int = 0
    bytes: int = 0
    copied_out: int = 0
    oversize: int = 0
    restarts: int = 0
    sampling_ns: int = 0
    spent: Spent = NOTHING
    """By the current process."""
    past: Spent = NOTHING
    """By the processes before it."""

    def reap(self) -> None:
        """Move what the current process spent to ``past``, and count one restart."""
        self.restarts += 1
        self.past = self.past.plus(self.spent)
        self.spent = NOTHING

    def counts(self) -> dict[str, Any]:
        """Return the counters that can be added up over workers, in seconds, bytes and calls."""
        spent = self.spent.plus(self.past)
        return {
            "batches": self.batches,
            "bytes": self.bytes,
            "copied_out": self.copied_out,
            "oversize": self.oversize,
            "restarts": self.restarts,
            "seconds_sampling": self.sampling_ns / 1e9,
            "cpu_seconds": spent.cpu_ns / 1e9,
            "cpu_sampling": spent.cpu_sampling_ns / 1e9,
            "cpu_gathering": spent.cpu_gathering_ns / 1e9,
            "cpu_wire": spent.cpu_wire_ns / 1e9,
            "wire_bytes_in": spent.wire_bytes_in,
            "wire_bytes_out": spent.wire_bytes_out,
            "peer_calls": spent.peer_calls,
        }


def statistics(workers: Sequence[WorkerStats]) -> dict[str, Any]:
    """Return the counters summed over all workers, and under ``workers`` the counters of each."""
    each = [worker.counts() for worker in workers]
    listed = [{"worker": i, "pid": workers[i].pid, **counts} for i, counts in enumerate(each)]
    return {**{name: sum(counts[name] for counts in each) for name in each[0]}, "workers": listed}


_LOGGER = logging.getLogger(__name__)
_MAX_MAPS = 32
_NOBODY = -1


class Delivery(NamedTuple):
    """A finished frame that the source has not delivered yet: in a slot, or in memory of its own."""

    handle: WorkerHandle
    batch: int
    slot: int
    apart: Bytes | None
    nbytes: int
    unavailable: bool
    """The frame records a ``StorageUnavailable``: the batch may be requested again."""
    response: Response

    def record(self, span: OpenSpan) -> None:
        """Add the steps of the worker to the span of the batch."""
        began, gathering = self.response.began_ns / 1e9, self.response.gathering_ns / 1e9
        ended = began + self.response.sampling_ns / 1e9
        span.record("gigl.sample", began, ended - gathering)
        span.record("gigl.gather", ended - gathering, ended)


class Death(NamedTuple):
    """Record of a process that ended."""

    account: str
    trace: str
    hopeless: bool
    """The process exited by itself before it was up: a new one would exit for the same reason."""
    at_limit: bool
    """That reason is a limit of the system: no thread could be started."""
    pending: list[int]
    """Batches of the current epoch that were requested from the process and have no response."""


class WorkerHandle:
    """Sends requests to one process at a time and takes its responses. Blocks only to reap and to close."""

    def __init__(self, config: WorkerConfig, limit: FrameLimit, *, method: str, spare_slots: int) -> None:
        """Start the first process. Arrays of the consumer keep at most ``spare_slots`` slots at any time.

        ``limit`` is that of all workers of the source.
        """
        self.worker = config.worker
        self.stats = WorkerStats()
        self._config = config
        self._limit = limit
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
        """Whether one more request stays within the batches in flight, and its frame within the memory."""
        underway = self._config.ring.request_slots - len(self._free_request_slots) + self._undelivered
        return (
            underway < self._config.ring.request_slots
            and underway + self._ring.slots.lent < self._limit.of(self.worker)
        )

    @property
    def load(self) -> tuple[int, int]:
        """Open requests, then finished frames not delivered. The next request goes to the lowest load."""
        return len(self._open), self._undelivered

    @property
    def is_sampling(self) -> bool:
        """Whether requests have no response yet."""
        return bool(self._open)

    @property
    def is_awaited(self) -> bool:
        """Whether the process owes a response."""
        return self.is_sampling or not self.incarnation.started

    def leave_epoch(self, generation: int) -> None:
        """Drop requests of older generations: the process skips them, and their frames are not delivered."""
        self._generation = self._ring.generation = generation

    def send(self, request: BatchRequest) -> None:
        """Send a request. Does not block, and does not fail when the process is gone: ``deliveries`` will."""
        request_slot = self._free_request_slots.pop()
        entries = np.frombuffer(request.index.tobytes() + request.input_bytes(), np.uint8)
        # The entries first: the worker reads the slot as soon as it has the message.
        self._ring.request_slot(request_slot)[: len(entries)] = entries
        message = self._open[request_slot] = Request(
            request_slot, len(request), self._generation, request.epoch, request.batch, request.number
        )
        with suppress(BrokenPipeError, ConnectionResetError):
            self.incarnation.link.send(message.pack())

    def deliveries(self) -> Iterator[Delivery]:
        """Yield the frames that have arrived. Frames of older generations are dropped here.

        Raises ``EOFError`` when the process is gone, ``FormatError`` when it breaks the protocol.
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
        """Deliver a frame and return its memory, uint8 [nbytes].

        The memory is the slot itself, or a copy where arrays of the consumer would keep too many slots.
        """
        slots = self._ring.slots
        self._undelivered -= 1
        self.stats.batches += 1
        self.stats.bytes += delivery.nbytes
        if delivery.apart is not None:
            return self._lend_apart(delivery.apart)
        self._finished_slots.remove(delivery.slot)
        # One frame of the worker is left to be sampled next.
        if slots.lent < min(self._spare_slots, max(self._limit.of(self.worker) - 1, 1)):
            return slots.lend(delivery.slot, delivery.nbytes)
        self.stats.copied_out += 1
        try:
            return slots.buffer(delivery.slot)[: delivery.nbytes].copy()
        finally:
            slots.give(delivery.slot)

    def take_back(self, delivery: Delivery) -> Bytes:
        """Return a copy of a frame, uint8 [nbytes], and drop the frame: it does not count as delivered."""
        try:
            memory = delivery.apart
            if memory is None:
                memory = self._ring.slots.buffer(delivery.slot)[: delivery.nbytes]
            return memory.copy()
        finally:
            self.drop(delivery)

    def drop(self, delivery: Delivery) -> None:
        """Free the slot of a frame that was not delivered."""
        self._undelivered -= 1
        if delivery.apart is None:
            self._finished_slots.remove(delivery.slot)
            self._ring.slots.give(delivery.slot)

    def describe(self) -> str:
        """Return the worker, its process and its activity as text, for messages."""
        return f"worker {self.worker} (pid {self.incarnation.pid}): {self._activity()}"

    def kill_stopped(self, stopped_s: float) -> None:
        """Kill a process that a signal stopped. Its end of file is then handled like that of any other."""
        self.incarnation.kill_stopped(f"was stopped by a signal for {stopped_s:.1f} s, and killed for it")

    def reap(self) -> Death:
        """Reap a process that is gone and free what it held. Its finished frames stay valid."""
        account, status = self.incarnation.reap()
        hopeless = not self.incarnation.started and status is not None and status >= 0
        death = Death(
            account=f"{account} {self._last_seen()}",
            trace=self.incarnation.take_trace(),
            hopeless=hopeless,
            at_limit=hopeless and status == os.EX_OSERR,
            pending=[
                request.batch for request in self._open.values() if request.generation == self._generation
            ],
        )
        self.incarnation.hang_up()
        self.incarnation.end(time.monotonic())
        self._free_request_slots += self._open
        self._open.clear()
        # After the end of the process, which could otherwise still write to a slot that is free again.
        self._ring.slots.give_all(but=self._finished_slots)
        return death

    def restart(self) -> None:
        """Start another process after ``reap``, with the same ring and the next incarnation number."""
        self.stats.reap()
        self._config = replace(self._config, incarnation=self._config.incarnation + 1)
        self._start()

    def hang_up(self) -> None:
        """Tell the process to exit without starting another batch. Does not wait."""
        self._ring.generation = _NOBODY
        self.incarnation.hang_up()

    def end(self, deadline: float) -> None:
        """Wait until ``deadline`` (monotonic) for the process to exit, then kill it. Close all files."""
        self.incarnation.end(deadline)
        os.close(self._ring_fd)

    def abandon(self) -> None:
        """Close files only: in a forked child, the process belongs to the parent."""
        self.incarnation.abandon()
        os.close(self._ring_fd)

    def _start(self) -> None:
        self._ring.note(State.STARTING)
        self.incarnation = Incarnation(self._config, method=self._method, ring_fd=self._ring_fd)
        self.stats.pid = self.incarnation.pid

    def _take(self, response: Response, fds: list[int]) -> Delivery | None:
        self.stats.spent = response.spent
        if response.result == Result.STARTED:
            self.incarnation.started = True
            return None
        request = self._open.pop(response.request_slot, None)
        if request is None:
            raise FormatError(f"worker {self.worker} answered what it was not asked")
        self._free_request_slots.append(request.request_slot)
        self.stats.sampling_ns += response.sampling_ns
        delivery = self._delivery(request, response, fds)
        if request.generation == self._generation:
            return delivery
        if delivery is not None:
            self.drop(delivery)
        return None

    def _delivery(self, request: Request, response: Response, fds: list[int]) -> Delivery | None:
        if response.result == Result.SKIPPED and request.generation != self._generation:
            return None
        slots, slot, unavailable = self._ring.slots, response.slot, bool(response.unavailable)
        if response.result == Result.OVERSIZE and len(fds) == 1:
            self._count_oversize(response.nbytes)
            memory = map_memory(fds[0], response.nbytes)
            delivery = Delivery(self, request.batch, 0, memory, response.nbytes, unavailable, response)
        else:
            there = (
                response.result == Result.FRAME and slot < len(slots) and response.nbytes <= slots.slot_bytes
            )
            if not there or slots.is_lent(slot) or slot in self._finished_slots:
                raise FormatError(f"worker {self.worker} sent {response}")
            self._finished_slots.add(slot)
            delivery = Delivery(self, request.batch, slot, None, response.nbytes, unavailable, response)
        self._limit.note(response.nbytes)
        self._undelivered += 1
        return delivery

    def _lend_apart(self, memory: Bytes) -> Bytes:
        # Each mapping holds a file descriptor, and a process may have only about a thousand of them.
        if len(self._maps) == _MAX_MAPS:
            self.stats.copied_out += 1
            return memory.copy()
        self._maps.add(id(memory))
        weakref.finalize(memory, self._maps.discard, id(memory)).atexit = False
        return memory

    def _count_oversize(self, nbytes: int) -> None:
        self.stats.oversize += 1
        if self.stats.oversize == 1:
            _LOGGER.warning(
                "a frame of %.1f MB is larger than a slot of the ring of worker %d, %.1f MB: a larger "
                "channel_size, or no limit of address space (ulimit -v), saves the cost of fresh memory",
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
