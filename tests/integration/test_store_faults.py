"""Storage servers that die, stall or lie behind a bad line; trainers that die; and what others notice.

Servers are processes, killed for real. What mends in time is not noticed: the batches of an epoch are those
of an undisturbed run, nothing lost and nothing twice.
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
from gigl_server.local_cluster import LocalCluster
from tests.support.clusters import addresses_of, servers_of
from tests.support.leftovers import wait_until
from tests.support.ports import free_port
from tests.support.proxy import Proxy
from tests.support.ranks import Ranks, places
from tests.support.training import FANOUT, OPTIONS, PROGRAM, digest, open_gate, seen_by, shares

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.fork_server import ForkServer

TIMEOUT = 3.0
"""Of loaders that shall notice."""
DEADLINE = 30.0
"""Generous: for a machine that is busy."""
WAYS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("ring", "auto", {}),
    ("network", "through", {}),
    ("network", "direct", {}),
)
CACHED: dict[str, Any] = {"feature_memory": "60KB"}
"""Room for the rows of a batch or two: windows are under way when a server dies."""
CACHED_WAYS = (("ring", "auto", CACHED), ("network", "direct", CACHED))

pytestmark = pytest.mark.usefixtures("no_leftovers")


@pytest.fixture
def cluster(graph: Path, request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Two servers, each with one of two partitions, and with the topology that a test names."""
    with LocalCluster(graph, servers=2, options={"topology": getattr(request, "param", "own")}) as cluster:
        yield cluster


def take(batches: Iterator[Any], seen: list[int], count: int | None = None) -> None:
    """Add the digests of so many batches, or of all, until one fails."""
    seen.extend(digest(batch) for batch in islice(batches, count))


def opened(
    stack: ExitStack, where: list[str], timeout: float = DEADLINE, **options: Any
) -> DistNeighborLoader:
    """Return a loader whose few batches in flight are lost if their server is."""
    ways = {name: options.pop(name) for name in ("transport", "rows") if name in options}
    dataset = stack.enter_context(RemoteDistDataset.connect(where, timeout=DEADLINE, **ways))
    settings = OPTIONS | {"timeout": timeout, "prefetch_size": 2} | options
    return stack.enter_context(DistNeighborLoader(dataset, FANOUT, "train", **settings))


@pytest.mark.some(1)
@pytest.mark.parametrize("cluster", ["own", "all"], indirect=True)
@pytest.mark.parametrize(("transport", "rows", "options"), [*WAYS, *CACHED_WAYS])
def test_servers_killed_and_started_again_go_unnoticed(
    cluster: LocalCluster, expected: list[int], transport: str, rows: str, options: dict[str, Any]
) -> None:
    with ExitStack() as stack:
        loader = opened(stack, cluster.addresses, transport=transport, rows=rows, **options)
        seen = []
        for batch in loader:
            seen.append(digest(batch))
            if len(seen) in (3, 9):
                cluster.kill(len(seen) == 9)
                cluster.restart(len(seen) == 9, wait=False)
        assert seen == expected


def test_a_server_that_is_gone_is_named_and_nothing_is_lost(
    cluster: LocalCluster, graph: Path, expected: list[int]
) -> None:
    """The loader's state serves another loader; and the loader itself, should the server come back."""
    with ExitStack() as stack:
        loader = opened(stack, cluster.addresses, TIMEOUT)
        batches, seen = iter(loader), list[int]()
        take(batches, seen, 3)
        cluster.kill(1)
        began = time.monotonic()
        with pytest.raises(StorageUnavailable) as raised:
            take(batches, seen)
        assert time.monotonic() - began < TIMEOUT + 10
        who = rf"storage server 1 at {re.escape(cluster.addresses[1])}.*nothing listens there"
        assert re.search(who, str(raised.value)), raised.value
        assert "\n" not in str(raised.value)
        assert seen == expected[: len(seen)]
        with DistNeighborLoader(
            DistDataset.open(graph), FANOUT, "train", **OPTIONS | {"num_workers": 0}
        ) as alone:
            alone.load_state_dict(loader.state_dict())
            assert [digest(batch) for batch in alone] == expected[len(seen) :]
        cluster.restart(1)
        take(batches, seen)
        assert seen == expected


@pytest.mark.slow
def test_a_server_that_stops_for_a_while(cluster: LocalCluster, expected: list[int]) -> None:
    """Shorter than the deadline, nobody notices. Longer, it is named; then all goes on."""
    with ExitStack() as stack:
        batches = iter(opened(stack, cluster.addresses, TIMEOUT, transport="network"))
        seen: list[int] = []
        take(batches, seen, 3)
        os.kill(cluster.pids[0], signal.SIGSTOP)
        later = threading.Timer(0.7, os.kill, (cluster.pids[0], signal.SIGCONT))
        later.start()
        take(batches, seen, 8)
        later.join()
        os.kill(cluster.pids[0], signal.SIGSTOP)
        try:
            with pytest.raises((StorageUnavailable, TimeoutError), match=r"storage server \d at"):
                take(batches, seen)
        finally:
            os.kill(cluster.pids[0], signal.SIGCONT)
        take(batches, seen)
        assert seen == expected


@pytest.mark.slow
@pytest.mark.parametrize(("transport", "rows", "options"), [*WAYS, *CACHED_WAYS])
def test_a_server_that_stops_for_longer_than_its_lease_loses_nothing(
    graph: Path, expected: list[int], transport: str, rows: str, options: dict[str, Any]
) -> None:
    """Nor does it once it goes on, when its trainers are silent but for their heartbeats."""
    lease_s = 3.0
    with LocalCluster(graph, servers=2, options={"lease": lease_s}) as cluster, ExitStack() as stack:
        loader = opened(stack, cluster.addresses, 2 * DEADLINE, transport=transport, rows=rows, **options)
        batches, seen = iter(loader), list[int]()
        take(batches, seen, 3)
        os.kill(cluster.pids[1], signal.SIGSTOP)
        later = threading.Timer(2.5 * lease_s, os.kill, (cluster.pids[1], signal.SIGCONT))
        later.start()
        take(batches, seen, 6)
        later.join()
        take(batches, seen, 1)
        before = loader.stats()["reconnects"]
        time.sleep(2.5 * lease_s)  # Nothing is asked for: heartbeats alone keep the channels.
        take(batches, seen)
        assert seen == expected
        assert loader.stats()["reconnects"] == before


def test_all_servers_are_replaced_one_by_one_under_load(cluster: LocalCluster, graph: Path) -> None:
    def roll() -> None:
        for server in (0, 1):
            codes.append(cluster.terminate(server))
            cluster.restart(server)

    codes: list[int] = []
    rolling = threading.Thread(target=roll)
    with ExitStack() as stack:
        loader = opened(stack, cluster.addresses)
        alone = stack.enter_context(
            DistNeighborLoader(DistDataset.open(graph), FANOUT, "train", **OPTIONS | {"num_workers": 0})
        )
        rolling.start()
        while rolling.is_alive():
            assert [digest(batch) for batch in loader] == [digest(batch) for batch in alone]
        rolling.join()
    assert codes == [0, 0]


@pytest.mark.slow
def test_a_rank_that_is_killed_stops_no_other_and_what_both_left_is_reclaimed(
    graph: Path, expected: list[int], fork_server: ForkServer, tmp_path: Path
) -> None:
    arguments = {
        "graph": str(graph),
        "folder": str(tmp_path),
        "collectives": False,
        "gates": ["batch 1"],
        "loader": {},
    }
    with LocalCluster(graph, servers=1, options={"lease": "2"}) as cluster, ExitStack() as stack:
        dataset = stack.enter_context(RemoteDistDataset.connect(cluster.addresses, timeout=DEADLINE))

        def held() -> tuple[int, int]:
            (load,) = dataset.server_stats().values()
            return load["producers"], len(load["channels"])

        arguments["addresses"] = cluster.addresses
        with Ranks(fork_server, PROGRAM, places(2), tmp_path, arguments=arguments) as ranks:
            for rank in (0, 1):
                ranks.wait_for(rank, "batch 1", seconds=DEADLINE)
            assert held() == (1, 2)
            time.sleep(3)  # Longer than the lease: a trainer that thinks for long keeps what it has.
            assert held() == (1, 2)
            ranks.send(1, signal.SIGKILL)
            # What it had goes while the other rank lives, held at its gate.
            assert wait_until(lambda: held() == (1, 1))
            open_gate(tmp_path, "batch 1", rank=0)
            other, _ = ranks.finish(seconds=DEADLINE)
            assert seen_by(other) == shares(expected, 2)[0], other.errors
        assert wait_until(lambda: held() == (0, 0))


@pytest.mark.slow
def test_a_bad_line_is_made_good_or_told_and_then_made_good(graph: Path, expected: list[int]) -> None:
    """Late, slow, half closed, reset; then silent until the deadline, which consumes nothing."""
    port = free_port(count=2)
    ports = port, port + 1
    listen = {"listen": f"127.0.0.1:{ports[0]}", "data_port": ports[1], "advertise": "127.0.0.77"}
    with ExitStack() as stack:
        control, data = (
            stack.enter_context(Proxy(("127.0.0.1", each), listen=("127.0.0.77", each))) for each in ports
        )
        servers = stack.enter_context(servers_of(graph, 2, special={1: listen}))
        batches = iter(opened(stack, addresses_of(servers), TIMEOUT, transport="network", prefetch_size=1))
        seen: list[int] = []
        take(batches, seen, 2)
        for line in (control, data):
            line.latency_s, line.bytes_per_second = 0.02, 1_000_000
        take(batches, seen, 2)
        for line in (control, data):
            line.latency_s = line.bytes_per_second = 0
            line.half_close()
        take(batches, seen, 3)
        for line in (control, data):
            line.cut()
        healing = [threading.Timer(0.5, line.resume) for line in (control, data)]
        for timer in healing:
            timer.start()
        take(batches, seen, 3)
        for timer in healing:
            timer.join()
        for line in (control, data):
            line.stall()
        with pytest.raises((StorageUnavailable, TimeoutError), match=r"storage server 1 at 127.0.0.77"):
            take(batches, seen)
        for line in (control, data):
            line.resume()
        take(batches, seen)
        assert seen == expected


def test_a_full_disk_stops_no_service(graph: Path, expected: list[int]) -> None:
    with LocalCluster(graph, servers=1, options={"log_file": "/dev/full"}) as cluster, ExitStack() as stack:
        loader = opened(stack, cluster.addresses)
        assert [digest(batch) for batch in loader] == expected
