"""Folder of a graph at a URI: files are written and mapped on the local disk, and uploaded when complete."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gigl_loader.graph.folder import DiskFolder, FileStatus, Sink, Status
from gigl_loader.partition.remote_files import RemotePlace, upload

if TYPE_CHECKING:
    from collections.abc import Collection

    from gigl_loader.arrays import Bytes

__all__ = ["RemoteFolder"]

_PIECE_BYTES = 8 << 20


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
            self.discard()
            with self._path.open("rb") as file:
                upload(self._place, self._name, file)
