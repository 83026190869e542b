"""Windows of batches: rows are read once, failures arrive at their batch, and no wait outlives its reason."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.arrays import Bytes, Int64Array
from gigl_loader.errors import FormatError, SamplingError, StorageUnavailable
from gigl_loader.graph.folder import DiskFolder
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.sampling.cached_columns import cached_columns
from gigl_loader.sampling.feature_cache import FeatureCache, unfilled_bytes
from gigl_loader.sampling.frame_writer import Completion
from gigl_loader.sampling.rows import MappedRows
from gigl_loader.sampling.source import InlineSource
from gigl_loader.sampling.window import WindowedSource
from tests.support.leftovers import wait_until
from tests.support.sources import (
    NUM_BATCHES,
    PLANS,
    bytes_of,
    drain,
    sampled_frames,
    small_graph,
    small_schedule,
)

ROW = 72 + 22
"""Bytes of a row of x and y, and of its place in the index."""
ALL = 600 * ROW


@dataclass
class Reader:
    """Reads from memory, notes what was read, and does as it is told before."""

    before: Callable[[Int64Array], None] = lambda rows: None
    read_rows: list[Int64Array] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._mapped = MappedRows(small_graph(), "node", ("x", "y"))

    def read(self, rows: Int64Array, targets: Int64Array, out: Sequence[Bytes]) -> None:
        self.before(rows)
        assert (np.diff(rows) >= 0).all()
        self.read_rows.append(rows.copy())
        self._mapped.read(rows, targets, out)

    def close(self) -> None:
        self.ended.set()


def opened(
    reader: Reader,
    *,
    nbytes: int = ALL,
    plan: str = "nodes",
    window: int | None = None,
    timeout_s: float = 20,
) -> WindowedSource:
    schema = small_graph().schema
    inner = InlineSource(PLANS[plan].open(small_graph(), deferred=True), small_schedule(plan))
    cache = FeatureCache(cached_columns(schema, PLANS[plan].columns, {"node": reader}), nbytes)
    completion = Completion(schema, PLANS[plan])
    return WindowedSource(inner, completion, cache, window=window, timeout_s=timeout_s)


@pytest.fixture(autouse=True)
def no_threads() -> Iterator[None]:
    before = {*threading.enumerate()}
    yield
    assert wait_until(lambda: {*threading.enumerate()} <= before)


def test_a_row_is_read_once_while_the_cache_has_room() -> None:
    reader = Reader()
    with closing(opened(reader)) as source:
        for epoch in (0, 1):
            source.start_epoch(epoch)
            assert drain(source) == sampled_frames(epoch)
        rows = np.concatenate(reader.read_rows)
        assert len(np.unique(rows)) == len(rows)
        counts = source.stats()["rows"]
        assert counts["disk"] == len(rows)
        assert counts["cache"] == counts["wanted"] - len(rows) > len(rows)


def test_a_cache_promises_to_take_no_more_than_it_has_left() -> None:
    before = unfilled_bytes()
    with closing(opened(Reader())) as source:
        assert unfilled_bytes() == before + ALL
        source.start_epoch(0)
        left = [unfilled_bytes() - before for _ in range(NUM_BATCHES) if source.receive(20)]
        assert sorted(left, reverse=True) == left
        assert left[-1] == ALL - source.stats()["rows"]["disk"] * ROW
    assert unfilled_bytes() == before
    left_open = opened(Reader())
    assert unfilled_bytes() == before + ALL
    del left_open
    assert unfilled_bytes() == before


def test_a_cache_smaller_than_a_batch_keeps_the_rows_that_are_wanted_next() -> None:
    reader = Reader()
    most = max(len(_positions(frame)) for frame in sampled_frames(0))
    with closing(opened(reader, nbytes=ALL // 4)) as source:
        source.start_epoch(0)
        assert drain(source) == sampled_frames(0)
        counts = source.stats()["rows"]
        assert counts["slots"] < most
        assert counts["cache"] > counts["wanted"] // 5
        assert counts["disk"] == sum(map(len, reader.read_rows)) == counts["wanted"] - counts["cache"]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("window", [1, 3, None])
@pytest.mark.parametrize("plan", ["nodes", "links"])
def test_no_size_shows_in_a_batch(share: float, window: int | None, plan: str) -> None:
    reader = Reader()
    with closing(opened(reader, nbytes=int(share * ALL), plan=plan, window=window)) as source:
        for epoch, first in ((0, 0), (1, 5), (0, 11)):
            source.start_epoch(epoch, first)
            assert drain(source, NUM_BATCHES - first) == sampled_frames(epoch, plan)[first:]
        counts = source.stats()["rows"]
        assert counts["wanted"] == counts["cache"] + counts["disk"]
        assert counts["disk"] == sum(map(len, reader.read_rows))


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), FormatError("block 3 is damaged")])
def test_a_row_that_cannot_be_read_fails_the_batches_that_want_it(error: Exception) -> None:
    bad = 7

    def refuse(rows: Int64Array) -> None:
        if bad in rows:
            raise error

    wanted = [bad in _positions(frame) for frame in sampled_frames(0)]
    assert 0 < sum(wanted) < NUM_BATCHES
    with closing(opened(Reader(refuse))) as source:
        source.start_epoch(0)
        for number in range(NUM_BATCHES):
            if wanted[number]:
                name = type(error).__name__
                with pytest.raises(SamplingError, match=f"epoch 0, batch {number}: {name}.*{error.args[-1]}"):
                    source.receive(20)
            else:
                assert bytes_of(source.receive(20)) == sampled_frames(0)[number]
        with pytest.raises(ValueError, match="start an epoch"):
            source.receive(20)


def test_an_owner_that_comes_back_in_time_is_no_failure() -> None:
    refusals = iter(range(3))

    def away(rows: Int64Array) -> None:
        if next(refusals, None) is not None:
            raise StorageUnavailable("away")

    with closing(opened(Reader(away))) as source:
        source.start_epoch(0)
        assert drain(source) == sampled_frames(0)


def test_an_owner_that_stays_away_fails_a_batch_which_is_then_requested_again() -> None:
    reader = Reader()
    with closing(opened(reader, window=2, nbytes=ALL // 2, timeout_s=0.2)) as source:
        source.start_epoch(0)
        first: list[bytes] = []
        is_away = True

        def away(rows: Int64Array) -> None:
            if is_away and len(reader.read_rows) > 1:
                raise StorageUnavailable("host 3 does not answer")

        reader.before = away
        with pytest.raises(StorageUnavailable, match=r"epoch 0, batch \d+: host 3 does not answer"):
            first.extend(bytes_of(source.receive(20)) for _ in range(NUM_BATCHES))
        is_away = False
        with suppress(StorageUnavailable):  # Of the next attempt, where this thread was slow to say so.
            first.append(bytes_of(source.receive(20)))
        assert first + drain(source, NUM_BATCHES - len(first)) == sampled_frames(0)


def test_a_window_that_shrinks_to_a_batch_waits_for_none_of_its_own() -> None:
    """Two batches do not fit beside each other: the first is completed before the second has slots."""
    with closing(opened(Reader(), nbytes=int(0.9 * ALL))) as source:
        source._pipeline.window = 4
        source.start_epoch(0)
        assert drain(source) == sampled_frames(0)


def test_a_wait_for_an_owner_names_it_and_goes_on() -> None:
    away = threading.Event()

    def refuse(rows: Int64Array) -> None:
        if not away.is_set():
            raise StorageUnavailable("host 3 does not answer")

    with closing(opened(Reader(refuse))) as source:
        source.start_epoch(0)
        with pytest.raises(StorageUnavailable, match=r"^host 3 does not answer; no batch within 0.3 s"):
            source.receive(0.3)
        away.set()
        assert drain(source) == sampled_frames(0)


def test_a_skeleton_that_fails_at_the_deadline_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: InlineSource, timeout: float) -> NoReturn:
        time.sleep(timeout)
        raise StorageUnavailable("host 1 did not answer")

    with closing(opened(Reader())) as source:
        source.start_epoch(0)
        with monkeypatch.context() as patch:
            patch.setattr(InlineSource, "receive", refuse)
            with pytest.raises(StorageUnavailable, match="host 1 did not answer"):
                source.receive(0.1)
        assert drain(source) == sampled_frames(0)


def test_leaving_an_epoch_while_its_rows_are_read() -> None:
    held, go_on = threading.Event(), threading.Event()

    def wait(rows: Int64Array) -> None:
        held.set()
        assert go_on.wait(20)

    reader = Reader()
    with closing(opened(reader, nbytes=ALL // 2)) as source:
        source.start_epoch(0)
        source.receive(20)
        reader.before = wait
        source.start_epoch(1, 3)
        with pytest.raises(TimeoutError, match=r"no batch within 0.2 s: reading rows of .* \(disk\)"):
            source.receive(0.2)
        assert held.is_set()
        source.start_epoch(0, 2)
        go_on.set()
        assert drain(source, NUM_BATCHES - 2) == sampled_frames(0)[2:]


def test_closing_while_rows_are_read_waits_for_no_disk() -> None:
    reader = Reader()

    def wait(rows: Int64Array) -> None:
        assert reader.ended.wait(20)
        raise OSError("the reader was closed")

    reader.before = wait
    source = opened(reader)
    source.start_epoch(0)
    with pytest.raises(TimeoutError):
        source.receive(0.1)
    began = time.monotonic()
    source.close()
    assert time.monotonic() - began < 10
    with pytest.raises(ValueError, match="closed"):
        source.receive(20)


def test_a_window_is_read_in_one_call_once_batches_wait_for_it() -> None:
    reader = Reader()
    with closing(opened(reader, window=4)) as source:
        threads = source._pipeline
        threads.window = 4

        def hold(rows: Int64Array) -> None:
            assert reader.read_rows or wait_until(lambda: len(threads.waiting) >= 8, seconds=10)

        reader.before = hold
        source.start_epoch(0)
        assert drain(source) == sampled_frames(0)
    assert len(reader.read_rows) <= 4


@pytest.mark.parametrize("window", [1, 4, None])
def test_batches_after_files_were_mended_have_no_row_of_between(window: int | None) -> None:
    """Windows had read rows ahead. Two frames at most lay ready."""
    reader, status, is_bad = Reader(), [0], [False]
    read = reader.read

    def read_what_is_there(rows: Int64Array, targets: Int64Array, out: Sequence[Bytes]) -> None:
        read(rows, targets, out)
        for each in out if is_bad[0] else ():
            each[targets] = 255

    reader.read = read_what_is_there  # type: ignore[method-assign]
    with closing(opened(reader, window=window)) as source:
        columns = source._pipeline.cache._columns
        columns.update({kind: replace(each, written=lambda: status[0]) for kind, each in columns.items()})
        source.start_epoch(0)
        expected = sampled_frames(0)
        assert drain(source, 2) == expected[:2]
        is_bad[0], status[0] = True, 1
        drain(source, 3)
        is_bad[0], status[0] = False, 2
        drain(source, 2)
        assert drain(source, NUM_BATCHES - 7) == expected[7:]
        source.start_epoch(1)
        assert drain(source) == sampled_frames(1)


@pytest.mark.parametrize("damaged", [1, 2, 3])
def test_rows_of_a_file_that_was_mended_while_a_window_was_read_are_in_no_batch(damaged: int) -> None:
    reader, status = Reader(), [0]
    read, reads = reader.read, list[int]()

    def read_what_is_there(rows: Int64Array, targets: Int64Array, out: Sequence[Bytes]) -> None:
        read(rows, targets, out)
        reads.append(len(rows))
        if len(reads) == damaged:
            status[0] += 2  # Overwritten before, and mended now.
            for each in out:
                each[targets] = 255

    reader.read = read_what_is_there  # type: ignore[method-assign]
    with closing(opened(reader, window=4)) as source:
        columns = source._pipeline.cache._columns
        columns.update({kind: replace(each, written=lambda: status[0]) for kind, each in columns.items()})
        for epoch in (0, 1):
            source.start_epoch(epoch)
            assert drain(source) == sampled_frames(epoch)
        assert len(reads) > damaged


def test_types_on_the_disk_beside_a_small_one_that_stays_mapped(tmp_path: Path) -> None:
    """Three partitions: rows of a batch come in no order."""
    random = np.random.default_rng(5)
    counts = {"user": 60, "item": 2_000}
    nodes = {
        kind: NodeTable(
            ArrayTable(
                kind,
                {"id": np.arange(count), "x": random.random((count, 2 if kind == "user" else 64))},
            )
        )
        for kind, count in counts.items()
    }
    ends = {"src": random.integers(0, 60, 5_000), "dst": random.integers(0, 2_000, 5_000)}
    turned = {"src": ends["dst"], "dst": ends["src"]}
    edges = {
        ("user", "likes", "item"): ArrayTable("likes", ends),
        ("item", "liked_by", "user"): ArrayTable("liked_by", turned),
    }
    build_graph(GraphTables(edges=edges, nodes=nodes), DiskFolder(tmp_path / "graph"), num_partitions=3)
    dataset = DistDataset.open(tmp_path / "graph")
    common: dict[str, Any] = {"batch_size": 100, "num_workers": 0, "seed": 1, "shuffle": True}
    with (
        DistNeighborLoader(dataset, [5, 5], "item", **common) as plain,
        DistNeighborLoader(dataset, [5, 5], "item", feature_memory="600KB", **common) as cached,
    ):
        for one, other in zip(plain, cached, strict=True):
            for kind in counts:
                assert torch.equal(one[kind].x, other[kind].x)
        rows = cached.stats()["rows"]
        assert rows["memory"] > 0 < rows["cache"]
        assert rows["wanted"] == rows["memory"] + rows["cache"] + rows["disk"]


def _positions(frame: bytes) -> Int64Array:
    parsed = PLANS["nodes"].frame(small_graph().schema).parse(np.frombuffer(frame, np.uint8))
    return parsed.array("node/node/n_id").view(np.int64)
