"""Maker of frames: in the requested slot, in memory for the network, or as the record of a failure."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.channel.frame import Failure
from gigl_loader.errors import SamplingError, StorageUnavailable
from gigl_loader.native import Stopped
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.tokens import EVERYTHING
from gigl_loader.sampling.costs import BatchBounds, TooLong, TooManyEdges
from gigl_server.frames.store import buffer_bytes
from gigl_server.sessions.channel import Result, StopCause

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from gigl_loader.arrays import Bytes
    from gigl_loader.rpc.tokens import Grant
    from gigl_server.admission import Identity
    from gigl_server.counters import Counters
    from gigl_server.frames.store import BufferPool, FrameStore
    from gigl_server.sampling.journal import Journal
    from gigl_server.sampling.sampler_pool import SamplerPool
    from gigl_server.sessions.channel import Channel, SampleTask

_Holder = tuple["Identity", bytes]
"""Owner and job."""

_MUCH = 2  # Times as much as another job: without this, similar jobs would drop each other's frames in turn.


class FrameShares:
    """Admits requests to frame memory, and drops ready frames of jobs that hold too much."""

    def __init__(
        self,
        frames: FrameStore,
        memory: BufferPool,
        grant_of: Callable[[Identity], Grant] = lambda _: EVERYTHING,
    ) -> None:
        """``grant_of`` returns the quotas of an owner's token."""
        self._frames = frames
        self._memory = memory
        self._grant_of = grant_of

    def admission(
        self, waiting: Callable[[], Sequence[Channel]], begun: Collection[SampleTask] = ()
    ) -> Callable[[SampleTask], bool]:
        """Return a function that admits requests. ``waiting`` returns all channels that need frame memory.

        Batches that were ``begun`` count with the frames that they are likely to have. Owners whose token has
        a quota of frames get no more while they hold so much together.

        While more than half of the memory is lent, a job gets at most an equal share of its owner's part. The
        part of several owners is such that another one like them would fit: who fetches nothing leaves
        memory to who does. A frame that is larger than a part is admitted where that much stays free.
        """
        shared = self._shared(waiting, begun)
        return lambda task: self._has_quota(task.channel.owner) and shared(task)

    def _has_quota(self, owner: Identity) -> bool:
        """Return whether the owners of a token hold less than its quota of frames."""
        most = self._grant_of(owner).frames
        if most is None:
            return True
        held = self._frames.held_by_owner()
        return sum(nbytes for (each, _), nbytes in held.items() if each.token == owner.token) < most

    def _shared(
        self, waiting: Callable[[], Sequence[Channel]], begun: Collection[SampleTask]
    ) -> Callable[[SampleTask], bool]:
        """Return a function that admits requests by the shares of owners and jobs."""
        lent, most = self._memory.lent, self._memory.nbytes
        expected = self._expected_bytes(begun)
        if lent + expected.total() < most // 2:
            return lambda _: True
        if lent >= most:
            return lambda _: False
        held = self._frames.held_by_owner()
        jobs = held.keys() | expected.keys() | {(each.owner, each.job) for each in waiting()}
        if len(jobs) == 1:
            return lambda _: True
        buffers = max(lent / max(held.total(), 1), 1.0)  # Buffers are larger than the frames in them.
        used = {each: held[each] * buffers + expected[each] for each in jobs}
        jobs_of = Counter(owner for owner, _ in jobs)
        owned = _by_owner(used)
        part = most / (len(jobs_of) + 1 if len(jobs_of) > 1 else 1)

        def fits(task: SampleTask) -> bool:
            mine, more = owned[task.channel.owner], self._buffer_bytes(task)
            return len(jobs_of) == 1 or mine + more <= part or (not mine and lent + more + part <= most)

        def has_room(task: SampleTask) -> bool:
            owner, job = task.channel.owner, task.channel.job
            return used.get((owner, job), 0.0) < part / max(jobs_of[owner], 1) and fits(task)

        return has_room

    def _expected_bytes(self, begun: Collection[SampleTask]) -> Counter[_Holder]:
        """Return the likely size of the frames of batches that were begun, by owner and job."""
        expected: Counter[_Holder] = Counter()
        for task in begun:
            if task.needs_frame_memory:
                expected[task.channel.owner, task.channel.job] += self._buffer_bytes(task)
        return expected

    def _buffer_bytes(self, task: SampleTask) -> int:
        """Return the memory of a frame of the mean size of its channel's, at first of all ready frames."""
        totals, ready = task.channel.totals, self._frames
        if totals.batches:
            return buffer_bytes(totals.nbytes // totals.batches)
        return buffer_bytes(ready.nbytes // max(len(ready), 1))

    def relieve(self, waiting: Sequence[SampleTask], than: float) -> None:
        """Drop frames from before ``than``, oldest first, of jobs that hold much memory, while jobs that
        hold little wait for memory. ``waiting``: the next request of each channel that needs some."""
        channels = [each.channel for each in waiting]
        needy = {(each.owner, each.job) for each in channels}
        while needy and not any(map(self._shared(lambda: channels, ()), waiting)):
            if not self._drop_one(needy, than):
                return

    def _drop_one(self, needy: set[_Holder], than: float) -> bool:
        held = self._frames.held_by_owner()
        owned = _by_owner(held)
        least_owned = min(owned[owner] for owner, _ in needy)

        def has_much(holder: _Holder) -> bool:
            owner = holder[0]
            own_jobs = [held[each] for each in needy if each[0] == owner]
            return owned[owner] > _MUCH * least_owned or (
                bool(own_jobs) and held[holder] > _MUCH * min(own_jobs)
            )

        order = sorted(held, key=lambda each: (owned[each[0]], held[each]), reverse=True)
        return any(self._frames.drop_one(job, than) for owner, job in order if has_much((owner, job)))


def _by_owner(held: Mapping[_Holder, float]) -> dict[Identity, float]:
    owned: dict[Identity, float] = defaultdict(float)
    for (owner, _), nbytes in held.items():
        owned[owner] += nbytes
    return owned


class FrameMaker:
    """Samples batches and writes their frames. Thread-safe."""

    def __init__(
        self,
        samplers: SamplerPool,
        memory: BufferPool,
        counters: Counters,
        *,
        most_edges: int,
        most_bytes: int,
        most_draws: int,
        journal: Journal,
    ) -> None:
        """Batches have at most ``most_edges``, frames ``most_bytes``, and walks are expected to draw at most
        ``most_draws`` candidates. CPU time is added to ``counters``."""
        self._samplers = samplers
        self._most_edges = most_edges
        self._most_bytes, self._most_draws = most_bytes, most_draws
        self._journal = journal
        self._memory = memory
        self._counters = counters

    def make(self, task: SampleTask, thread: int) -> Result:
        """Sample and write a batch. An exception becomes a failure record with the number of this thread."""
        began = time.perf_counter()
        if task.span is not None:
            task.span.record("gigl.queue", task.came, began)
        try:
            with self._journal.under_way(task, thread), task.flag:
                made = self._made(task)
        except Stopped as stopped:
            made = _stopped(task, stopped, thread)
        except TooManyEdges as error:
            larger = task.allowance < self._most_edges
            made = Result(too_large=True) if larger else _failed(task, error, thread)
        except Exception as error:
            made = _failed(task, error, thread)
        if made.refusal is not None:
            return made
        return replace(made, sampling_s=time.perf_counter() - began)

    def _made(self, task: SampleTask) -> Result:
        if task.is_stale():
            return Result()
        with self._samplers.lent(task.channel) as sampler:
            sampler.bounds = self._bounds(task)
            with task.step("gigl.sample"), self._counters.timed("sampling_s"):
                sampled = sampler.sample(task.request)
            nbytes = sampled.layout.nbytes
            if task.is_stale():
                return Result()
            ring = task.channel.ring if task.slot else None
            ring = ring if ring is not None and ring.is_shared else None
            memory = None if ring is None else ring.room(task.slot, nbytes)
            in_slot = memory is not None
            if memory is None:
                if ring is not None and not task.needs_frame_memory and self._memory.full:
                    return Result(overflows=True)
                memory = self._lent(nbytes)
            with task.step("gigl.gather"), self._counters.timed("gathering_s"):
                sampled.write(memory)
        if in_slot:
            return Result(in_slot=True, nbytes=nbytes)
        return Result(frame=memory, overflows=ring is not None, nbytes=nbytes)

    def _bounds(self, task: SampleTask) -> BatchBounds:
        return BatchBounds(
            edges=task.allowance or self._most_edges,
            nbytes=self._most_bytes,
            draws=self._most_draws,
            reason=" (the limit of this server)",
        )

    def _lent(self, nbytes: int) -> Bytes:
        if nbytes > self._memory.nbytes:
            raise SamplingError(
                f"a frame of {nbytes / 1e6:.1f} MB, and this server has {self._memory.nbytes / 1e6:.1f} MB "
                "for all that go over the network: ask for fewer seeds a batch, or raise its limit"
            )
        return self._memory.take(nbytes)


def _stopped(task: SampleTask, stopped: Stopped, thread: int) -> Result:
    """Return what becomes of a batch that was stopped."""
    if task.cause is StopCause.TIME:
        error = TooLong.of(len(task.request), task.ran_s)
        return _failed(task, error, thread)
    if task.cause is StopCause.SERVER:
        return Result(refusal=Refusal(RefusalKind.UNAVAILABLE, str(stopped)))
    return Result(stopped=task.cause is StopCause.PLACE)


def _failed(task: SampleTask, error: Exception, thread: int) -> Result:
    failure = Failure.of(error, epoch=task.request.epoch, batch=task.request.batch, worker=thread)
    layout = failure.layout
    buffer = np.empty(layout.nbytes, np.uint8)
    failure.write(buffer)
    return Result(
        failure=buffer.tobytes(), unavailable=isinstance(error, StorageUnavailable), nbytes=layout.nbytes
    )
