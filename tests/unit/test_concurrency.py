"""Workers that sample several batches at once, with real processes and signals."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gigl_loader.errors import SamplingError, StorageUnavailable
from gigl_loader.options import WorkerOptions
from gigl_loader.sampling.source import InlineSource
from gigl_loader.workers.source import WorkerSource
from tests.support.sampler_stubs import (
    DYING_CREW,
    FREE_CREW,
    LASTING_CREW,
    PAIRED_CREW,
    UNAVAILABLE_CREW,
    Before,
)
from tests.support.sources import (
    NUM_BATCHES,
    PLAN,
    SourceKind,
    drain,
    small_graph,
    small_schedule,
)

if TYPE_CHECKING:
    from gigl_loader.sampling.request import BatchRequest

pytestmark = [
    pytest.mark.usefixtures("no_leftovers"),
    # Forking a process with threads (those of torch) is what somebody who asks for fork gets.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def expected() -> list[bytes]:
    source = SourceKind(0).open()
    source.start_epoch(0)
    return drain(source)


def _open(samplers: str, *, workers: int = 1, concurrency: int = 2, in_order: bool = True) -> WorkerSource:
    options = WorkerOptions(
        num_workers=workers, worker_concurrency=concurrency, in_order=in_order, start_method="fork"
    )
    return WorkerSource(small_graph(), PLAN, small_schedule(), options, sampler=samplers, timeout_s=20)


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_overlap_and_come_in_order(expected: list[bytes], workers: int) -> None:
    """No batch is sampled before another one of its worker has begun."""
    with closing(_open(PAIRED_CREW, workers=workers)) as source:
        source.start_epoch(0)
        if workers == 1:
            assert drain(source) == expected
            source.start_epoch(0)
        assert drain(source, 6) == expected[:6]


def test_leaving_an_epoch_with_several_batches_under_way_leaks_none(expected: list[bytes]) -> None:
    with closing(_open(FREE_CREW, concurrency=4)) as source:
        for _ in range(3):
            source.start_epoch(0)
            assert drain(source, 1) == expected[:1]
        source.start_epoch(0, 2)
        assert drain(source, NUM_BATCHES - 2) == expected[2:]


def test_a_worker_killed_with_several_batches_under_way_loses_none(
    expected: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with closing(_open(DYING_CREW, concurrency=3)) as source:
        source.start_epoch(0)
        assert drain(source) == expected
        assert source.stats()["restarts"] == 1
    assert "batch 0 of epoch 0 and 2 more" in caplog.text
    assert "batches [0, 1, 2] again" in caplog.text


@pytest.mark.parametrize("concurrency", [1, 2, 4])
def test_what_was_not_available_is_requested_again(expected: list[bytes], concurrency: int) -> None:
    with closing(_open(UNAVAILABLE_CREW, concurrency=concurrency)) as source:
        source.start_epoch(0)
        assert drain(source) == expected
        assert source.stats()["batches"] == NUM_BATCHES


def test_out_of_order_too(expected: list[bytes]) -> None:
    with closing(_open(UNAVAILABLE_CREW, workers=2, concurrency=3, in_order=False)) as source:
        source.start_epoch(0)
        assert sorted(drain(source)) == sorted(expected)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_what_stays_away_is_told_when_the_time_is_over(concurrency: int) -> None:
    """Nothing is lost by it, and the epoch may be left."""
    with closing(_open(LASTING_CREW, concurrency=concurrency)) as source:
        source.start_epoch(0)
        drain(source, 2)
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(StorageUnavailable, match=r"host 1 \(10\.0\.0\.2:7000\), partition 1"):
                source.receive(1.0)
            assert time.monotonic() - began > 0.3
        assert source.stats()["batches"] == 2
        source.start_epoch(1)
        assert len(drain(source)) == NUM_BATCHES


@pytest.mark.parametrize("times", [1, 1_000_000])
def test_inline_too(expected: list[bytes], times: int) -> None:
    asked = 0

    def happen(request: BatchRequest) -> None:
        nonlocal asked
        if request.batch == 3 and asked < times:
            asked += 1
            raise StorageUnavailable("host 1 (10.0.0.2:7000), partition 1: no answer")

    with closing(InlineSource(Before(PLAN.open(small_graph()), happen), small_schedule())) as source:
        source.start_epoch(0)
        frames = drain(source, 3)
        if times > 1:
            with pytest.raises(StorageUnavailable, match="host 1"):
                source.receive(1.0)
            assert asked < 30  # It pauses between two attempts.
            times = 0
        assert [*frames, *drain(source, NUM_BATCHES - 3)] == expected
    assert asked >= 1


def test_costs_are_told_by_kind() -> None:
    with closing(_open("gigl_loader.workers.main:open_samplers")) as source:
        source.start_epoch(0)
        drain(source)
        stats = source.stats()
    for costs in (stats, *stats["workers"]):
        assert 0 < costs["cpu_sampling"] < costs["cpu_seconds"]
        assert 0 < costs["cpu_gathering"] < costs["cpu_seconds"]
        assert 0 <= costs["cpu_wire"] < costs["cpu_seconds"] / 2
        assert (costs["wire_bytes_in"], costs["wire_bytes_out"], costs["peer_calls"]) == (0, 0, 0)


def test_a_failure_of_another_kind_is_not_retried(expected: list[bytes]) -> None:
    def happen(request: BatchRequest) -> None:
        if request.batch == 3:
            raise OSError("not that")

    with closing(InlineSource(Before(PLAN.open(small_graph()), happen), small_schedule())) as source:
        source.start_epoch(0)
        assert drain(source, 3) == expected[:3]
        with pytest.raises(SamplingError, match="not that"):
            source.receive(20)
        assert drain(source, NUM_BATCHES - 4) == expected[4:]
