"""Server as a process of its own, which another process configures, watches and ends.

The parent sends lines of JSON over a socket: first the configuration, then whatever the server takes. The
server sends its endpoint once it listens, further lines as its kind has them, or an error at any time
(``gigl_server.child`` is the other side).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gigl_loader.errors import GiglError, StorageUnavailable
from gigl_loader.processes import FreshProcess, describe_status
from gigl_loader.rpc.endpoint import Endpoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SEND_S, _TERMINATE_S, _KILL_S = 10.0, 1.0, 5.0
_MAX_LINE_BYTES = 1 << 20
_ERRORS = {kind.__name__: kind for kind in (FileNotFoundError, OSError, ValueError)}


class ServerProcess:
    """One server process, and the socket to it."""

    def __init__(
        self,
        entry: str,
        config: Mapping[str, Any],
        *,
        name: str,
        leave_s: float = 5.0,
        failure: type[GiglError] = StorageUnavailable,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start ``entry`` (``module:function``) in a process, and send ``config``. Returns at once.

        ``name`` is for messages. The server has ``leave_s`` to end by itself before it gets SIGTERM. Errors
        of the server that are neither ``OSError`` nor ``ValueError`` are raised as ``failure``. ``pass_fds``
        stay open in the process.
        """
        self._name, self._leave_s, self._failure = name, leave_s, failure
        self._unread = b""
        self._is_ready = False
        self._link, far_end = socket.socketpair()
        try:
            self._process = FreshProcess(entry, far_end, pass_fds=pass_fds)
        except BaseException:
            self._link.close()
            raise
        finally:
            far_end.close()
        self._send({**config, "parent_pid": os.getpid()})

    @property
    def pid(self) -> int:
        return self._process.pid

    def bound(self, deadline: float) -> Endpoint:
        """Wait until the server listens. Return its endpoint.

        Raises ``TimeoutError``, the error of the server, or ``GiglError`` if the process ended without one.
        """
        return Endpoint.from_json(self._hear(deadline, "listen")["endpoint"])

    def meet(self, peers: Sequence[str]) -> None:
        """Send addresses of other servers. May be called again when there are more."""
        self._send({"peers": list(peers)})

    def ready(self, deadline: float) -> None:
        """Wait until the server is ready. Raises as ``bound``."""
        if not self._is_ready:
            self._is_ready = bool(self._hear(deadline, "become ready")["ready"])

    def status(self, timeout_s: float | None) -> int | None:
        """Return the exit status, or ``None`` if the process still runs after ``timeout_s``."""
        return self._process.wait(timeout_s)

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        self._process.send_signal(number)

    def describe(self) -> str:
        """Return whether the process runs, or how it ended, as text."""
        status = self.status(0)
        return "runs" if status is None else describe_status(status)

    def terminate(self, timeout_s: float) -> int | None:
        """Drain and end the server by SIGTERM. Return its exit status, ``None`` if it runs on."""
        self.signal(signal.SIGTERM)
        status = self.status(timeout_s)
        if status is not None:
            self.end()
        return status

    def let_go(self) -> None:
        """Tell the process to end, by closing the socket. Does not wait."""
        with suppress(OSError):  # shutdown, not close: a forked child may hold the socket, too.
            self._link.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Wait for the process to end, then terminate and kill it. Ending twice is fine."""
        self.let_go()
        for seconds, number in ((self._leave_s, signal.SIGTERM), (_TERMINATE_S, signal.SIGKILL)):
            if self._process.wait(seconds) is not None:
                break
            self._process.send_signal(number)
        self._process.wait(_KILL_S)
        self._link.close()

    def _send(self, document: object) -> None:
        self._link.settimeout(_SEND_S)  # A wait may have left a shorter timeout.
        with suppress(BrokenPipeError, ConnectionResetError):  # The process ended: ``_hear`` raises that.
            self._link.sendall(json.dumps(document).encode() + b"\n")

    def _hear(self, deadline: float, aim: str) -> Any:
        try:
            while b"\n" not in self._unread:
                self._link.settimeout(max(deadline - time.monotonic(), 0.001))
                data = self._link.recv(1 << 16)
                if not data:
                    raise ConnectionResetError
                self._unread += data
                if len(self._unread) > _MAX_LINE_BYTES:
                    raise GiglError(f"{self._name} sent a line of more than {_MAX_LINE_BYTES} bytes")
        except TimeoutError:
            raise TimeoutError(
                f"{self._name} did not {aim} in time; its log says what it waits for"
            ) from None
        except ConnectionResetError:
            status = self._process.wait(_KILL_S)
            raise GiglError(
                f"{self._name} {describe_status(status)} while it started; what it printed says why"
            ) from None
        line, _, self._unread = self._unread.partition(b"\n")
        document = json.loads(line)
        if "error" in document:
            kind, text = document["error"]
            raise _ERRORS.get(kind, self._failure)(text)
        return document
