"""Pool of channels, one to each server: chooses the server of a request, and reopens lost channels."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from gigl_client.channel import Channel, OpenChannel, bare, close_channel, may_pass, open_channel
from gigl_loader.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gigl_client.channel_config import ChannelConfig
    from gigl_client.cluster import Server
    from gigl_client.heartbeats import Heartbeats

__all__ = ["ChannelPool"]

_LOGGER = logging.getLogger(__name__)


class ChannelPool:
    """Channels of one source to its servers. Guarded by the lock of the dispatcher."""

    def __init__(
        self,
        servers: Sequence[Server],
        config: ChannelConfig,
        lock: threading.Condition,
        *,
        has_columns: bool,
        heartbeats: Heartbeats,
    ) -> None:
        """``heartbeats`` renew the leases of open channels."""
        self._channels = [Channel(server) for server in servers]
        self._config = config
        self._lock = lock
        self._has_columns = has_columns
        self._heartbeats = heartbeats
        self._closed = threading.Event()
        self.on_change: Callable[[], None] = lock.notify_all
        """Called under the lock when an attempt to open a channel succeeded or was given up."""

    def __iter__(self) -> Iterator[Channel]:
        return iter(self._channels)

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def open_all(self) -> None:
        """Open every channel that is not open, each in a thread of its own. Does not wait."""
        for channel in self._channels:
            if channel.opened is None and not channel.opening and not self.closed:
                self._open(channel, None, pause_s=0.0)

    def lose(self, channel: Channel, error: Exception) -> None:
        """Give up a channel, and open another to the same server."""
        _LOGGER.warning("%s: lost, opening another channel: %s", str(channel), str(error))
        before, channel.failure = self._leave(channel), error
        if not self.closed:
            self._open(channel, before, pause_s=channel.pause_s())

    def for_batch(self, batch: int, *, urgent: bool, needed: bool) -> Channel | None:
        """Return the channel with the lowest load. ``None`` where no channel may have another request.

        ``urgent``: no other batch can be delivered before this one, so received batches must not keep it from
        being requested again. ``needed``: the trainer waits for a batch; without prefetching, batches are
        requested only then.
        """
        if self._config.prefetch == 0 and (not needed or any(channel.load for channel in self._channels)):
            return None
        most = self._config.max_in_flight
        able = [
            each
            for each in self._channels
            if each.opened and (urgent or each.load < min(each.allowance, most))
        ]
        count = len(self._channels)

        def order(channel: Channel) -> tuple[int, int]:
            return channel.load, (channel.server.endpoint.host_index - batch) % count

        return min(able, key=order, default=None)

    def forget_loads(self) -> None:
        """Forget the requests of an epoch that was left."""
        for channel in self._channels:
            channel.load, channel.allowance = 0, 1

    def summary(self) -> dict[str, Any]:
        """Return transport, batches and reconnects, in total and by server."""
        return {
            "transport": _one_of(channel.transport for channel in self),
            "rows": _one_of(channel.rows for channel in self),
            "reconnects": sum(max(channel.reconnects, 0) for channel in self),
            "servers": [
                {
                    "server": str(channel),
                    "transport": channel.transport,
                    "rows": channel.rows,
                    "batches": channel.batches,
                    "in_flight": channel.load,
                    "reconnects": max(channel.reconnects, 0),
                }
                for channel in self
            ],
        }

    def close(self) -> list[Callable[[], None]]:
        """Open no more channels. Return functions that close the open ones."""
        self._closed.set()
        left = [(channel.server, self._leave(channel)) for channel in self._channels]
        return [partial(close_channel, server, opened.id) for server, opened in left if opened is not None]

    def _leave(self, channel: Channel) -> OpenChannel | None:
        """Stop using a channel, and return it where it was open."""
        opened, channel.opened = channel.opened, None
        if opened is not None:
            self._heartbeats.drop(channel.server.rank, opened.id)
            channel.down_since = time.monotonic()
        return opened

    def _open(self, channel: Channel, before: OpenChannel | None, *, pause_s: float) -> None:
        channel.tries_since = time.monotonic()
        channel.down_since = channel.down_since or channel.tries_since
        thread = threading.Thread(
            target=self._make,
            args=(channel, before, pause_s),
            name=f"open channel at {channel.server.rank}",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError as error:  # The system has no thread to give.
            channel.failure = bare(error)
        else:
            channel.opening = True

    def _make(self, channel: Channel, before: OpenChannel | None, pause_s: float) -> None:
        """Open a channel. Runs in a thread of its own. ``before`` is the channel that was lost."""
        if before is not None:  # First, because a draining server waits until its ready frames are gone.
            close_channel(channel.server, before.id)
        if self._closed.wait(pause_s):
            return
        result = self._attempts(channel)
        used = self._opened(channel, result)
        if not isinstance(result, Exception) and not used:
            close_channel(channel.server, result.id)

    def _attempts(self, channel: Channel) -> OpenChannel | Exception:
        """Return a channel, or an error that a retry cannot resolve, or the last error after the timeout."""
        give_up = time.monotonic() + self._config.timeout_s
        backoff = Backoff()
        while True:
            result = self._attempt(channel)
            if not isinstance(result, Exception):
                return result
            if not may_pass(result) or time.monotonic() > give_up:
                return result
            self._tried(channel, result)
            if self._closed.wait(backoff.next_s()):
                return result

    def _attempt(self, channel: Channel) -> OpenChannel | Exception:
        try:
            return open_channel(
                channel.server, self._config, num_servers=len(self._channels), has_columns=self._has_columns
            )
        except Exception as error:
            return bare(error)

    def _tried(self, channel: Channel, error: Exception) -> None:
        with self._lock:
            channel.failure = error

    def _opened(self, channel: Channel, result: OpenChannel | Exception) -> bool:
        """Record the result of the attempts. Return whether the channel is in use now."""
        with self._lock:
            channel.opening = False
            if isinstance(result, Exception):
                channel.failure = result
            elif not self.closed:
                channel.opened, channel.failure = result, None
                self._heartbeats.keep(channel.server.rank, result.id, result.lease_s)
                channel.reconnects += 1
                if channel.reconnects:
                    _LOGGER.warning("%s: back", str(channel))
            self.on_change()
            return channel.opened is result


def _one_of(values: Iterable[str]) -> str:
    """Return the value that all open channels share, or ``"mixed"``; ``"none"`` where no channel is open."""
    found = set(values) - {"none"} or {"none"}
    return found.pop() if len(found) == 1 else "mixed"
