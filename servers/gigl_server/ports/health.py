"""Health of a server's services, in the gRPC health protocol."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from grpc_health.v1 import health_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Health"]

_STATUS = health_pb2.HealthCheckResponse
_LOOK_S = 1.0


class Health:
    """Statuses by name of service. Thread-safe; a watcher cannot delay a thread that sets a status.

    ``grpc_health`` sends to watchers while it holds its lock: a watcher that does not read would block all.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._statuses: dict[str, int] = {}
        self._closed = False

    def set(self, names: Sequence[str], serving: bool) -> None:
        """Set the status of services. Does nothing after ``close``."""
        with self._changed:
            if not self._closed:
                status = _STATUS.SERVING if serving else _STATUS.NOT_SERVING
                self._statuses.update(dict.fromkeys(names, status))
                self._changed.notify_all()

    def close(self) -> None:
        """Set every status to not serving, and end all watches."""
        with self._changed:
            self._statuses = dict.fromkeys(self._statuses, _STATUS.NOT_SERVING)
            self._closed = True
            self._changed.notify_all()

    def check(self, name: str) -> Any | None:
        """Return the reply to ``Check``. ``None``: no such service."""
        status = self._statuses.get(name)
        return None if status is None else _STATUS(status=status)

    def listed(self) -> Any | None:
        """Return the reply to ``List``. ``None`` where the installed protocol has no such call."""
        reply = getattr(health_pb2, "HealthListResponse", None)
        if reply is None:
            return None
        return reply(statuses={name: _STATUS(status=status) for name, status in self._statuses.items()})

    def watch(self, name: str, until: threading.Event) -> Iterator[Any]:
        """Yield the status of a service and each change of it, until the event is set or health is closed."""
        told = None
        while not until.is_set():
            with self._changed:
                status = self._statuses.get(name, _STATUS.SERVICE_UNKNOWN)
                if status == told:
                    if self._closed:
                        return
                    self._changed.wait(_LOOK_S)
                    continue
            told = status
            yield _STATUS(status=status)
