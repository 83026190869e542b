"""The last holder of a partition is lost: other servers say so to probes, and serve what they can."""

from __future__ import annotations

import urllib.error
import urllib.request
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gigl_client import RemoteDistDataset
from gigl_loader import DistNeighborLoader
from gigl_loader.rpc.credentials import Caller
from gigl_loader.rpc.store_client import StoreClient
from gigl_server.config import ServeOptions
from gigl_server.server import build_storage_server
from tests.support.clusters import READY_S
from tests.support.leftovers import wait_until
from tests.support.ports import free_port
from tests.support.store_graph import write_graph

if TYPE_CHECKING:
    from pathlib import Path

    from gigl_server.server import StorageServer

pytestmark = pytest.mark.usefixtures("no_leftovers")

SOON_S = 60.0


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("lost") / "graph")


def start(stack: ExitStack, graph: Path, partition: int, **options: object) -> StorageServer:
    settings = {"graph_dir": graph, "partitions": (partition,), "workers": 1, "metrics": "127.0.0.1:0"}
    return stack.enter_context(
        build_storage_server(ServeOptions(**settings | {"listen": "127.0.0.1:0"} | options))  # type: ignore[arg-type]
    )


def healthz(server: StorageServer) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{server.metrics_address}/healthz", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def serving(server: StorageServer) -> bool:
    with grpc.insecure_channel(server.endpoint.control_address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        status = stub.Check(health_pb2.HealthCheckRequest(service=""), timeout=10).status
        return bool(status == health_pb2.HealthCheckResponse.SERVING)


@pytest.mark.slow
@pytest.mark.parametrize("returns", ["started again", "taken over"])
def test_readiness_goes_and_comes_back_with_the_last_holder(graph: Path, returns: str) -> None:
    with ExitStack() as stack:
        first = start(stack, graph, 0)
        peers = (first.endpoint.control_address,)
        where = f"127.0.0.1:{free_port(count=2)}"  # Free still when it is started again.
        second = start(stack, graph, 1, listen=where, peers=peers)
        for server in (first, second):
            server.wait_ready(READY_S)
        lost = second.endpoint
        dataset = stack.enter_context(
            RemoteDistDataset.connect(
                [first.endpoint.control_address, lost.control_address], timeout=SOON_S, rows="through"
            )
        )
        own = dataset.fetch_node_ids()[0]
        # Without neighbours, batches of the nodes of partition 0 need no other.
        loader = stack.enter_context(DistNeighborLoader(dataset, [0], own, batch_size=10, timeout=SOON_S))
        batches = iter(loader)
        next(batches)
        client = stack.enter_context(closing(StoreClient(first.endpoint, Caller())))
        assert healthz(first) == (200, "ready\n")

        second.close()
        assert wait_until(lambda: healthz(first)[0] == 503, seconds=SOON_S)
        reason = healthz(first)[1]
        assert reason.startswith("no holder of partitions [1] is left: storage server 1 at")
        assert lost.control_address in reason
        assert reason.count("\n") == 1
        assert wait_until(lambda: not serving(first), seconds=SOON_S)
        load = client.load(10)
        assert (load.ready, load.reason) == (False, reason.strip())
        assert first.ready
        assert client.cluster(10).ready, "trainers that do not need the partition are served"
        assert next(batches) is not None
        assert sum(1 for _ in batches) == -(-len(own) // 10) - 2

        if returns == "taken over":
            client.adopt(1, 10, begin=True)
        else:
            start(stack, graph, 1, listen=lost.control_address, peers=peers).wait_ready(READY_S)
        assert wait_until(lambda: healthz(first) == (200, "ready\n"), seconds=SOON_S)
        assert wait_until(lambda: serving(first), seconds=SOON_S)
        assert client.load(10).ready
