"""Schedule of a run: the requests of every epoch, by rank, and draws of seeds by weight.

Where seeds are drawn by weight, a request names epoch, batch and number of seeds; the seeds are
decided where the batch is sampled, at that moment. The frame has their ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from gigl_loader import native
from gigl_loader.arrays import Int64Array
from gigl_loader.native import permutation
from gigl_loader.sampling.request import SEED, TIME, TIME_START, BatchRequest
from gigl_loader.shared import SharedTensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from gigl_loader.arrays import Array, Float64Array
    from gigl_loader.sampling.costs import CostCounter
    from gigl_loader.sampling.plan import BatchSampler, SampledBatch

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
        self._times = {name: seeds.array(name) for name in (TIME, TIME_START) if name in seeds}
        self._rank, self._world_size = (int(seeds.array(name)) for name in ("rank", "world_size"))
        self._timeout_s = float(seeds.array("timeout_s"))

    @classmethod
    def of(
        cls,
        weights: SharedTensors,
        positions: Int64Array,
        *,
        places: Int64Array | None,
        times: Mapping[str, Array] | None = None,
        run_seed: int,
        rank: int,
        timeout_s: float,
        world_size: int = 1,
    ) -> SeedDraw:
        """Share the ``positions`` [N] of the seeds, and their ``times`` by column [N] where they have some.

        Weight i is that of seed i, or, with ``places``, weight ``places[i]``. ``timeout_s`` bounds each wait
        for the lock of ``weights``. ``world_size`` ranks share the input; where that is one, ``rank`` tells
        its draws from those of other ranks.

        ``ValueError`` where the weights cannot be drawn by as they stand.
        """
        seeds = {
            "positions": positions,
            "rank": np.array(rank),
            "world_size": np.array(world_size),
            "run_seed": np.array(run_seed, np.uint64),
            "timeout_s": np.array(float(timeout_s)),
        }
        if places is not None:
            seeds["places"] = places
        seeds |= times or {}
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

        The random numbers depend on run seed, epoch and the number of the batch; the weights are the present
        ones. ``weights`` and ``sums`` [N] are scratch memory.
        """
        total = self.read(weights, sums)
        place = self._rank, asked.batch
        if self._world_size > 1:
            place = asked.number % self._world_size, asked.number // self._world_size
        key = native.batch_key(self._run_seed, asked.epoch, np.array(place, np.int64))
        drawn = np.empty(len(asked))
        native.uniforms(key, drawn)
        chosen = np.searchsorted(sums, drawn * total, side="right")
        # A product of tiny numbers may round up to the total, beyond the last seed that has a weight.
        np.minimum(chosen, np.searchsorted(sums, total), out=chosen)
        index = chosen if self._places is None else self._places[chosen]
        inputs = {SEED: self._positions[chosen], **{name: each[chosen] for name, each in self._times.items()}}
        return BatchRequest(asked.epoch, asked.batch, index, inputs, asked.number)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Which share of an input is this rank's. By default, all of it."""

    rank: int = 0
    world_size: int = 1
    even_batches: bool = True
    """Give ranks without a seed in the last step one from the start of the epoch again."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} of {self.world_size} ranks")

    def __str__(self) -> str:
        if self.world_size == 1:
            return "none"
        return f"batches over {self.world_size} ranks" + ("" if self.even_batches else ", uneven")


WHOLE = Shard()


class Schedule:
    """Cuts an input into the batches of an epoch. Any batch of any epoch can be requested.

    The order of an epoch depends only on the run seed, the epoch and the length of the input, and so is
    the same on every rank. It is cut into *steps* of one batch for each of W ranks: rank r's batch of
    step s is batch ``s * W + r`` of what one rank alone would get. What remains after the whole steps
    is split evenly over the ranks, as the last step. So every seed comes once, shares differ in length
    by at most one seed, and ranks have equally many batches; only where fewer seeds remain than there
    are ranks, ranks without a seed repeat one each from the start of the order, or, without
    ``even_batches``, have one batch less.

    An epoch whose ranks have changed may begin its steps at a batch ``origin`` below W: rank r's batch of
    step s is then batch ``origin + s * W + r``. So the steps that are left begin at any batch.
    """

    def __init__(
        self,
        inputs: Mapping[str, Array],
        *,
        batch_size: int,
        shuffle: bool,
        drop_last: bool,
        run_seed: int,
        shard: Shard = WHOLE,
        places: Int64Array | None = None,
        draw: SeedDraw | None = None,
        origin: int = 0,
    ) -> None:
        """``inputs``: the columns of the plan by name, [N] each.

        ``places`` [N]: where each entry stands in the user's input, if that is not its number here.
        With ``draw``, only the number of entries of a request counts: its seeds are drawn by the sampler.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.inputs = inputs
        self.num_entries = len(next(iter(inputs.values()), ()))
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.run_seed = run_seed
        self.shard = shard
        self.places = places
        self.draw = draw
        self.origin = origin
        self._whole_steps = self._left // (batch_size * shard.world_size)
        self._order: tuple[int, Int64Array] | None = None

    def sharded(self, shard: Shard, *, origin: int = 0) -> Schedule:
        """Return the schedule of another rank over the same input, or of steps that begin elsewhere."""
        if shard == self.shard and origin == self.origin:
            return self
        found = Schedule(
            self.inputs,
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            run_seed=self.run_seed,
            shard=shard,
            places=self.places,
            draw=self.draw,
            origin=origin,
        )
        found._order = self._order
        return found

    def from_origin(self, origin: int) -> Schedule:
        """Return the schedule of this rank where steps begin at batch ``origin``."""
        return self.sharded(self.shard, origin=origin)

    @property
    def total(self) -> int:
        """Batches of an epoch that one rank alone would have, without ``drop_last``."""
        return -(-self.num_entries // self.batch_size)

    def number_of(self, step: int) -> int:
        """Return how many batches all ranks together have had before ``step``; after the last, ``total``."""
        return self.total if 0 < self.num_steps <= step else self.origin + step * self.shard.world_size

    @property
    def num_batches(self) -> int:
        """Batches of every epoch, on this rank."""
        return self._whole_steps + (len(self._last_step()) > 0)

    @property
    def num_steps(self) -> int:
        """Batches of every epoch on the rank that has the most."""
        return self._whole_steps + (self._remaining > 0 and not self.drop_last)

    def request(self, epoch: int, batch: int) -> BatchRequest:
        """Return a batch of ``epoch`` on this rank. ``ValueError`` unless ``0 <= batch < num_batches``."""
        if not 0 <= batch < self.num_batches:
            raise ValueError(f"batch {batch} of an epoch of {self.num_batches}")
        index = self.entries(epoch, self.span(batch))
        return replace(self.request_of(index, epoch), batch=batch, number=self.number_in_epoch(batch))

    def number_in_epoch(self, batch: int) -> int:
        """Return the number of a batch of this rank among those of all ranks."""
        return self.origin + batch * self.shard.world_size + self.shard.rank

    def request_of(self, index: Int64Array, epoch: int) -> BatchRequest:
        """Return a request for the entries ``index``, int64 [B], each in ``[0, num_entries)``."""
        inputs = {name: column[index] for name, column in self.inputs.items()}
        return BatchRequest(epoch, 0, index if self.places is None else self.places[index], inputs)

    def entries(self, epoch: int, span: range) -> Int64Array:
        """Return the entries that stand at ``span`` in the order of an epoch, int64 [B]."""
        if not self.shuffle:
            return np.arange(span.start, span.stop, dtype=np.int64)
        return self._order_of(epoch)[span.start : span.stop]

    def span(self, batch: int) -> range:
        """Return where the entries of a batch of this rank stand in the order of an epoch."""
        return self._whole_step(batch) if batch < self._whole_steps else self._last_step()

    def places_of(self, epoch: int, chosen: npt.NDArray[np.bool_]) -> Int64Array:
        """Return the places in the user's input of the entries that are ``chosen``, [N], of the order."""
        entries = self._order_of(epoch)[chosen] if self.shuffle else np.flatnonzero(chosen)
        return entries if self.places is None else self.places[entries]

    @property
    def _left(self) -> int:
        """Entries from the origin on."""
        return max(self.num_entries - self.origin * self.batch_size, 0)

    @property
    def _remaining(self) -> int:
        return self._left - self._whole_steps * self.batch_size * self.shard.world_size

    def _whole_step(self, step: int) -> range:
        """Return this rank's places in the order of an epoch, of a step in which all batches are full."""
        begin = (self.origin + step * self.shard.world_size + self.shard.rank) * self.batch_size
        return range(begin, begin + self.batch_size)

    def _last_step(self) -> range:
        """Return this rank's places of what remains after the whole steps."""
        rank, world_size, remaining = self.shard.rank, self.shard.world_size, self._remaining
        if not remaining or self.drop_last:
            return range(0)
        share, longer = divmod(remaining, world_size)
        if not share and rank >= remaining:
            again = (rank - remaining) % self.num_entries
            return range(again, again + 1) if self.shard.even_batches else range(0)
        begin = self.num_entries - remaining + rank * share + min(rank, longer)
        return range(begin, begin + share + (rank < longer))

    def _order_of(self, epoch: int) -> Int64Array:
        if self._order is None or self._order[0] != epoch:
            order = np.empty(self.num_entries, np.int64)
            permutation(self.run_seed, epoch, order)
            self._order = (epoch, order)
        return self._order[1]


class OneBatch(Schedule):
    """Epochs of one batch, that of the request ``asked``."""

    asked: BatchRequest

    def __init__(self, *, run_seed: int) -> None:
        super().__init__({}, batch_size=1, shuffle=False, drop_last=False, run_seed=run_seed)

    @property
    def num_batches(self) -> int:
        return 1

    def request(self, epoch: int, batch: int) -> BatchRequest:
        return self.asked


@dataclass(slots=True, kw_only=True)
class Progress:
    """Which batches of an epoch the user was given.

    Batches may come out of order and one may fail, so what was given is a prefix and some beyond it.
    """

    epoch: int
    origin: int = 0
    """Where the steps of the epoch begin, see ``Schedule``."""
    first: int = 0
    """Every batch before this one was given."""
    ahead: set[int] = field(default_factory=set)
    """Batches given beyond ``first``; empty when all come, and in order."""
    ended: bool = False
    """The user got the end of the epoch (``StopIteration``), or loaded a state that has all its batches."""
    loaded: bool = False
    """Put back by ``load_state_dict``."""

    @classmethod
    def at_end(cls, epoch: int, num_batches: int, *, loaded: bool = True) -> Progress:
        return cls(epoch=epoch, first=num_batches, ended=True, loaded=loaded)

    def lacks(self, batch: int) -> bool:
        return batch >= self.first and batch not in self.ahead

    def give(self, batch: int) -> None:
        """Count a batch as given."""
        self.ahead.add(batch)
        while self.first in self.ahead:
            self.ahead.remove(self.first)
            self.first += 1

    @property
    def is_underway(self) -> bool:
        """Whether batches of the epoch were given, and others are left."""
        return not self.ended and bool(self.origin or self.first or self.ahead)

    @property
    def next_epoch(self) -> int:
        """Epoch of the next batch. An ended epoch is the start of the next."""
        return self.epoch + self.ended
