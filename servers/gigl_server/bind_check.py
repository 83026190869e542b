"""Check of listening addresses before a port is bound. A port that is taken is tried again for a while."""

from __future__ import annotations

import errno
import logging
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gigl_loader.rpc.address import Address

__all__ = ["PORT_WAIT_S", "check_free", "wait_free"]

_LOGGER = logging.getLogger(__name__)

PORT_WAIT_S = 5.0
"""Longer than a server that was killed holds its ports: its supervisor may start the next one before."""
_AGAIN_S = 0.1


def wait_free(addresses: Iterable[Address], wait_s: float = PORT_WAIT_S) -> None:
    """Return once all addresses can be bound. Ports that are taken are tried again, for ``wait_s`` in all.

    Raises as ``check_free``, at once where the reason is not a taken port.
    """
    deadline = time.monotonic() + wait_s
    for address in addresses:
        told = False
        while (error := _bind_error(address)) is not None:
            left = deadline - time.monotonic()
            if error.errno != errno.EADDRINUSE or left <= 0:
                raise _described(error, address)
            if not told:
                _LOGGER.warning("port %s is taken: trying again for %.2g s", address, left)
                told = True
            time.sleep(min(_AGAIN_S, left))
        if told:
            _LOGGER.info("port %s is free", address)


def check_free(address: Address) -> None:
    """Raise ``OSError`` with ``address`` and the reason if the address cannot be bound.

    gRPC's own error gives no reason.
    """
    if (error := _bind_error(address)) is not None:
        raise _described(error, address)


def _bind_error(address: Address) -> OSError | None:
    """Return why an address cannot be bound now."""
    try:
        [(family, kind, protocol, _, place), *_] = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        )
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen(1)
    except OSError as error:
        return error
    return None


def _described(error: OSError, address: Address) -> OSError:
    return OSError(f"cannot listen on {address}: {error.strerror or error}; {_advice(error)}")


def _advice(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "choose another port, or 0 for a free one"
    if error.errno == errno.EACCES:
        return "choose a port from 1024 on"
    return "give an address of this host"
