"""Readiness of a storage server, as it tells other servers and trainers."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gigl_loader.rpc.endpoint import Endpoint
    from gigl_loader.sampling.store import WireCounts
    from gigl_server.cluster.discovery import Discovery

__all__ = ["PeerTraffic", "Readiness", "View"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTraffic:
    """Traffic with one other server since this one started."""

    server: int
    """Rank of the other server."""
    counts: WireCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """View of the cluster, as sent to callers."""

    members: tuple[Endpoint, ...]
    """Servers known so far, by rank, this one included."""
    membership: int = 0
    """Version of ``members``."""
    away: frozenset[str] = frozenset()
    """Control addresses of members that did not answer lately."""
    ready: bool
    reason: str
    """Why this server is not ready, as text. When it is ready: which expected servers it has not met yet."""
    peers: tuple[PeerTraffic, ...] = ()


class Readiness:
    """Known servers, and whether this one is ready. Thread-safe; usable before a port is bound."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._discovery: Discovery | None = None
        self._reason = "it is starting"
        self._ends = False
        self._traffic: Callable[[], Mapping[int, WireCounts]] = dict

    @property
    def ready(self) -> bool:
        with self._lock:
            return not self._reason

    def view(self) -> View:
        """Return the view to send to callers."""
        with self._lock:
            discovery, reason, ends, traffic = self._discovery, self._reason, self._ends, self._traffic
        if discovery is None:
            return View(members=(), ready=False, reason=reason)
        version, members = discovery.membership.snapshot()
        peers = [PeerTraffic(server=rank, counts=counts) for rank, counts in sorted(traffic().items())]
        return View(
            members=members,
            membership=version,
            away=discovery.membership.away,
            ready=not reason,
            reason=reason if ends else discovery.waiting_for or reason,
            peers=tuple(peers),
        )

    def heard_of(self, address: str) -> None:
        """Add the address of a server that announced itself."""
        with self._lock:
            discovery = None if self._ends else self._discovery
        if discovery is not None:
            discovery.tell(address)

    def membership_version(self) -> int:
        """Return the version of the membership. 0 before a port is bound."""
        discovery = self._discovery
        return 0 if discovery is None else discovery.membership.version

    def joins(self, discovery: Discovery) -> None:
        """Use ``discovery`` as the source of members from now on."""
        with self._lock:
            self._discovery = discovery

    def is_ready(self, traffic: Callable[[], Mapping[int, WireCounts]]) -> None:
        """Become ready. ``traffic`` returns the traffic with other servers, by rank."""
        with self._lock:
            if not self._ends:
                self._reason, self._traffic = "", traffic

    def ends(self, reason: str) -> bool:
        """Stop serving for good, for ``reason``. Return whether the server was ready."""
        with self._lock:
            served = not self._reason
            self._reason, self._ends = reason, True
        return served
