"""Identity of a caller: certificate, token and address, none of which a caller can forge.

Quotas are kept by identity. Job keys and names of channels come from the caller, who can invent any number.
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple
from urllib.parse import unquote

__all__ = ["LOCAL", "Identity"]

_IPV6_PREFIX = 64  # A host usually has a whole /64 to choose addresses from.


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
