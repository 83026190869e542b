"""What a process has that others could miss: children, open files, shared memory."""

from __future__ import annotations

import gc
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable

# They serve every user of multiprocessing in this process, and live as long as it does.
_SERVANTS = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")
_POLLER = "anon_inode:[eventpoll]"
PATIENCE_S = 60.0
"""For what a busy or slow machine does in the end."""
_GRPC_S = 65.0
"""Where a connection ended before its SETTINGS were acknowledged, gRPC keeps its threads and their pollers
for the minute of that timeout, without any connection: met 4 times in about 200, beside other work."""


@dataclass(frozen=True)
class Leftovers:
    """Descendants, descriptors and mapped memory files of this process at one moment."""

    children: frozenset[int]
    files: frozenset[tuple[int, str]]
    maps: frozenset[str]
    shared: frozenset[str]

    @classmethod
    def now(cls) -> Leftovers:
        gc.collect()
        return cls(_children(), _files(), _maps(), shared_memory())

    def check(self, settle: Callable[[], None] = lambda: None) -> None:
        """Fail if there is anything now that was not there then. Gives the kernel a moment.

        ``settle`` is called before every look: it closes what need not be counted.
        """
        new: list[object] = []

        def nothing_new() -> bool:
            settle()
            new[:] = self._new(Leftovers.now())
            return not new

        quiet = wait_until(nothing_new, seconds=30)
        if not quiet and all(isinstance(each, tuple) and each[1] == _POLLER for each in new):
            quiet = wait_until(nothing_new, seconds=_GRPC_S)
        assert quiet, f"left over: {new}"

    def _new(self, now: Leftovers) -> list[object]:
        # Servers look at their sockets through a descriptor that is the null device between two looks.
        resting = {(number, os.devnull) for number, _ in self.files}
        return [
            *(now.children - self.children),
            *(now.files - self.files - resting),
            *(now.maps - self.maps),
            *(now.shared - self.shared),
        ]


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, be it reaped or not."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def wait_until(condition: object, *, seconds: float = PATIENCE_S) -> bool:
    """Wait for a condition, at most so long. Return whether it came true."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _children() -> frozenset[int]:
    return frozenset(child.pid for child in psutil.Process().children(recursive=True) if not _serves(child))


def _serves(process: psutil.Process) -> bool:
    try:
        command = " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return True
    return any(servant in command for servant in _SERVANTS)


def _files() -> frozenset[tuple[int, str]]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        # Threads of gRPC's keep an event descriptor as long as they please. We make none.
        if not target.startswith("/proc/") and target != "anon_inode:[eventfd]":
            found.add((int(name), target))
    return frozenset(found)


def _maps() -> frozenset[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return frozenset(line for line in lines if "memfd:" in line)


def shared_memory() -> frozenset[str]:
    """Return what has a name in shared memory. Other processes use it, too: mostly for moments."""
    # Semaphores of multiprocessing and of joblib stay for as long as somebody's processes that share them.
    return frozenset(name for name in os.listdir("/dev/shm") if not name.startswith(("sem.mp-", "sem.loky-")))
