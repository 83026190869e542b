"""Files at a URI, by Arrow's file systems (S3, Google Cloud Storage, HDFS): tables, graphs, scratch."""

from __future__ import annotations

import os
import tempfile
import threading
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit, urlunsplit

import numpy as np
import pyarrow as pa
from pyarrow import fs

from gigl_loader.arrays import Bytes
from gigl_loader.errors import FormatError, StorageUnavailable
from gigl_loader.graph.folder import DiskFolder, FileStatus, Sink, Status, shown
from gigl_loader.partition.output import ScratchFile

_PIECE_BYTES = 8 << 20
_OBJECT_STORES = ("s3", "gcs", "abfs")
"""File systems in which a file appears when its writer is closed, and cannot be renamed without a copy."""


class RemotePlace:
    """A directory at a URI."""

    def __init__(self, location: str) -> None:
        self.location = location

    def __str__(self) -> str:
        return shown(self.location)

    def open_file(self, name: str) -> Any:
        """Open a file to be read anywhere."""
        return self._system.open_input_file(self._path(name))

    def read(self, name: str, *, most: int) -> bytes:
        """Return the contents of a file. ``FileNotFoundError`` if there is none.

        ``FormatError`` for more than ``most`` bytes: they are not read.
        """
        nbytes = self.size(name)
        if nbytes <= most:
            with self.open_file(name) as file:
                data = bytes(file.read(most + 1))  # It may have grown.
            if len(data) <= most:
                return data
        raise FormatError(f"{self}/{name} has {nbytes} bytes; at most {most} are read")

    def size(self, name: str) -> int:
        """Return the size of a file. ``FileNotFoundError`` if there is none."""
        (found,) = self._system.get_file_info([self._path(name)])
        if not found.is_file:
            raise FileNotFoundError(2, "no such file", f"{self}/{name}")
        return int(found.size)

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of all files below a directory, sorted."""
        selector = fs.FileSelector(self._path(prefix), recursive=True, allow_not_found=True)
        base = len(self._root) + 1
        return sorted(each.path[base:] for each in self._system.get_file_info(selector) if each.is_file)

    def remove(self, prefix: str) -> None:
        """Remove a directory with its files, or one file. No effect where there is none."""
        (found,) = self._system.get_file_info([self._path(prefix)])
        if found.is_file:
            self._system.delete_file(found.path)
        elif found.type != fs.FileType.NotFound:
            self._system.delete_dir(found.path)

    def write(self, name: str, pieces: Any) -> None:
        """Write a file, which appears complete."""
        path = self._path(name)
        if self._system.type_name in _OBJECT_STORES:
            self._write_to(path, pieces)
            return
        self._system.create_dir(path.rpartition("/")[0], recursive=True)
        temporary = f"{path}.{uuid.uuid4().hex}"
        self._write_to(temporary, pieces)
        self._system.move(temporary, path)

    def _write_to(self, path: str, pieces: Any) -> None:
        with self._system.open_output_stream(path) as stream:
            for piece in pieces:
                stream.write(piece)

    def upload(self, name: str, file: BinaryIO) -> None:
        """Write what is left of a local file."""
        self.write(name, iter(lambda: file.read(_PIECE_BYTES), b""))

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        return _system_at(self.location)

    @property
    def _system(self) -> Any:
        return self._opened[0]

    @property
    def _root(self) -> str:
        return self._opened[1]

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")


class RemoteSource:
    """A graph at a URI, as a source of the bytes of its files. Thread-safe."""

    def __init__(self, place: RemotePlace) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._files: dict[str, Any] = {}

    def __str__(self) -> str:
        return str(self._place)

    def fetch(self, name: str, first: int, count: int) -> Bytes:
        """Return bytes of a file, uint8 [count], not verified. ``StorageUnavailable`` where that fails."""
        try:
            with self._lock:
                if name not in self._files:
                    self._place.size(name)  # Opening a pipe would wait for its writer.
                    self._files[name] = self._place.open_file(name)
                file = self._files[name]
            data = file.read_at(count, first)
        except (OSError, pa.ArrowException) as error:
            raise StorageUnavailable(f"{self._place}/{name}: {' '.join(str(error).split())}") from None
        if len(data) != count:
            raise FormatError(f"{self._place}/{name} ends before byte {first + count}")
        return np.frombuffer(data, np.uint8)

    def close(self) -> None:
        """Close the files. Closing twice is fine."""
        while self._files:
            self._files.popitem()[1].close()


class RemotePath:
    """A file of a table at a URI."""

    def __init__(self, location: str) -> None:
        self._location = location

    def __str__(self) -> str:
        return shown(self._location)

    def open_file(self) -> Any:
        """Open it to be read anywhere."""
        system, path = _system_at(self._location)
        return system.open_input_file(path)

    def stamp(self) -> tuple[str, int, int]:
        """Return its name, size, and time of the last change."""
        system, path = _system_at(self._location)
        (found,) = system.get_file_info([path])
        return str(self), found.size or 0, found.mtime_ns or 0


def remote_files(location: str) -> tuple[list[str], list[tuple[RemotePath, tuple[str, ...], int]]]:
    """Return the parts of a pattern, and the files at a URI that match it or lie below directories that do.

    A file is a pattern of one part, a directory one of none. Each file has its path below the directory of
    the pattern and its size. ``FileNotFoundError`` if there is none.
    """
    location = urlunsplit(urlsplit(location)._replace(path=urlsplit(location).path.rstrip("/")))
    system, path = _system_at(location)
    parts = path.split("/")
    at = next((at for at, part in enumerate(parts) if any(mark in part for mark in "*?[")), len(parts))
    if at == len(parts) and system.get_file_info([path])[0].is_file:
        at -= 1
    patterns, base = parts[at:], "/".join(parts[:at])
    found = list(_below(system, base, patterns))
    if not found:
        raise FileNotFoundError(2, "no such file", shown(location))
    root = "/".join(urlsplit(location).path.split("/")[: -len(patterns) or None])
    listed = []
    for each in found:
        below = each.path[len(base) + 1 :]
        uri = urlunsplit(urlsplit(location)._replace(path=f"{root}/{below}"))
        listed.append((RemotePath(uri), tuple(below.split("/")), int(each.size or 0)))
    return patterns, listed


def _below(system: Any, base: str, patterns: Sequence[str]) -> Iterator[Any]:
    """Yield the files that match a pattern below a directory, and those below directories that do."""
    selector = fs.FileSelector(base, recursive=not patterns, allow_not_found=True)
    for each in system.get_file_info(selector):
        if patterns and not fnmatch(each.base_name, patterns[0]):
            continue
        if each.is_file and len(patterns) < 2:
            yield each
        elif patterns and not each.is_file:
            yield from _below(system, each.path, patterns[1:])


def _system_at(location: str) -> tuple[Any, str]:
    """Return the file system of a URI, and the path in it. ``ValueError`` for an unknown kind."""
    try:
        system, path = fs.FileSystem.from_uri(location)
    except (pa.ArrowException, OSError, ValueError) as error:
        text = " ".join(str(error).split()).replace(location, shown(location))
        raise ValueError(f"{shown(location)}: {text}") from None
    return system, path.rstrip("/")


class RemoteFolder:
    """Files below a URI. Local copies of what was written or read are kept until ``trim``."""

    def __init__(self, location: str, temporary: str | None = None) -> None:
        """``temporary`` is the directory for local copies, by default the system's."""
        self.place = RemotePlace(location)
        self._directory = tempfile.TemporaryDirectory(prefix="gigl-graph-", dir=temporary)
        self._local = DiskFolder(self._directory.name)

    def __str__(self) -> str:
        return str(self.place)

    @property
    def location(self) -> str:
        return self.place.location

    def create(self, name: str, nbytes: int) -> Sink:
        self._path(name).unlink(missing_ok=True)
        self._local.create(name, nbytes).discard()
        fd = os.open(self._path(name), os.O_RDWR | os.O_CLOEXEC)
        return _UploadedSink(fd, self._path(name), self.place, name)

    def open(self, name: str) -> Bytes:
        self._fetch(name)
        return self._local.open(name)

    def read(self, name: str, begin: int, count: int) -> Bytes:
        self._fetch(name)
        return self._local.read(name, begin, count)

    def status(self, name: str) -> Status:
        try:
            return FileStatus(0, self.place.size(name), 0)
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        return self.place.names()

    @property
    def reference(self) -> dict[str, Any]:
        raise TypeError(f"{self.place}: a graph is opened from a directory: copy it to one")

    @property
    def pass_fds(self) -> tuple[int, ...]:
        return ()

    def keep_only(self, names: Collection[str]) -> None:
        for name in set(self.names()) - set(names):
            self.place.remove(name)

    def trim(self) -> None:
        """Remove the local copies of files of partitions. Those of node ids serve all tasks."""
        for name in self._local.names():
            if not name.startswith("ids/"):
                self._path(name).unlink()

    def _path(self, name: str) -> Path:
        return self._local.path / name

    def _fetch(self, name: str) -> None:
        """Copy a file here. ``FileNotFoundError`` if there is none."""
        path = self._path(name)
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.part")
        with self.place.open_file(name) as source, temporary.open("wb") as file:
            while piece := source.read(_PIECE_BYTES):
                file.write(piece)
        temporary.rename(path)


class _UploadedSink(Sink):
    """A local file that is uploaded when it is complete."""

    def __init__(self, fd: int, path: Path, place: RemotePlace, name: str) -> None:
        super().__init__(fd, on_disk=True)
        self._path = path
        self._place = place
        self._name = name

    def close(self) -> None:
        if self._fd >= 0:
            self._write_page()
            self.discard()
            with self._path.open("rb") as file:
                self._place.upload(self._name, file)


class RemoteScratch(RemotePlace):
    """Files below a URI. Nothing keeps two builds apart that are given the same one."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._open: dict[str, Any] = {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def create(self, name: str) -> ScratchFile:
        return _RemoteFile(self, name)

    def read_into(self, name: str, begin: int, out: Bytes) -> None:
        if name not in self._open:
            self._open[name] = self.open_file(name)
        data = self._open[name].read_at(len(out), begin)
        if len(data) != len(out):
            raise OSError(f"{self}: {name} ends early, at byte {begin + len(data)}")
        out[:] = np.frombuffer(data, np.uint8)

    def remove(self, prefix: str) -> None:
        for name in [each for each in self._open if each.startswith(prefix)]:
            self._open.pop(name).close()
        super().remove(prefix)


class _RemoteFile:
    """Collects a file on the local disk, and uploads it as a whole."""

    def __init__(self, place: RemotePlace, name: str) -> None:
        self._place = place
        self._name = name
        self._file = tempfile.TemporaryFile(prefix="gigl-upload-")  # noqa: SIM115 - until close

    def write(self, data: bytes | Bytes) -> None:
        self._file.write(data if isinstance(data, bytes) else data.data)

    def close(self) -> None:
        try:
            self._file.seek(0)
            self._place.upload(self._name, self._file)
        finally:
            self._file.close()

    def abort(self) -> None:
        self._file.close()
