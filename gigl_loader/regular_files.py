"""Regular files, opened without waiting, and read as a whole only where they are small.

A pipe in place of a file may never say anything, a device never ends, and a file of gigabytes would fill the
memory before its contents are found to be wrong.
"""

from __future__ import annotations

import errno
import os
import select
import stat
from typing import TYPE_CHECKING

from gigl_loader.errors import FormatError
from gigl_loader.retry import Deadline

if TYPE_CHECKING:
    from pathlib import Path

_PIECE_BYTES = 1 << 20
_PIPE_S = 10.0
"""Time for the contents of a pipe, which another process writes."""


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Open a file, and return its descriptor. ``FormatError`` for a pipe, a socket or a device.

    Raises ``OSError`` as ``os.open``, and ``IsADirectoryError``.
    """
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, mode)
    try:
        check_regular(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_regular(fd: int, path: str | os.PathLike[str]) -> None:
    """Raise ``FormatError``, or ``IsADirectoryError``, unless an open file is a regular one."""
    kind = os.fstat(fd).st_mode
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(kind):
        raise FormatError(f"{os.fspath(path)}: not a regular file")


def read_whole(path: str | os.PathLike[str], *, most: int, pipes: bool = False) -> bytes:
    """Return the contents of a regular file. ``FormatError`` for more than ``most`` bytes: they are not read.

    ``pipes``: also those of a pipe, by which shells pass secrets, if they come within 10 s. Raises as
    ``open_regular``.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        is_pipe = pipes and stat.S_ISFIFO(os.fstat(fd).st_mode)
        if not is_pipe:
            check_regular(fd, path)
        return _read(fd, path, most, Deadline.after(_PIPE_S) if is_pipe else None)
    finally:
        os.close(fd)


def _read(fd: int, path: str | os.PathLike[str], most: int, deadline: Deadline | None) -> bytes:
    found, nbytes = bytearray(), os.fstat(fd).st_size
    while max(len(found), nbytes) <= most:  # The size of a pipe, and of files of /proc, is said to be 0.
        if deadline is not None:
            _wait_for_writer(fd, path, deadline)
        piece = os.read(fd, min(_PIECE_BYTES, most + 1 - len(found)))
        if not piece:
            return bytes(found)
        found += piece
    raise FormatError(f"{os.fspath(path)} has more than {most} bytes, as many as are read")


def _wait_for_writer(fd: int, path: str | os.PathLike[str], deadline: Deadline) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(1000 * deadline.left_s()):
        raise FormatError(f"{os.fspath(path)}: nothing came through this pipe within {_PIPE_S:g} s")


def check_no_links(folder: Path) -> None:
    """Raise ``ValueError`` for a link, a pipe, a socket or a device below a folder, which may not be there.

    For folders that are written to: what leads out of them would be overwritten.
    """
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(root, name)
            kind = os.lstat(path).st_mode
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                what = "a link" if stat.S_ISLNK(kind) else "no regular file"
                raise ValueError(f"{path} is {what}: remove it, or give another directory")
