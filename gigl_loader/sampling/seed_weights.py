"""Seeds drawn by weights that the trainer changes while its workers draw.

A request then names epoch, batch and number of seeds; which seeds they are is decided where the batch is
sampled, at that moment. The frame tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gigl_loader import native
from gigl_loader.sampling.request import SEED, TIME, BatchRequest
from gigl_loader.shared import SharedTensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gigl_loader.arrays import Float64Array, Int64Array
    from gigl_loader.sampling.costs import CostCounter
    from gigl_loader.sampling.source import BatchSampler, SampledBatch


__all__ = ["WEIGHT", "SeedDraw", "SeedWeightedSampler"]

WEIGHT = "weight"
"""Name of the shared tensor that holds the weights."""


class SeedDraw:
    """The weights, the seeds that they belong to, and where a draw finds its random numbers.

    Both lie in shared memory: a sampling process gets two descriptors.
    """

    def __init__(self, weights: SharedTensors, seeds: SharedTensors) -> None:
        self._weights = weights
        self._seeds = seeds
        self._run_seed = int(seeds.array("run_seed"))
        self._positions: Int64Array = seeds.array("positions")
        self._places: Int64Array | None = seeds.array("places") if "places" in seeds else None
        self._times: Int64Array | None = seeds.array("times") if "times" in seeds else None
        self._rank = int(seeds.array("rank"))
        self._timeout_s = float(seeds.array("timeout_s"))

    @classmethod
    def of(
        cls,
        weights: SharedTensors,
        positions: Int64Array,
        *,
        places: Int64Array | None,
        times: Int64Array | None = None,
        run_seed: int,
        rank: int,
        timeout_s: float,
    ) -> SeedDraw:
        """Share the ``positions`` [N] of the seeds, and their ``times`` [N] where they have some.

        Weight i is that of seed i, or, with ``places``, weight ``places[i]``. ``timeout_s`` bounds each wait
        for the lock of ``weights``.

        ``ValueError`` where the weights cannot be drawn by as they stand.
        """
        seeds = {
            "positions": positions,
            "rank": np.array(rank),
            "run_seed": np.array(run_seed, np.uint64),
            "timeout_s": np.array(float(timeout_s)),
        }
        if places is not None:
            seeds["places"] = places
        if times is not None:
            seeds["times"] = times
        draw = cls(weights, SharedTensors.create(seeds))
        draw.read(np.empty(len(positions)), np.empty(len(positions)))
        return draw

    @classmethod
    def received(cls, files: Mapping[str, int]) -> SeedDraw:
        """Take over descriptors that :attr:`files` of another process names."""
        return cls(SharedTensors(files["weights"]), SharedTensors(files["seeds"]))

    @property
    def files(self) -> dict[str, int]:
        """Descriptors for another process. They stay this object's."""
        return {"weights": self._weights.fd, "seeds": self._seeds.fd}

    def __len__(self) -> int:
        return len(self._positions)

    def read(self, weights: Float64Array, sums: Float64Array) -> float:
        """Copy the weights under their lock; then, without it, add them up into ``sums`` [N].

        Return the total. ``ValueError`` names a weight that is no weight.
        """
        shared = self._weights.array(WEIGHT)
        with self._weights.lock(self._timeout_s):
            weights[...] = shared if self._places is None else shared[self._places]
        with np.errstate(over="ignore", invalid="ignore"):
            np.cumsum(weights, out=sums)
        total = float(sums[-1])
        if not (weights.min() >= 0 and 0 < total < np.inf):
            raise ValueError(self._complaint(weights))
        return total

    def request(self, asked: BatchRequest, weights: Float64Array, sums: Float64Array) -> BatchRequest:
        """Return ``asked`` with as many seeds, drawn with replacement, and their input ids.

        The numbers drawn by depend on run seed, epoch, rank and batch; the weights are those of now.
        ``weights`` and ``sums`` [N] are scratch memory.
        """
        total = self.read(weights, sums)
        key = native.batch_key(self._run_seed, asked.epoch, np.array([self._rank, asked.batch], np.int64))
        drawn = np.empty(len(asked))
        native.uniforms(key, drawn)
        chosen = np.searchsorted(sums, drawn * total, side="right")
        # A product of tiny numbers may round up to the total, beyond the last seed that has a weight.
        np.minimum(chosen, np.searchsorted(sums, total), out=chosen)
        index = chosen if self._places is None else self._places[chosen]
        inputs = {SEED: self._positions[chosen]}
        if self._times is not None:
            inputs[TIME] = self._times[chosen]
        return BatchRequest(asked.epoch, asked.batch, index, inputs)

    def _complaint(self, weights: Float64Array) -> str:
        wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
        if len(wrong):
            first = int(wrong[0])
            place = first if self._places is None else int(self._places[first])
            return f"seed weights must be finite and not negative: weight {place} is {weights[first]:g}"
        if not weights.any():
            return "seed weights are all zero: no seed can be drawn"
        return "seed weights are too large: their sum is not finite"


class SeedWeightedSampler:
    """Draws the seeds of each request, then lets another sampler make the batch."""

    def __init__(self, sampler: BatchSampler, draw: SeedDraw) -> None:
        self._sampler = sampler
        self._draw = draw
        self._weights, self._sums = np.empty(len(draw)), np.empty(len(draw))

    @property
    def costs(self) -> CostCounter:
        return self._sampler.costs

    def sample(self, request: BatchRequest) -> SampledBatch:
        return self._sampler.sample(self._draw.request(request, self._weights, self._sums))
