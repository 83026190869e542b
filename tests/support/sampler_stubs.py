"""Samplers of one worker that wait for each other: openers for a ``WorkerSource``.

Barriers prove that batches are sampled at the same time; all waits end by themselves.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gigl_loader.errors import StorageUnavailable
from gigl_loader.workers.main import open_samplers

if TYPE_CHECKING:
    from gigl_loader.sampling.costs import CostCounter
    from gigl_loader.sampling.plan import BatchSampler, SampledBatch
    from gigl_loader.sampling.request import BatchRequest
    from gigl_loader.workers.config import WorkerConfig

PAIRED_CREW = f"{__name__}:paired_samplers"
DYING_CREW = f"{__name__}:dying_samplers"
FREE_CREW = f"{__name__}:free_samplers"
UNAVAILABLE_CREW = f"{__name__}:unavailable_samplers"
LASTING_CREW = f"{__name__}:lasting_samplers"

_SECONDS = 20


@dataclass(frozen=True)
class Before:
    """Samples as another does, after something else has happened."""

    sampler: BatchSampler
    happen: Callable[[BatchRequest], None]

    @property
    def costs(self) -> CostCounter:
        return self.sampler.costs

    def sample(self, request: BatchRequest) -> SampledBatch:
        self.happen(request)
        return self.sampler.sample(request)


def _samplers(config: WorkerConfig, happen: Callable[[BatchRequest], None]) -> Sequence[BatchSampler]:
    return [Before(open_samplers(config)[0], happen) for _ in range(config.concurrency)]


def paired_samplers(config: WorkerConfig) -> Sequence[BatchSampler]:
    """No batch is sampled before another one has begun."""
    barrier = threading.Barrier(2, timeout=_SECONDS)

    def meet(_: BatchRequest) -> None:
        barrier.wait()

    return _samplers(config, meet)


def free_samplers(config: WorkerConfig) -> Sequence[BatchSampler]:
    """Several samplers that wait for nobody."""
    return _samplers(config, lambda _: None)


def dying_samplers(config: WorkerConfig) -> Sequence[BatchSampler]:
    """In the first life of a worker, it is killed as soon as all its samplers are at work."""
    barrier = threading.Barrier(config.concurrency, timeout=_SECONDS)

    def die(_: BatchRequest) -> None:
        if config.incarnation == 0:
            barrier.wait()
            os.kill(os.getpid(), signal.SIGKILL)

    return _samplers(config, die)


@dataclass
class _Outage:
    """Batches from the third on are not available the first time that they are requested.

    In epoch ``lasting``, they never are.
    """

    lasting: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    seen: set[tuple[int, int]] = field(default_factory=set)

    def happen(self, request: BatchRequest) -> None:
        with self.lock:
            first = (request.epoch, request.batch) not in self.seen
            self.seen.add((request.epoch, request.batch))
        if request.batch >= 2 and (first or request.epoch == self.lasting):
            raise StorageUnavailable(
                f"host 1 (10.0.0.2:7000), partition 1: no answer to batch {request.batch}"
            )


def unavailable_samplers(config: WorkerConfig) -> Sequence[BatchSampler]:
    return _samplers(config, _Outage().happen)


def lasting_samplers(config: WorkerConfig) -> Sequence[BatchSampler]:
    return _samplers(config, _Outage(lasting=0).happen)
