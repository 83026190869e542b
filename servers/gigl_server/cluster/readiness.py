"""Readiness of a storage server, as other servers and trainers are told."""

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
    """What was exchanged with one other server since this one started."""

    server: int
    """Its rank."""
    counts: WireCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Who serves what."""

    members: tuple[Endpoint, ...]
    """Servers known so far by ascending smallest partition, this one included: the place is the rank."""
    ready: bool
    reason: str
    """Why it is not ready, in words. Empty when it is."""
    peers: tuple[PeerTraffic, ...] = ()


class Readiness:
    """Who is known, and whether the server is ready. Any thread may ask, before a port is bound, too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._joining: Discovery | None = None
        self._reason = "it is starting"
        self._ends = False
        self._traffic: Callable[[], Mapping[int, WireCounts]] = dict

    @property
    def ready(self) -> bool:
        with self._lock:
            return not self._reason

    def view(self) -> View:
        """Return what to tell others."""
        with self._lock:
            joining, reason, ends, traffic = self._joining, self._reason, self._ends, self._traffic
        if joining is None:
            return View(members=(), ready=False, reason=reason)
        peers = [PeerTraffic(server=rank, counts=counts) for rank, counts in sorted(traffic().items())]
        return View(
            members=joining.members,
            ready=not reason,
            reason=reason if ends else reason and (joining.waiting_for or reason),
            peers=tuple(peers),
        )

    def heard_of(self, address: str) -> None:
        """Take down a server that told us of itself."""
        with self._lock:
            joining = self._joining if self._reason else None
        if joining is not None:
            joining.tell(address)

    def joins(self, joining: Discovery) -> None:
        """From now on this knows the members."""
        with self._lock:
            self._joining = joining

    def is_ready(self, traffic: Callable[[], Mapping[int, WireCounts]]) -> None:
        """From now on it serves. ``traffic`` tells what was exchanged with servers, by rank."""
        with self._lock:
            if not self._ends:
                self._reason, self._traffic = "", traffic

    def ends(self, reason: str) -> bool:
        """From now on it does not serve, for this reason, and will not again. Return whether it did."""
        with self._lock:
            served = not self._reason
            self._reason, self._ends = reason, True
        return served
