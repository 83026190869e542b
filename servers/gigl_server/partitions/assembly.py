"""Assembly of one file of a graph from sound pieces: those that lie here, and those of other servers.

It is written to a temporary file beside its place, which a later assembly continues, and verified as a whole.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gigl_loader.errors import FormatError, GiglError, StorageUnavailable
from gigl_loader.graph.checksums import BlockRecord
from gigl_loader.graph.document import Document
from gigl_loader.graph.folder import DiskFolder
from gigl_loader.rpc.graph_requests import MAX_FILE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from gigl_loader.arrays import Bytes
    from gigl_loader.graph.checksums import FileRecord

__all__ = ["Assembly", "PullStopped", "Source", "temporary_name"]

_LOGGER = logging.getLogger(__name__)
_AT_ONCE = 3
_ROUNDS = 2
"""Times that each source is asked for bytes that came wrong."""


class Source(Protocol):
    """Another server, which has the file."""

    def fetch(self, name: str, first: int, count: int) -> Bytes:
        """Return bytes of a file, uint8 [count]. ``GiglError`` or ``ValueError`` where it cannot."""


class PullStopped(Exception):
    """The server ends: what was pulled stays for a later pull."""


def temporary_name(name: str) -> str:
    """Return the name of the temporary file beside a file."""
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}.{last}.pull"


class Assembly:
    """A file that is being assembled. ``finish`` puts it in its place; ``close`` leaves it for later."""

    def __init__(self, folder: DiskFolder, name: str, record: FileRecord) -> None:
        """Open and lock the temporary file. ``OSError`` where that cannot be, or another process has it."""
        self._folder, self._name, self._record = folder, name, record
        self._path = folder.path / temporary_name(name)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = _locked(self._path, name)

    @property
    def nbytes(self) -> int:
        """Bytes that the temporary file has."""
        return os.fstat(self._fd).st_size

    def run(self, sources: Sequence[Source], report: Callable[[int], None], stop: threading.Event) -> int:
        """Assemble and verify the file. Return the bytes that were fetched.

        ``report(nbytes)`` is called as bytes are done. Raises ``StorageUnavailable`` where no source gives
        some bytes, ``FormatError`` where those of all are wrong, ``OSError`` where they cannot be written,
        ``PullStopped`` after ``stop``.
        """
        if isinstance(self._record, BlockRecord):
            fetched = self._run_blocks(self._record, sources, report, stop)
        else:
            fetched = self._run_whole(sources, report, stop)
        with _writing(self._name):
            os.fsync(self._fd)
        return fetched

    def finish(self) -> None:
        """Rename the file to its true name. ``run`` has verified it."""
        os.replace(self._path, self._folder.path / self._name)
        self.close()

    def discard(self) -> None:
        """Remove the temporary file."""
        with suppress(FileNotFoundError):
            self._path.unlink()
        self.close()

    def close(self) -> None:
        """Release the lock. Closing twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _run_blocks(
        self,
        record: BlockRecord,
        sources: Sequence[Source],
        report: Callable[[int], None],
        stop: threading.Event,
    ) -> int:
        """Take each piece from the temporary file, the file as it lies here, or a source: the first sound."""
        fetched = 0
        missing: list[tuple[int, int]] = []
        for first, count in _pieces(record):
            if self._has(record, first, count):
                report(count)
            elif (mine := self._own(record, first, count)) is not None:
                self._write(first, mine)
                report(count)
            else:
                missing.append((first, count))
            _check_running(stop)

        def fetch(piece: tuple[int, int]) -> Bytes:
            return self._fetched(record, piece, sources, stop)

        for (first, count), data in _ahead(fetch, missing):
            self._write(first, data)
            fetched += count
            report(count)
        with _writing(self._name):
            os.ftruncate(self._fd, record.nbytes)
        self._verify()
        return fetched

    def _run_whole(
        self, sources: Sequence[Source], report: Callable[[int], None], stop: threading.Event
    ) -> int:
        """Fetch a whole file of a graph of version 1, which has no checksums of blocks, from each source."""
        errors: list[str] = []
        nbytes = self._record.nbytes
        for source in sources:
            try:
                for first in range(0, nbytes, MAX_FILE_BYTES):
                    _check_running(stop)
                    self._write(first, source.fetch(self._name, first, min(MAX_FILE_BYTES, nbytes - first)))
                with _writing(self._name):
                    os.ftruncate(self._fd, nbytes)
                self._verify()
            except (GiglError, ValueError) as error:
                errors.append(f"{source}: {error}")
                continue
            report(nbytes)
            return nbytes
        raise StorageUnavailable(f"no server gives a sound {self._name}: {'; '.join(errors[:4])}")

    def _has(self, record: BlockRecord, first: int, count: int) -> bool:
        """Return whether the temporary file has a piece, of an earlier assembly."""
        name = temporary_name(self._name)
        return first + count <= self.nbytes and self._sound(record, name, first, count) is not None

    def _own(self, record: BlockRecord, first: int, count: int) -> Bytes | None:
        """Return a piece of the file that is to be replaced, if the piece is sound."""
        return self._sound(record, self._name, first, count)

    def _sound(self, record: BlockRecord, name: str, first: int, count: int) -> Bytes | None:
        with suppress(FormatError):
            data = self._folder.read(name, first, count)
            return data if record.matches(first, data) else None
        return None

    def _fetched(
        self, record: BlockRecord, piece: tuple[int, int], sources: Sequence[Source], stop: threading.Event
    ) -> Bytes:
        """Return a sound piece of the first source that gives one."""
        first, count = piece
        wrong, errors = [], []
        for source in [*sources] * _ROUNDS:
            _check_running(stop)
            try:
                data = _gathered(source, self._name, first, count)
            except (GiglError, ValueError) as error:
                errors.append(str(error))
                continue
            if record.matches(first, data):
                return data
            wrong.append(str(source))
            _LOGGER.warning(
                "%s: bytes %d to %d of %s are damaged there", source, first, first + count - 1, self._name
            )
        what = f"{self._name}: bytes {first} to {first + count - 1}"
        if wrong:
            raise FormatError(f"{what} do not match their checksum at {', '.join(dict.fromkeys(wrong))}")
        raise StorageUnavailable(f"{what}: {'; '.join(dict.fromkeys(errors))}"[:1000])

    def _write(self, first: int, data: Bytes) -> None:
        view = data.data
        with _writing(self._name):
            while view:
                written = os.pwrite(self._fd, view, first)
                view, first = view[written:], first + written

    def _verify(self) -> None:
        """Read back every byte. ``FormatError`` for damage: a disk may write wrong bytes."""
        name = temporary_name(self._name)
        Document(self._folder, name, self._record).verify(lambda nbytes: None)


def _pieces(record: BlockRecord) -> Iterator[tuple[int, int]]:
    """Yield first byte and size of each piece: whole blocks, one request where blocks are not larger."""
    step = max(MAX_FILE_BYTES // record.block_bytes, 1) * record.block_bytes
    for first in range(0, record.nbytes, step):
        yield first, min(step, record.nbytes - first)


def _gathered(source: Source, name: str, first: int, count: int) -> Bytes:
    if count <= MAX_FILE_BYTES:
        return source.fetch(name, first, count)
    ends = [*range(first, first + count, MAX_FILE_BYTES), first + count]
    return np.concatenate([source.fetch(name, a, b - a) for a, b in pairwise(ends)])


def _ahead(
    fetch: Callable[[tuple[int, int]], Bytes], pieces: Sequence[tuple[int, int]]
) -> Iterator[tuple[tuple[int, int], Bytes]]:
    """Yield pieces in order with their bytes, of which the next ones are fetched meanwhile."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pull") as pool:
        under_way: deque[tuple[tuple[int, int], Future[Bytes]]] = deque()
        waiting = iter(pieces)
        try:
            while True:
                while len(under_way) < _AT_ONCE and (piece := next(waiting, None)) is not None:
                    under_way.append((piece, pool.submit(fetch, piece)))
                if not under_way:
                    return
                piece, future = under_way.popleft()
                yield piece, future.result()
        finally:
            for _, future in under_way:
                future.cancel()


def _check_running(stop: threading.Event) -> None:
    if stop.is_set():
        raise PullStopped


@contextmanager
def _writing(name: str) -> Iterator[None]:
    """Name the file where it cannot be written."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{name} cannot be written: {error.strerror}") from None


def _locked(path: os.PathLike[str], name: str) -> int:
    """Open and lock a file that may be renamed or removed by another process meanwhile."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        with _writing(name):
            fd = os.open(path, flags, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise OSError(f"{name} is being pulled by another process") from None
            raise
        os.close(fd)
