"""Pipeline from a frame to the batch of the training loop, with the time that each step took."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.channel.frame import Frame
    from gigl_loader.loaders.transfer import FrameTensors, Transfer

__all__ = ["BatchPipeline"]

_STEPS = ("copying", "collating", "transforming")


class BatchPipeline:
    """Brings frames to the device, collates them and applies the user's transform."""

    def __init__(self, transfer: Transfer, transform: Callable[[Any], Any] | None) -> None:
        self.transfer = transfer
        self._transform = transform
        self.seconds = dict.fromkeys(_STEPS, 0.0)
        """Spent in each step."""

    def make(self, frame: Frame, collate: Callable[[FrameTensors], Any]) -> Any:
        """Return the batch of a frame."""
        times = [time.perf_counter()]
        tensors = self.transfer.load(frame)
        times.append(time.perf_counter())
        batch = collate(tensors)
        times.append(time.perf_counter())
        if self._transform is not None:
            batch = self._transform(batch)
        times.append(time.perf_counter())
        for step, (begin, end) in zip(_STEPS, itertools.pairwise(times), strict=True):
            self.seconds[step] += end - begin
        return batch
