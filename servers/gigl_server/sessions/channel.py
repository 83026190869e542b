"""Channel: one loader of one rank within a session, with its requests and their results."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gigl_server.identity import LOCAL, Identity

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.rpc.refusals import Refusal
    from gigl_loader.sampling.plan import BatchPlan
    from gigl_loader.sampling.request import BatchRequest
    from gigl_server.frames.ring import FrameRing

__all__ = [
    "SKIPPED",
    "Channel",
    "ChannelOptions",
    "ChannelTotals",
    "Producer",
    "ReceivedRequest",
    "Result",
    "SampleTask",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelOptions:
    """What a trainer wants of a channel."""

    key: str
    """Of the producer."""
    name: str
    credit: int
    share: int = 1
    deferred_features: bool = False
    ring_slots: int = 0
    ring_slot_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    """One batch, as a trainer asks for it."""

    epoch: int
    batch: int
    inputs: bytes
    """The columns of the plan, one after the other."""
    index: bytes
    """Little-endian int64."""
    fence: int = 0
    slot: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of an ask: one of ``in_slot``, ``handle``, ``failure``, ``skipped`` and ``refusal``."""

    in_slot: bool = False
    handle: bytes = b""
    failure: bytes = b""
    skipped: bool = False
    refusal: Refusal | None = None
    nbytes: int = 0
    unavailable: bool = False
    """The failure is that the owner of some nodes did not answer."""
    sampling_s: float = 0.0
    waiting_s: float = 0.0


SKIPPED = Result(skipped=True)


@dataclass(slots=True, kw_only=True, eq=False)
class SampleTask:
    """An ask on its way."""

    channel: Channel
    request: BatchRequest
    fence: int
    slot: int
    done: Callable[[Result], None]
    came: float
    abandoned: bool = False
    """Nobody waits for the outcome any more."""
    handle: bytes = b""
    """Of its frame, once it lies ready."""
    allowance: int = 0
    """Edges that it may have while it is worked on."""
    charged_s: float = 0.0
    """What it is expected to take, while it is worked on."""

    def is_stale(self) -> bool:
        """Return whether nobody wants the batch: epoch left, channel closed or call cancelled."""
        return self.abandoned or self.channel.closed or self.fence < self.channel.fence

    @property
    def nbytes(self) -> int:
        return self.request.nbytes

    @property
    def needs_frame_memory(self) -> bool:
        ring = self.channel.ring
        return ring is None or not ring.is_shared or not self.slot or self.channel.overflows


@dataclass(slots=True)
class ChannelTotals:
    """What a channel was given so far."""

    batches: int = 0
    nbytes: int = 0
    sampling_s: float = 0.0
    waiting_s: float = 0.0

    def add(self, result: Result) -> None:
        self.batches += 1
        self.nbytes += result.nbytes
        self.sampling_s += result.sampling_s
        self.waiting_s += result.waiting_s


@dataclass(slots=True, kw_only=True, eq=False)
class Producer:
    """What is sampled. Channels of one producer differ in for whom."""

    key: str
    plan: BatchPlan
    plan_text: str
    """Equal plans have equal texts, and may share samplers."""
    seen: float
    """When it was last asked for. Counts where no channel is open."""
    channels: set[bytes] = field(default_factory=set)
    digest: bytes = b""
    """Of the text, once it was needed."""


@dataclass(slots=True, kw_only=True, eq=False)
class Channel:
    """Everything about one channel. Guarded by the service's lock."""

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
    """When a call last named it."""
    owner: Identity = LOCAL
    """Whose job it is: quotas go by owners."""
    fence: int = 0
    closed: bool = False
    overflows: bool = False
    """The last frame did not fit the slot that was named."""
    in_round: bool = False
    cost_s: float = 0.01
    """Seconds that a batch takes a sampling thread: a moving average."""
    allowance: int = 0
    """Edges that one of its batches was found to need room for."""
    queue: deque[SampleTask] = field(default_factory=deque)
    running: set[SampleTask] = field(default_factory=set)
    tally: ChannelTotals = field(default_factory=ChannelTotals)

    @property
    def open_requests(self) -> int:
        return len(self.queue) + len(self.running)

    def uses_slot(self, slot: int) -> bool:
        """Return whether an open ask names the slot."""
        return any(each.slot == slot for each in (*self.queue, *self.running))

    def raise_fence(self, fence: int) -> list[SampleTask]:
        """Leave older epochs; return the asks for them that nobody began."""
        self.fence = fence
        old = [each for each in self.queue if each.fence < fence]
        self.queue = deque(each for each in self.queue if each.fence >= fence)
        return old

    def empty(self) -> list[SampleTask]:
        """Return the asks that nobody began, and forget them."""
        waiting, self.queue = list(self.queue), deque()
        return waiting
