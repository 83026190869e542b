"""Shards of an input, for any length, batch size and number of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.sampling.request import SEED
from gigl_loader.sampling.schedule import Schedule, Shard

CASES = given(
    num_seeds=st.integers(0, 60),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 9),
    shuffle=st.booleans(),
    even_batches=st.booleans(),
    epoch=st.integers(0, 3),
)


def _schedules(
    num_seeds: int, *, world_size: int, even_batches: bool = True, drop_last: bool = False, **cut: Any
) -> list[Schedule]:
    options: dict[str, Any] = {"batch_size": 1, "shuffle": False, **cut}
    return [
        Schedule(
            {SEED: np.arange(num_seeds) * 7},
            drop_last=drop_last,
            run_seed=5,
            shard=Shard(rank=rank, world_size=world_size, even_batches=even_batches),
            **options,
        )
        for rank in range(world_size)
    ]


def _batches(schedule: Schedule, epoch: int) -> list[list[int]]:
    return [schedule.request(epoch, batch).index.tolist() for batch in range(schedule.num_batches)]


@CASES
def test_shards_cover_every_seed_once_and_differ_by_at_most_one(
    *, num_seeds: int, batch_size: int, world_size: int, shuffle: bool, even_batches: bool, epoch: int
) -> None:
    schedules = _schedules(
        num_seeds,
        world_size=world_size,
        batch_size=batch_size,
        shuffle=shuffle,
        even_batches=even_batches,
    )
    shares = [_batches(schedule, epoch) for schedule in schedules]
    counts = [len(share) for share in shares]
    assert max(counts) - min(counts) <= (0 if even_batches else 1)
    assert max(counts) == schedules[0].num_steps
    assert all(1 <= len(batch) <= batch_size for share in shares for batch in share)
    lengths = [sum(map(len, share)) for share in shares]
    assert max(lengths) - min(lengths) <= 1
    seen = [seed for share in shares for batch in share for seed in batch]
    remaining = num_seeds % (batch_size * world_size)
    repeated = world_size - remaining if even_batches and 0 < remaining < world_size else 0
    assert len(seen) == num_seeds + repeated
    assert sorted(set(seen)) == list(range(num_seeds))


@CASES
def test_whole_steps_are_the_batches_of_one_rank(
    *, num_seeds: int, batch_size: int, world_size: int, shuffle: bool, even_batches: bool, epoch: int
) -> None:
    cut: dict[str, Any] = {"batch_size": batch_size, "shuffle": shuffle}
    (alone,) = (_batches(each, epoch) for each in _schedules(num_seeds, world_size=1, **cut))
    shares = [
        _batches(each, epoch)
        for each in _schedules(num_seeds, world_size=world_size, even_batches=even_batches, **cut)
    ]
    whole_steps = num_seeds // (batch_size * world_size)
    interleaved = [share[step] for step in range(whole_steps) for share in shares]
    assert interleaved == alone[: whole_steps * world_size]


@CASES
def test_without_the_last_step_all_batches_are_full(
    *, num_seeds: int, batch_size: int, world_size: int, shuffle: bool, even_batches: bool, epoch: int
) -> None:
    for schedule in _schedules(
        num_seeds,
        world_size=world_size,
        batch_size=batch_size,
        shuffle=shuffle,
        even_batches=even_batches,
        drop_last=True,
    ):
        assert schedule.num_batches == schedule.num_steps == num_seeds // (batch_size * world_size)
        assert all(len(batch) == batch_size for batch in _batches(schedule, epoch))


def test_what_repeats_comes_from_the_start_of_the_order() -> None:
    schedules = _schedules(9, world_size=4, batch_size=2)
    assert [_batches(each, 0) for each in schedules] == [
        [[0, 1], [8]],
        [[2, 3], [0]],
        [[4, 5], [1]],
        [[6, 7], [2]],
    ]


def test_seeds_are_those_at_the_input_ids() -> None:
    (schedule,) = _schedules(10, world_size=1, batch_size=4, shuffle=True)
    request = schedule.request(1, 2)
    assert (request.epoch, request.batch) == (1, 2)
    assert (request.inputs[SEED] == request.index * 7).all()


def test_a_batch_that_is_not_there_is_refused() -> None:
    schedule = _schedules(3, world_size=2, even_batches=False)[1]
    assert schedule.num_batches == 1
    with pytest.raises(ValueError, match="batch 1 of an epoch of 1"):
        schedule.request(0, 1)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_shard_of_no_rank_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} of 2 ranks"):
        Shard(rank=rank, world_size=2)


def test_no_batch_size_below_one() -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        _schedules(3, world_size=1, batch_size=0)


def test_the_index_of_an_entry_is_its_place_in_the_input() -> None:
    (schedule,) = _schedules(3, world_size=1, batch_size=2, places=np.array([100, 200, 300]))
    assert _batches(schedule, 0) == [[100, 200], [300]]
    assert schedule.request(0, 0).inputs[SEED].tolist() == [0, 7]


@given(
    num_seeds=st.integers(0, 80),
    batch_size=st.integers(1, 6),
    parts=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 4)), min_size=1, max_size=5),
    last=st.integers(1, 7),
)
def test_ranks_that_change_cover_every_seed_once(
    *, num_seeds: int, batch_size: int, parts: list[tuple[int, int]], last: int
) -> None:
    batches = [(begin, begin + batch_size) for begin in range(0, num_seeds, batch_size)]
    number, seen = 0, []
    for world_size, steps in [*parts, (last, num_seeds + 1)]:
        schedules = _schedules(num_seeds, world_size=world_size, batch_size=batch_size, even_batches=False)
        step, origin = divmod(number, world_size)
        dealt = [schedule.from_origin(origin) for schedule in schedules]
        if number >= schedules[0].total:
            break
        end = min(step + steps, dealt[0].num_steps)
        for schedule in dealt:
            for batch in range(step, min(end, schedule.num_batches)):
                request = schedule.request(0, batch)
                seen += request.index.tolist()
                if len(request) == batch_size and request.number < len(batches):
                    assert request.index.tolist() == list(range(*batches[request.number]))
        number = dealt[0].number_of(end)
    assert sorted(seen) == list(range(num_seeds))
