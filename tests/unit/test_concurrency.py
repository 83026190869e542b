"""Workers that sample several batches at once, with real processes and signals."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gigl_loader.errors import SamplingError, StorageUnavailable
from gigl_loader.options import WorkerOptions
from gigl_loader.sampling.source import InlineSource
from gigl_loader.workers.source import WorkerSource
from tests.support.sampler_stubs import DYING_CREW, FREE_CREW, PAIRED_CREW, UNAVAILABLE_CREW, Before
from tests.support.sources import (
    NUM_BATCHES,
    PLAN,
    SourceKind,
    bytes_of,
    drain,
    small_graph,
    small_schedule,
)

if TYPE_CHECKING:
    from gigl_loader.sampling.request import BatchRequest
    from gigl_loader.sampling.source import BatchSource

pytestmark = pytest.mark.usefixtures("no_leftovers")


@pytest.fixture(scope="module")
def expected() -> list[bytes]:
    source = SourceKind(0).open()
    source.start_epoch(0)
    return drain(source)


def _open(samplers: str, *, workers: int = 1, concurrency: int = 2, in_order: bool = True) -> WorkerSource:
    options = WorkerOptions(num_workers=workers, worker_concurrency=concurrency, in_order=in_order)
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


def _drained_with_outages(source: BatchSource) -> tuple[list[bytes], int]:
    """All batches of an epoch, and how often one was not available."""
    frames: list[bytes] = []
    messages: list[str] = []
    while len(frames) < NUM_BATCHES:
        try:
            frames.append(bytes_of(source.receive(20)))
        except StorageUnavailable as error:  # noqa: PERF203
            messages.append(str(error))
    assert all("host 1 (10.0.0.2:7000), partition 1" in message for message in messages)
    return frames, len(messages)


@pytest.mark.parametrize("concurrency", [1, 2, 4])
def test_what_was_not_available_is_asked_for_again(expected: list[bytes], concurrency: int) -> None:
    """One error tells of all batches that failed alike, as far as they are known."""
    with closing(_open(UNAVAILABLE_CREW, concurrency=concurrency)) as source:
        source.start_epoch(0)
        frames, outages = _drained_with_outages(source)
        stats = source.stats()
    assert frames == expected
    assert 1 <= outages <= NUM_BATCHES - 2
    assert stats["batches"] == NUM_BATCHES


def test_out_of_order_too(expected: list[bytes]) -> None:
    with closing(_open(UNAVAILABLE_CREW, workers=2, concurrency=3, in_order=False)) as source:
        source.start_epoch(0)
        frames, _ = _drained_with_outages(source)
    assert sorted(frames) == sorted(expected)


def test_an_epoch_may_be_left_while_batches_are_not_available(expected: list[bytes]) -> None:
    with closing(_open(UNAVAILABLE_CREW, concurrency=4)) as source:
        source.start_epoch(0)
        assert drain(source, 2) == expected[:2]
        with pytest.raises(StorageUnavailable):
            source.receive(20)
        source.start_epoch(0)
        assert _drained_with_outages(source)[0] == expected


def test_inline_too(expected: list[bytes]) -> None:
    failing = {3}

    def happen(request: BatchRequest) -> None:
        if request.batch in failing:
            failing.clear()
            raise StorageUnavailable("host 1 (10.0.0.2:7000), partition 1: no answer")

    with closing(InlineSource(Before(PLAN.open(small_graph()), happen), small_schedule())) as source:
        source.start_epoch(0)
        frames, outages = _drained_with_outages(source)
    assert frames == expected
    assert outages == 1


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
