"""All servers of a source: which one is asked, and how lost channels are opened again."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from gigl_client.line import Line, Opened, bare, close_channel
from gigl_client.openers import Opening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gigl_client.cluster import Server
    from gigl_client.heartbeats import Heartbeats
    from gigl_client.terms import Terms

__all__ = ["Lines"]

_LOGGER = logging.getLogger(__name__)


class Lines:
    """The lines to the servers of one source. Guarded by the lock of its exchange."""

    def __init__(
        self,
        servers: Sequence[Server],
        terms: Terms,
        lock: threading.Condition,
        *,
        has_columns: bool,
        heartbeats: Heartbeats,
    ) -> None:
        """``heartbeats`` keep the channels that are open."""
        self._lines = [Line(server) for server in servers]
        self._terms = terms
        self._lock = lock
        self._has_columns = has_columns
        self._heartbeats = heartbeats
        self._closed = threading.Event()
        self.on_change: Callable[[], None] = lock.notify_all
        """Called, under the lock, when a channel was opened or cannot be."""

    def __iter__(self) -> Iterator[Line]:
        return iter(self._lines)

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def open_all(self) -> None:
        """Have the channels opened that are not, in threads of their own."""
        for line in self._lines:
            if line.opened is None and not line.opening and not self.closed:
                self._open(line, None)

    def lose(self, line: Line, error: Exception) -> None:
        """Give a channel up, and have another opened."""
        _LOGGER.warning("%s: lost, opening another channel: %s", str(line), str(error))
        before, line.failure = self._leave(line), error
        if not self.closed:
            self._open(line, before)

    def for_batch(self, batch: int, *, urgent: bool, needed: bool) -> Line | None:
        """Return the server to ask: the one with the fewest asks. ``None`` where none may have another.

        ``urgent``: no batch is received before this one, so those that came already must not keep it from
        being asked for again. ``needed``: somebody waits for a batch, which is when one is asked for
        without prefetching.
        """
        if self._terms.prefetch == 0 and (not needed or any(line.load for line in self._lines)):
            return None
        most = self._terms.most_asked
        able = [each for each in self._lines if each.opened and (urgent or each.load < most)]
        count = len(self._lines)

        def order(line: Line) -> tuple[int, int]:
            return line.load, (line.server.endpoint.host_index - batch) % count

        return min(able, key=order, default=None)

    def forget_loads(self) -> None:
        """An epoch was left: what was asked for counts no more."""
        for line in self._lines:
            line.load = 0

    def close(self) -> list[Callable[[], None]]:
        """Open no more channels. Return what closes those that are open."""
        self._closed.set()
        left = [(line.server, self._leave(line)) for line in self._lines]
        return [partial(close_channel, server, opened.id) for server, opened in left if opened is not None]

    def _leave(self, line: Line) -> Opened | None:
        """Use a channel no more. Return it."""
        opened, line.opened = line.opened, None
        if opened is not None:
            self._heartbeats.drop(line.server.rank, opened.id)
            line.down_since = time.monotonic()
        return opened

    def _open(self, line: Line, before: Opened | None) -> None:
        line.tries_since = time.monotonic()
        line.down_since = line.down_since or line.tries_since
        opening = Opening(
            line.server,
            self._terms,
            num_servers=len(self._lines),
            has_columns=self._has_columns,
            before=before,
            closed=self._closed,
            tried=partial(self._tried, line),
            done=partial(self._opened, line),
        )
        try:
            opening.start()
        except RuntimeError as error:  # There is no thread to be had.
            line.failure = bare(error)
        else:
            line.opening = True

    def _tried(self, line: Line, error: Exception) -> None:
        with self._lock:
            line.failure = error

    def _opened(self, line: Line, outcome: Opened | Exception) -> bool:
        with self._lock:
            line.opening = False
            if isinstance(outcome, Exception):
                line.failure = outcome
            elif not self.closed:
                line.opened, line.failure = outcome, None
                self._heartbeats.keep(line.server.rank, outcome.id, outcome.lease_s)
                line.reconnects += 1
                if line.reconnects:
                    _LOGGER.warning("%s: back", str(line))
            self.on_change()
            return line.opened is outcome
