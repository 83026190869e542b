"""A disk that hangs for real: a FUSE file system over a folder, whose process takes no more requests.

Reads that the process does not take wait in the kernel, in flight, as reads of a disk that hangs do. Other
than those, they end when the process that reads is killed: one that was taken and not answered would not.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

import pytest

_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _RELEASE, _INIT = 1, 2, 3, 14, 15, 18, 26
_OPENDIR, _READDIR, _RELEASEDIR = 27, 28, 29
_INTERRUPT, _BATCH_FORGET = 36, 42
_BUFFER = 1 << 20


@dataclass(frozen=True)
class HangingDisk:
    """The mounted file system, read-only."""

    path: Path
    control: socket.socket
    """Of the process: a byte has it stop, which it confirms, and another one go on."""
    requests: int
    """Descriptor that can be read while the kernel has a request that nobody took."""

    def hang(self) -> None:
        self.control.send(b"h")
        assert self.control.recv(1)

    def wait_for_a_reader(self) -> None:
        """Wait until a read hangs."""
        assert wait([self.requests], 20)

    def go_on(self) -> None:
        self.control.send(b"g")


@contextmanager
def hanging_disk(folder: Path, path: Path) -> Iterator[HangingDisk]:
    """Mount ``folder`` at ``path``. Skips the test, with the reason, where that is not allowed."""
    path.mkdir()
    try:
        fuse = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"no disk to hang: {error}")
    options = f"fd={fuse},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"hanging", bytes(path), b"fuse", 0, options):
        os.close(fuse)
        pytest.skip(f"no disk to hang: {os.strerror(ctypes.get_errno())}")
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    descriptors = [fuse, theirs.fileno()]
    arguments = [sys.executable, __file__, *map(str, descriptors), str(folder)]
    process = subprocess.Popen(arguments, pass_fds=descriptors)
    theirs.close()
    try:
        yield HangingDisk(path, ours, fuse)
    finally:
        ours.close()
        process.kill()
        process.wait(30)
        os.close(fuse)  # Reads that wait fail.
        subprocess.run(["umount", "--lazy", path], check=True, timeout=30)


def _serve(fuse: int, control: socket.socket, folder: Path) -> None:
    """Answer requests of the kernel (linux/fuse.h), one at a time."""
    places = [Path(), folder]  # by number of the inode
    while True:
        if control.fileno() in wait([fuse, control.fileno()]):
            control.send(control.recv(1))
            control.recv(1)
            continue
        request = os.read(fuse, _BUFFER)
        _, code, unique, inode = struct.unpack_from("=IIQQ", request)
        if code not in (_FORGET, _BATCH_FORGET, _INTERRUPT):
            try:
                reply, failure = _reply(code, inode, request[40:], places), 0
            except OSError as error:
                reply, failure = b"", error.errno or errno.EIO
            os.write(fuse, struct.pack("=IiQ", 16 + len(reply), -failure, unique) + reply)


def _reply(code: int, inode: int, body: bytes, places: list[Path]) -> bytes:
    if code == _INIT:
        return struct.pack("=IIIIHHIIHHI28x", 7, 31, 0, 0, 16, 16, 4096, 1, 0, 0, 0)
    if code == _LOOKUP:
        path = places[inode] / os.fsdecode(body.rstrip(b"\0"))
        attributes = _attributes(path)
        if path not in places:
            places.append(path)
        return struct.pack("=QQQQII", places.index(path), 0, 1000, 1000, 0, 0) + attributes
    if code == _GETATTR:
        return struct.pack("=QII", 1000, 0, 0) + _attributes(places[inode])
    if code in (_OPEN, _OPENDIR):
        return struct.pack("=QII", 0, 0, 0)
    if code in (_READ, _READDIR):
        return _contents(places[inode], *struct.unpack_from("=8xQI", body))
    if code in (_RELEASE, _RELEASEDIR):
        return b""
    raise OSError(errno.ENOSYS, "not needed")


def _contents(path: Path, offset: int, size: int) -> bytes:
    if path.is_dir():
        return b"" if offset else b"".join(map(_entry, path.iterdir()))
    with path.open("rb") as file:
        return os.pread(file.fileno(), size, offset)


def _entry(path: Path) -> bytes:
    name = os.fsencode(path.name)
    kind = path.stat().st_mode >> 12
    return struct.pack(f"=QQII{-(-len(name) // 8) * 8}s", path.stat().st_ino, 1, len(name), kind, name)


def _attributes(path: Path) -> bytes:
    found = path.stat()
    times = (int(found.st_atime), int(found.st_mtime), int(found.st_ctime))
    return struct.pack(
        "=6Q10I",
        found.st_ino,
        found.st_size,
        found.st_blocks,
        *times,
        0,
        0,
        0,
        found.st_mode,
        1,
        0,
        0,
        0,
        4096,
        0,
    )


if __name__ == "__main__":
    _serve(int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])), Path(sys.argv[3]))
