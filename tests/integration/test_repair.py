"""Damage of files of running servers: pulled again from another holder, while batches stay right."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import urllib.request
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_client import RemoteDistDataset
from gigl_loader import DistNeighborLoader
from gigl_loader.errors import FormatError
from gigl_loader.graph.folder import DiskFolder
from gigl_loader.graph.verifier import LazyVerifier
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.rpc.credentials import Caller
from gigl_loader.rpc.store_client import StoreClient
from gigl_server.config import ServeOptions
from gigl_server.partitions import repair
from gigl_server.server import build_storage_server
from tests.support.clusters import READY_S, addresses_of, check_same, embedded
from tests.support.leftovers import wait_until
from tests.support.pulled import flip, is_same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from gigl_loader.rpc.control import ClusterView
    from gigl_server.server import StorageServer

OPTIONS: dict[str, Any] = {"batch_size": 64, "num_neighbors": [4, 4], "shuffle": True, "seed": 5}
NODES = 3000
FEATURES = "part-00001/nodes/node.safetensors"
TOPOLOGY = "part-00001/topology/node+to+node.safetensors"
IDS = "ids/node.safetensors"


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two partitions, with node ids of their own; the features of each have 3 blocks."""
    path = tmp_path_factory.mktemp("repair") / "graph"
    random = np.random.default_rng(0)
    ids = random.permutation(NODES) * 5
    src, dst = ids[random.integers(0, NODES, (2, 10 * NODES))]
    nodes = ArrayTable("nodes", {"id": ids, "x": random.random((NODES, 400), dtype=np.float32)})
    edges = ArrayTable("edges", {"src": src, "dst": dst})
    tables = GraphTables(edges={("node", "to", "node"): edges}, nodes={"node": NodeTable(nodes)})
    build_graph(tables, path, num_partitions=2)
    return path


@pytest.fixture(scope="module")
def expected(graph: Path) -> list[Any]:
    return embedded(graph, **OPTIONS)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "_LONGEST_AGAIN_S", 1.0)
    scrub = LazyVerifier.scrub
    monkeypatch.setattr(LazyVerifier, "scrub", lambda each, rate, every_s: scrub(each, rate, every_s=0.05))


@contextmanager
def served(*holders: tuple[Path, tuple[int, ...]], topology: str = "own") -> Iterator[list[StorageServer]]:
    """Serve partitions from folders, each from a server of its own that knows the others."""
    with ExitStack() as stack:
        servers: list[StorageServer] = []
        for path, parts in holders:
            options = ServeOptions(
                graph_dir=path,
                partitions=parts,
                topology=topology,
                listen="127.0.0.1:0",
                metrics="127.0.0.1:0",
                workers=1,
                scrub_rate=200 << 20,
                peers=tuple(addresses_of(servers)),
            )
            servers.append(stack.enter_context(build_storage_server(options)))
        for server in servers:
            server.wait_ready(READY_S)
        assert wait_until(lambda: all(knows(each, len(servers)) for each in servers), seconds=READY_S)
        yield servers


def knows(server: StorageServer, count: int) -> bool:
    """Return whether a server knows so many servers. One that has all partitions is ready before."""
    return len(view_of(server).servers) == count


def view_of(server: StorageServer) -> ClusterView:
    with closing(StoreClient(server.endpoint, Caller())) as client:
        return client.cluster(10)


def pair(first: Path, second: Path) -> AbstractContextManager[list[StorageServer]]:
    """Serve partitions 0 and 1 from one folder, and 1 from another."""
    return served((first, (0, 1)), (second, (1,)))


@contextmanager
def loader_of(server: StorageServer, **ways: Any) -> Iterator[DistNeighborLoader]:
    with (
        RemoteDistDataset.connect([server.endpoint.control_address], timeout=60, **ways) as dataset,
        DistNeighborLoader(dataset, **OPTIONS) as loader,
    ):
        yield loader


def metric(server: StorageServer, name: str) -> float:
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def is_repaired(server: StorageServer, times: int = 1) -> bool:
    return wait_until(lambda: metric(server, "gigl_repairs_total") == times, seconds=30)


HARM: dict[str, tuple[str, Callable[[Path], None]]] = {
    "features": (FEATURES, lambda file: flip(file, 1_500_000)),
    "topology": (TOPOLOGY, lambda file: flip(file, -100)),
    "ids": (IDS, lambda file: flip(file, -9)),
    "cut": (FEATURES, lambda file: os.truncate(file, file.stat().st_size - 4096)),
}


@pytest.mark.some(1)
@pytest.mark.parametrize("harm", ["features", "topology", "ids"])
def test_damage_is_repaired_and_batches_stay_right(
    graph: Path, tmp_path: Path, expected: list[Any], harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the server that both draws batches and holds the damaged file."""
    caplog.set_level(logging.INFO)
    path = Path(shutil.copytree(graph, tmp_path / "first"))
    name, damage = HARM[harm]
    with pair(path, graph) as (server, _):
        with loader_of(server) as loader:
            check_same(list(loader), expected)
            damage(path / name)
            assert is_repaired(server)
            loader.set_epoch(0)
            check_same(list(loader), expected)
        assert server.failure is None
        assert server.ready
        assert server.parts.holdings.graph.parts == (0, 1)
        assert 0 < metric(server, "gigl_repaired_bytes_total") <= 1 << 20
    assert is_same(path, graph)
    [found] = [each for each in caplog.messages if each.startswith("damage found, to be repaired")]
    assert name in found
    assert sum(each.startswith("repaired in") for each in caplog.messages) == 1


def test_damaged_topology_of_a_partition_held_elsewhere_is_repaired(
    graph: Path, tmp_path: Path, expected: list[Any]
) -> None:
    path = Path(shutil.copytree(graph, tmp_path / "first"))
    shutil.rmtree(path / "part-00001" / "nodes")
    with served((path, (0,)), (graph, (0, 1)), topology="all") as (server, _), loader_of(server) as loader:
        flip(path / TOPOLOGY, -100)
        assert is_repaired(server)
        check_same(list(loader), expected)
        held = server.parts.holdings.graph
        assert (held.parts, held.topology_parts) == ((0,), (0, 1))
    assert (path / TOPOLOGY).read_bytes() == (graph / TOPOLOGY).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("ways", [{"transport": "ring"}, {"transport": "flight", "rows": "direct"}])
def test_batches_come_from_the_other_copy_until_the_damaged_one_is_repaired(
    graph: Path, tmp_path: Path, expected: list[Any], ways: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three servers, two copies of each partition. The repair lasts for as long as the test holds it up."""
    path = Path(shutil.copytree(graph, tmp_path / "first"))
    read, go_on = DiskFolder.read, threading.Event()

    def held_up(folder: DiskFolder, name: str, first: int, count: int) -> Any:
        if folder.path == graph:  # The other copy, on its way to the damaged one.
            assert go_on.wait(60)
        return read(folder, name, first, count)

    with served((path, (0, 1)), (graph, (1,)), (graph, (0,))) as servers:
        first, second, third = servers
        with loader_of(third, **ways) as loader:
            check_same(list(loader), expected)
            with monkeypatch.context() as patch:
                patch.setattr(DiskFolder, "read", held_up)
                flip(path / FEATURES, 1_500_000)
                assert wait_until(lambda: view_of(first).repairing == (1,), seconds=30)
                assert view_of(first).partitions == (0,)
                loader.set_epoch(0)
                check_same(list(loader), expected)
                go_on.set()
                assert is_repaired(first)
            assert (view_of(first).partitions, view_of(first).repairing) == ((0, 1), ())
            loader.set_epoch(0)
            batches = iter(loader)
            found = list(islice(batches, 2))
            second.close()  # The repaired copy is the last one now.
            found += batches
            check_same(found, expected)
    assert is_same(path, graph)


def test_batches_are_right_while_damage_comes_again_and_again(
    graph: Path, tmp_path: Path, expected: list[Any]
) -> None:
    """A batch that was drawn from damaged bytes after they were found is drawn again.

    Damage is told to the verifier before the bytes change, as no scrub can find it sooner.
    """
    path = Path(shutil.copytree(graph, tmp_path / "first"))
    with pair(path, graph) as (server, _), loader_of(server) as loader:
        for times in range(1, 3):
            loader.set_epoch(0)
            found = []
            for number, batch in enumerate(loader):
                found.append(batch)
                if number == 20:
                    verifier: Any = server.parts.holdings.graph.verifier
                    verifier._state.damage[FEATURES] = f"{FEATURES}: told by the test"
                    for block in range(3):
                        flip(path / FEATURES, 40_000 + (block << 20))
            check_same(found, expected)
            assert is_repaired(server, times)
    assert is_same(path, graph)


def test_a_truncated_file_is_repaired(graph: Path, tmp_path: Path, expected: list[Any]) -> None:
    """No batch is drawn meanwhile: reading behind the new end would end the process."""
    path = Path(shutil.copytree(graph, tmp_path / "first"))
    name, damage = HARM["cut"]
    with pair(path, graph) as (server, _):
        server.parts.holdings.graph.verifier.close()  # Not the scrubber, for the same reason.
        damage(path / name)
        assert is_repaired(server)
        with loader_of(server) as loader:
            check_same(list(loader), expected)
    assert is_same(path, graph)


def test_replicas_that_are_damaged_in_different_blocks_repair_each_other(graph: Path, tmp_path: Path) -> None:
    first, second = (Path(shutil.copytree(graph, tmp_path / name)) for name in ("first", "second"))
    with pair(first, second) as servers:
        flip(first / FEATURES, 1000)
        flip(second / FEATURES, -1000)
        for server in servers:
            assert is_repaired(server)
    assert is_same(first, graph)
    assert is_same(second, graph)


@pytest.mark.slow
def test_a_replica_that_is_damaged_in_the_same_block_is_no_help(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(repair, "_GIVE_UP_S", 3.0)
    first, second = (Path(shutil.copytree(graph, tmp_path / name)) for name in ("first", "second"))
    with pair(first, second) as (server, _):
        flip(first / FEATURES, 1000)
        flip(second / FEATURES, 2000)
        assert server.failed.wait(30)
        assert isinstance(server.failure, FormatError)
        assert f"{FEATURES}: bytes 0 to 1048575 do not match their checksum" in str(server.failure)
        assert not server.ready
    assert any("is damaged at" in each for each in caplog.messages)
    assert not [each for each in first.rglob("*.safetensors") if is_same_file(each, second)]


def is_same_file(file: Path, other: Path) -> bool:
    """Return whether the damaged file of the other folder took the place of this one."""
    return file.match(f"*/{FEATURES}") and file.read_bytes() == (other / FEATURES).read_bytes()


def test_without_another_holder_a_server_ends_by_name(graph: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(graph, tmp_path / "graph"))
    options = ServeOptions(graph_dir=path, listen="127.0.0.1:0", workers=1, scrub_rate=200 << 20)
    with build_storage_server(options) as server:
        server.wait_ready(READY_S)
        flip(path / FEATURES, 1000)
        assert server.failed.wait(30)
        assert f"{FEATURES}: bytes 0 to 1048575 do not match" in str(server.failure)
