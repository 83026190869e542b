"""Main function of a process of ``LocalExecutor``: does tasks until its parent is gone."""

from __future__ import annotations

import json
import pickle
import signal
from contextlib import suppress
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING

from gigl_loader.partition.tasks import OpenedStage, packed_error
from gigl_loader.processes import leave_with

if TYPE_CHECKING:
    import socket


def main(link: socket.socket) -> None:
    """Do the tasks that arrive over ``link``, one after the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent; this process sees its EOF.
    opened: OpenedStage | None = None
    path = ""
    with (
        connection.Connection(link.detach()) as pipe,
        suppress(EOFError, BrokenPipeError, ConnectionResetError),
    ):
        while True:
            request = json.loads(pipe.recv_bytes())
            if not path:
                leave_with(request["parent"])
            try:
                if opened is None or path != request["stage"]:
                    opened, path = _opened(request["stage"]), request["stage"]
                result = opened.do(request["task"])
            except Exception as error:
                result = packed_error(error)
            pipe.send_bytes(result)


def _opened(path: str) -> OpenedStage:
    """Open a stage from a file that the parent keeps private."""
    with Path(path).open("rb") as file:
        return OpenedStage(pickle.load(file), pickle.load(file))
