"""How a local cluster deals out partitions and copies of them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_server.local_cluster import deal


@given(st.integers(1, 12), st.data())
def test_every_partition_has_so_many_holders(partitions: int, data: st.DataObject) -> None:
    servers = data.draw(st.integers(1, partitions))
    replicas = data.draw(st.integers(1, servers))
    dealt = deal(partitions, servers, replicas)
    assert len(dealt) == servers
    assert Counter(part for parts in dealt for part in parts) == dict.fromkeys(range(partitions), replicas)
    assert all(list(parts) == sorted(set(parts)) for parts in dealt)


def test_by_default_there_are_two_servers_if_there_are_partitions_for_them() -> None:
    assert deal(1) == [(0,)]
    assert deal(5) == [(0, 1), (2, 3, 4)]
    with pytest.raises(ValueError, match=r"1 to 1 servers, not 2: build it with as many .*-p 2"):
        deal(1, 2)


def test_three_servers_with_two_copies() -> None:
    assert deal(3, 3, 2) == [(0, 1), (1, 2), (0, 2)]


@pytest.mark.parametrize("replicas", [0, 3])
def test_more_copies_than_servers_are_refused(replicas: int) -> None:
    with pytest.raises(ValueError, match=f"2 servers can hold 1 to 2 replicas, not {replicas}"):
        deal(4, 2, replicas)
