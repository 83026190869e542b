"""A memory cgroup of a benchmark's own, version 1 or 2, and the page cache of files that it owns."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}
_SWAP = {1: "memory.memsw.limit_in_bytes", 2: "memory.swap.max"}
_PEAK = {1: "memory.max_usage_in_bytes", 2: "memory.peak"}
_KILLS = {1: "memory.oom_control", 2: "memory.events"}
_OWN = {1: ("total_rss", "total_shmem"), 2: ("anon", "shmem")}
_REMOVED_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A cgroup that bounds the memory of its processes, with the pages of files that they read."""

    path: Path
    version: int

    def command(self, command: Iterable[str]) -> list[str]:
        """Return a command that runs ``command`` in the group, from its first page on."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.path / "cgroup.procs"), *command]

    def own_bytes(self) -> int:
        """Return the memory that no file on a disk backs."""
        counts = _numbers(self.path / "memory.stat")
        return sum(counts.get(name, 0) for name in _OWN[self.version])

    def peak_bytes(self) -> int:
        """Return the largest use so far, with pages of files. 0 where the kernel does not count it."""
        try:
            return int((self.path / _PEAK[self.version]).read_text())
        except OSError:
            return 0

    def kills(self) -> int:
        """Return how many processes the limit has killed."""
        return _numbers(self.path / _KILLS[self.version]).get("oom_kill", 0)


@contextmanager
def memory_group(limit: int) -> Iterator[MemoryGroup]:
    """Lend a cgroup with this limit in bytes and without swap; remove it afterwards.

    ``RuntimeError`` says why there cannot be one.
    """
    group = _made(limit)
    try:
        yield group
    finally:
        deadline = time.monotonic() + _REMOVED_WITHIN_S
        while True:  # Processes that were killed leave the group a moment after they are gone.
            try:
                group.path.rmdir()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def _made(limit: int) -> MemoryGroup:
    reasons = []
    for parent, version in _parents():
        path = parent / f"gigl-bench-{os.getpid()}"
        try:
            if version == 2:
                with suppress(OSError):  # Is on already, or the next lines say what is missing.
                    (parent / "cgroup.subtree_control").write_text("+memory")
            path.mkdir()
        except OSError as error:
            reasons.append(f"{parent}: {error.strerror}")
            continue
        try:
            (path / _LIMIT[version]).write_text(str(limit))
            with suppress(OSError):  # There is no such file where the kernel does not account for swap.
                (path / _SWAP[version]).write_text(str(limit if version == 1 else 0))
        except OSError as error:
            path.rmdir()
            reasons.append(f"{parent} has no memory controller to set: {error.strerror}")
            continue
        return MemoryGroup(path, version)
    raise RuntimeError("no memory cgroup: " + ("; ".join(reasons) or "none is mounted"))


def _parents() -> Iterator[tuple[Path, int]]:
    """Yield cgroups in which one may be made: this process' own, and what is above it."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, mount, kind, options, *_ in map(str.split, Path("/proc/mounts").read_text().splitlines()):
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
            controllers, version = ("", 2) if kind == "cgroup2" else ("memory", 1)
            own = next((path for _, names, path in lines if controllers in names.split(",")), "/")
            # Version 2 has limits only below groups without processes of their own.
            for path in dict.fromkeys([own, *(["/"] if version == 1 else [os.path.dirname(own)])]):
                parent = Path(mount + path)
                if parent.is_dir():
                    yield parent, version


def _numbers(path: Path) -> dict[str, int]:
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) == 2 and line[1].isdigit()}


def forget_pages(folder: Path) -> None:
    """Have the kernel drop what it keeps of the files in ``folder`` that no process maps."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)  # Only pages that are on the disk are dropped.
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def read_ahead_of(folder: Path) -> Path:
    """Return the file with the kilobytes that the device of ``folder`` reads ahead."""
    number = os.stat(folder).st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    for each in (device / "queue", device / ".." / "queue"):  # A partition has its disk's.
        if (each / "read_ahead_kb").exists():
            return each / "read_ahead_kb"
    raise RuntimeError(f"{folder} lies on no block device whose reading ahead could be set")


@contextmanager
def read_ahead(folder: Path, kilobytes: int | None) -> Iterator[None]:
    """Set what the device reads ahead, and restore it. ``None`` leaves it alone."""
    if kilobytes is None:
        yield
        return
    path = read_ahead_of(folder)
    before = path.read_text()
    path.write_text(str(kilobytes))
    try:
        yield
    finally:
        path.write_text(before)
