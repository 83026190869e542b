"""Faults as values, and the sampler of a worker that commits them.

A plan travels in the graph's reference, which the trainer hands to its workers anyway; the worker is
told to make its sampler with ``faulty_sampler``. The package itself knows nothing of faults.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from gigl_loader.errors import StorageUnavailable
from gigl_loader.workers.main import open_samplers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.graph.graph import Graph
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.graph.verifier import Verifier
    from gigl_loader.sampling.costs import CostCounter
    from gigl_loader.sampling.plan import BatchSampler, SampledBatch
    from gigl_loader.sampling.request import BatchRequest
    from gigl_loader.workers.config import WorkerConfig

FAULTY_SAMPLER = f"{__name__}:faulty_sampler"


class Mishap(RuntimeError):
    """What a sampler raises by plan."""


@dataclass(frozen=True, kw_only=True)
class FaultPlan:
    """What goes wrong, where, and how often."""

    what: str
    """``kill``, ``segv``, ``stop`` (the signals), ``exit``, ``raise``, ``limit`` (no thread can be started),
    ``sleep`` or ``collect`` (garbage);
    ``away``: the owner of a partition does not answer, ``lives`` times in each sampler."""
    at_batch: int | None = None
    """At this batch. ``None``: at the start, before the worker is up."""
    worker: int | None = None
    """In this worker, or in any."""
    seconds: float = 60.0
    """How long it sleeps."""
    lives: int = 1
    """In so many processes of a worker, one after the other."""

    def happens(self, config: WorkerConfig, batch: int | None) -> bool:
        here = self.worker in (None, config.worker) and config.incarnation < self.lives
        return here and batch == self.at_batch

    def commit(self) -> None:
        match self.what:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segv":
                ctypes.string_at(0)
            case "stop":
                # Sent to the process, another thread might take it, and this one go on for a while.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            case "exit":
                os._exit(3)
            case "raise":
                raise Mishap("as planned")
            case "limit":
                raise RuntimeError("can't start new thread")  # As ``Thread.start`` does.
            case "sleep":
                time.sleep(self.seconds)
            case "collect":
                gc.collect()


@dataclass(frozen=True)
class GraphWithFaults:
    """A graph as a trainer passes it on, with a plan for the workers."""

    graph: Graph
    faults: FaultPlan

    @property
    def schema(self) -> GraphSchema:
        return self.graph.schema

    @property
    def verifier(self) -> Verifier:
        return self.graph.verifier

    @property
    def pass_fds(self) -> tuple[int, ...]:
        return self.graph.pass_fds

    @property
    def reference(self) -> dict[str, Any]:
        return {**self.graph.reference, "faults": asdict(self.faults)}


@dataclass(frozen=True)
class FaultySampler:
    """Samples as another does, but for the planned faults."""

    sampler: BatchSampler
    faults: FaultPlan
    config: WorkerConfig | None = None
    away: list[int] = field(default_factory=list)
    """Batches that were not available, in order."""

    @property
    def costs(self) -> CostCounter:
        return self.sampler.costs

    def sample(self, request: BatchRequest) -> SampledBatch:
        if self.config is None:
            if request.batch == self.faults.at_batch:
                self.faults.commit()
        elif self.faults.happens(self.config, request.batch):
            if self.faults.what == "away" and len(self.away) < self.faults.lives:
                self.away.append(request.batch)
                raise StorageUnavailable("as planned")
            self.faults.commit()
        return self.sampler.sample(request)


def faulty_sampler(config: WorkerConfig) -> Sequence[BatchSampler]:
    faults = FaultPlan(**config.reference["faults"])
    if faults.happens(config, None):
        faults.commit()
    return [FaultySampler(sampler, faults, config) for sampler in open_samplers(config)]
