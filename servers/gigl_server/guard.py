"""Admission of calls to the data port: which are answered, and who the caller is."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from pyarrow import flight

from gigl_loader.rpc.job import JOB_HEADER, job_key
from gigl_loader.rpc.refusals import Kind, Refused
from gigl_server.audit import printable
from gigl_server.identity import Identity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gigl_loader.rpc.credentials import Credentials
    from gigl_server.audit import AuditLog
    from gigl_server.ledger import Ledger

__all__ = ["GUARD", "Call", "Guard", "identity_of"]

GUARD = "guard"
"""Name under which a call finds its ``Call``."""

_NO_TOKEN = Refused(Kind.UNAUTHENTICATED, "wrong token: all hosts must use the same one")


class Call(flight.ServerMiddleware):  # type: ignore[misc]
    """One call: what its headers showed, and what to let go of when its reply was sent, or cannot be."""

    def __init__(self, token: str | None, job: bytes | None) -> None:
        super().__init__()
        self.token = token
        """Name of the token that was shown; ``None`` for none, or a wrong one."""
        self.job = job
        self.at_end = ExitStack()

    def call_completed(self, exception: object) -> None:
        """Let go of what the call held. Called by Flight once the last byte was handed to the transport."""
        self.at_end.close()


class Guard(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses every verb but ``do_get``, and tells ``do_get`` what a call showed.

    Flight tells the address of a caller to ``do_get`` only, which therefore refuses calls without the token.
    """

    def __init__(self, credentials: Credentials, ledger: Ledger, audit: AuditLog) -> None:
        super().__init__()
        self.credentials = credentials
        self._ledger = ledger
        self._audit = audit

    def start_call(self, info: Any, headers: Mapping[str, list[str | bytes]]) -> Call:
        token = self.credentials.identify(headers.get("authorization", []))
        if info.method != flight.FlightMethod.DO_GET:
            self._refuse_verb(info.method, token)
        job = headers.get(JOB_HEADER)
        return Call(token, job_key(job) if job else None)

    def refuse_stranger(self, caller: Identity) -> None:
        """Refuse a call without the token."""
        self._ledger.add(refused=1)
        self._audit.refused(caller, f"data port: {_NO_TOKEN.message}")
        raise flight.FlightUnauthenticatedError(_NO_TOKEN.message, _NO_TOKEN.to_record())

    def _refuse_verb(self, method: Any, token: str | None) -> None:
        who = Identity(token=token or "", address="an address that Flight does not tell")
        if token is None:
            self.refuse_stranger(who)
        name = str(getattr(method, "name", method)).lower()
        refused = Refused(Kind.INVALID, f"the data port answers do_get only, not {name}")
        self._ledger.add(refused=1)
        self._audit.refused(who, f"data port: {refused.message}")
        raise flight.FlightServerError(refused.message, refused.to_record())


def identity_of(context: Any, call: Call) -> Identity:
    """Return who makes a call. Flight tells the name in a client certificate, not the certificate."""
    name = context.peer_identity()
    certificate = printable(name.decode("utf-8", "replace")) if name else ""
    return Identity.of(peer=context.peer(), token=call.token or "", certificate=certificate)
