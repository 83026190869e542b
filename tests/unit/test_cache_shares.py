"""Memory of a cache by type: what batches want of each counts, and none is without slots."""

from __future__ import annotations

import numpy as np
import pytest

from gigl_loader.arrays import Int64Array
from gigl_loader.sampling.cache_shares import CacheShares, Kind, SlotCost

MEMORY = 1_000_000


def batch(**rows: int) -> dict[Kind, Int64Array]:
    return {kind: np.arange(count, dtype=np.int64) for kind, count in rows.items()}


def shares(**rows: int) -> CacheShares:
    return CacheShares({kind: SlotCost(100, count) for kind, count in rows.items()})


def test_a_type_that_the_first_batch_lacks_has_a_floor() -> None:
    found = shares(paper=10**6, author=10**6, venue=10**6).sizes(MEMORY, [batch(paper=500)])
    assert found["author"] == pytest.approx(MEMORY / 100 / 27, abs=2)
    assert found["venue"] == pytest.approx(MEMORY / 100 / 27, abs=2)
    assert found["paper"] == pytest.approx(MEMORY / 100 * 25 / 27, abs=2)


def test_all_batches_that_are_known_count() -> None:
    known = shares(paper=10**6, author=10**6)
    known.count([batch(paper=300)])
    found = known.sizes(MEMORY, [batch(author=100), batch(author=200)])
    assert found["paper"] == pytest.approx(found["author"], abs=1)


def test_a_type_takes_no_more_than_its_rows() -> None:
    found = shares(paper=10**6, venue=20).sizes(MEMORY, [batch(paper=10, venue=10)])
    assert found == {"venue": 20, "paper": MEMORY // 100 - 20}


@pytest.mark.parametrize("types", [1, 7, 300])
@pytest.mark.parametrize("memory", [0, 5_000, MEMORY])
def test_the_memory_is_not_exceeded_but_for_one_slot_a_type(memory: int, types: int) -> None:
    names = [f"type {number}" for number in range(types)]
    wanted = batch(**{name: number for number, name in enumerate(names)})
    found = shares(**dict.fromkeys(names, 10**6)).sizes(memory, [wanted])
    assert min(found.values()) >= 1
    assert 100 * sum(size for size in found.values() if size > 1) <= memory


def test_shares_are_set_anew_where_later_batches_want_others() -> None:
    known = shares(paper=10**6, author=10**6)
    sizes = known.sizes(MEMORY, [batch(paper=300)])
    looks = []
    for number in range(600):
        known.count([batch(paper=300, author=300)])
        if known.differ(sizes, MEMORY, []):
            looks.append(number + 1)
            sizes = known.sizes(MEMORY)
    assert looks == [1]
    assert sizes["paper"] == pytest.approx(sizes["author"], abs=1)


def test_few_batches_that_want_others_move_nothing() -> None:
    known = shares(paper=10**6, author=10**6)
    known.count([batch(paper=300, author=300)] * 255)
    sizes = known.sizes(MEMORY)
    known.count([batch(paper=300)] * 20)
    assert not known.differ(sizes, MEMORY, [])
