"""Servers that each hold the whole graph are one cluster from the start, however soon a trainer connects."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gigl_client import RemoteDistDataset
from gigl_loader.errors import StorageUnavailable
from gigl_loader.rpc.control import ClusterView
from gigl_loader.rpc.store_client import StoreClient
from gigl_server.config import ServeOptions
from gigl_server.local_cluster import LocalCluster
from gigl_server.server import StorageServer, build_storage_server
from tests.support.leftovers import wait_until
from tests.support.ports import free_port
from tests.support.store_graph import write_graph

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_leftovers")]

TRIES = 8


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("joining") / "graph")


def whole(graph: Path, port: int, *peers: int, **options: Any) -> StorageServer:
    addresses = tuple(f"127.0.0.1:{peer}" for peer in peers)
    return build_storage_server(
        ServeOptions(graph_dir=graph, listen=f"127.0.0.1:{port}", peers=addresses, workers=1, **options)
    )


def num_servers(*addresses: str, timeout: float = 60.0) -> int:
    """Connect to these addresses, and return how many servers the cluster has."""
    with RemoteDistDataset.connect(list(addresses), timeout=timeout) as dataset:
        return len(dataset._cluster.servers)


def knows(server: StorageServer) -> int:
    return len(server.parts.discovery.members)


def test_a_local_cluster_is_one_cluster_when_it_is_ready(graph: Path) -> None:
    for _ in range(TRIES):
        with LocalCluster(graph, servers=2, replicas=2) as cluster:
            assert num_servers(*cluster.addresses) == 2


def test_servers_that_start_together_are_one_cluster_when_they_are_ready(graph: Path) -> None:
    for _ in range(TRIES):
        one, other = free_port(count=2), free_port(count=2)
        with whole(graph, one, other), whole(graph, other, one):
            assert num_servers(f"127.0.0.1:{one}", f"127.0.0.1:{other}") == 2


def test_one_that_names_the_other_is_enough(graph: Path) -> None:
    one, other = free_port(count=2), free_port(count=2)
    with whole(graph, one) as first, whole(graph, other, one) as second:
        second.wait_ready(60)
        assert (knows(first), knows(second)) == (2, 2)


def test_one_that_comes_a_little_later_is_waited_for(graph: Path) -> None:
    one, other = free_port(count=2), free_port(count=2)
    with ExitStack() as stack:
        first = stack.enter_context(whole(graph, one, other))
        late = threading.Timer(1.0, lambda: stack.enter_context(whole(graph, other, one)))
        late.start()
        stack.callback(late.join)
        assert num_servers(f"127.0.0.1:{one}", f"127.0.0.1:{other}") >= 1
        late.join()
        assert wait_until(lambda: knows(first) == 2, seconds=60)


def test_one_that_comes_much_later_joins_and_is_used(graph: Path) -> None:
    """The first names the other, which names nobody: the first has to look for it."""
    one, other = free_port(count=2), free_port(count=2)
    with whole(graph, one, other) as first:
        first.wait_ready(60)
        assert first.parts.readiness.view().reason.startswith(f"waits for servers 127.0.0.1:{other} (")
        with RemoteDistDataset.connect(f"127.0.0.1:{one}", timeout=60) as dataset:
            assert len(dataset._cluster.servers) == 1
            with whole(graph, other) as second:
                second.wait_ready(60)
                assert wait_until(lambda: (knows(first), knows(second)) == (2, 2), seconds=60)
                assert wait_until(lambda: first.parts.readiness.view().reason == "", seconds=60)

                def seen() -> bool:
                    dataset.server_stats()
                    return len(dataset._cluster.servers) == 2

                assert wait_until(seen, seconds=60)


def test_a_view_that_is_still_joining_is_asked_again_until_the_timeout(graph: Path) -> None:
    one, other, nobody = free_port(count=2), free_port(count=2), free_port()
    addresses = f"127.0.0.1:{one}", f"127.0.0.1:{other}"
    with whole(graph, one, nobody) as first, whole(graph, other) as second:
        first.wait_ready(60)
        second.wait_ready(60)
        with pytest.raises(StorageUnavailable) as caught:
            num_servers(*addresses, timeout=1.0)
        told = str(caught.value)
        assert told.startswith("no storage cluster that is ready within 1 s: storage server at 127.0.0.1:")
        assert "is of another cluster" in told
        assert f"(one of them waits for servers 127.0.0.1:{nobody} (" in told
        meeting = threading.Timer(1.0, first.meet, ([addresses[1]],))
        meeting.start()
        assert num_servers(*addresses) == 2
        meeting.join()


def test_a_server_that_had_no_time_to_reply_is_not_taken_for_one_that_is_down(
    graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, nobody = free_port(count=2), free_port(count=2), free_port()
    ask, asked = StoreClient.cluster, set()

    def ask_slowly(client: StoreClient, timeout_s: float, **options: Any) -> ClusterView:
        """Reply, but not to a second call that has less time than the others."""
        is_late = client.endpoint in asked and timeout_s < 2
        asked.add(client.endpoint)
        if is_late and client.endpoint.control_port == other:
            raise StorageUnavailable("no time")
        return ask(client, timeout_s, **options)

    with whole(graph, one, nobody) as first, whole(graph, other) as second:
        first.wait_ready(60)
        second.wait_ready(60)
        monkeypatch.setattr(StoreClient, "cluster", ask_slowly)
        with pytest.raises(StorageUnavailable, match="is of another cluster"):
            num_servers(f"127.0.0.1:{one}", f"127.0.0.1:{other}", timeout=3.0)
