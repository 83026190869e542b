"""The rule for plain text: TLS beyond this machine, for services and for callers."""

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
    """Raise ``ValueError`` where other hosts could read, or ask, what only this machine should.

    ``address`` is where a service listens, or what a caller is about to ask. ``guarded``: callers have to
    show a token or a certificate. ``give_tls`` and ``give_token`` say in the message how to mend it.
    """
    if insecure or (tls and guarded) or is_local(address.host):
        return
    lacking, remedy = ("a token", give_token) if tls else ("TLS", give_tls)
    raise ValueError(f"{address} can be reached from other hosts, which needs {lacking}: {remedy}")


def is_local(host: str) -> bool:
    """Return whether every address that ``host`` stands for is one of loopback.

    A name is resolved, as connecting would. One that does not resolve is not local: it may be by the time
    that a connection is made, to anywhere.
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
    """Return whether an IPv4 or IPv6 address is one of loopback. ``ValueError`` for what is no address."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped  # Python before 3.13 calls ::ffff:127.0.0.1 no loopback address.
    return address.is_loopback
