"""Server as a child process: configured over a socket, and ended with its parent (``ServerProcess``).

Libraries are imported inside functions: they crash or hang where a limit of the process is too low.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import signal
import threading
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from gigl_loader.errors import GiglError
from gigl_loader.processes import forbid_cores, leave_with
from gigl_loader.rpc.credentials import Credentials
from gigl_loader.rpc.server_process import ServerProcess
from gigl_loader.threads import start_thread
from gigl_server.config import ServeOptions
from gigl_server.logs import GrpcLogFilter, configure_logging, quiet_grpc
from gigl_server.preflight import check_peer_limits, check_serve_limits
from gigl_server.signals import (
    LET_GO,
    RELOAD,
    Signals,
    leave,
    leave_on_signals,
    leave_within,
    tell_when,
    wait_for_word,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping
    from queue import SimpleQueue
    from typing import BinaryIO

    from gigl_server.peer_server import PeerServer
    from gigl_server.server import StorageServer

_LOGGER = logging.getLogger(__name__)
_ERRORS = (FileNotFoundError, OSError, ValueError)
_CLOSE_S = 4.0
"""Timeout of closing a storage server. The parent waits 5 s before it sends SIGTERM, and a second more."""
_PEER_CLOSE_S = 1.8
_PART_DIED = 3


class Parent:
    """The process that started this one, at the other end of a socket."""

    def __init__(self, link: socket.socket, lines: BinaryIO) -> None:
        self._link, self._lines = link, lines

    def tell(self, document: object) -> None:
        """Send a line."""
        _LOGGER.debug("telling the parent: %s", document)
        with suppress(OSError):  # The parent is gone.
            self._link.sendall(json.dumps(document).encode() + b"\n")

    def tell_error(self, error: Exception, name: str = "") -> None:
        """Send an error, as its kind and its text. ``name`` begins the text."""
        kind = next((kind for kind in _ERRORS if isinstance(error, kind)), GiglError)
        text = str(error) or type(error).__name__
        self.tell({"error": [kind.__name__, f"{name}: {text}" if name else text]})

    def wait_for_end(self, told: SimpleQueue[str], heard: Callable[[Any], None] = lambda _: None) -> None:
        """Call ``heard`` with each further line until the parent ends, on another thread. Then tell it."""

        def run() -> None:
            with suppress(OSError, ValueError):  # The link was closed.
                for line in self._lines:
                    heard(json.loads(line))
            told.put(LET_GO)

        start_thread(threading.Thread(target=run, name="parent", daemon=True))


@contextmanager
def _parent(link: socket.socket) -> Iterator[tuple[Parent, Any]]:
    """Set up the process. Lend the parent, and the configuration that it sent; ``None`` where it is gone."""
    leave_on_signals()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, whose end this process sees.
    quiet_grpc()
    with link, link.makefile("rb") as lines:
        config = json.loads(lines.readline() or b"null")
        if config is not None:
            leave_with(config["parent_pid"])
        yield Parent(link, lines), config


@contextmanager
def _held(within_s: float) -> Iterator[Signals]:
    """Hold signals from now on, SIGINT ignored."""
    with Signals(end_at_once=_LOGGER.warning, within_s=within_s) as signals:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signals.hold()
        yield signals


def start_storage_server(
    options: ServeOptions, credentials: Credentials, *, name: str, log_level: str
) -> ServerProcess:
    """Start a storage server as a child of this process. Its ``meet`` must be called once it listens."""
    config = {
        "options": asdict(options),
        "credentials": credentials.to_json(),
        "name": name,
        "log_level": log_level,
    }
    return ServerProcess(f"{__name__}:storage_server", config, name=name)


def storage_server(link: socket.socket) -> None:
    """Serve until the parent closes its end of ``link``, ends, or sends SIGTERM.

    After the configuration, the parent sends lines with addresses of other servers, the first even where
    there are none. This process sends its endpoint, then a line when it is ready.
    """
    with _parent(link) as (parent, config):
        if config is None:
            return
        options = _options(config["options"])
        try:
            check_serve_limits(options)
        except ValueError as error:
            parent.tell_error(error, config["name"])
            raise SystemExit(2) from None
        if not options.allow_core:
            forbid_cores()
        configure_logging(options.log_file, name=config["name"], level=config["log_level"])
        _serve_store(parent, config["name"], options, Credentials.from_json(config["credentials"]))


def _serve_store(parent: Parent, name: str, options: ServeOptions, credentials: Credentials) -> NoReturn:
    from gigl_server.main import END_S, prepare_process, serve_until_told
    from gigl_server.server import build_storage_server

    prepare_process()
    with _held(options.drain_s + END_S) as signals:
        try:
            server = build_storage_server(options, credentials=credentials, introduced=threading.Event())
        except Exception as error:
            parent.tell_error(error, name)
            raise SystemExit(1) from None
        with server:
            parent.tell({"endpoint": server.endpoint.to_json()})
            report = threading.Thread(target=_tell_ready, args=(parent, server), daemon=True)

            def meet(document: Any) -> None:
                server.meet(document["peers"])
                if report.ident is None:
                    report.start()

            parent.wait_for_end(signals.told, meet)
            code = serve_until_told(server, signals.told, partial(signals.left_of, options.drain_s))
            if server.failure is not None:
                parent.tell_error(server.failure, name)
            leave_within(_CLOSE_S, code)
        leave(code)


def _tell_ready(parent: Parent, server: StorageServer) -> None:
    server.settled.wait()
    if server.failure is None:
        parent.tell({"ready": True})


def _options(document: Mapping[str, Any]) -> ServeOptions:
    """Return the options, with lists of JSON as tuples."""
    lists = {name: tuple(value) for name, value in document.items() if isinstance(value, list)}
    return ServeOptions(**{**document, **lists})


def peer_service(link: socket.socket) -> None:
    """Serve the partitions of a host to other hosts, until the parent closes its end of ``link``, or ends.

    The parent starts the service again where it ends by itself.
    """
    with _parent(link) as (parent, config):
        if config is None:
            return
        _introduce(config["host_index"])
        forbid_cores()
        try:
            server = _peer_server(config)
        except (GiglError, OSError, ValueError) as error:
            parent.tell_error(error)
            return
        _serve_peers(parent, server)


def _serve_peers(parent: Parent, server: PeerServer) -> NoReturn:
    with _held(_PEER_CLOSE_S) as signals, server:
        parent.tell({"endpoint": server.endpoint.to_json()})
        parent.wait_for_end(signals.told)
        tell_when(server.died, "a part of the service died", signals.told)
        while wait_for_word(signals.told) == RELOAD:
            pass
        code = _PART_DIED if server.died.is_set() else 0
        leave_within(_PEER_CLOSE_S, code)
    leave(code)


def _peer_server(config: Mapping[str, Any]) -> PeerServer:
    parts = config["partitions"]
    check_peer_limits(config["reference"].get("path"), parts)
    from gigl_loader.graph.folder import folder_from
    from gigl_loader.graph.graph import Graph
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
