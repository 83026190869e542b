"""Journal of the batches under way, which outlives the process.

A batch that gets the process killed (out of memory, a crash in a kernel) is requested again when the server
is back, and kills it again. So the batches under way are noted in a mapped file, whose pages outlive the
process: the next process on the same file knows which batches were under way when the last one died.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import mmap
import os
import stat
import struct
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gigl_loader.errors import SamplingError
from gigl_loader.native import Stopped
from gigl_loader.sampling.costs import TooManyEdges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_server.sessions.channel import SampleTask

_LOGGER = logging.getLogger(__name__)

DEATHS = 3
"""A plan or batch that was under way in so many unclean ends, without success between them, is quarantined.
One end proves nothing: every batch under way is noted, whichever of them caused it."""

_MAGIC = b"gigljrn1"
_ENTRY = struct.Struct("16sB15x")  # Digest, and its unclean ends. 0: the entry is free.
_UNDER_WAY = 2 * 512  # A plan and a batch for each sampling thread; those of more threads are not noted.
_SUSPECTS = 256
_NBYTES = len(_MAGIC) + 8 + (_UNDER_WAY + _SUSPECTS) * _ENTRY.size
_FREE = bytes(_ENTRY.size)


class Quarantined(SamplingError):
    """A plan or batch is refused: servers died while they sampled it."""


class Journal:
    """Notes batches under way, and refuses those that killed the process several times. Thread-safe."""

    def __init__(self, memory: mmap.mmap | None, path: str = "") -> None:
        """Use ``open`` or ``none``."""
        self._memory = memory
        self._path = path
        self._lock = threading.Lock()
        self._suspects: dict[bytes, int] = {}
        self._alone = threading.Lock()
        if memory is not None:
            self._suspects = _suspects(memory)
            self._write_suspects()
            for place in range(_UNDER_WAY):
                self._write(place, _FREE)

    @classmethod
    def none(cls) -> Journal:
        """Return a journal that notes nothing."""
        return cls(None)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Journal:
        """Open or create a journal. A file of another format is overwritten.

        ``OSError`` where that fails, also where another process uses the file. The file must belong to this
        user, and be no link: its directory may be writable for other users.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(path, flags, 0o600)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                raise PermissionError(f"{path} is not a file of this user")
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # Held until the mapping ends.
            os.posix_fallocate(fd, 0, _NBYTES)  # A full disk fails here, and not later as SIGBUS.
            memory = mmap.mmap(fd, _NBYTES)
        finally:
            os.close(fd)
        if memory[: len(_MAGIC)] != _MAGIC:
            memory[:] = bytes(_NBYTES)
            memory[: len(_MAGIC)] = _MAGIC
        return cls(memory, str(path))

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return 0 if self._memory is None else _NBYTES

    @property
    def suspects(self) -> int:
        """Number of plans and batches that were under way when a process died, without success since."""
        with self._lock:
            return len(self._suspects)

    @contextmanager
    def under_way(self, task: SampleTask, thread: int) -> Iterator[None]:
        """Note a batch while a thread samples it. Raises ``Quarantined`` if the batch or its plan is."""
        if self._memory is None:
            yield
            return
        digests = _digests(task)
        self._check(digests)
        if not any(each in self._suspects for each in digests):
            with self._noted(digests, thread):
                yield
            return
        with self._alone:  # One suspect at a time: if the process dies again, no other suspect is to blame.
            with self._noted(digests, thread):
                try:
                    yield
                except (TooManyEdges, Stopped):  # Sampled again later, or not to its end: no success yet.
                    raise
                except Exception:
                    self._acquit(digests)
                    raise
            self._acquit(digests)

    def close(self) -> None:
        """Clear entries of batches under way. Without suspects, remove the file. Closing twice is fine."""
        with self._lock:
            memory, self._memory = self._memory, None
        if memory is None:
            return
        memory[_offset(0) : _offset(_UNDER_WAY)] = bytes(_UNDER_WAY * _ENTRY.size)
        if not self._suspects:
            with suppress(OSError):
                os.unlink(self._path)
        memory.close()

    @contextmanager
    def _noted(self, digests: tuple[bytes, bytes], thread: int) -> Iterator[None]:
        places = [each for each in (2 * thread, 2 * thread + 1) if each < _UNDER_WAY]
        try:
            for place, digest in zip(places, digests, strict=False):
                self._write(place, _ENTRY.pack(digest, 1))
            yield
        finally:
            for place in places:
                self._write(place, _FREE)

    def _check(self, digests: tuple[bytes, bytes]) -> None:
        for what, digest in zip(("plan", "batch"), digests, strict=True):
            deaths = self._suspects.get(digest, 0)
            if deaths >= DEATHS:
                raise Quarantined(
                    f"this {what} is in quarantine: it was under way the last {deaths} times that this "
                    "server died; change num_neighbors or the batch size, or remove the server's journal "
                    f"({self._path}) while it is down"
                )

    def _acquit(self, digests: tuple[bytes, bytes]) -> None:
        with self._lock:
            for digest in digests:
                self._suspects.pop(digest, None)
            self._write_suspects()

    def _write_suspects(self) -> None:
        entries = [_ENTRY.pack(digest, deaths) for digest, deaths in self._suspects.items()][:_SUSPECTS]
        for number in range(_SUSPECTS):
            self._write(_UNDER_WAY + number, entries[number] if number < len(entries) else _FREE)

    def _write(self, place: int, entry: bytes) -> None:
        memory = self._memory
        if memory is not None:
            memory[_offset(place) : _offset(place) + _ENTRY.size] = entry


def default_path(host: str, port: int) -> Path | None:
    """Return the default path of the journal of the server at an address.

    The path is in memory where no disk is writable. ``None`` where neither is, and for port 0, which selects
    another port at every start: the journal would not be found again.
    """
    folders = ("/var/tmp", "/tmp", "/dev/shm")
    name = "".join(each if each.isalnum() else "-" for each in host)
    usable = next((each for each in folders if os.access(each, os.W_OK)), None)
    return Path(usable, f"gigl-loader-{os.geteuid()}-{name}-{port}.journal") if usable and port else None


def _suspects(memory: mmap.mmap) -> dict[bytes, int]:
    """Return the unclean ends by digest: of suspects, plus one for what was under way at the last end."""
    suspects = {}
    for place in range(_UNDER_WAY, _UNDER_WAY + _SUSPECTS):
        digest, deaths = _ENTRY.unpack_from(memory, _offset(place))
        if deaths:
            suspects[digest] = deaths
    ended = {
        digest
        for digest, noted in (_ENTRY.unpack_from(memory, _offset(place)) for place in range(_UNDER_WAY))
        if noted
    }
    if ended:
        _LOGGER.warning("the process before this one died with %d batches under way", len(ended) // 2)
    for digest in ended:
        suspects[digest] = min(suspects.get(digest, 0) + 1, 255)
    return suspects


def _offset(place: int) -> int:
    return len(_MAGIC) + 8 + place * _ENTRY.size


def _digests(task: SampleTask) -> tuple[bytes, bytes]:
    """Return the digests of plan and batch."""
    request, producer = task.request, task.channel.producer
    batch = hashlib.blake2b(producer.digest, digest_size=16)
    batch.update(struct.pack("<QQQ", request.epoch, request.batch, task.channel.deferred_features))
    batch.update(request.input_bytes())
    return producer.digest, batch.digest()
