"""Batches from storage servers, behind the face that every source has."""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from gigl_client.arrivals import Arrivals
from gigl_client.book import Book
from gigl_client.exchange import FETCHERS, Exchange
from gigl_client.landing import SPARE_SLOTS, PrivateLanding, slot_bytes_of
from gigl_client.lines import Lines
from gigl_client.patience import Patience
from gigl_client.terms import Terms
from gigl_loader.sampling.deferred_features import Completion
from gigl_loader.sampling.source import check_epoch
from gigl_loader.sampling.store import WireCounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_client.cluster import Cluster
    from gigl_loader.channel.frame import Frame
    from gigl_loader.options import SamplingPlan
    from gigl_loader.sampling.partitioned import PartitionedStore
    from gigl_loader.sampling.schedule import BatchRequest, Schedule

__all__ = ["RemoteSource"]

_ROWS_S = 60.0
"""Owners of rows are asked for so long, then the batch is asked for again: few threads wait for them."""


class RemoteSource:
    """Batches that storage servers sample, in as many calls as may be in flight.

    A server that goes away is looked for again, and asked again for what had not come; so may others be,
    as any server can sample any batch. Which one did makes no difference to a batch.
    """

    def __init__(
        self,
        cluster: Cluster,
        plan: SamplingPlan,
        schedule: Schedule,
        *,
        key: str,
        name: str,
        share: int = 1,
        prefetch: int = 4,
        in_order: bool = True,
        channel_bytes: int = 4 << 30,
        transport: str = "auto",
        rows: str = "auto",
        timeout_s: float = 300.0,
    ) -> None:
        """Have channels opened at all servers. Returns before they are; how that went shows in ``receive``.

        ``prefetch`` batches per server are in flight; 0 asks for each when it is needed. ``channel_bytes``
        of address space are set aside for frames. ``timeout_s`` is for how long servers are looked for
        that do not answer.
        """
        num_servers = len(cluster.servers)
        slots = prefetch + SPARE_SLOTS
        terms = Terms(
            key=key,
            name=name,
            plan=plan.to_json(),
            graph=cluster.graph_digest,
            share=share,
            prefetch=prefetch,
            transport=transport,
            rows=rows,
            slots=slots,
            slot_bytes=slot_bytes_of(channel_bytes // num_servers, slots),
            timeout_s=timeout_s,
        )
        has_columns = any(plan.node_columns.values()) or any(plan.edge_columns.values())
        self._cluster = cluster
        self._schedule = schedule
        self._pid = os.getpid()
        self._bytes = 0
        self._batches = 0
        self._seconds_waiting = 0.0
        self._landing = PrivateLanding(channel_bytes, num_servers * prefetch + SPARE_SLOTS)
        self._store: PartitionedStore | None = None
        completion = None
        if has_columns and (rows == "direct" or (rows == "auto" and num_servers > 1)):
            self._store = cluster.open_store(timeout_s=min(timeout_s, _ROWS_S), concurrency=FETCHERS)
            completion = Completion(cluster.schema, plan, self._store)
        self._arrivals = Arrivals(cluster.schema.edge_dir, self._landing, completion, timeout_s=timeout_s)
        self._changed = threading.Condition(threading.RLock())
        self._book = Book(schedule.num_batches, in_order=in_order)
        self._lines = Lines(
            cluster.servers,
            terms,
            self._changed,
            has_columns=has_columns,
            heartbeats=cluster.heartbeats,
        )
        self._exchange = Exchange(
            self._lines,
            self._book,
            self._arrivals,
            self._changed,
            name=name,
            request=_requests(schedule),
            timeout_s=timeout_s,
        )
        self._patience = Patience(self._lines, self._book, self._changed, timeout_s=timeout_s)
        self._end = weakref.finalize(self, _end, self._exchange, self._store, self._pid)
        with self._changed:
            self._lines.open_all()

    @property
    def num_batches(self) -> int:
        return self._schedule.num_batches

    def start_epoch(self, epoch: int, first_batch: int = 0) -> None:
        """Go to ``first_batch`` of ``epoch`` and have the servers begin. Does not wait for them."""
        self._check_usable()
        check_epoch(epoch, first_batch, num_batches=self.num_batches)
        self._exchange.start_epoch(epoch, first_batch)

    def wait_until_up(self, timeout: float) -> None:
        """Wait until a channel is open at every server. Raises what keeps one from it."""
        self._check_usable()
        deadline = time.monotonic() + timeout
        with self._changed:
            self._lines.open_all()
            while not all(line.opened for line in self._lines):
                self._check_usable()
                self._patience.wait(deadline, timeout)

    def receive(self, timeout: float) -> Frame:
        self._check_usable()
        if not self._book.remaining:
            raise ValueError(f"all {self.num_batches} batches of the epoch were received: start an epoch")
        began = time.monotonic()
        try:
            frame = self._received(timeout)
        finally:
            self._seconds_waiting += time.monotonic() - began
        self._batches += 1
        self._bytes += frame.nbytes
        return frame

    def close(self) -> None:
        if self._end.detach() is not None:
            _end(self._exchange, self._store, self._pid, wait=True)

    def stats(self) -> dict[str, Any]:
        exchange, arrivals = self._exchange, self._arrivals
        rows = WireCounts() if self._store is None else self._store.wire()
        with self._changed:
            return {
                "batches": self._batches,
                "bytes": self._bytes,
                "seconds_waiting": self._seconds_waiting,
                "seconds_sampling": arrivals.sampling_s,
                "cpu_seconds": 0.0,
                "cpu_sampling": 0.0,
                "cpu_gathering": rows.placing_ns / 1e9,
                "cpu_wire": exchange.cpu_s,
                "wire_bytes_in": arrivals.wire_bytes + rows.bytes_in,
                "wire_bytes_out": exchange.bytes_out + rows.bytes_out,
                "peer_calls": exchange.calls + rows.calls,
                "copied_out": self._landing.crowded_out,
                "oversize": self._landing.oversize,
                "restarts": 0,
                "workers": [],
                "retries": exchange.retries + rows.retries,
                "damaged": exchange.damaged + rows.damaged,
                **self._lines.summary(),
            }

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ValueError(f"the channels belong to process {self._pid}: build a loader in this process")
        if not self._end.alive:
            raise ValueError("the loader or its dataset was closed: connect again, and build a loader")

    def _received(self, timeout: float) -> Frame:
        deadline = time.monotonic() + timeout
        exchange = self._exchange
        with self._changed:
            exchange.needed = True
            self._lines.open_all()  # Those that were given up are tried again.
            try:
                while (ready := exchange.take()) is None:
                    self._check_usable()
                    self._patience.wait(deadline, timeout)
            finally:
                exchange.needed = False
        if isinstance(ready.frame, Exception):
            raise ready.frame
        return ready.frame


def _requests(schedule: Schedule) -> Callable[[int, int], BatchRequest]:
    """Return what gives the batches of a schedule. Where seeds are drawn by weights, they are drawn here."""
    draw = schedule.draw
    if draw is None:
        return schedule.request
    weights, sums = np.empty(len(draw)), np.empty(len(draw))
    return lambda epoch, batch: draw.request(schedule.request(epoch, batch), weights, sums)


def _end(exchange: Exchange, store: PartitionedStore | None, pid: int, *, wait: bool = False) -> None:
    """End everything. In a forked child it is the parent's."""
    if os.getpid() == pid:
        exchange.close(*([] if store is None else [store.close]), wait=wait)
