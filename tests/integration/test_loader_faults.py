"""What the user of a loader sees when its sampling processes fail: the table of faults, end to end."""

from __future__ import annotations

import os
import signal
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from gigl_loader import DistDataset, DistNeighborLoader, SamplingError, WorkerDied
from gigl_loader.workers.source import WorkerSource
from tests.support.faults import FAULTY_SAMPLER, FaultPlan, GraphWithFaults
from tests.support.pyg_graphs import graph_of, homogeneous, same_batch

if TYPE_CHECKING:
    from gigl_loader.sampling.source import BatchSource, SourceRequest

DATA = homogeneous()
GRAPH = graph_of(DATA)
CLEAN = DistDataset(GRAPH)


class _FaultyDataset(DistDataset):
    """The workers of its loaders follow a plan of faults."""

    def __init__(self, faults: FaultPlan) -> None:
        super().__init__(GRAPH)
        self._faults = faults

    def open_source(self, request: SourceRequest) -> BatchSource:
        graph: Any = GraphWithFaults(GRAPH, self._faults)
        return WorkerSource(graph, request.plan, request.schedule, request.workers, sampler=FAULTY_SAMPLER)


def _loader(faults: FaultPlan | None, **options: Any) -> DistNeighborLoader:
    dataset = CLEAN if faults is None else _FaultyDataset(faults)
    run: dict[str, Any] = {"batch_size": 30, "shuffle": True, "seed": 9, "num_workers": 2, "timeout": 20}
    return DistNeighborLoader(dataset, [3, 2], **{**run, **options})


EXPECTED = list(_loader(None, num_workers=0))


def _same(batches: list[Any], expected: list[Any]) -> bool:
    return len(batches) == len(expected) and all(map(same_batch, batches, expected))


@pytest.mark.some(1)
@pytest.mark.parametrize("what", ["kill", "segv", "exit"])
def test_a_worker_that_dies_once_goes_unnoticed(what: str) -> None:
    with _loader(FaultPlan(what=what, at_batch=4)) as loader:
        assert _same(list(loader), EXPECTED)
        assert loader.stats()["restarts"] == 1


def test_a_worker_that_is_killed_from_outside_goes_unnoticed() -> None:
    with _loader(None) as loader:
        iterator = iter(loader)
        seen = list(islice(iterator, 3))
        os.kill(loader.stats()["workers"][0]["pid"], signal.SIGKILL)
        assert _same(seen + list(iterator), EXPECTED)


def test_a_batch_that_kills_its_workers_ends_in_worker_died_and_a_good_state() -> None:
    with _loader(FaultPlan(what="kill", at_batch=4, lives=9)) as loader:
        iterator = iter(loader)
        seen = list(islice(iterator, 4))
        with pytest.raises(WorkerDied, match="SIGKILL"):
            next(iterator)
        state = loader.state_dict()
    with _loader(None, num_workers=1) as resumed:
        resumed.load_state_dict(state)
        assert _same(seen + list(resumed), EXPECTED)


def test_a_batch_that_fails_is_raised_in_its_place_with_the_far_traceback() -> None:
    with _loader(FaultPlan(what="raise", at_batch=4)) as loader:
        iterator = iter(loader)
        seen = list(islice(iterator, 4))
        with pytest.raises(SamplingError, match="batch 4: Mishap: as planned") as caught:
            next(iterator)
        assert any("Traceback" in note and "faults.py" in note for note in caught.value.__notes__)
        seen += list(iterator)
    assert _same(seen, EXPECTED[:4] + EXPECTED[5:])


@pytest.mark.slow
def test_a_worker_that_hangs_is_a_timeout_that_tells_who_and_nothing_is_lost() -> None:
    with _loader(FaultPlan(what="stop", at_batch=0), num_workers=1, timeout=3) as loader:
        iterator = iter(loader)
        with pytest.raises(TimeoutError, match="worker 0"):
            next(iterator)
        worker = psutil.Process(loader.stats()["workers"][0]["pid"])
        while worker.status() != psutil.STATUS_STOPPED:  # It may have been too slow to come so far.
            time.sleep(0.05)
        worker.resume()
        assert _same(list(iterator), EXPECTED)


@pytest.mark.some(2)
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize("what", ["kill", "raise", "sleep"])
def test_a_loader_that_is_dropped_amid_faults_leaves_nothing(what: str) -> None:
    iterator = iter(_loader(FaultPlan(what=what, at_batch=2, lives=9), timeout=1))
    with pytest.raises((SamplingError, TimeoutError)):
        list(islice(iterator, 3))
    del iterator
