"""Storage server as a child process: configured over a socket, and ended with its parent."""

from __future__ import annotations

import json
import logging
import signal
import socket
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from gigl_loader.errors import GiglError
from gigl_loader.processes import forbid_cores, leave_with
from gigl_loader.rpc.credentials import Credentials
from gigl_server.config import ServeOptions
from gigl_server.forced_exit import leave, leave_within
from gigl_server.logs import configure_logging, quiet_grpc
from gigl_server.preflight import check_serve_limits
from gigl_server.signals import Signals, leave_on_signals

if TYPE_CHECKING:
    from collections.abc import Mapping
    from queue import SimpleQueue
    from typing import BinaryIO

    from gigl_server.server import StorageServer

_LOGGER = logging.getLogger(__name__)
_CLOSE_S = 4.0
"""Timeout of closing everything. The parent waits 5 s before it sends SIGTERM, and a second more."""


def main(link: socket.socket) -> None:
    """Serve until the parent closes its end of ``link``, ends, or sends SIGTERM.

    The parent sends a line with the configuration, then lines with addresses of other servers, the first even
    where there are none. This process sends a line with its endpoint, then one when it is ready; or an error
    at any time.
    """
    leave_on_signals()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, whose end this process sees.
    quiet_grpc()
    with link, link.makefile("rb") as lines:
        config = json.loads(lines.readline() or b"null")
        if config is None:
            return
        leave_with(config["parent_pid"])
        options = _options(config["options"])
        try:
            check_serve_limits(options)
        except ValueError as error:
            _say(link, {"error": _told(error)})
            raise SystemExit(2) from None
        if not options.allow_core:
            forbid_cores()
        configure_logging(options.log_file, name=config["name"], level=config["log_level"])
        _serve(link, lines, options, Credentials.from_json(config["credentials"]))


def _serve(link: socket.socket, lines: BinaryIO, options: ServeOptions, credentials: Credentials) -> NoReturn:
    from gigl_server.main import END_S, prepare_process, serve_until_told
    from gigl_server.server import build_storage_server

    prepare_process()
    with Signals(end_at_once=_LOGGER.warning, within_s=options.drain_s + END_S) as signals:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signals.hold()
        try:
            server = build_storage_server(options, credentials=credentials, introduced=threading.Event())
        except Exception as error:
            _say(link, {"error": _told(error)})
            raise SystemExit(1) from None
        with server:
            _say(link, {"endpoint": server.endpoint.to_json()})
            talk = (link, lines, server, signals.told)
            threading.Thread(target=_talk, args=talk, name="parent", daemon=True).start()
            code = serve_until_told(server, signals.told, partial(signals.left_of, options.drain_s))
            if server.failure is not None:
                _say(link, {"error": _told(server.failure)})
            leave_within(_CLOSE_S, code)
        leave(code)


def _talk(link: socket.socket, lines: BinaryIO, server: StorageServer, told: SimpleQueue[str]) -> None:
    """Read the addresses of the other servers, a line whenever there are more, until the parent ends."""
    report = threading.Thread(target=_tell_ready, args=(link, server), daemon=True)
    with suppress(OSError, ValueError):  # The link was closed.
        for line in lines:
            server.meet(json.loads(line)["peers"])
            if report.ident is None:
                report.start()
    from gigl_server.main import LET_GO

    told.put(LET_GO)


def _tell_ready(link: socket.socket, server: StorageServer) -> None:
    server.settled.wait()
    if server.failure is None:
        _say(link, {"ready": True})


def _options(document: Mapping[str, Any]) -> ServeOptions:
    """Return the options, with lists of JSON as tuples."""
    lists = {name: tuple(value) for name, value in document.items() if isinstance(value, list)}
    return ServeOptions(**{**document, **lists})


def _told(error: Exception) -> list[str]:
    kinds = (FileNotFoundError, OSError, ValueError)
    kind = next((kind for kind in kinds if isinstance(error, kind)), GiglError)
    return [kind.__name__, str(error) or type(error).__name__]


def _say(link: socket.socket, document: object) -> None:
    _LOGGER.debug("telling the parent: %s", document)
    with suppress(OSError):  # The parent is gone.
        link.sendall(json.dumps(document).encode() + b"\n")
