"""Memory of a server by kind of object: what samplers tell is right, and all kinds add up to what is held."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.graph.graph import Graph
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.sampling.partitioned import PartitionedStore
from gigl_server.memory import MemoryAccount, ProcessMemory
from tests.integration.test_kinds_of_plans import KINDS, OPTIONS, tables_of
from tests.support.leftovers import wait_until
from tests.support.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

NODES, EDGES = 20_000, 300_000
SERVE = "from gigl_loader.cli import main; main()"


def random_data(**columns: Any) -> Data:
    random = torch.Generator().manual_seed(0)
    index = torch.randint(NODES, (2, EDGES), generator=random)
    return Data(edge_index=index, y=torch.arange(NODES) % 4, **columns)


# --- scratch memory of samplers


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    random = torch.Generator().manual_seed(0)
    data = random_data(
        x=torch.randn(NODES, 8),
        edge_attr=torch.randn(EDGES, 2),
        w=torch.rand(EDGES, generator=random),
        t=torch.randint(0, 100, (EDGES,), generator=random),
        born=torch.randint(0, 100, (NODES,), generator=random),
    )
    path = tmp_path_factory.mktemp("memory") / "graph"
    build_graph(tables_of(data, hetero=False), path, num_partitions=2)
    return Graph.open(path)


@pytest.mark.slow
@pytest.mark.skipif(not ProcessMemory.read().in_use, reason="the C library does not count its blocks")
@pytest.mark.parametrize("over", ["graph", "store"])
@pytest.mark.parametrize("kind", KINDS)
def test_samplers_of_every_kind_tell_their_memory(graph: Graph, kind: str, over: str) -> None:
    """It is what is freed with them. Lists that are made from the files are the graph's."""
    given = KINDS[kind]
    options = {**OPTIONS, **given.options, "batch_size": 2_000, "num_workers": 0}
    if "input_time" in options:
        options["input_time"] = torch.arange(NODES) % 90
    if "input_time_start" in options:
        options["input_time_start"] = torch.zeros(NODES, dtype=torch.int64)
    with given.loader(
        DistDataset(graph), given.num_neighbors, given.input(hetero=False), **options
    ) as loader:
        plan, request = loader._source_request().plan, loader._schedule.request(0, 0)
    store = None if over == "graph" else PartitionedStore.whole(graph)
    for _ in range(2):  # The first one also fills caches of the process.
        sampler = plan.open(graph, store)
        for _ in range(2):
            sampled = sampler.sample(request)
            sampled.write(np.empty(sampled.layout.nbytes, np.uint8))
        told, lists = sampler.scratch_bytes, graph.derived_bytes
        del sampled
        gc.collect()
        before = ProcessMemory.read().in_use
        del sampler
        gc.collect()
        freed = before - ProcessMemory.read().in_use - (lists - graph.derived_bytes)
    assert abs(told - freed) <= 0.2 * freed + (128 << 10)


# --- the account of a process


def test_memory_in_use_is_what_no_known_object_has() -> None:
    known: dict[str, int] = {}
    account = MemoryAccount(lambda: known)
    held = np.ones(64 << 20, np.uint8)
    found = account.read()
    assert 60 << 20 < found["other"] < 80 << 20
    known["frames"] = held.nbytes
    found = account.read()
    assert found["other"] < 16 << 20
    assert found["frames"] == held.nbytes


class Server:
    """A process that serves a graph."""

    def __init__(self, graph: Path) -> None:
        port = free_port()
        self.metrics = f"http://127.0.0.1:{free_port()}/metrics"
        self.address = f"127.0.0.1:{port}"
        options = ["--listen", self.address, "--data-port", "0", "--workers", "2", "--allow-core"]
        where = self.metrics.removeprefix("http://").removesuffix("/metrics")
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, "serve", str(graph), *options, "--metrics", where]
        )

    def text(self) -> str:
        with urllib.request.urlopen(self.metrics, timeout=30) as reply:
            return str(reply.read().decode())

    def is_ready(self) -> bool:
        try:
            return "gigl_ready 1.0" in self.text()
        except OSError:
            assert self.process.poll() is None
            return False

    def kinds(self) -> dict[str, int]:
        found = re.findall(r'^gigl_memory_bytes\{of="(\w+)"\} (\S+)', self.text(), re.MULTILINE)
        return {kind: int(float(nbytes)) for kind, nbytes in found}

    def held(self) -> int:
        """Return the memory that no file backs: anonymous, and of rings."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            found = dict(line.split(":", 1) for line in file if line.startswith("Rss"))
        return sum(int(found[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem"))


def test_the_kinds_add_up_to_what_a_server_holds(tmp_path: Path) -> None:
    """With samplers, frames and rings of known sizes, of which it holds none once its loaders are closed."""
    data = random_data(x=torch.randn(NODES, 256))
    build_graph(tables_from_pyg(data), tmp_path / "graph")
    server = Server(tmp_path / "graph")
    try:
        assert wait_until(server.is_ready, seconds=60)
        before, held_before = sum_of(server.kinds()), server.held()
        nbytes = 0
        datasets = [RemoteDistDataset.connect(server.address, transport=each) for each in ("network", "ring")]
        loaders = [
            DistNeighborLoader(each, [15, 10], None, batch_size=4_000, seed=seed, num_workers=2)
            for each in datasets
            for seed in range(2)
        ]
        for loader in loaders:
            for batch in loader:
                nbytes = max(nbytes, batch.x.nbytes)
                del batch
        kinds = server.kinds()
        assert kinds["samplers"] > 4 << 20
        assert kinds["frames"] > nbytes
        assert kinds["rings"] > nbytes
        held = server.held() - held_before
        assert held > 4 * nbytes
        assert abs(sum_of(server.kinds()) - before - held) < 0.2 * held, (server.kinds(), held)
        for each in loaders:
            each.shutdown()
        for dataset in datasets:
            dataset.close()
        assert wait_until(lambda: server.kinds()["samplers"] == server.kinds()["rings"] == 0, seconds=30)
    finally:
        server.process.kill()
        server.process.wait()


def sum_of(kinds: dict[str, int]) -> int:
    return sum(kinds.values()) - kinds["files"]
