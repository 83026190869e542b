"""Scratch in an object store or another file system of Arrow."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from gigl_loader.partition.remote_files import RemotePlace, upload

if TYPE_CHECKING:
    from gigl_loader.arrays import Bytes
    from gigl_loader.partition.scratch import ScratchFile

__all__ = ["RemoteScratch"]


class RemoteScratch:
    """Files below a URI. Nothing keeps two builds apart that are given the same one."""

    def __init__(self, location: str) -> None:
        self._place = RemotePlace(location)
        self._open: dict[str, Any] = {}

    def __str__(self) -> str:
        return str(self._place)

    @property
    def location(self) -> str:
        return self._place.location

    @contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def create(self, name: str) -> ScratchFile:
        return _RemoteFile(self._place, name)

    def size(self, name: str) -> int:
        return self._place.size(name)

    def read(self, name: str, begin: int, out: Bytes) -> None:
        if name not in self._open:
            self._open[name] = self._place.open_file(name)
        data = self._open[name].read_at(len(out), begin)
        if len(data) != len(out):
            raise OSError(f"{self._place}: {name} ends early, at byte {begin + len(data)}")
        out[:] = np.frombuffer(data, np.uint8)

    def names(self, prefix: str) -> list[str]:
        return self._place.names(prefix)

    def remove(self, prefix: str) -> None:
        for name in [each for each in self._open if each.startswith(prefix)]:
            self._open.pop(name).close()
        self._place.remove(prefix)


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
            upload(self._place, self._name, self._file)
        finally:
            self._file.close()

    def abort(self) -> None:
        self._file.close()
