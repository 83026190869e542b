"""Several ranks share the input of a loader: threads stand for them."""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gigl_loader import DistDataset, DistNeighborLoader, LaborSamplerOptions
from tests.support.pyg_graphs import homogeneous, same_batch
from tests.support.thread_ranks import run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.group import RankGroup

DATASET = DistDataset.from_pyg(homogeneous())
BATCH_SIZE = 16


def _loader(**options: Any) -> DistNeighborLoader:
    """Loaders of ranks that are threads need a name: they share the count that makes one."""
    defaults = {"batch_size": BATCH_SIZE, "shuffle": True, "seed": 3, "num_workers": 0, "name": "train"}
    return DistNeighborLoader(DATASET, [3, 2], **{**defaults, "timeout": 10, **options})


def _epochs(world_size: int, **options: Any) -> list[list[list[Any]]]:
    """Return the batches of two epochs by epoch and rank."""

    def program(_: RankGroup) -> list[list[Any]]:
        with _loader(**options) as loader:
            return [list(loader), list(loader)]

    ranks = _values(run_ranks(world_size, program))
    return [[rank[epoch] for rank in ranks] for epoch in range(2)]


def _values(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def _input_ids(batches: list[Any]) -> list[int]:
    return [seed for batch in batches for seed in batch.input_id.tolist()]


@pytest.mark.parametrize(
    ("world_size", "options"),
    [(2, {}), (3, {}), (3, {"sampler_options": LaborSamplerOptions(batch_dependency=4)})],
)
def test_ranks_share_every_epoch(world_size: int, options: dict[str, Any]) -> None:
    with _loader(**options) as loader:
        alone = [list(loader), list(loader)]
    for epoch, shares in enumerate(_epochs(world_size, **options)):
        assert len({len(share) for share in shares}) == 1
        assert sorted(seed for share in shares for seed in _input_ids(share)) == list(range(300))
        steps = 300 // (BATCH_SIZE * world_size)
        together = [share[step] for step in range(steps) for share in shares]
        assert all(map(same_batch, together, alone[epoch]))


def test_a_random_seed_is_the_same_on_all_ranks() -> None:
    seeds = _values(run_ranks(3, lambda _: _loader(seed=None).seed))
    assert len(set(seeds)) == 1
    assert _values(run_ranks(2, lambda _: _loader(seed=None).seed))[0] != seeds[0]


def test_uneven_batches_when_asked_for() -> None:
    counts = _values(
        run_ranks(4, lambda _: len(_loader(batch_size=1, input_nodes=torch.arange(6), even_batches=False)))
    )
    assert counts == [2, 2, 1, 1]


def test_with_sharding_none_every_rank_has_the_whole_input() -> None:
    def program(_: RankGroup) -> list[int]:
        with _loader(sharding="none") as loader:
            return sorted(_input_ids(list(loader)))

    assert _values(run_ranks(2, program)) == [list(range(300))] * 2


def test_with_sharding_none_one_rank_may_build_a_loader_alone() -> None:
    def program(group: RankGroup) -> int:
        return len(list(_loader(sharding="none"))) if group.rank == 1 else 0

    assert _values(run_ranks(2, program)) == [0, -(-300 // BATCH_SIZE)]


def test_ranks_may_build_loaders_in_any_order() -> None:
    def program(group: RankGroup) -> bool:
        names = ["train", "val"] if group.rank else ["val", "train"]
        loaders = {name: _loader(name=name, process_start_gap_seconds=0) for name in names}
        return all(len(list(loaders[name])) for name in ("train", "val"))

    assert _values(run_ranks(2, program)) == [True, True]


def test_loaders_of_one_name_are_told_apart_by_count() -> None:
    def program(_: RankGroup) -> list[int]:
        return [len(list(_loader(batch_size=size))) for size in (8, 4)]

    assert len(set(map(tuple, _values(run_ranks(2, program))))) == 1


def test_loaders_without_a_name_get_one_from_class_and_count() -> None:
    def program(_: RankGroup) -> list[str]:
        return [_loader(name=None).name for _ in range(2)]

    assert _values(run_ranks(2, program)) == [["DistNeighborLoader-1", "DistNeighborLoader-2"]] * 2


# Differences


def _differing(world_size: int, options_of: Callable[[int], dict[str, Any]]) -> list[str]:
    """Return what each rank is told that builds a loader with these options and begins an epoch."""

    def program(group: RankGroup) -> None:
        next(_loader(**options_of(group.rank)))

    return [f"{type(error).__name__}: {error}" for error in run_ranks(world_size, program)]


def test_different_options_are_told_on_every_rank_with_ranks_and_values() -> None:
    for told in _differing(3, lambda rank: {"batch_size": 8 if rank == 1 else 4}):
        # Who came first was told of fewer ranks.
        assert re.match(r"ValueError: train: ranks differ: batch_size is .*8 on rank 1\b", told)
        assert re.search(r"4 on rank(s 0, 2| 0| 2)\b", told)


def test_different_seeds_are_told_with_what_to_do() -> None:
    for told in _differing(2, lambda rank: {"seed": rank}):
        assert "seed is 0 on rank 0, 1 on rank 1" in told or "seed is 1 on rank 1, 0 on rank 0" in told
        assert "pass the same seed on every rank, or none" in told


def test_inputs_that_are_split_already_are_told_with_what_to_do() -> None:
    for told in _differing(2, lambda rank: {"input_nodes": torch.arange(150) + 150 * rank}):
        assert "digest of seeds" in told
        assert "pass the whole input on every rank, which the loader shards, or sharding='none'" in told


def test_different_graphs_are_told() -> None:
    def program(group: RankGroup) -> None:
        dataset = DistDataset.from_pyg(homogeneous(seed=group.rank), shared=False)
        next(DistNeighborLoader(dataset, [2], num_workers=0, seed=1, name="train", timeout=10))

    for error in run_ranks(2, program):
        assert "graph is" in str(error)
        assert "build it from the same data" in str(error)


def test_a_rank_that_did_not_build_the_loader_is_named() -> None:
    def program(group: RankGroup) -> None:
        if group.rank != 1:
            next(_loader(timeout=0.2, process_start_gap_seconds=0))
        else:
            _loader(sharding="none").topology.detect(timeout=10)

    first, _, third = run_ranks(3, program)
    for error in (first, third):
        assert isinstance(error, TimeoutError)
        assert str(error).startswith("rank 1 did not build the loader train (every rank must, or pass shar")


def test_a_rank_that_could_not_start_tells_the_others() -> None:
    def program(group: RankGroup) -> None:
        dataset = DATASET if group.rank else _Broken.from_pyg(homogeneous(), shared=False)
        try:
            loader = DistNeighborLoader(dataset, [2], num_workers=0, seed=1, name="train", timeout=10)
        finally:
            group.publish("built or failed", "yes")
        group.collect("built or failed", timeout=10, what="get that far")
        next(loader)

    first, second = run_ranks(2, program)
    assert isinstance(first, ZeroDivisionError)
    assert str(second) == "rank 0 could not build train: ZeroDivisionError: on purpose"


@pytest.mark.parametrize(
    "options", [{"input_nodes": "nothing"}, {"batch_size": 0}, {"seed_weights": 3}, {"num_neighbors": [-5]}]
)
def test_a_rank_that_fails_before_it_starts_tells_the_others(options: dict[str, Any]) -> None:
    def program(group: RankGroup) -> None:
        loading: dict[str, Any] = {"num_neighbors": [2], "num_workers": 0, "seed": 1, "name": "train"}
        try:
            loader = DistNeighborLoader(
                DATASET, **{**loading, **({} if group.rank else options), "timeout": 5}
            )
        finally:
            group.publish("built or failed", "yes")
        next(loader)

    first, second = run_ranks(2, program)
    assert isinstance(first, (TypeError, ValueError))
    assert isinstance(second, RuntimeError)
    assert str(second) == f"rank 0 could not build train: {type(first).__name__}: {first}"


class _Broken(DistDataset):
    def open_source(self, *_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("on purpose")


# State


@pytest.mark.some(2)
@pytest.mark.parametrize("even_batches", [True, False])
@pytest.mark.parametrize("stop_after", [0, 1, 3])
def test_a_state_in_mid_epoch_gives_the_batches_not_yet_seen(stop_after: int, even_batches: bool) -> None:
    options = {"even_batches": even_batches, "input_nodes": torch.arange(300 - 300 % 48 + 1)}
    whole = _epochs(3, **options)[0]

    def program(_: RankGroup) -> tuple[str, list[Any]]:
        loader = _loader(**options)
        seen = list(islice(loader, stop_after))
        return json.dumps(loader.state_dict()), seen

    states, seen = zip(*_values(run_ranks(3, program)), strict=True)

    def resume(group: RankGroup) -> list[Any]:
        loader = _loader(**options)
        loader.load_state_dict(json.loads(states[0]))  # As when rank 0 alone has saved its own.
        return [*seen[group.rank], *loader]

    for rank, batches in enumerate(_values(run_ranks(3, resume))):
        assert len(batches) == len(whole[rank])
        assert all(map(same_batch, batches, whole[rank]))


def test_the_state_after_the_last_batch_of_a_longer_rank_begins_the_next_epoch_on_all() -> None:
    options = {"even_batches": False, "batch_size": 1, "input_nodes": torch.arange(5)}

    def state(_: RankGroup) -> dict[str, Any]:
        loader = _loader(**options)
        list(islice(loader, len(loader)))
        return loader.state_dict()

    (longest, _) = _values(run_ranks(2, state))
    assert longest["batches"] == 5

    def resume(_: RankGroup) -> tuple[int, int]:
        loader = _loader(**options)
        loader.load_state_dict(longest)
        return loader.epoch, len(list(loader))

    assert _values(run_ranks(2, resume)) == [(1, 3), (1, 2)]


@pytest.mark.parametrize(
    ("world_size", "options", "difference"),
    [
        (3, {}, "sharding is batches over 3 ranks here, batches over 2 ranks in the state"),
        (2, {"sharding": "none"}, "sharding is none here, batches over 2 ranks in the state"),
        (2, {"even_batches": False}, "sharding is batches over 2 ranks, uneven here, batches over 2 ranks"),
        (1, {}, "sharding is none here, batches over 2 ranks in the state"),
    ],
)
def test_the_state_of_one_rank_of_another_sharding_is_refused(
    world_size: int, options: dict[str, Any], difference: str
) -> None:
    """States of version 0.1 count the batches of a rank."""
    state = _values(run_ranks(2, lambda _: _loader().state_dict()))[0] | {"format": 1}

    def program(_: RankGroup) -> None:
        _loader(**options).load_state_dict(state)

    for error in run_ranks(world_size, program):
        assert difference in str(error)


def test_a_state_loaded_on_one_rank_only_is_told() -> None:
    def program(group: RankGroup) -> None:
        loader = _loader(process_start_gap_seconds=0)
        state = loader.state_dict()
        if group.rank:
            loader.load_state_dict({**state, "batches": 2})
        next(iter(loader))
        group.publish("begun", "yes")
        group.collect("begun", timeout=0.5, what="begin")

    errors = [str(error) for error in run_ranks(2, program)]
    assert any("ranks differ: batch is" in error for error in errors)
    assert any("load the same state on every rank" in error for error in errors)


@pytest.mark.parametrize("value", ["seeds", 2, True])
def test_another_sharding_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="sharding must be 'batches', 'none' or None, got"):
        _loader(sharding=value)


def test_without_a_group_batches_means_all_of_them() -> None:
    assert len(_loader(sharding="batches")) == len(_loader())
