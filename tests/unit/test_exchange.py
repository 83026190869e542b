"""Rows between tasks: spilled in memory, on disk and through files, always the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gigl_loader.errors import FormatError
from gigl_loader.graph import MemoryFolder
from gigl_loader.partition.exchange import DiskSpill, FileExchange, MemorySpill, Spill, row_bytes, scatter
from gigl_loader.partition.job import Budget, Job
from gigl_loader.partition.output import DiskScratch

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


# --- Memory and disk keep rows the same way


KINDS: dict[str, Any] = {"key": (np.dtype(np.int64), ()), "x": (np.dtype(np.float32), (2,))}


@pytest.fixture(params=["memory", "disk"])
def spill(request: pytest.FixtureRequest, tmp_path: Path) -> Spill:
    return MemorySpill(KINDS) if request.param == "memory" else DiskSpill(tmp_path / "spill", KINDS)


def _rows(start: int, stop: int) -> dict[str, Any]:
    keys = np.arange(start, stop)
    return {"key": keys, "x": np.stack([keys, -keys], axis=1).astype(np.float32)}


def test_rows_come_back_in_the_order_they_came(spill: Spill) -> None:
    spill.append(3, _rows(0, 4))
    spill.append(5, _rows(4, 5))
    spill.append(3, _rows(5, 7))
    assert (spill.size(3), spill.size(5), spill.size(0)) == (6, 1, 0)
    chunks = list(spill.read(3, ["key", "x"], 4))
    assert [len(chunk["key"]) for chunk in chunks] == [4, 2]
    keys = np.concatenate([chunk["key"] for chunk in chunks])
    assert keys.tolist() == [0, 1, 2, 3, 5, 6]
    np.testing.assert_array_equal(spill.take(3, "x")[:, 1], -keys)
    assert spill.take(3, "key").tolist() == keys.tolist()
    assert spill.take(5, "key").tolist() == [4]


def test_an_empty_bucket_has_empty_arrays(spill: Spill) -> None:
    assert spill.take(0, "x").shape == (0, 2)
    assert list(spill.read(0, ["key"], 5)) == []
    spill.append(0, _rows(0, 0))
    assert spill.take(0, "key").dtype == np.int64


def test_what_is_taken_or_dropped_leaves_the_disk(tmp_path: Path) -> None:
    spill = DiskSpill(tmp_path / "spill", KINDS)
    spill.append(0, _rows(0, 3))
    spill.append(1, _rows(0, 3))
    assert len(list((tmp_path / "spill").iterdir())) == 4
    spill.take(0, "x")
    spill.drop(1)
    assert [path.name for path in (tmp_path / "spill").iterdir()] == ["0-0"]


@pytest.mark.parametrize("buckets", [3, 70_000])
def test_scattering_keeps_the_order_within_each_bucket(spill: Spill, buckets: int) -> None:
    random = np.random.default_rng(0)
    chosen = random.choice([0, 1, buckets - 1], 60).astype(np.uint32)
    scatter(spill, chosen[:50], _rows(0, 50))
    scatter(spill, chosen[50:], _rows(50, 60))
    scatter(spill, chosen[:0], _rows(0, 0))
    for bucket in (0, 1, buckets - 1):
        expected = np.flatnonzero(chosen == bucket)
        np.testing.assert_array_equal(spill.take(bucket, "key"), expected)
        np.testing.assert_array_equal(spill.take(bucket, "x")[:, 0], expected)


def test_without_buckets_all_goes_to_the_first(spill: Spill) -> None:
    scatter(spill, None, _rows(0, 5))
    assert spill.size(0) == 5


def test_the_size_of_a_row() -> None:
    assert [row_bytes(kind) for kind in KINDS.values()] == [8, 8]


def test_a_spill_file_that_ends_early_is_an_error(tmp_path: Path) -> None:
    spill = DiskSpill(tmp_path / "spill", KINDS)
    spill.append(0, _rows(0, 3))
    (tmp_path / "spill" / "0-0").write_bytes(b"")
    with pytest.raises(OSError, match="ended early"):
        spill.take(0, "key")
