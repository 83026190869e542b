"""Plain TCP connection to a port: its error says why a connection fails, which gRPC's does not."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from gigl_loader.errors import StorageUnavailable

if TYPE_CHECKING:
    from gigl_loader.rpc.endpoint import Endpoint

__all__ = ["NOBODY", "tcp_probe"]

NOBODY = "nothing listens there: did its service end?"


def tcp_probe(endpoint: Endpoint, port: int, deadline: float) -> None:
    """Connect and disconnect, until ``deadline`` (monotonic).

    ``StorageUnavailable`` says why the connection failed.
    """
    place = f"{endpoint}" if port == endpoint.control_port else f"{endpoint} (port {port})"
    began = time.monotonic()
    try:
        _connect(endpoint.host, port, deadline)
    except socket.gaierror as error:
        raise StorageUnavailable(f"{place}: the name {endpoint.host!r} is not known here: {error}") from None
    except ConnectionRefusedError:
        raise StorageUnavailable(f"{place}: {NOBODY}") from None
    except TimeoutError:
        raise StorageUnavailable(
            f"{place}: no answer to a connection in {time.monotonic() - began:.1f} s: is there a firewall "
            "between the hosts, or is the host down?"
        ) from None
    except OSError as error:
        raise StorageUnavailable(f"{place}: {error.strerror or error}") from None


def _connect(host: str, port: int, deadline: float) -> None:
    """Connect to one of the addresses of ``host``. Each has an equal share of the remaining time."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for others, (family, kind, protocol, _, place) in zip(reversed(range(len(found))), found, strict=True):
        with socket.socket(family, kind, protocol) as knocker:
            knocker.settimeout(max(deadline - time.monotonic(), 0.001) / (others + 1))
            try:
                knocker.connect(place)
                break
            except OSError:
                if not others:
                    raise
