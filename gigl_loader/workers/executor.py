"""Executor of a sampling process: a thread for each of its samplers, several requests at once."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gigl_loader.channel.frame import Failure
from gigl_loader.channel.message import Response, Result, Spent
from gigl_loader.channel.ring import Ring, State
from gigl_loader.errors import StorageUnavailable
from gigl_loader.memfile import create_memory, map_memory
from gigl_loader.sampling.request import INDEX_BYTES, BatchRequest, entry_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gigl_loader.channel.message import Request
    from gigl_loader.sampling.plan import BatchSampler, SampledBatch
    from gigl_loader.sampling.request import InputColumn


class Executor:
    """Queue of requests, filled by one thread and served by one thread for each sampler."""

    def __init__(
        self,
        ring: Ring,
        samplers: Sequence[BatchSampler],
        link: socket.socket,
        *,
        inputs: Sequence[InputColumn],
        worker: int,
        trace_fd: int,
    ) -> None:
        """Start the threads. Responses go to ``link``, frames into ``ring``, a crash's text to ``trace_fd``.

        ``inputs`` are the columns of a request.
        """
        self._ring = ring
        self._inputs = tuple(inputs)
        self._link = link
        self._worker = worker
        self._trace_fd = trace_fd
        self._counters = list({id(sampler.costs): sampler.costs for sampler in samplers}.values())
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._slots_lock = threading.Lock()
        self._cpu_ns: dict[int, int] = {}  # By thread: its CPU time at its last response.
        self._underway = _Underway(ring)
        self._threads = [
            threading.Thread(target=self._work, args=(sampler,), name=f"sampler {number}", daemon=True)
            for number, sampler in enumerate(samplers)
        ]
        for thread in self._threads:
            thread.start()

    def say_up(self) -> None:
        """Tell the trainer that this process has started."""
        self._link.send(Response(Result.STARTED, 0, 0, 0, 0, 0, self._spent()).pack())

    def put(self, request: Request) -> None:
        """Queue a request. Does not wait."""
        self._requests.put(request)

    def leave(self, timeout: float) -> bool:
        """Take no more requests. Return whether all threads ended within ``timeout`` s."""
        for _ in self._threads:
            self._requests.put(None)
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self, sampler: BatchSampler) -> None:
        try:
            while (request := self._requests.get()) is not None:
                self._respond(request, sampler)
        except (BrokenPipeError, ConnectionResetError):
            pass  # The trainer is gone. The thread that reads requests sees its end of file, too.
        except BaseException:
            os.write(self._trace_fd, traceback.format_exc().encode())
            os._exit(1)  # Else the request of this thread would stay open, and the trainer would wait for it.

    def _respond(self, request: Request, sampler: BatchSampler) -> None:
        """Write the frame of a request, or the record of its failure, and send the trainer its place."""
        began = time.perf_counter_ns()
        if request.generation != self._ring.generation:
            self._link.send(Response(Result.SKIPPED, request.request_slot, 0, 0, 0, 0, self._spent()).pack())
            return
        unavailable = False
        with self._underway.entered(request):
            try:
                sampled: SampledBatch = sampler.sample(self._batch_request(request))
                drawn = time.perf_counter_ns()
                slot, fd = self._place(sampled)
            except Exception as error:
                unavailable = isinstance(error, StorageUnavailable)
                sampled = Failure.of(error, epoch=request.epoch, batch=request.batch, worker=self._worker)
                drawn = time.perf_counter_ns()
                slot, fd = self._place(sampled)
        ended = time.perf_counter_ns()
        response = Response(
            Result.FRAME if fd is None else Result.OVERSIZE,
            request.request_slot,
            slot,
            sampled.layout.nbytes,
            ended - began,
            unavailable,
            self._spent(),
            began_ns=began,
            gathering_ns=ended - drawn,
        ).pack()
        if fd is None:
            self._link.send(response)
            return
        try:
            socket.send_fds(self._link, [response], [fd])
        finally:
            os.close(fd)

    def _batch_request(self, request: Request) -> BatchRequest:
        index_bytes = request.num_entries * INDEX_BYTES
        nbytes = request.num_entries * entry_bytes(self._inputs)
        entries = self._ring.request_slot(request.request_slot)[:nbytes].copy()
        return BatchRequest.read(
            request.epoch,
            request.batch,
            index=entries[:index_bytes],
            inputs=entries[index_bytes:],
            columns=self._inputs,
            number=request.number,
        )

    def _place(self, sampled: SampledBatch) -> tuple[int, int | None]:
        """Write a frame into a slot, or into a memory file where it is larger than one.

        Return the slot, and the descriptor of the memory file.
        """
        nbytes = sampled.layout.nbytes
        slots = self._ring.slots
        with self._slots_lock:
            slot = slots.take(nbytes)
        if slot is None:
            return 0, _written_apart(sampled, nbytes)
        try:
            sampled.write(slots.buffer(slot)[:nbytes])
        except BaseException:
            slots.give(slot)
            raise
        return slot, None

    def _spent(self) -> Spent:
        costs = [counter.read() for counter in self._counters]
        self._cpu_ns[threading.get_ident()] = time.thread_time_ns()
        own_ns = sum(self._cpu_ns.copy().values())
        process_ns = time.process_time_ns()  # Read last, so that the difference is not negative.
        return Spent(
            cpu_ns=process_ns,
            cpu_sampling_ns=sum(cost.cpu_sampling_ns for cost in costs),
            cpu_gathering_ns=sum(cost.cpu_gathering_ns for cost in costs),
            cpu_wire_ns=max(process_ns - own_ns, 0),
            wire_bytes_in=sum(cost.wire_bytes_in for cost in costs),
            wire_bytes_out=sum(cost.wire_bytes_out for cost in costs),
            peer_calls=sum(cost.peer_calls for cost in costs),
        )


class _Underway:
    """Batches under way. Keeps the ring's note up to date: the oldest batch, and how many more there are."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._lock = threading.Lock()
        self._since: dict[Request, int] = {}  # In the order in which sampling began.

    @contextmanager
    def entered(self, request: Request) -> Iterator[None]:
        with self._lock:
            self._since[request] = time.monotonic_ns()
            self._note()
        try:
            yield
        finally:
            with self._lock:
                del self._since[request]
                self._note()

    def _note(self) -> None:
        if not self._since:
            return self._ring.note(State.IDLE)
        oldest, since_ns = next(iter(self._since.items()))
        return self._ring.note(
            State.SAMPLING,
            epoch=oldest.epoch,
            batch=oldest.batch,
            since_ns=since_ns,
            others=len(self._since) - 1,
        )


def _written_apart(sampled: SampledBatch, nbytes: int) -> int:
    fd = create_memory("gigl-oversize", nbytes)
    try:
        sampled.write(map_memory(fd, nbytes))
    except BaseException:
        os.close(fd)
        raise
    return fd
