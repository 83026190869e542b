"""Assembly of one file of a graph from sound pieces, of this disk and of other servers.

The file is written beside its place under a temporary name, which a later assembly continues, and verified.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
from collections import deque
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gigl_loader.errors import FormatError, GiglError, StorageUnavailable
from gigl_loader.graph.checksums import BlockRecord
from gigl_loader.graph.folder import DiskFolder
from gigl_loader.graph.manifest import Document
from gigl_loader.regular_files import open_regular
from gigl_loader.rpc.graph_requests import MAX_FILE_BYTES
from gigl_loader.threads import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    import numpy.typing as npt

    from gigl_loader.arrays import Bytes
    from gigl_loader.graph.checksums import FileRecord

_LOGGER = logging.getLogger(__name__)
_AT_ONCE = 3
_ROUNDS = 2
"""Requests to each source for blocks that no source sent sound."""


class Source(Protocol):
    """Another server or a URI, which has the file."""

    def fetch(self, name: str, first: int, count: int) -> Bytes:
        """Return bytes of a file, uint8 [count]. ``GiglError`` or ``ValueError`` where it cannot."""

    def close(self) -> None:
        """Close connections and files."""


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
        some bytes, ``FormatError`` where every source sends wrong ones, ``OSError`` where they cannot be
        written, ``PullStopped`` after ``stop``.
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
        """Take each block from the temporary file, from the file in its place, or from a source."""
        fetched = 0
        missing: list[range] = []
        for blocks in _pieces(record):
            _check_running(stop)
            found = self._missing_here(record, blocks)
            missing += found
            report(_nbytes(record, blocks) - sum(_nbytes(record, each) for each in found))

        def fetch(blocks: range) -> Bytes:
            return _Fetch(self._name, record, blocks, sources, stop).run()

        for blocks, data in _ahead(fetch, missing):
            self._write(blocks.start * record.block_bytes, data)
            fetched += len(data)
            report(len(data))
        with _writing(self._name):
            os.ftruncate(self._fd, record.nbytes)
        self._verify()
        return fetched

    def _missing_here(self, record: BlockRecord, blocks: range) -> list[range]:
        """Copy blocks of a piece that are sound in the file in its place. Return the other blocks."""
        begin, nbytes = blocks.start * record.block_bytes, _nbytes(record, blocks)
        sound = np.zeros(len(blocks), np.bool_)
        with suppress(FormatError):  # The temporary file, of an earlier assembly, ends before the piece does.
            data = self._folder.read(temporary_name(self._name), begin, nbytes)
            sound = record.sound_blocks(blocks.start, data)
        if not sound.all():
            with suppress(FormatError):
                data = self._folder.read(self._name, begin, nbytes)
                found = record.sound_blocks(blocks.start, data) & ~sound
                for each in _runs(found, blocks.start):
                    at = (each.start - blocks.start) * record.block_bytes
                    self._write(begin + at, data[at : at + _nbytes(record, each)])
                sound |= found
        return _runs(~sound, blocks.start)

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
        raise StorageUnavailable(f"no source gives a sound {self._name}: {'; '.join(errors[:4])}")

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


class _Fetch:
    """Fetch of blocks that follow each other: sound ones of every source, until none is missing."""

    def __init__(
        self,
        name: str,
        record: BlockRecord,
        blocks: range,
        sources: Sequence[Source],
        stop: threading.Event,
    ) -> None:
        self._name, self._record, self._blocks = name, record, blocks
        self._sources = sources
        self._stop = stop
        self._out = np.empty(_nbytes(record, blocks), np.uint8)
        self._missing = [blocks]
        self._wrong: dict[str, None] = {}
        self._errors: dict[str, None] = {}

    def run(self) -> Bytes:
        """Return the blocks, uint8 [N]. Raises as ``Assembly.run``."""
        for source in [*self._sources] * _ROUNDS:
            _check_running(self._stop)
            self._missing = [left for blocks in self._missing for left in self._take(source, blocks)]
            if not self._missing:
                return self._out
        first = self._missing[0].start * self._record.block_bytes
        end = first + _nbytes(self._record, self._missing[0])
        what = f"{self._name}: bytes {first} to {end - 1}"
        if self._wrong:
            raise FormatError(f"{what} do not match their checksum at {', '.join(self._wrong)}")
        raise StorageUnavailable(f"{what}: {'; '.join(self._errors)}"[:1000])

    def _take(self, source: Source, blocks: range) -> list[range]:
        """Take sound blocks of a source. Return the blocks that are still missing."""
        size = self._record.block_bytes
        try:
            data = _gathered(source, self._name, blocks.start * size, _nbytes(self._record, blocks))
        except (GiglError, ValueError) as error:
            self._errors[str(error)] = None
            return [blocks]
        sound = self._record.sound_blocks(blocks.start, data)
        begin = blocks.start - self._blocks.start
        for each in _runs(sound, 0):
            part = data[each.start * size : each.stop * size]
            at = (begin + each.start) * size
            self._out[at : at + len(part)] = part
        left = _runs(~sound, blocks.start)
        if left and str(source) not in self._wrong:
            self._wrong[str(source)] = None
            _LOGGER.warning("%s is damaged at %s, too", self._name, source)
        return left


def _nbytes(record: BlockRecord, blocks: range) -> int:
    """Return the bytes of blocks; the last one of a file may be shorter."""
    return min(blocks.stop * record.block_bytes, record.nbytes) - blocks.start * record.block_bytes


def _pieces(record: BlockRecord) -> Iterator[range]:
    """Yield the blocks of each piece: as many as one request holds, one where blocks are larger."""
    step = max(MAX_FILE_BYTES // record.block_bytes, 1)
    for first in range(0, len(record.blocks), step):
        yield range(first, min(first + step, len(record.blocks)))


def _runs(flags: npt.NDArray[np.bool_], first: int) -> list[range]:
    """Return the runs of set flags. The first flag has number ``first``."""
    edges = np.flatnonzero(np.diff(flags, prepend=False, append=False)) + first
    return [range(a, b) for a, b in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)]


def _gathered(source: Source, name: str, first: int, count: int) -> Bytes:
    """Return bytes of a source, in as many requests as they take."""
    if count <= MAX_FILE_BYTES:
        return source.fetch(name, first, count)
    ends = [*range(first, first + count, MAX_FILE_BYTES), first + count]
    return np.concatenate([source.fetch(name, a, b - a) for a, b in pairwise(ends)])


def _ahead(fetch: Callable[[range], Bytes], pieces: Sequence[range]) -> Iterator[tuple[range, Bytes]]:
    """Yield pieces in order with their bytes. The next ones are fetched meanwhile."""
    with ThreadPool(_AT_ONCE, thread_name_prefix="pull") as pool:
        under_way: deque[tuple[range, Future[Bytes]]] = deque()
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
    while True:
        with _writing(name):
            fd = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
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
