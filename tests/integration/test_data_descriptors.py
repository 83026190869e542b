"""A storage server without a free descriptor: trainers that are connected go on, others come later."""

from __future__ import annotations

import os
import resource
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from gigl_client import Caller, RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.native import StreamError
from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.graph_requests import ManifestRequest, encode_graph_request
from gigl_server.local_cluster import LocalCluster
from tests.support.hostile_clients import HostileClient
from tests.support.leftovers import wait_until
from tests.support.raw_data import RawCaller, connected_socket
from tests.support.training import FANOUT, OPTIONS, digest

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "a-token-for-tests-never-a-secret"
DEADLINE = 60.0
PATIENT = OPTIONS | {"timeout": DEADLINE}
WATCHED_S = 3.0
BUSY = 0.7
"""Of a core, over what the server took for as long before."""
STRANGERS = 40
LEAST = 3
"""No descriptor that a process can open has a number below it."""


def served_again(data: str, seconds: float) -> bool:
    """Return whether a call over a new connection is answered in time."""

    def answered() -> bool:
        with suppress(StreamError), RawCaller(data, token=TOKEN) as caller:
            return bool(caller.ask(encode_graph_request(ManifestRequest(), ""), timeout_s=5.0))
        return False

    return wait_until(answered, seconds=seconds)


def data_address(control: str) -> str:
    with HostileClient(control, control, token=TOKEN) as caller:
        view = messages.ClusterView.FromString(caller.say("Cluster", b""))
    return f"127.0.0.1:{view.servers[0].data_port}"


def take_all_connections(data: str, stack: ExitStack) -> None:
    """Open connections, each with a token, until the server refuses one. ``stack`` closes them."""
    with suppress(StreamError):
        while True:
            caller = RawCaller(data, token=TOKEN)
            stack.callback(caller.close)
            assert caller.ask(encode_graph_request(ManifestRequest(), ""))


@pytest.mark.slow
def test_trainers_go_on_while_a_server_has_no_descriptor_left(graph: Path) -> None:
    options = OPTIONS | {"num_workers": 0}
    with DistNeighborLoader(DistDataset.open(graph), FANOUT, "train", **options) as loader:
        expected = [[digest(batch) for batch in loader] for _ in range(3)]
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(graph, servers=1, token=TOKEN))
        (control,), (pid,) = cluster.addresses, cluster.pids
        data = data_address(control)
        process = psutil.Process(pid)
        dataset = stack.enter_context(
            RemoteDistDataset.connect(
                control, credentials=Caller(token=TOKEN), timeout=DEADLINE, transport="network"
            )
        )
        loader = stack.enter_context(DistNeighborLoader(dataset, FANOUT, "train", **PATIENT))
        assert [digest(batch) for batch in loader] == expected[0]
        held = stack.enter_context(RawCaller(data, token=TOKEN))
        assert held.ask(encode_graph_request(ManifestRequest(), ""))

        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (LEAST, hard))
        for _ in range(STRANGERS):
            stack.enter_context(connected_socket(data))
        idle = sum(process.cpu_times()[:2])
        time.sleep(WATCHED_S)
        assert sum(process.cpu_times()[:2]) - idle < BUSY * WATCHED_S
        assert held.ask(encode_graph_request(ManifestRequest(), ""))
        assert [digest(batch) for batch in loader] == expected[1]

        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert served_again(data, DEADLINE)
        assert [digest(batch) for batch in loader] == expected[2]


@pytest.mark.slow
@pytest.mark.parametrize("refuses", [False, True])
def test_a_trainer_that_needs_more_connections_than_it_has_goes_on_with_those(
    graph: Path, refuses: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A server at its limit refuses connections: requests wait for those that are in use.

    One whose limit was lowered leaves them to the kernel: requests over them are lost.
    """
    options = OPTIONS | {"num_workers": 0}
    with DistNeighborLoader(DistDataset.open(graph), FANOUT, "train", **options) as loader:
        expected = [digest(batch) for batch in loader]
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(graph, servers=1, token=TOKEN))
        (control,), (pid,) = cluster.addresses, cluster.pids
        data = data_address(control)
        dataset = stack.enter_context(
            RemoteDistDataset.connect(
                control, credentials=Caller(token=TOKEN), timeout=DEADLINE, transport="network"
            )
        )
        one_at_a_time = DistNeighborLoader(dataset, FANOUT, "train", **PATIENT | {"num_workers": 0})
        assert [digest(batch) for batch in stack.enter_context(one_at_a_time)] == expected
        many_at_once = DistNeighborLoader(dataset, FANOUT, "train", **PATIENT | {"prefetch_size": 8})
        loader = stack.enter_context(many_at_once)

        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        limit = 1 + max(map(int, os.listdir(f"/proc/{pid}/fd"))) if refuses else LEAST
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
        if refuses:
            take_all_connections(data, stack)
        assert [digest(batch) for batch in loader] == expected
        lacked = "no further connection: calls wait" in caplog.text
        assert (lacked, loader.stats()["reconnects"] > 0) == (refuses, not refuses)
