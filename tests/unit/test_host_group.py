"""Which address a host is reached by, and what protects it. ``test_shared_dataset`` tests the rest."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.group import RankGroup
from gigl_loader.hosts import host_group
from gigl_loader.hosts.peers import SharedCache
from gigl_loader.hosts.rendezvous import Rendezvous, check_holdings
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.rpc.credentials import Credentials
from gigl_loader.rpc.host_service import HostService
from gigl_loader.rpc.peer import check_peer
from gigl_loader.rpc.tokens import new_token
from tests.support.pyg_graphs import homogeneous
from tests.support.thread_ranks import run_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gigl_loader.rpc.credentials import Caller
    from gigl_loader.rpc.endpoint import Endpoint


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graphs") / "graph"
    build_graph(tables_from_pyg(homogeneous()), path, num_partitions=2)
    return path


class Starts:
    """Two hosts with the addresses that they are told of, and what each starts its service with.

    No service comes up: nobody can listen on addresses of other machines.
    """

    def __init__(self, graph: Path, addresses: Sequence[str], machines: str = "aa") -> None:
        self.graph, self.addresses, self.machines = graph, addresses, machines
        self.services: dict[int, dict[str, Any]] = {}
        """By host index."""

    def open(self, *, starting: int = 2, **ways: Any) -> list[Any]:
        """Open the graph on both hosts, and return what each is told. ``starting`` hosts start a service."""
        meeting, begun = threading.Barrier(2), threading.Barrier(max(starting, 1))

        def meet(*holdings: Any) -> None:
            check_holdings(*holdings)
            meeting.wait(20)  # Else one could hear of the failure of the other before its own.

        def start(*_: Any, **options: Any) -> NoReturn:
            self.services[options["host_index"]] = options
            begun.wait(20)
            raise OSError("nobody listens in this test")

        def program(group: RankGroup) -> None:
            DistDataset.open(self.graph, partitions=group.rank, timeout=20, **ways)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(host_group, "own_address", self._own_address)
            patch.setattr(host_group, "machine_id", lambda: self.machines[_rank()])
            patch.setattr(host_group, "check_holdings", meet)
            patch.setattr(HostService, "start", start)
            return run_ranks(2, program, hosts=["a", "b"])

    def _own_address(self, towards: str) -> str:
        """Return the address towards the master, or another one towards what is no loopback address."""
        return "10.9.9.9" if towards == "10.0.0.2" else self.addresses[_rank()]


def _rank() -> int:
    group = RankGroup.current()
    assert group is not None
    return group.rank


@pytest.mark.parametrize(
    ("addresses", "rank", "expected"),
    [
        (["10.0.0.1", "10.0.0.2"], 0, "10.0.0.1"),
        (["127.0.0.1", "10.0.0.2"], 0, "10.9.9.9"),  # The master's name is loopback at home.
        (["127.0.0.1", "10.0.0.2"], 1, "10.0.0.2"),
        (["127.0.0.1", "127.0.0.1"], 1, "127.0.0.1"),  # Hosts in name only, on one machine.
    ],
)
def test_a_host_is_reached_by_an_address_that_others_can_use(
    graph: Path, addresses: list[str], rank: int, expected: str
) -> None:
    starts = Starts(graph, addresses)
    starts.open()
    assert starts.services[rank]["listen"] == f"{expected}:0"
    assert starts.services[rank]["advertise"] == expected


@pytest.mark.parametrize("elsewhere", ["127.0.0.1", "10.0.0.3"])
def test_a_loopback_address_is_none_for_another_machine(
    graph: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: str
) -> None:
    starts = Starts(graph, ["127.0.0.1", elsewhere], "ab")  # There is no way to the other one.
    rule = r"^the only address known of host 0 is 127\.0\.0\.1, .*MASTER_ADDR .*listen=.*advertise="
    first, _ = starts.open(starting=0 if elsewhere == "127.0.0.1" else 1)
    assert isinstance(first, ValueError)
    assert re.search(rule, str(first))
    assert 0 not in starts.services
    starts.open(listen="0.0.0.0:0")
    assert starts.services[0]["advertise"] == "127.0.0.1"


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
def test_others_come_to_the_address_that_is_listened_on(
    graph: Path, listen: str | None, expected: str
) -> None:
    starts = Starts(graph, ["10.1.0.1", "10.1.0.2"])
    starts.open(listen=listen)
    assert starts.services[0]["advertise"] == expected


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[Endpoint]:
    """Where hosts look for each other: each host checks every one."""
    found: list[Endpoint] = []

    def recorded(endpoint: Endpoint, caller: Caller, **options: Any) -> Any:
        found.append(endpoint)
        return check_peer(endpoint, caller, **options)

    monkeypatch.setattr(host_group, "check_peer", recorded)
    return found


def test_a_host_is_told_by_the_address_that_it_was_given(tmp_path: Path, checked: list[Endpoint]) -> None:
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph", num_partitions=2)

    def program(group: RankGroup) -> None:
        listen = f"127.0.0.{group.rank + 2}:0"
        with DistDataset.open(tmp_path / "graph", partitions=group.rank, listen=listen, timeout=20):
            pass

    assert run_ranks(2, program, hosts=["a", "b"]) == [None, None]
    told = sorted((endpoint.host_index, endpoint.host) for endpoint in checked)
    assert told == [(0, "127.0.0.2")] * 2 + [(1, "127.0.0.3")] * 2


@pytest.mark.some(1)
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize("after", ["told", "told all"])
def test_who_comes_when_the_others_have_given_up_does_not_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph", num_partitions=2)
    tell = Rendezvous.tell

    def comes_late(meeting: Rendezvous, step: str, value: Any) -> None:
        late = meeting.group.rank == 1 and step == "cache"  # The last step but one.
        if late and after == "told":
            meeting.group.collect("gave up", timeout=20, what="give up", ranks=[0])
        tell(meeting, step, value)
        if late and after == "told all":
            meeting.group.collect("gave up", timeout=20, what="give up", ranks=[0])

    monkeypatch.setattr(Rendezvous, "tell", comes_late)

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


@pytest.mark.parametrize(
    ("advertise", "encrypted"), [("127.0.0.1", False), ("10.0.0.1", True), ("host-1", True)]
)
def test_plain_text_stays_on_the_machine(graph: Path, advertise: str, encrypted: bool) -> None:
    starts = Starts(graph, ["10.0.0.1", "10.0.0.2"])
    starts.open(advertise=advertise)
    first, second = (starts.services[host]["credentials"] for host in range(2))
    assert bool(first.certificate) is encrypted
    assert first.token == second.token


def test_hosts_may_bring_their_own_certificates(tmp_path: Path, checked: list[Endpoint]) -> None:
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph", num_partitions=2)
    token = new_token()

    def program(group: RankGroup) -> int:
        credentials = Credentials.ephemeral(["127.0.0.1"], token=token)
        loading: dict[str, Any] = {"batch_size": 50, "num_workers": 1, "name": "train", "timeout": 20}
        with (
            DistDataset.open(
                tmp_path / "graph", partitions=group.rank, credentials=credentials, timeout=20
            ) as dataset,
            DistNeighborLoader(dataset, [3, 2], **loading) as loader,
        ):
            return len(list(loader))

    assert run_ranks(2, program, hosts=["a", "b"]) == [3, 3]
    assert len(checked) == 4
    assert all(endpoint.certificate for endpoint in checked)


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
