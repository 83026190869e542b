"""Refusals of a service, as records, and the exceptions that callers raise for them. Nothing is pickled.

The record is JSON in the error's details: ``{"kind": ..., "message": ...}``. The kind says what the
caller can do, and decides its exception.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import TYPE_CHECKING

from gigl_loader.errors import FormatError, GiglError, SamplingError
from gigl_loader.strict_json import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Gone", "Kind", "Refused", "TooLarge"]

_MAX_MESSAGE = 1_000  # Headers of HTTP/2 messages hold it: 8 KiB in all by default.
_MAX_RECORD = 16 << 10


class Kind(Enum):
    """Why a request was refused."""

    MALFORMED = "malformed"
    """Bytes that break a rule of the format, or another version of it."""
    DAMAGED = "damaged"
    """A request that does not match its checksum: ask again."""
    INVALID = "invalid"
    """A well-formed request for what does not exist."""
    UNAUTHENTICATED = "unauthenticated"
    """No token or a wrong one."""
    OTHER_GRAPH = "other graph"
    """The service has another graph, or not this partition."""
    TOO_LARGE = "too large"
    """A request beyond a limit, or one whose reply would be: ask for less at once."""
    BUSY = "busy"
    """As many calls as allowed are under way: ask again."""
    GONE = "gone"
    """No such frame, or not one of the caller's job, or it was fetched before: ask for the batch again."""
    FAILED = "failed"
    """The service's own mistake. Its log has the traceback."""


class TooLarge(SamplingError):
    """A request, or the reply that it asks for, is beyond a limit: it can be cut."""


class Gone(SamplingError):
    """A frame is not there, or not any more: its batch can be asked for again."""


class Refused(Exception):
    """What a service raises while it answers, and what arrives at its caller."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def message(self) -> str:
        return str(self.args[0])

    def to_record(self) -> bytes:
        return json.dumps({"kind": self.kind.value, "message": _printable(self.message)}).encode()

    @classmethod
    def from_record(cls, record: bytes) -> Refused | None:
        """Read a record. ``None`` for what is none: whoever answered is no service of ours, or an old one."""
        try:
            document = read_json(record, what="refusal", max_bytes=_MAX_RECORD)
            return cls(Kind(document["kind"]), _printable(str(document["message"])))
        except (FormatError, KeyError, TypeError, ValueError):
            return None

    def error(self, who: str) -> Exception:
        """Return the exception for the user, who asked ``who``."""
        return _ERRORS[self.kind](f"{who}: {self.message}")


def _printable(text: str) -> str:
    """Return ASCII that no terminal or log acts on: both sides may quote what a stranger sent."""
    kept = (each if " " <= each <= "~" else ascii(each)[1:-1] for each in text[:_MAX_MESSAGE])
    return "".join(kept)[:_MAX_MESSAGE]


_ERRORS: Mapping[Kind, type[Exception]] = {
    Kind.MALFORMED: FormatError,
    Kind.DAMAGED: FormatError,
    Kind.INVALID: ValueError,
    Kind.UNAUTHENTICATED: SamplingError,
    Kind.OTHER_GRAPH: SamplingError,
    Kind.TOO_LARGE: TooLarge,
    Kind.BUSY: GiglError,
    Kind.GONE: Gone,
    Kind.FAILED: SamplingError,
}
