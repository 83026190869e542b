"""Plans that kill servers, for real, and servers that stand still for longer than a lease."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

from gigl_client import RemoteDistDataset
from gigl_loader import CustomSamplerOptions, DistDataset, DistNeighborLoader, SamplingError
from gigl_server.local_cluster import LocalCluster
from gigl_server.sampling.journal import DEATHS
from tests.support.training import FANOUT, OPTIONS, digest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("no_leftovers")

DEADLY = "tests.support.user_samplers:Deadly"
GREEDY: dict[str, Any] = {"num_neighbors": [60_000_000], "replace": True}
SETTINGS = OPTIONS | {"timeout": 60.0, "prefetch_size": 2}


def opened(stack: ExitStack, cluster: LocalCluster, **changes: Any) -> DistNeighborLoader:
    dataset = stack.enter_context(
        RemoteDistDataset.connect(cluster.addresses, timeout=60, transport="network")
    )
    given = SETTINGS | {"num_neighbors": FANOUT, "input_nodes": "train"} | changes
    return stack.enter_context(DistNeighborLoader(dataset, **given))


class Restarts:
    """Starts a server again whenever it has died."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.deaths = 0
        self._cluster = cluster
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            if not self._cluster.running(0):
                self.deaths += 1
                self._cluster.restart(0)


def test_a_plan_that_kills_servers_is_refused_after_three_and_others_lose_nothing(
    graph: Path, expected: list[int], tmp_path: Path
) -> None:
    options = {"journal": str(tmp_path / "journal"), "allow_sampler": (DEADLY,)}
    with LocalCluster(graph, servers=1, options=options) as cluster, ExitStack() as stack:
        others = iter(opened(stack, cluster))
        seen = [digest(batch) for batch in islice(others, 2)]
        sampler = CustomSamplerOptions(DEADLY)
        deadly = iter(opened(stack, cluster, num_neighbors=None, sampler_options=sampler))
        restarts = Restarts(cluster)
        stack.callback(restarts.close)
        with pytest.raises(SamplingError) as raised:
            next(deadly)
        restarts.close()
        assert "is in quarantine: it was under way the last 3 times" in str(raised.value)
        assert restarts.deaths == DEATHS
        seen += [digest(batch) for batch in others]
        assert seen == expected


def test_a_plan_that_wants_gigabytes_gets_a_line_and_the_server_stays_small(
    graph: Path, expected: list[int]
) -> None:
    with LocalCluster(graph, servers=1, options={"memory": "1GB"}) as cluster, ExitStack() as stack:
        others = opened(stack, cluster)
        batches = iter(others)
        seen = [digest(batch) for batch in islice(batches, 2)]
        greedy = iter(opened(stack, cluster, **GREEDY, batch_size=5))
        before = psutil.Process(cluster.pids[0]).memory_info().rss
        for _ in range(4):
            with pytest.raises(SamplingError, match=r"a batch of 5 seeds has more than \S+ edges"):
                next(greedy)
        assert psutil.Process(cluster.pids[0]).memory_info().rss - before < 256 << 20
        seen += [digest(batch) for batch in batches]
        assert seen == expected


def test_embedded_loaders_are_bounded_by_the_machine(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigl_loader.sampling.costs.memory_bytes", lambda: 1 << 30)
    given = SETTINGS | GREEDY | {"num_workers": 0, "batch_size": 5, "input_nodes": np.arange(20)}
    given.pop("prefetch_size")
    with DistNeighborLoader(DistDataset.open(graph), **given) as loader:
        batches = iter(loader)
        for _ in range(2):
            with pytest.raises(SamplingError, match="half of the memory here") as raised:
                next(batches)
            assert "ask for fewer seeds a batch or smaller num_neighbors" in str(raised.value)


@pytest.mark.slow
def test_a_server_that_stood_still_for_longer_than_a_lease_keeps_its_channels(
    graph: Path, expected: list[int]
) -> None:
    with LocalCluster(graph, servers=1, options={"lease": 2}) as cluster, ExitStack() as stack:
        loader = opened(stack, cluster)
        batches = iter(loader)
        seen = [digest(batch) for batch in islice(batches, 3)]
        dataset = stack.enter_context(RemoteDistDataset.connect(cluster.addresses, timeout=60))
        (before,) = dataset.server_stats().values()
        os.kill(cluster.pids[0], signal.SIGSTOP)
        time.sleep(5)
        os.kill(cluster.pids[0], signal.SIGCONT)
        time.sleep(1.5)  # The housekeeper looks every second.
        (after,) = dataset.server_stats().values()
        assert [each["batches"] > 0 for each in after["channels"]] == [True]
        assert len(before["channels"]) == 1
        seen += [digest(batch) for batch in batches]
        assert seen == expected
