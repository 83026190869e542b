"""Datasets whose source misbehaves as told: faults are values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gigl_loader import DistDataset

if TYPE_CHECKING:
    from gigl_loader.channel.frame import Frame
    from gigl_loader.graph.graph import Graph
    from gigl_loader.sampling.source import BatchSource, SourceRequest


@dataclass
class Script:
    """What a source does instead of delivering batch after batch."""

    order: Callable[[Sequence[int]], Sequence[int]] = list
    """In which order the batches of an epoch come."""
    faults: dict[int, Exception] = field(default_factory=dict)
    """Raised, every time, in place of a batch, which counts as received."""
    waits: dict[int, Exception] = field(default_factory=dict)
    """Raised once before a batch, which is not consumed."""
    starts: list[tuple[int, int]] = field(default_factory=list)
    """Epoch and first batch of every ``start_epoch``."""
    closed: int = 0


class ScriptedDataset(DistDataset):
    """A dataset whose source follows a script. Sampling is inline, whatever was asked for."""

    def __init__(self, graph: Graph, script: Script) -> None:
        super().__init__(graph)
        self.script = script

    def open_source(self, request: SourceRequest) -> BatchSource:
        return _ScriptedSource(super().open_source(replace(request, num_workers=0)), self.script)


class _ScriptedSource:
    def __init__(self, inner: BatchSource, script: Script) -> None:
        self._inner = inner
        self._script = script
        self._epoch = self._origin = 0
        self._coming: list[int] = []

    @property
    def num_batches(self) -> int:
        return self._inner.num_batches

    def start_epoch(self, epoch: int, first_batch: int = 0, origin: int = 0) -> None:
        self._script.starts.append((epoch, first_batch))
        self._epoch, self._origin = epoch, origin
        self._inner.start_epoch(epoch, first_batch, origin)
        self._coming = list(self._script.order(range(first_batch, self.num_batches)))

    def wait_until_up(self, timeout: float) -> None:
        self._inner.wait_until_up(timeout)

    def receive(self, timeout: float) -> Frame:
        batch = self._coming[0]
        if batch in self._script.waits:
            raise self._script.waits.pop(batch)
        del self._coming[0]
        if batch in self._script.faults:
            raise self._script.faults[batch]
        self._inner.start_epoch(self._epoch, batch, self._origin)
        return self._inner.receive(timeout)

    def close(self) -> None:
        self._script.closed += 1
        self._inner.close()

    def stats(self) -> dict[str, Any]:
        return self._inner.stats()
