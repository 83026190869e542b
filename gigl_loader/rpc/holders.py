"""Holders of partitions: the servers that have each, which of them respond, and the order to try them in."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gigl_loader.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gigl_loader.rpc.endpoint import Endpoint

_LOGGER = logging.getLogger(__name__)

_FIRST_AVOIDED_S, _LONGEST_AVOIDED_S = 0.5, 10.0


@dataclass(slots=True)
class _Avoided:
    """A holder that failed."""

    until: float
    backoff: Backoff


class Holders:
    """Servers of a graph, ordered for one caller by rendezvous hash. Thread-safe.

    Every caller and partition has an order of its own, so that load is even, and the loss of a holder moves
    only its own load, evenly to the others. A holder that failed comes last for a while; then one request
    tries it again.
    """

    def __init__(
        self, endpoints: Iterable[Endpoint], *, key: str, clock: Callable[[], float] | None = None
    ) -> None:
        """``key`` names the caller: callers with different keys have different orders."""
        self._key = key
        self._clock = clock or time.monotonic
        self._lock = threading.Lock()
        self._avoided: dict[str, _Avoided] = {}
        self._orders: dict[int | None, tuple[Endpoint, ...]] = {}
        self._endpoints: tuple[Endpoint, ...] = ()
        self.wire_version = 0
        """Version of requests that all servers read, as agreed upon. 0: the newest of this build."""
        self.update(endpoints)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All servers."""
        return self._endpoints

    def update(self, endpoints: Iterable[Endpoint]) -> None:
        """Replace the servers. The failures of servers that stay are kept."""
        with self._lock:
            before = {each.control_address: each.incarnation for each in self._endpoints}
            self._endpoints = tuple(endpoints)
            versions = (each.wire_version for each in self._endpoints)
            self.wire_version = min(filter(None, versions), default=0)
            self._orders.clear()
            now = {each.control_address: each.incarnation for each in self._endpoints}
            for address in list(self._avoided):
                if now.get(address) != before.get(address):  # It left, or it was started again.
                    del self._avoided[address]

    def of(self, partition: int | None) -> tuple[Endpoint, ...]:
        """Return the holders of a partition in the order to try them in. ``None``: all servers.

        Holders that failed lately come last, ordered by when they may be tried again. A holder whose pause is
        over takes its ranked place for this one call.
        """
        with self._lock:
            order = self._orders.get(partition)
            if order is None:
                order = self._orders[partition] = self._ranked(partition)
            if not self._avoided or len(order) < 2:
                return order
            return self._healthy_first(order)

    def holding(self, partition: int | None) -> tuple[Endpoint, ...]:
        """Return the holders of a partition, whether they answer or not. ``None``: all servers."""
        return tuple(each for each in self._endpoints if partition is None or partition in each.partitions)

    def failed(self, holder: Endpoint, reason: str) -> None:
        """Record that a holder did not answer: avoid it, for longer after each failure."""
        address = holder.control_address
        with self._lock:
            avoided = self._avoided.get(address)
            if avoided is None:
                backoff = Backoff(first_s=_FIRST_AVOIDED_S, longest_s=_LONGEST_AVOIDED_S)
                self._avoided[address] = _Avoided(self._clock() + backoff.next_s(), backoff)
            others = [each for each in self._endpoints if each.control_address != address]
            replicated = any(set(each.partitions) & set(holder.partitions) for each in others)
        if avoided is None and replicated:
            _LOGGER.warning("%s does not answer; other holders are asked: %s", holder, reason)

    def answered(self, holder: Endpoint) -> None:
        """Record that a holder answered: use it again."""
        if not self._avoided:
            return
        with self._lock:
            back = self._avoided.pop(holder.control_address, None) is not None
        if back:
            _LOGGER.info("%s answers again", holder)

    def _ranked(self, partition: int | None) -> tuple[Endpoint, ...]:
        by_address = {each.control_address: each for each in self.holding(partition)}
        place = "" if partition is None else str(partition)
        return tuple(by_address[address] for address in rendezvous_order(by_address, self._key, place))

    def _healthy_first(self, order: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
        now = self._clock()
        healthy, failed = [], []
        for holder in order:
            avoided = self._avoided.get(holder.control_address)
            if avoided is None:
                healthy.append(holder)
            elif avoided.until <= now:
                avoided.until = now + avoided.backoff.next_s()
                healthy.append(holder)
            else:
                failed.append(holder)
        failed.sort(key=lambda holder: self._avoided[holder.control_address].until)
        return (*healthy, *failed)


def rendezvous_order(names: Iterable[str], *key: str) -> list[str]:
    """Return ``names`` by descending weight, a hash of name and key (highest random weight hashing).

    Adding or removing a name does not change the order of the other names.
    """
    text = "\0".join(key)

    def weight(name: str) -> bytes:
        return hashlib.blake2b(f"{text}\0{name}".encode(), digest_size=8).digest()

    return sorted(names, key=lambda name: (weight(name), name), reverse=True)
