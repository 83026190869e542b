"""Source of batches from sampling processes on this host.

The trainer needs no extra thread: it sends requests and takes responses while it waits in ``receive``.
Every worker has enough requests queued to be busy between two calls.

Workers that a signal stopped (SIGSTOP) hold requests and will not respond. They are detected by the process
state that the kernel shows, so a slow worker is never reported, nor one that a debugger is attached to.
"""

from __future__ import annotations

import heapq
import logging
import os
import select
import time
import weakref
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

from gigl_loader.channel.frame import Failure, Frame
from gigl_loader.channel.ring import RingLayout
from gigl_loader.errors import FormatError, SamplingError, WorkerDied, add_note
from gigl_loader.processes import is_stopped
from gigl_loader.resources import address_bytes, naming_channel, naming_process_limit, process_limit
from gigl_loader.retry import Deadline, attempts
from gigl_loader.sampling.request import entry_bytes
from gigl_loader.sampling.source import check_epoch, features_told
from gigl_loader.tensors import Layout
from gigl_loader.workers.config import WorkerConfig
from gigl_loader.workers.frame_limit import FrameLimit
from gigl_loader.workers.handle import WorkerHandle, statistics
from gigl_loader.workers.process import check_start_method, collect_stacks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gigl_loader.graph.graph import Graph
    from gigl_loader.options import WorkerOptions
    from gigl_loader.sampling.feature_memory import FeatureMemory
    from gigl_loader.sampling.plan import BatchPlan
    from gigl_loader.sampling.schedule import Schedule
    from gigl_loader.shared import SharedTensors
    from gigl_loader.tracing import BatchSpans
    from gigl_loader.workers.handle import Death, Delivery

LOOK_S = 0.5
"""Interval between two looks of a waiting trainer."""

_MAX_GRACE_S = 5.0  # Long enough to inspect a process by hand, short compared to a usual timeout.
_SHARE_OF_TIMEOUT = 0.1
_MAX_GAP_S = 4 * LOOK_S  # After a longer gap the trainer itself may have been stopped.


class StallDetector:
    """Time since when each worker is stopped. Used by the one thread that waits for batches."""

    def __init__(self, *, timeout_s: float) -> None:
        """A worker may be stopped for 5 s, or for a tenth of ``timeout_s`` where that is less."""
        self._grace_s = min(_MAX_GRACE_S, _SHARE_OF_TIMEOUT * timeout_s)
        self._since: dict[int, float] = {}
        """When each process was first seen stopped (monotonic), by process id."""
        self._last_look = 0.0

    def stalled(self, handles: Sequence[WorkerHandle]) -> dict[WorkerHandle, float]:
        """Return the workers whose process has been stopped for too long, each with the seconds it was."""
        now = time.monotonic()
        if now - self._last_look > _MAX_GAP_S:
            self._since.clear()
        self._last_look = now
        stopped = {
            handle.incarnation.pid: handle for handle in handles if handle.is_awaited and _is_stopped(handle)
        }
        self._since = {pid: self._since.get(pid, now) for pid in stopped}
        return {
            stopped[pid]: now - since for pid, since in self._since.items() if now - since > self._grace_s
        }


def _is_stopped(handle: WorkerHandle) -> bool:
    return is_stopped(handle.incarnation.pid)


_LOGGER = logging.getLogger(__name__)
_LEAVE_SECONDS = 1.0
_CANNOT_START = {
    "spawn": "it cannot start",
    "fork": "it cannot start",
    "forkserver": "it cannot start: forkserver imports the main module again, "
    "which needs `if __name__ == '__main__':` around what it runs",
}
_MIN_SPARE_SLOTS = 2  # Per worker: the batch in use, and the one before it.
_SPARE_SLOTS = 8  # Over all workers: frames that the consumer may keep before frames are copied.
_MAX_CONCURRENCY = 128  # Per worker: sends never block, as a socket's buffer holds some 270 messages.


class WorkerSource:
    """Batches from ``options.num_workers`` processes, which live until ``close`` or the last reference.

    Any worker may sample any batch: a batch is a function of its request. So the requests of a worker that
    died are sent again, to any worker.
    """

    def __init__(
        self,
        graph: Graph,
        plan: BatchPlan,
        schedule: Schedule,
        options: WorkerOptions,
        *,
        shared: SharedTensors | None = None,
        sampler: str = "gigl_loader.workers.main:open_samplers",
        timeout_s: float = 300.0,
        memory: FeatureMemory | None = None,
        deferred: bool = False,
        values: bool = False,
        ranks: int = 1,
        spans: BatchSpans | None = None,
    ) -> None:
        """Start the workers. Returns before they are up; ``receive`` raises if one cannot start.

        ``shared`` is for code of the user that samples.

        ``sampler`` names, as ``module:function``, the function that makes a worker's samplers from its
        ``WorkerConfig``: one for each batch that it samples at the same time. ``timeout_s`` is how long
        the trainer will wait in ``receive``: workers give up requests to peers within that time. ``deferred``
        frames have the places of features instead of the features; with ``values``, whole frames have the
        values of quantised columns beside the codes.

        ``memory``, for ``stats``: where features are read from. ``ranks`` of this host share its memory.
        """
        check_start_method(options.start_method)
        self._graph = graph  # Its files stay open: a restarted worker opens them again.
        self._deferred = deferred
        self._values = values
        self._ranks = ranks
        self._schedule = schedule
        self._shared = shared
        self._options = options
        self._timeout_s = timeout_s
        self._detector = StallDetector(timeout_s=timeout_s)
        self._spans = spans
        self._memory_told = features_told(memory)
        self._pid = os.getpid()
        self._generation = 0
        self._epoch = -1
        self._remaining = 0
        self._position = self._next_batch = schedule.num_batches  # Nothing to request before an epoch.
        self._returned: list[int] = []
        self._ready: dict[int, Delivery] = {}
        self._restarts = 0
        self._seconds_waiting = 0.0
        self._closed = False
        self._failure: Callable[[], Exception] | None = None
        self._handles: list[WorkerHandle] = []
        self._poll = select.poll()
        self._by_fd: dict[int, WorkerHandle] = {}
        self._close = weakref.finalize(self, _end_all, self._handles, self._pid)
        try:
            self._start(plan, sampler)
        except BaseException:
            self._close()
            raise
        self._worker_stats = [handle.stats for handle in self._handles]

    @property
    def num_batches(self) -> int:
        return self._schedule.num_batches

    def start_epoch(self, epoch: int, first_batch: int = 0, origin: int = 0) -> None:
        """Go to ``first_batch`` of ``epoch`` and send the first requests. Does not wait for the workers."""
        self._check_usable()
        schedule = self._schedule.from_origin(origin)
        check_epoch(epoch, first_batch, num_batches=schedule.num_batches)
        self._schedule = schedule
        self._generation += 1
        for delivery in self._ready.values():
            delivery.handle.drop(delivery)
        self._ready.clear()
        self._returned.clear()
        for handle in self._handles:
            handle.leave_epoch(self._generation)
        self._epoch, self._position, self._next_batch = epoch, first_batch, first_batch
        self._remaining = self.num_batches - first_batch
        self._hand_out()

    def wait_until_up(self, timeout: float) -> None:
        self._check_usable()
        deadline = time.monotonic() + timeout
        while not all(handle.incarnation.started for handle in self._handles):
            self._wait(deadline, timeout)

    def receive(self, timeout: float) -> Frame:
        self._check_usable()
        if not self._remaining:
            raise ValueError(f"all {self.num_batches} batches of the epoch were received: start an epoch")
        began = time.monotonic()
        try:
            self._hand_out()  # A batch that was not available, or one for which there is room again.
            batch = self._awaited(began + timeout, timeout)
        finally:
            self._seconds_waiting += time.monotonic() - began
        return self._deliver(batch)

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._by_fd.clear()
        self._close()

    def stats(self) -> dict[str, Any]:
        counted = statistics(self._worker_stats)
        return {**counted, "seconds_waiting": self._seconds_waiting, **self._memory_told}

    def _start(self, plan: BatchPlan, sampler: str) -> None:
        options = self._options
        spare_slots = max(_MIN_SPARE_SLOTS, _SPARE_SLOTS // options.num_workers)
        concurrency = min(options.worker_concurrency, _MAX_CONCURRENCY)
        largest = max(min(self._schedule.batch_size, self._schedule.num_entries), 1)
        nbytes = options.frame_bytes(ranks=self._ranks)
        limit = FrameLimit(
            nbytes,
            workers=options.num_workers,
            most=concurrency + spare_slots,
            is_given=options.channel_bytes is not None,
        )
        ring = RingLayout.fit(
            address_bytes(nbytes) // options.num_workers,
            request_slots=concurrency,
            request_bytes=largest * entry_bytes(plan.inputs),
            slots=concurrency + spare_slots,
        )
        files = {} if self._schedule.draw is None else self._schedule.draw.files
        if self._shared is not None:
            files = {**files, "shared": self._shared.fd}
        for worker in range(options.num_workers):
            config = WorkerConfig(
                worker=worker,
                incarnation=0,
                trainer_pid=self._pid,
                sampler=sampler,
                plan=plan.to_json(),
                inputs=plan.inputs,
                reference=self._graph.reference,
                ring=ring,
                concurrency=concurrency,
                timeout_s=self._timeout_s,
                deferred=self._deferred,
                values=self._values,
                files=files,
            )
            with naming_channel(nbytes), naming_process_limit(self._workers):
                handle = WorkerHandle(config, limit, method=options.start_method, spare_slots=spare_slots)
            self._handles.append(handle)
            self._watch(handle)

    def _watch(self, handle: WorkerHandle) -> None:
        fd = handle.incarnation.link.fileno()
        self._by_fd[fd] = handle
        self._poll.register(fd, select.POLLIN)

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ValueError(f"the workers belong to process {self._pid}: build a loader in this process")
        if self._failure is not None:
            raise self._failure()
        if self._closed:
            raise ValueError("the source is closed")

    def _next_ready(self) -> int | None:
        if self._options.in_order:
            return self._position if self._position in self._ready else None
        return next(iter(self._ready), None)

    def _wait(self, deadline: float, timeout: float) -> None:
        """Wait until a response arrives, take all that have, and send further requests."""
        while not (events := self._poll.poll(1000 * _until(deadline, at_most=LOOK_S))):
            if time.monotonic() >= deadline:
                raise self._timeout_error(timeout)
            for handle, seconds in self._detector.stalled(self._handles).items():
                handle.kill_stopped(seconds)
        for fd, _ in events:
            if not self._collect(self._by_fd[fd]):
                self._replace(self._by_fd[fd], fd)
        self._hand_out()

    def _collect(self, handle: WorkerHandle) -> bool:
        """Take the responses that have arrived from a worker. Return whether its process is alive."""
        try:
            for delivery in handle.deliveries():
                self._ready[delivery.batch] = delivery
                if self._spans is not None:
                    delivery.record(self._spans.begin(self._epoch, delivery.batch))
        except EOFError:
            return False
        return True

    def _hand_out(self) -> None:
        """Send requests, each to the worker with the shortest queue, until no worker has room."""
        while self._returned or self._next_batch < self.num_batches:
            handle = min((handle for handle in self._handles if handle.has_room), key=_load, default=None)
            if handle is None and not self._is_stuck:
                return
            handle = handle or min(self._handles, key=_load)
            if self._returned:
                batch = heapq.heappop(self._returned)
            else:
                batch, self._next_batch = self._next_batch, self._next_batch + 1
            if self._spans is not None:
                self._spans.begin(self._epoch, batch)
            handle.send(self._schedule.request(self._epoch, batch))

    @property
    def _is_stuck(self) -> bool:
        """Whether the trainer would wait for a batch that nobody samples, as memory holds other frames.

        Those may be batches that the consumer keeps, or later ones beside that of a worker that died.
        """
        return self._next_ready() is None and not any(handle.is_sampling for handle in self._handles)

    def _awaited(self, deadline: float, timeout: float) -> int:
        """Wait for the next batch. One that was not available is requested again until ``deadline``.

        Raises the last reason why it was not available then.
        """
        reason: Exception | None = None
        retries: Iterator[int] | None = None
        try:
            while (batch := self._next_ready()) is None or self._ready[batch].unavailable:
                if batch is not None:
                    reason = self._request_again(self._ready.pop(batch))
                    retries = retries or islice(attempts(Deadline(deadline)), 1, None)
                    if next(retries, None) is None:  # Pauses: a peer that refuses does so at once.
                        raise reason
                    self._hand_out()
                self._wait(deadline, timeout)
        except TimeoutError:
            if reason is None:
                raise
            raise reason from None
        finally:
            reason = None  # Its traceback has this frame, and the cycle would keep the source.
        return batch

    def _deliver(self, batch: int) -> Frame:
        self._graph.verifier.check()
        delivery = self._ready.pop(batch)
        self._remaining -= 1
        self._position = batch + 1
        memory = delivery.handle.hand_out(delivery)
        self._hand_out()
        frame = Frame(memory, Layout.read(memory))  # Of our own process: checked as it was made.
        if (frame.epoch, frame.batch) != (self._epoch, batch):
            raise FormatError(f"frame: batch {frame.batch} of epoch {frame.epoch} in place of {batch}")
        try:
            frame.raise_failure()
        except SamplingError as error:
            if self._spans is not None:
                self._spans.end(self._epoch, batch, error)
            raise
        frame.served_by = f"worker {delivery.handle.worker}"
        return frame

    def _request_again(self, delivery: Delivery) -> Exception:
        """Return the ``StorageUnavailable`` that a frame records. No batch counts as received.

        All ready batches that failed the same way are requested again: the owner may be back by then.
        """
        heapq.heappush(self._returned, delivery.batch)
        record = delivery.handle.take_back(delivery)
        for other in [each for each in self._ready.values() if each.unavailable]:
            other.handle.drop(self._ready.pop(other.batch))
            heapq.heappush(self._returned, other.batch)
        return Failure.parse(record).error()

    def _replace(self, handle: WorkerHandle, fd: int) -> None:
        """Restart a worker whose process is gone, or raise ``WorkerDied`` where a restart cannot help."""
        self._poll.unregister(fd)
        del self._by_fd[fd]
        death = handle.reap()
        if death.at_limit:
            self._give_up(partial(process_limit, self._workers))
        if death.hopeless:
            self._give_up(_worker_died(death, _CANNOT_START[self._options.start_method]))
        if self._restarts == self._options.max_worker_restarts:
            self._give_up(_worker_died(death, f"{self._restarts} restarts are used up (max_worker_restarts)"))
        self._restarts += 1
        again = f"batches {death.pending} again" if death.pending else "nothing to sample again"
        _LOGGER.warning("%s: restart %d, %s", death.account, self._restarts, again)
        for batch in death.pending:
            heapq.heappush(self._returned, batch)
        try:
            with naming_process_limit(self._workers):
                handle.restart()
        except OSError as error:
            self._give_up(_worker_died(death, f"starting another failed: {error}"))
        self._watch(handle)

    @property
    def _workers(self) -> str:
        return f"num_workers={self._options.num_workers}"

    def _give_up(self, failure: Callable[[], Exception]) -> NoReturn:
        """Close the source, and raise the error that every later call raises, too."""
        self._failure = failure
        self.close()
        raise failure()

    def _timeout_error(self, timeout: float) -> TimeoutError:
        workers = "; ".join(handle.describe() for handle in self._handles)
        awaited = f"batch {self._position}" if self._options.in_order else "any batch"
        missing = f"no batch within {timeout:g} s ({awaited} of epoch {self._epoch})"
        if self._epoch < 0:
            missing = f"the sampling processes were not up within {timeout:g} s"
        error = TimeoutError(f"{missing}; {workers}")
        for worker, stacks in collect_stacks([handle.incarnation for handle in self._handles]).items():
            add_note(error, f"stacks of worker {worker}:\n{stacks}")
        return error


def _until(deadline: float, *, at_most: float) -> float:
    """Return the seconds left until ``deadline`` (monotonic), in [0, ``at_most``]."""
    return min(max(deadline - time.monotonic(), 0), at_most)


def _load(handle: WorkerHandle) -> tuple[int, int]:
    return handle.load


def _worker_died(death: Death, reason: str) -> Callable[[], WorkerDied]:
    """Return what makes the error of a process that died, and why it is not replaced."""

    def error() -> WorkerDied:
        error = WorkerDied(f"{death.account}; {reason}")
        if death.trace:
            add_note(error, f"the process left this text:\n{death.trace}")
        return error

    return error


def _end_all(handles: list[WorkerHandle], pid: int) -> None:
    """End all workers together. In a forked child they belong to the parent: only close their files."""
    if os.getpid() != pid:
        for handle in handles:
            handle.abandon()
    else:
        for handle in handles:
            handle.hang_up()
        deadline = time.monotonic() + _LEAVE_SECONDS
        for handle in handles:
            handle.end(deadline)
    handles.clear()
