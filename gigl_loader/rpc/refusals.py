"""Refusals of a service, on both of its ports, and the exceptions that callers raise for them.

The kind of a refusal says what the caller can do, and decides the caller's exception. The data port sends a
refusal as a record, JSON in the error's details: ``{"kind": ..., "message": ...}``. The control port sends a
status code (``control_errors``). Nothing is pickled.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import TYPE_CHECKING

from gigl_loader.errors import FormatError, SamplingError, StorageUnavailable
from gigl_loader.strict_json import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Busy", "Damaged", "Gone", "Refusal", "RefusalKind", "TooLarge", "Unknown"]

_MAX_MESSAGE = 1_000  # Sent in HTTP/2 headers, which hold 8 KiB in total by default.
_MAX_RECORD = 16 << 10


class RefusalKind(Enum):
    """Reason of a refusal. The value is the kind in a record."""

    MALFORMED = "malformed"
    """Bytes that break a rule of the format, or another version of it."""
    DAMAGED = "damaged"
    """A request that does not match its checksum: send it again."""
    INVALID = "invalid"
    """A well-formed request with invalid values: correct the call."""
    UNAUTHENTICATED = "unauthenticated"
    """No token or a wrong one."""
    FORBIDDEN = "forbidden"
    """The token has no right to read the graph."""
    NOT_FOUND = "not found"
    """No such producer or channel of the caller's job: register again."""
    GONE = "gone"
    """No such frame, or not one of the caller's job, or it was fetched before: request the batch again."""
    CONFLICT = "conflict"
    """The request contradicts the state of the server, such as another producer of the same key."""
    OTHER_GRAPH = "other graph"
    """The service has another graph, or not this partition."""
    TOO_LARGE = "too large"
    """A request beyond a limit, or one whose reply would be: request less at once."""
    BUSY = "busy"
    """A limit of the service, or the caller's share of it, is used up: try again later."""
    UNAVAILABLE = "unavailable"
    """The service starts, drains or ends: try again later."""
    UNIMPLEMENTED = "unimplemented"
    """The service does not have this call."""
    FAILED = "failed"
    """An error of the service itself. Its log has the traceback."""


class TooLarge(SamplingError):
    """A request or its reply is beyond a limit: split the request."""


class Gone(SamplingError):
    """A frame does not exist, or not any more: request its batch again."""


class Unknown(SamplingError):
    """The server knows no such producer or channel of this job: it was restarted, or the lease is over.

    Register again.
    """


class Busy(SamplingError):
    """The request is beyond a limit of the server: retry later."""


class Damaged(SamplingError):
    """The request or its reply was damaged on the way: retry."""


class Refusal(Exception):
    """Refusal of a request: raised by the service, sent to the caller, and translated there by ``error``."""

    def __init__(self, kind: RefusalKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def message(self) -> str:
        return str(self.args[0])

    def to_record(self) -> bytes:
        return json.dumps({"kind": self.kind.value, "message": _printable(self.message)}).encode()

    @classmethod
    def from_record(cls, record: bytes) -> Refusal | None:
        """Return the refusal in a record. ``None`` for other bytes: another program, or an old version."""
        try:
            document = read_json(record, what="refusal", max_bytes=_MAX_RECORD)
            return cls(RefusalKind(document["kind"]), _printable(str(document["message"])))
        except (FormatError, KeyError, TypeError, ValueError):
            return None

    def error(self, service: str) -> Exception:
        """Return the exception to raise at the caller of ``service``."""
        return _ERRORS[self.kind](f"{service}: {self.message}")


def _printable(text: str) -> str:
    """Return ``text`` as ASCII without control characters: messages may quote bytes of an unknown sender."""
    kept = (each if " " <= each <= "~" else ascii(each)[1:-1] for each in text[:_MAX_MESSAGE])
    return "".join(kept)[:_MAX_MESSAGE]


_ERRORS: Mapping[RefusalKind, type[Exception]] = {
    RefusalKind.MALFORMED: FormatError,
    RefusalKind.DAMAGED: Damaged,
    RefusalKind.INVALID: ValueError,
    RefusalKind.UNAUTHENTICATED: SamplingError,
    RefusalKind.FORBIDDEN: SamplingError,
    RefusalKind.NOT_FOUND: Unknown,
    RefusalKind.GONE: Gone,
    RefusalKind.CONFLICT: ValueError,
    RefusalKind.OTHER_GRAPH: SamplingError,
    RefusalKind.TOO_LARGE: TooLarge,
    RefusalKind.BUSY: Busy,
    RefusalKind.UNAVAILABLE: StorageUnavailable,
    RefusalKind.UNIMPLEMENTED: ValueError,
    RefusalKind.FAILED: SamplingError,
}
