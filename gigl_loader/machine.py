"""Memory of the machine that this process runs on, or of its container."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["memory_bytes"]

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_UNKNOWN = 4 << 30


def memory_bytes() -> int:
    """Return the bytes of memory that this process and its neighbours may use in all."""
    found = [_physical(), *map(_limit, _CGROUP_LIMITS)]
    return min((each for each in found if each > 0), default=_UNKNOWN)


def _physical() -> int:
    with suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 0


def _limit(path: str) -> int:
    """Return a limit of the control group; 0 where there is none."""
    with suppress(OSError, ValueError):  # "max" is no number.
        return int(Path(path).read_text())
    return 0
