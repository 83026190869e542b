"""Assigners are fixed functions of the node ids."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.partition.assigners import HashAssigner, RangeAssigner, assigner_named

_MASK = 2**64 - 1


def _mix64(value: int) -> int:
    """The finaliser of splitmix64, from its paper."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=50), st.integers(1, 9))
def test_hash_is_the_documented_one(ids: list[int], parts: int) -> None:
    found = HashAssigner().assign("node", np.array(sorted(ids), dtype=np.int64), parts)
    assert found.tolist() == [_mix64(node & _MASK) % parts for node in sorted(ids)]


def test_hash_does_not_change_when_nodes_come() -> None:
    few = HashAssigner().assign("node", np.arange(0, 100, 2), 4)
    many = HashAssigner().assign("node", np.arange(100), 4)
    np.testing.assert_array_equal(few, many[::2])


def test_hash_is_balanced() -> None:
    sizes = np.bincount(HashAssigner().assign("node", np.arange(40_000) * 1024, 4))
    assert sizes.min() > 9_700


@given(st.integers(0, 100), st.integers(1, 12))
def test_ranges_differ_by_at_most_one_node(count: int, parts: int) -> None:
    found = RangeAssigner().assign("node", np.arange(count) * 3, parts)
    sizes = np.bincount(found, minlength=parts)
    assert sizes.sum() == count
    assert sizes.max() - sizes.min() <= 1
    assert (np.diff(found) >= 0).all()
    np.testing.assert_array_equal(np.diff(RangeAssigner.bounds(count, parts)), sizes)


def test_assigners_go_by_name() -> None:
    assert assigner_named("hash").name == "hash"
    own = RangeAssigner()
    assert assigner_named(own) is own
    with pytest.raises(
        ValueError, match="unknown assigner 'metis'; known: range, hash, ldg, kaminpar, or a table"
    ):
        assigner_named("metis")
