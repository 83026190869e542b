"""Sources of batches: the seam between loaders and what makes their batches.

One contract suite (``tests/contract``) runs against every implementation of ``BatchSource``.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gigl_loader.channel.frame import Failure, Frame
from gigl_loader.channel.ring import SlotPool, private_slots
from gigl_loader.errors import StorageUnavailable
from gigl_loader.options import FeatureOptions, StoreOptions, WorkerOptions
from gigl_loader.retry import Deadline, attempts, retried
from gigl_loader.sampling.schedule import OneBatch, SeedWeightedSampler
from gigl_loader.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.arrays import Bytes
    from gigl_loader.group import RankGroup
    from gigl_loader.sampling.feature_memory import FeatureMemory
    from gigl_loader.sampling.partitioned import PartitionedStore
    from gigl_loader.sampling.plan import BatchPlan, BatchSampler
    from gigl_loader.sampling.resident import DeviceMemory
    from gigl_loader.sampling.schedule import Schedule
    from gigl_loader.shared import SharedTensors
    from gigl_loader.tracing import BatchSpans

_INLINE_SLOTS = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceRequest:
    """Request of a loader to its dataset: which batches it wants, and how they may be made.

    One form for every kind of dataset, which ignores options that do not apply to it.
    """

    plan: BatchPlan
    schedule: Schedule
    name: str
    """Of the loader, for messages and for storage servers."""
    num_workers: int
    """Sampling processes, or the share of a storage server's threads. 0: a batch is made when requested."""
    workers: WorkerOptions
    store: StoreOptions
    timeout_s: float
    """How long the loader waits for a batch."""
    topology: Topology
    group: RankGroup | None = None
    interactive: bool = False
    """A caller waits for each batch: storage servers let it go before those of trainers."""
    alone: bool = True
    """Other ranks may not build this loader, or another one under its name."""
    start_gap_s: float | None = None
    """Between the starts of local ranks, or of batches of leaders."""
    shared: SharedTensors | None = None
    """For code of the user that samples."""
    features: FeatureOptions = field(default_factory=FeatureOptions)
    device: DeviceMemory | None = None
    """Memory of the trainer's device, of which rows take ``features.device_bytes`` at most."""
    memory: FeatureMemory | None = None
    """Where features are read from: the dataset's decision."""
    values: bool = False
    """Whoever writes frames beside the trainer's thread writes the values of quantised columns, too."""
    spans: BatchSpans | None = None
    """Those of its batches, where the program traces."""

    @classmethod
    def single(cls, plan: BatchPlan, *, name: str, timeout_s: float) -> SourceRequest:
        """Return a request for batches of a plan that belong to no epoch, one at a time."""
        return cls(
            plan=plan,
            schedule=OneBatch(run_seed=plan.run_seed),
            name=name,
            num_workers=0,
            workers=WorkerOptions(),
            store=StoreOptions(),
            timeout_s=timeout_s,
            topology=Topology.without_asking(),
        )

    @property
    def has_deferred_features(self) -> bool:
        """Whether the trainer's process has the features of frames, which are sampled without them."""
        return self.memory is not None and (bool(self.memory.cached) or self.has_device_memory)

    @property
    def has_given_memory(self) -> bool:
        """Whether the user gives memory to rows, on the host or on the device."""
        return self.features.memory_bytes is not None or self.has_device_memory

    @property
    def has_device_memory(self) -> bool:
        """Whether rows stay on the device: not for a single batch."""
        return self.features.device_bytes is not None and self.schedule.num_batches > 1


class BatchSource(Protocol):
    """The batches of a loader, epoch by epoch. Used by one thread at a time."""

    @property
    def num_batches(self) -> int:
        """Batches in the whole epoch under way."""

    def start_epoch(self, epoch: int, first_batch: int = 0, origin: int = 0) -> None:
        """Leave the epoch under way, wherever it stands, and go to ``first_batch`` of ``epoch``.

        ``origin``: where the steps of the epoch begin, see ``Schedule``.
        """

    def wait_until_up(self, timeout: float) -> None:
        """Wait until everything that makes batches has started. ``WorkerDied`` if it cannot.

        ``TimeoutError`` after ``timeout`` seconds.
        """

    def receive(self, timeout: float) -> Frame:
        """Return the next batch. Its arrays stay valid for as long as anyone keeps one of them.

        ``SamplingError`` if the batch failed: it counts as received, and the next call returns the
        one after it. ``StorageUnavailable``, which is one, if the owner of some nodes did not answer:
        nothing was consumed, and the next call has the batch sampled again. ``WorkerDied`` if batches
        can no longer be made. ``TimeoutError`` after ``timeout`` seconds: nothing was consumed,
        calling again goes on waiting. ``ValueError`` after the last batch.
        """

    def close(self) -> None:
        """End whatever makes the batches. Frames that were received stay valid. Closing twice is fine."""

    def stats(self) -> dict[str, Any]:
        """Return counters since the start: ``batches``, ``bytes``, ``seconds_waiting`` and more.

        Of ``cpu_seconds``, sampling threads spent ``cpu_sampling`` on drawing and ``cpu_gathering`` on
        writing frames, and the threads that call other hosts spent ``cpu_wire``. ``wire_bytes_in``,
        ``wire_bytes_out`` and ``peer_calls`` count the traffic of these calls. ``feature_memory`` tells where
        features are read from, where the source knows.
        """


class InlineSource:
    """Samples in the caller's thread, when a batch is requested."""

    def __init__(
        self,
        sampler: BatchSampler,
        schedule: Schedule,
        *,
        channel_bytes: int = 4 << 30,
        store: PartitionedStore | None = None,
        check: Callable[[], None] | None = None,
        memory: FeatureMemory | None = None,
        spans: BatchSpans | None = None,
    ) -> None:
        """Frames take about ``channel_bytes``, in slots whose memory is committed when it is touched.

        ``check`` is called before each batch, and raises if what it would be made of is damaged.

        ``store`` is the sampler's store, where no other sampler uses it: it is closed with the source.

        ``memory``, for ``stats``: where features are read from.
        """
        self._sampler = sampler if schedule.draw is None else SeedWeightedSampler(sampler, schedule.draw)
        self._schedule = schedule
        self._store = store
        self._check = check
        self._memory_told = features_told(memory)
        self._spans = spans
        self._slots: SlotPool | None = private_slots(channel_bytes, _INLINE_SLOTS)
        self._epoch = -1
        self._position = schedule.num_batches
        self._batches = self._bytes = self._fresh = 0
        self._seconds = 0.0

    @property
    def num_batches(self) -> int:
        return self._schedule.num_batches

    def start_epoch(self, epoch: int, first_batch: int = 0, origin: int = 0) -> None:
        if self._slots is None:
            raise ValueError("the source is closed")
        schedule = self._schedule.from_origin(origin)
        check_epoch(epoch, first_batch, num_batches=schedule.num_batches)
        self._schedule = schedule
        self._epoch, self._position = epoch, first_batch

    def wait_until_up(self, timeout: float) -> None:
        """Nothing has to start."""

    def receive(self, timeout: float) -> Frame:
        if self._slots is None:
            raise ValueError("the source is closed")
        if self._position >= self.num_batches:
            raise ValueError(f"all {self.num_batches} batches of the epoch were received: start an epoch")
        if self._check is not None:
            self._check()
        began = time.perf_counter()
        try:
            frame = self._sampled(self._slots, time.monotonic() + timeout)
        except Exception as error:
            record = Failure.of(error, epoch=self._epoch, batch=self._position, worker=None)
            if not isinstance(error, StorageUnavailable):
                if self._spans is not None:
                    self._spans.end(self._epoch, self._position, error)
                self._position += 1
            raise record.error() from error
        finally:
            self._seconds += time.perf_counter() - began
        self._position += 1
        self._batches += 1
        self._bytes += frame.nbytes
        return frame

    def close(self) -> None:
        self._slots = None
        if self._store is not None:
            self._store.close()

    def stats(self) -> dict[str, Any]:
        costs = self._sampler.costs.read()
        return {
            "batches": self._batches,
            "bytes": self._bytes,
            "seconds_waiting": self._seconds,
            "seconds_sampling": self._seconds,
            "cpu_seconds": 0.0,
            "cpu_sampling": costs.cpu_sampling_ns / 1e9,
            "cpu_gathering": costs.cpu_gathering_ns / 1e9,
            "cpu_wire": 0.0,
            "wire_bytes_in": costs.wire_bytes_in,
            "wire_bytes_out": costs.wire_bytes_out,
            "peer_calls": costs.peer_calls,
            "copied_out": 0,
            "oversize": self._fresh,
            "restarts": 0,
            "workers": [],
            **self._memory_told,
        }

    def _sampled(self, slots: SlotPool, deadline: float) -> Frame:
        """Return the next batch. While its nodes' owner does not answer, sample again until ``deadline``."""
        try:
            return self._sample(slots)
        except StorageUnavailable as error:  # The store waited for a part of the time, or was refused.
            again, tries = partial(self._sample, slots), attempts(Deadline(deadline))
            return retried(again, StorageUnavailable, tries, after=error)

    def _sample(self, slots: SlotPool) -> Frame:
        span = None if self._spans is None else self._spans.begin(self._epoch, self._position)
        with nullcontext() if span is None else span.step("gigl.sample"):
            sampled = self._sampler.sample(self._schedule.request(self._epoch, self._position))
        layout = sampled.layout
        buffer = self._memory(slots, layout.nbytes)
        with nullcontext() if span is None else span.step("gigl.gather"):
            sampled.write(buffer)
        return Frame(buffer, layout)

    def _memory(self, slots: SlotPool, nbytes: int) -> Bytes:
        slot = slots.take(nbytes)
        if slot is None:
            self._fresh += 1
            return np.empty(nbytes, np.uint8)
        return slots.lend(slot, nbytes)


def features_told(memory: FeatureMemory | None) -> dict[str, Any]:
    """Return what ``stats`` tell of where features are read from, where that was decided."""
    return {} if memory is None else {"feature_memory": memory.to_json()}


def check_epoch(epoch: int, first_batch: int, *, num_batches: int) -> None:
    """Raise ``ValueError`` unless an epoch of ``num_batches`` can start there."""
    if epoch < 0:
        raise ValueError(f"epochs count from 0, got {epoch}")
    if not 0 <= first_batch <= num_batches:
        raise ValueError(f"first_batch must lie in [0, {num_batches}], got {first_batch}")
