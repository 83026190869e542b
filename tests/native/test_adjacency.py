"""Adjacency lists are grouped by target and sorted by (neighbour's id, edge id)."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader import native
from tests.support.graph_files import in_page_cache
from tests.support.leftovers import wait_until


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(-5, 5), st.integers(0, 9)), max_size=60))
def test_lists_equal_a_sort(edges: list[tuple[int, int, int]]) -> None:
    table = np.array(edges, np.int64).reshape(-1, 3)
    targets, neighbors, ids = (np.ascontiguousarray(column) for column in table.T)
    indptr, order = np.empty(8, np.int64), np.empty(len(edges), np.int64)
    native.build_adjacency(targets, neighbors, ids, indptr, order)
    assert [edges[i] for i in order] == sorted(edges)
    assert np.diff(indptr).tolist() == np.bincount(targets, minlength=7).tolist()
    assert indptr[0] == 0


@pytest.mark.parametrize("far", [1, 2**32 - 1, 2**32, 2**62])
@pytest.mark.parametrize("rising", [False, True])
def test_lists_of_far_neighbours_and_edge_ids_in_any_order(far: int, *, rising: bool) -> None:
    """Short keys are taken where ids rise and neighbours lie within 2^32 of each other."""
    random = np.random.default_rng(0)
    targets, neighbors = random.integers(0, 7, 500), random.integers(-2, 3, 500) * far
    ids = random.integers(0, 100, 500)
    if rising:
        ids.sort()
    indptr, order = np.empty(8, np.int64), np.empty(500, np.int64)
    native.build_adjacency(targets, neighbors, ids, indptr, order)
    np.testing.assert_array_equal(order, np.lexsort((np.arange(500), ids, neighbors, targets)))
    np.testing.assert_array_equal(indptr, np.searchsorted(np.sort(targets), np.arange(8)))


@pytest.mark.parametrize("target", [-1, 3])
def test_a_target_outside_its_range_is_refused(target: int) -> None:
    one = np.zeros(2, np.int64)
    with pytest.raises(ValueError, match=r"edge 1 has a target outside \[0, 3\)"):
        native.build_adjacency(np.array([0, target]), one, one, np.empty(4, np.int64), np.empty(2, np.int64))


def test_lists_keep_the_arrays_that_they_read() -> None:
    adjacency = native.Adjacency(
        np.array([0, 2]), [np.array([0, 1, 2])], [np.array([1, 0], np.int32)], [np.array([0, 1], np.int32)]
    )
    assert adjacency.num_edges == 2


@pytest.mark.parametrize("indptr", [np.array([0.0, 1.5, 2.9]), np.array([0, 1, 2], np.int32)])
def test_an_adjacency_converts_nothing(indptr: np.ndarray[Any, Any]) -> None:
    with pytest.raises(TypeError):
        native.Adjacency(np.array([0, 2]), [indptr], [np.zeros(2, np.int32)], [np.zeros(2, np.int32)])


@pytest.mark.parametrize(
    ("bounds", "indptr", "indices", "ids", "error", "rule"),
    [
        ([0, 3], [0, 1, 2], np.int32, np.int32, ValueError, "one entry more than its part"),
        ([0, 2], [0, 1, 2], np.int16, np.int32, TypeError, "indices must be int32 or int64"),
        ([0, 2], [0, 1, 2], np.int32, np.float64, TypeError, "edge_ids must be int32 or int64"),
        ([-1, 1], [0, 1, 2], np.int32, np.int32, ValueError, "must not be negative"),
        ([2, 0], [0, 1, 2], np.int32, np.int32, ValueError, "must not fall"),
    ],
)
def test_an_adjacency_refuses_what_does_not_fit(
    *,
    bounds: list[int],
    indptr: list[int],
    indices: type[np.generic],
    ids: type[np.generic],
    error: type[Exception],
    rule: str,
) -> None:
    with pytest.raises(error, match=rule):
        native.Adjacency(np.array(bounds), [np.array(indptr)], [np.zeros(2, indices)], [np.zeros(2, ids)])


def test_long_lists_on_the_disk_are_read_ahead_of_their_draws(tmp_path: Path) -> None:
    """Of lists of 8 pages, draws of one neighbour take one. Lists that stay on the disk are read whole."""
    found = []
    for on_disk in (False, True):
        file = tmp_path / f"lists-{on_disk}"
        np.zeros(100 * 4096, np.int64).tofile(file)
        with file.open("r+b") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            mapped = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
        if in_page_cache(file):
            pytest.skip("the page cache keeps files of this file system")
        mapped.madvise(mmap.MADV_RANDOM)
        lists = np.frombuffer(mapped, np.int64)
        bounds = np.arange(0, len(lists) + 1, 4096)
        adjacency = native.Adjacency(np.array([0, 100]), [bounds], [lists], [lists], on_disk=on_disk)
        native.draw_hop(
            adjacency,
            None,
            1,
            np.arange(100),
            key=1,
            address=1,
            hop=0,
            rule=native.DrawRule(1),
            with_edge_ids=False,
            with_slots=False,
        )
        found.append(file)
    drawn, ahead = found
    assert 0.05 < in_page_cache(drawn) < 0.2
    assert wait_until(lambda: in_page_cache(ahead) > 0.9)
