"""Files at a URI, by the file systems of Arrow: S3 and its like, Google Cloud Storage, HDFS."""

from __future__ import annotations

import uuid
from fnmatch import fnmatch
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
from pyarrow import fs

from gigl_loader.partition.locations import shown

if TYPE_CHECKING:
    from typing import BinaryIO

__all__ = ["RemotePath", "RemotePlace", "remote_paths", "upload"]

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


class RemotePath:
    """A file of a table at a URI."""

    def __init__(self, location: str) -> None:
        self._location = location

    def __str__(self) -> str:
        return shown(self._location)

    @property
    def suffix(self) -> str:
        """Its last suffix, as that of a path."""
        return PurePosixPath(urlsplit(self._location).path).suffix

    @property
    def suffixes(self) -> list[str]:
        """All of its suffixes, as those of a path."""
        return PurePosixPath(urlsplit(self._location).path).suffixes

    def open_file(self) -> Any:
        """Open it to be read anywhere."""
        system, path = _system_at(self._location)
        return system.open_input_file(path)

    def open_stream(self) -> Any:
        """Open it to be read once from its beginning, decompressed."""
        system, path = _system_at(self._location)
        return system.open_input_stream(path)

    def stamp(self) -> tuple[str, int, int]:
        """Return its name, size, and time of the last change."""
        system, path = _system_at(self._location)
        (found,) = system.get_file_info([path])
        return str(self), found.size or 0, found.mtime_ns or 0


def remote_paths(location: str) -> list[RemotePath]:
    """Return the file at a URI, those that match a pattern in its last part, or those of a directory, sorted.

    ``FileNotFoundError`` if there is none.
    """
    parts = urlsplit(location)
    folder, _, pattern = parts.path.rpartition("/")
    system, path = _system_at(location)
    if any(mark in pattern for mark in "*?["):
        base = path.rpartition("/")[0]
    else:
        (found,) = system.get_file_info([path])
        if found.is_file:
            return [RemotePath(location)]
        base, folder, pattern = path, parts.path.rstrip("/"), "*"
    listed = system.get_file_info(fs.FileSelector(base, allow_not_found=True))
    names = sorted(each.base_name for each in listed if each.is_file and fnmatch(each.base_name, pattern))
    if not names:
        raise FileNotFoundError(2, "no such file", shown(location))
    return [RemotePath(urlunsplit(parts._replace(path=f"{folder}/{name}"))) for name in names]


def _system_at(location: str) -> tuple[Any, str]:
    """Return the file system of a URI, and the path in it. ``ValueError`` for an unknown kind."""
    try:
        system, path = fs.FileSystem.from_uri(location)
    except (pa.ArrowException, OSError, ValueError) as error:
        text = " ".join(str(error).split()).replace(location, shown(location))
        raise ValueError(f"{shown(location)}: {text}") from None
    return system, path.rstrip("/")


def upload(place: RemotePlace, name: str, file: BinaryIO) -> None:
    """Write what is left of a local file."""
    place.write(name, iter(lambda: file.read(_PIECE_BYTES), b""))
