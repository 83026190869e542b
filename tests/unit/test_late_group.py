"""Loaders that were built before the process group: threads stand for ranks."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.clusters import addresses_of, servers_of
from tests.support.pyg_graphs import homogeneous, same_batch
from tests.support.thread_ranks import run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gigl_loader.group import RankGroup

pytestmark = pytest.mark.usefixtures("no_leftovers")

DATASET = DistDataset.from_pyg(homogeneous())
INPUT = torch.arange(290)


def _loader(**options: Any) -> DistNeighborLoader:
    """Loaders of ranks that are threads need a name: they share the count that makes one."""
    defaults = {"batch_size": 16, "shuffle": True, "seed": 3, "num_workers": 0, "name": "train"}
    return DistNeighborLoader(DATASET, [3, 2], INPUT, **{**defaults, "timeout": 10, **options})


def _values(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def _late(
    world_size: int,
    program: Callable[[DistNeighborLoader], Any],
    *,
    before: Callable[[int, DistNeighborLoader], None] = lambda *_: None,
    **options: Any,
) -> list[Any]:
    """Run ``program`` on each rank, with a loader that was built before there were any ranks."""
    loaders = [_loader(**options) for _ in range(world_size)]
    try:
        for rank, loader in enumerate(loaders):
            before(rank, loader)
        return run_ranks(world_size, lambda group: program(loaders[group.rank]))
    finally:
        for loader in loaders:
            loader.shutdown()


def _built_after(world_size: int, program: Callable[[DistNeighborLoader], Any], **options: Any) -> list[Any]:
    def run(_: RankGroup) -> Any:
        with _loader(**options) as loader:
            return program(loader)

    return _values(run_ranks(world_size, run))


def _two_epochs(loader: DistNeighborLoader) -> list[Any]:
    return [*loader, *loader]


def _seen(batches: list[Any]) -> list[int]:
    return [place for batch in batches for place in batch.input_id.tolist()]


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"num_workers": 1}, marks=pytest.mark.slow),
        {"shuffle": False},
        {"drop_last": True},
        {"even_batches": False, "batch_size": 1},
        {"sharding": "batches"},
        {"sharding": "none"},
    ],
)
def test_a_late_group_gives_the_shards_of_loaders_that_were_built_after(options: dict[str, Any]) -> None:
    expected = _built_after(3, _two_epochs, **options)
    found = _values(_late(3, _two_epochs, **options))
    for batches, wanted in zip(found, expected, strict=True):
        assert len(batches) == len(wanted)
        assert all(map(same_batch, batches, wanted))


def test_the_ranks_together_see_the_input_once() -> None:
    ranks = _values(_late(3, lambda loader: _seen(list(loader)), even_batches=False))
    assert sorted(place for seen in ranks for place in seen) == list(range(290))


def test_random_seeds_give_way_to_one() -> None:
    def program(loader: DistNeighborLoader) -> tuple[list[int], int]:
        return _seen(list(loader)), loader.seed

    ranks = _values(_late(3, program, seed=None, even_batches=False))
    assert len({seed for _, seed in ranks}) == 1
    assert sorted(place for seen, _ in ranks for place in seen) == list(range(290))


def test_unequal_seeds_are_told() -> None:
    loaders = [_loader(seed=rank) for rank in range(2)]
    errors = run_ranks(2, lambda group: next(loaders[group.rank]))
    assert any("ranks differ: seed is" in str(error) for error in errors)


def test_the_length_is_right_before_the_first_epoch() -> None:
    expected = _built_after(3, len)
    assert _values(_late(3, len)) == expected
    assert len(_loader()) > expected[0]
    assert _values(_late(3, len, sharding="none")) == [len(_loader())] * 3


def test_a_loader_knows_its_place_afterwards() -> None:
    def program(loader: DistNeighborLoader) -> tuple[Any, ...]:
        next(loader)
        return loader.topology.rank, loader.topology.world_size, loader.sharding, loader.name

    assert _values(_late(2, program)) == [(0, 2, "batches", "train"), (1, 2, "batches", "train")]


def test_workers_are_those_of_the_shard_and_the_first_ones_end() -> None:
    def program(loader: DistNeighborLoader) -> tuple[list[int], list[int]]:
        first = [worker["pid"] for worker in loader.stats()["workers"]]
        seen = _seen(list(loader))
        assert [worker["pid"] for worker in loader.stats()["workers"]] != first
        return seen, first

    ranks = _values(_late(2, program, num_workers=1, even_batches=False))
    assert sorted(place for seen, _ in ranks for place in seen) == list(range(290))


# Epochs and states


def test_epochs_count_on() -> None:
    """A look at a batch, before the group: an epoch of the whole input, on all ranks."""
    expected = _built_after(2, lambda loader: [list(loader) for _ in range(2)][1])
    found = _values(_late(2, list, before=lambda _, loader: next(loader)))
    for batches, wanted in zip(found, expected, strict=True):
        assert all(map(same_batch, batches, wanted))


def test_ranks_that_stand_in_different_epochs_are_told() -> None:
    def look(rank: int, loader: DistNeighborLoader) -> None:
        if rank == 0:
            next(loader)

    errors = _late(2, list, before=look)
    assert any("ranks differ: epoch is" in str(error) for error in errors)


def test_an_epoch_that_was_begun_before_is_not_gone_on_with() -> None:
    iterators: dict[int, Any] = {}

    def begin(rank: int, loader: DistNeighborLoader) -> None:
        iterators[rank] = iter(loader)
        next(iterators[rank])

    def program(loader: DistNeighborLoader) -> None:
        iter(loader)
        next(iterators[loader.topology.rank])

    for error in _late(2, program, before=begin):
        assert isinstance(error, RuntimeError)
        assert "train: the ranks have changed since this epoch was begun" in str(error)


@pytest.mark.parametrize("stop_after", [0, 3])
def test_a_state_of_the_ranks_may_be_loaded_as_soon_as_there_are_ranks(stop_after: int) -> None:
    def save(loader: DistNeighborLoader) -> tuple[str, list[Any]]:
        iterator = iter(loader)
        list(islice(iterator, stop_after))
        return json.dumps(loader.state_dict()), list(iterator)

    states, rest = zip(*_built_after(2, save), strict=True)

    def resume(loader: DistNeighborLoader) -> list[Any]:
        loader.load_state_dict(json.loads(states[0]))
        return list(loader)

    variants: list[dict[str, Any]] = [{}, {"seed": None}]
    for options in variants:
        for batches, wanted in zip(_values(_late(2, resume, **options)), rest, strict=True):
            assert len(batches) == len(wanted)
            assert all(map(same_batch, batches, wanted))


def test_a_state_of_the_ranks_is_gone_on_with_by_one() -> None:
    def save(loader: DistNeighborLoader) -> tuple[list[Any], dict[str, Any]]:
        return [next(loader)], loader.state_dict()

    (first, state), (second, _) = _built_after(2, save)
    alone = _loader()
    alone.load_state_dict(state)
    assert all(map(same_batch, [*first, *second, *alone], _loader()))


def test_a_state_in_mid_epoch_of_the_whole_input_is_gone_on_with_by_ranks() -> None:
    whole = _loader()
    first = next(whole)
    state = whole.state_dict()
    ranks = _values(
        _late(2, lambda loader: _seen(list(loader)), before=lambda _, loader: loader.load_state_dict(state))
    )
    assert sorted([*_seen([first]), *(place for seen in ranks for place in seen)]) == list(range(290))


def test_a_state_between_epochs_goes_on_with_the_next() -> None:
    whole = _loader()
    list(whole)
    state = whole.state_dict()
    expected = _built_after(2, lambda loader: [list(loader) for _ in range(2)][1])
    found = _values(_late(2, list, before=lambda _, loader: loader.load_state_dict(state), seed=None))
    for batches, wanted in zip(found, expected, strict=True):
        assert all(map(same_batch, batches, wanted))


# A graph store


def test_ranks_of_a_graph_store_that_connected_before_the_group(tmp_path: Path) -> None:
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph", num_partitions=2)
    options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 3, "name": "train", "timeout": 20}
    with servers_of(tmp_path / "graph", 2) as servers:
        datasets = [RemoteDistDataset.connect(addresses_of(servers)) for _ in range(2)]
        loaders = [DistNeighborLoader(dataset, [3, 2], INPUT, **options) for dataset in datasets]
        found = _values(run_ranks(2, lambda group: list(loaders[group.rank])))
        for loader, dataset in zip(loaders, datasets, strict=True):
            loader.shutdown()
            dataset.close()
    for batches, wanted in zip(found, _built_after(2, list), strict=True):
        assert len(batches) == len(wanted)
        assert all(map(same_batch, batches, wanted))


# A group that goes


def test_a_group_that_was_destroyed_is_noticed() -> None:
    loaders = _values(run_ranks(2, lambda _: _loader()))
    for rank, loader in enumerate(loaders):
        with pytest.raises(
            RuntimeError, match=f"train has the share of rank {rank} of 2, of a process group"
        ):
            iter(loader)


def test_a_loader_of_the_whole_input_outlives_the_group() -> None:
    (loader, _) = _values(run_ranks(2, lambda _: _loader(sharding="none")))
    assert len(_seen(list(loader))) == 290


def test_another_group_gives_its_own_shards() -> None:
    loaders = _values(run_ranks(2, lambda _: _loader(even_batches=False)))
    loaders.append(_loader(even_batches=False))
    ranks = _values(run_ranks(3, lambda group: _seen(list(loaders[group.rank]))))
    assert sorted(place for seen in ranks for place in seen) == list(range(290))


def test_a_rank_that_never_comes_is_named() -> None:
    loaders = [_loader(timeout=0.3) for _ in range(2)]

    def program(group: RankGroup) -> None:
        if group.rank == 0:
            loaders[0].topology.detect(timeout=10)  # Says where it runs, and no more.
        else:
            next(loaders[1])

    _, error = run_ranks(2, program)
    assert isinstance(error, TimeoutError)
    assert "rank 0 did not build the loader train" in str(error)
