"""Main function of a sampling process: takes requests, writes frames, exits when its trainer is gone.

The process imports NumPy and light modules of this package, never torch: torch would cost seconds at the
start and hundreds of megabytes in each process. It starts with one socket, and receives the rest over it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from gigl_loader.channel.message import Request, receive
from gigl_loader.channel.ring import Ring, State
from gigl_loader.processes import leave_with
from gigl_loader.resources import is_process_limit
from gigl_loader.sampling.schedule import SeedDraw, SeedWeightedSampler
from gigl_loader.workers.config import Handover
from gigl_loader.workers.executor import Executor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gigl_loader.sampling.plan import BatchSampler
    from gigl_loader.workers.config import WorkerConfig

_LEAVE_SECONDS = 0.5


def worker_main(link: socket.socket) -> None:
    """Serve the trainer at the other end of ``link`` until it is gone. Exits the process on failure."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer; this process sees its EOF.
    with suppress(EOFError), link:
        handover = Handover.receive(link)
        _leave_traces_in(handover)
        try:
            leave_with(handover.config.trainer_pid)
            _serve(link, handover)
        except Exception as error:
            os.write(handover.trace_fd, traceback.format_exc().encode())
            os._exit(os.EX_OSERR if is_process_limit(error) else 1)


def open_samplers(config: WorkerConfig) -> Sequence[BatchSampler]:
    """Return one sampler over the graph that ``config`` names, all of which is on this host.

    One is enough: it never waits for a network, so a second one would only compete for the CPU.
    """
    from gigl_loader.graph.graph import Graph
    from gigl_loader.sampling.plans import read_plan

    graph = Graph.from_reference(config.reference)
    plan = read_plan(config.plan, graph.schema)
    return [plan.open(graph, deferred=config.deferred, values=config.values, shared=config.take_shared())]


def _leave_traces_in(handover: Handover) -> None:
    """Send crash texts to the trainer, and what Python prints to the trainer's standard error.

    glibc and the C++ runtime write their last messages to descriptor 2, which therefore takes crash texts.
    """
    os.dup2(handover.trace_fd, 2)
    sys.stderr = open(handover.stderr_fd, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
    faulthandler.enable(handover.trace_fd)
    faulthandler.register(signal.SIGUSR1, handover.trace_fd, all_threads=True)
    with suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write(f"gigl-worker-{handover.config.worker}")


def _serve(link: socket.socket, handover: Handover) -> None:
    config = handover.config
    ring = Ring(handover.ring_fd, config.ring)
    module, _, function = config.sampler.partition(":")
    samplers: Sequence[BatchSampler] = getattr(import_module(module), function)(config)
    if "seeds" in config.files:
        draw = SeedDraw.received(config.files)
        samplers = [SeedWeightedSampler(sampler, draw) for sampler in samplers]
    executor = Executor(
        ring, samplers, link, inputs=config.inputs, worker=config.worker, trace_fd=handover.trace_fd
    )
    ring.note(State.IDLE)
    with suppress(BrokenPipeError, ConnectionResetError):  # The trainer left during the start.
        executor.say_up()
        for request in _requests(link):
            executor.put(request)
    if not executor.leave(_LEAVE_SECONDS):
        os._exit(0)  # A thread still runs: interpreter shutdown would free memory under it.


def _requests(link: socket.socket) -> Iterator[Request]:
    """Yield requests until the trainer closes its end."""
    while data := receive(link)[0]:
        yield Request.unpack(data)
