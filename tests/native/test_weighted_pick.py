"""Weighted draws of the kernel over whole-number sums, whole and damaged."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader import native

Integers = npt.NDArray[np.int64]


def draw(sums: Integers, count: int, fanout: int, *, replace: bool, key: int) -> Integers:
    """Return the entries that are drawn from one list, of which ``count`` are said to have a weight."""
    degree = len(sums)
    entries = np.arange(degree, dtype=np.int32)
    bounds = [np.array([0, degree])]
    lists = native.Adjacency(np.array([0, 1]), bounds, [entries], [entries], [sums], [np.array([count])])
    drawn: Integers = native.draw_hop(
        lists,
        None,
        degree,
        np.zeros(1, np.int64),
        key=key,
        address=1,
        hop=0,
        rule=native.DrawRule(fanout, replace=replace, weighted=True),
        with_edge_ids=False,
        with_slots=False,
    )[1]
    return drawn


@given(
    st.lists(st.integers(0, 5) | st.integers(0, 2**55), max_size=60),
    st.integers(-1, 70),
    st.booleans(),
    st.integers(0, 2**64 - 1),
)
def test_the_drawn_entries_have_weights_and_are_as_many_as_asked_for(
    weights: list[int], fanout: int, replace: bool, key: int
) -> None:
    sums = np.cumsum(weights, dtype=np.int64)
    count = sum(weight > 0 for weight in weights)
    drawn = draw(sums, count, fanout, replace=replace, key=key).tolist()
    assert all(weights[entry] > 0 for entry in drawn)
    if replace and fanout >= 0:
        assert len(drawn) == (fanout if count else 0)
    else:
        assert len(drawn) == len(set(drawn)) == (count if fanout < 0 else min(fanout, count))


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [-1, 2, 50])
@pytest.mark.parametrize("seed", range(24))
def test_damaged_sums_never_crash(fanout: int, replace: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    degree = 30
    sums = np.cumsum(random.integers(0, 5, degree))
    count = int((np.diff(sums, prepend=0) > 0).sum())
    for place in random.integers(degree, size=1 + seed // 12):
        sums[place] = random.choice([-(2**63), 2**63 - 1, 0, -1])
    if seed % 4 == 3:
        sums[-1] = random.choice([-(2**63), 2**63 - 1])
    if seed % 3 == 0:
        count = int(random.choice([-5, degree, 2**62]))
    for key in range(50):
        with suppress(RuntimeError):  # It says that the adjacency is damaged.
            drawn = draw(sums, count, fanout, replace=replace, key=key)
            assert drawn.min(initial=0) >= 0
            assert drawn.max(initial=0) < degree
