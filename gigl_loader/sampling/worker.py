"""The sampling process: takes requests, writes frames, exits when its trainer is gone.

It imports NumPy and this package's own light parts, never torch: that would cost seconds at the start
and hundreds of megabytes for each process. It is started with one socket, over which all else comes.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from gigl_loader.channel.frame import Failure
from gigl_loader.channel.message import Answer, Ask, Outcome, receive
from gigl_loader.channel.ring import Ring, State, create_memory, map_memory
from gigl_loader.processes import leave_with
from gigl_loader.sampling.schedule import Request
from gigl_loader.sampling.setting import Handover
from gigl_loader.sampling.weighted import SeedDraw, WeightedSampler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.sampling.setting import WorkerSetting
    from gigl_loader.sampling.source import BatchSampler, SampledBatch

__all__ = ["open_sampler", "worker_main"]


def worker_main(link: socket.socket) -> None:
    """Serve the trainer at the other end of ``link`` until it is gone. Ends the process on failure."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's; this process sees its EOF.
    with suppress(EOFError), link:
        handover = Handover.receive(link)
        _leave_traces_in(handover)
        leave_with(handover.setting.trainer_pid)
        try:
            _serve(link, handover)
        except Exception:
            os.write(handover.trace_fd, traceback.format_exc().encode())
            os._exit(1)


def open_sampler(setting: WorkerSetting) -> BatchSampler:
    """Return the neighbour sampler over the graph that ``setting`` names."""
    from gigl_loader.graph.graph import Graph
    from gigl_loader.sampling.sampler import Sampler

    return Sampler(Graph.from_reference(setting.reference), setting.plan)


def _leave_traces_in(handover: Handover) -> None:
    """Send crash texts to the trainer, and what Python prints to where the trainer prints it.

    Natively written last words (glibc, the C++ runtime) go to descriptor 2, hence with the crashes.
    """
    os.dup2(handover.trace_fd, 2)
    sys.stderr = open(handover.stderr_fd, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
    faulthandler.enable(handover.trace_fd)
    faulthandler.register(signal.SIGUSR1, handover.trace_fd, all_threads=True)
    with suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write(f"gigl-worker-{handover.setting.worker}")


def _serve(link: socket.socket, handover: Handover) -> None:
    setting = handover.setting
    ring = Ring(handover.ring_fd, setting.ring)
    module, _, function = setting.sampler.partition(":")
    sampler: BatchSampler = getattr(import_module(module), function)(setting)
    if setting.draw is not None:
        draw = SeedDraw.received(setting.draw, run_seed=setting.plan.run_seed)
        sampler = WeightedSampler(sampler, draw)
    bench = _Bench(ring, sampler, setting.worker)
    ring.note(State.IDLE)
    with suppress(BrokenPipeError, ConnectionResetError):  # The trainer left while we were sampling.
        link.send(Answer(Outcome.STARTED, 0, 0, 0, 0, time.process_time_ns()).pack())
        for ask in _requests(link):
            bench.answer(ask, link)


def _requests(link: socket.socket) -> Iterator[Ask]:
    """Yield requests until the trainer closes its end."""
    while data := receive(link)[0]:
        yield Ask.unpack(data)


class _Bench:
    """Where one request after the other is worked on."""

    def __init__(self, ring: Ring, sampler: BatchSampler, worker: int) -> None:
        self._ring = ring
        self._sampler = sampler
        self._worker = worker

    def answer(self, ask: Ask, link: socket.socket) -> None:
        """Make the frame of a request, or of its failure, and tell the trainer where it lies."""
        began = time.perf_counter_ns()
        if ask.generation != self._ring.generation:
            link.send(Answer(Outcome.SKIPPED, ask.box, 0, 0, 0, time.process_time_ns()).pack())
            return
        self._ring.note(State.SAMPLING, epoch=ask.epoch, batch=ask.batch)
        try:
            slot, nbytes, oversize_fd = self._place(self._sampler.sample(self._request(ask)))
        except Exception as error:
            failure = Failure.of(error, epoch=ask.epoch, batch=ask.batch, worker=self._worker)
            slot, nbytes, oversize_fd = self._place(failure)
        outcome = Outcome.FRAME if oversize_fd is None else Outcome.OVERSIZE
        spent = time.perf_counter_ns() - began
        self._ring.note(State.IDLE)
        answer = Answer(outcome, ask.box, slot, nbytes, spent, time.process_time_ns()).pack()
        if oversize_fd is None:
            link.send(answer)
        else:
            socket.send_fds(link, [answer], [oversize_fd])
            os.close(oversize_fd)

    def _request(self, ask: Ask) -> Request:
        seeds, input_ids = self._ring.box(ask.box, ask.num_seeds).copy()
        return Request(epoch=ask.epoch, batch=ask.batch, seeds=seeds, input_ids=input_ids)

    def _place(self, sampled: SampledBatch) -> tuple[int, int, int | None]:
        """Write a frame into a slot, or into a memory file where no slot is large enough."""
        nbytes = sampled.layout.nbytes
        slots = self._ring.slots
        slot = slots.take() if nbytes <= slots.slot_bytes else None
        if slot is None:
            return 0, nbytes, _written_apart(sampled, nbytes)
        try:
            sampled.write(slots.buffer(slot)[:nbytes])
        except BaseException:
            slots.give(slot)
            raise
        return slot, nbytes, None


def _written_apart(sampled: SampledBatch, nbytes: int) -> int:
    fd = create_memory("gigl-oversize", nbytes)
    try:
        sampled.write(map_memory(fd, nbytes))
    except BaseException:
        os.close(fd)
        raise
    return fd
