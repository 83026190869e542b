"""Cost of a process and of all that it started: CPU time and memory, read from /proc (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CpuMeter", "Memory", "memory_of", "process_tree"]

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def process_tree(root: int) -> list[int]:
    """Return ``root`` and the processes that descend from it, parents first."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        fields = _stat(pid)
        if fields:
            children.setdefault(int(fields[1]), []).append(pid)
    tree = [root]
    for pid in tree:
        tree += children.get(pid, [])
    return tree


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; nothing if the process is gone."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _tree_cpu(root: int) -> float:
    """Return the CPU seconds of a tree so far, with those of children that ended and were waited for."""
    return sum(sum(map(int, _stat(pid)[11:15])) for pid in process_tree(root)) / _TICKS


def _machine_cpu() -> float:
    """Return the CPU seconds that the whole machine has been busy (all but idle and waiting for disks)."""
    fields = (_PROC / "stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, _idle, _iowait, *rest = map(int, fields)
    return (user + nice + system + sum(rest)) / _TICKS


class CpuMeter:
    """CPU seconds of this process's tree, and of everything else on the machine, since it was made."""

    def __init__(self) -> None:
        self._root = os.getpid()
        self._machine, self._tree = _machine_cpu(), _tree_cpu(self._root)

    def read(self) -> tuple[float, float]:
        """Return (our CPU seconds, those of others)."""
        ours = _tree_cpu(self._root) - self._tree
        return ours, max(_machine_cpu() - self._machine - ours, 0.0)


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a process or of several, in bytes."""

    proportional: int = 0
    """Resident memory, pages shared with others counted in parts (PSS). Holds mapped files too."""
    anonymous: int = 0
    """Memory of its own that no file backs: what a process truly adds."""
    shared: int = 0
    """Touched shared memory that no file on a disk backs, in parts."""

    def __add__(self, other: Memory) -> Memory:
        return Memory(
            self.proportional + other.proportional,
            self.anonymous + other.anonymous,
            self.shared + other.shared,
        )

    def or_more(self, other: Memory) -> Memory:
        """Return the larger of each."""
        return Memory(
            max(self.proportional, other.proportional),
            max(self.anonymous, other.anonymous),
            max(self.shared, other.shared),
        )


def memory_of(pid: int) -> Memory:
    """Return what a process holds now; nothing if it is gone."""
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return Memory()
    kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return Memory(
        kilobytes["Pss"] * 1024, kilobytes["Anonymous"] * 1024, kilobytes.get("Pss_Shmem", 0) * 1024
    )
