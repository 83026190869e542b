"""Introductions between storage servers: announcements that prove the cluster key, and the own proof."""

from __future__ import annotations

import logging
import threading
import time
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
from gigl_server.identity import Identity

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Introductions"]

_LOGGER = logging.getLogger(__name__)
_QUIET_S = 60.0
_MAX_CALLERS = 1024


class Introductions:
    """Takes announcements from ``Cluster`` calls and adds the proof to their replies. Any thread may call.

    Without a cluster key every announcement is taken: what is found at the announced address must then show
    a certificate, where there is TLS.
    """

    def __init__(self, key: str, heard_of: Callable[[str], None]) -> None:
        """``heard_of`` is told the address of each server that announced itself."""
        self._key = key
        self._heard_of = heard_of
        self._lock = threading.Lock()
        self._challenges = Challenges()
        self._refused: dict[str, float] = {}
        """By caller: when its last refusal was logged."""

    def exchange(self, context: Any, reply: Any) -> tuple[tuple[str, str], ...]:
        """Take the announcement in a call's headers, and return the trailers of its reply."""
        headers = context.invocation_metadata()
        address = header_value(headers, ANNOUNCEMENT)
        if not self._key:
            if address:
                self._heard_of(address)
            return ()
        if address:
            self._take(address, headers, str(context.peer()))
        proof = view_proof(self._key, header_value(headers, NONCE), reply)
        return ((CHALLENGE, self._challenges.new()), *(((PROOF, proof),) if proof else ()))

    def _take(self, address: str, headers: Any, peer: str) -> None:
        challenge = header_value(headers, CHALLENGE)
        with self._lock:
            proven = shows(headers, announcement_proof(self._key, challenge, address)) and (
                self._challenges.use(challenge)
            )
        if proven:
            self._heard_of(address)
        else:
            self._tell_refusal(address, str(Identity.of(peer=peer)))

    def _tell_refusal(self, address: str, caller: str) -> None:
        """Log a refusal, at most one a minute for a caller: callers cannot fill the disk."""
        now = time.monotonic()
        with self._lock:
            if now - self._refused.get(caller, -_QUIET_S) < _QUIET_S:
                return
            if len(self._refused) >= _MAX_CALLERS:
                self._refused.clear()
            self._refused[caller] = now
        _LOGGER.warning(
            "ignored: %s announced a storage server at %s without proving the cluster key",
            caller,
            ascii(address[:100]),
        )
