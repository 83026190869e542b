"""A directory that appears complete or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["refuse_existing", "resumable_directory", "staged_directory"]


@contextmanager
def staged_directory(target: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give a temporary directory beside ``target``, which becomes ``target`` when the block succeeds.

    After any exception, Ctrl-C included, nothing is left. What a killed process left is removed by
    the next call for the same target: a lock tells the dead from the living.
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
    _sync(target.parent)


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
    fd = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process builds {target}") from None
        yield temporary
        _sync_directories(temporary)
        _move(temporary, target, overwrite)
        _sync(target.parent)
    finally:
        os.close(fd)


def refuse_existing(target: Path) -> None:
    """Raise ``ValueError`` where ``target`` is there, unless it is an empty directory."""
    if target.is_symlink() or target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ValueError(f"{target} exists: give another name, or ask to overwrite it")


def _make_parents(parent: Path) -> list[Path]:
    """Create missing directories; return them, innermost first."""
    missing = [path for path in (parent, *parent.parents) if not path.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    return missing


def _prefix(target: Path) -> str:
    return f".{target.name}.building-"


def _remove_abandoned(target: Path) -> None:
    for path in target.parent.glob(f"{_prefix(target)}*"):
        fd = os.open(path, os.O_RDONLY)
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
        _sync(Path(directory))


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
