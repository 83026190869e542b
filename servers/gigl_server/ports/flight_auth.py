"""Admission of calls to the data port: which are answered, and who the caller is."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from pyarrow import flight

from gigl_loader.rpc.checksums import CHECKSUM_HEADER, UNREAD_HEADER, Crc32c, Unread
from gigl_loader.rpc.job import JOB_HEADER, job_key
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_server.audit import printable
from gigl_server.identity import Identity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gigl_loader.rpc.checksums import Checksum
    from gigl_loader.rpc.credentials import Credentials
    from gigl_server.audit import AuditLog
    from gigl_server.counters import Counters

__all__ = ["GUARD", "Call", "FlightAuth", "flight_error", "identity_of"]

GUARD = "guard"
"""Name under which a call finds its ``Call``."""

_UNTOLD = "an address that Flight does not tell"
_STRANGER = Identity(address=_UNTOLD)
_NO_TOKEN = Refusal(RefusalKind.UNAUTHENTICATED, "wrong token: all hosts must use the same one")


class Call(flight.ServerMiddleware):  # type: ignore[misc]
    """One call: what its headers showed, and what to let go of when its reply was sent, or cannot be."""

    def __init__(self, token: str, job: bytes | None, checksum: str | None, reply_checksum: Checksum) -> None:
        super().__init__()
        self.token = token
        """Name of the token that was shown; empty where none is asked for."""
        self.job = job
        self.checksum = checksum
        """Of the ticket, where the caller sent one."""
        self.reply_checksum = reply_checksum
        """New, to be shown the reply."""
        self.at_end = ExitStack()

    def call_completed(self, exception: object) -> None:
        """Let go of what the call held. Called by Flight once the last byte was handed to the transport."""
        self.at_end.close()


class FlightAuth(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls without the token, and every verb but ``do_get``; tells ``do_get`` what a call showed.

    Flight tells the address of a caller to ``do_get`` only, for which it copies the request three more times.
    So strangers are refused here, without an address; the line of their connection, cut soon, has it.
    """

    def __init__(self, credentials: Credentials, counters: Counters, audit: AuditLog) -> None:
        super().__init__()
        self.credentials = credentials
        self._counters = counters
        self._audit = audit

    def start_call(self, info: Any, headers: Mapping[str, list[str | bytes]]) -> Call:
        token = self.credentials.identify(headers.get("authorization", []))
        if token is None:
            raise self._refused(_STRANGER, _NO_TOKEN)
        if info.method != flight.FlightMethod.DO_GET:
            verb = str(getattr(info.method, "name", info.method)).lower()
            refusal = Refusal(RefusalKind.INVALID, f"the data port answers do_get only, not {verb}")
            raise self._refused(Identity(token=token, address=_UNTOLD), refusal)
        job = headers.get(JOB_HEADER)
        checksum = headers.get(CHECKSUM_HEADER)
        return Call(
            token,
            job_key(job) if job else None,
            str(checksum[0]) if checksum else None,
            Unread() if UNREAD_HEADER in headers else Crc32c(),
        )

    def _refused(self, caller: Identity, refusal: Refusal) -> Exception:
        self._counters.add(refused=1)
        self._audit.refused(caller, f"data port: {refusal.message}")
        return flight_error(refusal)


def flight_error(refusal: Refusal) -> Exception:
    """Return the exception by which Flight sends a refusal: its message, and its record as details."""
    error: type[Exception] = flight.FlightServerError
    if refusal.kind is RefusalKind.UNAUTHENTICATED:
        error = flight.FlightUnauthenticatedError
    return error(refusal.message, refusal.to_record())


def identity_of(context: Any, call: Call) -> Identity:
    """Return who makes a call. Flight tells the name in a client certificate, not the certificate."""
    name = context.peer_identity()
    certificate = printable(name.decode("utf-8", "replace")) if name else ""
    return Identity.of(peer=context.peer(), token=call.token, certificate=certificate)
