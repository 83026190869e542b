"""The kernel of linear deterministic greedy places as its paper says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.native import GreedyPlacement
from tests.support.greedy_oracle import fewest_and_most, greedy_owners

NONE = np.empty(0, np.int64)


def placement(kinds: list[int], parts: int) -> GreedyPlacement:
    counts = np.bincount(np.array(kinds, np.int64), minlength=2)
    bounds = np.array([fewest_and_most(int(count), parts) for count in counts], np.int64)
    return GreedyPlacement(counts, bounds[:, 1].copy(), bounds[:, 0].copy(), parts)


def place(
    subject: GreedyPlacement,
    kinds: list[int],
    edges: list[tuple[int, int]],
    span: tuple[int, int],
    dtype: Any,
) -> None:
    """Place the nodes ``[first, last)`` of a stream with these edges."""
    first, last = span
    mine = [(max(edge), min(edge)) for edge in edges if first <= max(edge) < last and edge[0] != edge[1]]
    pairs = np.array(mine, dtype).reshape(-1, 2)
    subject.place(
        np.array(kinds[first:last], np.uint16), pairs[:, 0] - dtype(first), pairs[:, 1].copy(), NONE
    )


@given(st.data())
def test_nodes_go_where_the_paper_says(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.integers(0, 1), max_size=50))
    node = st.integers(0, max(len(kinds) - 1, 0))
    edges = data.draw(st.lists(st.tuples(node, node), max_size=200 if kinds else 0))
    parts = data.draw(st.integers(1, 7))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(kinds)), max_size=4)))
    subject = placement(kinds, parts)
    for first, last in zip([0, *cuts], [*cuts, len(kinds)], strict=True):
        place(subject, kinds, edges, (first, last), data.draw(st.sampled_from([np.int32, np.int64])))
    owners = subject.owners.tolist()
    assert owners == greedy_owners(kinds, edges, parts)
    for kind in set(kinds):
        of_kind = [owner for owner, each in zip(owners, kinds, strict=True) if each == kind]
        fewest, most = fewest_and_most(len(of_kind), parts)
        assert all(fewest <= of_kind.count(part) <= most for part in range(parts))


def test_neighbours_of_the_first_node_may_come_as_counts() -> None:
    subject = placement([0] * 9, 3)
    none = np.empty(0, np.int32)
    subject.place(np.zeros(3, np.uint16), none, none, NONE)
    assert subject.owners.tolist() == [0, 1, 2]
    subject.place(np.zeros(2, np.uint16), none, none, np.array([1, 2**40, 3]))
    assert subject.owners.tolist() == [0, 1, 2, 1, 0]
    assert not subject.owners.flags.writeable


@pytest.mark.parametrize(
    ("counts", "capacities", "floors", "parts", "message"),
    [
        ([4], [2], [2], 0, "num_partitions"),
        ([4], [2], [2], 65537, "num_partitions"),
        ([4], [2, 2], [2], 2, "differ in length"),
        ([4], [2], [], 2, "differ in length"),
        ([-1], [0], [0], 2, "a count"),
        ([4], [1], [0], 2, "must hold all nodes"),
        ([4], [5], [0], 2, "must hold all nodes"),
        ([4], [2], [3], 2, "floors"),
        ([4], [2], [-1], 2, "floors"),
    ],
)
def test_bounds_that_cannot_be_kept_are_refused(
    counts: list[int], capacities: list[int], floors: list[int], parts: int, message: str
) -> None:
    arrays = [np.array(values, np.int64) for values in (counts, capacities, floors)]
    with pytest.raises(ValueError, match=message):
        GreedyPlacement(arrays[0], arrays[1], arrays[2], parts)


@pytest.mark.parametrize(
    ("kinds", "targets", "neighbors", "more", "message"),
    [
        ([0, 2], [], [], [], "unknown kind"),
        ([0, 0, 0], [], [], [], "more nodes of a kind"),
        ([0, 0], [2], [0], [], "edge 0 does not join"),
        ([0, 0], [1, -1], [0, 0], [], "edge 1 does not join"),
        ([0, 0], [1], [-1], [], "edge 0 does not join"),
        ([0, 0], [1], [1], [], "edge 0 does not join"),
        ([0, 0], [1], [], [], "differ in length"),
        ([0, 0], [], [], [1], "every partition, or none"),
        ([0, 0], [], [], [1, -1], "not be negative"),
    ],
)
def test_what_no_stream_can_have_is_refused_and_nothing_placed(
    kinds: list[int], targets: list[int], neighbors: list[int], more: list[int], message: str
) -> None:
    subject = placement([0, 0, 1, 1], 2)
    with pytest.raises(ValueError, match=message):
        subject.place(
            np.array(kinds, np.uint16),
            np.array(targets, np.int32),
            np.array(neighbors, np.int32),
            np.array(more, np.int64),
        )
    assert len(subject.owners) == 0
