"""Admission of callers: who they are, their rights, and how much of each resource they may have.

Quotas are kept by identity: job keys and names of channels come from the caller, who can invent any number.
Some are fixed numbers. Others have dynamic thresholds (Choudhury and Hahne, IEEE/ACM Transactions on
Networking 6(2), 1998): an owner may take more while it has at most 8 times what is free. A single owner gets
up to 8/9 of a limit, two get 8/17 each, n get 8/(8 n + 1) each: something always stays free for a new owner.
"""

from __future__ import annotations

import ipaddress
import resource
import threading
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from gigl_loader.resources import memory_bytes
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.tokens import EVERYTHING

if TYPE_CHECKING:
    from gigl_loader.rpc.credentials import Credentials
    from gigl_loader.rpc.tokens import Grant

_IPV6_PREFIX = 64  # A host usually has a whole /64 to choose addresses from.
_FACTOR = 8


class Identity(NamedTuple):
    """Identity of a caller. Equal for calls of one host with one token, or with one client certificate."""

    token: str = ""
    """Name of the token that the caller sent; empty where the service has none."""
    certificate: str = ""
    """SHA-256 of the client certificate, in hex; empty without a certificate."""
    address: str = ""
    """Network of the caller: an IPv4 address, or an IPv6 /64. Empty with a certificate."""

    @classmethod
    def of(cls, *, peer: str, token: str = "", certificate: str = "") -> Identity:
        """Return the identity of a caller. ``peer`` has gRPC's form: ``ipv4:10.0.0.7:4711``."""
        return cls(token=token, certificate=certificate, address="" if certificate else _network(peer))

    def __str__(self) -> str:
        """Return a short printable form, for logs and metrics."""
        who = f"certificate {self.certificate[:12]}" if self.certificate else self.address or "this process"
        return f"{who}, token {self.token}" if self.token else who


LOCAL = Identity()
"""Identity of the service itself, and of calls that did not come through a port."""


def _network(peer: str) -> str:
    """Return the network of an address, or a printable form of other text."""
    kind, _, rest = peer.partition(":")
    host = unquote(rest.rpartition(":")[0] if kind in ("ipv4", "ipv6") else rest).strip("[]")
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ascii(peer[:100]).strip("'")
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
    return str(address)


class Access:
    """Grants of the tokens of one server, which serves one graph. Thread-safe."""

    def __init__(self, credentials: Credentials, *, graph: str, digest: str) -> None:
        """``graph`` is the name of the graph's folder. ``ValueError`` as ``renew``."""
        self._graph, self._digest = graph, digest
        self.renew(credentials)

    def renew(self, credentials: Credentials, *, before: Credentials | None = None) -> None:
        """Use the grants of these tokens from now on, and those of ``before``: ports change one by one.

        ``ValueError`` if the first token, which servers show each other, may not read the graph.
        """
        tokens = credentials.tokens
        if tokens and not tokens[0].grant.reads(name=self._graph, digest=self._digest):
            raise ValueError(
                f"token {tokens[0].name}, the first one, which servers show each other, may not read this "
                f"graph ({self._graph or 'without a name'}, digest {self._digest[:12]})"
            )
        known = (*(before.tokens if before else ()), *tokens)
        self._grants = {token.name: token.grant for token in known}

    def grant_of(self, caller: Identity) -> Grant:
        """Return the grant of the token that a caller showed."""
        return self._grants.get(caller.token, EVERYTHING)

    def check(self, token: str) -> None:
        """Raise ``Refusal`` where the token of this name may not read the graph, or is no longer accepted."""
        grants = self._grants
        grant = grants.get(token, None if grants else EVERYTHING)
        if grant is None:
            raise Refusal(RefusalKind.UNAUTHENTICATED, f"token {token} is no longer accepted")
        if not grant.reads(name=self._graph, digest=self._digest):
            raise Refusal(RefusalKind.FORBIDDEN, f"token {token} has no right to read this graph")

    def allows(self, token: str) -> bool:
        """Return whether ``check`` accepts a token."""
        try:
            self.check(token)
        except Refusal:
            return False
        return True


def has_quota(owner: Identity, *, own: int, used: int, limit: int, more: int = 1) -> bool:
    """Return whether ``owner``, which has ``own`` of the ``used``, may take ``more`` of ``limit``.

    A call that did not come through a port (``LOCAL``) is bounded by the limit alone.
    """
    free = limit - used - more
    return free >= 0 and (owner == LOCAL or own <= _FACTOR * free)


class Quota:
    """Counter of what each caller holds of a resource, with limits. Thread-safe."""

    def __init__(self, what: str, most: int, most_per_caller: int | None = None) -> None:
        """``what`` is the plural of the thing counted, for messages. Without ``most_per_caller``, a caller
        has a dynamic threshold (``has_quota``)."""
        self.most = most
        self._what = what
        self._most_per_caller = most_per_caller
        self._lock = threading.Lock()
        self._callers: Counter[Identity] = Counter()

    @property
    def reason(self) -> str:
        """Reason of a refusal, as text."""
        return f"too many {self._what}: {self.most} in all, {self._most_per_caller} of one caller"

    @property
    def held(self) -> int:
        """Sum over all callers."""
        with self._lock:
            return self._callers.total()

    def enter(self, caller: Identity, more: int = 1) -> bool:
        """Count ``more``. Return ``False``, without counting, where that would exceed a limit."""
        with self._lock:
            own, used, most = self._callers[caller], self._callers.total(), self._most_per_caller
            if most is None:
                may = has_quota(caller, own=own, used=used, limit=self.most, more=more)
            else:
                may = used + more <= self.most and own + more <= most
            if may:
                self._callers[caller] += more
            return may

    def leave(self, caller: Identity, less: int = 1) -> None:
        """Count ``less`` for a caller."""
        with self._lock:
            self._callers[caller] -= less
            if not self._callers[caller]:
                del self._callers[caller]


@dataclass(frozen=True, slots=True, kw_only=True)
class PortLimits:
    """Limits on the callers of one port, with or without a token. 0: the port has no such limit."""

    connections: int = 0
    connections_per_address: int = 0
    calls: int = 0
    """Calls under way at once."""
    first_s: float = 0.0
    """Seconds for a connection to say what it wants, or who it is; then it is cut."""


CONTROL_PORT = PortLimits(connections=8192, first_s=5.0)
"""Control port of a storage server, whose ``Limits`` have the number of calls. ``first_s`` is for the TLS
handshake."""
PEER_PORT = PortLimits(connections=8192, calls=512, first_s=5.0)
"""Control port of a peer service."""
DATA_PORT = PortLimits(connections=256, calls=512, first_s=15.0)
"""Limits of connections that have shown no token: beyond them, the oldest is cut. Clients of this library
show a token with the first bytes. Each call holds a thread."""
RING_PORT = PortLimits(connections=64, first_s=2.0)
METRICS_PORT = PortLimits(connections=32, connections_per_address=16, first_s=2.0)
"""Each connection holds a thread, until the last byte of its reply at most ``first_s`` later."""


def share_of_descriptors(divisor: int, most: int | None = None) -> int:
    """Return a share of the descriptors that this process may have, at least 1 and at most ``most``."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    share = 1 << 20 if files == resource.RLIM_INFINITY else max(files // divisor, 1)
    return share if most is None else min(share, most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits beyond which a call is refused. A refusal changes nothing for other callers."""

    lease_s: float = 60.0
    """Seconds without a call that names a channel, after which the channel is reclaimed.

    The same applies to a producer without channels."""
    jobs: int = 1024
    producers: int = 4096
    producers_per_job: int = 256
    channels: int = 4096
    """Channels of all jobs. An idle one costs about 3 kB, and its ring a file descriptor."""
    channels_per_job: int = 1024
    credit: int = 64
    """Open requests of one channel plus frames that it has not fetched."""
    share: int = 64
    """Batches of one channel in a round."""
    batch_seeds: int = 1 << 20
    batch_edges: int = 1 << 26
    """Edges of a batch over all hops and types. Less where ``memory`` is small: see ``scratch.py``.

    As many candidates may its random walks be expected to draw."""
    batch_bytes: int = 2 << 30
    """Size of the frame of one batch."""
    batch_s: float = 60.0
    """Seconds of a sampling thread that a batch may take. The grant of a token may have another number."""
    interactive_share: float = 0.5
    """Share of the sampling threads' time in which batches that callers wait for go before others."""
    request_bytes: int = 1 << 30
    """Memory for the seeds of all open requests."""
    ring_bytes: int = 16 << 40
    """Address space of all rings, of the 128 TiB of a process; a loader takes 4 GB. Memory is committed, and
    counts in ``memory``, when a slot is written for the first time."""
    memory: int = field(default_factory=lambda: memory_bytes() * 3 // 4)
    """Bytes of everything that sampling takes: a quarter for the scratch of samplers, at most half for
    ``frame_bytes``, the rest for slots of rings. By default three quarters of the machine's memory."""
    frame_bytes: int = 4 << 30
    """Memory for frames that go over the network: written and being sent. At most half of ``memory``.
    A begun batch is always finished, so that each sampling thread may exceed the limit by one frame."""
    shared_frame_s: float = 30.0
    """Seconds after which a frame that is kept for equal requests is dropped."""
    shared_frame_bytes: int = 1 << 30
    """Of ``frame_bytes``, memory for frames that are kept for equal requests of other jobs. At most half."""
    calls: int = 8192
    """Control calls under way at once."""
    message_bytes: int = 32 << 20
    plan_bytes: int = 4 << 20
    """Size of a plan. Weights of negatives take most of it: 5.4 bytes a node."""
    name_length: int = 256

    def __post_init__(self) -> None:
        for each in fields(self):
            may_be_0 = each.name in ("interactive_share", "shared_frame_bytes")
            if not getattr(self, each.name) > 0 and not may_be_0:
                raise ValueError(f"{each.name} must be positive, got {getattr(self, each.name)}")

    @property
    def scratch_memory(self) -> int:
        """Memory of samplers: half for those in use, half for idle ones."""
        return self.memory // 4

    @property
    def frame_memory(self) -> int:
        """Memory of frames that go over the network."""
        return min(self.frame_bytes, self.memory // 2)

    @property
    def shared_frame_memory(self) -> int:
        """Of ``frame_memory``, memory of frames that are kept for equal requests."""
        return min(self.shared_frame_bytes, self.frame_memory // 2)

    @property
    def ring_memory(self) -> int:
        """Memory of written slots of rings."""
        return self.memory - self.scratch_memory - self.frame_memory
