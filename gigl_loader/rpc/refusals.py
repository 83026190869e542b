"""Faults of calls to services: refusals, what else may happen, how each is retried, and as what it is raised.

The kind of a refusal says what the caller can do, and decides the caller's exception. The data port sends a
refusal as a record, JSON in the error's details: ``{"kind": ..., "message": ...}``. The control port sends a
status code and a mark with the kind (``rpc.control``). Nothing is pickled. ``FAULT_RULES`` is the one
table of all faults; docs/internals/faults.md shows it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum

from gigl_loader.errors import FormatError, SamplingError, StorageUnavailable
from gigl_loader.printable import printable
from gigl_loader.strict_json import read_json

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


class FaultKind(Enum):
    """Fault that is no marked refusal of a service of this library: docs/internals/faults.md has each."""

    CONNECTION = "no connection, a cut or a silent one"
    STATUS = "a status of gRPC without the mark of a server of this library"
    REPLY = "a reply that does not match its checksum, or breaks a rule"
    CONTENT = "a frame that is whole, or lies in a ring, and breaks a rule"
    TLS = "a TLS handshake that fails"
    PROTOCOL = "a port that does not speak gRPC, or has no such call"
    NOT_READY = "a server that is not ready, or a view of the cluster that is incomplete"
    RESOURCES = "no descriptor, thread or memory left here"
    RING = "a ring that is not handed over: no answer, or no ring of this channel"
    RING_ELSEWHERE = "a ring socket that is not on this host, or of another user"


class TooLarge(SamplingError):
    """A request or its reply is beyond a limit: split the request."""


class RingRefused(SamplingError):
    """The server's memory is not available here: frames must come over the network."""


class NoRing(RingRefused, StorageUnavailable):
    """The server's memory is not available now: retry, or have frames come over the network."""


class Unknown(StorageUnavailable):
    """The server knows no such producer or channel of this job: it was restarted, or the lease is over.

    Register again.
    """


class Busy(StorageUnavailable):
    """The request is beyond a limit of the server: retry later."""


class Damaged(StorageUnavailable):
    """The request or its reply was damaged on the way: retry."""


class Retry(Enum):
    """Way to retry after a fault. The value describes it in docs/internals/faults.md."""

    NEVER = "no: waiting cannot help"
    ELSEWHERE = "at other holders; raised where every holder refuses"
    SPLIT = "in halves; raised for a single node"
    AGAIN = "with growing pauses, at another holder where there is one"
    CHANNEL = "over a new channel"
    THRICE = "by new requests for its batch, three in all; it alone fails"


class Contact(Enum):
    """Whether a caller has reached a service before. It decides what unmarked faults mean."""

    FIRST = "first"
    """No call to this address has succeeded: it may be the wrong one."""
    ESTABLISHED = "established"
    """A call has succeeded: whatever is not a marked refusal is a fault of the moment."""


@dataclass(frozen=True, slots=True)
class FaultRule:
    """Row of ``FAULT_RULES``."""

    kind: RefusalKind | FaultKind
    retry: Retry
    error: type[Exception]
    """Class of the exception for the caller. Classes of passing faults are kinds of ``StorageUnavailable``,
    which is raised when the time for retries is over."""
    first: type[Exception] | None = None
    """Class of the exception at the first contact, where it is another one: it is not retried then."""

    @property
    def is_marked(self) -> bool:
        """Whether a service of this library says so itself."""
        return isinstance(self.kind, RefusalKind)

    def error_class(self, contact: Contact) -> type[Exception]:
        """Return the class of the exception for the caller."""
        return self.first if self.first is not None and contact is Contact.FIRST else self.error


FAULT_RULES: tuple[FaultRule, ...] = (
    FaultRule(RefusalKind.INVALID, Retry.NEVER, ValueError),
    FaultRule(RefusalKind.CONFLICT, Retry.NEVER, ValueError),
    FaultRule(RefusalKind.UNIMPLEMENTED, Retry.NEVER, ValueError),
    FaultRule(RefusalKind.TOO_LARGE, Retry.SPLIT, TooLarge),
    FaultRule(RefusalKind.MALFORMED, Retry.ELSEWHERE, FormatError),
    FaultRule(RefusalKind.FORBIDDEN, Retry.ELSEWHERE, SamplingError),
    FaultRule(RefusalKind.OTHER_GRAPH, Retry.ELSEWHERE, SamplingError),
    FaultRule(RefusalKind.UNAUTHENTICATED, Retry.AGAIN, StorageUnavailable, first=SamplingError),
    FaultRule(RefusalKind.NOT_FOUND, Retry.CHANNEL, Unknown),
    FaultRule(RefusalKind.DAMAGED, Retry.AGAIN, Damaged),
    FaultRule(RefusalKind.BUSY, Retry.AGAIN, Busy),
    FaultRule(RefusalKind.UNAVAILABLE, Retry.AGAIN, StorageUnavailable),
    FaultRule(RefusalKind.FAILED, Retry.AGAIN, StorageUnavailable),
    FaultRule(FaultKind.CONNECTION, Retry.AGAIN, StorageUnavailable),
    FaultRule(FaultKind.STATUS, Retry.AGAIN, StorageUnavailable),
    FaultRule(FaultKind.REPLY, Retry.AGAIN, Damaged),
    FaultRule(FaultKind.CONTENT, Retry.THRICE, FormatError),
    FaultRule(FaultKind.TLS, Retry.AGAIN, StorageUnavailable, first=ValueError),
    FaultRule(FaultKind.PROTOCOL, Retry.AGAIN, StorageUnavailable, first=ValueError),
    FaultRule(FaultKind.NOT_READY, Retry.AGAIN, StorageUnavailable),
    FaultRule(FaultKind.RESOURCES, Retry.AGAIN, StorageUnavailable),
    FaultRule(FaultKind.RING, Retry.AGAIN, NoRing),
    FaultRule(FaultKind.RING_ELSEWHERE, Retry.AGAIN, NoRing, first=RingRefused),
)
"""How callers handle each fault. docs/internals/faults.md has the same rows in the same order."""

_RULES = {rule.kind: rule for rule in FAULT_RULES}
_RETRIES: dict[type[BaseException], Retry] = {
    # Rules of one class agree (tests/unit/test_rpc_refusals.py), but for frames: no call raises theirs.
    **{rule.first: Retry.NEVER for rule in FAULT_RULES if rule.first is not None},
    **{rule.error: rule.retry for rule in FAULT_RULES if rule.retry is not Retry.THRICE},
}


def rule_of(kind: RefusalKind | FaultKind) -> FaultRule:
    """Return the row of a fault."""
    return _RULES[kind]


def retry_of(error: BaseException) -> Retry:
    """Return how the fault is retried that an exception stands for, by the nearest class in the table."""
    return next((_RETRIES[each] for each in type(error).__mro__ if each in _RETRIES), Retry.NEVER)


class Refusal(Exception):
    """Refusal of a request: raised by the service, sent to the caller, and translated there by ``error``."""

    def __init__(self, kind: RefusalKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def message(self) -> str:
        return str(self.args[0])

    def to_record(self) -> bytes:
        text = printable(self.message, _MAX_MESSAGE).encode("ascii", "backslashreplace")[:_MAX_MESSAGE]
        return json.dumps({"kind": self.kind.value, "message": text.decode()}).encode()

    @classmethod
    def from_record(cls, record: bytes) -> Refusal | None:
        """Return the refusal in a record. ``None`` for other bytes: another program, or an old version."""
        try:
            document = read_json(record, what="refusal", max_bytes=_MAX_RECORD)
            return cls(RefusalKind(document["kind"]), printable(document["message"], _MAX_MESSAGE))
        except (FormatError, KeyError, TypeError, ValueError):
            return None

    def error(self, service: str, contact: Contact = Contact.ESTABLISHED) -> Exception:
        """Return the exception to raise at the caller of ``service``."""
        return rule_of(self.kind).error_class(contact)(f"{service}: {self.message}")
