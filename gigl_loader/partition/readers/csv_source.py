"""Bytes of a CSV file on their way to a parser."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

COMMENTS = (b"#", b"%")
_AFTER_ZERO = tuple(bytes([each]) for each in b"0123456789xX")


class CsvSource(io.RawIOBase):
    """A file as whole lines. Comments at its top, and header lines that come again, become empty lines.

    It counts the quotes that pass, and can note values that begin with 0 and another digit, or 0x.
    """

    def __init__(
        self, stream: Any, *, delimiter: str, quote: str, names: Sequence[str], finds_zeros: bool = False
    ) -> None:
        """``names`` are those of the columns if the file has no header line. Only then has it comments."""
        super().__init__()
        self.num_quotes = 0
        self.num_comments = 0
        self.num_headers = 0
        """Header lines that were left out."""
        self._finds_zeros = finds_zeros
        self.has_zeros = False
        self._stream = stream
        self._quote = quote.encode()
        self._marks = (delimiter + quote + "\n").encode()
        self._has_names = bool(names)
        self._header = delimiter.join(names).encode()
        self._rest = b""
        self._begun = False

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            return self.readall()
        more = bytes(self._stream.read(max(size - len(self._rest), 0)))
        data = self._rest + more
        cut = (data.rfind(b"\n") + 1 if more else 0) or min(len(data), size)
        data, self._rest = data[:cut], data[cut:]
        if self._quote:
            self.num_quotes += data.count(self._quote)
        self.has_zeros |= self._finds_zeros and _has_zeros(data, self._marks)
        return self._cleared(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _cleared(self, data: bytes) -> bytes:
        """Return lines, with empty ones in place of those that are no rows."""
        first, self._begun = not self._begun, True
        if not first and self._header not in data:
            return data
        lines = data.split(b"\n")
        start = 0
        if first and self._has_names:
            self._clear_comments(lines)
        elif first:
            start = next((at for at, line in enumerate(lines) if line.strip()), 0)
            self._header = lines[start].removeprefix(b"\xef\xbb\xbf").rstrip(b"\r")
            start += 1
            if not self._header or (self._quote and self._header.count(self._quote) % 2):
                self._header = b"\n"  # It is no whole line, and comes never again.
        for at in range(start, len(lines)):
            if lines[at].rstrip(b"\r") == self._header:
                lines[at] = b""
                self.num_headers += 1
        return b"\n".join(lines)

    def _clear_comments(self, lines: list[bytes]) -> None:
        """Clear the lines at the top that begin with # or %, unless all of these lines do."""
        end = next((at for at, line in enumerate(lines) if line.strip() and line[:1] not in COMMENTS), 0)
        self.num_comments = sum(line[:1] in COMMENTS for line in lines[:end])
        lines[:end] = [b""] * end


def _has_zeros(lines: bytes, marks: bytes) -> bool:
    """Return whether a value begins with 0 and another digit, or with 0x. ``marks`` are before values."""
    if lines[:1] == b"0" and lines[1:2] in _AFTER_ZERO:
        return True
    values = np.frombuffer(lines, np.uint8)
    before, zero, after = values[:-2], values[1:-1] == ord("0"), values[2:]
    zero &= (after - np.uint8(ord("0")) < 10) | (after | 32 == ord("x"))
    return any(bool((zero & (before == mark)).any()) for mark in marks)
