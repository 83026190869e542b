"""Rule for plain text: services and callers need TLS beyond this machine."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gigl_loader.rpc.address import Address

__all__ = ["check_reach", "is_local", "is_loopback"]


def check_reach(
    address: Address, *, tls: bool, guarded: bool, insecure: bool, give_tls: str, give_token: str = ""
) -> None:
    """Raise ``ValueError`` where other hosts could read traffic, or use a service without a token.

    ``address`` is where a service listens, or where a caller connects. ``guarded``: callers need a token or a
    certificate. The message names ``give_tls`` and ``give_token`` as the remedy.
    """
    if insecure or (tls and guarded) or is_local(address.host):
        return
    lacking, remedy = ("a token", give_token) if tls else ("TLS", give_tls)
    raise ValueError(f"{address} can be reached from other hosts, which needs {lacking}: {remedy}")


def is_local(host: str) -> bool:
    """Return whether every address of ``host`` is a loopback address.

    A name is resolved, as connecting does. A name that does not resolve is not local: when a connection is
    made, it may resolve to any address.
    """
    try:
        return is_loopback(host)
    except ValueError:
        pass
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(map(is_loopback, found))


def is_loopback(text: str) -> bool:
    """Return whether an IPv4 or IPv6 address is a loopback address. ``ValueError`` for other text."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped  # Before 3.13, Python does not count ::ffff:127.0.0.1 as loopback.
    return address.is_loopback
