"""Scratch: where the tasks of a build leave files for each other, on a disk or in an object store.

A file is there complete or not at all, so a task may be done twice and a reader never meets half of one.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from gigl_loader.arrays import Bytes
from gigl_loader.errors import FormatError
from gigl_loader.graph.folder import is_uri
from gigl_loader.partition.output import locked_directory


class ScratchFile(Protocol):
    """A file that is being written."""

    def write(self, data: bytes | Bytes) -> None:
        """Append bytes."""

    def close(self) -> None:
        """Complete the file: it appears under its name, in place of one that was there."""

    def abort(self) -> None:
        """Forget the file."""


class Scratch(Protocol):
    """Named files. Names are relative, with ``/`` between their parts."""

    @property
    def location(self) -> str:
        """Location for ``open_scratch`` in another process: an absolute path or a URI."""

    def locked(self) -> AbstractContextManager[None]:
        """Keep other builds out. ``ValueError`` where one is at work here."""

    def create(self, name: str) -> ScratchFile: ...

    def size(self, name: str) -> int:
        """Return the size of a file in bytes. ``FileNotFoundError`` if there is none."""

    def read_into(self, name: str, begin: int, out: Bytes) -> None:
        """Fill ``out`` with the bytes from ``begin`` on. ``OSError`` where the file ends before."""

    def names(self, prefix: str) -> list[str]:
        """Return the names of the files below a directory, sorted; of all files for ``""``."""

    def remove(self, prefix: str) -> None:
        """Remove a directory with its files, or one file. No effect where there is none."""


def write_file(scratch: Scratch, name: str, data: bytes) -> None:
    """Write a whole file."""
    file = scratch.create(name)
    file.write(data)
    file.close()


def read_file(scratch: Scratch, name: str, *, most: int) -> bytes:
    """Return a whole file. ``FormatError`` for more than ``most`` bytes: they are not read."""
    nbytes = scratch.size(name)
    if nbytes > most:
        raise FormatError(f"{scratch}: {name} has {nbytes} bytes; at most {most} are read")
    data = np.empty(nbytes, np.uint8)
    scratch.read_into(name, 0, data)
    return data.tobytes()


def open_scratch(location: str) -> Scratch:
    """Return the scratch at an absolute path or a URI of ``pyarrow.fs``."""
    if is_uri(location):
        from gigl_loader.partition.remote_files import RemoteScratch

        return RemoteScratch(location)
    return DiskScratch(Path(location))


class DiskScratch:
    """A directory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    @property
    def location(self) -> str:
        return str(self._path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        self._path.mkdir(parents=True, exist_ok=True)
        with locked_directory(self._path, f"{self._path} is the scratch of a build that is running"):
            yield

    def create(self, name: str) -> ScratchFile:
        return _DiskFile(self._path / name)

    def size(self, name: str) -> int:
        return (self._path / name).stat().st_size

    def read_into(self, name: str, begin: int, out: Bytes) -> None:
        fd = os.open(self._path / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            rest = out.data
            while rest:
                count = os.preadv(fd, [rest], begin)
                if count == 0:
                    raise OSError(f"{self._path / name}: ends early, at byte {begin}")
                rest, begin = rest[count:], begin + count
        finally:
            os.close(fd)

    def names(self, prefix: str) -> list[str]:
        found = (path for path in (self._path / prefix).rglob("*") if path.is_file())
        return sorted(path.relative_to(self._path).as_posix() for path in found)

    def remove(self, prefix: str) -> None:
        path = self._path / prefix
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


class _DiskFile:
    """Writes beside the file's place, and renames."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        self._file = self._temporary.open("xb", buffering=0)

    def write(self, data: bytes | Bytes) -> None:
        rest = memoryview(data) if isinstance(data, bytes) else data.data
        while rest:
            rest = rest[self._file.write(rest) :]

    def close(self) -> None:
        self._file.close()
        self._temporary.rename(self._path)

    def abort(self) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)
