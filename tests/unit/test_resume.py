"""A state taken anywhere, loaded anywhere of the same inputs and options: the batches not yet seen."""

from __future__ import annotations

import io
import json
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader import DistDataset, DistNeighborLoader, SamplingError
from gigl_loader.loaders.state import state_before
from gigl_loader.sampling.schedule import Progress
from tests.support.pyg_graphs import graph_of, homogeneous, same_batch
from tests.support.scripted import Script, ScriptedDataset

DATA = homogeneous()
GRAPH = graph_of(DATA)
DATASET = DistDataset(GRAPH)
NUM_BATCHES = 10


# Forking a process with threads (those of torch) is what somebody who asks for fork gets.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


def _loader(
    dataset: DistDataset = DATASET, num_neighbors: Any = (3, 2), **options: Any
) -> DistNeighborLoader:
    defaults: dict[str, Any] = {"batch_size": 30, "shuffle": True, "seed": 3, "num_workers": 0}
    defaults |= {"multiprocessing_context": "fork"}  # Cheap: how workers start is not the point here.
    return DistNeighborLoader(dataset, num_neighbors, **{**defaults, **options})


def _epochs(count: int) -> list[list[Any]]:
    loader = _loader()
    return [list(loader) for _ in range(count)]


EPOCHS = _epochs(3)


def _same(batches: list[Any], expected: list[Any]) -> bool:
    return len(batches) == len(expected) and all(map(same_batch, batches, expected))


def _reloaded(state: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(json.dumps(state))
    return result


@settings(max_examples=12)
@given(
    epoch=st.integers(0, 1),
    stop_after=st.integers(0, NUM_BATCHES),
    partitions=st.sampled_from([1, 2, 3]),
)
def test_resuming_gives_the_batches_not_yet_seen(epoch: int, stop_after: int, partitions: int) -> None:
    loader = _loader()
    for _ in range(epoch):
        list(loader)
    list(islice(iter(loader), stop_after))
    resumed = _loader(DistDataset.from_pyg(DATA, num_partitions=partitions, assigner="hash"))
    resumed.load_state_dict(_reloaded(loader.state_dict()))
    if stop_after < NUM_BATCHES:
        assert _same(list(resumed), EPOCHS[epoch][stop_after:])
    assert _same(list(resumed), EPOCHS[epoch + 1])


@pytest.mark.some(3)
@pytest.mark.parametrize("stop_after", [0, 1, 9])
@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 1), (1, 4), (4, 2)])
def test_a_state_knows_no_number_of_workers(stop_after: int, before: int, after: int) -> None:
    with _loader(num_workers=before) as loader:
        list(islice(iter(loader), stop_after))
        state = loader.state_dict()
    with _loader(num_workers=after) as resumed:
        resumed.load_state_dict(state)
        assert _same(list(resumed), EPOCHS[0][stop_after:])


def test_an_epoch_that_ended_is_the_start_of_the_next() -> None:
    loader = _loader()
    list(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["batches"]) == (1, 0)
    resumed = _loader()
    resumed.load_state_dict(state)
    assert _same(list(resumed), EPOCHS[1])


def test_a_state_of_the_last_batch_of_an_epoch_begins_the_next() -> None:
    loader = _loader()
    for _ in loader:
        state = loader.state_dict()
    assert (state["epoch"], state["batches"]) == (0, NUM_BATCHES)
    resumed = _loader()
    resumed.load_state_dict(state)
    assert _same(list(resumed), EPOCHS[1])


def test_before_the_first_iter_a_state_is_the_very_start() -> None:
    resumed = _loader()
    resumed.load_state_dict(_loader().state_dict())
    assert _same(list(resumed), EPOCHS[0])


def test_a_loaded_state_is_the_state_until_it_is_begun() -> None:
    loader = _loader()
    list(islice(iter(loader), 4))
    state = loader.state_dict()
    resumed = _loader()
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    iterator = iter(resumed)
    assert resumed.state_dict() == state
    next(iterator)
    assert resumed.state_dict()["batches"] == 5


def test_a_state_counts_batches_handed_out_not_sampled_ahead() -> None:
    with _loader(num_workers=2) as loader:
        next(iter(loader))
        assert loader.state_dict()["batches"] == 1


def test_going_back_in_the_same_loader() -> None:
    loader = _loader()
    list(islice(iter(loader), 6))
    state = loader.state_dict()
    list(loader)
    loader.load_state_dict(state)
    assert _same(list(loader), EPOCHS[0][6:])


def test_next_of_a_loader_goes_on_at_the_loaded_state() -> None:
    loader = _loader()
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    list(islice(iterator, 3))
    loader.load_state_dict(state)
    assert same_batch(next(loader), EPOCHS[0][1])
    assert loader.state_dict()["batches"] == 2


def test_a_state_follows_the_iterator_used_last() -> None:
    loader = _loader()
    first, second = iter(loader), iter(loader)
    next(first)
    list(islice(second, 7))
    next(first)
    state = loader.state_dict()
    assert (state["epoch"], state["batches"]) == (0, 2)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_random_seed_gives_way_to_that_of_the_state(num_workers: int) -> None:
    loader = _loader(seed=None)
    whole = list(loader)
    again = _loader(seed=loader.seed)
    seen = list(islice(iter(again), 3))
    with _loader(seed=None, num_workers=num_workers) as resumed:
        assert resumed.seed != again.seed
        resumed.load_state_dict(again.state_dict())
        assert resumed.seed == again.seed
        assert _same(seen + list(resumed), whole)


def test_a_state_survives_torch_save() -> None:
    loader = _loader()
    list(islice(iter(loader), 2))
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    file.seek(0)
    resumed = _loader()
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert _same(list(resumed), EPOCHS[0][2:])


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 31}, "batch_size is 31 here, 30 in the state"),
    ({"shuffle": False}, "shuffle is False here, True in the state"),
    ({"drop_last": True}, "drop_last is True here"),
    ({"num_neighbors": [3, 3]}, r"num_neighbors is .*\[3, 3\].* here, .*\[3, 2\].* in the state"),
    ({"replace": True}, "replace is True here"),
    ({"with_edge": False}, "with_edge is False here"),
    ({"input_nodes": "train"}, "number of seeds is .* here, 300 in the state"),
    ({"input_nodes": torch.arange(300).flip(0)}, "digest of seeds is"),
    ({"seed": 4}, "the state is of another run: seed is 4 here, 3 there"),
]


@pytest.mark.parametrize(("options", "difference"), OTHERS, ids=lambda value: str(value)[:30])
def test_a_state_of_other_inputs_or_options_is_refused(options: dict[str, Any], difference: str) -> None:
    state = _reloaded(_loader().state_dict())
    with pytest.raises(ValueError, match=difference):
        _loader(**options).load_state_dict(state)


def test_a_state_of_another_graph_is_refused() -> None:
    other = DistDataset.from_pyg(homogeneous(num_edges=2401))
    with pytest.raises(ValueError, match=r"number of edges is .*2401.* here, .*2400.* in the state"):
        _loader(other).load_state_dict(_loader().state_dict())


def test_a_mask_is_another_input_than_its_ids() -> None:
    mask = torch.ones(300, dtype=torch.bool)
    loader = _loader(input_nodes=mask)
    resumed = _loader(input_nodes=mask)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="digest of seeds"):
        _loader().load_state_dict(loader.state_dict())


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"format": 99}, "a state of format 99; this version reads 1 and 2"),
    ({"epoch": -1}, r"epoch of the state must lie in \[0, 2\*\*63\), got -1"),
    ({"epoch": 2**63}, r"epoch of the state must lie in \[0, 2\*\*63\), got 9223372036854775808"),
    ({"epoch": 1.0}, r"epoch of the state must lie in \[0, 2\*\*63\), got 1\.0"),
    ({"batches": 11}, r"batches of the state must lie in \[0, 10\], got 11"),
    ({"batches": True}, "batches of the state must lie"),
    ({"ahead": [0]}, r"ahead of the state must list batches in \(0, 10\), got \[0\]"),
    ({"ahead": None}, "ahead of the state must list batches"),
    ({"run_seed": -1}, r"run_seed of the state must lie in \[0, 2\*\*64\), got -1"),
    ({"run_seed": "3"}, "run_seed of the state must lie"),
    ({"made_with": []}, "made_with of the state must be a mapping"),
]


@pytest.mark.parametrize(("broken", "rule"), BROKEN, ids=lambda value: str(value)[:30])
def test_a_broken_state_is_refused(broken: dict[str, Any], rule: str) -> None:
    loader = _loader()
    with pytest.raises(ValueError, match=rule):
        loader.load_state_dict({**loader.state_dict(), **broken})


@pytest.mark.parametrize("state", [{}, None, [], {"epoch": 0}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(ValueError, match="not the state of a loader: it needs ahead, batches, epoch"):
        _loader().load_state_dict(state)


def test_a_refused_state_changes_nothing() -> None:
    loader = _loader()
    list(islice(iter(loader), 2))
    before = loader.state_dict()
    with pytest.raises(ValueError, match="batches of the state"):
        loader.load_state_dict({**before, "batches": 99})
    assert loader.state_dict() == before
    assert _same(list(loader), EPOCHS[1])


@pytest.mark.parametrize("stop_after", [1, 4, 8])
def test_out_of_order_batches_are_resumed_exactly(stop_after: int) -> None:
    def script() -> ScriptedDataset:
        order = Script(order=lambda batches: sorted(batches, key=lambda batch: (batch % 3, -batch)))
        return ScriptedDataset(GRAPH, order)

    loader = _loader(script(), in_order=False)
    seen = list(islice(iter(loader), stop_after))
    resumed = _loader(script(), in_order=False)
    resumed.load_state_dict(_reloaded(loader.state_dict()))
    seen += list(resumed)
    assert len(seen) == NUM_BATCHES
    assert all(any(same_batch(batch, other) for other in seen) for batch in EPOCHS[0])


def test_a_failed_batch_is_wanted_again_by_a_resume() -> None:
    loader = _loader(ScriptedDataset(GRAPH, Script(faults={3: SamplingError("no")})))
    iterator = iter(loader)
    list(islice(iterator, 3))
    with pytest.raises(SamplingError):
        next(iterator)
    resumed = _loader()
    resumed.load_state_dict(loader.state_dict())
    assert _same(list(resumed), EPOCHS[0][3:])
    list(islice(iterator, 2))
    resumed.load_state_dict(loader.state_dict())
    assert _same(list(resumed), [EPOCHS[0][3], *EPOCHS[0][6:]])


@given(st.permutations(range(12)), st.integers(0, 12))
def test_progress_is_a_prefix_and_what_lies_ahead(order: list[int], given_out: int) -> None:
    progress = Progress(epoch=0)
    for batch in order[:given_out]:
        assert progress.lacks(batch)
        progress.give(batch)
        assert not progress.lacks(batch)
    assert {batch for batch in range(12) if not progress.lacks(batch)} == set(order[:given_out])
    assert progress.first not in progress.ahead
    assert all(batch > progress.first for batch in progress.ahead)


def test_batches_in_any_order_count_as_given() -> None:
    with _loader() as loader:
        list(islice(loader, 3))
        state, schedule = loader.state_dict(), loader._schedule
    in_order = Progress(epoch=0, first=3)
    assert state_before(state, 1, in_order, schedule)["batches"] == 2
    in_any_order = Progress(epoch=0, first=3, ahead={5})
    assert state_before(state, 1, in_any_order, schedule) == state
