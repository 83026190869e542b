"""Partitions with several holders: any one server may vanish for good, and no batch is lost, late or twice.

Servers are processes, killed for real and not started again. Batches are those of one process that has the
whole graph, bit for bit.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader, StorageUnavailable
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_server.local_cluster import LocalCluster
from tests.support.leftovers import wait_until
from tests.support.pyg_graphs import homogeneous
from tests.support.training import FANOUT, OPTIONS, digest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("no_leftovers")

TIMEOUT = 3.0
DEADLINE = 60.0
"""Generous: for a machine that is busy. ``benchmarks/failover.py`` measures how long it takes."""
WAYS = (("ring", "through"), ("ring", "direct"), ("flight", "through"), ("flight", "direct"))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graphs") / "graph"
    build_graph(tables_from_pyg(homogeneous(1_000, 8_000)), path, num_partitions=3)
    return path


@pytest.fixture(scope="module")
def expected(graph: Path) -> list[int]:
    with DistNeighborLoader(
        DistDataset.open(graph), FANOUT, "train", **OPTIONS | {"num_workers": 0}
    ) as alone:
        return [digest(batch) for batch in alone]


@pytest.fixture
def cluster(graph: Path) -> Iterator[LocalCluster]:
    """Three servers, of partitions 0 and 1, 1 and 2, 0 and 2."""
    with LocalCluster(graph, servers=3, replicas=2) as cluster:
        yield cluster


def opened(
    stack: ExitStack, where: list[str], timeout: float = DEADLINE, **options: Any
) -> DistNeighborLoader:
    ways = {name: options.pop(name) for name in ("transport", "rows") if name in options}
    dataset = stack.enter_context(RemoteDistDataset.connect(where, timeout=DEADLINE, **ways))
    settings = OPTIONS | {"timeout": timeout, "prefetch_size": 2} | options
    return stack.enter_context(DistNeighborLoader(dataset, FANOUT, "train", **settings))


@pytest.mark.parametrize(("transport", "rows"), WAYS)
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_any_one_server_may_vanish_for_good(
    cluster: LocalCluster, expected: list[int], victim: int, transport: str, rows: str
) -> None:
    with ExitStack() as stack:
        loader = opened(stack, cluster.addresses, transport=transport, rows=rows)
        seen = []
        for batch in loader:
            seen.append(digest(batch))
            if len(seen) == 3:
                cluster.kill(victim)
        assert seen == expected
