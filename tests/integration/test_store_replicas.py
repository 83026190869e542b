"""Partitions with several holders: any one server may vanish for good, and no batch is lost, late or twice.

Servers are processes, killed for real and not started again. Batches are those of one process that has the
whole graph, bit for bit.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader, StorageUnavailable
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_server.config import ServeOptions
from gigl_server.local_cluster import LocalCluster
from gigl_server.server import build_storage_server
from tests.support.clusters import addresses_of, servers_of
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


@pytest.mark.parametrize("victim", [*(pytest.param(each, marks=pytest.mark.slow) for each in (0, 2)), 1])
def test_any_one_server_may_vanish_for_good(cluster: LocalCluster, expected: list[int], victim: int) -> None:
    """Whatever the transport and the way of the rows, and wherever the trainer connected."""
    with ExitStack() as stack:
        loaders = [
            opened(stack, cluster.addresses, transport=transport, rows=rows) for transport, rows in WAYS
        ]
        epochs = [iter(loader) for loader in loaders]
        seen = [[digest(batch) for batch in islice(batches, 3)] for batches in epochs]
        cluster.kill(victim)
        for batches, found in zip(epochs, seen, strict=True):
            found += [digest(batch) for batch in batches]
        assert seen == [expected] * len(WAYS)
        late = opened(stack, cluster.addresses)  # One of the addresses is dead.
        assert [digest(batch) for batch in late] == expected


def take_all(batches: Iterator[Any], seen: list[int], count: int) -> None:
    """Add the digests of batches to ``seen``, until there are ``count``."""
    while len(seen) < count:
        with suppress(TimeoutError):  # A busy machine: nothing was consumed, and the next call waits on.
            seen += map(digest, batches)


@pytest.mark.slow
def test_without_a_holder_the_partition_is_named_and_nothing_is_lost(
    cluster: LocalCluster, graph: Path, expected: list[int]
) -> None:
    with ExitStack() as stack:
        loader = opened(stack, cluster.addresses, TIMEOUT, transport="flight")
        batches = iter(loader)
        seen = [digest(batch) for batch in islice(batches, 3)]
        cluster.kill(0)
        seen += [digest(batch) for batch in islice(batches, 3)]
        cluster.kill(1)
        with pytest.raises(StorageUnavailable) as raised:
            take_all(batches, seen, len(expected))
        said = str(raised.value)
        assert "\n" not in said
        lost = "|".join(map(re.escape, cluster.addresses[:2]))
        reasons = "nothing listens|partition|reset|refused"
        assert re.search(rf"storage server \d at ({lost}).*({reasons})", said), said
        assert seen == expected[: len(seen)]
        with DistNeighborLoader(
            DistDataset.open(graph), FANOUT, "train", **OPTIONS | {"num_workers": 0}
        ) as alone:
            alone.load_state_dict(loader.state_dict())
            assert [digest(batch) for batch in alone] == expected[len(seen) :]
        cluster.restart(1)
        seen += map(digest, batches)
        assert seen == expected


@pytest.mark.some(1)
@pytest.mark.parametrize(("transport", "rows"), [("ring", "through"), ("flight", "direct")])
def test_a_server_that_stands_still_is_left_to_itself(
    cluster: LocalCluster, expected: list[int], transport: str, rows: str
) -> None:
    with ExitStack() as stack:
        loader = opened(stack, cluster.addresses, transport=transport, rows=rows)
        batches = iter(loader)
        seen = [digest(batch) for batch in islice(batches, 3)]
        os.kill(cluster.pids[1], signal.SIGSTOP)
        try:
            seen += map(digest, batches)
            assert seen == expected
            assert loader.stats()["hedged"] > 0
        finally:
            os.kill(cluster.pids[1], signal.SIGCONT)


def test_a_server_that_joins_in_mid_epoch_is_used_and_may_be_the_last_of_its_partition(
    graph: Path, expected: list[int]
) -> None:
    """The trainer hears of it by the replies to its requests."""
    settings: dict[str, Any] = {"graph_dir": graph, "listen": "127.0.0.1:0", "workers": 1}
    with ExitStack() as stack, servers_of(graph, 2) as servers:
        peers = tuple(addresses_of(servers[:1]))
        loader = opened(stack, addresses_of(servers), transport="flight", prefetch_size=1)
        batches = iter(loader)
        seen = [digest(batch) for batch in islice(batches, 2)]
        third = stack.enter_context(
            build_storage_server(ServeOptions(partitions=(0, 2), peers=peers, **settings))
        )
        third.wait_ready(DEADLINE)

        def used() -> bool:
            where = third.endpoint.control_address
            seen.extend(digest(batch) for batch in islice(batches, 1))
            served = [each for each in loader.stats()["servers"] if where in each["server"]]
            return bool(served) and served[0]["batches"] > 0

        assert wait_until(used, seconds=DEADLINE), "no batch of the new server"
        servers[0].close()
        seen += map(digest, batches)
        assert seen == expected


def test_each_node_is_counted_for_one_holder(cluster: LocalCluster, graph: Path) -> None:
    with RemoteDistDataset.connect(cluster.addresses, timeout=DEADLINE) as dataset:
        assert dataset.num_servers == 3
        found = dataset.fetch_node_ids("train")
        assert sorted(found) == [0, 1, 2]
        assert all(len(ids) for ids in found.values())
        cluster.kill(2)
        again = dataset.fetch_node_ids("train")
        assert [again[rank].tolist() for rank in range(3)] == [found[rank].tolist() for rank in range(3)]
        with RemoteDistDataset.connect(cluster.addresses, timeout=DEADLINE) as late:
            ids = torch.cat(list(late.fetch_node_ids("train").values()))
    alone = DistDataset.open(graph).fetch_node_ids("train")[0]
    assert sorted(ids.tolist()) == sorted(alone.tolist())


def test_a_server_that_moved_is_found_under_its_name(graph: Path, tmp_path: Path) -> None:
    """By connections that were open before, on both ports: names are resolved anew at every reconnect."""
    program = [sys.executable, "-m", "tests.support.moving_name", str(graph), str(tmp_path / "hosts")]
    ended = subprocess.run(
        ["unshare", "--mount", *program], check=False, capture_output=True, text=True, timeout=2 * DEADLINE
    )
    assert ended.stdout == "moved\n", ended.stderr
