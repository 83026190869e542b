"""Pull of files of a graph from other servers: verified before any of them gets its true name."""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from gigl_loader.errors import FormatError
from gigl_loader.graph.manifest import Document
from gigl_loader.printable import printable
from gigl_server.partitions.assembly import Assembly, PullStopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from gigl_loader.graph.folder import DiskFolder
    from gigl_loader.graph.manifest import Manifest
    from gigl_server.partitions.assembly import Source

_LOGGER = logging.getLogger(__name__)
_TELL_EVERY_S = 10.0
_SPARE_BYTES = 64 << 20  # Left free on the disk, for logs and for the file system itself.


def size_text(nbytes: int) -> str:
    """Return a size in decimal units, for people."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} bytes"


class PullProgress:
    """Bytes of a pull that are done, of all. Thread-safe."""

    def __init__(self, what: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``what`` begins the lines of the log: ``pulling partition 1``."""
        self.done = self.total = 0
        self.state = "waiting"
        """Step in one word: ``waiting``, ``verifying``, ``pulling`` or ``opening``."""
        self.what = what
        self._clock = clock
        self._lock = threading.Lock()
        self._began = self._told = clock()
        self._show: Callable[[int, int], None] | None = None

    def begin(self, state: str, total: int) -> None:
        """Begin a step of ``total`` bytes."""
        with self._lock:
            self.state, self.done, self.total = state, 0, total
            self._began = self._told = self._clock()

    def add(self, nbytes: int) -> None:
        """Count bytes that are done. Called every few megabytes."""
        with self._lock:
            self.done += nbytes
            now = self._clock()
            tell = now - self._told >= _TELL_EVERY_S
            if tell:
                self._told = now
            line = self._line(now) if tell else ""
        if self._show is not None:
            self._show(self.done, self.total)
        elif line:
            _LOGGER.info("%s", line)

    def _line(self, now: float) -> str:
        rate = self.done / max(now - self._began, 1e-3)
        done, total = size_text(self.done), size_text(self.total)
        return f"{self.what}: {self.state}: {done} of {total}, {rate / 1e6:.0f} MB/s"

    @contextmanager
    def shown(self, show: Callable[[str, int, int], None] | None = None) -> Iterator[None]:
        """Call ``show`` with the step, its bytes done and all of its bytes. Default: a bar on a terminal."""
        if show is None and sys.stderr.isatty():
            with self._bar() as bar:
                yield from self._showing(bar)
        elif show is not None:
            yield from self._showing(show)
        else:
            yield

    def _showing(self, show: Callable[[str, int, int], None]) -> Iterator[None]:
        self._show = lambda done, total: show(self.state, done, total)
        try:
            yield
        finally:
            self._show = None

    @contextmanager
    def _bar(self) -> Iterator[Callable[[str, int, int], None]]:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        described = TextColumn("{task.description}", markup=False)
        columns = (described, BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=Console(stderr=True)) as bars:
            task = bars.add_task(printable(self.what))
            yield lambda state, done, total: bars.update(
                task, description=printable(f"{self.what}: {state}"), completed=done, total=total
            )


def unsound_files(
    folder: DiskFolder,
    manifest: Manifest,
    names: Sequence[str],
    progress: PullProgress,
    stop: threading.Event,
) -> list[str]:
    """Return the files that are missing or damaged. Reads every byte."""
    there = [name for name in names if (folder.path / name).exists()]
    progress.begin("verifying", sum(manifest.files[name].nbytes for name in there))

    def report(nbytes: int) -> None:
        progress.add(nbytes)
        if stop.is_set():
            raise PullStopped

    sound = {name for name in there if _is_sound(folder, manifest, name, report)}
    return [name for name in names if name not in sound]


def _is_sound(folder: DiskFolder, manifest: Manifest, name: str, report: Callable[[int], None]) -> bool:
    try:
        Document(folder, name, manifest.files[name]).verify(report)
    except FormatError as error:
        _LOGGER.warning("to be pulled: %s", error)
        return False
    return True


def pull_files(
    folder: DiskFolder,
    manifest: Manifest,
    names: Sequence[str],
    sources: Sequence[Source],
    *,
    progress: PullProgress,
    stop: threading.Event,
) -> int:
    """Assemble files from ``sources`` and the pieces that are here, and rename them when all are verified.

    Returns the bytes that were fetched. Raises ``OSError`` where there is no room, or another process pulls
    one of the files, and what ``Assembly.run`` raises. Temporary files stay for a later pull, unless the disk
    is full.
    """
    with ExitStack() as stack:
        files: list[Assembly] = []
        for name in names:
            files.append(Assembly(folder, name, manifest.files[name]))
            stack.callback(files[-1].close)
        sizes = [manifest.files[name].nbytes for name in names]
        _check_room(folder.path, sum(sizes) - sum(file.nbytes for file in files))
        progress.begin("pulling", sum(sizes))
        try:
            fetched = sum(file.run(sources, progress.add, stop) for file in files)
        except OSError:
            for file in files:  # They would keep the disk full.
                file.discard()
            raise
        for file in files:
            file.finish()
        _sync_folders(folder.path / name for name in names)
        return fetched


def pull_from(
    sources: Sequence[Source],
    folder: DiskFolder,
    manifest: Manifest,
    names: Sequence[str],
    *,
    progress: PullProgress,
    stop: threading.Event,
) -> int:
    """Pull files as ``pull_files`` does, and close the sources."""
    with ExitStack() as stack:
        for source in sources:
            stack.callback(source.close)
        return pull_files(folder, manifest, names, sources, progress=progress, stop=stop)


def _check_room(path: Path, nbytes: int) -> None:
    """Raise ``OSError`` unless the disk has room for so many more bytes."""
    found = os.statvfs(path)
    free = found.f_bavail * found.f_frsize
    if nbytes > 0 and nbytes + _SPARE_BYTES > free:
        raise OSError(
            f"no room at {path}: {size_text(nbytes)} are needed, {size_text(_SPARE_BYTES)} stay free, and "
            f"{size_text(free)} are left"
        )


def _sync_folders(paths: Iterable[Path]) -> None:
    """Make the new names durable."""
    for parent in dict.fromkeys(path.parent for path in paths):
        fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno != errno.EINVAL:  # A file system that cannot.
                raise
        finally:
            os.close(fd)
