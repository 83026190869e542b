"""Maker of frames: in the requested slot, in memory for the network, or as the record of a failure."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.channel.frame import Failure
from gigl_loader.errors import SamplingError, StorageUnavailable
from gigl_loader.native import Stopped
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.sampling.bounds import BatchBounds, TooLong, TooManyEdges
from gigl_server.sessions.channel import StopCause

if TYPE_CHECKING:
    from gigl_loader.arrays import Bytes
    from gigl_server.counters import Counters
    from gigl_server.frames.buffer_pool import BufferPool
    from gigl_server.sampling.journal import Journal
    from gigl_server.sampling.sampler_pool import SamplerPool
    from gigl_server.sessions.channel import SampleTask

__all__ = ["FrameMaker", "MadeFrame"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeFrame:
    """Frame that a sampling thread made for a request. Empty where the request was stale."""

    memory: Bytes | None = None
    """Memory of a frame that goes over the network, uint8 [nbytes]."""
    overflows: bool = False
    """The frame does not fit the requested slot. With 0 ``nbytes``, there was no other memory either."""
    too_large: bool = False
    """The batch has more edges than its allowance of scratch memory."""
    stopped: bool = False
    """The batch was stopped for its place, and is sampled again."""
    in_slot: bool = False
    failure: bytes = b""
    unavailable: bool = False
    nbytes: int = 0
    sampling_s: float = 0.0


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

    def make(self, task: SampleTask, thread: int) -> MadeFrame | Refusal:
        """Sample and write a batch. An exception becomes a failure record with the number of this thread."""
        began = time.perf_counter()
        made: MadeFrame | Refusal
        try:
            with self._journal.under_way(task, thread), task.flag:
                made = self._made(task)
        except Stopped as stopped:
            made = _stopped(task, stopped, thread)
        except TooManyEdges as error:
            larger = task.allowance < self._most_edges
            made = MadeFrame(too_large=True) if larger else _failed(task, error, thread)
        except Exception as error:
            made = _failed(task, error, thread)
        if isinstance(made, Refusal):
            return made
        return replace(made, sampling_s=time.perf_counter() - began)

    def _made(self, task: SampleTask) -> MadeFrame:
        if task.is_stale():
            return MadeFrame()
        with self._samplers.lent(task.channel) as sampler:
            sampler.bounds = self._bounds(task)
            with self._counters.timed("sampling_s"):
                sampled = sampler.sample(task.request)
            nbytes = sampled.layout.nbytes
            if task.is_stale():
                return MadeFrame()
            ring = task.channel.ring if task.slot else None
            ring = ring if ring is not None and ring.is_shared else None
            memory = None if ring is None else ring.room(task.slot, nbytes)
            in_slot = memory is not None
            if memory is None:
                if ring is not None and not task.needs_frame_memory and self._memory.full:
                    return MadeFrame(overflows=True)
                memory = self._lent(nbytes)
            with self._counters.timed("gathering_s"):
                sampled.write(memory)
        if in_slot:
            return MadeFrame(in_slot=True, nbytes=nbytes)
        return MadeFrame(memory=memory, overflows=ring is not None, nbytes=nbytes)

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


def _stopped(task: SampleTask, stopped: Stopped, thread: int) -> MadeFrame | Refusal:
    """Return what becomes of a batch that was stopped."""
    if task.cause is StopCause.TIME:
        error = TooLong.of(len(task.request), task.ran_s)
        return _failed(task, error, thread)
    if task.cause is StopCause.SERVER:
        return Refusal(RefusalKind.UNAVAILABLE, str(stopped))
    return MadeFrame(stopped=task.cause is StopCause.PLACE)


def _failed(task: SampleTask, error: Exception, thread: int) -> MadeFrame:
    failure = Failure.of(error, epoch=task.request.epoch, batch=task.request.batch, worker=thread)
    layout = failure.layout
    buffer = np.empty(layout.nbytes, np.uint8)
    failure.write(buffer)
    return MadeFrame(
        failure=buffer.tobytes(), unavailable=isinstance(error, StorageUnavailable), nbytes=layout.nbytes
    )
