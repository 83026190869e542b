"""Sampling processes: start with a socket, exit status, crash text, stacks on request, and end."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import socket
import sys
import time
from contextlib import contextmanager, suppress
from multiprocessing.spawn import get_preparation_data
from typing import TYPE_CHECKING, Any, Protocol

from gigl_loader.group import RankLock, wait_for
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
    from collections.abc import Callable, Iterator, Sequence

    from gigl_loader.group import RankGroup
    from gigl_loader.sampling.source import BatchSource
    from gigl_loader.topology import Topology
    from gigl_loader.workers.config import WorkerConfig

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
    """Raise ``ValueError`` where this start method cannot work. The message says what to do instead."""
    if not hasattr(os, "memfd_create"):
        raise ValueError("sampling processes need memfd_create (Linux): use num_workers=0")
    torch: Any = sys.modules.get("torch")
    if method == "fork" and torch is not None and torch.cuda.is_initialized():
        raise ValueError("a forked process cannot share CUDA: use multiprocessing_context='spawn'")
    if method == "spawn" and not sys.executable:
        raise ValueError("no interpreter to start workers with (sys.executable is empty): use 'fork'")
    if method == "forkserver":
        # A prompt and a notebook have no script; that of ``python -`` is called <stdin>.
        script = get_preparation_data("worker").get("init_main_from_path")
        if script is not None and not os.path.exists(script):
            raise ValueError(
                f"multiprocessing_context='forkserver' imports the script again, and {script} is no file: "
                "write the script to a file, or use 'spawn'"
            )


def start_process(
    method: str, link: socket.socket, *, name: str, trace_fd: int, close: list[int]
) -> WorkerProcess:
    """Start a process that serves ``link``. Its standard error goes to ``trace_fd`` while it starts.

    ``close`` lists descriptors of the trainer that a forked child must close: a copy of the trainer's end
    of the socket would keep the child from ever seeing end of file.
    """
    if method == "spawn":
        return FreshProcess("gigl_loader.workers.main:worker_main", link, stderr=trace_fd)
    return _Multiprocessed(method, link, name, close if method == "fork" else [])


class _Multiprocessed:
    """A child of a fork or of the fork server."""

    def __init__(self, method: str, link: socket.socket, name: str, close: list[int]) -> None:
        lasting = method == "fork" and in_main_thread()  # A fork server lives as long as its children.
        context: Any = multiprocessing.get_context(method)
        self._process = context.Process(target=_enter, args=(link, close, lasting), name=name, daemon=True)
        collects = gc.isenabled()
        gc.disable()  # Also in the child of a fork, until ``_enter``.
        try:
            self._process.start()
        except EOFError:  # The server says nothing else where it cannot fork.
            raise OSError(
                "the fork server ended while it started a process: the script cannot be imported (the error "
                "of the server is above), or a limit of processes is reached: raise it (ulimit -u), or lower "
                "num_workers"
            ) from None
        finally:
            if collects:
                gc.enable()
        self.pid: int = self._process.pid

    def wait(self, timeout: float) -> int | None:
        self._process.join(timeout)
        status: int | None = self._process.exitcode
        return status

    def send_signal(self, number: int) -> None:
        if self._process.is_alive():
            os.kill(self.pid, number)


def _enter(link: socket.socket, close: list[int], lasting: bool) -> None:
    # Garbage of the trainer stays: its destructors would join threads and take locks that a forked child does
    # not have, and end it by SIGABRT or hang it.
    gc.freeze()
    gc.enable()
    if lasting:
        die_with_starter()
    for fd in close:
        os.close(fd)
    os.environ |= ONE_THREAD
    worker_main(link)


class Incarnation:
    """One process of a worker, from its start to its end."""

    def __init__(self, config: WorkerConfig, *, method: str, ring_fd: int) -> None:
        """Start the process. Returns at once: requests may be queued in ``link`` before the process is up."""
        self.worker = config.worker
        self.started = False
        """The process has sent ``STARTED``."""
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
        """Return what the process wrote since the last call: the text of a crash, or stacks."""
        size = os.fstat(self._trace_fd).st_size
        begin = max(size - _MAX_TRACE, self._trace_read)
        self._trace_read = size
        return os.pread(self._trace_fd, size - begin, begin).decode(errors="replace").strip()

    @property
    def new_trace_bytes(self) -> int:
        return os.fstat(self._trace_fd).st_size - self._trace_read

    def reap(self) -> tuple[str, int | None]:
        """Reap a process that closed its end of the socket. Return its end as text and exit status."""
        status = self._process.wait(_KILL_SECONDS)
        how = self._verdict or describe_status(status)
        return f"worker {self.worker} (pid {self.pid}) {how}", status

    def kill_stopped(self, verdict: str) -> None:
        """Kill the process: its end of the socket closes. ``verdict`` is what ``reap`` then reports."""
        self._verdict = verdict
        self._process.send_signal(signal.SIGKILL)

    def hang_up(self) -> None:
        """Tell the process to exit. Does not wait."""
        with suppress(OSError):  # shutdown, not close: a forked child may hold the socket, too.
            self.link.shutdown(socket.SHUT_RDWR)

    def end(self, deadline: float) -> None:
        """Wait until ``deadline`` (monotonic) for the process to exit, then kill it. Close its files."""
        if self._process.wait(max(deadline - time.monotonic(), 0)) is None:
            self._process.send_signal(signal.SIGTERM)
            if self._process.wait(_TERMINATE_SECONDS) is None:
                self._process.send_signal(signal.SIGKILL)
                self._process.wait(_KILL_SECONDS)
        self.abandon()

    def abandon(self) -> None:
        """Close the trainer's files only: in a forked child, the process belongs to the parent."""
        self.link.close()
        if self._trace_fd >= 0:
            os.close(self._trace_fd)
            self._trace_fd = -1

    def request_stacks(self) -> None:
        self._process.send_signal(signal.SIGUSR1)


def collect_stacks(incarnations: Sequence[Incarnation]) -> dict[int, str]:
    """Return the Python stacks of workers, by worker number. Takes half a second at most.

    Left out are workers that are not up yet, which the signal would kill because they may not handle it,
    and stopped workers, which cannot respond.
    """
    signalled = [each for each in incarnations if each.started and each.run_state in ("running", "waiting")]
    for each in signalled:
        each.request_stacks()
    deadline = time.monotonic() + _STACKS_SECONDS
    sizes: list[int] = []
    while time.monotonic() < deadline:
        time.sleep(0.02)  # The caller is about to raise: this delays no batch.
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


logger = logging.getLogger(__name__)


def start_source(
    open_source: Callable[[], BatchSource],
    *,
    group: RankGroup | None,
    topology: Topology,
    gap_s: float | None,
    timeout: float,
) -> BatchSource:
    """Open a source when it is this rank's turn.

    With ``gap_s``, the rank waits ``gap_s`` seconds for each lower local rank. Without it, the sampling
    processes of one rank are up before the next rank starts its own.
    """
    if gap_s is not None:
        time.sleep(topology.local_rank * gap_s)
        return open_source()
    with startup_turn(group, topology, timeout) as others_wait:
        source = open_source()
        try:
            if others_wait:
                source.wait_until_up(timeout)
        except BaseException:
            source.close()
            raise
        return source


@contextmanager
def startup_turn(group: RankGroup | None, topology: Topology, timeout: float) -> Iterator[bool]:
    """Hold this host's start-up lock. Yields whether other ranks may be waiting for it.

    Ranks take the lock in the order in which they request it. A rank never waits for one that is not
    starting, so ranks may build loaders in any order. The lock of a process that died is free again.
    ``TimeoutError`` names the rank that has held it for more than ``timeout`` seconds.
    """
    if group is None or topology.local_world_size == 1:
        yield False
        return
    turn = RankLock(group, f"start/host-{topology.host_index}", abandoned=_abandoned)
    if not wait_for(turn.take, timeout):
        raise TimeoutError(
            f"rank {turn.holder} (pid {turn.holder_pid}) has been starting its sampling processes for more "
            f"than {timeout:g} s, and those of this rank come after: look at that rank, or pass "
            "process_start_gap_seconds=0"
        )
    try:
        yield True
    finally:
        turn.give_back()


def _abandoned(rank: int, pid: int) -> bool:
    if _alive(pid):
        return False
    logger.warning("rank %d died while it started its sampling processes", rank)
    return True


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
