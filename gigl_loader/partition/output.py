"""Folder of a graph that several processes write: each file is there complete or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from gigl_loader.graph.folder import DiskFolder, Sink
from gigl_loader.partition.locations import is_uri

if TYPE_CHECKING:
    from collections.abc import Collection

    from gigl_loader.graph.folder import Folder

__all__ = ["OutputFolder", "SharedFolder", "open_output"]


@runtime_checkable
class OutputFolder(Protocol):
    """What the folders of this module have besides those of others."""

    @property
    def location(self) -> str:
        """Location for ``open_output`` in another process."""

    def keep_only(self, names: Collection[str]) -> None:
        """Remove all other files: what tasks left that were killed."""

    def trim(self) -> None:
        """Give back what is kept for the task that ended."""


class SharedFolder(DiskFolder):
    """A directory whose files may be written a second time, by a task that is done again."""

    @property
    def location(self) -> str:
        return str(self.path)

    def create(self, name: str, nbytes: int) -> Sink:
        path = self.path / name
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.ftruncate(fd, nbytes)
        return _RenamedSink(fd, temporary, path)

    def keep_only(self, names: Collection[str]) -> None:
        for name in set(self.names()) - set(names):
            (self.path / name).unlink()

    def trim(self) -> None:
        pass


class _RenamedSink(Sink):
    """A file that gets its name when it is complete."""

    def __init__(self, fd: int, temporary: Path, path: Path) -> None:
        super().__init__(fd, on_disk=True)
        self._temporary = temporary
        self._path = path

    def close(self) -> None:
        if self._fd >= 0:
            super().close()
            self._temporary.rename(self._path)


def open_output(location: str, temporary: str | None) -> Folder:
    """Return the folder of a graph at an absolute path or a URI of ``pyarrow.fs``.

    ``temporary`` is the directory for local copies, by default the system's.
    """
    if is_uri(location):
        from gigl_loader.partition.remote_folder import RemoteFolder

        return RemoteFolder(location, temporary)
    return SharedFolder(location)
