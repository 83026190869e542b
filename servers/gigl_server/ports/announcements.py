"""Announcements of storage servers, which prove the cluster key, and the proof of this server."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from gigl_loader.rpc.control import ANNOUNCEMENT
from gigl_loader.rpc.server_proof import (
    CHALLENGE,
    NONCE,
    PROOF,
    Challenges,
    announcement_proof,
    header_value,
    shows,
    view_proof,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gigl_server.audit import AuditLog
    from gigl_server.identity import Identity
    from gigl_server.ports.control_call import ControlCall

__all__ = ["Announcements"]


class Announcements:
    """Takes announcements from ``Cluster`` calls, and adds the proof to their replies. Thread-safe.

    Without a cluster key, every announcement is accepted. With TLS, the server at the announced address must
    then have a valid certificate.
    """

    def __init__(self, key: str, heard_of: Callable[[str], None], audit: AuditLog) -> None:
        """``heard_of`` is called with the address of each server that announced itself."""
        self._key = key
        self._heard_of = heard_of
        self._audit = audit
        self._lock = threading.Lock()
        self._challenges = Challenges()

    def exchange(self, call: ControlCall, reply: Any) -> tuple[tuple[str, str], ...]:
        """Take the announcement in a call's headers. Return the trailers of its reply."""
        headers = call.metadata
        address = header_value(headers, ANNOUNCEMENT)
        if not self._key:
            if address:
                self._heard_of(address)
            return ()
        if address:
            self._take(address, headers, call.caller)
        proof = view_proof(self._key, header_value(headers, NONCE), reply)
        return ((CHALLENGE, self._challenges.new()), *(((PROOF, proof),) if proof else ()))

    def _take(self, address: str, headers: Sequence[Any], caller: Identity) -> None:
        challenge = header_value(headers, CHALLENGE)
        with self._lock:
            proven = shows(headers, announcement_proof(self._key, challenge, address)) and (
                self._challenges.use(challenge)
            )
        if proven:
            self._heard_of(address)
        else:
            what = f"a storage server announced at {address[:100]}, without proof of the cluster key"
            self._audit.refused(caller, what)
