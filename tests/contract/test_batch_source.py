"""What every ``BatchSource`` promises. One suite for all of them."""

from __future__ import annotations

import gc
import itertools
import traceback
import weakref
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pytest

from gigl_loader.channel.frame import Frame
from gigl_loader.channel.ring import RingLayout, SlotPool
from gigl_loader.errors import SamplingError
from tests.support.faults import FaultPlan
from tests.support.leftovers import Leftovers, wait_until
from tests.support.remote_sources import REMOTE_KINDS, RemoteKind, served
from tests.support.sources import (
    NUM_BATCHES,
    PLANS,
    SourceKind,
    bytes_of,
    drain,
    sampled_frames,
    small_graph,
    small_graph_on_disk,
)

WORKER_KINDS = [
    *(SourceKind(0), SourceKind(1), SourceKind(2), SourceKind(2, "fork"), SourceKind(3, "fork")),
    *(SourceKind(workers, "fork", plan) for plan in ("links", "anchors", "ppr") for workers in (0, 2)),
    SourceKind(2, "fork", "induced"),
    *(SourceKind(workers, "fork", windowed=True) for workers in (0, 2)),
    SourceKind(2, "fork", windowed=True, on_device=True),
    *(SourceKind(2, "fork", plan, windowed=True) for plan in ("links", "anchors", "ppr")),
]
"""A spawned worker costs seven times the CPU of a forked one: kinds where that plays no part fork."""
Kind: TypeAlias = SourceKind | RemoteKind
KINDS: list[Kind] = [*WORKER_KINDS, *REMOTE_KINDS]

pytestmark = [
    pytest.mark.pairs,
    pytest.mark.usefixtures("no_leftovers"),
    # Forking a process with threads (those of torch) is what somebody who asks for fork gets.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def expected(kind: Kind) -> dict[int, list[bytes]]:
    """The batches of two epochs, straight from the sampler."""
    return {epoch: sampled_frames(epoch, kind.plan) for epoch in (0, 1)}


@pytest.fixture(scope="module", params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Iterator[Kind]:
    """Kind after kind, so that no server is in this process when it is forked."""
    found: Kind = request.param
    if not isinstance(found, RemoteKind):
        yield found
        return
    with pytest.MonkeyPatch.context() as patches, served(found.servers, patches) as small:
        yield replace(found, small=small)


@pytest.fixture
def no_leftovers(kind: Kind) -> Iterator[None]:
    """Fail the test if a process, file descriptor or shared memory outlives it."""
    small_graph()  # Once, for all tests, whichever of them is the first.
    if isinstance(kind, SourceKind) and kind.windowed:
        small_graph_on_disk()
    settle = kind.small.settle if isinstance(kind, RemoteKind) and kind.small is not None else lambda: None
    settle()
    before = Leftovers.now()
    yield
    before.check(settle)


def test_batches_come_in_order_and_are_the_samplers_own(kind: Kind, expected: dict[int, list[bytes]]) -> None:
    with closing(kind.open()) as source:
        assert source.num_batches == NUM_BATCHES
        source.start_epoch(0)
        for number in range(NUM_BATCHES):
            frame = source.receive(20)
            assert (frame.epoch, frame.batch) == (0, number)
            assert bytes_of(frame) == expected[0][number]
        with pytest.raises(ValueError, match="all 12 batches"):
            source.receive(20)


def test_epochs_follow_each_other(kind: Kind, expected: dict[int, list[bytes]]) -> None:
    with closing(kind.open()) as source:
        for epoch in (0, 1, 0):
            source.start_epoch(epoch)
            assert drain(source) == expected[epoch]


def test_an_epoch_resumes_anywhere(kind: Kind, expected: dict[int, list[bytes]]) -> None:
    with closing(kind.open()) as source:
        for first_batch in (7, 1, NUM_BATCHES - 1):
            source.start_epoch(1, first_batch)
            assert drain(source, NUM_BATCHES - first_batch) == expected[1][first_batch:]


def test_leaving_an_epoch_leaks_none_of_its_batches(kind: Kind, expected: dict[int, list[bytes]]) -> None:
    with closing(kind.open()) as source:
        for seen, epoch in itertools.product((0, 1, 5), (0, 0, 1, 0)):
            source.start_epoch(epoch)
            assert drain(source, seen) == expected[epoch][:seen]
        source.start_epoch(1)
        assert drain(source) == expected[1]


def test_all_batches_may_be_kept(kind: Kind, expected: dict[int, list[bytes]]) -> None:
    with closing(kind.open()) as source:
        frames: list[Frame] = []
        for epoch in (0, 1):
            source.start_epoch(epoch)
            frames += [source.receive(20) for _ in range(NUM_BATCHES)]
        assert [bytes_of(frame) for frame in frames] == expected[0] + expected[1]


@pytest.mark.parametrize("slots", ["one", "several"])
def test_arrays_outlive_the_source(kind: Kind, expected: dict[int, list[bytes]], slots: str) -> None:
    small: dict[str, Any] = {"channel_bytes": max(kind.workers, 1) << 20, "worker_concurrency": 40}
    source = kind.open(**(small if slots == "several" else {}))
    source.start_epoch(0)
    frames = [source.receive(20) for _ in range(3)]
    arrays = [frame.array("node/node/n_id") for frame in frames]
    source.close()
    del source, frames
    gc.collect()
    for array, frame_bytes in zip(arrays, expected[0], strict=False):
        parsed = PLANS[kind.plan].frame(small_graph().schema).parse(np.frombuffer(frame_bytes, np.uint8))
        assert (array == parsed.array("node/node/n_id")).all()


def test_frames_take_slots_where_memory_for_them_is_short(
    kind: Kind, expected: dict[int, list[bytes]]
) -> None:
    with closing(kind.open(channel_bytes=max(kind.workers, 1) << 20, worker_concurrency=40)) as source:
        source.start_epoch(0)
        assert drain(source) == expected[0]
        assert source.stats()["oversize"] == 0


def test_frames_that_no_ring_holds_arrive_all_the_same(
    kind: Kind, expected: dict[int, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = RingLayout(request_slots=2, request_bytes=4096, slots=1, slot_bytes=4096)
    monkeypatch.setattr(RingLayout, "fit", lambda *_, **__: page)
    with closing(kind.open(worker_concurrency=2)) as source:
        source.start_epoch(0)
        assert drain(source) == expected[0]
        if kind.workers:
            assert source.stats()["oversize"] == NUM_BATCHES


@pytest.mark.parametrize("at_batch", [0, 4, NUM_BATCHES - 1])
def test_a_failure_arrives_at_its_batch_and_nowhere_else(
    kind: Kind, expected: dict[int, list[bytes]], at_batch: int
) -> None:
    with closing(kind.open(FaultPlan(what="raise", at_batch=at_batch))) as source:
        source.start_epoch(0)
        assert drain(source, at_batch) == expected[0][:at_batch]
        with pytest.raises(SamplingError, match=rf"epoch 0, batch {at_batch}: Mishap: as planned") as caught:
            source.receive(20)
        assert "in commit" in _far_traceback(caught.value)
        rest = NUM_BATCHES - at_batch - 1
        assert drain(source, rest) == expected[0][at_batch + 1 :]
        source.start_epoch(1)
        assert drain(source, at_batch) == expected[1][:at_batch]


@pytest.mark.usefixtures("expected")
def test_the_memory_of_a_closed_source_waits_for_no_garbage_collection(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[weakref.ref[SlotPool]] = []
    init = SlotPool.__init__

    def recorded(pool: SlotPool, *arguments: Any) -> None:
        init(pool, *arguments)
        pools.append(weakref.ref(pool))

    monkeypatch.setattr(SlotPool, "__init__", recorded)
    gc.disable()
    try:
        source = kind.open()
        source.start_epoch(0)
        source.receive(20)
        source.close()
        del source
        assert wait_until(lambda: not any(pool() for pool in pools))
    finally:
        gc.enable()


def test_closing_twice_is_fine_and_ends_use(kind: Kind) -> None:
    source = kind.open()
    source.start_epoch(0)
    source.receive(20)
    source.close()
    source.close()
    with pytest.raises(ValueError, match="closed"):
        source.receive(20)
    with pytest.raises(ValueError, match="closed"):
        source.start_epoch(0)
    assert source.stats()["batches"] == 1


def test_a_source_that_is_only_forgotten_leaves_nothing(kind: Kind) -> None:
    source = kind.open()
    source.start_epoch(0)
    source.receive(20)


def test_places_that_are_none_are_refused(kind: Kind) -> None:
    with closing(kind.open()) as source:
        for epoch, first_batch in ((-1, 0), (0, -1), (0, NUM_BATCHES + 1)):
            with pytest.raises(ValueError, match=r"must lie in|count from 0"):
                source.start_epoch(epoch, first_batch)
        with pytest.raises(ValueError, match="start an epoch"):
            source.receive(20)
        source.start_epoch(0, NUM_BATCHES)
        with pytest.raises(ValueError, match="all 12 batches"):
            source.receive(20)


def test_stats_count_what_was_delivered(kind: Kind, expected: dict[int, list[bytes]]) -> None:
    with closing(kind.open()) as source:
        source.start_epoch(0)
        drain(source)
        stats = source.stats()
    assert stats["batches"] == NUM_BATCHES
    assert stats["bytes"] == sum(map(len, expected[0]))
    assert stats["seconds_waiting"] > 0
    assert stats["seconds_sampling"] > 0
    assert stats["restarts"] == 0
    assert len(stats["workers"]) == kind.workers
    assert sum(worker["batches"] for worker in stats["workers"]) in (NUM_BATCHES, 0)


def test_two_sources_run_side_by_side(kind: Kind, expected: dict[int, list[bytes]]) -> None:
    with closing(kind.open()) as one, closing(kind.open()) as other:
        one.start_epoch(0)
        other.start_epoch(1)
        pairs = [(bytes_of(one.receive(20)), bytes_of(other.receive(20))) for _ in range(NUM_BATCHES)]
    assert pairs == list(zip(expected[0], expected[1], strict=True))


def test_interleaved_epochs_never_mix(kind: Kind, expected: dict[int, list[bytes]]) -> None:
    with closing(kind.open()) as source:
        for epoch, first in itertools.product((0, 1), (0, 3, 9, 2)):
            source.start_epoch(epoch, first)
            assert drain(source, 2) == expected[epoch][first : first + 2]


def _far_traceback(error: BaseException) -> str:
    notes = "".join(getattr(error, "__notes__", []))
    return notes + "".join(traceback.format_exception(error))
