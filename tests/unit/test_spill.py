"""Memory and disk keep rows the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gigl_loader.partition.exchange import DiskSpill, MemorySpill, Spill, row_bytes, scatter

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
