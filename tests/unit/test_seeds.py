"""Seeds drawn by weights: the draws, and loaders whose weights the training loop changes."""

from __future__ import annotations

import math
import os
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from gigl_loader import DistDataset, DistNeighborLoader, SamplingError, SharedTensors
from gigl_loader.sampling.request import SEED, BatchRequest
from gigl_loader.sampling.schedule import SeedDraw, SeedWeightedSampler
from tests.support import oracle
from tests.support.made import record_sources
from tests.support.plans import seed_request
from tests.support.pyg_graphs import homogeneous, same_batch

if TYPE_CHECKING:
    import numpy.typing as npt

pytestmark = pytest.mark.usefixtures("no_leftovers")


POSITIONS = np.array([50, 10, 40, 20, 30])


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


# --- Loaders whose seeds are drawn by weights that the training loop changes


SEEDS = torch.tensor([7, 3, 11, 3, 19, 2, 5, 0])


def loader_of(weights: Any, nodes: Any = SEEDS, **options: Any) -> DistNeighborLoader:
    defaults: dict[str, Any] = {"batch_size": 4, "seed": 2, "num_workers": 0, "timeout": 20.0}
    dataset = DistDataset.from_pyg(homogeneous())
    return DistNeighborLoader(dataset, [3, 2], nodes, seed_weights=weights, **{**defaults, **options})


def ones(count: int = len(SEEDS)) -> SharedTensors:
    return SharedTensors.create({"weight": torch.ones(count)})


@pytest.mark.parametrize("num_workers", [0, 1])
def test_seeds_are_drawn_by_the_weights_of_that_moment(num_workers: int) -> None:
    weights = ones()
    with loader_of(weights, num_workers=num_workers) as loader:
        list(loader)
        with weights.lock():
            weights["weight"].zero_()
            weights["weight"][4] = 1
        for batch in loader:  # A new epoch: nothing of it was drawn before.
            assert batch.batch.tolist() == [19] * 4
            assert batch.input_id.tolist() == [4] * 4
            assert (batch.batch_size, batch.n_id[0]) == (1, 19)
            assert batch.seed_index.tolist() == [0] * 4


@pytest.mark.slow
def test_any_number_of_workers_draws_the_same() -> None:
    expected = list(loader_of(ones()))
    assert len(expected) == 2
    for batch in expected:
        assert torch.equal(SEEDS[batch.input_id], batch.batch)
        assert torch.equal(batch.n_id[batch.seed_index], batch.batch)
    for num_workers in (1, 2):
        with loader_of(ones(), num_workers=num_workers) as loader:
            assert all(map(same_batch, list(loader), expected))
    assert not same_batch(expected[0], expected[1])


def test_a_tensor_alone_stays_as_it_is() -> None:
    weights = torch.tensor([0.0, 1, 0, 0, 0, 0, 0, 0], dtype=torch.float64)
    loader = loader_of(weights)
    weights[:] = 0
    assert [batch.batch.tolist() for batch in loader] == [[3] * 4] * 2


def test_weights_of_a_mask_are_those_of_all_nodes() -> None:
    mask = torch.zeros(homogeneous().num_nodes, dtype=torch.bool)
    mask[[4, 9]] = True
    weights = SharedTensors.create({"weight": torch.ones(len(mask))})
    loader = loader_of(weights, mask, batch_size=2)
    for batch in loader:
        assert set(batch.batch.tolist()) <= {4, 9}
        weights["weight"][batch.input_id] += 1  # What the docs show: places in the input.
    assert weights["weight"][~mask].sum() == len(mask) - 2


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_weights_that_go_wrong_fail_the_batch_and_nothing_else(num_workers: int) -> None:
    weights = ones()
    with loader_of(weights, num_workers=num_workers) as loader:
        list(loader)
        weights["weight"][2] = math.nan
        epoch = iter(loader)
        for _ in range(len(loader)):  # A worker draws all of so short an epoch at once.
            with pytest.raises(SamplingError, match="weight 2 is nan"):
                next(epoch)
        weights["weight"][2] = 1
        assert len(list(loader)) == 2


@pytest.mark.parametrize(
    ("weights", "options", "kind", "message"),
    [
        ({"weight": 1.0}, {}, TypeError, "must be a tensor, or SharedTensors.create"),
        ([1.0] * 7, {}, ValueError, r"shape \(8,\), got \(7,\)"),
        (torch.ones(7), {}, ValueError, r"shape \(8,\), got \(7,\)"),
        (torch.ones(8, dtype=torch.int64), {}, TypeError, "float32 or float64, got torch.int64"),
        (SharedTensors.create({"w": torch.ones(8)}), {}, ValueError, "named 'weight'; it has: w"),
        (torch.zeros(8), {}, ValueError, "all zero"),
        (-torch.ones(8), {}, ValueError, "weight 0 is -1"),
        (torch.ones(8), {"shuffle": True}, ValueError, "drawn anew each time"),
    ],
)
def test_what_cannot_be_drawn_by_is_refused(
    weights: Any, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        loader_of(weights, **options)


def test_who_keeps_the_lock_while_waiting_for_a_batch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    sources: list[Any] = record_sources(monkeypatch)
    weights = ones()
    with loader_of(weights, num_workers=1, timeout=0.8) as loader:
        sources[0].wait_until_up(20)
        with (
            weights.lock(),
            pytest.raises(SamplingError, match=rf"free within 0.4 s: process {os.getpid()} "),
        ):
            next(loader)


def test_a_state_of_other_seeds_is_refused() -> None:
    state = loader_of(ones()).state_dict()
    loader = loader_of(None)
    with pytest.raises(ValueError, match="drawn_by_weights is None here, True in the state"):
        loader.load_state_dict(state)


def test_an_epoch_goes_on_with_the_batches_not_yet_seen() -> None:
    """With equal weights, the same ones; where weights changed, those drawn by the new ones."""
    expected = list(loader_of(ones()))
    loader = loader_of(ones())
    next(loader)
    resumed = loader_of(ones())
    resumed.load_state_dict(loader.state_dict())
    assert same_batch(next(resumed), expected[1])


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced_by_one_that_draws_as_it_did() -> None:
    expected = list(loader_of(ones(), batch_size=1))
    with loader_of(ones(), batch_size=1, num_workers=1, worker_concurrency=2) as loader:
        epoch = iter(loader)
        batches = [next(epoch)]
        os.kill(loader.stats()["workers"][0]["pid"], signal.SIGKILL)
        batches += epoch
        assert loader.stats()["restarts"] == 1
    assert len(batches) == 8
    assert all(map(same_batch, batches, expected))
