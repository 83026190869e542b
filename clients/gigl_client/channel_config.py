"""Configuration of the channels of one source: producer, transport, credit."""

from __future__ import annotations

import socket
from contextlib import closing
from dataclasses import dataclass

__all__ = ["MAX_IN_FLIGHT", "ChannelConfig", "check_ways", "is_this_host"]

_WAYS = {"transport": ("auto", "ring", "network"), "rows": ("auto", "direct", "through")}
_OLDER_NAMES = {"transport": "flight"}
"""Of ``network``: Arrow Flight carried what the network carries, up to wire version 2."""

MAX_IN_FLIGHT = 64
"""Batches of a source in flight at all servers together: with a hundred servers, a few at each would fill the
trainer's memory."""

_MAX_CREDIT = 64
"""Default limit of a server on the open batches of one channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelConfig:
    """Options of a source's channels, the same for all servers."""

    key: str
    name: str
    plan: str
    """JSON."""
    graph: str
    """Digest."""
    share: int = 1
    prefetch: int = 4
    """Batches in flight per server. 0: one in total, requested when the trainer waits for it."""
    transport: str = "auto"
    rows: str = "auto"
    slots: int = 12
    """Number of slots of each ring."""
    slot_bytes: int = 4096
    channel_bytes: int = 4 << 30
    """Bytes that batches in flight may take at all servers together, by the sizes of earlier ones. Two are in
    flight however large they are: one is sampled while another is used."""
    timeout_s: float = 300.0
    first_server: int = 0
    """Place of the channel that batch 0 is requested of; batch 1 is of the next one. Ranks begin at different
    ones."""

    def __post_init__(self) -> None:
        check_ways(self.transport, self.rows)
        if self.prefetch < 0:
            raise ValueError(f"prefetch_size must not be negative, got {self.prefetch}")
        if self.share < 1:
            raise ValueError(f"a share of the servers' workers is at least 1, got {self.share}")
        if self.timeout_s <= 0:
            raise ValueError(f"timeouts must be positive, got {self.timeout_s} s")

    @property
    def credit(self) -> int:
        """Batches that a channel may have open, with room for some of an epoch that was left."""
        return min(2 * self.prefetch + 8, _MAX_CREDIT)

    @property
    def max_in_flight(self) -> int:
        """Batches of the current epoch that may be in flight at one server."""
        return max(min(self.prefetch, _MAX_CREDIT), 1)

    def most_in_flight(self, frame_bytes: int) -> int:
        """Return how many batches may be in flight at all servers together, where each has so many bytes."""
        return min(max(self.channel_bytes // max(frame_bytes, 1), 2), MAX_IN_FLIGHT)

    def tries_ring(self, host: str) -> bool:
        """Return whether to request a ring from a server at ``host``."""
        return self.transport == "ring" or (self.transport == "auto" and is_this_host(host))

    def may_defer(self, *, whole: bool, has_columns: bool) -> bool:
        """Return whether frames may come with deferred features. ``whole``: every server has all partitions.

        With ``rows="auto"`` they may where features of other owners would otherwise cross the network twice.
        """
        return has_columns and (self.rows == "direct" or (self.rows == "auto" and not whole))

    def defers_features(self, *, ring: bool, defers: bool) -> bool:
        """Return whether a server sends frames with deferred features, where frames may have them.

        With ``rows="auto"`` it does unless it is on this host.
        """
        return defers and not (self.rows == "auto" and ring)


def check_ways(transport: str, rows: str) -> None:
    """Raise ``ValueError`` for an unknown ``transport`` or ``rows``."""
    for name, value in (("transport", transport), ("rows", rows)):
        if value not in _WAYS[name] and value != _OLDER_NAMES.get(name):
            raise ValueError(f"{name} must be one of {', '.join(_WAYS[name])}, got {value!r}")


def is_this_host(host: str) -> bool:
    """Return whether a name or address belongs to this host: only such an address can be bound."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_bind(family, address[0]) for family, _, _, _, address in found)


def _can_bind(family: int, address: str | int) -> bool:
    try:
        with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
