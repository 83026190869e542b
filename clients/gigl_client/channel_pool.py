"""Pool of channels, one to each server: chooses the server of a request, and reopens lost channels."""

from __future__ import annotations

import logging
import math
import threading
import time
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from gigl_client.channels import Channel, OpenChannel, close_channel, may_pass, open_channel
from gigl_loader.errors import strip_traceback
from gigl_loader.retry import Backoff
from gigl_loader.rpc.refusals import FaultKind, rule_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gigl_client.channels import ChannelConfig, Tried
    from gigl_client.cluster import Heartbeats, Server

_LOGGER = logging.getLogger(__name__)

_FREE, _CROWDED = 0.5, 2.0
"""Times as long as a batch takes: its request waited less for a thread of a server that has free ones, and
more where further requests only wait. Between the two, the window stays."""
_REFUSED_S = 5.0
"""Pause before another attempt at a server that refused and is not needed."""


class ChannelPool:
    """Channels of one source to its servers. Guarded by the lock of the dispatcher."""

    def __init__(
        self,
        servers: Sequence[Server],
        config: ChannelConfig,
        lock: threading.Condition,
        *,
        defers: bool,
        heartbeats: Heartbeats,
        choose: Callable[[Sequence[Server]], Sequence[Server]] = lambda servers: servers,
    ) -> None:
        """``heartbeats`` renew the leases of open channels. ``defers``: frames may defer their features.

        ``choose`` returns the servers of a cluster that sample for this rank.
        """
        self._choose = choose
        self._channels = [Channel(server, config.first_window) for server in choose(servers)]
        self._config = config
        self._lock = lock
        self._defers = defers
        self._heartbeats = heartbeats
        self._closed = threading.Event()
        self._frame_bytes = 0
        self.on_change: Callable[[], None] = lock.notify_all
        """Called under the lock when an attempt to open a channel succeeded or was given up."""
        self.on_leave: Callable[[OpenChannel], None] = _ignored
        """Called under the lock with an open channel to a server that has left."""

    def __iter__(self) -> Iterator[Channel]:
        return iter(self._channels)

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def open_all(self) -> None:
        """Open every channel that is not open, each in a thread of its own. Does not wait.

        A server that refused, and whose partitions other servers hold, is tried again at ``reopen_at``.
        """
        needed, now = self.needed(), time.monotonic()
        for channel in self._channels:
            may_open = channel in needed or now >= channel.retry_at
            if channel.opened is None and not channel.opening and may_open and not self.closed:
                self._open(channel, None, pause_s=0.0)

    def reopen_at(self) -> float:
        """Return when ``open_all`` tries the next of the servers that refused (monotonic)."""
        refused = (each.retry_at for each in self._channels if each.opened is None and not each.opening)
        return min(refused, default=math.inf)

    def needed(self) -> list[Channel]:
        """Return the channels that are not open and whose servers are needed.

        A server is needed where no server with an open channel holds its partitions: no batch could be
        sampled. The others of a cluster with replicas may be away for good.
        """
        down = [channel for channel in self._channels if channel.opened is None]
        if not down:
            return []
        up = [set(each.server.endpoint.partitions) for each in self._channels if each.opened]
        held = set().union(*up)
        return [each for each in down if not up or not held.issuperset(each.server.endpoint.partitions)]

    def use(self, servers: Sequence[Server]) -> None:
        """Open a channel to each server of this rank that has none. Give up channels to all other servers."""
        servers = self._choose(servers)
        with self._lock:
            if self.closed:
                return
            known = {channel.server.number: channel for channel in self._channels}
            window = self._config.first_window
            self._channels = [
                known.pop(server.number) if server.number in known else Channel(server, window)
                for server in servers
            ]
            for channel in known.values():
                channel.gone = True
                opened = self._leave(channel)
                if opened is not None:
                    self.on_leave(opened)
            self.open_all()
            self.on_change()

    def lose(self, channel: Channel, error: Exception) -> None:
        """Give up a channel, and open another to the same server."""
        before, channel.failure = self._leave(channel), error
        channel.note_fault(error)
        if channel.gone:
            return
        _LOGGER.warning("%s: lost, opening another channel: %s", str(channel), str(error))
        if not self.closed:
            self._open(channel, before, pause_s=channel.pause_s())

    def for_hedge(self, tried: Tried) -> Channel | None:
        """Return a channel, as ``for_batch``, for another request of a late batch: none that has one already.

        One to a server that is late itself is better than none.
        """
        able = [each for each in self._channels if each.opened and each not in tried.under_way]
        return min(able, key=lambda each: (each.late, tried.failures[each], each.load), default=None)

    @property
    def most_in_flight(self) -> int:
        """Batches that may be in flight at all servers together, those that back off among them."""
        if self._config.prefetch == 0:
            return 1
        windows = sum(each.window for each in self._channels if each.opened)
        most = windows or self._config.first_window
        return min(most, self._config.most_in_flight(self._frame_bytes))

    def for_batch(self, batch: int, tried: Tried, *, urgent: bool, needed: bool) -> Channel | None:
        """Return the channel with the lowest load. ``None`` where no channel may have another request.

        Channels with the fewest failures of the batch come first: a server that refuses at once would have
        the lowest load for ever. Servers that are late with a batch are passed over while another is open.

        ``urgent``: no other batch can be delivered before this one, so received batches must not keep it from
        being requested again. ``needed``: the trainer waits for a batch; without prefetching, batches are
        requested only then.
        """
        if self._config.prefetch == 0 and not needed:
            return None
        in_flight = sum(channel.load for channel in self._channels)
        if not urgent and in_flight >= self._config.most_in_flight(self._frame_bytes):
            return None
        first = (self._config.first_server + batch) % max(len(self._channels), 1)
        in_turn = [*self._channels[first:], *self._channels[:first]]
        opened = [each for each in in_turn if each.opened]
        prompt = [each for each in opened if not each.late] or opened
        able = [each for each in prompt if urgent or each.load < min(each.allowance, each.window)]
        return min(able, key=lambda each: (tried.failures[each], each.load), default=None)

    def received(self, frame_bytes: int) -> None:
        """Take note of the size of a frame. Few large frames count until many smaller ones have come."""
        self._frame_bytes = max(frame_bytes, self._frame_bytes - self._frame_bytes // 16)

    def adapt(
        self, channel: Channel, *, queued_s: float, sampling_s: float, needed: bool, ready: int
    ) -> None:
        """Grow the window of a channel while the trainer waits and the server has free threads.

        A batch that was received waited ``queued_s`` for a thread of its server, and was sampled for
        ``sampling_s``. ``needed``: the trainer waits for a batch. The window shrinks while batches wait long
        for a thread, and while as many as it has are ``ready`` and wait for the trainer.
        """
        if needed and queued_s <= _FREE * sampling_s:
            channel.window = min(channel.window + 1, self._config.largest_window)
        elif ready >= channel.window or queued_s > _CROWDED * sampling_s:
            channel.window = max(channel.window - 1, self._config.first_window)

    def forget_loads(self) -> None:
        """Forget the requests of an epoch that was left."""
        for channel in self._channels:
            channel.load, channel.allowance = 0, 1

    def summary(self) -> dict[str, Any]:
        """Return transport, batches and reconnects, in total and by server."""
        return {
            "transport": _one_of(channel.transport for channel in self),
            "rows_come": _one_of(channel.rows for channel in self),
            "reconnects": sum(max(channel.reconnects, 0) for channel in self),
            "servers": [
                {
                    "server": str(channel),
                    "transport": channel.transport,
                    "rows": channel.rows,
                    "batches": channel.batches,
                    "in_flight": channel.load,
                    "window": channel.window,
                    "reconnects": max(channel.reconnects, 0),
                }
                for channel in self
            ],
        }

    def close(self) -> list[Callable[[], None]]:
        """Open no more channels. Return functions that close the open ones."""
        self._closed.set()
        # They refer back to what refers to this pool, and with it to all buffers, until garbage is collected.
        self.on_change, self.on_leave = self._lock.notify_all, _ignored
        left = [(channel.server, self._leave(channel)) for channel in self._channels]
        return [partial(close_channel, server, opened.id) for server, opened in left if opened is not None]

    def _leave(self, channel: Channel) -> OpenChannel | None:
        """Stop using a channel, and return it where it was open."""
        opened, channel.opened = channel.opened, None
        if opened is not None:
            self._heartbeats.drop(channel.server.number, opened.id)
            channel.down_since = time.monotonic()
        return opened

    def _open(self, channel: Channel, before: OpenChannel | None, *, pause_s: float) -> None:
        channel.down_since = channel.down_since or time.monotonic()
        thread = threading.Thread(
            target=copy_context().run,
            args=(self._make, channel, before, pause_s),
            name=f"open channel at {channel.server.rank}",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError as error:  # The system has no thread to give.
            channel.failure = rule_of(FaultKind.RESOURCES).error(f"{channel}: {error}")
            channel.retry_at = time.monotonic() + _REFUSED_S
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
        """Return a channel, or an error that a retry cannot resolve.

        A server that is away is tried for as long as it is a member: it may be the one that is needed next.
        """
        backoff = Backoff()
        while True:
            result = self._attempt(channel)
            if not isinstance(result, Exception):
                return result
            if not may_pass(result) or channel.gone:
                return result
            self._tried(channel, result)
            if self._closed.wait(backoff.next_s()):
                return result

    def _attempt(self, channel: Channel) -> OpenChannel | Exception:
        try:
            return open_channel(channel.server, self._config, defers=self._defers, contact=channel.contact)
        except Exception as error:
            channel.server.client.connect_anew()  # No call under way is in need of the old connection.
            return strip_traceback(error)

    def _tried(self, channel: Channel, error: Exception) -> None:
        with self._lock:
            channel.failure = error

    def _opened(self, channel: Channel, result: OpenChannel | Exception) -> bool:
        """Record the result of the attempts. Return whether the channel is in use now."""
        with self._lock:
            channel.opening = False
            if isinstance(result, Exception):
                channel.failure = result
                channel.retry_at = time.monotonic() + _REFUSED_S
            elif not (self.closed or channel.gone):
                channel.opened, channel.failure, channel.probing = result, None, False
                channel.responds()
                self._heartbeats.keep(channel.server.number, result.id, result.lease_s)
                channel.reconnects += 1
                if channel.reconnects:
                    _LOGGER.warning("%s: back", str(channel))
            self.on_change()
            return channel.opened is result


def _one_of(values: Iterable[str]) -> str:
    """Return the value that all open channels share, or ``"mixed"``; ``"none"`` where no channel is open."""
    found = set(values) - {"none"} or {"none"}
    return found.pop() if len(found) == 1 else "mixed"


def _ignored(opened: OpenChannel) -> None:
    """Do nothing."""
