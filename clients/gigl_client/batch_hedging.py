"""Hedging of batches: a late batch that the trainer waits for is requested from a second server."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gigl_loader.rpc.hedging import Hedging

if TYPE_CHECKING:
    from gigl_client.in_flight import InFlight, InFlightRequest

__all__ = ["BatchHedging"]

_KIND = "batch"


class BatchHedging:
    """Says which request is late. Guarded by the lock of the dispatcher."""

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._hedging = Hedging()
        self._refused = -math.inf
        """When the request was sent for which the budget had no hedge left."""
        self.count = 0
        """Batches that were requested from a second server."""

    def landed(self, sent: InFlightRequest, now: float) -> None:
        """Record how long a received batch took."""
        self._hedging.record(_KIND, now - sent.since)

    def due(self, now: float) -> InFlightRequest | None:
        """Return the request that should be sent to a second server now.

        It is later than 95 % of the requests, and within the budget of 5 % of them; or so late that its
        server counts as stalled, whatever the budget.
        """
        sent = self._awaited()
        if sent is None or now < self.at():
            return None
        if now - sent.since < self._hedging.stalled_s(_KIND) and not self._hedging.take():
            self._refused = sent.since
            return None
        return sent

    def at(self) -> float:
        """Return when a request is due (monotonic). Infinity where none is awaited."""
        sent = self._awaited()
        if sent is None:
            return math.inf
        delay = self._hedging.delay_s(_KIND)
        if delay is None or self._refused == sent.since:
            delay = self._hedging.stalled_s(_KIND)
        return sent.since + delay

    def _awaited(self) -> InFlightRequest | None:
        """Return the request that the trainer waits for, unless it was sent to a second server before."""
        sent = self._in_flight.oldest_awaited()
        return None if sent is None or sent.request.batch in self._in_flight.hedged else sent
