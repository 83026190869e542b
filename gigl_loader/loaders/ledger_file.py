"""Ledger file: lines of JSON, each sealed by a hash over itself and the line before it.

Each line is an object whose first field ``line`` is its number, from 1, and whose last field ``chain`` is the
SHA-256, in hex, of the ``chain`` of the line before (64 zeros before the first) followed by the bytes of the
line without that field. So the last ``chain`` of a file, its *head*, stands for every byte of it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import time
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from gigl_loader.errors import FormatError
from gigl_loader.strict_json import read_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

BEGIN = "0" * 64
"""``chain`` before the first line."""

MAX_LINE_BYTES = 1 << 26
_FIRST = b'{"line": 1,'
_MARK = b', "chain": "'
_SEAL_BYTES = len(_MARK) + 64 + len(b'"}')
_PAUSE_S = 0.05


class Line(NamedTuple):
    """One line of a ledger, whose seal was checked."""

    number: int
    body: bytes
    """The line without its seal."""
    chain: str
    end: int
    """Where the next line begins in the file."""

    def record(self, what: str) -> dict[str, Any]:
        """Return the fields of the line. ``what``: the ledger, in messages."""
        record = read_json(self.body, what=f"{what}, line {self.number}", max_bytes=MAX_LINE_BYTES)
        if not isinstance(record, dict) or record.get("line") != self.number:
            raise FormatError(f"{what}, line {self.number}: it is no line of a ledger")
        return record


def sealed(record: dict[str, Any], chain: str) -> tuple[bytes, str]:
    """Return the line of a record, with its end of line, and its ``chain``. ``chain``: of the line before."""
    body = json.dumps(record).encode()
    seal = hashlib.sha256(chain.encode() + body).hexdigest()
    return body[:-1] + _MARK + seal.encode() + b'"}\n', seal


def read_lines(file: BinaryIO, what: str) -> Iterator[Line]:
    """Yield the lines of a ledger. A last line without its end, which a crash leaves, is left out.

    ``FormatError`` names the first line that was changed, or that does not follow the one before it.
    """
    chain, number, end = BEGIN, 0, 0
    while text := file.readline(MAX_LINE_BYTES + 1):
        if not text.endswith(b"\n"):
            if len(text) > MAX_LINE_BYTES:
                raise FormatError(f"{what}, line {number + 1}: it has more than {MAX_LINE_BYTES} bytes")
            if not (number or _FIRST.startswith(text[: len(_FIRST)])):
                raise FormatError(f"{what} is no ledger")
            if _unsealed(text[:-1] + b"\n", number + 1, 0) is not None:  # Its end of line is another byte.
                raise FormatError(f"{what}, line {number + 1}: it was changed")
            return
        number, end = number + 1, end + len(text)
        line = _unsealed(text, number, end)
        if line is None:
            raise FormatError(
                f"{what} is no ledger" if number == 1 else f"{what}, line {number}: it was changed"
            )
        if hashlib.sha256(chain.encode() + line.body).hexdigest() != line.chain:
            raise FormatError(f"{what}, line {number}: {_fault(line)}")
        chain = line.chain
        yield line


def _unsealed(text: bytes, number: int, end: int) -> Line | None:
    """Return the parts of a line, unchecked; ``None`` where it has no seal."""
    cut = len(text) - 1 - _SEAL_BYTES
    if cut < 1 or not text.startswith(b'{"line": ') or text[cut : cut + len(_MARK)] != _MARK:
        return None
    chain = text[cut + len(_MARK) : -3].decode("ascii", "replace")
    return Line(number, text[:cut] + b"}", chain, end)


def _fault(line: Line) -> str:
    """Return what is wrong with a line that is not sealed as it should be here."""
    told = line.body[len(b'{"line": ') :].partition(b",")[0]
    if told != str(line.number).encode():
        return f"it says that it is line {told[:20].decode('ascii', 'replace')}: lines were removed or moved"
    return "it was changed, or the lines before it were replaced"


class LedgerFile:
    """A ledger that this process appends to. No other process can, meanwhile."""

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        """Open or create the file, check every line, and cut off an incomplete last line.

        Waits up to ``timeout_s`` for another process that writes it: ``TimeoutError``. ``FormatError`` for a
        file that is no ledger, or is damaged.
        """
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            os.close(self._fd)
            raise ValueError(f"{path} is no regular file: a ledger is read and locked")
        self._close = weakref.finalize(self, _close, self._fd, os.getpid())
        self.lines = 0
        self.chain = BEGIN
        """Of the last line."""
        self.first: dict[str, Any] | None = None
        """The first line, unless the file is new."""
        self._end = 0
        try:
            self._lock(time.monotonic() + timeout_s, timeout_s)
            self._read()
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        return self._close.alive

    def append(self, record: dict[str, Any]) -> None:
        """Write the next line. After an error, such as a full disk, the file is as it was."""
        if not self.is_open:
            raise ValueError(f"the ledger {self.path} is closed")
        line, chain = sealed({"line": self.lines + 1, **record}, self.chain)
        if len(line) > MAX_LINE_BYTES:
            raise ValueError(f"a line of {len(line)} bytes; a ledger has at most {MAX_LINE_BYTES}")
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except BaseException:
            os.ftruncate(self._fd, self._end)
            raise
        self.lines, self.chain, self._end = self.lines + 1, chain, self._end + len(line)

    def close(self) -> None:
        """Flush the file to disk and close it. Closing twice is fine."""
        self._close()

    def _lock(self, deadline: float, timeout_s: float) -> None:
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError(
                        f"another process has written the ledger {self.path} for {timeout_s:g} s: give each "
                        "run a file of its own"
                    ) from None
            else:
                return
            time.sleep(_PAUSE_S)

    def _read(self) -> None:
        with open(self._fd, "rb", closefd=False) as file:
            for line in read_lines(file, str(self.path)):
                if self.first is None:
                    self.first = line.record(str(self.path))
                self.lines, self.chain, self._end = line.number, line.chain, line.end
        self.dropped_bytes = os.fstat(self._fd).st_size - self._end
        """Of an incomplete last line."""
        os.ftruncate(self._fd, self._end)


def _close(fd: int, pid: int) -> None:
    try:
        if os.getpid() == pid:
            os.fsync(fd)
    finally:
        os.close(fd)
