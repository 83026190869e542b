"""Sampling processes: started with a socket, watched, asked for their last words, and ended."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from gigl_loader.processes import (
    ONE_THREAD,
    FreshProcess,
    describe_status,
    die_with_starter,
    in_main_thread,
    run_state,
)
from gigl_loader.workers.config import Handover
from gigl_loader.workers.main import worker_main

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.workers.config import WorkerConfig

__all__ = ["Incarnation", "WorkerProcess", "check_start_method", "collect_stacks", "start_process"]

_MAX_TRACE = 32_000
_TERMINATE_SECONDS = 0.5
_KILL_SECONDS = 5.0
_STACKS_SECONDS = 0.5


class WorkerProcess(Protocol):
    """A started process."""

    @property
    def pid(self) -> int: ...

    def wait(self, timeout: float) -> int | None:
        """Return the exit status (negative: the signal), or ``None`` if it still runs after ``timeout`` s."""

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process was found to have ended."""


def check_start_method(method: str) -> None:
    """Raise ``ValueError`` where this start method cannot work, with what to do instead."""
    if not hasattr(os, "memfd_create"):
        raise ValueError("sampling processes need memfd_create (Linux): use num_workers=0")
    torch: Any = sys.modules.get("torch")
    if method == "fork" and torch is not None and torch.cuda.is_initialized():
        raise ValueError("a forked process cannot share CUDA: use multiprocessing_context='spawn'")
    if method == "spawn" and not sys.executable:
        raise ValueError("no interpreter to start workers with (sys.executable is empty): use 'fork'")


def start_process(
    method: str, link: socket.socket, *, name: str, trace_fd: int, close: list[int]
) -> WorkerProcess:
    """Start a process that serves ``link``. What it says while it starts goes to ``trace_fd``.

    ``close`` lists descriptors of the trainer that a forked child must not keep.
    """
    if method == "spawn":
        return FreshProcess("gigl_loader.workers.main:worker_main", link, stderr=trace_fd)
    return _Multiprocessed(method, link, name, close if method == "fork" else [])


class _Multiprocessed:
    """A child of a fork or of the fork server."""

    def __init__(self, method: str, link: socket.socket, name: str, close: list[int]) -> None:
        lasting = method == "fork" and in_main_thread()  # A fork server stays while it has children.
        context: Any = multiprocessing.get_context(method)
        self._process = context.Process(target=_enter, args=(link, close, lasting), name=name, daemon=True)
        self._process.start()
        self.pid: int = self._process.pid

    def wait(self, timeout: float) -> int | None:
        self._process.join(timeout)
        status: int | None = self._process.exitcode
        return status

    def send_signal(self, number: int) -> None:
        if self._process.is_alive():
            os.kill(self.pid, number)


def _enter(link: socket.socket, close: list[int], lasting: bool) -> None:
    if lasting:
        die_with_starter()
    for fd in close:
        os.close(fd)
    os.environ |= ONE_THREAD
    worker_main(link)


class Incarnation:
    """A process that was started, until it has ended."""

    def __init__(self, config: WorkerConfig, *, method: str, ring_fd: int) -> None:
        """Start it. Returns at once: requests may be queued in ``link`` before it is up."""
        self.worker = config.worker
        self.started = False
        """It said that it is up."""
        self._trace_read = 0
        self._verdict = ""
        self.link, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._trace_fd = os.memfd_create(f"gigl-trace-{config.worker}", os.MFD_CLOEXEC)
        try:
            Handover(
                config=config, ring_fd=ring_fd, trace_fd=self._trace_fd, stderr_fd=_stderr(self._trace_fd)
            ).send(self.link)
            self.link.setblocking(False)
            name = f"gigl-worker-{config.worker}"
            self._process = start_process(
                method, far_end, name=name, trace_fd=self._trace_fd, close=[self.link.fileno()]
            )
        except BaseException:
            self.abandon()
            raise
        finally:
            far_end.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def run_state(self) -> str:
        return run_state(self.pid)

    def take_trace(self) -> str:
        """Return what the process wrote since this was asked last: its last words, or stacks."""
        size = os.fstat(self._trace_fd).st_size
        begin = max(size - _MAX_TRACE, self._trace_read)
        self._trace_read = size
        return os.pread(self._trace_fd, size - begin, begin).decode(errors="replace").strip()

    @property
    def new_trace_bytes(self) -> int:
        return os.fstat(self._trace_fd).st_size - self._trace_read

    def reap(self) -> tuple[str, int | None]:
        """Reap a process that closed its end of the socket. Return how it ended, in words and as status."""
        status = self._process.wait(_KILL_SECONDS)
        how = self._verdict or describe_status(status)
        return f"worker {self.worker} (pid {self.pid}) {how}", status

    def put_down(self, verdict: str) -> None:
        """Kill the process: its end of the socket closes. ``verdict`` is how it ended, in words."""
        self._verdict = verdict
        self._process.send_signal(signal.SIGKILL)

    def hang_up(self) -> None:
        """Tell the process to leave. Does not wait."""
        with suppress(OSError):  # Not merely close: a forked child of ours may hold the socket, too.
            self.link.shutdown(socket.SHUT_RDWR)

    def end(self, deadline: float) -> None:
        """Wait until ``deadline`` (monotonic) for the process to leave, then make it. Close its files."""
        if self._process.wait(max(deadline - time.monotonic(), 0)) is None:
            self._process.send_signal(signal.SIGTERM)
            if self._process.wait(_TERMINATE_SECONDS) is None:
                self._process.send_signal(signal.SIGKILL)
                self._process.wait(_KILL_SECONDS)
        self.abandon()

    def abandon(self) -> None:
        """Close our files, and nothing else: in a forked child, the process is the parent's."""
        self.link.close()
        if self._trace_fd >= 0:
            os.close(self._trace_fd)
            self._trace_fd = -1

    def request_stacks(self) -> None:
        self._process.send_signal(signal.SIGUSR1)


def collect_stacks(incarnations: Sequence[Incarnation]) -> dict[int, str]:
    """Return the stacks of the workers that can tell them, by worker. Takes half a second at most.

    One that did not say that it is up may not handle the signal yet, which would kill it; one that is
    stopped cannot answer. Both are left out.
    """
    signalled = [each for each in incarnations if each.started and each.run_state in ("running", "waiting")]
    for each in signalled:
        each.request_stacks()
    deadline = time.monotonic() + _STACKS_SECONDS
    sizes: list[int] = []
    while time.monotonic() < deadline:
        time.sleep(0.02)  # On the way to an exception: nobody waits for a batch any more.
        before, sizes = sizes, [each.new_trace_bytes for each in signalled]
        if all(sizes) and sizes == before:
            break
    return {each.worker: each.take_trace() for each in signalled}


def _stderr(fallback: int) -> int:
    try:
        os.fstat(2)
    except OSError:
        return fallback
    return 2
