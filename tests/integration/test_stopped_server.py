"""A storage server that is stopped (SIGSTOP): whoever waits for it is freed once another has answered."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest

from gigl_client import RemoteDistDataset
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.rpc.holders import Holders
from gigl_loader.rpc.remote_store import RemoteStore
from gigl_loader.sampling.store import FeatureRequest
from gigl_server.local_cluster import LocalCluster
from tests.support.leftovers import wait_until
from tests.support.pyg_graphs import homogeneous

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gigl_loader.rpc.endpoint import Endpoint

pytestmark = pytest.mark.usefixtures("no_leftovers")

DEADLINE = 60.0
CALLS = 40
MORE = CALLS // 4
"""Threads and connections that may be added. A call that starts before the last one has given back its own
takes another of each, which stays; a leak would leave one for each call."""


class Unavoidable(Holders):
    """Holders that are asked in one order, whether they answered before or not."""

    def of(self, partition: int | None) -> tuple[Endpoint, ...]:
        return self.holding(partition)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graphs") / "graph"
    build_graph(tables_from_pyg(homogeneous(300, 2_000)), path, num_partitions=3)
    return path


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_threads_and_descriptors_stay_as_they_are_over_many_hedged_calls(
    graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gigl_loader.rpc.calls._STALLED_S", 0.05)
    here = psutil.Process()
    request = FeatureRequest(kind="node", columns=("x",), rows=np.arange(50, dtype=np.int64))
    with (
        LocalCluster(graph, servers=3, replicas=2) as cluster,
        RemoteDistDataset.connect(cluster.addresses, timeout=DEADLINE) as dataset,
    ):
        replicas = dataset._cluster.open_replicas(timeout_s=DEADLINE)
        replicas.holders = Unavoidable(replicas.holders.endpoints, key="")
        first = replicas.holders.holding(0)[0].control_address
        store = RemoteStore(replicas.connection(0), schema=dataset.schema, digest=dataset.graph_digest)

        def gather() -> bytes:
            out = np.zeros((50, dataset.schema.nodes["node"].columns["x"].row_bytes), np.uint8)
            store.gather(request, np.arange(50, dtype=np.int64), [out])
            return out.tobytes()

        expected = gather()
        with stopped(cluster.pids[cluster.addresses.index(first)]):
            assert gather() == expected  # Starts the threads and connections that a hedged call needs.
            threads = threading.active_count() + MORE
            files = here.num_fds() + MORE
            for _ in range(10 * CALLS):  # On a busy machine, one may be given up instead.
                assert gather() == expected
                if store.wire().hedged > CALLS:
                    break
            assert store.wire().hedged > CALLS
            assert wait_until(lambda: threading.active_count() <= threads, seconds=DEADLINE)
            assert wait_until(lambda: here.num_fds() <= files, seconds=DEADLINE)
        assert wait_until(lambda: gather() == expected, seconds=DEADLINE)
        store.close()
        replicas.close()
