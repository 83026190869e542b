"""Caches of the ranks of a host: batches stay as they are, rows are read once, a rank that ends is let go."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch._C._distributed_c10d import HashStore

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.arrays import Bytes, Int64Array
from gigl_loader.group import RankGroup
from gigl_loader.memfile import create_memory
from gigl_loader.native import PeerSlots, copy_from_peers
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.sampling.cached_columns import cached_columns
from gigl_loader.sampling.feature_cache import FeatureCache
from gigl_loader.sampling.frame_writer import Completion
from gigl_loader.sampling.host_cache import HostRanks
from gigl_loader.sampling.rows import MappedRows
from gigl_loader.sampling.source import InlineSource
from gigl_loader.sampling.window import WindowedSource
from tests.support import cache_writer
from tests.support.leftovers import wait_until
from tests.support.pyg_graphs import homogeneous, same_batch
from tests.support.sources import (
    NUM_BATCHES,
    PLANS,
    drain,
    sampled_frames,
    small_graph,
    small_schedule,
)
from tests.support.thread_ranks import run_ranks

ALL = 600 * (72 + 22 + 20)
"""Bytes of all rows of x and y, and of their places."""


class Reader:
    """Reads from memory, and counts rows."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._mapped = MappedRows(small_graph(), "node", columns)
        self.count = 0

    def read(self, rows: Int64Array, targets: Int64Array, out: Sequence[Bytes]) -> None:
        self.count += len(rows)
        self._mapped.read(rows, targets, out)

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    threads = {*threading.enumerate()}
    yield
    assert wait_until(lambda: {*threading.enumerate()} <= threads)
    gc.collect()
    assert [name for fd in os.listdir("/proc/self/fd") if "gigl-host-cache" in (name := target(fd))] == []


def target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""


class Host:
    """Ranks of one host, as threads of this process see it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.store = HashStore()
        self.readers: list[Reader] = []

    def ranks(self, rank: int, **changes: Any) -> HostRanks:
        group = RankGroup(self.store, rank, self.size)
        return replace(HostRanks(group=group, host_index=0, loader="loader", graph="graph"), **changes)

    def open(
        self,
        rank: int,
        *,
        nbytes: int = ALL,
        plan: str = "nodes",
        window: int | None = None,
        columns: tuple[str, ...] = ("x", "y"),
        **changes: Any,
    ) -> WindowedSource:
        schema, of_plan = small_graph().schema, PLANS[plan]
        if columns != ("x", "y"):
            of_plan = replace(of_plan, columns=replace(of_plan.columns, nodes={"node": columns}))
        self.readers.append(Reader(columns))
        inner = InlineSource(of_plan.open(small_graph(), deferred=True), small_schedule(plan))
        found = cached_columns(schema, of_plan.columns, {"node": self.readers[-1]})
        cache = FeatureCache(found, nbytes, ranks=self.ranks(rank, **changes))
        return WindowedSource(inner, Completion(schema, of_plan), cache, window=window)


def positions(frame: bytes) -> set[int]:
    parsed = PLANS["nodes"].frame(small_graph().schema).parse(np.frombuffer(frame, np.uint8))
    return {*parsed.array("node/node/n_id").view(np.int64).tolist()}


def num_peers(source: WindowedSource) -> int:
    return source._pipeline.cache.num_peers


def meet(sources: Sequence[WindowedSource]) -> None:
    """Have each rank allocate its part, and wait until they have found each other."""
    allocate(sources)
    assert wait_until(lambda: all(num_peers(each) == len(sources) - 1 for each in sources))


def allocate(sources: Sequence[WindowedSource]) -> None:
    for source in sources:
        if not source._pipeline.cache.num_slots:
            source._pipeline.cache._allocate([{"node": np.arange(600)}])


@pytest.mark.parametrize("plan", ["nodes", "links"])
@pytest.mark.parametrize("share", [0.1, 0.4, 1.0])
@pytest.mark.parametrize("window", [1, 3, None])
def test_no_peer_shows_in_a_batch(plan: str, share: float, window: int | None) -> None:
    host, epochs = Host(3), [0, 1, 0]
    with ExitStack() as stack:
        sources = [
            stack.enter_context(closing(host.open(rank, plan=plan, nbytes=int(share * ALL), window=window)))
            for rank in range(3)
        ]
        meet(sources)

        def run(rank: int) -> None:
            for epoch in epochs[rank:] + epochs[:rank]:
                sources[rank].start_epoch(epoch, 4 * rank)
                if drain(sources[rank], NUM_BATCHES - 4 * rank) != sampled_frames(epoch, plan)[4 * rank :]:
                    wrong.append(rank)

        wrong: list[int] = []
        in_parallel([partial(run, rank) for rank in range(3)])
        assert not wrong
        for source, reader in zip(sources, host.readers, strict=True):
            rows = source.stats()["rows"]
            assert rows["wanted"] == rows["cache"] + rows["ranks"] + rows["disk"]
            assert rows["disk"] == reader.count
        assert sum(source.stats()["rows"]["ranks"] for source in sources) > 0


def in_parallel(jobs: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def test_what_one_rank_has_no_other_reads() -> None:
    host = Host(2)
    with closing(host.open(0)) as first, closing(host.open(1)) as second:
        meet([first, second])
        for source in (first, second):
            source.start_epoch(0)
            assert drain(source) == sampled_frames(0)
        assert host.readers[1].count == 0
        rows = second.stats()["rows"]
        assert rows["ranks"] == rows["wanted"] > 0
        second.start_epoch(1)
        assert drain(second) == sampled_frames(1)
        wanted = set().union(*(positions(frame) for epoch in (0, 1) for frame in sampled_frames(epoch)))
        assert host.readers[0].count + host.readers[1].count == len(wanted)


OTHERS: dict[str, dict[str, Any]] = {
    "columns": {"columns": ("x",)},
    "graph": {"graph": "another"},
    "host": {"host_index": 1},
    "loader": {"loader": "another"},
}


@pytest.mark.parametrize("what", OTHERS)
def test_ranks_whose_rows_differ_share_none(what: str) -> None:
    host = Host(3)
    with (
        closing(host.open(0)) as first,
        closing(host.open(1)) as second,
        closing(host.open(2, **OTHERS[what])) as other,
    ):
        allocate([first, second, other])
        assert wait_until(lambda: num_peers(first) == num_peers(second) == 1)
        for source in (first, second, other):
            source.start_epoch(0)
            found = drain(source)
            assert source is other or found == sampled_frames(0)
        assert num_peers(other) == other.stats()["rows"]["ranks"] == 0
        assert num_peers(first) == 1


def test_a_rank_that_ends_is_let_go_and_may_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigl_loader.sampling.host_cache._RETURN_S", 0.2)
    host = Host(2)
    with closing(host.open(0, nbytes=ALL // 3)) as first:
        with closing(host.open(1)) as second:
            meet([first, second])
        assert wait_until(lambda: num_peers(first) == 0)
        first.start_epoch(0)
        assert drain(first) == sampled_frames(0)
        with closing(host.open(1)) as second:
            meet([first, second])
            first.start_epoch(0)
            assert drain(first) == sampled_frames(0)


def test_a_child_that_inherited_a_part_does_not_keep_it() -> None:
    host = Host(2)
    with closing(host.open(0)) as first:
        with closing(host.open(1)) as second:
            meet([first, second])
            fds = [int(fd) for fd in os.listdir("/proc/self/fd") if "gigl-host-cache" in target(fd)]
            command = [sys.executable, "-S", "-c", "input()"]
            child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=fds)
        try:
            assert wait_until(lambda: num_peers(first) == 0)
        finally:
            child.communicate(b"\n")


class CountingGroup(RankGroup):
    """Counts how often the store is asked."""

    asked = 0

    def published(self, key: str, **options: Any) -> dict[int, str]:
        self.asked += 1
        return super().published(key, **options)


def test_the_store_is_not_asked_at_once_for_a_rank_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigl_loader.sampling.host_cache._LOOK_S", 0.02)
    host = Host(2)
    group = CountingGroup(host.store, 0, 2)
    with closing(host.open(0, group=group)) as first:
        with closing(host.open(1)) as second:
            meet([first, second])
        assert wait_until(lambda: num_peers(first) == 0)
        before = group.asked
        time.sleep(0.2)
        assert group.asked == before > 0


def test_a_part_that_cannot_be_opened_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gigl_loader.sampling.host_cache._LOOK_S", 0.02)
    caplog.set_level(logging.INFO)
    host = Host(2)
    host.ranks(1).group.publish("host-cache/0/loader", json.dumps({"pid": 0, "fd": 1, "token": ""}))
    group = CountingGroup(host.store, 0, 2)
    with closing(host.open(0, group=group)) as source:
        allocate([source])
        assert wait_until(lambda: group.asked > 5)
    assert caplog.text.count("rows of local rank 1 are not shared: [Errno 2] No such file") == 1


def test_a_part_of_another_version_is_not_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    host = Host(2)
    with closing(host.open(0)) as first, closing(host.open(1)) as second:
        allocate([first])
        monkeypatch.setattr("gigl_loader.sampling.host_cache._FORMAT", "another")
        allocate([second])
        assert wait_until(lambda: "that of another file by now, or of another version" in caplog.text)
        assert num_peers(second) == 0


def test_a_rank_that_closes_lets_the_parts_of_others_go() -> None:
    host = Host(2)
    with closing(host.open(0)) as first, closing(host.open(1)) as second:
        meet([first, second])
        cache = second._pipeline.cache._host
        assert cache is not None
        assert len(cache.peers("node")) == 1
        for _ in range(2):
            cache.close()
            cache.join()
            assert cache.peers("node") == ()


def test_ranks_that_have_met_need_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigl_loader.sampling.host_cache._LOOK_S", 0.02)

    class Leaving(RankGroup):
        def published(self, key: str, **options: Any) -> dict[int, str]:
            if 1 in super().published(key):
                left.set()
                raise ConnectionError("gone")
            return {}

    left, host = threading.Event(), Host(2)
    with closing(host.open(0, group=Leaving(host.store, 0, 2))) as first, closing(host.open(1)) as second:
        allocate([first, second])
        assert left.wait(10)
        assert wait_until(lambda: num_peers(second) == 1)
        time.sleep(0.2)
        assert num_peers(second) == 1


def test_memory_of_another_user_is_not_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    host, owner = Host(2), os.geteuid()
    monkeypatch.setattr("gigl_loader.sampling.host_cache.os.geteuid", lambda: owner + 1)
    with closing(host.open(0)) as first, closing(host.open(1)) as second:
        allocate([first, second])
        told = "are not shared: no memory file of this user"
        assert wait_until(lambda: caplog.text.count(told) == 2)
        assert num_peers(first) == num_peers(second) == 0


def test_a_rank_writes_nothing_but_marks_to_the_part_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """And of two ranks, one is the first."""
    opened: list[Any] = []

    def record(*arguments: Any) -> PeerSlots:
        opened.append(arguments)
        return PeerSlots(*arguments)

    monkeypatch.setattr("gigl_loader.sampling.host_cache.PeerSlots", record)
    host = Host(3)
    with ExitStack() as stack:
        meet([stack.enter_context(closing(host.open(rank))) for rank in range(3)])
        for table, heads, marks, clock, columns, _ in opened:
            assert not any(each.flags.writeable for each in (table, heads, clock, *columns))
            assert marks.flags.writeable
        assert sorted(is_first for *_, is_first in opened) == [False] * 3 + [True] * 3
        for _, _, marks, *_ in opened:  # Two ranks write to the same marks.
            marks[0] = 5
            assert sum(int(others[0]) == 5 for _, _, others, *_ in opened) == 2
            marks[0] = 0
        opened.clear()


@pytest.mark.parametrize("seconds", [0.2, 0.3])
def test_rows_of_a_rank_that_is_killed_while_it_writes_are_whole(seconds: float) -> None:
    """They are copied all the time, and once more when their owner is dead."""
    part = cache_writer.Part.create()
    command = [sys.executable, "-m", "tests.support.cache_writer", str(part.fd)]
    with subprocess.Popen(command, pass_fds=[part.fd], cwd=Path(__file__).parents[2]) as writer:
        os.close(part.fd)
        try:
            assert wait_until(lambda: copied_whole(part) > 0)
            deadline, came = time.monotonic() + seconds, 0
            while time.monotonic() < deadline:
                came += copied_whole(part)
        finally:
            writer.kill()
    assert writer.wait() == -signal.SIGKILL
    # Rows that the writer was about to replace may have left the table, and are whole all the same.
    assert 0 < copied_whole(part) <= np.count_nonzero(part.heads[:, 1] % 2 == 0)
    assert came > 100


def copied_whole(part: cache_writer.Part) -> int:
    """Copy the rows that are there, compare them, and return how many there are."""
    rows = np.arange(cache_writer.NUM_ROWS)
    out = np.zeros((len(rows), cache_writer.WORDS), np.int64)
    came = copy_from_peers([part.seen()], rows, None, [out.view(np.uint8)])
    assert np.array_equal(out[came], cache_writer.pattern(rows[came]))
    return int(np.count_nonzero(came))


def test_memory_of_a_rank_is_that_of_its_share() -> None:
    host = Host(2)
    with closing(host.open(0, nbytes=ALL // 2)) as first, closing(host.open(1, nbytes=ALL // 2)) as second:
        meet([first, second])
        for source in (first, second):
            cache = source._pipeline.cache
            assert 0.9 * ALL // 2 < cache.nbytes <= ALL // 2
            assert cache.num_slots == ALL // 2 // 114
            fd = int(json.loads(host.ranks(0).group.published("host-cache/0/loader")[0])["fd"])
            assert os.fstat(fd).st_mode & 0o777 == 0o600
            assert os.fstat(fd).st_size < 1.1 * ALL // 2


def test_rows_are_not_copied_from_a_rank_that_read_them_before_a_file_was_written_to() -> None:
    host = Host(2)
    with closing(host.open(0)) as first, closing(host.open(1)) as second:
        meet([first, second])
        for source in (first, second):
            source.start_epoch(0)
            assert drain(source) == sampled_frames(0)
        cache, others = first._pipeline.cache, second._pipeline.cache
        assert cache._peers("node")
        changed = {kind: replace(each, written=lambda: 7) for kind, each in cache._columns.items()}
        cache._columns.update(changed)
        first.start_epoch(1)
        assert drain(first) == sampled_frames(1)  # Its slots are allocated anew, which the other rank finds.
        assert wait_until(lambda: num_peers(first) == 1)
        assert cache._peers("node") == ()
        others._columns.update(changed)
        second.start_epoch(1)
        assert drain(second) == sampled_frames(1)


@pytest.mark.parametrize("damage", ["gone", "other file", "not memory", "other token", "cut"])
def test_what_is_not_the_part_of_a_rank_is_not_read(damage: str) -> None:
    host = Host(2)
    with ExitStack() as stack:
        fd = create_memory("test", 4096) if damage in ("other file", "cut") else os.open("/dev/null", 0)
        stack.callback(os.close, fd)
        if damage == "cut":
            os.pwrite(fd, (4000).to_bytes(8, "little") + b'{"0/table":', 0)
        told = {"pid": os.getpid(), "fd": fd, "token": ""}
        if damage == "gone":
            told["fd"] = 10**6
        source = stack.enter_context(closing(host.open(0)))
        if damage == "other token":
            other = stack.enter_context(closing(host.open(1)))
            meet([source, other])
            told = {**json.loads(host.ranks(1).group.published("host-cache/0/loader")[1]), "token": "x"}
            third = stack.enter_context(closing(Host.open(host, 0, loader="loader")))
            host.ranks(1).group.publish("host-cache/0/loader", json.dumps(told))
            source = third
        else:
            host.ranks(1).group.publish("host-cache/0/loader", json.dumps(told))
        source.start_epoch(0)
        assert drain(source) == sampled_frames(0)
        assert num_peers(source) == 0


def test_without_a_store_each_rank_has_its_own_rows() -> None:
    class Gone(RankGroup):
        def publish(self, key: str, value: str) -> None:
            raise ConnectionError("gone")

    host = Host(2)
    with closing(host.open(0, group=Gone(HashStore(), 0, 2))) as source:
        source.start_epoch(0)
        assert drain(source) == sampled_frames(0)


def test_without_memory_files_each_rank_has_its_own_rows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("gigl_loader.sampling.host_cache.create_memory", refuse)
    with closing(Host(2).open(0)) as source:
        source.start_epoch(0)
        assert drain(source) == sampled_frames(0)
    assert "ranks of this host do not share rows: [Errno 24] Too many open files" in caplog.text


def test_a_loader_tells_with_whom_it_shares_rows(tmp_path: Path) -> None:
    build_graph(tables_from_pyg(homogeneous(1000, 8000)), tmp_path / "graph")
    options: dict[str, Any] = {"batch_size": 10, "shuffle": True, "seed": 3, "num_workers": 0}
    memory: dict[str, Any] = {"feature_memory": "24KB", "window": 1}

    both_have_told = threading.Barrier(2)

    def program(_: RankGroup) -> tuple[list[Any], str, dict[str, Any]]:
        dataset = DistDataset.open(tmp_path / "graph")
        with DistNeighborLoader(dataset, [3, 2], "train", **options, **memory) as loader:
            batches = list(loader)
            assert wait_until(lambda: loader.stats()["rows"]["peers"] == 1)
            list(loader)
            told = batches, repr(loader), loader.stats()["rows"]
            both_have_told.wait(30)  # The part of a loader that is closed is let go.
            return told

    alone = list(DistNeighborLoader(DistDataset.open(tmp_path / "graph"), [3, 2], "train", **options))
    found = run_ranks(2, program)
    for rank, result in enumerate(found):
        assert not isinstance(result, Exception), result
        batches, shown, rows = result
        steps = len(alone) // 2
        assert all(map(same_batch, batches[:steps], alone[rank::2]))
        assert re.search(r"features from disk \(cache of .*, shared with 1 other rank of this host\)", shown)
        assert 0 < rows["ranks"] < rows["wanted"] == rows["cache"] + rows["ranks"] + rows["disk"]
