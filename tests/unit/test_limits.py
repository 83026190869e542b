"""Memory limits are read as people write them, and shared out within bounds."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.partition.job import Budget, available_memory, held_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2GB", 2 * 10**9),
        ("2 GiB", 2 << 30),
        ("512mib", 512 << 20),
        ("1.5k", 1500),
        ("1000000", 10**6),
        ("7b", 7),
        ("1T", 10**12),
    ],
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "2XB", "-1GB", "1,5GB", "2 G B", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_bytes(text)


@given(st.integers(1, 2**45), st.integers(0, 2**16))
def test_shares_stay_below_the_whole(total: int, row: int) -> None:
    budget = Budget(total)
    for rows, each in (
        (budget.chunk_rows(row), 64 + 2 * row),
        (budget.edge_bucket_rows(row), max(96, 24 + row)),
        (budget.node_bucket_rows(row), 24 + row),
        (budget.copy_rows(row), row),
    ):
        assert rows == 1 or rows * each <= total // 2
    assert budget.fits(total // 4)
    assert not budget.fits(total // 4 + 1)


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="must be positive, got 0 bytes"):
        Budget(0)


def test_what_cannot_be_streamed_may_take_half() -> None:
    Budget(100).require(50, "it")
    with pytest.raises(ValueError, match=r"^it needs 0\.0 MB at once, more than half"):
        Budget(100).require(51, "it")


def test_this_process_and_machine_have_some_memory() -> None:
    assert 1 << 20 < held_bytes() < 1 << 40
    assert 1 << 20 < available_memory() < 1 << 50


def test_pages_of_files_are_not_memory_that_a_process_holds(tmp_path: Path) -> None:
    size = 64 << 20
    (tmp_path / "file").write_bytes(bytes(size))
    before = held_bytes()
    with (tmp_path / "file").open("rb") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)
    assert mapped.max() == 0
    assert held_bytes() - before < size // 2
    # An allocator may give pages that it held before.
    ours = np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    ours[:] = 1
    assert held_bytes() - before > size // 2
