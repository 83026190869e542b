"""Wait for a batch, with a deadline and an error that says why the batch was not received."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gigl_client.channel import may_pass
from gigl_loader.errors import SamplingError, StorageUnavailable

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from gigl_client.batch_hedging import BatchHedging
    from gigl_client.channel import Channel
    from gigl_client.channel_pool import ChannelPool
    from gigl_client.in_flight import InFlight, RetryState

__all__ = ["BatchWait"]

_MAX_NAMED = 8
_MAX_WAIT_S = 3600.0  # At a time: a condition cannot wait for infinity.


class BatchWait:
    """Waits for responses of servers. Guarded by the lock of the dispatcher."""

    def __init__(
        self,
        channels: ChannelPool,
        in_flight: InFlight,
        changed: threading.Condition,
        hedging: BatchHedging,
        *,
        fetchers_stuck_at: Callable[[], float],
        check_at: Callable[[], float],
        timeout_s: float,
    ) -> None:
        """A server that does not respond, or a batch that fails to arrive, is retried for ``timeout_s``.

        ``fetchers_stuck_at`` returns when another thread is needed that fetches frames, ``check_at`` when to
        look whether a request was lost (monotonic).
        """
        self._channels = channels
        self._in_flight = in_flight
        self._changed = changed
        self._hedging = hedging
        self._fetchers_stuck_at = fetchers_stuck_at
        self._check_at = check_at
        self._timeout_s = timeout_s
        self._calm = 0.0
        self._received = -1

    def wait(self, deadline: float, timeout: float) -> None:
        """Wait until a response arrives, a channel changes or a backoff ends.

        Raises ``StorageUnavailable`` where a server or the owner of nodes was retried for ``timeout_s``, or
        where a retry cannot help; ``ValueError`` for a mistake of the caller; ``TimeoutError`` at
        ``deadline`` (monotonic), which is ``timeout`` s after the wait began. The caller may wait again
        after any of them.
        """
        now = time.monotonic()
        if self._in_flight.taken != self._received:  # A batch arrived: the time for retries begins anew.
            self._received, self._calm = self._in_flight.taken, now
        self._check_channels(now, began=deadline - timeout)
        retry = self._in_flight.delaying_retry()
        give_up = float("inf") if retry is None else max(retry[1].since, self._calm) + self._timeout_s
        if retry is not None and now >= give_up:
            self._calm = now
            raise _unavailable(self._in_flight.epoch, *retry, now)
        if now >= deadline:
            raise self._timed_out(now, timeout, retry)
        until = min(
            deadline,
            give_up,
            self._in_flight.next_retry(now),
            self._hedge_at(now),
            self._fetchers_stuck_at(),
            self._check_at(),
        )
        self._changed.wait(min(max(until - now, 0.001), _MAX_WAIT_S))

    def _check_channels(self, now: float, *, began: float) -> None:
        """Raise the error that ended the attempts to open a channel. The next wait starts them again.

        This wait starts them again itself where the attempts began before it: an earlier wait has raised
        their error, or no wait needed the channel.
        """
        for channel in self._needed():
            error = channel.failure
            if error is not None and not channel.opening:
                if may_pass(error) and channel.tries_since < began:
                    self._channels.open_all()
                    return
                channel.failure = None
                raise _not_reached(channel, error, now) if may_pass(error) else _refused(channel, error)

    def _hedge_at(self, now: float) -> float:
        """Return when to look for a late request. One that no other server can take is left to its own."""
        at = self._hedging.at()
        return at if at > now else float("inf")

    def _timed_out(self, now: float, timeout: float, retry: tuple[int, RetryState] | None) -> Exception:
        for channel in self._needed():
            if channel.failure is not None and (retry is None or channel.down_since < retry[1].since):
                return _not_reached(channel, channel.failure, now)
        if retry is not None:  # No server is away for longer.
            return _unavailable(self._in_flight.epoch, *retry, now)
        waiting = _waiting_text(self._channels, self._in_flight, timeout, now)
        latest = max(self._channels, key=lambda channel: channel.fault_at, default=None)
        if latest is None or latest.last_fault is None or latest.fault_at < now - timeout:
            return TimeoutError(waiting)
        return StorageUnavailable(f"{_named(latest, latest.last_fault)}; {waiting}")

    def check_refused(self) -> None:
        """Raise the error of a server that refused, where a retry cannot help."""
        for channel in self._channels:
            error = channel.failure
            if channel.opened is None and error is not None and not channel.opening and not may_pass(error):
                channel.failure = None
                raise _refused(channel, error)

    def _needed(self) -> list[Channel]:
        """Return the needed channels that are lost, longest first: other servers may wait for that one."""
        return sorted(self._channels.needed(), key=lambda channel: channel.down_since)


def _refused(channel: Channel, error: Exception) -> Exception:
    """Return the exception for an error that a retry cannot resolve.

    Never a plain ``SamplingError``, which means that a batch was consumed.
    """
    if isinstance(error, SamplingError):
        return StorageUnavailable(_named(channel, error))
    return error


def _not_reached(channel: Channel, error: Exception, now: float) -> StorageUnavailable:
    seconds = now - channel.down_since
    return StorageUnavailable(f"{_named(channel, error)} (away for {seconds:.1f} s)")


def _named(channel: Channel, error: Exception) -> str:
    text = str(error)
    return text if str(channel) in text else f"{channel}: {text}"


def _unavailable(epoch: int, batch: int, retry: RetryState, now: float) -> StorageUnavailable:
    seconds = now - retry.since
    return StorageUnavailable(
        f"batch {batch} of epoch {epoch}: {retry.error} (asked for it for {seconds:.1f} s)"
    )


def _waiting_text(channels: ChannelPool, in_flight: InFlight, timeout: float, now: float) -> str:
    """Return a line with the batch that is awaited, and the open requests of each server with their age."""
    missing = f"no batch within {timeout:g} s ({in_flight.awaited} of epoch {in_flight.epoch})"
    if in_flight.epoch < 0:
        missing = f"the storage servers were not ready within {timeout:g} s"
    return "; ".join([missing, *(f"{channel} {_state(channel, in_flight, now)}" for channel in channels)])


def _state(channel: Channel, in_flight: InFlight, now: float) -> str:
    if channel.opened is None:
        return f"is away for {now - channel.down_since:.1f} s"
    requests = sorted(
        (sent for sent in in_flight.sent.values() if sent.channel is channel),
        key=lambda sent: sent.request.batch,
    )
    if not requests:
        return "is asked for nothing"
    named = ", ".join(f"{sent.request.batch} ({now - sent.since:.1f} s)" for sent in requests[:_MAX_NAMED])
    more = f" and {len(requests) - _MAX_NAMED} others" if len(requests) > _MAX_NAMED else ""
    return f"is asked for batches {named}{more}"
