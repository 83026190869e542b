"""Check of a listening address before a port is bound."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gigl_loader.rpc.address import Address

__all__ = ["check_free"]


def check_free(address: Address) -> None:
    """Raise ``OSError`` with ``address`` and the reason if the address cannot be bound.

    gRPC's own error gives no reason.
    """
    try:
        [(family, kind, protocol, _, place), *_] = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        )
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen(1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(f"cannot listen on {address}: {reason}; {_advice(error)}") from None


def _advice(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "choose another port, or 0 for a free one"
    if error.errno == errno.EACCES:
        return "choose a port from 1024 on"
    return "give an address of this host"
