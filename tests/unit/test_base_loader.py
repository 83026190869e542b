"""Epochs, iterators, faults, shutdown: what every loader does, whatever its batches are."""

from __future__ import annotations

import copy
import gc
import importlib
import os
import pickle
import time
from itertools import islice
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import BaseDistLoader, DistDataset, DistNeighborLoader, SamplingError, WorkerDied
from gigl_loader.channel.frame import Frame
from gigl_loader.options import FeatureOptions
from gigl_loader.sampling.plan import BatchPlan
from gigl_loader.topology import Topology
from tests.support.made import record_sources
from tests.support.pyg_graphs import graph_of, heterogeneous, homogeneous, same_batch
from tests.support.scripted import Script, ScriptedDataset

GRAPH = graph_of(homogeneous())
DATASET = DistDataset(GRAPH)
NUM_BATCHES = 10

# Forking a process with threads (those of torch) is what somebody who asks for fork gets.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


def _loader(dataset: DistDataset = DATASET, **options: Any) -> DistNeighborLoader:
    """Ten batches an epoch, shuffled."""
    defaults: dict[str, Any] = {"batch_size": 30, "shuffle": True, "seed": 3, "num_workers": 0}
    defaults |= {"multiprocessing_context": "fork"}  # Cheap: how workers start is not the point here.
    return DistNeighborLoader(dataset, [3, 2], **{**defaults, **options})


def _epochs(count: int) -> list[list[Any]]:
    loader = _loader()
    return [list(loader) for _ in range(count)]


EPOCHS = _epochs(4)


def _same(batches: list[Any], expected: list[Any]) -> bool:
    return len(batches) == len(expected) and all(map(same_batch, batches, expected))


# Epochs and iterators


@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_iter_is_the_next_epoch(num_workers: int) -> None:
    with _loader(num_workers=num_workers) as loader:
        assert len(loader) == NUM_BATCHES
        for epoch in EPOCHS:
            assert _same(list(loader), epoch)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("stop_after", [1, 4])
def test_a_break_leaves_the_next_epoch_whole(num_workers: int, stop_after: int) -> None:
    with _loader(num_workers=num_workers) as loader:
        assert _same(list(islice(loader, stop_after)), EPOCHS[0][:stop_after])
        assert _same(list(loader), EPOCHS[1])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterator_that_is_never_advanced_takes_no_epoch(num_workers: int) -> None:
    """Lightning makes some for its checks."""
    with _loader(num_workers=num_workers) as loader:
        iter(loader)
        assert list(islice(loader, 0)) == []
        unused = iter(loader)
        assert loader.epoch == 0
        assert _same(list(loader), EPOCHS[0])
        assert loader.epoch == 1
        assert _same(list(unused), EPOCHS[1])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_epoch_may_be_set(num_workers: int) -> None:
    with _loader(num_workers=num_workers) as loader:
        for epoch in (2, 0, 1):
            loader.set_epoch(epoch)
            assert loader.epoch == epoch
            assert _same(list(loader), EPOCHS[epoch])
        next(iter(loader))
        assert loader.epoch == 2
        loader.set_epoch(0)
        assert _same([next(loader)], EPOCHS[0][:1])


def test_a_loaded_state_outlasts_its_own_epoch_being_set(caplog: pytest.LogCaptureFixture) -> None:
    first = _loader()
    list(first)
    list(islice(first, 3))
    loader = _loader()
    loader.load_state_dict(first.state_dict())
    loader.set_epoch(1)
    assert loader.epoch == 1
    assert _same(list(loader), EPOCHS[1][3:])
    loader.load_state_dict(first.state_dict())
    loader.set_epoch(2)
    assert "set_epoch(2) sets the state of epoch 1 aside that was loaded" in caplog.text
    assert _same(list(loader), EPOCHS[2])


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("version", [1, 2], ids=["state of 0.1", "state of now"])
def test_a_state_taken_after_the_last_batch_begins_the_next_epoch(num_workers: int, version: int) -> None:
    with _loader(num_workers=num_workers) as first, _loader(num_workers=num_workers) as loader:
        states = [first.state_dict() for _ in first]
        loader.load_state_dict({**states[-1], "format": version})
        assert loader.epoch == 1
        assert loader.state_dict()["epoch"] == 1
        assert _same(list(loader), EPOCHS[1])
        assert loader.epoch == 2


def test_what_is_left_of_an_epoch_without_batches_left_is_empty_where_it_is_set() -> None:
    """As ``for epoch in range(begun, ...): loader.set_epoch(epoch)`` after a state of the last batch."""
    first, loader = _loader(), _loader()
    loader.load_state_dict([first.state_dict() for _ in first][-1])
    for epoch in range(3):
        loader.set_epoch(epoch)
        assert _same(list(loader), [] if epoch == 0 else EPOCHS[epoch])


@pytest.mark.parametrize("given", [0, NUM_BATCHES])
def test_an_epoch_that_is_set_is_logged_only_where_batches_are_lost(
    given: int, caplog: pytest.LogCaptureFixture
) -> None:
    first, loader = _loader(), _loader()
    list(islice(first, given))
    loader.load_state_dict(first.state_dict())
    loader.set_epoch(1 + loader.epoch)
    assert "aside" not in caplog.text


def test_a_state_of_which_other_ranks_leave_nothing_begins_the_next_epoch() -> None:
    """With ``drop_last``, three ranks have no step left after 8 of 10 batches."""
    state = {**_loader(drop_last=True).state_dict(), "batches": 8}
    with _loader(drop_last=True) as loader:
        loader.reshard(Topology(rank=1, world_size=3))
        loader.load_state_dict(state)
        assert loader.epoch == 1
        assert len(list(loader)) == len(loader)


@pytest.mark.parametrize(
    ("epoch", "kind"), [(-1, ValueError), (2**63, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_what_is_no_epoch_is_refused(epoch: Any, kind: type[Exception]) -> None:
    loader = _loader()
    for use in (loader.set_epoch, lambda epoch: loader.sample([0], epoch=epoch)):
        with pytest.raises(kind, match="epoch"):
            use(epoch)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_one_batch_is_sampled_by_itself(num_workers: int) -> None:
    """It is the first batch of a loader over just these seeds, whose places begin at 0."""
    with _loader(num_workers=num_workers) as loader:
        batches = iter(loader)
        first = next(batches)
        for epoch in (0, 1):
            expected = EPOCHS[epoch][3]
            batch = loader.sample(expected.batch, epoch=epoch)
            assert batch.input_id.tolist() == list(range(len(expected.batch)))
            alone = _loader(input_nodes=expected.batch, shuffle=False)
            alone.set_epoch(epoch)
            assert same_batch(batch, next(alone))
        assert same_batch(loader(first.input_id), first)
        assert _same([first, *batches], EPOCHS[0])
        with pytest.raises(ValueError, match="unknown"):
            loader.sample([10**9])
        with pytest.raises(ValueError, match="at least one seed"):
            loader.sample([])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_nested_iteration_gives_whole_epochs_at_every_level(num_workers: int) -> None:
    with _loader(num_workers=num_workers) as loader:
        outer = []
        for place, batch in enumerate(loader):
            outer.append(batch)
            if place in (2, 5):
                assert _same(list(loader), EPOCHS[1 if place == 2 else 2])
        assert _same(outer, EPOCHS[0])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_two_iterators_of_one_loader_keep_their_places(num_workers: int) -> None:
    with _loader(num_workers=num_workers) as loader:
        pairs = list(zip(loader, loader, strict=True))
    assert _same([first for first, _ in pairs], EPOCHS[0])
    assert _same([second for _, second in pairs], EPOCHS[1])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_two_loaders_run_interleaved(num_workers: int) -> None:
    with _loader(num_workers=num_workers) as first, _loader(num_workers=num_workers) as second:
        pairs = list(zip(first, second, strict=True))
    assert all(same_batch(a, b) for a, b in pairs)
    assert _same([a for a, _ in pairs], EPOCHS[0])


def test_next_of_a_loader_advances_its_latest_iterator() -> None:
    loader = _loader()
    first = [next(loader) for _ in range(2)]
    iterator = iter(loader)
    second = [next(iterator), next(loader), next(iterator)]
    assert _same(first, EPOCHS[0][:2])
    assert _same(second, EPOCHS[1][:3])


def test_an_exhausted_iterator_stays_exhausted() -> None:
    loader = _loader()
    iterator = iter(loader)
    list(iterator)
    assert list(iterator) == []
    assert next(iterator, None) is None
    assert _same(list(loader), EPOCHS[1])
    assert list(iterator) == []


def test_a_progress_bar_knows_the_length() -> None:
    tqdm = importlib.import_module("tqdm").tqdm
    bar = tqdm(_loader(), disable=True)
    assert bar.total == NUM_BATCHES
    assert len(list(bar)) == NUM_BATCHES


def test_batches_may_be_kept() -> None:
    with _loader(num_workers=2) as loader:
        kept = [batch for _ in range(3) for batch in loader]
    assert _same(kept, [batch for epoch in EPOCHS[:3] for batch in epoch])


# Order


def test_out_of_order_batches_make_a_whole_epoch() -> None:
    script = Script(order=lambda batches: sorted(batches, key=lambda batch: (batch % 3, -batch)))
    loader = _loader(ScriptedDataset(GRAPH, script), in_order=False)
    seen = list(loader)
    assert not _same(seen, EPOCHS[0])
    assert len(seen) == NUM_BATCHES
    assert all(any(same_batch(batch, other) for other in seen) for batch in EPOCHS[0])
    assert len(list(loader)) == NUM_BATCHES


def test_a_nested_epoch_out_of_order_loses_and_repeats_nothing() -> None:
    script = Script(order=lambda batches: sorted(batches, key=lambda batch: (batch % 3, -batch)))
    loader = _loader(ScriptedDataset(GRAPH, script), in_order=False)
    outer = []
    for batch in loader:
        outer.append(batch)
        if len(outer) == 5:
            list(loader)
    assert len(outer) == NUM_BATCHES
    assert all(any(same_batch(batch, other) for other in outer) for batch in EPOCHS[0])


# Faults


def test_a_failed_batch_is_raised_in_its_place_and_the_epoch_goes_on() -> None:
    script = Script(faults={3: SamplingError("batch 3 cannot be")})
    iterator = iter(_loader(ScriptedDataset(GRAPH, script)))
    seen = [next(iterator) for _ in range(3)]
    with pytest.raises(SamplingError, match="batch 3 cannot be"):
        next(iterator)
    seen += list(iterator)
    assert _same(seen, EPOCHS[0][:3] + EPOCHS[0][4:])


def test_a_failed_last_batch_ends_the_epoch() -> None:
    script = Script(faults={9: SamplingError("no")})
    loader = _loader(ScriptedDataset(GRAPH, script))
    iterator = iter(loader)
    assert len(list(islice(iterator, 9))) == 9
    with pytest.raises(SamplingError):
        next(iterator)
    assert list(iterator) == []
    script.faults.clear()
    assert _same(list(loader), EPOCHS[1])


def test_nothing_is_lost_by_a_timeout() -> None:
    script = Script(waits={4: TimeoutError("slow")})
    iterator = iter(_loader(ScriptedDataset(GRAPH, script)))
    seen = list(islice(iterator, 4))
    with pytest.raises(TimeoutError, match="slow"):
        next(iterator)
    assert _same(seen + list(iterator), EPOCHS[0])


def test_a_dead_worker_is_told_and_the_state_is_still_good() -> None:
    script = Script(waits={4: WorkerDied("gone")})
    loader = _loader(ScriptedDataset(GRAPH, script))
    seen: list[Any] = []
    with pytest.raises(WorkerDied, match="gone"):
        seen.extend(loader)
    resumed = _loader()
    resumed.load_state_dict(loader.state_dict())
    assert _same(list(resumed), EPOCHS[0][len(seen) :])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_interrupted_batch_is_not_lost(num_workers: int) -> None:
    interrupts = [True]

    def transform(batch: Data) -> Data:
        if same_batch(batch, EPOCHS[0][4]) and interrupts:
            interrupts.pop()
            raise KeyboardInterrupt
        return batch

    with _loader(transform=transform, num_workers=num_workers) as loader:
        iterator = iter(loader)
        seen = list(islice(iterator, 4))
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert _same(seen + list(iterator), EPOCHS[0])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_interrupted_start_of_an_epoch_does_not_disturb_another(
    monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    sources: list[Any] = record_sources(monkeypatch)
    with _loader(num_workers=num_workers) as loader:
        iterator = iter(loader)
        seen = list(islice(iterator, 4))
        (source,) = sources
        start = source.start_epoch

        def interrupted(epoch: int, first_batch: int = 0, origin: int = 0) -> None:
            source.start_epoch = start
            start(epoch, first_batch, origin)
            raise KeyboardInterrupt

        source.start_epoch = interrupted
        with pytest.raises(KeyboardInterrupt):
            iter(loader)
        assert _same(seen + list(iterator), EPOCHS[0])


def test_a_transform_that_raises_stop_iteration_does_not_end_the_epoch() -> None:
    def transform(batch: Data) -> Data:
        nothing: list[Data] = []
        return next(iter(nothing))

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(_loader(transform=transform))


def test_a_transform_that_raises_is_the_users_error_and_the_next_batch_follows() -> None:
    def transform(batch: Data) -> Data:
        if same_batch(batch, EPOCHS[0][1]):
            raise ZeroDivisionError
        return batch

    iterator = iter(_loader(transform=transform))
    next(iterator)
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    assert _same(list(iterator), EPOCHS[0][2:])


def test_no_source_is_left_when_construction_fails() -> None:
    class Late(DistNeighborLoader):
        def sampling_plan(self, seed_type: str, run_seed: int) -> BatchPlan:
            raise ValueError("a bad plan")

    script = Script()
    with pytest.raises(ValueError, match="a bad plan"):
        Late(ScriptedDataset(GRAPH, script), [2], num_workers=1)
    assert script.starts == []


# Shutdown


def test_a_loader_that_was_shut_down_says_so() -> None:
    script = Script()
    loader = _loader(ScriptedDataset(GRAPH, script))
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    loader.shutdown()
    loader.shutdown()
    assert script.closed == 1
    for use in (lambda: next(iterator), lambda: iter(loader), lambda: next(loader)):
        with pytest.raises(RuntimeError, match=r"DistNeighborLoader-\d+ was shut down; build a new loader"):
            use()
    with pytest.raises(RuntimeError, match="was shut down"):
        loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert "shut down" in repr(loader)
    assert len(loader) == NUM_BATCHES


def test_leaving_the_block_shuts_down_also_by_an_error() -> None:
    script = Script()
    with pytest.raises(ZeroDivisionError), _loader(ScriptedDataset(GRAPH, script)):
        raise ZeroDivisionError
    assert script.closed == 1


def test_a_loader_that_is_collected_leaves_no_process() -> None:
    loader = _loader(num_workers=2)
    batch = next(iter(loader))
    pids = [worker["pid"] for worker in loader.stats()["workers"]]
    assert len(pids) == 2
    assert all(_alive(pid) for pid in pids)
    del loader
    gc.collect()
    _wait_until(lambda: not any(_alive(pid) for pid in pids))
    assert same_batch(batch, EPOCHS[0][0])


def test_an_iterator_keeps_its_loader() -> None:
    assert _same(list(_loader(num_workers=1)), EPOCHS[0])
    iterator = iter(_loader(num_workers=1))
    gc.collect()
    assert _same(list(iterator), EPOCHS[0])


def _alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def _wait_until(condition: Any, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Other processes


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_loader_refuses_to_be_copied(take: Any) -> None:
    with pytest.raises(TypeError, match=r"cannot be pickled or copied.* state_dict\(\)"):
        take(_loader())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_forked_child_is_refused_and_does_no_harm(num_workers: int) -> None:
    with _loader(num_workers=num_workers) as loader:
        iterator = iter(loader)
        seen = list(islice(iterator, 2))
        with loader._singles._in_use:  # As where another thread samples.
            child = os.fork()
        if child == 0:
            loader._singles._in_use.acquire(blocking=False)  # The child's copy of the lock is held for ever.
            status = 3
            try:
                next(iterator)
            except RuntimeError as error:
                status = 0 if f"belongs to process {os.getppid()}" in str(error) else 4
            loader.shutdown()
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert _same(seen + list(iterator), EPOCHS[0])


# The rest


def test_stats_tell_where_time_went(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = record_sources(monkeypatch)

    def transform(batch: Data) -> Data:
        time.sleep(0.001)
        return batch

    loader = _loader(transform=transform)
    list(loader)
    stats = loader.stats()
    assert stats["batches"] == NUM_BATCHES
    assert stats["seconds_transforming"] >= 0.01
    for kind in ("waiting", "copying", "collating"):
        assert 0 < stats[f"seconds_{kind}"] < 5
    assert set(stats) >= set(sources[0].stats())


def test_options_of_features_are_in_the_request_for_epochs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Any] = []
    open_source = DistDataset.open_source

    def recorded(dataset: DistDataset, request: Any) -> Any:
        requests.append(request)
        return open_source(dataset, request)

    monkeypatch.setattr(DistDataset, "open_source", recorded)
    options: dict[str, Any] = {
        "feature_memory": "1MB",
        "window": 3,
        "cache_policy": "none",
    }
    with _loader(**options) as loader, _loader() as plain:
        loader.sample(torch.arange(3))
        given = FeatureOptions(memory_bytes=1 << 20, window=3, cache_policy="none")
        assert [request.features for request in requests] == [given, FeatureOptions(), FeatureOptions()]
        assert plain.plan == loader.plan
        epoch = iter(loader)
        next(epoch)
        plain.load_state_dict(loader.state_dict())
        assert all(map(same_batch, [*epoch], [*plain]))


@pytest.mark.parametrize("columns", [None, []], ids=["all columns", "no columns"])
def test_rows_of_features_are_counted(columns: list[str] | None) -> None:
    loader = DistNeighborLoader(
        DistDataset.from_pyg(heterogeneous()),
        [2, 2],
        ("item", None),
        node_columns=columns,
        edge_columns=columns,
        num_workers=0,
        batch_size=30,
    )
    assert loader.stats()["rows"]["wanted"] == 0
    rows = nbytes = 0
    for batch in loader:
        for kind in (*batch.node_types, *batch.edge_types):
            schema = loader.dataset.schema.columns[kind]
            found = [batch[kind][name] for name in schema if name in batch[kind]]
            rows += len(found[0]) if found else 0
            nbytes += sum(each.nbytes for each in found)
    assert (rows > 0) == (columns is None)
    expected = {
        "device": 0,
        "host": 0,
        "cache": 0,
        "ranks": 0,
        "memory": rows,
        "disk": 0,
        "wire": 0,
        "bytes": nbytes,
        "seconds_waiting": 0.0,
    }
    assert loader.stats()["rows"] == {"wanted": rows, **expected}


def test_the_text_of_a_loader_tells_what_it_is() -> None:
    loader = _loader()
    told = "10 batches of 30, 0 workers, seed 3, on cpu, features in memory"
    assert repr(loader) == f"DistNeighborLoader({told})"
    features = loader.stats()["feature_memory"]
    assert features["decision"] == "features in memory"
    assert {each["reason"] for each in features["types"]} == {"the graph was built in memory"}


def test_the_runtime_is_known() -> None:
    assert _loader().topology == BaseDistLoader.resolve_runtime()


def test_a_name_is_for_messages() -> None:
    loader = _loader(name="validation")
    loader.shutdown()
    with pytest.raises(RuntimeError, match=r"^validation was shut down"):
        next(loader)


def test_collating_a_batch_touches_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch's tensors are the frame's memory, but for ``edge_index`` and ``seed_index``."""
    sources = record_sources(monkeypatch)
    loader = _loader()
    frames: list[Frame] = []
    receive = sources[0].receive

    def received(timeout: float) -> Frame:
        frames.append(receive(timeout))
        return frames[-1]

    monkeypatch.setattr(sources[0], "receive", received)
    batch = next(loader)
    (frame,) = frames
    begin = frame.buffer.ctypes.data
    for name, value in batch.to_dict().items():
        if isinstance(value, torch.Tensor) and value.numel():
            inside = begin <= value.data_ptr() < begin + frame.nbytes
            assert inside == (name not in ("edge_index", "seed_index")), name
