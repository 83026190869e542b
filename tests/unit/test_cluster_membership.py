"""Members of a cluster: versions, and the stores over servers that come and go."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.graph.graph import Graph
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.store import EdgeRequest
from gigl_server.cluster.membership import Membership
from gigl_server.cluster.stores import ClusterStores
from tests.support.peers import CALLER, served
from tests.support.ports import free_port
from tests.support.sources import small_graph

CHANGES = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["put", "remove", "merge"]),
        st.integers(1, 4),
        st.frozensets(st.integers(0, 3), min_size=1),
    ),
    max_size=30,
)


def server(number: int, *partitions: int, incarnation: int = 1) -> Endpoint:
    return Endpoint(
        host_index=0,
        host="host",
        control_port=10 * number,
        data_port=10 * number + 1,
        partitions=partitions,
        incarnation=incarnation,
    )


def identities(membership: Membership) -> list[tuple[object, ...]]:
    return [(each.control_address, each.partitions, each.incarnation) for each in membership.members]


@given(CHANGES)
def test_no_version_is_reused_for_another_set_and_none_goes_back(changes: list[tuple[object, ...]]) -> None:
    """By one server. What a client follows, the highest version, so never goes back either."""
    servers = [Membership(server(10 + number, 0)) for number in range(3)]
    seen: list[dict[int, object]] = [{} for _ in servers]
    for place, what, number, partitions in changes:
        assert isinstance(place, int)
        membership, before = servers[place], servers[place].version
        if what == "put":
            membership.put(server(number, *sorted(partitions)))  # type: ignore[call-overload,arg-type]
        elif what == "remove":
            membership.remove(f"host:{10 * number}")  # type: ignore[operator]
        else:
            other = servers[(place + 1) % 3]
            membership.merge(*other.snapshot())
        assert membership.version >= before
        version, members = membership.snapshot()
        found = [(each.control_address, each.partitions) for each in members]
        assert seen[place].setdefault(version, found) == found


@given(st.permutations(range(4)), st.permutations(range(4)))
def test_servers_that_met_the_same_ones_agree_after_a_round(one: list[int], other: list[int]) -> None:
    all_servers = [server(number + 1, number) for number in range(4)]
    first, second = Membership(all_servers[0]), Membership(all_servers[1])
    for membership, order in ((first, one), (second, other)):
        for number in order:
            membership.put(all_servers[number])
    first.merge(*second.snapshot())
    second.merge(*first.snapshot())
    assert identities(first) == identities(second)
    assert first.version == second.version


def test_a_change_outdoes_every_version_that_was_seen() -> None:
    membership = Membership(server(1, 0))
    far = membership.version + 1_000_000
    membership.merge(far, [server(1, 0), server(2, 1)])  # Another set: not taken over.
    assert membership.version < far
    membership.put(server(2, 1))
    assert membership.version > far


@pytest.mark.parametrize("version", [0, -1, 2**62, 2**64])
def test_a_version_that_cannot_be_outdone_is_ignored(version: int) -> None:
    membership = Membership(server(1, 0))
    before = membership.version
    membership.merge(version, membership.members)
    assert membership.version == before


def test_ranks_are_by_partitions_then_address_and_a_restart_is_a_change() -> None:
    membership = Membership(server(3, 0, 1))
    assert membership.put(server(2, 0, 1))
    assert membership.put(server(1, 2))
    assert not membership.put(replace(server(1, 2), host_index=7))
    assert [(each.host_index, each.control_port) for each in membership.members] == [
        (0, 20),
        (1, 30),
        (2, 10),
    ]
    assert membership.put(server(1, 2, incarnation=2))
    assert not membership.remove("host:30"), "it is itself"
    assert membership.missing(4) == [3]


def test_others_hold_counts_only_those_that_answer() -> None:
    membership = Membership(server(1, 0))
    lost = server(2, 1, 2)
    for each in (lost, server(3, 1), server(4, 2)):
        membership.put(each)
    assert membership.others_hold(lost)
    membership.set_away(["host:40"])
    assert not membership.others_hold(lost)


# --- Stores of a storage server over the servers of its cluster, which come, go and change what they hold


EDGES = ("node", "to", "node")


def test_a_request_for_a_lost_partition_is_answered_once_this_server_has_taken_it_over() -> None:
    """It had begun before, and would end with ``StorageUnavailable``: it asks this server, as any holder."""
    whole = small_graph(2)
    bounds = whole.schema.nodes["node"].bounds
    targets = np.arange(bounds[1], bounds[2], dtype=np.int64)
    neighbors = targets[::-1].copy()
    request = EdgeRequest(edge_type=EDGES, targets=targets, neighbors=neighbors)
    with closing(LocalStore(whole, 1)) as local:
        expected = local.contains(request)
    with served(whole) as here:
        membership = Membership(replace(here, partitions=(0,)))
        membership.put(_lost(here))
        stores = ClusterStores(
            Graph.open(whole.folder, parts=[0]), membership, CALLER, concurrency=1, on_membership=None
        )
        with closing(stores.open()) as store:
            taking_over = threading.Timer(0.3, membership.announce, ([0, 1],))
            taking_over.start()
            assert (store.contains(EDGES, targets, neighbors) == expected).all()
            taking_over.join()


def _lost(here: Endpoint) -> Endpoint:
    port = free_port(count=2)
    return replace(here, control_port=port, data_port=port + 1, partitions=(1,))
