"""Which seeds belong to which batch of which epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gigl_loader.native import permutation

__all__ = ["Request", "Schedule"]

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What is asked of a sampler: one batch, named by epoch and number, and its seeds."""

    epoch: int
    batch: int
    seeds: Int64Array
    """Positions [B], in input order or shuffled; may repeat."""
    input_ids: Int64Array
    """Place of each seed in the input [B]."""


class Schedule:
    """Cuts an input into the batches of an epoch. Any batch of any epoch can be asked for.

    The shuffle depends only on the run seed, the epoch and the length of the input.
    """

    def __init__(
        self, seeds: Int64Array, *, batch_size: int, shuffle: bool, drop_last: bool, run_seed: int
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.seeds = seeds
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.run_seed = run_seed
        self._order: tuple[int, Int64Array] | None = None

    @property
    def num_batches(self) -> int:
        """Batches of every epoch."""
        if self.drop_last:
            return len(self.seeds) // self.batch_size
        return -(-len(self.seeds) // self.batch_size)

    def request(self, epoch: int, batch: int) -> Request:
        """Return batch ``batch`` of ``epoch``. ``ValueError`` unless ``0 <= batch < num_batches``."""
        if not 0 <= batch < self.num_batches:
            raise ValueError(f"batch {batch} of an epoch of {self.num_batches}")
        begin = batch * self.batch_size
        end = min(begin + self.batch_size, len(self.seeds))
        input_ids = (
            self._order_of(epoch)[begin:end] if self.shuffle else np.arange(begin, end, dtype=np.int64)
        )
        return Request(epoch, batch, self.seeds[input_ids], input_ids)

    def _order_of(self, epoch: int) -> Int64Array:
        if self._order is None or self._order[0] != epoch:
            order = np.empty(len(self.seeds), np.int64)
            permutation(self.run_seed, epoch, order)
            self._order = (epoch, order)
        return self._order[1]
