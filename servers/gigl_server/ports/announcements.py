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
