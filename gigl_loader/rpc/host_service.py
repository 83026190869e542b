"""Peer service of this host: a child process that serves other hosts, restarted when it dies."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from gigl_loader.errors import FormatError
from gigl_loader.processes import describe_status
from gigl_loader.rpc.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.rpc.credentials import Credentials
    from gigl_loader.rpc.endpoint import Endpoint

_LOGGER = logging.getLogger(__name__)
_ENTRY = "gigl_server.child:peer_service"
_MAX_RESTARTS = 2
_EARNED_S = 600.0
"""A child that lived this long resets the count of restarts: two deaths a week do not mean a broken host."""
_PAUSES_S = (0.1, 1.0, 5.0)
"""Pauses between attempts to start a process, where the system lacks memory, descriptors or processes."""
_PORT_WAIT_S = 5.0
"""Time for which a port in use is tried again; at most a quarter of the timeout of the start."""
_LEAVE_S = 3.0
_JOIN_S = 5.0


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
        config = {
            "reference": reference,
            "partitions": list(partitions),
            "listen": listen,
            "data_port": None,
            "advertise": advertise,
            "host_index": host_index,
            "port_wait_s": min(_PORT_WAIT_S, timeout_s / 4),
            "credentials": credentials.to_json(),
        }
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


class _Keeper:
    """Restarts a child when it dies, until ``close``."""

    def __init__(self, config: dict[str, Any], timeout_s: float) -> None:
        self.restarts = 0
        self.failure: str | None = None
        self._owner = os.getpid()
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._restarts_left = _MAX_RESTARTS
        self._config = config
        self._process = self._started()
        try:
            self.endpoint = self._bound()
        except BaseException:
            self._process.end()
            raise
        control = config["listen"].rpartition(":")[0] + f":{self.endpoint.control_port}"
        self._config = config | {"listen": control, "data_port": self.endpoint.data_port}
        self._watch = threading.Thread(target=self._keep, name="peer service watch", daemon=True)
        self._watch.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._closing.set()
            process = self._process
        process.end()
        self._watch.join(_JOIN_S)

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
            status = self._process.status(None)
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
            self._process.end()
            if not self._start_next():
                return
            try:
                self._bound()
                reason = ""
            except Exception as error:
                reason = f" ({error})"
                self._process.end()

    def _start_next(self) -> bool:
        """Start a child, with several attempts. ``False`` after ``close``."""
        for pause_s in (*_PAUSES_S, None):
            # Under the lock: ``close`` sets the event and takes the current child, so none starts after it.
            with self._lock:
                if self._closing.is_set():
                    return False
                try:
                    self._process = self._started()
                    self.restarts += 1
                    return True
                except OSError as error:
                    if pause_s is None:
                        raise
                    _LOGGER.warning("cannot start a process, trying again in %g s: %s", pause_s, error)
            self._closing.wait(pause_s)
        return False

    def _started(self) -> ServerProcess:
        return ServerProcess(
            _ENTRY,
            self._config,
            name="the peer service",
            leave_s=_LEAVE_S,
            failure=FormatError,
            pass_fds=[fd] if (fd := self._config["reference"].get("fd")) is not None else [],
        )

    def _bound(self) -> Endpoint:
        """Wait until the child serves. Raises as ``HostService.start``."""
        try:
            return self._process.bound(time.monotonic() + self._timeout_s)
        except TimeoutError:
            raise TimeoutError(f"the peer service did not start within {self._timeout_s:g} s") from None
