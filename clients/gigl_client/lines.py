"""All servers of a source: which one is asked, and how lost channels are opened again."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from gigl_client.line import Line, Opened, bare, close_channel, may_pass, open_channel
from gigl_loader.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

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
                self._open(line, None, pause_s=0.0)

    def lose(self, line: Line, error: Exception) -> None:
        """Give a channel up, and have another opened."""
        _LOGGER.warning("%s: lost, opening another channel: %s", str(line), str(error))
        before, line.failure = self._leave(line), error
        if not self.closed:
            self._open(line, before, pause_s=line.pause_s())

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

    def summary(self) -> dict[str, Any]:
        """Return how frames come, in all and by server."""
        return {
            "transport": _one_of(line.transport for line in self),
            "rows": _one_of(line.rows for line in self),
            "reconnects": sum(max(line.reconnects, 0) for line in self),
            "servers": [
                {
                    "server": str(line),
                    "transport": line.transport,
                    "rows": line.rows,
                    "batches": line.batches,
                    "in_flight": line.load,
                    "reconnects": max(line.reconnects, 0),
                }
                for line in self
            ],
        }

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

    def _open(self, line: Line, before: Opened | None, *, pause_s: float) -> None:
        line.tries_since = time.monotonic()
        line.down_since = line.down_since or line.tries_since
        thread = threading.Thread(
            target=self._make,
            args=(line, before, pause_s),
            name=f"open channel at {line.server.rank}",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError as error:  # There is none to be had.
            line.failure = bare(error)
        else:
            line.opening = True

    def _make(self, line: Line, before: Opened | None, pause_s: float) -> None:
        """Open a channel, in a thread that ends with it. ``before`` is the one that was lost."""
        if before is not None:  # First: a server that drains waits until what it had ready is gone.
            close_channel(line.server, before.id)
        if self._closed.wait(pause_s):
            return
        outcome = self._attempts(line)
        wanted = self._opened(line, outcome)
        if not isinstance(outcome, Exception) and not wanted:
            close_channel(line.server, outcome.id)

    def _attempts(self, line: Line) -> Opened | Exception:
        """Return a channel, or what no other attempt can mend, or the last failure when time is over."""
        give_up = time.monotonic() + self._terms.timeout_s
        backoff = Backoff()
        while True:
            outcome = self._attempt(line)
            if not isinstance(outcome, Exception):
                return outcome
            if not may_pass(outcome) or time.monotonic() > give_up:
                return outcome
            self._tried(line, outcome)
            if self._closed.wait(backoff.next_s()):
                return outcome

    def _attempt(self, line: Line) -> Opened | Exception:
        try:
            return open_channel(
                line.server, self._terms, num_servers=len(self._lines), has_columns=self._has_columns
            )
        except Exception as error:
            return bare(error)

    def _tried(self, line: Line, error: Exception) -> None:
        with self._lock:
            line.failure = error

    def _opened(self, line: Line, outcome: Opened | Exception) -> bool:
        """Note what came of the attempts. Return whether the channel is of use."""
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


def _one_of(values: Iterable[str]) -> str:
    """Return the value that all have, but for lines that are not open."""
    found = set(values) - {"none"} or {"none"}
    return found.pop() if len(found) == 1 else "mixed"
