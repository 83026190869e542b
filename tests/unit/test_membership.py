"""Which address a host is reached by, and what protects it. ``test_shared_dataset`` tests the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.hosts import membership
from gigl_loader.hosts.holdings import Holding
from gigl_loader.hosts.shared_cache import SharedCache
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.rpc.credentials import Credentials, new_token
from gigl_loader.topology import Topology
from tests.support.pyg_graphs import homogeneous
from tests.support.thread_ranks import run_ranks

if TYPE_CHECKING:
    from pathlib import Path

    from gigl_loader.group import RankGroup


def _holdings(*addresses: str) -> list[Holding]:
    return [
        Holding(host_index=host, local_rank=0, digest="", partitions=(host,), address=address, where="")
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
    monkeypatch.setattr(membership, "own_address", lambda towards: f"towards {towards}")
    topology = Topology(rank=rank, world_size=2, host_index=rank, num_hosts=2)
    assert membership._reachable_address(topology, _holdings(*addresses)) == expected


def test_plain_text_stays_on_the_machine() -> None:
    token = new_token()
    assert not membership._credentials("127.0.0.1", token).certificate
    assert membership._credentials("10.0.0.1", token).certificate
    assert membership._credentials("host-1", token).token == token


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

    monkeypatch.setattr(membership, "SharedCache", fails_on_host_0)

    def program(group: RankGroup) -> None:
        DistDataset.open(tmp_path / "graph", partitions=group.rank, timeout=20)

    first, second = run_ranks(2, program, hosts=["a", "b"])
    assert (type(first), str(first)) == (OSError, "no memory")
    assert (type(second), str(second)) == (OSError, "rank 0: no memory")
