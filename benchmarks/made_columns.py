"""Weights, times and batches of the benchmarks of kinds of draws, by a stated rule. Needs NumPy alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SPAN = 1 << 20
BATCHES = 12


def weights(count: int) -> npt.NDArray[np.float32]:
    """Return exponential weights of edges."""
    return np.random.default_rng(3).exponential(size=count).astype(np.float32)


def times(count: int) -> npt.NDArray[np.int64]:
    """Return times of edges, uniform below ``SPAN``."""
    return np.random.default_rng(4).integers(SPAN, size=count)


def batches(data: Path, batch_size: int) -> list[tuple[npt.NDArray[Any], npt.NDArray[np.int64]]]:
    """Return the seeds of each batch and their times, in the later half of the span."""
    seeds = np.load(data / "train.npy").astype(np.int64)
    size = min(batch_size, len(seeds) // 2)
    when = np.random.default_rng(5).integers(SPAN // 2, SPAN, size=(BATCHES, size))
    return [(np.roll(seeds, -batch * size)[:size], when[batch]) for batch in range(BATCHES)]
