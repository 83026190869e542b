"""Folders that hold the files of a graph: a directory, or memory that processes share.

Both give read-only maps of the same bytes, so that callers need not distinguish them.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit, urlunsplit

import numpy as np
import numpy.typing as npt

from gigl_loader.arrays import Bytes
from gigl_loader.errors import FormatError
from gigl_loader.native import (
    forget_mapping,
    install_bus_error_handler,
    map_file,
    use_huge_pages,
    watch_mapping,
)
from gigl_loader.regular_files import open_regular


class FileStatus(NamedTuple):
    """Status of a file, which changes when the file is overwritten or replaced."""

    inode: int
    nbytes: int
    modified_ns: int


class Extent(NamedTuple):
    """Bytes of a memory file."""

    begin: int
    nbytes: int


Status = FileStatus | None
"""``None``: no such file, or a file that no other process can write."""


class Sink:
    """A new file of known size, written at any offset. ``close`` flushes it to disk.

    It uses writes and not a map: a written page belongs to the page cache, a mapped one counts as memory of
    this process, and building must stay within a memory limit.

    Large pieces of a file on disk are written in whole huge pages, from memory that is not mapped from a file
    itself: the page cache then consists of huge pages, on Linux file systems that have them, and batches take
    0.8 of the CPU.
    """

    def __init__(self, fd: int, *, on_disk: bool, extent: Extent | None = None) -> None:
        """``extent``: where the file lies, if ``fd`` has other files as well."""
        self._fd = fd
        self._on_disk = on_disk
        self._extent = extent
        self._page = memoryview(b"")
        """Memory for the bytes of a huge page that are not written yet: ``_filled`` from ``_begin`` on."""
        self._begin = self._filled = 0

    def write(self, offset: int, data: bytes | npt.NDArray[Any]) -> None:
        """Write ``data`` (bytes, or a C-contiguous array) at ``offset``."""
        view = memoryview(data).cast("B") if isinstance(data, bytes) else _flat(data).data
        if self._extent is not None:
            assert offset + len(view) <= self._extent.nbytes, "the next file begins there"
            offset += self._extent.begin
        end = self._begin + self._filled
        if self._on_disk and (len(view) >= _HUGE_PAGE or (self._filled and offset == end)):
            if offset != end:
                self._write_page()
                self._begin = offset
            self._write_pages(view)
        else:
            if offset < end and self._begin < offset + len(view):
                self._write_page()
            self._put(view, offset)

    def _write_pages(self, view: memoryview) -> None:
        """Write the bytes that follow those of ``_page``, but for the last, which fill no huge page."""
        self._page = self._page or memoryview(bytearray(_HUGE_PAGE))
        while view:
            room = _HUGE_PAGE - (self._begin + self._filled) % _HUGE_PAGE
            piece, view = view[:room], view[room:]
            self._page[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            if len(piece) == room:
                self._write_page()

    def _write_page(self) -> None:
        self._put(self._page[: self._filled], self._begin)
        self._begin, self._filled = self._begin + self._filled, 0

    def _put(self, view: memoryview, offset: int) -> None:
        while view:
            written = os.pwrite(self._fd, view, offset)
            view, offset = view[written:], offset + written

    def close(self) -> None:
        """Flush to the disk and close. Closing twice is fine.

        A large file in memory gets huge pages, where the kernel has them: batches read all over it.
        """
        if self._extent is not None and self._extent.nbytes >= _HUGE_BYTES:
            use_huge_pages(self._fd, *self._extent)
        if self._on_disk and self._fd >= 0:
            try:
                self._write_page()
                os.fsync(self._fd)
            finally:
                self.discard()

    def discard(self) -> None:
        """Close a file that is not needed, without flushing."""
        if self._on_disk and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_HUGE_BYTES = 32 << 20
"""Files in memory of this size get huge pages. The processor finds smaller ones quickly in pages of 4 KiB."""
_HUGE_PAGE = 2 << 20
_DIRECT: int = getattr(os, "O_DIRECT", 0)
_PAGE = 4096
_PIECE = 1 << 20
"""Bytes of a read that pauses: 1 ms. Reads of 8 MiB would let small reads of other threads wait for 10 ms."""


class DirectFile:
    """A file that is read from the disk, and leaves nothing in the page cache. For one thread at a time."""

    def __init__(self, path: Path, name: str, *, rest: float = 0.0) -> None:
        """Raises ``OSError`` where the file cannot be opened.

        After each MiB, a read pauses ``rest`` times as long as that took: reads for batches go first.
        """
        self._name, self._rest = name, rest
        self._memory = mmap.mmap(-1, _PAGE)  # Direct reads need memory, begin and count in whole pages.
        self._direct = _DIRECT
        try:
            self._fd = _readable(path, _DIRECT, self._memory)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._direct = 0  # The file system has no direct reads.
            self._fd = _readable(path, 0, self._memory)
        found = os.fstat(self._fd)
        self.status = FileStatus(found.st_ino, found.st_size, found.st_mtime_ns)

    def __enter__(self) -> DirectFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def __getitem__(self, span: slice[int, int, None]) -> Bytes:
        """Read bytes, uint8 [count], valid until the next read. ``FormatError`` unless all are there."""
        first = span.start // _PAGE * _PAGE
        room = -(-(span.stop - first) // _PAGE) * _PAGE
        if room > len(self._memory):
            self._memory = mmap.mmap(-1, room)
        memory = np.frombuffer(self._memory, np.uint8)
        step = _PIECE if self._rest else room
        for at in range(0, room, step):
            began = time.monotonic()
            self._read(memory[at : min(at + step, room)], first + at, span.stop)
            if self._rest:
                time.sleep(self._rest * (time.monotonic() - began))
        return memory[span.start - first : span.stop - first]

    def _read(self, memory: Bytes, begin: int, end: int) -> None:
        """Fill ``memory`` from byte ``begin`` on, as far as ``end``."""
        wanted, done = min(len(memory), end - begin), 0
        while done < wanted:
            try:
                read = os.preadv(self._fd, [memory[done:].data], begin + done)
            except OSError as error:
                text = f"bytes {begin + done} to {begin + wanted - 1} cannot be read: {error.strerror}"
                raise FormatError(f"{self._name}: {text}") from None
            done += read
            if done < wanted and (not read or done % _PAGE):
                raise FormatError(f"{self._name}: it ends at byte {begin + done}, before byte {end}")
        if not self._direct and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, begin, wanted, os.POSIX_FADV_DONTNEED)


def _readable(path: Path, flags: int, memory: mmap.mmap) -> int:
    """Open a file, and try to read its first page."""
    fd = open_regular(path, os.O_RDONLY | flags)
    try:
        os.preadv(fd, [memory], 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


class Folder(Protocol):
    """Named files. Names are relative, with ``/`` between their parts."""

    def create(self, name: str, nbytes: int) -> Sink:
        """Create a file of ``nbytes`` zero bytes, and return its writer."""

    def open(self, name: str) -> Bytes:
        """Return a read-only map of a file, uint8 [size]. ``FileNotFoundError`` if there is none."""

    def read(self, name: str, begin: int, count: int) -> Bytes:
        """Read bytes of a file as it is now, uint8 [count]. ``FormatError`` unless all of them are there.

        It uses no map: reading behind the end of a file that was truncated raises no signal.
        """

    def status(self, name: str) -> Status:
        """Return the current status of a file."""

    def names(self) -> list[str]:
        """Return the names of all files, sorted."""

    @property
    def reference(self) -> dict[str, Any]:
        """Reference for ``folder_from`` in another process, JSON-able."""

    @property
    def pass_fds(self) -> tuple[int, ...]:
        """File descriptors that a child process must inherit to use ``reference``."""


_URI = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_MERGED_URI = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):/([^/])")  # As pathlib writes a URI.


def is_uri(location: str) -> bool:
    """Return whether a location is a URI, such as ``s3://bucket/path``, and not a path."""
    return _URI.match(location) is not None


def shown(location: str) -> str:
    """Return a location for people: a URI without user, password and options, which may be secret."""
    if not is_uri(location):
        return location
    parts = urlsplit(location)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def graph_directory(location: str | os.PathLike[str]) -> Path:
    """Return the path of a graph. ``ValueError`` for a URI: graphs are mapped, and are copied here first."""
    text = _MERGED_URI.sub(r"\1://\2", os.fspath(location), count=1)
    if is_uri(text) and not Path(location).exists():
        raise ValueError(
            f"{shown(text)} is a URI, and a graph is opened from a directory: copy it to one first, with "
            f"gigl-loader fetch {shown(text)} DIRECTORY"
        )
    return Path(location)


class DiskFolder:
    """A directory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __str__(self) -> str:
        return str(self.path)

    def create(self, name: str, nbytes: int) -> Sink:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.ftruncate(fd, nbytes)
        return Sink(fd, on_disk=True)

    def open(self, name: str) -> Bytes:
        fd = _opened(self.path, name)
        try:
            return _map(fd, what=str(self.path / name))
        finally:
            os.close(fd)

    def read(self, name: str, begin: int, count: int) -> Bytes:
        try:
            fd = _opened(self.path, name, os.O_NOFOLLOW)  # No link: it may lead out of the folder.
        except OSError as error:
            raise FormatError(f"{name}: cannot be read: {error.strerror}") from None
        try:
            return _read(fd, begin, count, what=name)
        finally:
            os.close(fd)

    def direct(self, name: str, *, rest: float = 0.0) -> DirectFile:
        """Open a file for reads that leave nothing in the page cache. Raises ``OSError``."""
        return DirectFile(self.path / name, name, rest=rest)

    def status(self, name: str) -> Status:
        try:
            found = os.stat(self.path / name)
        except OSError:
            return None
        return FileStatus(found.st_ino, found.st_size, found.st_mtime_ns)

    def names(self) -> list[str]:
        return sorted(
            path.relative_to(self.path).as_posix() for path in self.path.rglob("*") if path.is_file()
        )

    @property
    def reference(self) -> dict[str, Any]:
        return {"path": str(self.path.absolute())}

    @property
    def pass_fds(self) -> tuple[int, ...]:
        return ()


class MemoryFolder:
    """Files in memory, without names in a file system: they vanish with the last process that has them.

    They lie in one memory file, behind each other: a descriptor for each would soon meet the limit of 1,024.
    All stay in memory as long as one of them is mapped. One thread at a time creates files.
    """

    def __init__(self) -> None:
        self._own(_anonymous_file(), {})

    def _own(self, fd: int, files: dict[str, Extent]) -> None:
        self._fd = fd
        self._files = files
        weakref.finalize(self, os.close, fd)

    @classmethod
    def from_reference(cls, reference: Mapping[str, Any]) -> MemoryFolder:
        """Open the files of a ``reference``: a descriptor that is open here, and stays the caller's."""
        folder = cls.__new__(cls)
        folder._own(
            os.dup(reference["fd"]), {name: Extent(*each) for name, each in reference["files"].items()}
        )
        return folder

    def __str__(self) -> str:
        return "the graph in memory"

    def create(self, name: str, nbytes: int) -> Sink:
        if name in self._files:
            raise FileExistsError(f"{name} exists")
        unit = _HUGE_PAGE if nbytes >= _HUGE_BYTES else mmap.PAGESIZE  # What is left out takes no memory.
        begin = -(-os.fstat(self._fd).st_size // unit) * unit
        extent = Extent(begin, nbytes)
        os.ftruncate(self._fd, begin + -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        self._files[name] = extent
        return Sink(self._fd, on_disk=False, extent=extent)

    def open(self, name: str) -> Bytes:
        if name not in self._files:
            raise FileNotFoundError(f"no file {name} in memory")
        begin, nbytes = self._files[name]
        return map_file(self._fd, nbytes, begin) if nbytes else np.empty(0, np.uint8)

    def read(self, name: str, begin: int, count: int) -> Bytes:
        if name not in self._files:
            raise FormatError(f"{name}: cannot be read: no such file in memory")
        extent = self._files[name]
        if begin + count > extent.nbytes:
            raise FormatError(f"{name}: it ends before byte {begin + count}")
        return _read(self._fd, extent.begin + begin, count, what=name)

    def status(self, name: str) -> Status:
        return None

    def names(self) -> list[str]:
        return sorted(self._files)

    def __reduce__(self) -> tuple[Callable[..., MemoryFolder], tuple[Any, dict[str, Extent]]]:
        if get_spawning_popen() is None:
            raise TypeError(
                "a graph in memory cannot be pickled, only given to a process that multiprocessing starts; "
                "else partition it to a directory and DistDataset.open that in each process"
            )
        return _inherited, (DupFd(self._fd), self._files)

    @property
    def reference(self) -> dict[str, Any]:
        return {"fd": self._fd, "files": self._files}

    @property
    def pass_fds(self) -> tuple[int, ...]:
        return (self._fd,)


def _inherited(handle: Any, files: dict[str, Extent]) -> MemoryFolder:
    folder = MemoryFolder.__new__(MemoryFolder)
    folder._own(handle.detach(), files)
    return folder


def sync_directory(path: Path) -> None:
    """Have the names in a directory survive a crash of the machine."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def folder_from(reference: Mapping[str, Any]) -> Folder:
    """Return the folder behind a ``reference``, in this or in a child process."""
    if "path" in reference:
        return DiskFolder(reference["path"])
    return MemoryFolder.from_reference(reference)


def _opened(folder: Path, name: str, flags: int = 0) -> int:
    """Open a file of a folder. ``FormatError`` for a directory, a pipe or a device."""
    try:
        return open_regular(folder / name, os.O_RDONLY | flags)
    except (FormatError, IsADirectoryError):
        raise FormatError(f"{name}: not a regular file") from None


def _flat(array: npt.NDArray[Any]) -> Bytes:
    return array.reshape(-1).view(np.uint8)


def _read(fd: int, begin: int, count: int, *, what: str) -> Bytes:
    memory = np.empty(count, np.uint8)
    done = 0
    while done < count:
        try:
            read = os.preadv(fd, [memory[done:].data], begin + done)
        except OSError as error:
            raise FormatError(f"{what}: cannot be read: {error.strerror}") from None
        if not read:
            raise FormatError(f"{what}: it ends before byte {begin + count}")
        done += read
    return memory


def _map(fd: int, *, what: str) -> Bytes:
    """Return a map of a whole file. If the file is truncated later, the message of SIGBUS names ``what``."""
    size = os.fstat(fd).st_size
    if size == 0:
        return np.empty(0, dtype=np.uint8)
    memory = map_file(fd, size)
    watch_map(memory, memory, what)
    return memory


def watch_map(owner: object, memory: Bytes, what: str) -> None:
    """Let the message of SIGBUS, after a mapped file was truncated, name ``what`` while ``owner`` lives."""
    install_bus_error_handler()
    weakref.finalize(owner, forget_mapping, watch_mapping(memory, what)).atexit = False


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("gigl-graph")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
