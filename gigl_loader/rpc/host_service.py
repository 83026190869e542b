"""Peer service of this host: a child process that serves other hosts, restarted when it dies."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gigl_loader.errors import FormatError, GiglError
from gigl_loader.processes import FreshProcess, describe_status
from gigl_loader.rpc.endpoint import Endpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.rpc.credentials import Credentials

_LOGGER = logging.getLogger(__name__)
_ENTRY = "gigl_server.peer_child:main"
_MAX_RESTARTS = 2
_EARNED_S = 600.0
"""A child that lived this long resets the count of restarts: two deaths a week do not mean a broken host."""
_PAUSES_S = (0.1, 1.0, 5.0)
"""Pauses between attempts to start a process, where the system lacks memory, descriptors or processes."""
_PORT_WAIT_S = 5.0
"""A port that is taken is tried again for so long, but no longer than a quarter of the start's timeout."""
_LEAVE_S = 3.0
_TERMINATE_S = 1.0
_KILL_S = 5.0


class HostService:
    """A started service. It ends with ``close``, with this object, and with this process."""

    def __init__(self, keeper: _Keeper) -> None:
        """Use ``start``."""
        self._keeper = keeper
        self._close = weakref.finalize(self, keeper.close)

    @classmethod
    def start(
        cls,
        reference: dict[str, Any],
        partitions: Sequence[int],
        *,
        listen: str = "127.0.0.1:0",
        credentials: Credentials,
        timeout_s: float = 60.0,
        advertise: str | None = None,
        host_index: int = 0,
    ) -> HostService:
        """Start a child that serves ``partitions`` of the graph behind ``reference``. Waits until it serves.

        ``listen`` (``HOST:PORT``) is the control port; data goes over the next port; port 0 selects free
        ports. Other hosts connect to ``advertise`` where ``listen`` stands for all addresses. Raises
        ``OSError`` naming an address that cannot be bound (after up to 5 s where it is taken), ``ValueError``
        for invalid arguments, ``FormatError`` for a damaged graph, ``TimeoutError`` if the child is not up
        after ``timeout_s``.

        A child that dies is restarted on the same ports, at most twice; a child that has lived for ten
        minutes resets that count. After that, ``failure`` says why the service is down.
        """
        config = _ServiceConfig(
            reference=reference,
            partitions=tuple(partitions),
            listen=listen,
            data_port=None,
            advertise=advertise,
            host_index=host_index,
            port_wait_s=min(_PORT_WAIT_S, timeout_s / 4),
            credentials=credentials,
        )
        return cls(_Keeper(config, timeout_s))

    @property
    def endpoint(self) -> Endpoint:
        return self._keeper.endpoint

    @property
    def pid(self) -> int:
        """Process id of the current child."""
        return self._keeper.pid

    @property
    def restarts(self) -> int:
        return self._keeper.restarts

    @property
    def failure(self) -> str | None:
        """Why the service is down for good; ``None`` while it serves or restarts."""
        return self._keeper.failure

    def close(self) -> None:
        """End the child. Closing twice is fine; in a forked child of this process it does nothing."""
        self._close()

    def __enter__(self) -> HostService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _ServiceConfig:
    """Configuration of a child."""

    reference: dict[str, Any]
    partitions: tuple[int, ...]
    listen: str
    data_port: int | None
    advertise: str | None
    host_index: int
    port_wait_s: float
    credentials: Credentials

    def to_line(self) -> bytes:
        names = ("reference", "partitions", "listen", "data_port", "advertise", "host_index", "port_wait_s")
        document = {name: getattr(self, name) for name in names}
        document |= {"credentials": self.credentials.to_json(), "parent_pid": os.getpid()}
        return json.dumps(document).encode() + b"\n"


class _Incarnation:
    """One child process, and the socket to it."""

    def __init__(self, config: _ServiceConfig) -> None:
        self.link, far_end = socket.socketpair()
        try:
            self.process = FreshProcess(
                _ENTRY, far_end, pass_fds=tuple(config.reference.get("fds", {}).values())
            )
        except BaseException:
            self.link.close()
            raise
        finally:
            far_end.close()

    def introduce(self, config: _ServiceConfig, timeout_s: float) -> Endpoint:
        """Send the child its configuration, and wait until it serves."""
        deadline = time.monotonic() + timeout_s
        response = b""
        try:
            self.link.settimeout(timeout_s)
            self.link.sendall(config.to_line())
            while not response.endswith(b"\n"):
                self.link.settimeout(max(deadline - time.monotonic(), 0.001))
                data = self.link.recv(1 << 16)
                if not data:
                    raise ConnectionResetError
                response += data
        except TimeoutError:
            raise TimeoutError(f"the peer service did not start within {timeout_s:g} s") from None
        except (BrokenPipeError, ConnectionResetError):
            status = self.process.wait(_KILL_S)
            raise GiglError(
                f"the peer service {describe_status(status)} while it started; what it printed says why"
            ) from None
        return _endpoint_of(json.loads(response))

    def end(self) -> None:
        """Close the socket, wait for the child to exit, then kill it. The watch thread reaps its status."""
        with suppress(OSError):  # shutdown, not close: a forked child may hold the socket, too.
            self.link.shutdown(socket.SHUT_RDWR)
        for seconds, number in ((_LEAVE_S, signal.SIGTERM), (_TERMINATE_S, signal.SIGKILL)):
            if self.process.wait(seconds) is not None:
                break
            self.process.send_signal(number)
        self.process.wait(_KILL_S)
        self.link.close()


class _Keeper:
    """Restarts a child when it dies, until ``close``."""

    def __init__(self, config: _ServiceConfig, timeout_s: float) -> None:
        self.restarts = 0
        self.failure: str | None = None
        self._owner = os.getpid()
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._restarts_left = _MAX_RESTARTS
        self._incarnation = _Incarnation(config)
        try:
            self.endpoint = self._incarnation.introduce(config, timeout_s)
        except BaseException:
            self._incarnation.end()
            raise
        control = config.listen.rpartition(":")[0] + f":{self.endpoint.control_port}"
        self._config = replace(config, listen=control, data_port=self.endpoint.data_port)
        self._watch = threading.Thread(target=self._keep, name="peer service watch", daemon=True)
        self._watch.start()

    @property
    def pid(self) -> int:
        return self._incarnation.process.pid

    def close(self) -> None:
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._closing.set()
            incarnation = self._incarnation
        incarnation.end()
        self._watch.join(_KILL_S)

    def _keep(self) -> None:
        """Restart the child whenever it ends. Records in ``failure`` why restarts ended."""
        try:
            self._start_again_and_again()
        except Exception as error:
            self.failure = (
                f"the peer service of host {self.endpoint.host_index} cannot be started again: {error}"
            )
            _LOGGER.exception("%s: it stays down", self.failure)

    def _start_again_and_again(self) -> None:
        reason = ""
        while True:
            began = time.monotonic()
            status = self._incarnation.process.wait(None)
            if self._closing.is_set():
                return
            account = f"the peer service of host {self.endpoint.host_index} {describe_status(status)}{reason}"
            if time.monotonic() - began >= _EARNED_S:
                self._restarts_left = _MAX_RESTARTS
            if not self._restarts_left:
                self.failure = f"{account}, and was started again {_MAX_RESTARTS} times before"
                _LOGGER.error("%s: it stays down", self.failure)
                return
            self._restarts_left -= 1
            _LOGGER.warning("%s: starting it again", account)
            self._incarnation.link.close()
            incarnation = self._next_incarnation()
            if incarnation is None:
                return
            try:
                incarnation.introduce(self._config, self._timeout_s)
                reason = ""
            except Exception as error:
                reason = f" ({error})"
                incarnation.end()

    def _next_incarnation(self) -> _Incarnation | None:
        """Start a child, with several attempts. ``None`` after ``close``."""
        for pause_s in (*_PAUSES_S, None):
            # Under the lock: ``close`` sets the event and takes the current child, so none starts after it.
            with self._lock:
                if self._closing.is_set():
                    return None
                try:
                    self._incarnation = _Incarnation(self._config)
                    self.restarts += 1
                    return self._incarnation
                except OSError as error:
                    if pause_s is None:
                        raise
                    _LOGGER.warning("cannot start a process, trying again in %g s: %s", pause_s, error)
            self._closing.wait(pause_s)
        return None


def _endpoint_of(response: dict[str, Any]) -> Endpoint:
    if "endpoint" in response:
        return Endpoint.from_json(response["endpoint"])
    kind, message = response["error"]
    errors = {"OSError": OSError, "ValueError": ValueError, "GiglError": FormatError}
    raise errors[kind](message)
