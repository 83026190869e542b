"""Placement of a loader: ranks of servers, their shares of the nodes, and ranks that disagree."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from gigl_loader import DistDataset
from gigl_loader.group import RankGroup
from gigl_loader.loaders.inputs import read_seed_nodes
from gigl_loader.loaders.placement import RankConsistency
from gigl_loader.sharding import BySeeds, ByServers, Whole, read_share
from tests.support.pyg_graphs import graph_of, heterogeneous, homogeneous


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


# --- Shares of the nodes of servers: exact, whole, and each node some rank's


LENGTHS = st.lists(st.integers(0, 10**6), min_size=1, max_size=9)


@given(LENGTHS, st.integers(1, 12))
def test_ranks_share_every_node_once(lengths: list[int], world_size: int) -> None:
    for kind in (ByServers, BySeeds):
        shares = [kind(rank, world_size).slices(lengths) for rank in range(world_size)]
        for server, length in enumerate(lengths):
            ends = [0]
            for share in shares:
                if share[server].start < share[server].stop:
                    assert share[server].start == ends[-1]
                    ends.append(share[server].stop)
            assert ends[-1] == length


@given(LENGTHS, st.integers(1, 12))
def test_a_rank_takes_the_exact_fraction_of_each_server(lengths: list[int], world_size: int) -> None:
    servers = len(lengths)
    for rank in range(world_size):
        share = ByServers(rank, world_size)
        for server, (length, part) in enumerate(zip(lengths, share.slices(lengths), strict=True)):
            begin, end = Fraction(rank * servers, world_size), Fraction((rank + 1) * servers, world_size)
            first, last = (min(max(at - server, Fraction(0)), Fraction(1)) for at in (begin, end))
            assert (part.start, part.stop) == (int(length * first), int(length * last))
            assert share.needs(server, servers) == (first < last)


@given(LENGTHS, st.integers(1, 12))
def test_by_seeds_ranks_differ_by_one_at_most(lengths: list[int], world_size: int) -> None:
    sizes = [
        sum(part.stop - part.start for part in BySeeds(rank, world_size).slices(lengths))
        for rank in range(world_size)
    ]
    assert max(sizes) - min(sizes) <= 1


def test_as_many_ranks_as_servers_take_one_server_each() -> None:
    assert ByServers(1, 3).slices([5, 7, 9]) == [slice(5, 5), slice(0, 7), slice(0, 0)]


def test_without_a_rank_all_is_taken() -> None:
    assert read_share(None, None, "servers") == Whole()
    assert Whole().slices([2, 0]) == [slice(0, 2), slice(0, 0)]


@pytest.mark.parametrize(
    ("rank", "world_size", "balance", "rule"),
    [
        (0, None, "servers", "together or not at all, got rank=0, world_size=None"),
        (None, 2, "servers", "together or not at all, got rank=None, world_size=2"),
        (2, 2, "seeds", r"rank 2 does not lie in \[0, 2\)"),
        (-1, 2, "seeds", "rank -1"),
        (0, 0, "servers", r"rank 0 does not lie in \[0, 0\)"),
        (0, 1, "nodes", "balance must be 'servers' or 'seeds', got 'nodes'"),
    ],
)
def test_shares_that_make_no_sense_are_refused(
    rank: int | None, world_size: int | None, balance: str, rule: str
) -> None:
    with pytest.raises(ValueError, match=rule):
        read_share(rank, world_size, balance)


# --- Input nodes by the rank of the storage server that holds them


class _Stored(DistDataset):
    @property
    def num_servers(self) -> int:
        return 3


HOMO = _Stored(graph_of(homogeneous()))
HETERO = _Stored(graph_of(heterogeneous()))


def test_they_come_in_the_order_of_the_servers() -> None:
    given = {2: torch.tensor([5, 4]), 0: np.array([9], np.int32), 1: torch.tensor([])}
    seeds = read_seed_nodes(HOMO, given)
    assert HOMO.node_ids("node", seeds.positions).tolist() == [9, 5, 4]
    assert seeds.places is None


def test_with_a_node_type() -> None:
    seeds = read_seed_nodes(HETERO, ("item", {1: [3, 3]}))
    assert seeds.node_type == "item"
    assert HETERO.node_ids("item", seeds.positions).tolist() == [3, 3]


@pytest.mark.parametrize(
    ("nodes", "error", "rule"),
    [
        (
            {3: torch.tensor([1])},
            ValueError,
            "input_nodes has 3 for the rank of a server; there are 3, from 0",
        ),
        ({-1: torch.tensor([1])}, ValueError, "input_nodes has -1 for the rank"),
        ({"0": torch.tensor([1])}, ValueError, "unknown node type '0'; known: node"),
        ({True: torch.tensor([1])}, ValueError, "input_nodes has True for the rank"),
        ({0: torch.tensor([1.5])}, TypeError, "node ids must be integers"),
        ({0: torch.tensor([[1]])}, ValueError, "must be 1-D"),
        ({0: "train"}, TypeError, "must be a tensor of node ids"),
        ({0: None}, TypeError, "must be a tensor of node ids"),
        ({0: torch.tensor([1, 300])}, ValueError, "1 unknown node ids of type 'node': 300"),
    ],
)
def test_bad_ones_are_refused(nodes: Any, error: type[Exception], rule: str) -> None:
    with pytest.raises(error, match=rule):
        read_seed_nodes(HOMO, nodes)
