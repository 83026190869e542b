"""Starting, watching and ending the operating system's side of a sampling process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Protocol

from gigl_loader.sampling.worker import worker_main

if TYPE_CHECKING:
    import socket

__all__ = ["WorkerProcess", "check_start_method", "describe_status", "run_state", "start_process"]

# The path of the trainer replaces the interpreter's own before anything is imported, so that the worker
# finds the same modules; `-m` would put the working directory first, where another gigl_loader may lie.
_BOOT = "import sys; sys.path[:] = sys.argv[2:]; from gigl_loader.sampling.worker import main; main()"

# A worker is one thread: several keep several cores busy. A pool per process would fight over them.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

_RUN_STATES = {
    "R": "running",
    "S": "waiting",
    "D": "waiting for a device",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "dead",
    "X": "dead",
}


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
        return _Spawned(link, trace_fd)
    return _Multiprocessed(method, link, name, close if method == "fork" else [])


def describe_status(status: int | None) -> str:
    """Say how a process ended."""
    if status is None:
        return "closed its socket and goes on running"
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " (often the kernel, for lack of memory)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def run_state(pid: int) -> str:
    """Say what the kernel makes of a process: running, waiting, stopped, dead."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return "dead"
    return _RUN_STATES.get(fields[0].decode(), "alive")


class _Spawned:
    """A fresh interpreter. The user's main module is never imported again."""

    def __init__(self, link: socket.socket, trace_fd: int) -> None:
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        self._process = subprocess.Popen(
            [sys.executable, *flags, "-c", _BOOT, str(link.fileno()), *sys.path],
            stdin=subprocess.DEVNULL,
            stderr=trace_fd,
            pass_fds=(link.fileno(),),
            start_new_session=True,
            env=os.environ | _ONE_THREAD,
        )
        self.pid = self._process.pid

    def wait(self, timeout: float) -> int | None:
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)


class _Multiprocessed:
    """A child of a fork or of the fork server."""

    def __init__(self, method: str, link: socket.socket, name: str, close: list[int]) -> None:
        context: Any = multiprocessing.get_context(method)
        self._process = context.Process(target=_enter, args=(link, close), name=name, daemon=True)
        self._process.start()
        self.pid: int = self._process.pid

    def wait(self, timeout: float) -> int | None:
        self._process.join(timeout)
        status: int | None = self._process.exitcode
        return status

    def send_signal(self, number: int) -> None:
        if self._process.is_alive():
            os.kill(self.pid, number)


def _enter(link: socket.socket, close: list[int]) -> None:
    for fd in close:
        os.close(fd)
    os.environ |= _ONE_THREAD
    worker_main(link)
