"""Shares of the nodes of servers: exact, whole, and each node some rank's."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.sharding import BySeeds, ByServers, Whole, read_share

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
