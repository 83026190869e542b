"""Sampling service: jobs, their channels, and the threads that sample for all jobs."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from gigl_loader.processes import release_freed_memory
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.tokens import EVERYTHING
from gigl_loader.threads import start_thread
from gigl_server.admission import LOCAL, Identity, Limits, Quota
from gigl_server.frames.memory import BufferPool, SentFrames
from gigl_server.sampling.frame_maker import FrameMaker, SharedFrames, request_key
from gigl_server.sampling.journal import Journal
from gigl_server.sampling.sampler_pool import EdgeAllowances, SamplerPool
from gigl_server.sampling.scheduler import Scheduler
from gigl_server.sampling.time_slices import extra_threads, places
from gigl_server.sampling.worker_pool import Housekeeper, WorkerPool
from gigl_server.sessions.channel import ChannelLoad, Result, SampleTask
from gigl_server.sessions.registry import (
    Sessions,
    check_channel_options,
    check_graph,
    check_key,
    check_slot,
    make_ring,
    read_producer_plan,
    read_request,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from gigl_loader.graph.graph import Graph
    from gigl_loader.rpc.graph_store_pb2 import SampleRequest
    from gigl_loader.rpc.tokens import Grant
    from gigl_loader.sampling.partitioned import PartitionedStore
    from gigl_loader.tracing import ServedSpan
    from gigl_server.counters import Counters, DurationCounts
    from gigl_server.frames.ring import FrameRing
    from gigl_server.sessions.channel import Channel, ChannelOptions

_LOGGER = logging.getLogger(__name__)

THREADS_PER_WORKER = 4
"""Where other servers hold partitions: a sampling thread waits for them most of the time."""

_JOIN_S = 5.0
_IDLE_S = 60.0
_NICE = 5
"""Of threads that sample for all channels, so that those for batches on request have a core sooner."""
_RELEASE_EVERY_S = 10.0
"""While idle. Freed messages of refused callers stay with the process: 86 MB after 16 of 16 MiB."""
_RELEASE_BYTES = 64 << 20
"""Freed bytes of samplers that are returned to the system even while batches are sampled."""
_LONG_PAUSE = 0.25  # Share of a lease.
_UNREAD_S = 5.0
"""Age from which the call of a frame that is not read may end for a waiting job: trainers read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLoad:
    """Load of the service. Sums are since its start, over open and closed channels."""

    workers: int
    """Number of sampling threads."""
    busy: int
    jobs: int
    producers: int
    ready_bytes: int
    """Bytes of frames that are sampled and not read yet."""
    frame_bytes: int
    """Bytes of frames that are being written or sent."""
    ring_bytes: int
    """Committed bytes of rings."""
    shared_bytes: int
    """Bytes of frames that are kept for equal requests of other jobs."""
    batches: int
    shared: int
    """Of these, those whose frames were those of equal requests."""
    nbytes: int
    sampling_s: float
    waiting_s: float
    channels: tuple[ChannelLoad, ...]
    topology_partitions: int
    """Partitions whose topology is mapped, its own among them."""
    durations: Mapping[tuple[str, str], DurationCounts]
    """Durations of batches, by ``DURATIONS`` and ``KINDS`` of the scheduler."""


class SamplingService:
    """Samples for any number of jobs. Thread-safe. A job is identified by its key (``rpc.job.job_key``)."""

    def __init__(
        self,
        graph: Graph,
        *,
        workers: int,
        limits: Limits | None = None,
        counters: Counters,
        journal: Journal | None = None,
        allowed_samplers: Collection[str] = (),
        grant_of: Callable[[Identity], Grant] = lambda _: EVERYTHING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Refuses to sample until ``make_ready``. CPU time of sampling is added to ``counters``.

        ``journal`` notes batches under way, to find a batch that kills the process. ``allowed_samplers`` are
        the users' classes that may be imported here. ``grant_of`` returns the quotas of an owner's token.
        """
        if workers < 1:
            raise ValueError(f"a server needs at least 1 worker, got {workers}")
        self.state: Literal["starting", "ready", "draining", "closed"] = "starting"
        self.ring_door = ""
        """Name of the socket of the ring server. While it is empty, no channel gets a ring."""
        self.limits = limits or Limits()
        self.frames = SentFrames(counters, clock)
        self.rings = Quota("bytes of rings", self.limits.ring_memory)
        self._graph = graph
        self._allowed_samplers = frozenset(allowed_samplers)
        self._workers = workers
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions = Sessions(self.limits, clock, grant_of)
        self._memory = BufferPool(self.limits.frame_memory)
        self._shared = SharedFrames(
            self.limits.shared_frame_memory,
            keep_s=self.limits.shared_frame_s,
            channels=self._sessions.channels,
            lock=self._lock,
            clock=clock,
        )
        most_threads = workers * (1 if graph.is_whole else THREADS_PER_WORKER)
        scratch = EdgeAllowances(self.limits, places(most_threads), clock)
        self._scheduler = Scheduler(
            self._lock,
            self.frames,
            self._memory,
            self._shared,
            limits=self.limits,
            scratch=scratch,
            clock=clock,
            grant_of=grant_of,
        )
        self._samplers = SamplerPool(graph, keep_bytes=self.limits.scratch_memory // 2)
        self._journal = journal or Journal.none()
        self._maker = FrameMaker(
            self._samplers,
            self._memory,
            self._shared,
            counters,
            most_edges=scratch.most,
            most_bytes=self.limits.batch_bytes,
            most_draws=self.limits.batch_edges,
            journal=self._journal,
            grant_of=grant_of,
        )
        self._store: PartitionedStore | None = None
        self._pool: WorkerPool | None = None
        self._turns = threading.Thread(target=self._scheduler.keep_turns, name="sampling turns", daemon=True)
        self._num_threads = 0
        self._released = clock()
        self._freed_bytes = 0
        """Bytes of samplers that were freed since ``_released``. A lost update delays the release only."""
        self._housekeeper = Housekeeper(self.sweep, paused=self._resume)

    def make_ready(self, open_store: Callable[[], PartitionedStore] | None) -> None:
        """Begin to sample: over a store, which is closed with the service, or over the whole graph."""
        if open_store is None and not self._graph.is_whole:
            raise ValueError(f"only partitions {list(self._graph.parts)} lie here: the others need a store")
        store = None if open_store is None else open_store()
        threads = self._workers * (THREADS_PER_WORKER if store is not None and store.remote else 1)
        with self._lock:
            if self.state == "starting":
                self._store = store
                self._samplers.sample_from(self._graph, store)
                self._num_threads = threads
                self._scheduler.run_at_once(threads)
                self._pool = WorkerPool(self._work)
                self._pool.start(places(threads), self._scheduler.next, nice=_NICE)
                self._pool.start(extra_threads(threads), partial(self._scheduler.next, on_request=True))
                start_thread(self._turns)
                self._housekeeper.start()
                self.state = "ready"
                return
        if store is not None:
            store.close()
        raise ValueError(f"the service is {self.state}: it becomes ready once")

    def hold(self, graph: Graph, open_store: Callable[[], PartitionedStore] | None) -> None:
        """Sample over other partitions of the same graph from the next batch on.

        Batches under way end on the partitions that they began with. ``open_store`` is as for ``make_ready``.
        The number of sampling threads stays.
        """
        store = None if open_store is None else open_store()
        with self._lock:
            held = self.state in ("ready", "draining")
            if held:
                self._graph, self._store = graph, store
                self._shared.clear()
        if held:
            self._samplers.sample_from(graph, store)
        elif store is not None:
            store.close()

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """Threads that live while the service is ready: samplers, time slices and housekeeping."""
        with self._lock:
            pool = self._pool if self.state in ("ready", "draining") else None
        return () if pool is None else (*pool.threads, self._turns, self._housekeeper.thread)

    def drain(self, timeout_s: float) -> bool:
        """Take no more requests, finish those under way. Return whether all frames were sent in time.

        Batches that are left are not in the journal any more: the process ends on request, not because of
        them.
        """
        with self._lock:
            if self.state != "closed":
                self.state = "draining"
            self._shared.close()
            channels = list(self._sessions.channels.values())
        self._scheduler.refuse(channels, self._not_ready())
        delivered = self._scheduler.wait_until_delivered(timeout_s)
        self._journal.close()
        return delivered

    def stop_batches(self, reason: str) -> None:
        """Stop the batches under way, within milliseconds. They are refused with the reason."""
        self._scheduler.stop(reason)

    def close(self) -> None:
        """End everything, within seconds. Closing twice is fine."""
        with self._lock:
            self.state = "closed"
            self._shared.close()
            ended = self._sessions.take_jobs(lambda _: True)
            store, self._store = self._store, None
        self._scheduler.end(ended, self._not_ready())
        self._scheduler.close()
        self._housekeeper.close()
        if store is not None:
            _close(store)
        if self._pool is not None and not self._pool.join(_JOIN_S):
            _LOGGER.warning("a sampling thread did not end within %g s", _JOIN_S)
        if self._turns.is_alive():
            self._turns.join(_JOIN_S)
        self._samplers.clear()
        self._journal.close()

    def create_producer(
        self, job: bytes, *, key: str, plan: str, graph: str, caller: Identity = LOCAL
    ) -> bool:
        """Create a producer; ``False`` if it exists. Raises ``Refusal``, and then nothing was created.

        A job belongs to the ``caller`` that created its first producer, and counts for the caller's quotas.
        """
        check_key(key, self.limits)
        check_graph(graph, self._graph)
        found = read_producer_plan(plan, self._graph.schema, self.limits, self._allowed_samplers)
        with self._lock:
            self._check_ready()
            return self._sessions.create_producer(job, key, found, caller)

    def open_channel(self, job: bytes, options: ChannelOptions) -> Channel:
        """Open a channel of a producer. Raises ``Refusal``."""
        check_channel_options(options, self.limits)
        with self._lock:
            self._check_ready()
            self._sessions.check_room(job, options)
            return self._sessions.open_channel(job, options, self._new_ring(job, options))

    def submit(
        self,
        job: bytes,
        message: SampleRequest,
        done: Callable[[Result], None],
        span: ServedSpan | None = None,
        cut: Callable[[str], bool] = lambda _: False,
    ) -> SampleTask:
        """Queue a request for a batch, as it was received. Raises ``Refusal``.

        ``done`` is called once: here, or by a sampling thread. ``span`` is that of the request. ``cut`` ends
        its call where the reply is not read, and returns whether it did.
        """
        with self._lock:
            self._check_ready()
            channel = self._sessions.channel(job, message.channel)
        check_slot(channel, message.slot)
        inputs = channel.producer.inputs
        task = SampleTask(
            channel=channel,
            request=read_request(
                message,
                inputs,
                schema=self._graph.schema,
                limits=self.limits,
                interactive=channel.interactive,
            ),
            fence=message.fence,
            slot=message.slot,
            cut=cut,
            done=done,
            came=self._clock(),
            span=span,
            key=request_key(channel, message),
        )
        self._scheduler.submit(task)
        return task

    def abandon(self, task: SampleTask) -> None:
        """Drop a request whose caller is gone."""
        self._scheduler.abandon(task)

    def heartbeat(self, job: bytes, channels: Iterable[bytes]) -> list[bytes]:
        """Renew the leases of these channels of a job. Return the channels that exist."""
        with self._lock:
            return self._sessions.renew(job, channels)

    def pending(self, job: bytes, channel: bytes) -> list[int]:
        """Return the numbers of a channel's batches that a caller waits for. Empty for an unknown channel."""
        with self._lock, suppress(Refusal):
            return self._sessions.channel(job, channel).pending
        return []

    def close_channel(self, job: bytes, channel: bytes) -> None:
        """Close a channel, and its producer with the last channel. Fine for an unknown channel."""
        with self._lock:
            ended = self._sessions.close_channel(job, channel)
        self._end(ended, _closed())

    def destroy_producer(self, job: bytes, key: str) -> None:
        """Remove a producer and its channels. Fine for an unknown producer."""
        with self._lock:
            ended = self._sessions.destroy_producer(job, key)
        self._end(ended, _closed())

    def end_jobs(self, of: Callable[[Identity], bool]) -> None:
        """End the jobs of owners for which ``of`` returns ``True``: their batches, frames and rings."""
        with self._lock:
            ended = self._sessions.take_jobs(of)
        self._end(ended, _closed())

    def ring_of(self, channel: bytes) -> int | None:
        """Return the descriptor of a channel's ring, once. The caller owns it then."""
        with self._lock:
            found = self._sessions.channels.get(channel)
        try:
            return found.ring.hand_over() if found is not None and found.ring is not None else None
        except OSError as error:
            _LOGGER.warning("a ring cannot be made, frames go over the network: %s", error)
            return None

    def load(self) -> ServiceLoad:
        """Return the load of the service."""
        now = self._clock()
        with self._lock:
            channels = tuple(ChannelLoad.of(each, now) for each in self._sessions.channels.values())
            jobs, producers, totals = (
                len(self._sessions),
                self._sessions.num_producers,
                self._scheduler.totals,
            )
            durations = {name: each.read() for name, each in self._scheduler.durations.items()}
        return ServiceLoad(
            workers=self._num_threads,
            busy=self._scheduler.busy,
            jobs=jobs,
            producers=producers,
            ready_bytes=self.frames.held().total(),
            frame_bytes=self._memory.lent,
            ring_bytes=self.rings.held,
            shared_bytes=self._shared.nbytes,
            batches=totals.batches,
            shared=totals.shared,
            nbytes=totals.nbytes,
            sampling_s=totals.sampling_s,
            waiting_s=totals.waiting_s,
            channels=channels,
            topology_partitions=len(self._graph.topology_parts),
            durations=durations,
        )

    def held_bytes(self) -> dict[str, int]:
        """Return the memory of the service by kind of ``MemoryAccount``."""
        return {
            "samplers": self._samplers.idle_bytes,
            "scratch": self._samplers.lent_bytes,
            "frames": self._memory.held,
            "rings": self.rings.held,
            "requests": self._scheduler.request_bytes,
            "journal": self._journal.nbytes,
        }

    def sweep(self) -> None:
        """Reclaim expired channels and producers, and idle memory. Called every second."""
        with self._lock:
            expired = self._sessions.take_expired()
        for lapse in expired:
            _LOGGER.warning(
                "job %s: not heard of for %g s: %d channels and %d producers are reclaimed",
                lapse.job.hex()[:8],
                self.limits.lease_s,
                len(lapse.channels),
                lapse.producers,
            )
            self._end(
                lapse.channels,
                Refusal(RefusalKind.NOT_FOUND, "the lease of the channel is over: open it again"),
            )
        self._sweep_memory()

    def _end(self, channels: Iterable[Channel], refusal: Refusal) -> None:
        """End channels, and free the samplers of plans that no producer has any more."""
        self._scheduler.end(channels, refusal)
        with self._lock:
            plans = self._sessions.plans
        self._freed_bytes += self._samplers.keep_only(plans)

    def _resume(self, paused_s: float) -> None:
        """Resume after the process was stopped (SIGSTOP, a suspended machine): no lease could be renewed."""
        if paused_s < self.limits.lease_s * _LONG_PAUSE:
            self.sweep()
            return
        with self._lock:
            self._sessions.renew_all()
        _LOGGER.warning("this server stood still for %.1f s: leases begin anew", paused_s)

    def _sweep_memory(self) -> None:
        now = self._clock()
        with self._lock:
            self._shared.sweep()
        self.frames.sweep()
        self._scheduler.relieve(now - _UNREAD_S)
        idle_s = now - self._scheduler.last_turn
        if idle_s > _IDLE_S:
            self._samplers.clear()
            self._memory.trim()
        pays = idle_s > _RELEASE_EVERY_S or self._freed_bytes > _RELEASE_BYTES
        if pays and now - self._released > _RELEASE_EVERY_S:
            self._released, self._freed_bytes = now, 0
            release_freed_memory()

    def _work(self, task: SampleTask, thread: int) -> None:
        try:
            made = self._maker.make(task, thread)
        except BaseException:  # The caller must get a result.
            text = "the server failed to sample; its log says why"
            self._scheduler.finish(task, Result(refusal=Refusal(RefusalKind.UNAVAILABLE, text)))
            raise
        self._scheduler.finish(task, made)

    def _new_ring(self, job: bytes, options: ChannelOptions) -> FrameRing | None:
        if not options.ring_slots or not self.ring_door:
            return None
        taken = sum(each.ring.nbytes for each in self._sessions.channels.values() if each.ring is not None)
        owner = self._sessions.owner(job)
        return make_ring(options, free_bytes=self.limits.ring_bytes - taken, memory=self.rings, owner=owner)

    def _check_ready(self) -> None:
        if self.state != "ready":
            raise self._not_ready()

    def _not_ready(self) -> Refusal:
        return Refusal(RefusalKind.UNAVAILABLE, f"the server is {self.state}")


def _closed() -> Refusal:
    return Refusal(RefusalKind.NOT_FOUND, "the channel was closed: open it again")


def _close(store: PartitionedStore) -> None:
    """Close a store in a thread, and wait for a while: a stalled server can delay the end of its calls."""
    closer = threading.Thread(target=store.close, name="store close", daemon=True)
    with suppress(RuntimeError):  # No thread can be started: the process ends, and its connections with it.
        closer.start()
        closer.join(_JOIN_S)
