"""Directories translate node ids and positions, whatever their kind."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.graph.ids import Directory
from gigl_loader.partition.assigners import Assigner, HashAssigner, RangeAssigner
from gigl_loader.partition.steps.ids import NodeIds, assign

_ids = st.lists(st.one_of(st.integers(-3, 20), st.integers(-(2**63), 2**63 - 1)), unique=True, max_size=20)


def _directory(ids: list[int], assigner: Assigner, parts: int) -> Directory:
    dense = ids == list(range(len(ids)))
    known = NodeIds(len(ids), None if dense else np.array(ids, dtype=np.int64))
    return assign(known, "node", assigner, parts)[0]


@given(
    st.one_of(_ids, st.integers(0, 20).map(lambda count: list(range(count)))),
    _ids,
    st.sampled_from([RangeAssigner(), HashAssigner()]),
    st.integers(1, 4),
)
def test_ids_and_positions_are_inverse(
    ids: list[int], others: list[int], assigner: Assigner, parts: int
) -> None:
    ids = sorted(ids)
    directory = _directory(ids, assigner, parts)
    by_position = directory.node_ids(np.arange(len(ids))).tolist()
    assert sorted(by_position) == ids
    assert directory.find(np.array(by_position, dtype=np.int64)).tolist() == list(range(len(ids)))
    asked = np.array(others, dtype=np.int64)
    expected = [by_position.index(node) if node in ids else -1 for node in others]
    assert directory.find(asked).tolist() == expected
    assert [by_position[place] for place in directory.in_id_order()] == ids
    assert directory.ascending == (by_position == ids)


def test_the_kind_says_what_is_stored() -> None:
    kinds = {
        ("identity", ()): _directory([0, 1, 2], RangeAssigner(), 2),
        ("dense", ("ids", "positions")): _directory(list(range(9)), HashAssigner(), 2),
        ("sparse", ("ids",)): _directory([3, 5, 9], RangeAssigner(), 2),
        ("sparse", ("ids", "positions", "sorted_ids")): _directory(list(range(3, 20)), HashAssigner(), 2),
    }
    for (kind, arrays), directory in kinds.items():
        assert (directory.kind, tuple(sorted(directory.arrays()))) == (kind, arrays)
