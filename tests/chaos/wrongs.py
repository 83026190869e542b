"""What is done to a process or a file from outside, and undone."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process for the length of the block."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def few_descriptors(pid: int, seconds: float, *, more: int = 1) -> None:
    """Let a process open no more than ``more`` further files for a while."""
    with suppress(ProcessLookupError, FileNotFoundError, PermissionError):
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        # None are open in a process that has just died.
        highest = max((int(name) for name in os.listdir(f"/proc/{pid}/fd")), default=soft)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(highest + 1 + more, soft), hard))
        try:
            time.sleep(seconds)
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def flipped_bit(path: Path, choice: int) -> Iterator[None]:
    """Flip one bit of a file for the length of the block."""
    at, bit = (choice >> 3) % path.stat().st_size, 1 << (choice & 7)
    _flip(path, at, bit)
    try:
        yield
    finally:
        _flip(path, at, bit)


def _flip(path: Path, at: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        value = file.read(1)[0]
        file.seek(at)
        file.write(bytes([value ^ bit]))
