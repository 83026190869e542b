"""Output of a build: a directory that is there complete or not at all, by several processes."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

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
def locked_directory(path: Path, refusal: str) -> Iterator[None]:
    """Hold the lock of a directory. ``ValueError`` with this message while another process holds it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(fd)


@contextmanager
def _locked_temporary(target: Path) -> Iterator[Path]:
    try:
        temporary = Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))
    except UnicodeEncodeError:
        raise ValueError(f"cannot write {str(target)!a}: no path has such a name") from None
    fd = os.open(temporary, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(fd)


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
