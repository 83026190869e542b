"""Membership of the cluster as a trainer follows it: a newer one that a reply tells of is fetched."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from gigl_loader.errors import GiglError
from gigl_loader.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gigl_loader.rpc.control import ClusterView
    from gigl_loader.rpc.store_client import StoreClient

__all__ = ["MembershipFollower", "assigned"]

_LOGGER = logging.getLogger(__name__)

_ATTEMPT_S = 2.0
_LONGEST_PAUSE_S = 5.0


class MembershipFollower:
    """Fetches the view of a cluster when a reply tells a newer version. Thread-safe.

    The thread starts with the first news. It holds no reference to the cluster.
    """

    def __init__(
        self,
        version: int,
        clients: Callable[[], Iterable[StoreClient]],
        apply: Callable[[ClusterView], None],
    ) -> None:
        """``clients`` returns clients to fetch from; ``apply`` takes each newer view."""
        self.version = version
        """Of the latest view."""
        self._told = version
        self._clients, self._apply = clients, apply
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def told(self, version: int) -> None:
        """Take note of a version that a reply told. Does not block."""
        if version <= self._told or self._stopped.is_set():
            return
        with self._lock:
            self._told = max(self._told, version)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="gigl-membership", daemon=True)
                with suppress(RuntimeError):  # No thread starts during interpreter shutdown.
                    self._thread.start()
        self._news.set()

    def stop(self) -> None:
        """Fetch no more views. Stopping twice is fine."""
        self._stopped.set()
        self._news.set()

    def _run(self) -> None:
        backoff = Backoff(first_s=0.1, longest_s=_LONGEST_PAUSE_S)
        while not self._stopped.is_set():
            self._news.wait()
            self._news.clear()
            while self.version < self._told and not self._stopped.is_set():
                if self._fetch():
                    backoff.reset()
                elif self._stopped.wait(backoff.next_s()):
                    return

    def _fetch(self) -> bool:
        """Take the first view that is newer than the latest. Return whether there was one."""
        for client in self._clients():
            if self._stopped.is_set():
                return False
            try:
                view = client.cluster(_ATTEMPT_S)
            except (GiglError, ValueError) as error:
                _LOGGER.debug("no view of the cluster: %s", error)
                continue
            if view.ready and view.servers and view.membership > self.version:
                self.version = view.membership
                self._apply(view)
                return True
        return False


def assigned(partitions: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    """Return, for each server, those of its ``partitions`` that are counted as its own.

    Each partition is counted for one of its holders: in ascending order, for the one with the fewest so far,
    the first of equals. So all who know the same servers count alike.
    """
    held = [set(each) for each in partitions]
    own: list[list[int]] = [[] for _ in held]
    for part in sorted(set().union(*held)):
        holders = [index for index, parts in enumerate(held) if part in parts]
        own[min(holders, key=lambda index: (len(own[index]), index))].append(part)
    return tuple(map(tuple, own))
