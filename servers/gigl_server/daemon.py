"""The process around a storage server: its signals, its log and its exit code.

====  ==================================================================
code  meaning
====  ==================================================================
0     told to end, and ended in order: drained, or the time for it was over
1     a failure: a port is taken, the other servers do not come or do not fit, a second signal
2     the user's mistake: options, files, certificates; nothing was bound
3     a part of the server died, a port or a thread; the log names it. To be started again
====  ==================================================================
"""

from __future__ import annotations

import faulthandler
import logging
import os
import resource
import signal
import threading
import time
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from gigl_loader.graph.graph import open_partitions
from gigl_loader.processes import keep_freed_memory
from gigl_server.last_resort import leave_within
from gigl_server.logs import configure_logging
from gigl_server.storage import build_storage_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_server.config import ServeOptions
    from gigl_server.storage import StorageServer

__all__ = ["LET_GO", "prepare_process", "run", "serve_until_told"]

_LOGGER = logging.getLogger(__name__)
_FAILED = 1
_PART_DIED = 3
_END_S = 8.0
"""For closing everything, after the drain: each part waits for some seconds at most."""
_SAME_S = 0.5
_WAKE_S = 1.0
_MOST_FILES = 1 << 16
_CANNOT = "cannot become ready"
_DIED = "a part of the server died"
LET_GO = "the parent let go"


def run(options: ServeOptions) -> int:
    """Serve until a signal comes, and return the exit code.

    Raises what ``build_storage_server`` raises; a mistake in the options before anything else is done.
    """
    credentials = options.load_credentials()
    credentials.check_reach(options.address)
    graph = open_partitions(options.graph_dir, options.partitions)
    with suppress(OSError, ValueError):  # No stderr.
        faulthandler.enable()
    configure_logging(options.log_file)
    prepare_process()
    with suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write("gigl-store")
    told: SimpleQueue[str] = SimpleQueue()
    with (
        _signals(told),
        build_storage_server(options, graph=graph, credentials=credentials) as server,
    ):
        code = serve_until_told(server, told, options.drain_s)
        leave_within(_END_S, code)
        return code


def serve_until_told(server: StorageServer, told: SimpleQueue[str], drain_s: float) -> int:
    """Wait for a word in ``told``, drain, and return the exit code: 1 if the server cannot become ready,
    3 if a part of it died.

    After ``LET_GO`` nobody is there to fetch anything, and it does not drain.
    """
    threading.Thread(target=_tell_failure, args=(server, told), name="readiness", daemon=True).start()
    threading.Thread(target=_tell_death, args=(server.died, told), name="death", daemon=True).start()
    word = _heard(told)
    if word == _CANNOT:
        return _FAILED
    _LOGGER.info("%s: ending", word)
    if word == _DIED:  # Its trainers ask again, at the server that comes after it.
        return _PART_DIED
    if word == LET_GO:
        return 0
    server.drain(drain_s)
    return 0


def _heard(told: SimpleQueue[str]) -> str:
    """Wait for a word. A signal that comes in the moment before a wait begins does not interrupt it, nor does
    one that another thread is given: the handler runs when the main thread wakes."""
    while True:
        with suppress(Empty):
            return told.get(timeout=_WAKE_S)


def _tell_failure(server: StorageServer, told: SimpleQueue[str]) -> None:
    server.settled.wait()
    if server.failure is not None:
        told.put(_CANNOT)


def _tell_death(died: threading.Event, told: SimpleQueue[str]) -> None:
    """Wait without the server, which would outlive its end in this thread."""
    died.wait()
    told.put(_DIED)


@contextmanager
def _signals(told: SimpleQueue[str]) -> Iterator[None]:
    """Put the first signal into ``told``; the second ends the process at once.

    One that follows on the heels of the first is the same: ``timeout`` and some supervisors send it to a
    process and to its group.
    """
    first: list[float] = []

    def take(number: int, _: object) -> None:
        name = signal.Signals(number).name
        now = time.monotonic()
        if not first:
            first.append(now)
            told.put(name)
        elif now - first[0] > _SAME_S:
            _LOGGER.warning("%s again: ending at once", name)
            os._exit(_FAILED)

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, take) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def prepare_process() -> None:
    """Make this process fit to serve: many channels, large replies."""
    keep_freed_memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # Each ring and each connection is a file, and 1024 is a usual limit.
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _MOST_FILES)), hard))
