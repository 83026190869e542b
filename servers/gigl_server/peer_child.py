"""Peer service as the child process of a rank: configured over a socket, and ended with its parent."""

from __future__ import annotations

import faulthandler
import json
import logging
import signal
import socket
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from gigl_loader.errors import GiglError
from gigl_loader.graph.folder import folder_from
from gigl_loader.graph.graph import Graph
from gigl_loader.processes import forbid_cores, leave_with
from gigl_loader.rpc.credentials import Credentials
from gigl_server.audit import GrpcLogFilter
from gigl_server.forced_exit import leave, leave_within
from gigl_server.logs import quiet_grpc
from gigl_server.preflight import check_peer_limits
from gigl_server.signals import RELOAD, Signals, leave_on_signals, wait_for_word

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from queue import SimpleQueue

    from gigl_server.peer_server import PeerServer

_LOGGER = logging.getLogger(__name__)
_END_S = 1.8
_PART_DIED = 3


def main(link: socket.socket) -> None:
    """Serve until the parent closes its end of ``link``, or ends. The first line is the configuration."""
    leave_on_signals()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, whose end this process sees.
    quiet_grpc()
    with link, link.makefile("rb") as lines:
        config = json.loads(lines.readline() or b"null")
        if config is None:
            return
        leave_with(config["parent_pid"])
        _introduce(config["host_index"])
        forbid_cores()
        try:
            server = _server(config)
        except (GiglError, OSError, ValueError) as error:
            _say(link, {"error": [_kind(error), str(error)]})
            return
        _serve(link, server)


def _serve(link: socket.socket, server: PeerServer) -> NoReturn:
    with Signals(end_at_once=_LOGGER.warning, within_s=_END_S) as signals, server:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signals.hold()
        _say(link, {"endpoint": server.endpoint.to_json()})
        for wait in (server.died.wait, partial(_wait_for_end, link)):
            threading.Thread(target=_tell, args=(wait, signals.told), name="end", daemon=True).start()
        while wait_for_word(signals.told) == RELOAD:
            pass
        code = _PART_DIED if server.died.is_set() else 0  # The parent restarts the service.
        leave_within(_END_S, code)
    leave(code)


def _wait_for_end(link: socket.socket) -> None:
    """Wait until the parent closes its end."""
    with suppress(OSError):
        link.recv(1)


def _tell(wait: Callable[[], object], told: SimpleQueue[str]) -> None:
    wait()
    told.put("end")


def _server(config: Mapping[str, Any]) -> PeerServer:
    parts = config["partitions"]
    check_peer_limits(config["reference"].get("path"), parts)
    from gigl_server.peer_server import build_server

    return build_server(
        Graph.open(folder_from(config["reference"]), parts=parts, verify="none"),  # The parent verifies it.
        parts,
        config["listen"],
        Credentials.from_json(config["credentials"]),
        advertise=config["advertise"],
        data_port=config["data_port"],
        host_index=config["host_index"],
        port_wait_s=config["port_wait_s"],
    )


def _introduce(host_index: int) -> None:
    """Name the process: for ``top``, in its log, and in the text of a crash."""
    faulthandler.enable()
    logging.basicConfig(format=f"gigl peer service of host {host_index}: %(levelname)s %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(GrpcLogFilter())
    with suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write("gigl-peer")


def _kind(error: Exception) -> str:
    kinds = (OSError, ValueError, GiglError)
    return next(kind.__name__ for kind in kinds if isinstance(error, kind))


def _say(link: socket.socket, document: object) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # The parent is gone.
        link.sendall(json.dumps(document).encode() + b"\n")
