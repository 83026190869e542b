"""Authentication of calls to the data port, and the identity of their callers."""

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
"""Name of the middleware that holds a call's ``Call``."""

_UNTOLD = "an address that Flight does not tell"
_STRANGER = Identity(address=_UNTOLD)
_NO_TOKEN = Refusal(RefusalKind.UNAUTHENTICATED, "wrong token: all hosts must use the same one")


class Call(flight.ServerMiddleware):  # type: ignore[misc]
    """One call: the values of its headers, and what to release when its reply was sent or has failed."""

    def __init__(self, token: str, job: bytes | None, checksum: str | None, reply_checksum: Checksum) -> None:
        super().__init__()
        self.token = token
        """Name of the token that the caller sent; empty where the service has none."""
        self.job = job
        self.checksum = checksum
        """Checksum of the ticket, if the caller sent one."""
        self.reply_checksum = reply_checksum
        """New checksum, for the reply."""
        self.at_end = ExitStack()

    def call_completed(self, exception: object) -> None:
        """Release what the call held. Flight calls this once the transport has the last byte."""
        self.at_end.close()


class FlightAuth(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls without the token, and every verb but ``do_get``; passes header values to ``do_get``.

    Flight gives the address of a caller to ``do_get`` only, after three more copies of the request. So
    callers without the token are refused here, without an address; the log line of their connection, which
    is cut soon, has the address.
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
    """Return the exception that makes Flight send a refusal: its message, and its record as details."""
    error: type[Exception] = flight.FlightServerError
    if refusal.kind is RefusalKind.UNAUTHENTICATED:
        error = flight.FlightUnauthenticatedError
    return error(refusal.message, refusal.to_record())


def identity_of(context: Any, call: Call) -> Identity:
    """Return the identity of a caller. Flight gives the name in a client certificate, not the certificate."""
    name = context.peer_identity()
    certificate = printable(name.decode("utf-8", "replace")) if name else ""
    return Identity.of(peer=context.peer(), token=call.token, certificate=certificate)
