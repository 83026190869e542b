"""What ranks tell each other of a loader; tests through loaders are in ``test_sharded_loader``."""

from __future__ import annotations

from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from gigl_loader.group import RankGroup
from gigl_loader.loaders.placement import RankConsistency


def _agreements(count: int, name: str | None = None) -> list[RankConsistency]:
    store = HashStore()
    return [RankConsistency(RankGroup(store, rank, count), "Loader", name) for rank in range(count)]


def test_a_loader_is_named_by_its_kind_and_count_or_by_its_user() -> None:
    group = RankGroup(HashStore(), 0, 2)
    assert [RankConsistency(group, "Loader", None).name for _ in range(2)] == ["Loader-1", "Loader-2"]
    assert RankConsistency(group, "Loader", "train").name == "train"


def test_equal_ranks_agree() -> None:
    for agreement in (agreements := _agreements(3)):
        agreement.publish({"batch_size": 4})
    for agreement in agreements:
        agreement.begin({"epoch": 0}, 1)
        agreement.begin({"epoch": 9}, 1)  # Asked once only.


def test_who_comes_later_is_told_at_once_and_who_came_first_at_the_start() -> None:
    first, second = _agreements(2)
    first.publish({"batch_size": 4, "shuffle": True})
    with pytest.raises(ValueError, match=r"ranks differ: batch_size is 4 on rank 0, 8 on rank 1\. To mend"):
        second.publish({"batch_size": 8, "shuffle": True})
    with pytest.raises(ValueError, match=r"Loader-1: ranks differ: batch_size is"):
        first.begin({}, 1)


@pytest.mark.parametrize("field", ["drop_last", "digest of seeds"])
def test_the_remedy_fits_the_difference(field: str) -> None:
    first, second = _agreements(2)
    first.publish({field: 1})
    remedy = "pass the same arguments" if field == "drop_last" else "pass the whole input on every rank"
    with pytest.raises(ValueError, match=remedy):
        second.publish({field: 2})


def test_long_values_are_cut() -> None:
    first, second = _agreements(2)
    first.publish({"columns": ["x" * 10] * 50})
    with pytest.raises(ValueError, match=r"columns is .*\.\.\. on rank 0, \[\] on rank 1") as caught:
        second.publish({"columns": []})
    assert len(str(caught.value)) < 300


def test_a_field_that_one_rank_lacks_differs() -> None:
    first, second = _agreements(2)
    first.publish({})
    with pytest.raises(ValueError, match="drawn_by_weights is null on rank 0, true on rank 1"):
        second.publish({"drawn_by_weights": True})


def test_a_rank_that_failed_is_told_to_those_who_wait() -> None:
    first, second, _ = _agreements(3)
    first.publish({})
    second.fail(ValueError("no memory"))
    with pytest.raises(RuntimeError, match="rank 1 could not build Loader-1: ValueError: no memory"):
        first.begin({}, 10)


def test_where_ranks_begin_is_compared_without_waiting() -> None:
    first, second, third = agreements = _agreements(3)
    for agreement in agreements:
        agreement.publish({})
    first.begin({"batch": 0}, 1)
    second.begin({"batch": 0}, 1)
    with pytest.raises(ValueError, match=r"batch is 2 on rank 2, 0 on ranks 0, 1.*load the same state"):
        third.begin({"batch": 2}, 1)


def test_the_seed_is_that_of_the_first() -> None:
    seeds: list[Any] = [agreement.run_seed(7 + rank) for rank, agreement in enumerate(_agreements(3))]
    assert seeds == [7, 7, 7]
