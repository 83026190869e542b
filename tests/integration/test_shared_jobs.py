"""Trainers of several jobs that request the same batches of one server, and one of them killed."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_server.local_cluster import LocalCluster
from tests.support.pyg_graphs import homogeneous

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 5}
FANOUTS = [5, 3]
KILLED_AFTER = 10
TRAINER = f"""
import sys
from gigl_client import RemoteDistDataset
from gigl_loader import DistNeighborLoader

with RemoteDistDataset.connect(sys.argv[1], transport=sys.argv[2]) as dataset:
    with DistNeighborLoader(dataset, {FANOUTS}, "train", **{OPTIONS}) as loader:
        for batch in loader:
            sys.stdin.readline()
            print(batch.n_id.tolist(), flush=True)
"""


class Trainer:
    """A job in a process of its own, which takes a batch when told."""

    def __init__(self, address: str, transport: str) -> None:
        command = [sys.executable, "-c", TRAINER, address, transport]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def take(self) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=20)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["network", "ring"])
def test_jobs_go_on_when_one_that_they_share_with_is_killed(tmp_path: Path, transport: str) -> None:
    path = tmp_path / "graph"
    build_graph(tables_from_pyg(homogeneous(1000, 8000)), path, num_partitions=1)
    with DistNeighborLoader(DistDataset.open(path), FANOUTS, "train", **OPTIONS) as loader:
        expected = [str(batch.n_id.tolist()) for batch in loader]
    assert len(expected) > 2 * KILLED_AFTER
    with LocalCluster(path, servers=1) as cluster, ExitStack() as stack:
        trainers = [Trainer(cluster.addresses[0], transport) for _ in range(3)]
        for each in trainers:
            stack.callback(each.kill)
        for number, batch in enumerate(expected):
            if number == KILLED_AFTER:
                trainers.pop(0).kill()
            assert [each.take() for each in trainers] == [batch] * len(trainers)
        with RemoteDistDataset.connect(cluster.addresses) as dataset:
            [load] = dataset.server_stats().values()
        assert load["shared"] > len(expected)
