"""Calls of ``Admin``, which only operators and other servers may make."""

from __future__ import annotations

import socket
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.control import ANNOUNCEMENT
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.server_proof import (
    CHALLENGE,
    NONCE,
    PROOF,
    Challenges,
    adoption_proof,
    announcement_proof,
    header_value,
    shows,
    view_proof,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gigl_server.admission import Identity
    from gigl_server.cluster.membership import View
    from gigl_server.logs import AuditLog
    from gigl_server.partitions.adoption import Adopter
    from gigl_server.ports.control_call import ControlCall


class Announcements:
    """Takes announcements from ``Cluster`` calls, and adds the proof to their replies. Thread-safe.

    Without a cluster key, every announcement is accepted. With TLS, the server at the announced address must
    then have a valid certificate.
    """

    def __init__(self, key: str, heard_of: Callable[[str], None], audit: AuditLog) -> None:
        """``heard_of`` is called with the address of each server that announced itself."""
        self.key = key
        """Cluster key; empty where there is none."""
        self._heard_of = heard_of
        self._audit = audit
        self._lock = threading.Lock()
        self._challenges = Challenges()

    def exchange(self, call: ControlCall, reply: Any) -> tuple[tuple[str, str], ...]:
        """Take the announcement in a call's headers. Return the trailers of its reply."""
        headers = call.metadata
        address = header_value(headers, ANNOUNCEMENT)
        if not self.key:
            if address:
                self._heard_of(address)
            return ()
        if address:
            self._take(address, headers, call.caller)
        proof = view_proof(self.key, header_value(headers, NONCE), reply)
        return ((CHALLENGE, self._challenges.new()), *(((PROOF, proof),) if proof else ()))

    def is_shown(self, headers: Sequence[Any], proof_of: Callable[[str, str], str]) -> bool:
        """Return whether headers hold a fresh challenge and ``proof_of(key, challenge)``."""
        challenge = header_value(headers, CHALLENGE)
        with self._lock:
            return shows(headers, proof_of(self.key, challenge)) and self._challenges.use(challenge)

    def _take(self, address: str, headers: Sequence[Any], caller: Identity) -> None:
        if self.is_shown(headers, lambda key, challenge: announcement_proof(key, challenge, address)):
            self._heard_of(address)
        else:
            what = f"a storage server announced at {address[:100]}, without proof of the cluster key"
            self._audit.refused(caller, what)


class AdminCalls:
    """Handlers of the calls of ``Admin``.

    With a cluster key, the caller proves it. Without one, the caller is on the server's own host.
    """

    def __init__(self, adopter: Adopter, announcements: Announcements, view: Callable[[], View]) -> None:
        self._adopter = adopter
        self._announcements = announcements
        self._view = view

    @property
    def handlers(self) -> dict[str, Any]:
        """Handlers by the name of the call."""
        return {"Adopt": self._adopt}

    def _adopt(self, request: Any, call: ControlCall) -> Any:
        self._check_right(request, call)
        view = self._view()
        if not view.ready:
            raise Refusal(RefusalKind.UNAVAILABLE, f"the server is not ready: {view.reason}")
        try:
            adopt = self._adopter.adopt if request.begin else self._adopter.state
            state = adopt(request.partition)
        except ValueError as error:
            raise Refusal(RefusalKind.INVALID, str(error)) from None
        return messages.AdoptReply(step=state.step, done=state.done, total=state.total, error=state.error)

    def _check_right(self, request: Any, call: ControlCall) -> None:
        """Raise ``Refusal`` unless the caller is an operator."""
        announcements = self._announcements
        if announcements.key:
            if not announcements.is_shown(
                call.metadata, lambda key, challenge: adoption_proof(key, challenge, request.partition)
            ):
                raise Refusal(RefusalKind.INVALID, "this call takes the cluster key of the servers")
        elif not _is_own_address(call.connection):
            raise Refusal(
                RefusalKind.INVALID,
                "without a cluster key, this call is taken from the server's own host alone",
            )


def _is_own_address(peer: str) -> bool:
    """Return whether a caller, in gRPC's form ``ipv4:10.0.0.7:4711``, has an address of this host."""
    kind, _, rest = peer.partition(":")
    host = unquote(rest.rpartition(":")[0]).strip("[]").removeprefix("::ffff:")
    if kind not in ("ipv4", "ipv6") or not host:
        return False
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
        try:
            probe.bind((host, 0))  # The kernel binds to addresses of this host only.
        except OSError:
            return False
    return True
