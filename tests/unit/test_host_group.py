"""Which address a host is reached by, and what protects it. ``test_shared_dataset`` tests the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.hosts import host_group
from gigl_loader.hosts.partition_map import Holding
from gigl_loader.hosts.shared_cache import SharedCache
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.rpc.credentials import Credentials, new_token
from gigl_loader.topology import Topology
from tests.support.pyg_graphs import homogeneous
from tests.support.thread_ranks import run_ranks

if TYPE_CHECKING:
    from pathlib import Path

    from gigl_loader.group import RankGroup


def _holdings(*addresses: str, machines: str = "") -> list[Holding]:
    return [
        Holding(
            host_index=host,
            local_rank=0,
            digest="",
            partitions=(host,),
            address=address,
            where="",
            machine=machines[host : host + 1],
        )
        for host, address in enumerate(addresses)
    ]


@pytest.mark.parametrize(
    ("addresses", "rank", "expected"),
    [
        (["10.0.0.1", "10.0.0.2"], 0, "10.0.0.1"),
        (["127.0.0.1", "10.0.0.2"], 0, "towards 10.0.0.2"),  # The master's name is loopback at home.
        (["127.0.0.1", "10.0.0.2"], 1, "10.0.0.2"),
        (["127.0.0.1", "127.0.0.1"], 1, "127.0.0.1"),  # Hosts in name only, on one machine.
    ],
)
def test_a_host_is_reached_by_an_address_that_others_can_use(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str], rank: int, expected: str
) -> None:
    monkeypatch.setattr(host_group, "own_address", lambda towards: f"towards {towards}")
    topology = Topology(rank=rank, world_size=2, host_index=rank, num_hosts=2)
    assert host_group._reachable_address(topology, _holdings(*addresses), given=False) == expected


@pytest.mark.parametrize("elsewhere", ["127.0.0.1", "10.0.0.2"])
def test_a_loopback_address_is_none_for_another_machine(
    monkeypatch: pytest.MonkeyPatch, elsewhere: str
) -> None:
    monkeypatch.setattr(host_group, "own_address", lambda _: "127.0.0.1")  # There is no way.
    holdings = _holdings("127.0.0.1", elsewhere, machines="ab")
    topology = Topology(rank=0, world_size=2, host_index=0, num_hosts=2)
    rule = r"^the only address known of host 0 is 127\.0\.0\.1, .*MASTER_ADDR .*listen=.*advertise="
    with pytest.raises(ValueError, match=rule):
        host_group._reachable_address(topology, holdings, given=False)
    assert host_group._reachable_address(topology, holdings, given=True) == "127.0.0.1"


@pytest.mark.parametrize(
    ("listen", "expected"),
    [
        (None, "10.1.0.1"),
        ("10.0.0.5:7000", "10.0.0.5"),
        ("[fd00::5]:7000", "fd00::5"),
        ("0.0.0.0:7000", "10.1.0.1"),
        ("[::]:0", "10.1.0.1"),
    ],
)
def test_others_come_to_the_address_that_is_listened_on(listen: str | None, expected: str) -> None:
    assert host_group._advertised(listen, "10.1.0.1") == expected


def test_a_host_is_told_by_the_address_that_it_was_given(tmp_path: Path) -> None:
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph", num_partitions=2)

    def program(group: RankGroup) -> list[str]:
        listen = f"127.0.0.{group.rank + 2}:0"
        with DistDataset.open(
            tmp_path / "graph", partitions=group.rank, listen=listen, timeout=20
        ) as dataset:
            assert dataset._membership is not None
            return [endpoint.host for endpoint in dataset._membership.peers.endpoints]

    assert run_ranks(2, program, hosts=["a", "b"]) == [["127.0.0.2", "127.0.0.3"]] * 2


@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize("after", ["told", "told all"])
def test_who_comes_when_the_others_have_given_up_does_not_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph", num_partitions=2)
    share = host_group._share_cache

    def comes_late(meeting: Any, *rest: Any) -> Any:
        if meeting.group.rank == 1:
            if after == "told all":
                meeting.tell("cache", "")
            meeting.group.collect("gave up", timeout=20, what="give up", ranks=[0])
        return share(meeting, *rest)

    monkeypatch.setattr(host_group, "_share_cache", comes_late)

    def program(group: RankGroup) -> None:
        try:
            DistDataset.open(
                tmp_path / "graph", partitions=group.rank, timeout=20 if group.rank else 1.5, cache_size=0
            ).close()
        finally:
            group.publish("gave up", "yes")

    first, second = run_ranks(2, program, hosts=["a", "b"])
    assert isinstance(first, TimeoutError)
    assert isinstance(second, TimeoutError)
    assert str(second) == f"rank 0: {first}"


def test_a_peer_has_less_time_to_fill_a_cache_than_others_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph", num_partitions=2)
    fill, given = SharedCache, []

    def keep(*arguments: Any, timeout_s: float) -> Any:
        given.append(timeout_s)
        return fill(*arguments, timeout_s=timeout_s)

    monkeypatch.setattr(host_group, "SharedCache", keep)

    def program(group: RankGroup) -> None:
        DistDataset.open(tmp_path / "graph", partitions=group.rank, timeout=20).close()

    assert run_ranks(2, program, hosts=["a", "b"]) == [None, None]
    assert given == [10, 10]


def test_plain_text_stays_on_the_machine() -> None:
    token = new_token()
    assert not host_group._credentials("127.0.0.1", token).certificate
    assert host_group._credentials("10.0.0.1", token).certificate
    assert host_group._credentials("host-1", token).token == token


def test_hosts_may_bring_their_own_certificates(tmp_path: Path) -> None:
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph", num_partitions=2)
    token = new_token()

    def program(group: RankGroup) -> int:
        credentials = Credentials.ephemeral(["127.0.0.1"], token=token)
        loading: dict[str, Any] = {"batch_size": 50, "num_workers": 1, "name": "train", "timeout": 20}
        with DistDataset.open(
            tmp_path / "graph", partitions=group.rank, credentials=credentials, timeout=20
        ) as dataset:
            assert dataset._membership is not None
            assert all(endpoint.certificate for endpoint in dataset._membership.peers.endpoints)
            with DistNeighborLoader(dataset, [3, 2], **loading) as loader:
                return len(list(loader))

    assert run_ranks(2, program, hosts=["a", "b"]) == [3, 3]


@pytest.mark.usefixtures("no_leftovers")
def test_a_host_that_cannot_keep_rows_tells_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph", num_partitions=2)
    fill = SharedCache

    def fails_on_host_0(graph: Any, peers: Any, nbytes: int, **options: Any) -> Any:
        if peers.host_index == 0:
            raise OSError("no memory")
        return fill(graph, peers, nbytes, **options)

    monkeypatch.setattr(host_group, "SharedCache", fails_on_host_0)

    def program(group: RankGroup) -> None:
        DistDataset.open(tmp_path / "graph", partitions=group.rank, timeout=20)

    first, second = run_ranks(2, program, hosts=["a", "b"])
    assert (type(first), str(first)) == (OSError, "no memory")
    assert (type(second), str(second)) == (OSError, "rank 0: no memory")
