"""Calls of a graph store are counted by method, and there are as few as there need be."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gigl_client import Caller, RemoteDistDataset
from gigl_client.channel_pool import ChannelPool
from gigl_client.channels import MAX_IN_FLIGHT, ChannelConfig, Tried
from gigl_client.discovery import PARTNERS, servers_of_rank
from gigl_loader import DistNeighborLoader
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.rpc.refusals import Unknown
from gigl_loader.sampling.plan import plan_digest
from gigl_server.cluster.peers import watched_by
from gigl_server.counters import CallCounts, Counters
from tests.support.clusters import addresses_of, servers_of
from tests.support.pyg_graphs import homogeneous
from tests.support.sources import PLAN
from tests.support.store_control import client_of, controlled, opened

if TYPE_CHECKING:
    from pathlib import Path


def test_calls_add_up_by_port_and_method() -> None:
    counters = Counters()
    counters.add_call("data", "rows", bytes_in=3, bytes_out=5)
    counters.add_call("data", "rows", bytes_in=1)
    counters.add_call("control", "Load", calls=0, bytes_out=2)
    assert counters.calls() == {
        ("control", "Load"): CallCounts(0, 0, 2),
        ("data", "rows"): CallCounts(2, 4, 5),
    }


@pytest.mark.usefixtures("no_leftovers")
def test_what_a_loader_asks_of_two_servers(tmp_path: Path) -> None:
    """A job connects, reads a split, takes an epoch and closes: nothing is asked twice."""
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph", num_partitions=2, assigner="hash")
    with (
        servers_of(tmp_path / "graph", 2) as servers,
        RemoteDistDataset.connect(
            addresses_of(servers)[0], credentials=Caller(), transport="network", timeout=20
        ) as dataset,
    ):
        with DistNeighborLoader(dataset, [3, 2], batch_size=30, timeout=20) as loader:
            batches = list(loader)
            stats = loader.stats()
        counts = _sums(dataset)
    assert {name: counts[name][0] for name in ("Cluster", "manifest", "CreateProducer", "OpenChannel")} == {
        "Cluster": 3,  # One finds the servers, and each is asked whether it is ready.
        "manifest": 1,
        "CreateProducer": 2,
        "OpenChannel": 2,
    }
    assert counts["sample"][0] == len(batches)
    assert "frame" not in counts
    assert counts["CloseChannel"][0] == 2
    assert counts["Describe"][0] == 2  # Servers check each other so, trainers do not.
    assert counts["sample"][2] + counts["rows"][2] == pytest.approx(stats["wire_bytes_in"], rel=0.01)
    assert len(batches) < counts["neighbors"][0] <= 2 * len(batches)  # Two hops, one other server.
    assert counts["Cluster by servers"][0] >= 2


def _sums(dataset: RemoteDistDataset) -> dict[str, list[int]]:
    """Return calls, bytes in and bytes out by method, over all servers."""
    found: dict[str, list[int]] = {}
    for load in dataset.server_stats(timeout=20).values():
        for each in load["calls"]:
            sums = found.setdefault(each["method"], [0, 0, 0])
            for place, name in enumerate(("calls", "bytes_in", "bytes_out")):
                sums[place] += each[name]
    return found


def test_a_channel_is_of_the_plan_that_its_trainer_expects() -> None:
    with controlled() as served, client_of(served.endpoint) as client:
        opened(client)
        own, other = plan_digest(PLAN.to_json()), plan_digest("another plan")
        given: dict[str, Any] = {"name": "train rank 1", "credit": 8, "timeout_s": 10}
        assert client.open_channel("train", plan_digest=own, **given).id
        with pytest.raises(Unknown, match="no producer 'train' here"):
            client.open_channel("train", plan_digest=other, **given)


def _endpoints(count: int) -> list[Endpoint]:
    return [
        Endpoint(
            host_index=rank,
            host=f"host-{rank}",
            control_port=7070,
            data_port=7071,
            partitions=(rank,),
            what="storage server",
        )
        for rank in range(count)
    ]


@pytest.mark.parametrize("count", [1, 2, 9, 10, 40])
def test_each_server_watches_the_next_ones_and_is_watched_by_as_many(count: int) -> None:
    members = _endpoints(count)
    watched = [watched_by(own, members) for own in members]
    assert all(own not in others for own, others in zip(members, watched, strict=True))
    assert {len(others) for others in watched} == {min(count - 1, 8)}
    watchers = [sum(own in others for others in watched) for own in members]
    assert set(watchers) == {min(count - 1, 8)}


def _pool(count: int, *, first_server: int, prefetch: int = 4, **options: Any) -> ChannelPool:
    servers: list[Any] = [SimpleNamespace(endpoint=endpoint) for endpoint in _endpoints(count)]
    config = ChannelConfig(
        key="key", name="name", plan="{}", graph="", prefetch=prefetch, first_server=first_server, **options
    )
    heartbeats: Any = None
    pool = ChannelPool(servers, config, threading.Condition(), defers=True, heartbeats=heartbeats)
    for channel in pool:
        channel.allowance = prefetch
        channel.opened = SimpleNamespace()  # type: ignore[assignment]
    return pool


def _requested(pool: ChannelPool) -> list[int]:
    """Request batches until no more may be in flight. Return their servers."""
    found: list[int] = []
    while (channel := pool.for_batch(len(found), Tried(), urgent=False, needed=True)) is not None:
        channel.load += 1
        found.append(channel.server.endpoint.host_index)
    return found


def test_however_many_servers_there_are_a_trainer_has_so_many_batches_in_flight() -> None:
    assert len(_requested(_pool(3, first_server=0))) == 12
    pool = _pool(120, first_server=0)
    assert _requested(pool) == list(range(MAX_IN_FLIGHT))
    assert pool.for_batch(MAX_IN_FLIGHT, Tried(), urgent=True, needed=True) is not None


@pytest.mark.parametrize(
    ("servers", "ranks"), [(1, 1), (3, 2), (16, 100), (17, 1), (40, 7), (120, 480), (120, 64), (33, 500)]
)
def test_each_rank_has_some_servers_and_each_server_some_ranks(servers: int, ranks: int) -> None:
    chosen = [servers_of_rank(range(servers), rank, ranks) for rank in range(ranks)]
    least, most = min(servers, PARTNERS), min(ranks, PARTNERS)
    assert all(len(each) >= least and each == sorted(set(each)) for each in chosen)
    of_server = [sum(server in each for each in chosen) for server in range(servers)]
    assert min(of_server) >= most - 1
    assert max(of_server) - min(of_server) <= max(0.35 * max(of_server), 2)
    assert sum(of_server) <= (PARTNERS + 1) * max(servers, ranks)


def test_trainers_begin_at_different_servers() -> None:
    firsts = [_requested(_pool(5, first_server=rank))[:5] for rank in range(7)]
    assert [each[0] for each in firsts] == [0, 1, 2, 3, 4, 0, 1]
    assert firsts[3] == [3, 4, 0, 1, 2]


def test_digests_of_plans_are_those_of_their_text() -> None:
    assert len(plan_digest(PLAN.to_json())) == 16
    assert plan_digest(PLAN.to_json()) != plan_digest("{}")


def test_a_window_grows_while_the_trainer_waits_and_its_server_has_free_threads() -> None:
    pool = _pool(2, first_server=0, prefetch=2, most=5)
    first, second = pool

    def landed(count: int, *, queued_s: float, needed: bool, ready: int = 0) -> int:
        for _ in range(count):
            pool.adapt(first, queued_s=queued_s, sampling_s=1.0, needed=needed, ready=ready)
        return first.window

    assert landed(2, queued_s=0.0, needed=False) == 2
    assert landed(2, queued_s=0.6, needed=True) == 2  # All threads of the server were busy.
    assert landed(2, queued_s=0.5, needed=True) == 4
    assert landed(9, queued_s=0.0, needed=True) == 5
    assert landed(9, queued_s=2.0, needed=True) == 5
    assert landed(1, queued_s=2.1, needed=True) == 4  # More of them only wait for threads.
    assert landed(1, queued_s=0.0, needed=True) == 5
    assert pool.most_in_flight == 7
    assert landed(1, queued_s=0.0, needed=False, ready=4) == 5
    assert landed(2, queued_s=0.0, needed=False, ready=5) == 3
    assert landed(9, queued_s=0.0, needed=False, ready=9) == 2
    assert second.window == 2


def test_a_window_that_the_user_gave_stays() -> None:
    pool = _pool(1, first_server=0, prefetch=3)
    (channel,) = pool
    pool.adapt(channel, queued_s=0.0, sampling_s=1.0, needed=True, ready=0)
    pool.adapt(channel, queued_s=0.0, sampling_s=1.0, needed=False, ready=9)
    assert channel.window == 3


def test_of_large_batches_fewer_are_in_flight() -> None:
    """As many as fit in the memory of the channels by the sizes seen, and two in any case."""
    pool = _pool(120, first_server=0, channel_bytes=100 << 20)
    pool.received(1000)
    assert len(_requested(pool)) == MAX_IN_FLIGHT
    pool.forget_loads()
    for channel in pool:
        channel.allowance = 4
    pool.received(10 << 20)
    pool.received(1000)
    assert len(_requested(pool)) == 10
    assert pool.for_batch(10, Tried(), urgent=True, needed=True) is not None
    pool.forget_loads()
    pool.received(1 << 30)
    assert len(_requested(pool)) == 2
    pool.forget_loads()
    for _ in range(200):
        pool.received(1000)
    assert len(_requested(pool)) == MAX_IN_FLIGHT
