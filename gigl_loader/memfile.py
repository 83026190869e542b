"""Memory files: shared memory without a name.

Nothing is left in ``/dev/shm`` after SIGKILL, and a container's limit on ``/dev/shm`` does not bind.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from gigl_loader.arrays import Bytes
from gigl_loader.errors import FormatError
from gigl_loader.native import map_file


def create_memory(name: str, nbytes: int) -> int:
    """Make a memory file of fixed size and return its descriptor. It can neither grow nor shrink."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except BaseException:
        os.close(fd)
        raise
    return fd


def map_memory(fd: int, nbytes: int, *, prot: int = mmap.PROT_READ | mmap.PROT_WRITE) -> Bytes:
    """Map the first ``nbytes`` of a memory file that cannot shrink. ``FormatError`` if it is no such file.

    The map lives as long as an array of it. It keeps no descriptor: the caller may close ``fd``.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        raise FormatError("not a memory file") from None
    if not seals & fcntl.F_SEAL_SHRINK:
        raise FormatError("a memory file that may shrink under its reader")
    if nbytes < 1:
        raise FormatError("an empty memory file")
    if os.fstat(fd).st_size < nbytes:
        raise FormatError(f"a memory file of {os.fstat(fd).st_size} bytes for {nbytes}")
    return map_file(fd, nbytes, prot=prot)
