"""Sampling processes of the operating system: started, watched and ended."""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import TYPE_CHECKING, Any, Protocol

from gigl_loader.processes import ONE_THREAD, FreshProcess, die_with_starter, in_main_thread
from gigl_loader.workers.main import worker_main

if TYPE_CHECKING:
    import socket

__all__ = ["WorkerProcess", "check_start_method", "start_process"]


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
