"""Source of batches from storage servers."""

from __future__ import annotations

import os
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gigl_client.channel_pool import ChannelPool
from gigl_client.channels import MAX_IN_FLIGHT, SPARE_SLOTS, ChannelConfig, PrivateBuffers
from gigl_client.discovery import servers_of_rank
from gigl_client.dispatcher import Dispatcher
from gigl_client.in_flight import BatchWait, InFlight
from gigl_client.receiver import COMPLETING, Receiver
from gigl_loader.channel.ring import slot_bytes_of
from gigl_loader.sampling.frame_writer import Completion
from gigl_loader.sampling.source import check_epoch
from gigl_loader.sampling.store import WireCounts

if TYPE_CHECKING:
    from gigl_client.cluster import Cluster
    from gigl_loader.channel.frame import Frame
    from gigl_loader.sampling.partitioned import PartitionedStore
    from gigl_loader.sampling.plan import BatchPlan
    from gigl_loader.sampling.request import BatchRequest
    from gigl_loader.sampling.schedule import Schedule
    from gigl_loader.tracing import BatchSpans

_ROWS_S = 60.0
"""Timeout of a request for deferred features. The batch is then retried: only few threads may wait."""

_SHARE_OF_ROWS = 0.4
"""Of the time that a loader waits, for a request of a window's rows: it is sent again, and once the time is
over, the error names the owner."""


class RemoteSource:
    """Batches that storage servers sample, with several requests in flight.

    A lost server is reconnected, and its requests are sent again, to it or to another server: any server can
    sample any batch, and every server returns the same bytes.
    """

    def __init__(
        self,
        cluster: Cluster,
        plan: BatchPlan,
        schedule: Schedule,
        *,
        key: str,
        name: str,
        share: int = 1,
        interactive: bool = False,
        prefetch: int = 4,
        most: int | None = None,
        in_order: bool = True,
        channel_bytes: int = 4 << 30,
        transport: str = "auto",
        rows: str = "auto",
        complete: bool = True,
        values: bool = False,
        timeout_s: float = 300.0,
        rank: int = 0,
        world_size: int = 1,
        spans: BatchSpans | None = None,
    ) -> None:
        """Start to open a channel to each server of the rank. Returns before they are open.

        ``receive`` raises failures. ``prefetch`` batches per server are in flight, ``MAX_IN_FLIGHT`` in all;
        0 requests each batch when the trainer waits for it. Up to ``most`` are in flight while the trainer
        waits and the servers have free threads; by default no more than ``prefetch``. ``channel_bytes`` of
        address space are reserved for frames; of large ones, fewer are in flight. A server that does not
        respond is retried for ``timeout_s``.

        ``complete=False`` delivers frames with deferred features, from servers on this host, too; ``store``
        has the features. Frames of a plan without columns have none. ``values``: frames that are completed
        here have the values of quantised columns beside the codes.
        """
        choose = partial(servers_of_rank, rank=rank, world_size=world_size)
        num_servers = len(choose(cluster.servers))
        most = max(prefetch, prefetch if most is None else most)
        slots = most + SPARE_SLOTS
        config = ChannelConfig(
            key=key,
            name=name,
            plan=plan.to_json(),
            graph=cluster.graph_digest,
            share=share,
            interactive=interactive,
            prefetch=prefetch,
            most=most,
            transport=transport,
            rows=rows if complete else "direct",
            slots=slots,
            slot_bytes=slot_bytes_of(channel_bytes // num_servers, prefetch + SPARE_SLOTS),
            channel_bytes=channel_bytes,
            timeout_s=timeout_s,
            first_server=rank,
        )
        defers = config.may_defer(whole=cluster.holds_all_everywhere, has_columns=bool(plan.columns))
        self._cluster = cluster
        self._requests = _Requests(schedule)
        self._pid = os.getpid()
        self._bytes = 0
        self._batches = 0
        self._seconds_waiting = 0.0
        at_first, at_most = (
            min(num_servers * each, MAX_IN_FLIGHT) + SPARE_SLOTS for each in (prefetch, most)
        )
        self._buffers = PrivateBuffers(channel_bytes // at_first * at_most, at_most)
        self.store: PartitionedStore | None = None
        """Owners of deferred features."""
        if defers:
            rows_s = min(timeout_s if complete else _SHARE_OF_ROWS * timeout_s, _ROWS_S)
            self.store = cluster.open_store(timeout_s=rows_s, concurrency=COMPLETING)
        completion = Completion(cluster.schema, plan, values=values) if defers else None
        self._receiver = Receiver(
            completion if completion is not None and not complete else plan.frame(cluster.schema),
            self._buffers,
            completion if complete else None,
            self.store,
        )
        self._changed = threading.Condition(threading.RLock())
        self._in_flight = InFlight(schedule.num_batches, in_order=in_order, spans=spans)
        self._channels = ChannelPool(
            cluster.servers,
            config,
            self._changed,
            defers=defers,
            heartbeats=cluster.heartbeats,
            choose=choose,
        )
        self._dispatcher = Dispatcher(
            self._channels,
            self._in_flight,
            self._receiver,
            self._changed,
            name=name,
            request=self._requests,
            timeout_s=timeout_s,
        )
        self._batch_wait = BatchWait(
            self._channels,
            self._in_flight,
            self._changed,
            check_at=self._dispatcher.check_at,
        )
        self._end = weakref.finalize(self, _end, self._dispatcher, self.store, self._pid)
        cluster.follow(self._channels)
        self._channels.use(cluster.servers)  # Also servers that joined meanwhile.

    @property
    def num_batches(self) -> int:
        return self._requests.schedule.num_batches

    def start_epoch(self, epoch: int, first_batch: int = 0, origin: int = 0) -> None:
        """Go to ``first_batch`` of ``epoch`` and send the first requests. Does not wait for the servers."""
        self._check_usable()
        schedule = self._requests.schedule.from_origin(origin)
        check_epoch(epoch, first_batch, num_batches=schedule.num_batches)
        with self._changed:
            self._requests.schedule, self._in_flight.num_batches = schedule, schedule.num_batches
            self._dispatcher.start_epoch(epoch, first_batch)

    def wait_until_up(self, timeout: float) -> None:
        """Wait until a channel is open at every server. Raises what keeps one from it.

        A server that does not respond is not waited for where other servers hold its partitions.
        """
        self._check_usable()
        deadline = time.monotonic() + timeout
        with self._changed:
            self._channels.open_all()
            while self._channels.needed() or not all(
                channel.opened or channel.failure for channel in self._channels
            ):
                self._check_usable()
                self._batch_wait.wait(deadline, timeout)
            self._batch_wait.check_refused()

    def receive(self, timeout: float) -> Frame:
        self._check_usable()
        if not self._in_flight.remaining:
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
            _end(self._dispatcher, self.store, self._pid, wait=True)

    def stats(self) -> dict[str, Any]:
        dispatcher, receiver = self._dispatcher, self._receiver
        rows = WireCounts() if self.store is None else self.store.wire()
        with self._changed:
            return {
                "batches": self._batches,
                "bytes": self._bytes,
                "seconds_waiting": self._seconds_waiting,
                "seconds_sampling": receiver.sampling_s,
                "cpu_seconds": 0.0,
                "cpu_sampling": 0.0,
                "cpu_gathering": rows.placing_ns / 1e9,
                "cpu_wire": dispatcher.cpu_s,
                "wire_bytes_in": receiver.wire_bytes + rows.bytes_in,
                "wire_bytes_out": dispatcher.bytes_out + rows.bytes_out,
                "peer_calls": dispatcher.calls + rows.calls,
                "copied_out": self._buffers.crowded_out,
                "oversize": self._buffers.oversize,
                "restarts": 0,
                "workers": [],
                "retries": dispatcher.retries + rows.retries,
                "damaged": dispatcher.damaged + rows.damaged,
                "hedged": dispatcher.hedged + rows.hedged,
                **self._channels.summary(),
            }

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ValueError(f"the channels belong to process {self._pid}: build a loader in this process")
        if not self._end.alive:
            raise ValueError("the loader or its dataset was closed: connect again, and build a loader")

    def _received(self, timeout: float) -> Frame:
        deadline = time.monotonic() + timeout
        dispatcher = self._dispatcher
        with self._changed:
            dispatcher.needed = True
            self._channels.open_all()  # Also channels that were given up.
            try:
                while (ready := dispatcher.take()) is None:
                    self._check_usable()
                    self._batch_wait.wait(deadline, timeout)
            finally:
                dispatcher.needed = False
        if isinstance(ready, Exception):
            raise ready
        return ready


class _Requests:
    """Requests by epoch and batch. Guarded by the lock of the dispatcher."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        """Of the epoch under way."""
        count = 0 if schedule.draw is None else len(schedule.draw)
        self._weights, self._sums = np.empty(count), np.empty(count)

    def __call__(self, epoch: int, batch: int) -> BatchRequest:
        """Return a request. Its seeds are drawn here, where they are weighted."""
        request, draw = self.schedule.request(epoch, batch), self.schedule.draw
        return request if draw is None else draw.request(request, self._weights, self._sums)


def _end(dispatcher: Dispatcher, store: PartitionedStore | None, pid: int, *, wait: bool = False) -> None:
    """Close the dispatcher and the store. In a forked child they belong to the parent: do nothing."""
    if os.getpid() == pid:
        dispatcher.close(*([] if store is None else [store.close]), wait=wait)
