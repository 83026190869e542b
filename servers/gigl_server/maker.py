"""From an ask to its frame: in the slot that was named, in memory for the network, or a failure's record."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.channel.frame import Failure
from gigl_loader.errors import SamplingError, StorageUnavailable
from gigl_loader.sampling.bounds import BatchBounds, TooManyEdges

if TYPE_CHECKING:
    from gigl_loader.channel.slots import Bytes
    from gigl_server.channels import Errand
    from gigl_server.frame_memory import FrameMemory
    from gigl_server.journal import Journal
    from gigl_server.ledger import Ledger
    from gigl_server.samplers import SamplerShelf

__all__ = ["Made", "Maker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a sampling thread made of an ask. Nothing: the batch was not wanted any more."""

    memory: Bytes | None = None
    """Of a frame that goes over the network."""
    overflows: bool = False
    """The frame does not fit the slot that was named. With no bytes: nor was there memory for it."""
    too_large: bool = False
    """The batch has more edges than there was scratch memory for."""
    in_slot: bool = False
    failure: bytes = b""
    unavailable: bool = False
    nbytes: int = 0
    sampling_s: float = 0.0


class Maker:
    """Makes batches. Any number of threads may use it."""

    def __init__(
        self,
        samplers: SamplerShelf,
        memory: FrameMemory,
        ledger: Ledger,
        *,
        most_edges: int,
        most_bytes: int,
        journal: Journal,
    ) -> None:
        """Batches have at most so many edges, and frames so many bytes. CPU time is added to ``ledger``."""
        self._samplers = samplers
        self._most_edges = most_edges
        self._most_bytes = most_bytes
        self._journal = journal
        self._memory = memory
        self._ledger = ledger

    def make(self, errand: Errand, thread: int) -> Made:
        """Sample and write a batch. Whatever goes wrong is recorded, with the number of this thread."""
        began = time.perf_counter()
        try:
            with self._journal.under_way(errand, thread):
                made = self._made(errand)
        except TooManyEdges as error:
            larger = errand.allowance < self._most_edges
            made = Made(too_large=True) if larger else _failed(errand, error, thread)
        except Exception as error:
            made = _failed(errand, error, thread)
        return replace(made, sampling_s=time.perf_counter() - began)

    def _made(self, errand: Errand) -> Made:
        if errand.is_stale():
            return Made()
        with self._samplers.lent(errand.channel) as sampler:
            sampler.bounds = self._bounds(errand)
            with self._ledger.timed("sampling_s"):
                sampled = sampler.sample(errand.request)
            nbytes = sampled.layout.nbytes
            if errand.is_stale():
                return Made()
            ring = errand.channel.ring if errand.slot else None
            ring = ring if ring is not None and ring.is_shared else None
            memory = None if ring is None else ring.room(errand.slot, nbytes)
            in_slot = memory is not None
            if memory is None:
                if ring is not None and not errand.needs_frame_memory and self._memory.full:
                    return Made(overflows=True)
                memory = self._lent(nbytes)
            with self._ledger.timed("gathering_s"):
                sampled.write(memory)
        if in_slot:
            return Made(in_slot=True, nbytes=nbytes)
        return Made(memory=memory, overflows=ring is not None, nbytes=nbytes)

    def _bounds(self, errand: Errand) -> BatchBounds:
        return BatchBounds(
            edges=errand.allowance or self._most_edges,
            nbytes=self._most_bytes,
            reason=" (the limit of this server)",
        )

    def _lent(self, nbytes: int) -> Bytes:
        if nbytes > self._memory.nbytes:
            raise SamplingError(
                f"a frame of {nbytes / 1e6:.1f} MB, and this server has {self._memory.nbytes / 1e6:.1f} MB "
                "for all that go over the network: ask for fewer seeds a batch, or raise its limit"
            )
        return self._memory.take(nbytes)


def _failed(errand: Errand, error: Exception, thread: int) -> Made:
    failure = Failure.of(error, epoch=errand.request.epoch, batch=errand.request.batch, worker=thread)
    layout = failure.layout
    buffer = np.empty(layout.nbytes, np.uint8)
    failure.write(buffer)
    return Made(
        failure=buffer.tobytes(), unavailable=isinstance(error, StorageUnavailable), nbytes=layout.nbytes
    )
