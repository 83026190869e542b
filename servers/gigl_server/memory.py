"""Memory of this process by kind of object, in addition to what the process had at its start.

The kinds add up to the resident memory, but for what cannot be measured: parts of blocks that were never
touched, and thread stacks.

===========  ==============================================================================================
kind         memory
===========  ==============================================================================================
samplers     of idle samplers, kept for the next batch of their plan
scratch      of samplers at work, as of their last batch
frames       buffers of frames that go over the network: lent, and idle ones
rings        written slots of rings
requests     inputs of queued batches, and bodies of requests that are received
connections  of the data port, estimated
journal      of the batches under way
graph        lists made from the files of the graph, such as edges by their source
files        mapped pages of files, which the system takes back when it needs memory
python       small objects of the interpreter, estimated
other        other blocks in use: gRPC, OpenSSL, arrays of calls under way
allocator    freed blocks that the C library keeps for later ones
===========  ==============================================================================================
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_BLOCK_BYTES = 96
"""Mean of the interpreter's small blocks (16 to 512 bytes) in a server, with what its pools waste."""
_IN_BLOCKS = ("samplers", "scratch", "frames", "requests", "connections", "graph")
"""Kinds whose memory comes from the C library, which counts it as in use."""


class _Mallinfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """Resident memory of this process in bytes, and what its allocators hold. 0 where it is not known."""

    anonymous: int = 0
    files: int = 0
    in_use: int = 0
    """Blocks of the C library that are in use."""
    free: int = 0
    """Freed blocks of the C library. Their pages may have been given back."""
    python: int = 0

    @classmethod
    def read(cls) -> ProcessMemory:
        """Read it from the kernel and from glibc. Takes a lock of each arena for a moment."""
        found = {}
        with suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as file:
            found = dict(line.split(":", 1) for line in file if line.startswith("Rss"))
        kinds = {"anonymous": "RssAnon", "files": "RssFile"}
        resident = {kind: int(found[name].split()[0]) << 10 for kind, name in kinds.items() if name in found}
        with suppress(OSError, AttributeError):  # No glibc, or one before 2.33.
            mallinfo = ctypes.CDLL(None).mallinfo2
            mallinfo.restype = _Mallinfo
            blocks = mallinfo()
            resident |= {"in_use": blocks.uordblks + blocks.hblkhd, "free": blocks.fordblks}
        return cls(**resident, python=sys.getallocatedblocks() * _BLOCK_BYTES)

    def since(self, start: ProcessMemory) -> ProcessMemory:
        """Return what came on top of ``start``; at least 0 of each."""
        names = [each.name for each in fields(self)]
        return ProcessMemory(**{name: max(getattr(self, name) - getattr(start, name), 0) for name in names})


class MemoryAccount:
    """Account of the memory that this process took since this object was made."""

    def __init__(self, objects: Callable[[], Mapping[str, int]]) -> None:
        """``objects`` returns the bytes of known objects by kind."""
        self._objects = objects
        self._start = ProcessMemory.read()

    def read(self) -> dict[str, int]:
        """Return the bytes of each kind. See the module."""
        more = ProcessMemory.read().since(self._start)
        kinds = dict(self._objects())
        kinds["python"] = more.python
        blocks = sum(kinds.get(each, 0) for each in _IN_BLOCKS)
        kinds["other"] = max(more.in_use - blocks, 0)
        # Freed blocks count as free also after their pages were given back: they hold at most what is left.
        left = more.anonymous - blocks - kinds["python"] - kinds["other"]
        kinds["allocator"] = max(min(more.free, left), 0)
        kinds["files"] = more.files
        return kinds
