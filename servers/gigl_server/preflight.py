"""Checks of process limits and addresses, before a server imports its libraries and binds its ports.

Without enough resources, libraries crash or hang without a message. This module imports nothing heavy.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gigl_loader.resources import Needs, check_resources, group_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gigl_loader.rpc.endpoint import Address
    from gigl_server.config import ServeOptions

_LOGGER = logging.getLogger(__name__)

_OWN_FILES = 32  # 26 of a ready server, and some during its start.
_CALLER_FILES = 32  # Two connections per trainer, a ring each, and one or two to each other server.
_OWN_THREADS = 64  # 22 at rest; the rest for calls.
_THREADS_PER_WORKER = 4
_RING_BYTES = 64 << 20
PORT_WAIT_S = 5.0
"""Longer than a server that was killed holds its ports: its supervisor may start the next one before."""
_AGAIN_S = 0.1


def check_serve_limits(options: ServeOptions) -> None:
    """Raise ``ValueError`` in one line that names a limit below what a storage server needs."""
    needs = Needs(
        files=_OWN_FILES + _CALLER_FILES,
        threads=_OWN_THREADS + _THREADS_PER_WORKER * options.num_workers,
        map_bytes=_stored_bytes(options.graph_dir, options.served),
        memory_bytes=options.frame_memory,
        memory_option="frame_memory",
    )
    check_resources(needs, what=f"a storage server with {options.num_workers} workers")


def check_peer_limits(graph_dir: str | os.PathLike[str] | None, partitions: Iterable[int]) -> None:
    """Raise ``ValueError`` in one line that names a limit below what a peer service needs."""
    mapped = 0 if graph_dir is None else _stored_bytes(graph_dir, partitions)
    needs = Needs(files=_OWN_FILES + _CALLER_FILES, threads=_OWN_THREADS, map_bytes=mapped)
    check_resources(needs, what="a peer service")


def warn_of_limits(options: ServeOptions) -> None:
    """Log a warning for limits that are sufficient, but low."""
    memory = group_memory_bytes()
    if memory < options.frame_memory:
        _LOGGER.warning(
            "frame_memory of %d MB exceeds the %d MB that the control group has: the kernel would end this "
            "server before frame_memory is full; lower it",
            options.frame_memory >> 20,
            int(memory) >> 20,
        )
    file_bytes = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if file_bytes != resource.RLIM_INFINITY and file_bytes < _RING_BYTES:
        _LOGGER.warning(
            "files are limited to %d MB (ulimit -f): larger rings are refused, and the log ends there",
            file_bytes >> 20,
        )


def _stored_bytes(graph_dir: str | os.PathLike[str], partitions: Iterable[int] | None) -> int:
    """Return the size of the partitions; 0 where it cannot be read: opening them raises the reason."""
    folder = Path(graph_dir)
    names = ["part-*"] if partitions is None else [f"part-{part:05d}" for part in partitions]
    try:
        return sum(
            file.stat().st_size
            for name in names
            for place in folder.glob(name)
            for file in place.rglob("*")
            if file.is_file()
        )
    except OSError:
        return 0


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
