"""Places that a build writes to: its output, there complete or not at all, and the scratch of its tasks.

Several processes write to both. A file is there complete or not at all, so a task may be done twice and a
reader never meets half of one.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from gigl_loader.arrays import Bytes
from gigl_loader.errors import FormatError
from gigl_loader.graph.folder import DiskFolder, Folder, Sink, is_uri, sync_directory
from gigl_loader.graph.manifest import MANIFEST_NAME

_OF_GRAPH = re.compile(rf"{re.escape(MANIFEST_NAME)}|ids|part-\d+")


@contextmanager
def staged_directory(target: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give a temporary directory beside ``target``, which becomes ``target`` when the block succeeds.

    After any exception, Ctrl-C included, nothing is left. What a killed process left is removed by
    the next call for the same target: a directory whose lock is free has no process any more.
    """
    if not overwrite:
        refuse_existing(target)
    made = _make_parents(target.parent)
    try:
        _remove_abandoned(target)
        with _locked_temporary(target) as temporary:
            yield temporary
            _sync_directories(temporary)
            _move(temporary, target, overwrite)
    except BaseException:
        for parent in made:
            parent.rmdir()
        raise
    sync_directory(target.parent)


@contextmanager
def resumable_directory(target: Path, *, overwrite: bool, anew: bool) -> Iterator[Path]:
    """Give a directory beside ``target``, which becomes ``target`` when the block succeeds.

    It is kept after an exception and by a process that is killed, for the next call with the same target;
    with ``anew`` that one empties it. ``ValueError`` while another process has it.
    """
    if not overwrite:
        refuse_existing(target)
    temporary = target.with_name(f".{target.name}.unfinished")
    if anew:
        shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True, exist_ok=True)
    with locked_directory(temporary, f"another process builds {target}"):
        yield temporary
        _sync_directories(temporary)
        _move(temporary, target, overwrite)
        sync_directory(target.parent)


@contextmanager
def locked_directory(path: Path, refusal: str, flags: int = 0) -> Iterator[None]:
    """Hold the lock of a directory. ``ValueError`` with this message while another process holds it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(refusal) from None
        yield
    finally:
        os.close(fd)


def refuse_existing(target: Path) -> None:
    """Raise ``ValueError`` where ``target`` is there, unless it is an empty directory."""
    if target.is_symlink() or target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ValueError(f"{target} exists: give another name, or ask to overwrite it")


def refuse_other_than_graph(target: str | Path, names: Collection[str]) -> None:
    """Raise ``ValueError`` where files that are not a graph's would be overwritten.

    ``names``: of what lies in the directory ``target``.
    """
    others = sorted(name for name in names if not _OF_GRAPH.fullmatch(name.partition("/")[0]))
    if others:
        raise ValueError(
            f"{target} is not overwritten: it holds {others[0]!r}, which is no part of a graph. Give another "
            "name, or remove it yourself"
        )


def refuse_other_than_graph_at(target: Path) -> None:
    """Raise ``ValueError`` where ``target`` is a file, or a directory that holds anything but a graph."""
    if target.is_dir():
        refuse_other_than_graph(target, [path.name for path in target.iterdir()])
    elif target.exists() or target.is_symlink():
        raise ValueError(
            f"{target} is not overwritten: it is no graph. Give another name, or remove it yourself"
        )


def _make_parents(parent: Path) -> list[Path]:
    """Create missing directories; return them, innermost first."""
    missing = [path for path in (parent, *parent.parents) if not path.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    return missing


def _prefix(target: Path) -> str:
    return f".{target.name}.building-"


def _remove_abandoned(target: Path) -> None:
    for path in target.parent.glob(f"{_prefix(target)}*"):
        with suppress(ValueError), locked_directory(path, "in use", os.O_DIRECTORY | os.O_NOFOLLOW):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _locked_temporary(target: Path) -> Iterator[Path]:
    try:
        temporary = Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))
    except UnicodeEncodeError:
        raise ValueError(f"cannot write {str(target)!a}: no path has such a name") from None
    with locked_directory(temporary, f"another process has {temporary}"):
        try:
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _move(temporary: Path, target: Path, overwrite: bool) -> None:
    temporary.chmod(0o755)
    if overwrite and target.exists():
        old = Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))
        target.rename(old / "old")
        temporary.rename(target)
        shutil.rmtree(old)
        return
    try:
        temporary.rename(target)
    except OSError:
        refuse_existing(target)
        raise


def _sync_directories(path: Path) -> None:
    for directory, _, _ in os.walk(path, topdown=False):
        sync_directory(Path(directory))


@runtime_checkable
class OutputFolder(Protocol):
    """Extra methods of folders that several processes write to."""

    @property
    def location(self) -> str:
        """Location for ``open_output`` in another process."""

    def keep_only(self, names: Collection[str]) -> None:
        """Remove all other files: what tasks left that were killed."""

    def trim(self) -> None:
        """Remove local copies that only the task that ended needed."""


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
        from gigl_loader.partition.remote_files import RemoteFolder

        return RemoteFolder(location, temporary)
    return SharedFolder(location)


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
