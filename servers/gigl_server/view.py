"""What a storage server knows of its cluster at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gigl_loader.rpc.endpoint import Endpoint
    from gigl_loader.sampling.store import WireCounts

__all__ = ["PeerTraffic", "View"]


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
