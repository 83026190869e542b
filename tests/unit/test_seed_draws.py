"""Seeds drawn by weights."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from gigl_loader import SharedTensors, native
from gigl_loader.sampling.request import SEED, BatchRequest
from gigl_loader.sampling.schedule import SeedDraw, SeedWeightedSampler
from tests.support import oracle
from tests.support.plans import seed_request

if TYPE_CHECKING:
    import numpy.typing as npt

POSITIONS = np.array([50, 10, 40, 20, 30])


@pytest.fixture(autouse=True)
def _uniforms(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(native, "uniforms"):
        monkeypatch.setattr(native, "uniforms", _expected_uniforms, raising=False)


def _expected_uniforms(key: int, out: npt.NDArray[np.float64]) -> None:
    out[:] = [(oracle.philox(key, i, 0xFE << 56)[0] >> 11) / 2**53 for i in range(len(out))]


def weights_of(*values: float, dtype: torch.dtype = torch.float64) -> SharedTensors:
    return SharedTensors.create({"weight": torch.tensor(values, dtype=dtype)})


def draw_of(weights: SharedTensors, **options: Any) -> SeedDraw:
    defaults = {"places": None, "run_seed": 7, "rank": 0, "timeout_s": 5.0}
    return SeedDraw.of(weights, POSITIONS, **{**defaults, **options})


def drawn(draw: SeedDraw, count: int = 1000, *, epoch: int = 0, batch: int = 0) -> BatchRequest:
    asked = seed_request(epoch, batch, np.zeros(count, np.int64))
    return draw.request(asked, np.empty(len(draw)), np.empty(len(draw)))


def test_draws_are_those_of_the_page_on_randomness() -> None:
    weights = [0.5, 0.0, 2.0, 1.0, 1.5]
    found = drawn(draw_of(weights_of(*weights), rank=3), epoch=2, batch=9)
    key = oracle.batch_key(7, 2, [3, 9])
    numbers = np.empty(1000)
    _expected_uniforms(key, numbers)
    sums = np.cumsum(weights)
    expected = [next(i for i in range(5) if sums[i] > number * 5.0) for number in numbers]
    assert found.index.tolist() == expected
    assert np.array_equal(found.inputs[SEED], POSITIONS[found.index])
    assert (found.epoch, found.batch) == (2, 9)
    assert found.inputs[SEED].dtype == found.index.dtype == np.int64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_seeds_come_as_often_as_their_weights_say(dtype: torch.dtype) -> None:
    weights = np.array([1.0, 0.0, 2.0, 0.0, 5.0])
    counts = np.bincount(drawn(draw_of(weights_of(*weights, dtype=dtype)), 80_000).index, minlength=5)
    expected = weights / weights.sum() * 80_000
    assert counts[1] == counts[3] == 0
    assert ((counts - expected)[weights > 0] ** 2 / expected[weights > 0]).sum() < 14  # p = 0.001


def test_epochs_batches_and_ranks_draw_differently_and_again_alike() -> None:
    weights = weights_of(1, 1, 1, 1, 1)
    draws = [
        drawn(draw_of(weights, rank=rank), epoch=epoch, batch=batch).index.tolist()
        for rank, epoch, batch in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    ]
    assert len({tuple(each) for each in draws}) == 4
    assert drawn(draw_of(weights)).index.tolist() == draws[0]


def test_weights_count_as_they_are_when_a_batch_is_drawn() -> None:
    weights = weights_of(1, 1, 1, 1, 1)
    draw = draw_of(weights)
    assert set(drawn(draw).index.tolist()) == {0, 1, 2, 3, 4}
    with weights.lock():
        weights["weight"].zero_()
        weights["weight"][3] = 2
    assert set(drawn(draw).inputs[SEED].tolist()) == {20}


def test_weights_of_a_mask_are_those_of_its_places() -> None:
    weights = SharedTensors.create({"weight": torch.zeros(10)})
    weights["weight"][torch.tensor([2, 8])] = 1
    weights["weight"][5] = math.nan  # No seed is there.
    draw = draw_of(weights, places=np.array([0, 2, 4, 6, 8]))
    found = drawn(draw)
    assert set(found.index.tolist()) == {2, 8}


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        ([1, 1, -1, 1, 1], "finite and not negative: weight 2 is -1"),
        ([1, math.nan, 1, 1, 1], "weight 1 is nan"),
        ([1, 1, 1, 1, math.inf], "weight 4 is inf"),
        ([0, 0, 0, 0, 0], "all zero"),
        ([1e308] * 5, "sum is not finite"),
    ],
)
def test_weights_that_are_none_are_refused_at_the_start_and_later(
    weights: list[float], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        draw_of(weights_of(*weights))
    shared = weights_of(1, 1, 1, 1, 1)
    draw = draw_of(shared)
    shared["weight"][...] = torch.tensor(weights, dtype=torch.float64)
    with pytest.raises(ValueError, match=complaint):
        drawn(draw)


def test_tiny_weights_stay_in_range() -> None:
    found = drawn(draw_of(weights_of(0, 5e-324, 0, 5e-324, 0)))
    assert set(found.index.tolist()) <= {1, 3}


def test_a_lock_that_stays_taken_is_told() -> None:
    weights = weights_of(1, 1, 1, 1, 1)
    draw = draw_of(weights, timeout_s=0.02)
    holder = SharedTensors(os.dup(weights.fd))
    with holder.lock(), pytest.raises(TimeoutError, match=r"free within 0.02 s: process"):
        drawn(draw)


def test_a_draw_that_was_handed_over_draws_the_same() -> None:
    draw = draw_of(weights_of(1, 2, 3, 4, 5), rank=2)
    other = SeedDraw.received({name: os.dup(fd) for name, fd in draw.files.items()})
    assert drawn(other).index.tolist() == drawn(draw).index.tolist()


def test_a_sampler_gets_the_drawn_seeds() -> None:
    class Echo:
        costs: Any = object()

        def sample(self, request: BatchRequest) -> Any:
            return request

    sampler = SeedWeightedSampler(Echo(), draw_of(weights_of(0, 0, 1, 0, 0)))
    found: Any = sampler.sample(seed_request(0, 3, np.zeros(4, np.int64)))
    assert (found.inputs[SEED].tolist(), found.index.tolist()) == ([40] * 4, [2] * 4)
    assert sampler.costs is Echo.costs
