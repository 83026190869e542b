"""Storage servers in this process: how they come up, find each other, tell how they do, and end."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gigl_loader.errors import StorageUnavailable
from gigl_loader.rpc.credentials import Caller, Credentials
from gigl_loader.rpc.store_client import StoreClient
from gigl_loader.rpc.tokens import new_job
from gigl_server.admission import METRICS_PORT
from gigl_server.cluster.membership import Readiness
from gigl_server.cluster.peers import JoinRefused
from gigl_server.config import ServeOptions
from gigl_server.sampling.service import SamplingService
from gigl_server.server import StorageServer, build_storage_server
from tests.support.leftovers import wait_until
from tests.support.plans import neighbor_plan
from tests.support.store_graph import write_graph

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gigl_loader.rpc.endpoint import Endpoint

TOKEN = "a-token-for-tests-never-a-secret"
EDGE = ("node", "to", "node")
PLAN = neighbor_plan(
    seed_type="node", num_neighbors={EDGE: (3, 3)}, run_seed=7, node_columns={"node": ("x",)}, edge_columns={}
)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("store") / "graph")


def start(
    graph: Path, *partitions: int, credentials: Credentials | None = None, **options: Any
) -> StorageServer:
    settings = {
        "graph_dir": graph,
        "partitions": partitions,
        "listen": "127.0.0.1:0",
        "workers": 1,
        **options,
    }
    return build_storage_server(ServeOptions(**settings), credentials=credentials)


@pytest.fixture(scope="module")
def servers(graph: Path) -> Iterator[list[StorageServer]]:
    """Two servers that are ready. Only the second was told of the other; the first has metrics."""
    with ExitStack() as stack:
        first = stack.enter_context(start(graph, 0, metrics="127.0.0.1:0"))
        second = stack.enter_context(start(graph, 1, peers=(first.endpoint.control_address,)))
        for server in (first, second):
            server.wait_ready(30)
        yield [first, second]


def client_of(endpoint: Endpoint, caller: Caller | None = None, job: str = "") -> closing[StoreClient]:
    return closing(StoreClient(endpoint, caller or Caller(), job))


def health(server: StorageServer, service: str = "") -> int:
    with grpc.insecure_channel(server.endpoint.control_address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        status: int = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status
        return status


def fetch(server: StorageServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{server.metrics_address}{path}", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_servers_find_each_other_where_one_was_told(servers: list[StorageServer]) -> None:
    assert [server.endpoint.host_index for server in servers] == [0, 1]
    for server in servers:
        with client_of(server.endpoint) as client:
            view = client.cluster(10)
        assert view.ready
        assert view.reason == ""
        assert [each.partitions for each in view.servers] == [(0,), (1,)]
        assert [each.control_address for each in view.servers] == [
            each.endpoint.control_address for each in servers
        ]


def test_a_ready_server_says_so(servers: list[StorageServer]) -> None:
    assert health(servers[0]) == health_pb2.HealthCheckResponse.SERVING
    assert health(servers[0], "gigl.v1.GraphStore") == health_pb2.HealthCheckResponse.SERVING
    assert fetch(servers[0], "/healthz") == (200, "ready\n")


def test_metrics_tell_of_the_server_its_channels_and_its_peers(servers: list[StorageServer]) -> None:
    with client_of(servers[0].endpoint, job=new_job()) as client:
        with client_of(servers[0].endpoint) as stranger:
            digest = stranger.cluster(10).graph
        client.create_producer("key", PLAN.to_json(), digest, 10)
        client.open_channel("key", name="train rank 0", credit=4, timeout_s=10)
        status, text = fetch(servers[0], "/metrics")
        client.destroy_producer("key", 10)
    assert status == 200
    lines = text.splitlines()
    assert "gigl_ready 1.0" in lines
    assert "gigl_servers 2.0" in lines
    assert "gigl_channels 1.0" in lines
    [channel] = [line for line in lines if line.startswith("gigl_channel_batches_total{")]
    assert 'channel="key/train rank 0"' in channel
    assert any(line.startswith('gigl_peer_received_bytes_total{server="1"}') for line in lines)
    assert any(line.startswith("process_resident_memory_bytes") for line in lines)


def test_what_is_neither_metrics_nor_health_is_not_there(servers: list[StorageServer]) -> None:
    assert fetch(servers[0], "/etc/passwd")[0] == 404


def test_who_sends_a_byte_now_and_then_keeps_no_probe_out(
    servers: list[StorageServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gigl_server.ports.metrics.METRICS_PORT", replace(METRICS_PORT, first_s=0.3))
    host, _, port = servers[0].metrics_address.rpartition(":")
    with ExitStack() as stack:
        callers = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(8)]
        ended = threading.Event()

        def drip() -> None:
            while not ended.wait(0.05):
                for caller in callers:
                    with suppress(OSError):
                        caller.sendall(b"a")

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            assert fetch(servers[0], "/healthz")[0] == 200
        finally:
            ended.set()
            dripping.join()


def test_a_server_that_waits_is_not_ready_and_says_for_what(graph: Path) -> None:
    with start(graph, 0, peers=("127.0.0.1:1",), metrics="127.0.0.1:0") as server:
        assert not server.ready
        assert health(server) == health_pb2.HealthCheckResponse.NOT_SERVING
        assert health(server, "gigl.v1.Peer") == health_pb2.HealthCheckResponse.SERVING
        with client_of(server.endpoint) as client:
            assert wait_until(lambda: "nothing listens" in client.cluster(10).reason)
            view = client.cluster(10)
        assert view.reason.startswith("waits for partitions [1] (storage server at 127.0.0.1:1")
        assert fetch(server, "/healthz")[0] == 503
        with pytest.raises(TimeoutError, match=r"not ready after 0.05 s: waits for partitions \[1\]"):
            server.wait_ready(0.05)


def test_a_server_gives_up_after_its_time(graph: Path) -> None:
    with start(graph, 0, join_timeout_s=0.2) as server:
        with pytest.raises(
            StorageUnavailable, match=r"waits for partitions \[1\]: name another server by --peer"
        ):
            server.wait_ready(20)
        assert isinstance(server.failure, StorageUnavailable)


def test_another_graph_is_refused_by_name(servers: list[StorageServer], tmp_path: Path) -> None:
    other = write_graph(tmp_path / "other", seed=1)
    address = servers[0].endpoint.control_address
    with start(other, 1, peers=(address,)) as server, pytest.raises(JoinRefused) as caught:
        server.wait_ready(20)
    assert f"storage server at {address} has another graph: digest " in str(caught.value)
    assert servers[0].ready


def test_a_second_server_of_a_partition_joins_a_cluster_that_is_ready(graph: Path) -> None:
    """Its successor at another address, and what it announces later, are told as well."""
    with start(graph, 0, 1) as first, client_of(first.endpoint) as client:
        first.wait_ready(30)
        before = client.cluster(10)
        address = first.endpoint.control_address
        with start(graph, 0, peers=(address,)) as second, client_of(second.endpoint) as other:
            second.wait_ready(30)
            assert wait_until(lambda: len(client.cluster(10).servers) == 2, seconds=30)
            joined = client.cluster(10)
            assert joined.membership > before.membership
            assert wait_until(
                lambda: other.cluster(10).membership == client.cluster(10).membership, seconds=30
            )
            joined = client.cluster(10)
            assert [each.partitions for each in joined.servers] == [(0,), (0, 1)]
            second.parts.announce([0, 1])
            assert wait_until(lambda: client.cluster(10).membership > joined.membership, seconds=30)
            assert [each.partitions for each in client.cluster(10).servers] == [(0, 1), (0, 1)]


@pytest.mark.parametrize("mutual", [False, True])
def test_servers_show_each_other_token_and_certificate(graph: Path, *, mutual: bool) -> None:
    credentials = Credentials.ephemeral(["127.0.0.1"], token=TOKEN)
    if mutual:
        credentials = replace(credentials, client_authority=credentials.certificate)
    with ExitStack() as stack:
        first = stack.enter_context(start(graph, 0, credentials=credentials))
        address = first.endpoint.control_address
        second = stack.enter_context(start(graph, 1, credentials=credentials, peers=(address,)))
        for server in (first, second):
            server.wait_ready(30)


def test_a_certificate_for_another_name_is_told_at_once(
    graph: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start(graph, 0, 1, credentials=Credentials.ephemeral(["elsewhere.example"], token=TOKEN)) as server:
        server.wait_ready(30)
    assert "others will refuse this server" in caplog.text
    assert "is not good for '127.0.0.1'" in caplog.text


def test_a_server_with_another_token_is_refused(graph: Path) -> None:
    with start(graph, 0, credentials=Credentials(token=TOKEN)) as first:
        address = first.endpoint.control_address
        other = Credentials(token=TOKEN[::-1])
        with (
            start(graph, 1, credentials=other, peers=(address,)) as second,
            pytest.raises(JoinRefused, match="wrong token"),
        ):
            second.wait_ready(20)


def test_a_port_that_is_taken_is_named(servers: list[StorageServer], graph: Path) -> None:
    address = servers[0].endpoint.control_address
    options = ServeOptions(graph_dir=graph, partitions=(0,), listen=address)
    with pytest.raises(OSError, match=f"cannot listen on {address}"):
        build_storage_server(options, port_wait_s=0.05)


@pytest.mark.usefixtures("no_leftovers")
def test_a_drained_server_refuses_and_nothing_is_left_of_it(graph: Path) -> None:
    with start(graph, 0, 1, metrics="127.0.0.1:0") as server:
        server.wait_ready(30)
        assert server.drain(5)
        assert health(server) == health_pb2.HealthCheckResponse.NOT_SERVING
        assert fetch(server, "/healthz") == (503, "draining\n")
        with client_of(server.endpoint, job=new_job()) as client:
            view = client.cluster(10)
            assert (view.ready, view.reason) == (False, "draining")
            with pytest.raises(StorageUnavailable, match="draining"):
                client.create_producer("key", PLAN.to_json(), view.graph, 10)
    server.close()


def test_a_server_that_is_told_to_end_while_it_becomes_ready_does_not_serve(
    graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are about to tell the health: whoever comes last tells the truth."""
    ready, drained = threading.Event(), threading.Event()
    is_ready = Readiness.is_ready

    def slow(standing: Readiness, traffic: Any) -> None:
        is_ready(standing, traffic)
        ready.set()
        assert drained.wait(20)

    monkeypatch.setattr(Readiness, "is_ready", slow)
    with start(graph, 0, 1) as server:
        assert ready.wait(20)
        assert server.drain(5)
        drained.set()
        server.wait_ready(20)
        assert health(server) == health_pb2.HealthCheckResponse.NOT_SERVING


def test_a_server_that_drains_before_it_is_ready_samples_for_nobody(
    graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, drained = threading.Event(), threading.Event()
    make_ready = SamplingService.make_ready
    services: list[SamplingService] = []

    def slow(service: SamplingService, open_store: Any) -> None:
        make_ready(service, open_store)
        services.append(service)
        made.set()
        assert drained.wait(20)

    monkeypatch.setattr(SamplingService, "make_ready", slow)
    with start(graph, 0, 1) as server:
        assert made.wait(20)
        assert server.drain(5)
        drained.set()
        assert server.settled.wait(20)
        assert not server.ready
        assert [service.state for service in services] == ["draining"]


def test_no_partition_of_that_number(graph: Path) -> None:
    with pytest.raises(ValueError, match="partitions 7 do not lie at"):
        start(graph, 7)
