"""Memory limit of a build, and its division among the steps."""

from __future__ import annotations

import re
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Budget", "available_memory", "parse_bytes", "peak_bytes", "resident_bytes"]

_MAX_CHUNK_ROWS = 4 << 20
_UNITS = {"": 1, "b": 1} | {
    name: base**power
    for power, letter in enumerate("kmgt", start=1)
    for base, names in ((1000, (letter, f"{letter}b")), (1024, (f"{letter}ib",)))
    for name in names
}
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
_EDGE_BYTES = 96
"""A leaf of the edge sort holds per edge: 12 to 24 bytes of spilled arrays, three int64 keys, the
order, and the 24 bytes of the native sort."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes of working memory, on top of what the process holds already."""

    total: int

    def __post_init__(self) -> None:
        if self.total < 1:
            raise ValueError(f"the memory limit must be positive, got {self.total} bytes")

    def chunk_rows(self, row_bytes: int) -> int:
        """Rows to have in flight between a table and the buckets: an eighth of the memory.

        64 bytes a row go to positions, bucket numbers and their sort; each column is held twice.
        """
        return min(max(self.total // 8 // (64 + 2 * row_bytes), 1), _MAX_CHUNK_ROWS)

    def edge_bucket_rows(self, widest_row_bytes: int) -> int:
        """Edges to sort at once: half of the memory. Columns are placed one after another."""
        return max(self.total // 2 // max(_EDGE_BYTES, 24 + widest_row_bytes), 1)

    def node_bucket_rows(self, widest_row_bytes: int) -> int:
        """Nodes to place at once: half of the memory."""
        return max(self.total // 2 // (24 + widest_row_bytes), 1)

    def copy_rows(self, row_bytes: int) -> int:
        """Rows to copy at once on their way into a file: a sixteenth of the memory, 8 MiB at most."""
        return max(min(self.total // 16, 8 << 20) // max(row_bytes, 1), 1)

    def fits(self, nbytes: int) -> bool:
        """Whether that much may wait in memory, rather than on disk, to be sorted."""
        return nbytes <= self.total // 4

    def require(self, nbytes: int, what: str) -> None:
        """Raise ``ValueError`` unless half of the memory holds what cannot be streamed."""
        if nbytes > self.total // 2:
            raise ValueError(
                f"{what} needs {nbytes / 1e6:.1f} MB at once, more than half of the working memory of "
                f"{self.total / 1e6:.1f} MB: raise the memory limit"
            )


def available_memory() -> int:
    """Return the bytes that this process may still use: of the machine, and of its container."""
    found = [_meminfo("MemAvailable")]
    for limit_file, used_file in _CGROUPS:
        limit, used = _number(limit_file), _number(used_file)
        if limit is not None and used is not None:
            found.append(limit - used)
    known = [value for value in found if value is not None and value > 0]
    return min(known, default=4 << 30)


def parse_bytes(text: str) -> int:
    """Return the number of bytes in ``"2GB"``, ``"512 MiB"`` or ``"1000000"``."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is no size; write for example 2GB, 512MiB or 1000000")
    return int(float(match[1]) * unit)


def resident_bytes() -> int:
    """Return the bytes of memory that this process has touched and still holds."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak << 10
    return pages * resource.getpagesize()


def peak_bytes() -> int:
    """Return the largest number of bytes of memory that this process has held."""
    # Not ``getrusage``: that begins with the memory of the process that forked this one.
    found = _status_bytes("VmHWM")
    return resident_bytes() if found is None else found


def _status_bytes(field: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:")), None)


def _meminfo(field: str) -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:")), None)


def _number(path: str) -> int | None:
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
