"""Partitions that change hands: taken over by a running server, and pulled by one that starts."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from typer.testing import CliRunner

from gigl_client import RemoteDistDataset
from gigl_loader import DistNeighborLoader
from gigl_loader.cli.app import build_app
from gigl_loader.errors import SamplingError, StorageUnavailable
from gigl_loader.rpc.credentials import Caller, Credentials
from gigl_loader.rpc.store_client import StoreClient
from gigl_server.config import ServeOptions
from gigl_server.partitions.adoption import open_graph
from gigl_server.ports.admin import _is_own_address
from gigl_server.server import build_storage_server
from tests.support.clusters import READY_S, addresses_of, check_same, embedded, servers_of
from tests.support.command_line import COMMAND, address_in, line_with
from tests.support.leftovers import wait_until
from tests.support.pulled import flip, is_same
from tests.support.store_graph import write_graph

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gigl_loader.graph.graph import Graph
    from gigl_server.server import StorageServer

OPTIONS: dict[str, Any] = {"batch_size": 16, "num_neighbors": [4, 4], "shuffle": True, "seed": 5}
KEY = "k" * 40
TOPOLOGY = "part-00001/topology/node+to+node.safetensors"


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("adoption") / "graph")


@pytest.fixture(scope="module")
def expected(graph: Path) -> list[Any]:
    return embedded(graph, **OPTIONS)


@pytest.fixture
def half(graph: Path, tmp_path: Path) -> Path:
    """The graph without partition 1."""
    path = Path(shutil.copytree(graph, tmp_path / "half"))
    shutil.rmtree(path / "part-00001")
    return path


@contextmanager
def client_of(server: StorageServer, caller: Caller | None = None) -> Iterator[StoreClient]:
    with closing(StoreClient(server.endpoint, caller or Caller())) as client:
        yield client


def adopted(client: StoreClient, partition: int, **given: Any) -> Any:
    """Have a partition taken over, and return the last state."""
    assert client.adopt(partition, 10, begin=True, **given).step != "failed"

    def ended() -> bool:
        return client.adopt(partition, 10, begin=False, **given).step in ("held", "failed")

    assert wait_until(ended, seconds=30)
    return client.adopt(partition, 10, begin=False, **given)


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(build_app(), list(arguments))
    return result.exit_code, result.stdout, result.stderr


def batches_of(addresses: Sequence[str]) -> list[Any]:
    with (
        RemoteDistDataset.connect(addresses, timeout=60) as dataset,
        DistNeighborLoader(dataset, **OPTIONS) as loader,
    ):
        return list(loader)


@pytest.mark.parametrize("transport", ["ring", "flight"])
def test_a_partition_is_taken_over_under_load(
    graph: Path, half: Path, expected: list[Any], transport: Literal["ring", "flight"]
) -> None:
    """Batches under way, those after it and those that the other server draws meanwhile stay the same.

    Running trainers use the new holder at once: the old one may go.
    """
    with (
        servers_of(graph, 2, special={0: {"graph_dir": half}, 1: {"topology": "all"}}) as servers,
        RemoteDistDataset.connect(addresses_of(servers), timeout=60, transport=transport) as dataset,
        DistNeighborLoader(dataset, **OPTIONS) as loader,
        client_of(servers[0]) as client,
    ):
        states: list[str] = []

        def adopt() -> None:
            states.append(adopted(client, 1).step)

        thread = threading.Thread(target=adopt)
        check_same(list(loader), expected)
        thread.start()
        while thread.is_alive():
            loader.set_epoch(0)
            check_same(list(loader), expected)
        thread.join()
        assert states == ["held"]
        assert client.cluster(10).partitions == (0, 1)
        assert adopted(client, 1).step == "held"  # Again: nothing happens.
        loader.set_epoch(0)
        batches = iter(loader)
        found = list(islice(batches, 2))
        servers[1].close()
        found += batches
        check_same(found, expected)
        check_same(batches_of(addresses_of(servers[:1])), expected)
    assert is_same(half, graph)


def test_a_survivor_takes_over_what_a_dead_server_held_on_shared_storage(
    graph: Path, expected: list[Any]
) -> None:
    """It lies there: nothing is pulled. A trainer that waits for the dead server goes on by itself."""
    with (
        servers_of(graph, 2) as servers,
        RemoteDistDataset.connect(addresses_of(servers), timeout=60, transport="flight") as dataset,
        DistNeighborLoader(dataset, **OPTIONS) as loader,
        client_of(servers[0]) as client,
    ):
        batches = iter(loader)
        found = list(islice(batches, 2))
        servers[1].close()
        assert adopted(client, 1).step == "held"
        assert client.cluster(10).partitions == (0, 1)
        found += batches
        check_same(found, expected)
        check_same(batches_of(addresses_of(servers[:1])), expected)


def test_one_of_three_servers_takes_over_what_it_lacks_and_outlives_the_others(tmp_path: Path) -> None:
    """Three servers with two copies of each partition, and trainers that run all the while."""
    graph = write_graph(tmp_path / "three", num_partitions=3)
    expected = embedded(graph, **OPTIONS)
    path = Path(shutil.copytree(graph, tmp_path / "first"))
    shutil.rmtree(path / "part-00002")
    special: dict[int, dict[str, Any]] = {
        0: {"graph_dir": path, "partitions": (0, 1)},
        1: {"partitions": (1, 2)},
        2: {"partitions": (0, 2)},
    }
    with ExitStack() as stack:
        servers = stack.enter_context(servers_of(graph, 3, special=special))
        client = stack.enter_context(client_of(servers[0]))
        loaders = []
        ways: tuple[Literal["ring", "flight"], ...] = ("ring", "flight")
        for transport in ways:
            dataset = stack.enter_context(
                RemoteDistDataset.connect(addresses_of(servers), timeout=60, transport=transport)
            )
            loaders.append(stack.enter_context(DistNeighborLoader(dataset, **OPTIONS)))
        epochs = [iter(loader) for loader in loaders]
        found = [list(islice(batches, 2)) for batches in epochs]
        assert adopted(client, 2).step == "held"
        for server in servers[1:]:
            for batches, seen in zip(epochs, found, strict=True):
                seen.extend(islice(batches, 1))
            server.close()
        for batches, seen in zip(epochs, found, strict=True):
            seen.extend(batches)
            check_same(seen, expected)
    assert is_same(path, graph)


@pytest.mark.slow
def test_servers_and_trainers_may_join_while_holdings_change(graph: Path, expected: list[Any]) -> None:
    """A server that gains and gives up a partition all the while is met as it is by now."""
    with ExitStack() as stack:
        servers = stack.enter_context(servers_of(graph, 2, special={0: {"partitions": (0, 1)}}))
        address = addresses_of(servers[:1])[0]
        ended = threading.Event()
        changes: list[int] = []

        def change() -> None:
            while not ended.is_set():
                servers[0].parts.holdings.withdraw([1])
                servers[0].parts.holdings.gain([1])
                changes.append(1)

        thread = threading.Thread(target=change)
        stack.callback(thread.join)
        stack.callback(ended.set)
        assert wait_until(lambda: len(servers[0].parts.discovery.members) == 2, seconds=READY_S)
        thread.start()
        for _ in range(4):
            with holder(graph, peers=(address,)) as newcomer:
                newcomer.wait_ready(READY_S)
                check_same(batches_of([address]), expected)
        assert len(changes) > 4


def test_a_server_that_changed_since_it_was_found_is_asked_again(graph: Path) -> None:
    with servers_of(graph, 2) as servers:
        before = replace(servers[1].endpoint, partitions=(0, 1))
        with pytest.raises(StorageUnavailable, match="holds other partitions since just now"):
            servers[0].parts.peer_client.check(before, 10)


def test_what_cannot_be_taken_over_is_told_in_one_line(graph: Path, half: Path) -> None:
    with servers_of(graph, 2, special={0: {"graph_dir": half}}) as servers, client_of(servers[0]) as client:
        with pytest.raises(ValueError, match="no partition 7 in a graph of 2"):
            client.adopt(7, 10, begin=True)
        assert client.adopt(1, 10, begin=False).error == "it was not begun"
        servers[1].close()
        state = adopted(client, 1)
        assert state.step == "failed"
        assert "no other server that holds partition 1" in state.error
        assert "\n" not in state.error
        assert servers[0].ready
        assert not (half / "part-00001").exists()


def test_a_command_has_a_server_take_over_a_partition(graph: Path, half: Path) -> None:
    with servers_of(graph, 2, special={0: {"graph_dir": half}}) as servers:
        address = addresses_of(servers)[0]
        assert invoke("adopt", address, "1") == (0, f"storage server at {address} holds partition 1\n", "")
        code, _, error = invoke("adopt", address, "2")
        assert (code, error.count("\n")) == (2, 1)
        assert "no partition 2 in a graph of 2" in error


def test_only_who_has_the_cluster_key_may(graph: Path, half: Path, tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(KEY)
    key_file.chmod(0o600)
    keyed: dict[str, Any] = {"cluster_key_file": str(key_file)}
    with (
        servers_of(graph, 2, special={0: {"graph_dir": half}}, **keyed) as servers,
        client_of(servers[0]) as client,
    ):
        for key in ("", "x" * 40):
            with pytest.raises(ValueError, match="this call takes the cluster key of the servers"):
                client.adopt(1, 10, begin=True, cluster_key=key)
        assert not (half / "part-00001").exists()
        assert adopted(client, 1, cluster_key=KEY).step == "held"
        code, _, error = invoke("adopt", addresses_of(servers)[0], "1")
        assert (code, "this call takes the cluster key" in error) == (2, True)
        assert invoke("adopt", addresses_of(servers)[0], "1", "--cluster-key-file", str(key_file))[0] == 0


@pytest.mark.parametrize(
    ("peer", "own"),
    [
        ("ipv4:127.0.0.1:4711", True),
        ("ipv6:%5B::1%5D:4711", True),
        ("ipv4:192.0.2.7:4711", False),
        ("ipv6:%5B2001:db8::7%5D:4711", False),
        ("unix:/tmp/x", False),
        ("", False),
        ("ipv4:nonsense:1", False),
    ],
)
def test_without_a_key_callers_of_this_host_may(peer: str, *, own: bool) -> None:
    if "::1" in peer and not Path("/proc/net/if_inet6").exists():
        own = False  # No IPv6 on this machine.
    assert _is_own_address(peer) is own


def test_files_are_pulled_over_tls_with_a_token(graph: Path, half: Path) -> None:
    token = "a-token-for-tests-never-a-secret"
    credentials = Credentials.ephemeral(["127.0.0.1"], token=token)
    options: dict[str, Any] = {"listen": "127.0.0.1:0", "workers": 1}
    with ExitStack() as stack:
        servers: list[StorageServer] = []
        for path, part in ((half, 0), (graph, 1)):
            given = ServeOptions(
                graph_dir=path, partitions=(part,), peers=tuple(addresses_of(servers)), **options
            )
            servers.append(stack.enter_context(build_storage_server(given, credentials=credentials)))
        for server in servers:
            server.wait_ready(READY_S)
        with (
            client_of(servers[0], Caller(token=token[::-1], authority=credentials.trusted)) as stranger,
            pytest.raises(SamplingError, match="wrong token"),
        ):
            stranger.adopt(1, 10, begin=True)
        with client_of(servers[0], credentials.caller()) as client:
            assert adopted(client, 1).step == "held"
    assert is_same(half, graph)


# A server that pulls what it is to serve before it starts.


@contextmanager
def serving(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    command = [*COMMAND, "serve", *arguments, "--listen", "127.0.0.1:0", "--workers", "1"]
    process = subprocess.Popen(command, text=True, stderr=subprocess.PIPE, **options)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=20)


def holder(graph: Path, **options: Any) -> StorageServer:
    """Return a server of the whole graph."""
    settings: dict[str, Any] = {"graph_dir": graph, "listen": "127.0.0.1:0", "workers": 1, **options}
    return build_storage_server(ServeOptions(**settings))


def pulled(path: Path, *, adopt: tuple[int, ...], peers: tuple[str, ...] = (), **more: Any) -> Graph:
    """Open a folder as ``serve --adopt`` does before it binds a port."""
    options = ServeOptions(graph_dir=path, adopt=adopt, peers=peers, listen="127.0.0.1:0", **more)
    return open_graph(options, Credentials(token=""))


@pytest.fixture(scope="module")
def source(graph: Path) -> Iterator[str]:
    """The address of a server of the whole graph."""
    with holder(graph) as found:
        found.wait_ready(READY_S)
        yield found.endpoint.control_address


def test_a_server_starts_in_an_empty_folder(
    graph: Path, tmp_path: Path, expected: list[Any], source: str
) -> None:
    with serving(str(tmp_path / "new"), "--adopt", "0,1", "--peer", source) as process:
        line_with(process, "partition 1: 2 files are pulled from")
        address = address_in(line_with(process, "ready"))
        check_same(batches_of([address]), expected)
    assert is_same(tmp_path / "new", graph)


def test_a_server_that_starts_pulls_the_topology_of_the_other_partitions(
    graph: Path, tmp_path: Path, source: str
) -> None:
    found = pulled(tmp_path / "new", adopt=(1,), peers=(source,), topology="all")
    assert (found.parts, found.topology_parts) == ((1,), (0, 1))
    missing = {path.relative_to(graph).as_posix() for path in graph.rglob("*") if path.is_file()}
    missing -= {path.relative_to(tmp_path / "new").as_posix() for path in (tmp_path / "new").rglob("*")}
    assert missing == {"part-00000/nodes/node.safetensors"}


def test_a_damaged_folder_is_mended_before_it_is_served(graph: Path, tmp_path: Path, source: str) -> None:
    path = Path(shutil.copytree(graph, tmp_path / "damaged"))
    flip(path / TOPOLOGY, -1)
    with pytest.raises(
        StorageUnavailable, match="is missing or damaged, and no other server that holds partition 1"
    ):
        pulled(path, adopt=(1,))
    assert pulled(path, adopt=(1,), peers=(source,)).parts == (1,)
    assert is_same(path, graph)
    assert pulled(path, adopt=(0, 1)).parts == (0, 1)  # It lies there: no other server is needed.


@pytest.mark.parametrize(
    ("adopt", "peer", "error"),
    [
        (0, "", ValueError("has no graph.json, and no --peer is given to pull it from")),
        (0, "127.0.0.1:1", StorageUnavailable("no other server is known: storage server at")),
        (9, "SOURCE", ValueError("no partition 9 in a graph of 2")),
    ],
)
def test_what_cannot_be_pulled_is_told(
    tmp_path: Path, source: str, adopt: int, peer: str, error: Exception
) -> None:
    peers = (peer.replace("SOURCE", source),) if peer else ()
    with pytest.raises(type(error), match=str(error)):
        pulled(tmp_path / "new", adopt=(adopt,), peers=peers)


def test_parts_of_another_graph_are_not_pulled(tmp_path: Path, source: str) -> None:
    other = write_graph(tmp_path / "other", seed=1)
    shutil.rmtree(other / "part-00001")
    with pytest.raises(StorageUnavailable, match="has another graph: digest"):
        pulled(other, adopt=(1,), peers=(source,))
    assert not (other / "part-00001").exists()


def test_a_full_disk_is_one_line_and_leaves_nothing(half: Path, source: str) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    with serving(str(half), "--adopt", "1", "--peer", source, preexec_fn=limit) as process:
        _, error = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "cannot be written: File too large" in error.splitlines()[-1]
    assert [each for each in half.rglob("part-00001/**/*") if each.is_file()] == []


def test_a_pull_that_is_killed_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL in the middle of a file. The source is slow, so that there is a middle."""
    graph = write_large(tmp_path / "graph")
    from gigl_loader.graph.folder import DiskFolder

    read = DiskFolder.read
    began = threading.Semaphore(0)

    def slow(folder: DiskFolder, name: str, first: int, count: int) -> Any:
        if folder.path == graph:
            began.release()
            time.sleep(0.3)
        return read(folder, name, first, count)

    new = tmp_path / "new"
    with holder(graph) as source:
        source.wait_ready(READY_S)
        arguments = (str(new), "--adopt", "0", "--peer", source.endpoint.control_address)
        with monkeypatch.context() as patch:
            patch.setattr(DiskFolder, "read", slow)
            with serving(*arguments) as process:
                assert wait_until(lambda: written(new) > 8 << 20, seconds=30)
                process.send_signal(signal.SIGKILL)
                process.wait(20)
        left = written(new)
        assert not (new / "graph.json").exists()
        assert [each for each in new.rglob("*.safetensors") if each.is_file()] == []
        pulled(new, adopt=(0,), peers=(source.endpoint.control_address,))
    assert left > 8 << 20
    assert is_same(new, graph)


def written(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob(".*.pull"))


def write_large(path: Path) -> Path:
    """Write a graph of one partition with features of 40 MB."""
    import numpy as np

    from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph

    nodes = ArrayTable("nodes", {"id": np.arange(10_000), "x": np.ones((10_000, 1000), np.float32)})
    edges = ArrayTable("edges", {"src": np.arange(100), "dst": np.arange(100)})
    tables = GraphTables(edges={("node", "to", "node"): edges}, nodes={"node": NodeTable(nodes)})
    build_graph(tables, path, num_partitions=1)
    return path
