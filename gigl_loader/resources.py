"""Limits that the system sets this process (``ulimit``, control groups, memory), and errors that name them.

Standard library only: a server checks its limits before it imports libraries that crash or hang at them.
"""

from __future__ import annotations

import errno
import math
import os
import resource
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_CGROUP = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_UNKNOWN_MEMORY = 4 << 30
_NO_LIMIT = 1 << 60
"""Version 1 of control groups writes a number near 2**63 where there is no limit."""
_MAX_FILES = 1 << 16
_STACK_BYTES = 2 << 20  # Of a thread where RLIMIT_STACK is unlimited (glibc, x86-64).
_LIBRARY_BYTES = 1200 << 20  # NumPy, pyarrow and gRPC: 1.16 GB (pyarrow 26, gRPC 1.85).
_SLOT_ADDRESSES = 1 << 38
_LEAST_FRAME_BYTES = 64 << 20
_STRICT_OVERCOMMIT = 2
_NO_THREAD = "can't start new thread"
_OF_PROCESSES = "ulimit -u, RLIMIT_NPROC, or pids.max of the control group"
_LIBRARY_DATA_BYTES = 200 << 20  # Measured without stacks: 130 MB.


def usable_cores(cgroup: Path = _CGROUP, proc: Path = _PROC) -> int:
    """Return the number of cores that this process may use, by its affinity and its control groups."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min([cores, *(math.ceil(group.cores) for group in _groups(cgroup, proc, "cpu"))]), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a service takes of the system once it runs."""

    files: int
    """Open files: its own, and some connections."""
    threads: int
    map_bytes: int = 0
    """Files that it maps."""
    memory_bytes: int = 0
    """Memory that it fills at most, without what libraries take."""
    memory_option: str = ""
    """The option that sets ``memory_bytes``."""

    @property
    def data_bytes(self) -> int:
        """Private memory, filled or not: what RLIMIT_DATA counts."""
        return _LIBRARY_DATA_BYTES + self.threads * _stack_bytes() + self.memory_bytes

    @property
    def address_bytes(self) -> int:
        """Address space in all: what RLIMIT_AS counts."""
        return self.data_bytes + _LIBRARY_BYTES + self.map_bytes


def check_resources(needs: Needs, *, what: str) -> None:
    """Raise ``ValueError`` in one line that names the limit below ``needs``. ``what`` is who needs it."""
    files = _limit("RLIMIT_NOFILE", hard=True)
    if files < needs.files:
        raise ValueError(
            f"a limit of {files} open files is too low: {what} needs {needs.files} (ulimit -n, RLIMIT_NOFILE)"
        )
    for name, option, of, needed in (
        ("RLIMIT_AS", "-v", "address space", needs.address_bytes),
        ("RLIMIT_DATA", "-d", "private memory", needs.data_bytes),
    ):
        limit = _limit(name)
        if limit < needed:
            batches = f", {_megabytes(needs.memory_bytes)} of it for batches" if needs.memory_option else ""
            lower = f", or lower {needs.memory_option}" if needs.memory_option else ""
            raise ValueError(
                f"a limit of {_megabytes(limit)} of {of} is too low: {what} needs {_megabytes(needed)}"
                f"{batches}: raise it (ulimit {option}, {name}){lower}"
            )
    started = _startable(needs.threads)
    if started < needs.threads:
        raise ValueError(
            f"only {started} threads can be started: {what} needs {needs.threads} ({_OF_PROCESSES})"
        )


def raise_file_limit() -> None:
    """Let this process open as many files as it may: each connection is one, and 1024 is a usual limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _MAX_FILES)), hard))


def memory_bytes() -> int:
    """Return the memory of this machine, or of the control group of this process if that is less."""
    physical = 0
    with suppress(AttributeError, ValueError, OSError):
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(min(physical or _UNKNOWN_MEMORY, group_memory_bytes()))


def group_memory_bytes() -> float:
    """Return the memory limit of the control group of this process; infinity where there is none."""
    return min((group.limit for group in _groups(_CGROUP, _PROC)), default=float("inf"))


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Memory that this process may still take."""

    nbytes: int
    source: str
    """The limit that leaves least, for people."""


def free_memory(cgroup: Path = _CGROUP, proc: Path = _PROC) -> FreeMemory:
    """Return what the machine, the control groups of this process and ``RLIMIT_AS`` leave, the least of them.

    Pages of files count as free: the system takes them back when it needs memory.
    """
    try:
        available = _fields((proc / "meminfo").read_text())["MemAvailable:"] << 10
        found = [FreeMemory(available, "MemAvailable of this machine")]
    except (OSError, KeyError):  # Not Linux.
        found = [FreeMemory(memory_bytes(), "memory of this machine")]
    for group in _groups(cgroup, proc):
        if group.limit < _NO_LIMIT:
            found.append(FreeMemory(int(group.limit - group.used()), f"{group.name} of {group.path}"))
    with suppress(OSError, ValueError):
        used = int((proc / "self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        address_space = _limit("RLIMIT_AS")
        if address_space < _NO_LIMIT:
            found.append(FreeMemory(int(address_space - used), "RLIMIT_AS (ulimit -v)"))
    least = min(found, key=lambda each: each.nbytes)
    return FreeMemory(max(least.nbytes, 0), least.source)


def free_frame_bytes(*, ranks: int = 1) -> int:
    """Return the memory for frames of one of ``ranks`` of this host by default: half of what is free."""
    return max(free_memory().nbytes // 2 // ranks, _LEAST_FRAME_BYTES)


def address_bytes(nbytes: int) -> int:
    """Return the address space for the slots of frames that take ``nbytes`` together.

    So much that each slot holds any usual frame, as only touched pages are memory; ``nbytes`` where the
    system limits address space or the size of files.
    """
    limits = min(_limit(name) for name in ("RLIMIT_AS", "RLIMIT_DATA", "RLIMIT_FSIZE"))
    is_strict = _number_in(_PROC / "sys/vm/overcommit_memory", 0) == _STRICT_OVERCOMMIT
    return nbytes if is_strict or limits < _NO_LIMIT else max(nbytes, _SLOT_ADDRESSES)


@contextmanager
def naming_channel(nbytes: int) -> Iterator[None]:
    """Name ``channel_size``, or the limit of open files, where the memory of a loader cannot be had."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOMEM:
            text = (
                f"channel_size of {_megabytes(nbytes)} does not fit the address space of this process: lower "
                "channel_size, or raise the limit (ulimit -v)"
            )
        elif error.errno in (errno.EMFILE, errno.ENFILE):
            files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            text = f"the limit of {files} open files is reached: raise it (ulimit -n)"
        elif error.errno == errno.EFBIG:
            text = (
                f"channel_size of {_megabytes(nbytes)} exceeds the limit of file sizes: lower channel_size, "
                "or raise the limit (ulimit -f)"
            )
        else:
            raise
        raise OSError(error.errno, text) from error


def idle_seconds(proc: Path = _PROC) -> float:
    """Return how long the cores of this machine have been idle since its start, summed. NaN: unknown."""
    with suppress(OSError, ValueError, IndexError):
        idle, waiting = (proc / "stat").read_text().split(None, 6)[4:6]
        return (int(idle) + int(waiting)) / os.sysconf("SC_CLK_TCK")
    return math.nan


def is_process_limit(error: BaseException) -> bool:
    """Return whether an error says that no further process or thread can be started."""
    is_no_thread = isinstance(error, RuntimeError) and _NO_THREAD in str(error)
    return is_no_thread or isinstance(error, BlockingIOError)


def process_limit(option: str = "", *, thread: str = "") -> OSError:
    """Return the error that names the limit of processes, and ``option``, which sets how many there are.

    Or the name of the ``thread`` that could not be started, where no option does.
    """
    limit = _limit("RLIMIT_NPROC")
    number = "" if limit == float("inf") else f" of {limit}"
    lower = f", or lower {option.partition('=')[0]}" if option else ""
    return OSError(
        errno.EAGAIN,
        f"{option or thread}: no further process or thread can be started, as a limit{number} is reached: "
        f"raise it ({_OF_PROCESSES}){lower}",
    )


@contextmanager
def naming_process_limit(option: str) -> Iterator[None]:
    """Name ``option``, such as ``"num_workers=4"``, where no further process or thread can be started."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if not is_process_limit(error) or _OF_PROCESSES in str(error):
            raise
        raise process_limit(option) from None


@dataclass(frozen=True, slots=True)
class _Group:
    """One control group, of version 1 or 2."""

    path: Path
    is_v2: bool

    @property
    def cores(self) -> float:
        """Limit of CPU time, in cores, where the group is one of CPUs."""
        if self.is_v2:
            quota, period = _cpu_max(self.path / "cpu.max")
        else:
            quota, period = (_number_in(self.path / f"cpu.cfs_{each}_us", -1) for each in ("quota", "period"))
        return quota / period if quota > 0 and period > 0 else _NO_LIMIT

    @property
    def name(self) -> str:
        """File of the limit."""
        return "memory.max" if self.is_v2 else "memory.limit_in_bytes"

    @property
    def limit(self) -> float:
        return _number_in(self.path / self.name, float("inf"))

    def used(self) -> float:
        """Return the memory that the system cannot take back: all but pages of files."""
        held = _number_in(self.path / ("memory.current" if self.is_v2 else "memory.usage_in_bytes"), 0)
        fields: dict[str, int] = {}
        with suppress(OSError, ValueError):
            fields = _fields((self.path / "memory.stat").read_text())
        prefix = "" if self.is_v2 else "total_"
        return max(held - sum(fields.get(f"{prefix}{kind}_file", 0) for kind in ("active", "inactive")), 0)


def _groups(cgroup: Path, proc: Path, controller: str = "memory") -> Iterator[_Group]:
    """Yield the control groups of this process for memory or ``"cpu"``, each before its parent.

    The last is what is mounted: in a container, its own group, whose path there may not exist.
    """
    places = {True: "", False: ""}
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, place = line.split(":", 2)
            if not controllers or controller in controllers.split(","):
                places[not controllers] = place
    for is_v2, place in places.items():
        mount = cgroup if is_v2 else cgroup / controller
        here = mount / place.lstrip("/")
        for path in (here, *here.parents):
            if path.is_relative_to(mount):
                yield _Group(path, is_v2)


def _cpu_max(path: Path) -> tuple[float, float]:
    with suppress(OSError, ValueError):  # "max 100000" is no limit.
        quota, period = path.read_text().split()
        return int(quota), int(period)
    return 0, 0


def _number_in(path: Path, default: float) -> float:
    with suppress(OSError, ValueError):  # "max" is no number.
        return int(path.read_text())
    return default


def _fields(text: str) -> dict[str, int]:
    """Return the numbers of lines ``name number``."""
    return {parts[0]: int(parts[1]) for parts in map(str.split, text.splitlines()) if len(parts) > 1}


def _limit(name: str, *, hard: bool = False) -> float:
    value = resource.getrlimit(getattr(resource, name))[hard]
    return float("inf") if value == resource.RLIM_INFINITY else value


def _stack_bytes() -> int:
    soft = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return threading.stack_size() or (_STACK_BYTES if soft == resource.RLIM_INFINITY else soft)


def _startable(count: int) -> int:
    """Return how many threads can be started, ``count`` at most. They end before this returns."""
    over = threading.Event()
    threads: list[threading.Thread] = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=over.wait, daemon=True)
            thread.start()
            threads.append(thread)
    except (RuntimeError, MemoryError):
        pass
    finally:
        over.set()
    for thread in threads:
        thread.join()
    return len(threads)


def _megabytes(count: float) -> str:
    return f"{count / (1 << 20):.0f} MB"
