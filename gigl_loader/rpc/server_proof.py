"""Proof of the cluster key, which storage servers have and trainers do not.

The proof is an HMAC-SHA256 under the key, over a fresh number of the verifying server and over the whole
claim. The key itself never travels, and a recorded proof cannot be used again.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import time
from typing import TYPE_CHECKING, Any

from gigl_loader.rpc.tokens import check_no_placeholder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

NONCE = "gigl-server-nonce"
"""Header of a ``Cluster`` call: 64 hex digits that the reply's proof must cover."""
PROOF = "gigl-server-proof"
"""Header of an announcement, and trailer of a reply to ``Cluster``: 64 hex digits."""
CHALLENGE = "gigl-server-challenge"
"""Trailer of a reply to ``Cluster``, and header of the announcement that responds to it."""

_MIN_KEY = 32
_NONCE_FORM = re.compile(r"[0-9a-f]{64}")
_CHALLENGE_S = 30.0


def check_cluster_key(key: str) -> None:
    """Raise ``ValueError`` for a key that could be guessed or is damaged."""
    if len(key) < _MIN_KEY or not all("!" <= each <= "~" for each in key):
        raise ValueError(f"a cluster key has at least {_MIN_KEY} visible ASCII characters and no space")
    check_no_placeholder(key)


def new_nonce() -> str:
    """Return a fresh random number (256 bits), as 64 hexadecimal digits."""
    return secrets.token_hex(32)


def view_proof(key: str, nonce: str, reply: Any) -> str:
    """Return the proof that a server with ``key`` sent a ``gigl.v1.ClusterView`` in response to ``nonce``.

    Empty for a malformed nonce.
    """
    if not _NONCE_FORM.fullmatch(nonce):
        return ""
    own = reply.self
    servers = [
        [
            each.host,
            each.control_port,
            each.data_port,
            list(each.partitions),
            each.incarnation,
            each.wire_version,
        ]
        for each in reply.servers
    ]
    claim = [
        own.version,
        own.wire_version,
        own.oldest_wire_version,
        own.draw_specification,
        own.graph,
        list(own.partitions),
        list(own.repairing),
        own.data_port,
        own.incarnation,
        servers,
        reply.membership,
        reply.ready,
    ]
    return _proof(key, ["view", nonce, claim])


def announcement_proof(key: str, challenge: str, address: str) -> str:
    """Return the proof that a server with ``key`` is at ``address``, in response to ``challenge``."""
    return _proof(key, ["announcement", challenge, address])


def adoption_proof(key: str, challenge: str, partition: int) -> str:
    """Return the proof that an operator with ``key`` asks a server to take over ``partition``."""
    return _proof(key, ["adoption", challenge, partition])


def _proof(key: str, document: list[Any]) -> str:
    text = json.dumps(["gigl cluster key, version 1", *document], separators=(",", ":"))
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def shows(metadata: Iterable[Any] | None, proof: str) -> bool:
    """Return whether headers or trailers hold this proof, in constant time. ``False`` for an empty proof."""
    return bool(proof) and hmac.compare_digest(header_value(metadata, PROOF).encode(), proof.encode())


def header_value(metadata: Iterable[Any] | None, name: str) -> str:
    """Return the value of a header that was sent exactly once; empty otherwise."""
    values: Sequence[Any] = [value for key, value in metadata or () if key == name]
    if len(values) != 1:
        return ""
    return values[0].decode("ascii", "replace") if isinstance(values[0], bytes) else str(values[0])


class Challenges:
    """Challenges for announcements of other servers, each valid once and for 30 s.

    Issued challenges are not stored, or any caller could fill the memory: a challenge carries its own time
    and a MAC. Only used challenges are stored, and using one takes the cluster key.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._used: dict[str, float] = {}

    def new(self) -> str:
        """Return a fresh challenge."""
        body = f"{int(self._clock() * 1e3)}.{secrets.token_hex(16)}"
        return f"{body}.{self._mac(body)}"

    def use(self, challenge: str) -> bool:
        """Mark a challenge as used. Return whether this object issued it, within 30 s, and it was unused."""
        body, _, mac = challenge.rpartition(".")
        if not hmac.compare_digest(mac.encode("utf-8", "replace"), self._mac(body).encode()):
            return False
        now = self._clock()
        self._used = {known: until for known, until in self._used.items() if until > now}
        until = int(body.partition(".")[0]) / 1e3 + _CHALLENGE_S
        if until <= now or challenge in self._used:
            return False
        self._used[challenge] = until
        return True

    def _mac(self, body: str) -> str:
        return hmac.new(self._secret, body.encode("utf-8", "replace"), hashlib.sha256).hexdigest()
