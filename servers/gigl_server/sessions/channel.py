"""Channel: one loader of one rank within a session, with its requests and their results."""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from gigl_loader.native import StopFlag
from gigl_loader.sampling.plan import plan_digest
from gigl_server.admission import LOCAL, Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from gigl_loader.arrays import Bytes
    from gigl_loader.rpc.refusals import Refusal
    from gigl_loader.sampling.plan import BatchPlan
    from gigl_loader.sampling.request import BatchRequest, InputColumn
    from gigl_loader.tracing import ServedSpan
    from gigl_server.frames.ring import FrameRing


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelOptions:
    """Options of a channel, as a trainer requests them."""

    key: str
    """Key of the producer."""
    name: str
    credit: int
    share: int = 1
    deferred_features: bool = False
    ring_slots: int = 0
    ring_slot_bytes: int = 0
    plan_digest: bytes = b""
    """Digest of the plan of the expected producer. Empty: any."""
    interactive: bool = False
    """A caller waits for each batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of a request: ``in_slot``, ``frame``, ``failure``, ``skipped`` or ``refusal``.

    A sampling thread makes it, and the scheduler completes it. Neither frame nor failure: the request was
    stale, or waits for ``too_large``, ``stopped`` or ``overflows``.
    """

    in_slot: bool = False
    frame: Bytes | None = None
    """Frame that goes over the network, uint8 [nbytes]. In a complete result, it counts as being sent while
    it is referenced."""
    failure: bytes = b""
    skipped: bool = False
    refusal: Refusal | None = None
    nbytes: int = 0
    unavailable: bool = False
    """The failure is that the owner of some nodes did not respond."""
    sampling_s: float = 0.0
    busy_s: float = 0.0
    """Of ``sampling_s``, without the time for which the thread waited for a core."""
    waiting_s: float = 0.0
    shared: bool = False
    """The frame is that of an equal request of another producer."""
    overflows: bool = False
    """The frame does not fit the requested slot. With 0 ``nbytes``, there was no other memory either."""
    too_large: bool = False
    """The batch has more edges than its allowance of scratch memory."""
    stopped: bool = False
    """The batch was stopped for its place, and is sampled again."""


SKIPPED = Result(skipped=True)

Place = tuple[int, int, int]
"""Place of a batch in its run: epoch, number among those of all ranks, number among those of its rank."""

_NOWHERE: Place = (-1, -1, -1)


class StopCause(Enum):
    """Cause for which a batch that was begun is stopped. It decides the result."""

    STALE = "the batch is not needed any more"
    """Skipped: no caller waits for it."""
    TIME = "the batch took the time that a batch may take"
    """Failed: it would take as long again."""
    PLACE = "another owner needs the place of the batch"
    """Sampled again later, from its beginning."""
    SERVER = "the server ends"
    """Refused: another holder may sample it."""


@dataclass(slots=True, kw_only=True, eq=False)
class SampleTask:
    """A validated request, from its arrival to its result."""

    channel: Channel
    request: BatchRequest
    fence: int
    slot: int
    done: Callable[[Result], None]
    came: float
    key: bytes = b""
    """Equal keys stand for equal frames (``request_key``). Empty: not shared."""
    shared: Bytes | None = None
    """Frame of an equal request of another producer, uint8 [nbytes]: nothing needs to be sampled."""
    cut: Callable[[str], bool] = lambda _: False
    """Ends the call, with a reason, where its caller does not read the reply. Returns whether it did."""
    abandoned: bool = False
    """The caller is gone, and gets no result."""
    allowance: int = 0
    """Edges that the batch may have while it is sampled."""
    charged_s: float = 0.0
    """Seconds of sampling charged to its owner: at first the expected time, then the time that it ran."""
    flag: StopFlag = field(default_factory=StopFlag)
    """Flag of the thread that samples the batch."""
    cause: StopCause | None = None
    """Why the batch was stopped."""
    ran_s: float = 0.0
    """Seconds for which it has had a thread."""
    clocked: float = 0.0
    """Until when ``ran_s`` is counted."""
    safe_s: float = 1.0
    """Seconds that it runs before it may be stopped for its place."""
    stint_s: float = 0.0
    """Seconds since it last got a thread."""
    yielding_s: float | None = None
    """Seconds since it was paused, to leave its thread to another owner's batch. ``None``: it was not."""
    aside_since: float | None = None
    """Since when it waits for a thread again."""
    aside_s: float = 0.0
    """Seconds that it waited for a thread after it was begun."""
    span: ServedSpan | None = None
    """Of the request, where the server traces."""

    def stop(self, cause: StopCause, reason: str = "") -> None:
        """Stop the batch within milliseconds if it was begun. The first cause stays."""
        if self.cause is None:
            self.cause = cause
            self.flag.stop(reason or cause.value)

    def step(self, name: str) -> AbstractContextManager[Any]:
        """Return a context that is a step of the request, where the server traces."""
        return nullcontext() if self.span is None else self.span.step(name)

    def begin_anew(self) -> None:
        """Forget an attempt, before the batch is queued again."""
        self.flag, self.cause = StopFlag(), None
        self.ran_s = self.stint_s = self.aside_s = 0.0
        self.yielding_s = self.aside_since = None

    def is_stale(self) -> bool:
        """Return whether the batch is not needed any more: epoch left, channel closed or call cancelled."""
        return self.abandoned or self.channel.closed or self.fence < self.channel.fence

    @property
    def nbytes(self) -> int:
        return self.request.nbytes

    @property
    def place(self) -> Place:
        return self.request.epoch, self.request.number, self.request.batch

    @property
    def needs_frame_memory(self) -> bool:
        ring = self.channel.ring
        return ring is None or not ring.is_shared or not self.slot or self.channel.overflows


@dataclass(slots=True)
class ChannelTotals:
    """Sums over the results of a channel, or of all channels."""

    batches: int = 0
    shared: int = 0
    """Batches whose frames were those of equal requests of other producers."""
    nbytes: int = 0
    sampling_s: float = 0.0
    waiting_s: float = 0.0

    def add(self, result: Result) -> None:
        self.batches += 1
        self.shared += result.shared
        self.nbytes += result.nbytes
        self.sampling_s += result.sampling_s
        self.waiting_s += result.waiting_s


@dataclass(slots=True, kw_only=True, eq=False)
class Producer:
    """A plan and the channels that sample by it."""

    key: str
    plan: BatchPlan
    plan_text: str
    """Equal plans have equal texts, and may share samplers."""
    seen: float
    """When a call last named the producer. Its lease counts only while no channel is open."""
    channels: set[bytes] = field(default_factory=set)
    digest: bytes = field(init=False)
    """``plan_digest`` of the text."""
    inputs: Sequence[InputColumn] = field(init=False)
    """Those of the plan."""

    def __post_init__(self) -> None:
        self.digest = plan_digest(self.plan_text)
        self.inputs = self.plan.inputs


@dataclass(slots=True, kw_only=True, eq=False)
class Channel:
    """State of one channel. Guarded by the service's lock."""

    id: bytes
    job: bytes
    name: str
    producer: Producer
    credit: int
    share: int
    deferred_features: bool
    ring: FrameRing | None
    last_request: float
    seen: float
    """When a call last named the channel."""
    interactive: bool = False
    owner: Identity = LOCAL
    """Owner of the job, for whose quotas the channel counts."""
    fence: int = 0
    place: Place = _NOWHERE
    """Place of the last batch, in the order of a run, that was requested since the fence was raised."""
    closed: bool = False
    overflows: bool = False
    """The last frame did not fit the requested slot."""
    in_round: bool = False
    allowance: int = 0
    """Allowance of edges that one of its batches needed."""
    queue: deque[SampleTask] = field(default_factory=deque)
    running: set[SampleTask] = field(default_factory=set)
    totals: ChannelTotals = field(default_factory=ChannelTotals)

    @property
    def pending(self) -> list[int]:
        """Numbers of the batches that a caller waits for."""
        return [each.request.batch for each in (*self.queue, *self.running) if not each.abandoned]

    def uses_slot(self, slot: int) -> bool:
        """Return whether an open request names the slot."""
        return any(each.slot == slot for each in (*self.queue, *self.running))

    def raise_fence(self, fence: int) -> list[SampleTask]:
        """Leave older epochs, and stop their batches. Return their requests that no thread has begun."""
        self.fence, self.place = fence, _NOWHERE
        for each in self.running:
            if each.fence < fence:
                each.stop(StopCause.STALE)
        old = [each for each in self.queue if each.fence < fence]
        self.queue = deque(each for each in self.queue if each.fence >= fence)
        return old

    def close(self) -> None:
        """Mark the channel closed, and stop its batches."""
        self.closed = True
        for each in self.running:
            each.stop(StopCause.STALE)

    def empty(self) -> list[SampleTask]:
        """Remove and return the requests that no thread has begun."""
        waiting, self.queue = list(self.queue), deque()
        return waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLoad:
    """Load of one channel. Seconds and bytes are sums since it was opened."""

    job: bytes
    """Key of the job. It gives no access."""
    key: str
    name: str
    transport: str
    """``ring`` or ``network``."""
    interactive: bool
    """A caller waits for each batch."""
    batches: int
    shared: int
    """Of these, those whose frames were those of equal requests of other producers."""
    nbytes: int
    queued: int
    """Requests that no thread has begun."""
    sampling_s: float
    """Seconds of sampling threads, batches under way and stopped ones included."""
    waiting_s: float
    idle_s: float
    """Seconds since its last request."""

    @classmethod
    def of(cls, channel: Channel, now: float) -> ChannelLoad:
        """Return the load of a channel. Call under the service's lock."""
        return cls(
            job=channel.job,
            key=channel.producer.key,
            name=channel.name,
            transport="network" if channel.ring is None else "ring",
            interactive=channel.interactive,
            batches=channel.totals.batches,
            shared=channel.totals.shared,
            nbytes=channel.totals.nbytes,
            queued=len(channel.queue),
            sampling_s=channel.totals.sampling_s + sum(each.ran_s for each in channel.running),
            waiting_s=channel.totals.waiting_s,
            idle_s=now - channel.last_request,
        )

    @property
    def short_job(self) -> str:
        """First 8 hexadecimal digits of the key."""
        return self.job.hex()[:8]
