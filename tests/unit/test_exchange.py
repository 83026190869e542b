"""Rows that tasks exchange by files come back as those of a spill in memory, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gigl_loader.errors import FormatError
from gigl_loader.graph import MemoryFolder
from gigl_loader.partition.exchange import FileExchange, MemorySpill, scatter
from gigl_loader.partition.job import Budget, Job
from gigl_loader.partition.scratch import DiskScratch

_KINDS: dict[str, Any] = {
    "key": (np.dtype(np.int64), ()),
    "x": (np.dtype(np.float32), (3,)),
    "none": (np.dtype(np.int8), (0,)),
}
_BUCKETS = 7


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with Job(
        MemoryFolder(),
        temporary=None,
        budget=Budget(1 << 20),
        num_partitions=1,
        edge_dir="in",
        scratch=DiskScratch(tmp_path),
    ) as job:
        yield job


def _chunks(seed: int) -> Iterator[tuple[Any, dict[str, Any]]]:
    random = np.random.default_rng(seed)
    for size in random.integers(0, 60, 5):
        keys = random.integers(0, 1000, size)
        rows = {
            "key": keys,
            "x": random.random((size, 3), dtype=np.float32),
            "none": np.empty((size, 0), np.int8),
        }
        yield (keys % _BUCKETS).astype(np.uint32), rows


def _written(job: Job, tasks: int) -> tuple[FileExchange, MemorySpill]:
    exchange, expected = FileExchange("rows", _KINDS, tasks), MemorySpill(_KINDS)
    for task in reversed(range(tasks)):
        with exchange.writer(job, task) as writer:
            for buckets, rows in _chunks(task):
                scatter(writer, buckets, rows)
    for task in range(tasks):
        for buckets, rows in _chunks(task):
            scatter(expected, buckets, rows)
    return exchange, expected


@pytest.mark.parametrize("tasks", [1, 4])
def test_rows_come_in_the_order_of_tasks(job: Job, tasks: int) -> None:
    exchange, expected = _written(job, tasks)
    spill = exchange.spill(job, 0, _BUCKETS)
    for bucket in range(_BUCKETS):
        assert spill.size(bucket) == expected.size(bucket)
        for step in (3, 50, 1000):
            found = list(spill.read(bucket, ["key", "x"], step))
            wanted = list(expected.read(bucket, ["key", "x"], step))
            assert len(found) == len(wanted)
            for mine, other in zip(found, wanted, strict=True):
                assert mine.keys() == other.keys()
                for name, array in mine.items():
                    np.testing.assert_array_equal(array, other[name])
        for name, kind in _KINDS.items():
            taken = spill.take(bucket, name)
            np.testing.assert_array_equal(taken, expected.take(bucket, name))
            assert (taken.dtype, taken.shape[1:]) == kind


def test_only_the_buckets_that_are_asked_for_are_there(job: Job) -> None:
    exchange, expected = _written(job, 2)
    spill = exchange.spill(job, 2, 4)
    assert [spill.size(bucket) for bucket in range(_BUCKETS)] == [
        expected.size(bucket) if bucket in (2, 3) else 0 for bucket in range(_BUCKETS)
    ]


def test_a_task_that_fails_or_is_done_again_leaves_its_rows_once(job: Job, tmp_path: Path) -> None:
    exchange = FileExchange("rows", _KINDS, 1)

    def write(*, fails: bool) -> None:
        with exchange.writer(job, 0) as writer:
            for buckets, rows in _chunks(0):
                scatter(writer, buckets, rows)
            if fails:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(fails=True)
    assert list((tmp_path / "rows").iterdir()) == []
    write(fails=False)
    first = (tmp_path / "rows" / "000000").read_bytes()
    write(fails=False)
    assert [path.name for path in (tmp_path / "rows").iterdir()] == ["000000"]
    assert (tmp_path / "rows" / "000000").read_bytes() == first
    exchange.drop(job)
    assert list(tmp_path.iterdir()) == []


def test_every_damaged_byte_is_noticed(job: Job, tmp_path: Path) -> None:
    exchange = FileExchange("rows", _KINDS, 1)
    with exchange.writer(job, 0) as writer:
        keys = np.arange(5)
        rows: dict[str, Any] = {
            "key": keys,
            "x": np.ones((5, 3), np.float32),
            "none": np.empty((5, 0), np.int8),
        }
        scatter(writer, np.zeros(5, np.uint32), rows)
    path = tmp_path / "rows" / "000000"
    sound = path.read_bytes()

    def read() -> None:
        spill = exchange.spill(job, 0, 1)
        for name in _KINDS:
            spill.take(0, name)

    read()
    for at in range(len(sound)):
        damaged = bytearray(sound)
        damaged[at] ^= 4
        path.write_bytes(bytes(damaged))
        with pytest.raises(FormatError, match="of the scratch: "):
            read()
    for size in (0, 10, len(sound) - 1):
        path.write_bytes(sound[:size])
        with pytest.raises(FormatError, match="cut off"):
            read()
