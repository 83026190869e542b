"""Maker of frames: in the requested slot, in memory for the network, or as the record of a failure.

Frames that several jobs request are made once (``SharedFrames``).
"""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, replace
from hashlib import sha256
from struct import Struct
from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.channel.frame import Failure
from gigl_loader.errors import SamplingError, StorageUnavailable
from gigl_loader.native import Stopped
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.sampling.costs import BatchBounds, TooLong, TooManyEdges
from gigl_server.frames.memory import buffer_bytes
from gigl_server.sessions.channel import Result, StopCause

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from gigl_loader.arrays import Bytes
    from gigl_loader.rpc.graph_store_pb2 import SampleRequest
    from gigl_loader.rpc.tokens import Grant
    from gigl_server.admission import Identity
    from gigl_server.counters import Counters
    from gigl_server.frames.memory import BufferPool
    from gigl_server.sampling.journal import Journal
    from gigl_server.sampling.sampler_pool import SamplerPool
    from gigl_server.sessions.channel import Channel, Place, Producer, SampleTask

_NUMBERS = Struct("<?QQQQ")
_MOST_FRAMES = 1024
_MOST_KEYS = 1 << 14
_MOST_PRODUCERS = 64
"""Producers that are kept for one key."""
_LONGEST_WAIT_S = 10.0
"""Seconds of sampling after which equal requests wait no longer: another server may stall the batch."""
_WAIT_FOR_ANOTHER_S = 0.5
"""As before, for requests of other owners: their time must not depend on it."""


def request_key(channel: Channel, message: SampleRequest) -> bytes:
    """Return the digest of everything that a frame depends on: equal keys stand for equal frames.

    Empty for a channel whose callers wait for each batch: its requests are not shared.
    """
    if channel.interactive:
        return b""
    digest = sha256(channel.producer.digest)
    digest.update(
        _NUMBERS.pack(
            channel.deferred_features, message.epoch, message.batch, message.number, len(message.index)
        )
    )
    digest.update(message.index)
    digest.update(message.inputs)
    digest.update(message.new_nodes)
    return digest.digest()


@dataclass(frozen=True, slots=True, eq=False)
class _Shared:
    frame: Bytes
    producer: Producer
    """Producer that had the batch sampled."""
    place: Place
    since: float

    @property
    def nbytes(self) -> int:
        return buffer_bytes(len(self.frame))


class SharedFrames:
    """Frames that were sampled for one producer and that others are about to request.

    Producers are twins while they send equal requests. A batch that several of them request is sampled for
    the first one to get a thread. The requests of the others wait for it meanwhile, or find its frame here
    later: it is kept while a twin has not requested it, for ``keep_s`` at most. The oldest frames are those
    that a twin requests next: no frame is added to a full memory, and the newest ones are dropped first.
    A request whose batch fails, or whose frame was dropped, is sampled as any other: nothing is lost.

    Under the service's lock, but for ``wants`` and ``put``, which take it.
    """

    def __init__(
        self,
        nbytes: int,
        *,
        keep_s: float,
        channels: Mapping[bytes, Channel],
        lock: threading.Lock,
        clock: Callable[[], float],
    ) -> None:
        """Keep at most ``nbytes``; 0: nothing is shared. ``channels`` has all open channels by id."""
        self.nbytes = 0
        """Bytes of the frames, some of which may also be on their way to a job."""
        self._most = nbytes
        self._keep_s = keep_s
        self._channels = channels
        self._lock = lock
        self._clock = clock
        self._frames: dict[bytes, _Shared] = {}  # Oldest first.
        self._under_way: dict[bytes, SampleTask] = {}
        self._requested: OrderedDict[bytes, tuple[float, tuple[Producer, ...]]] = OrderedDict()
        self._twins: defaultdict[Producer, dict[Producer, float]] = defaultdict(dict)
        """Time of the last equal request, by producer and twin."""

    def note(self, task: SampleTask) -> None:
        """Take note of a request that was queued."""
        if not task.key or not self._most:
            return
        now, producer = self._clock(), task.channel.producer
        _, others = self._requested.pop(task.key, (now, ()))
        if producer not in others:
            others = (*others[1 - _MOST_PRODUCERS :], producer)
        for twin in others:
            if twin is not producer:
                self._twins[producer][twin] = self._twins[twin][producer] = now
        self._requested[task.key] = now, others
        if len(self._requested) > _MOST_KEYS:
            self._requested.popitem(last=False)
        task.channel.place = max(task.channel.place, task.place)

    def admits(self, task: SampleTask) -> bool:
        """Return ``False`` while an equal batch is sampled, whose frame is about to be here."""
        first = self._under_way.get(task.key)
        if first is None or first.aside_since is not None:
            return True
        is_own = first.channel.owner == task.channel.owner
        return first.ran_s > (_LONGEST_WAIT_S if is_own else _WAIT_FOR_ANOTHER_S)

    def begin(self, task: SampleTask) -> None:
        """Give a request that is begun the frame of an equal one, or take note that its batch is sampled."""
        found = self._frames.get(task.key)
        task.shared = None if found is None else found.frame
        if found is None and task.key and self._most:
            self._under_way.setdefault(task.key, task)

    def end(self, task: SampleTask) -> None:
        """Take note that a batch has ended, in whatever way."""
        task.shared = None
        if self._under_way.get(task.key) is task:
            del self._under_way[task.key]
        found = self._frames.get(task.key)
        if found is not None and not self._is_wanted(found.producer, task.key, found.place):
            self._drop(task.key)

    def wants(self, task: SampleTask, nbytes: int) -> bool:
        """Return whether to keep a frame of ``nbytes``, because a twin has not had it. Takes the lock."""
        producer = task.channel.producer
        with self._lock:
            return self._has_room(task, nbytes) and self._is_wanted(producer, task.key, task.place)

    def put(self, task: SampleTask, frame: Bytes) -> None:
        """Keep the frame of a batch, uint8 [nbytes], for the twins of its producer. Takes the lock."""
        with self._lock:
            if self._has_room(task, len(frame)):
                shared = _Shared(frame, task.channel.producer, task.place, self._clock())
                self._frames[task.key] = shared
                self.nbytes += shared.nbytes

    def give_back(self, nbytes: int) -> None:
        """Drop frames of so many bytes: the newest first."""
        while nbytes > 0 and self._frames:
            nbytes -= self._drop(next(reversed(self._frames)))

    def sweep(self) -> None:
        """Drop frames that no twin wants any more, and forget requests from long ago."""
        since = self._clock() - self._keep_s
        for key, each in list(self._frames.items()):
            if each.since < since or not self._is_wanted(each.producer, key, each.place):
                self._drop(key)
        while self._requested and next(iter(self._requested.values()))[0] < since:
            self._requested.popitem(last=False)
        for producer, twins in list(self._twins.items()):
            recent = {twin: at for twin, at in twins.items() if at >= since}
            if recent:
                self._twins[producer] = recent
            else:
                del self._twins[producer]

    def clear(self) -> None:
        """Drop all frames. Those of batches under way are not kept, either: the graph may have changed."""
        self._frames.clear()
        self._under_way.clear()
        self.nbytes = 0

    def close(self) -> None:
        """Drop all frames, and share no more."""
        self._most = 0
        self.clear()
        self._requested.clear()
        self._twins.clear()

    def _has_room(self, task: SampleTask, nbytes: int) -> bool:
        return (
            self._under_way.get(task.key) is task
            and len(self._frames) < _MOST_FRAMES
            and self.nbytes + buffer_bytes(nbytes) <= self._most
        )

    def _is_wanted(self, producer: Producer, key: bytes, place: Place) -> bool:
        """Return whether a twin of a producer has not requested a batch, or waits for it."""
        since = self._clock() - self._keep_s
        channels = (
            self._channels[each]
            for twin, at in self._twins.get(producer, {}).items()
            if at >= since
            for each in twin.channels
        )
        return any(each.place < place or any(task.key == key for task in each.queue) for each in channels)

    def _drop(self, key: bytes) -> int:
        nbytes = self._frames.pop(key).nbytes
        self.nbytes -= nbytes
        return nbytes


class FrameMaker:
    """Samples batches and writes their frames. Thread-safe."""

    def __init__(
        self,
        samplers: SamplerPool,
        memory: BufferPool,
        shared: SharedFrames,
        counters: Counters,
        *,
        most_edges: int,
        most_bytes: int,
        most_draws: int,
        journal: Journal,
        grant_of: Callable[[Identity], Grant],
    ) -> None:
        """Batches have at most ``most_edges``, frames ``most_bytes``, and walks are expected to draw at most
        ``most_draws`` candidates. CPU time is added to ``counters``. ``grant_of`` returns the quotas of an
        owner's token."""
        self._samplers = samplers
        self._most_edges = most_edges
        self._most_bytes, self._most_draws = most_bytes, most_draws
        self._journal = journal
        self._memory = memory
        self._shared = shared
        self._counters = counters
        self._grant_of = grant_of

    def make(self, task: SampleTask, thread: int) -> Result:
        """Sample and write a batch. An exception becomes a failure record with the number of this thread."""
        began, cpu_began = time.perf_counter(), time.thread_time()
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
        sampling_s = time.perf_counter() - began
        busy_s = sampling_s if self._samplers.ask_others else time.thread_time() - cpu_began
        return replace(made, sampling_s=sampling_s, busy_s=busy_s)

    def _made(self, task: SampleTask) -> Result:
        if task.is_stale():
            return Result()
        if task.shared is not None:
            self._samplers.check_sound()
            return replace(self._delivered(task, task.shared), shared=True)
        with self._samplers.lent(task.channel) as sampler:
            sampler.bounds = self._bounds(task)
            with task.step("gigl.sample"), self._counters.timed("sampling_s"):
                sampled = sampler.sample(task.request)
            nbytes = sampled.layout.nbytes
            if task.is_stale():
                return Result()
            has_room = self._memory.lent + nbytes <= self._memory.nbytes // 2
            is_wanted = has_room and self._shared.wants(task, nbytes)
            slot = None if is_wanted else self._slot(task, nbytes)
            if slot is None and not is_wanted and self._has_no_memory(task):
                return Result(overflows=True)
            memory = self._lent(task, nbytes) if slot is None else slot
            with task.step("gigl.gather"), self._counters.timed("gathering_s"):
                sampled.write(memory)
        if is_wanted:  # Only now: the graph was found sound.
            self._shared.put(task, memory)
        if slot is not None:
            return Result(in_slot=True, nbytes=nbytes)
        return self._delivered(task, memory) if is_wanted else _over_network(task, memory)

    def _delivered(self, task: SampleTask, frame: Bytes) -> Result:
        """Return the result of a frame that several requests may have."""
        slot = self._slot(task, len(frame))
        if slot is None:
            self._check_quota(task, len(frame))
            return _over_network(task, frame)
        with self._counters.timed("gathering_s"):
            slot[:] = frame
        return Result(in_slot=True, nbytes=len(frame))

    def _slot(self, task: SampleTask, nbytes: int) -> Bytes | None:
        """Return the requested slot, uint8 [nbytes]. ``None``: the frame goes over the network."""
        ring = task.channel.ring
        return ring.room(task.slot, nbytes) if ring is not None and _has_ring(task) else None

    def _has_no_memory(self, task: SampleTask) -> bool:
        """Return whether a frame that was to go to a slot finds no other memory."""
        return _has_ring(task) and not task.needs_frame_memory and self._memory.full

    def _bounds(self, task: SampleTask) -> BatchBounds:
        return BatchBounds(
            edges=task.allowance or self._most_edges,
            nbytes=self._most_bytes,
            draws=self._most_draws,
            reason=" (the limit of this server)",
        )

    def _check_quota(self, task: SampleTask, nbytes: int) -> None:
        """Raise ``SamplingError`` for a frame that the quota of its owner's token has no room for at all."""
        owner = task.channel.owner
        most = self._grant_of(owner).frames
        if most is not None and nbytes > most:
            raise SamplingError(
                f"a frame of {nbytes / 1e6:.1f} MB, and the quota of token {owner.token} is "
                f"{most / 1e6:.1f} MB: use fewer seeds a batch, or raise the quota (frames=)"
            )

    def _lent(self, task: SampleTask, nbytes: int) -> Bytes:
        self._check_quota(task, nbytes)
        if nbytes > self._memory.nbytes:
            raise SamplingError(
                f"a frame of {nbytes / 1e6:.1f} MB, and this server has {self._memory.nbytes / 1e6:.1f} MB "
                "for all that go over the network: ask for fewer seeds a batch, or raise its limit"
            )
        return self._memory.take(nbytes)


def _over_network(task: SampleTask, frame: Bytes) -> Result:
    return Result(frame=frame, overflows=_has_ring(task), nbytes=len(frame))


def _has_ring(task: SampleTask) -> bool:
    """Return whether the request names a slot of a ring that its trainer has fetched."""
    ring = task.channel.ring
    return task.slot > 0 and ring is not None and ring.is_shared


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
