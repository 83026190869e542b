"""Epochs whose ranks change: every seed comes once, in batches as one rank has them. Threads are ranks."""

from __future__ import annotations

import json
from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistLinkNeighborLoader, DistNeighborLoader, LaborSamplerOptions
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.topology import Topology
from tests.support.clusters import addresses_of, servers_of
from tests.support.pyg_graphs import homogeneous, same_batch
from tests.support.thread_ranks import run_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gigl_loader.group import RankGroup

pytestmark = pytest.mark.usefixtures("no_leftovers")

DATASET = DistDataset.from_pyg(homogeneous())
NUM_SEEDS, BATCH_SIZE = 290, 16


def _loader(*, dataset: Any = DATASET, **options: Any) -> DistNeighborLoader:
    defaults = {"batch_size": BATCH_SIZE, "shuffle": True, "seed": 3, "num_workers": 0, "name": "train"}
    given = {**defaults, "even_batches": False, "timeout": 20, **options}
    return DistNeighborLoader(dataset, [3, 2], torch.arange(NUM_SEEDS), **given)


def _links(**options: Any) -> DistLinkNeighborLoader:
    defaults = {"batch_size": BATCH_SIZE, "shuffle": True, "seed": 3, "num_workers": 0, "name": "train"}
    links = torch.stack([torch.arange(NUM_SEEDS), torch.arange(NUM_SEEDS).flip(0)])
    given = {**defaults, "even_batches": False, "timeout": 20, **options}
    return DistLinkNeighborLoader(DATASET, [3, 2], links, neg_sampling="binary", **given)


def _values(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def _run(
    parts: Sequence[tuple[int, int | None]], make: Any = _loader, **options: Any
) -> tuple[list[tuple[int, Any]], dict[str, Any]]:
    """Run an epoch in ``parts``: so many ranks, and so many steps of theirs (``None``: what is left).

    Return the batches with their numbers over all ranks, and the last state.
    """
    state: dict[str, Any] = {}
    given: list[tuple[int, Any]] = []

    def program(steps: int | None, _: RankGroup) -> tuple[list[Any], str]:
        with make(**options) as loader:
            if state:
                loader.load_state_dict(state)
            return list(islice(loader, steps)), json.dumps(loader.state_dict())

    for world_size, steps in parts:
        results = _values(run_ranks(world_size, partial(program, steps)))
        first = state.get("batches", 0)
        for rank, (batches, _) in enumerate(results):
            given += [(first + step * world_size + rank, batch) for step, batch in enumerate(batches)]
        assert steps is None or len({text for _, text in results}) == 1, "ranks differ in where they stand"
        state |= json.loads(results[0][1])
    return given, state


CHANGES: list[list[tuple[int, int | None]]] = [
    [(4, 2), (3, 1), (2, 2), (4, None)],
    [(4, 1), (1, None)],
    [(4, 2), (6, None)],
    [(1, 5), (3, 2), (5, None)],
    [(3, 6), (4, None)],
    [(2, 0), (3, None)],
]


@pytest.mark.some(3)
@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"num_workers": 1}], ids=str)
@pytest.mark.parametrize("parts", CHANGES, ids=str)
def test_every_seed_comes_once_in_the_batches_of_one_rank(
    parts: list[tuple[int, int | None]], options: dict[str, Any]
) -> None:
    undisturbed = _run([(1, None)], **options)[0]
    given, _ = _run(parts, **options)
    seen = sorted(place for _, batch in given for place in batch.input_id.tolist())
    assert seen == list(range(NUM_SEEDS))
    wholes = [(number, batch) for number, batch in given if len(batch.input_id) == BATCH_SIZE]
    assert len(wholes) > NUM_SEEDS // BATCH_SIZE - max(ranks for ranks, _ in parts)
    assert all(same_batch(batch, undisturbed[number][1]) for number, batch in wholes)


@pytest.mark.some(1)
@pytest.mark.parametrize("parts", CHANGES[:3], ids=str)
def test_links_and_draws_that_depend_on_the_number_of_a_batch(parts: list[tuple[int, int | None]]) -> None:
    variants: list[tuple[Any, dict[str, Any]]] = [
        (_links, {}),
        (_loader, {"sampler_options": LaborSamplerOptions(batch_dependency=4)}),
    ]
    for make, options in variants:
        undisturbed = _run([(1, None)], make, **options)[0]
        given, _ = _run(parts, make, **options)
        assert sorted(p for _, b in given for p in b.input_id.tolist()) == list(range(NUM_SEEDS))
        for number, batch in given:
            if len(batch.input_id) == BATCH_SIZE:
                assert same_batch(batch, undisturbed[number][1])


def test_ranks_with_equally_many_batches_repeat_only_seeds_of_the_start() -> None:
    given, _ = _run([(4, 2), (3, 1), (5, None)], even_batches=True, batch_size=1)
    places = [place for _, batch in given for place in batch.input_id.tolist()]
    assert set(places) == set(range(NUM_SEEDS))
    assert len(places) - NUM_SEEDS == -(NUM_SEEDS - 11) % 5


def test_without_the_last_step_what_remains_is_that_of_the_ranks_of_the_end() -> None:
    given, _ = _run([(4, 2), (3, None)], drop_last=True)
    assert sorted(number for number, _ in given) == list(range(8 + (NUM_SEEDS // BATCH_SIZE - 8) // 3 * 3))


def test_weighted_seeds_go_on_as_on_those_ranks() -> None:
    options = {"seed_weights": torch.arange(1.0, NUM_SEEDS + 1), "even_batches": True, "shuffle": False}
    expected = dict(_run([(3, None)], **options)[0])
    given, _ = _run([(4, 2), (3, None)], **options)
    for number, batch in given[8:]:
        if len(batch.input_id) == BATCH_SIZE:
            assert same_batch(batch, expected[number])


def test_the_next_epoch_is_whole_again() -> None:
    _, state = _run([(4, 2)])

    def program(_: RankGroup) -> list[Any]:
        with _loader() as loader:
            loader.load_state_dict(state)
            list(loader)
            return list(loader)

    def undisturbed(_: RankGroup) -> list[Any]:
        with _loader() as loader:
            loader.set_epoch(1)
            return list(loader)

    for found, expected in zip(
        _values(run_ranks(3, program)), _values(run_ranks(3, undisturbed)), strict=True
    ):
        assert len(found) == len(expected)
        assert all(map(same_batch, found, expected))


def test_after_the_last_batch_the_next_epoch_begins_on_any_ranks() -> None:
    _, state = _run([(4, len(list(range(0, NUM_SEEDS, 4 * BATCH_SIZE))))])
    assert state["batches"] == -(-NUM_SEEDS // BATCH_SIZE)

    def program(_: RankGroup) -> tuple[int, int]:
        with _loader() as loader:
            loader.load_state_dict(state)
            return loader.epoch, sum(batch.batch_size for batch in loader)

    for world_size in (1, 3, 4):
        epochs, seeds = zip(*_values(run_ranks(world_size, program)), strict=True)
        assert set(epochs) == {1}
        assert sum(seeds) == NUM_SEEDS


def test_a_state_of_batches_in_any_order_is_for_its_own_rank() -> None:
    def save(_: RankGroup) -> dict[str, Any]:
        with _loader(in_order=False) as loader:
            next(loader)
            return loader.state_dict()

    states = _values(run_ranks(2, save))

    def load(group: RankGroup, of: int) -> None:
        with _loader(in_order=False) as loader:
            loader.load_state_dict(states[of])

    for error in run_ranks(2, lambda group: load(group, 1 - group.rank)):
        assert "each rank of such a run loads the state that it left" in str(error)
    for error in run_ranks(3, lambda group: load(group, 0)):
        assert "the state is of rank 0 of 2" in str(error)
    _values(run_ranks(2, lambda group: load(group, group.rank)))


def test_ranks_that_load_different_states_are_told() -> None:
    states = [_run([(4, steps)])[1] for steps in (1, 2)]

    def program(group: RankGroup) -> None:
        with _loader(process_start_gap_seconds=0) as loader:
            loader.load_state_dict(states[group.rank])
            next(loader)
            group.publish("begun", "yes")
            group.collect("begun", timeout=0.5, what="begin")

    errors = [str(error) for error in run_ranks(2, program)]
    assert any("ranks differ: batch is" in error and "load the same state" in error for error in errors)


def test_a_loader_is_dealt_anew_while_it_runs() -> None:
    """Four ranks, of which three go on in another group, and one joins them."""
    loaders: dict[int, DistNeighborLoader] = {}
    expected = dict(_run([(1, None)])[0])

    def begin(group: RankGroup) -> list[Any]:
        loaders[group.rank] = loader = _loader(process_start_gap_seconds=0)
        return list(islice(loader, 2))

    def go_on(group: RankGroup) -> tuple[list[Any], Topology]:
        loader = loaders[group.rank]
        loader.reshard()
        return list(loader), loader.topology

    first = _values(run_ranks(4, begin))
    loaders.pop(3).shutdown()
    rest = _values(run_ranks(3, go_on))
    seen = [place for batches in first for batch in batches for place in batch.input_id.tolist()]
    for rank, (batches, topology) in enumerate(rest):
        assert (topology.rank, topology.world_size) == (rank, 3)
        seen += [place for batch in batches for place in batch.input_id.tolist()]
        for step, batch in enumerate(batches):
            if len(batch.input_id) == BATCH_SIZE:
                assert same_batch(batch, expected[8 + 3 * step + rank])
    assert sorted(seen) == list(range(NUM_SEEDS))
    for loader in loaders.values():
        loader.shutdown()


@pytest.mark.parametrize("mode", ["here", "workers", "disk", "store", "store, cache"])
def test_a_given_place_needs_no_process_group(mode: str, tmp_path: Path) -> None:
    """In every mode, a source turns to the steps of other ranks in the middle of what it samples ahead."""
    options: dict[str, Any] = {"workers": {"num_workers": 1}, "disk": {"feature_memory": 4_000}}.get(mode, {})
    with ExitStack() as stack:
        dataset: Any = DATASET
        if mode in ("disk", "store", "store, cache"):
            build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph", num_partitions=1)
            dataset = stack.enter_context(DistDataset.open(tmp_path / "graph"))
        if mode.startswith("store"):
            options = {"num_workers": 1, **({"feature_memory": 4_000} if mode.endswith("cache") else {})}
            servers = stack.enter_context(servers_of(tmp_path / "graph", 1))
            dataset = stack.enter_context(RemoteDistDataset.connect(addresses_of(servers)))
        loader = stack.enter_context(_loader(dataset=dataset, **options))
        iterator = iter(loader)
        first = list(islice(iterator, 3))
        loader.reshard(Topology(rank=1, world_size=2, local_rank=1, local_world_size=2))
        with pytest.raises(RuntimeError, match="the ranks have changed since this epoch was begun"):
            next(iterator)
        rest = list(loader)
        assert mode != "disk" or loader.stats()["rows"]["disk"]
        assert mode != "store, cache" or loader.stats()["rows"]["wire"]
        assert (len(rest), len(loader)) == (8, 10)
    expected = dict(_run([(1, None)])[0])
    assert all(same_batch(batch, expected[number]) for number, batch in enumerate(first))
    for step, batch in enumerate(rest[:-1]):
        assert same_batch(batch, expected[3 + 2 * step + 1])
