"""Configuration of the channels of one source: producer, transport, credit."""

from __future__ import annotations

import socket
from contextlib import closing
from dataclasses import dataclass

__all__ = ["ChannelConfig", "check_ways", "is_this_host"]

_WAYS = {"transport": ("auto", "ring", "flight"), "rows": ("auto", "direct", "through")}

_MAX_CREDIT = 64
"""Batches of one channel that a server keeps at a time, unless it was told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelConfig:
    """How a source wants to be served. The same for all servers."""

    key: str
    name: str
    plan: str
    """JSON."""
    graph: str
    """Digest."""
    share: int = 1
    prefetch: int = 4
    """Batches in flight per server. 0: one in all, which is asked for when it is needed."""
    transport: str = "auto"
    rows: str = "auto"
    slots: int = 12
    """Of each ring."""
    slot_bytes: int = 4096
    timeout_s: float = 300.0

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
        """Batches that a channel may have open: some of an epoch that was left may be on their way."""
        return min(2 * self.prefetch + 8, _MAX_CREDIT)

    @property
    def max_in_flight(self) -> int:
        """Batches of the epoch under way that one server is asked for at a time."""
        return max(min(self.prefetch, _MAX_CREDIT), 1)

    def tries_ring(self, host: str) -> bool:
        """Return whether a server at ``host`` is asked for a ring."""
        return self.transport == "ring" or (self.transport == "auto" and is_this_host(host))

    def defers_features(self, *, ring: bool, num_servers: int, has_columns: bool) -> bool:
        """Return whether a server sends frames without rows.

        Where it is not said: rows from several owners would cross the network twice, unless the server that
        samples is on this host.
        """
        if self.rows == "auto":
            return has_columns and num_servers > 1 and not ring
        return has_columns and self.rows == "direct"


def check_ways(transport: str, rows: str) -> None:
    """Raise ``ValueError`` for a way that there is not."""
    for name, value in (("transport", transport), ("rows", rows)):
        if value not in _WAYS[name]:
            raise ValueError(f"{name} must be one of {', '.join(_WAYS[name])}, got {value!r}")


def is_this_host(host: str) -> bool:
    """Return whether a name or address is one of this host's own: only those can be bound to."""
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
