"""Hosts that sample across each other, when a service, a rank or a link fails.

Who is told what, how soon; that nothing is lost where it mends in time; and that nothing is left. Every
host has one rank and one of two partitions. Hosts are told apart by boot id on one machine, or are
network namespaces where the links matter.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.fork_server import ForkServer
from tests.support.hosts import Host, Network, missing_for_hosts
from tests.support.leftovers import wait_until
from tests.support.ports import free_port
from tests.support.proxy import Proxy
from tests.support.ranks import Ended, Ranks, places
from tests.support.training import PROGRAM, open_gate, seen_by, shares

pytestmark = pytest.mark.usefixtures("no_leftovers")

TIMEOUT = 6.0
"""Of loaders and of collectives. Peers are asked for 0.8 of it."""
DEADLINE = 90.0
"""Generous: for a machine that is busy."""
GONE = r"StorageUnavailable: .*host 1 at (127.0.0.1|10.77.0.2):\d+, which holds partition 1, did not answer"
BROKEN_COLLECTIVE = r"RuntimeError: .*gloo.*(Connection (closed|reset) by peer|Timed out)"

Start = Callable[..., Ranks]


@pytest.fixture
def start(fork_server: ForkServer, graph: Path, tmp_path: Path) -> Start:
    """Start a rank on each of two hosts; ``special`` has arguments by rank."""

    def start(
        *,
        special: dict[int, dict[str, Any]] | None = None,
        hosts: Sequence[Host] | None = None,
        dataset: dict[str, Any] | None = None,
        loader: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> Ranks:
        common = {
            "graph": str(graph),
            "folder": str(tmp_path),
            "collective_seconds": TIMEOUT,
            # Of what is sampled ahead of a fault, nobody notices it.
            "loader": {"timeout": TIMEOUT, "worker_concurrency": 1, **(loader or {})},
        }
        by_rank = {}
        for rank in (0, 1):
            own = dict((special or {}).get(rank, {}))
            held = {"partitions": [rank], "timeout": TIMEOUT, **(dataset or {}), **own.pop("dataset", {})}
            by_rank[rank] = {**own, "dataset": held}
        where = places(1, 1, hosts=hosts)
        return Ranks(fork_server, PROGRAM, where, tmp_path, arguments=common | arguments, special=by_rank)

    return start


def service_of(ranks: Ranks, rank: int, *, after: psutil.Process | None = None) -> psutil.Process:
    """Return the service of a host, once there is one, other than ``after``."""

    def there() -> list[psutil.Process]:
        return [process for process in ranks.children(rank, "gigl-peer") if process != after]

    assert wait_until(there, seconds=DEADLINE)
    return there()[0]


def check_batches(ended: Sequence[Ended], expected: Sequence[int]) -> None:
    assert [seen_by(rank) for rank in ended] == shares(expected, 2)


# What mends in time is not noticed


@pytest.mark.parametrize("memory", ["auto", pytest.param("3KB", marks=pytest.mark.slow)])
def test_a_service_and_a_worker_that_die_go_unnoticed(
    start: Start, expected: list[int], tmp_path: Path, memory: str
) -> None:
    gates = {"gates": ["batch 1", "batch 4"]}
    loader = {"timeout": 60, "worker_concurrency": 4, "feature_memory": memory}
    dataset = {"cache_size": 0, "timeout": 60}
    with start(special={0: gates}, loader=loader, dataset=dataset, collective_seconds=60) as ranks:
        ranks.wait_for(0, "batch 1", seconds=DEADLINE)
        first = service_of(ranks, 1)
        first.kill()
        (worker,) = ranks.children(0, "gigl-worker")
        worker.kill()
        open_gate(tmp_path, "batch 1", rank=0)
        ranks.wait_for(0, "batch 4", seconds=DEADLINE)
        service_of(ranks, 1, after=first).kill()
        open_gate(tmp_path, "batch 4", rank=0)
        ended = ranks.succeed(seconds=DEADLINE)
    check_batches(ended, expected)


@pytest.mark.slow
def test_a_bad_line_is_made_good_or_told_and_then_made_good(
    start: Start, expected: list[int], tmp_path: Path
) -> None:
    """Late, slow, half closed, reset; then silent until the deadline, which consumes nothing."""
    control = free_port(count=2)
    listen = {"listen": f"127.0.0.1:{control}", "advertise": "127.0.0.77"}
    gates = ["opened", "batch 1", "batch 2", "batch 3"]
    with ExitStack() as stack:
        lines = [
            stack.enter_context(Proxy(("127.0.0.1", port), listen=("127.0.0.77", port)))
            for port in (control, control + 1)
        ]
        data = lines[1]
        ranks = stack.enter_context(
            start(
                special={0: {"gates": gates, "retries": 2}, 1: {"dataset": {**listen, "timeout": DEADLINE}}},
                collectives=False,
            )
        )

        def go(step: str) -> None:
            open_gate(tmp_path, step, rank=0)

        ranks.wait_for(0, "opened", seconds=DEADLINE)
        data.latency_s, data.bytes_per_second = 0.02, 1_000_000
        go("opened")
        ranks.wait_for(0, "batch 1", seconds=DEADLINE)
        data.half_close()
        data.latency_s = data.bytes_per_second = 0
        go("batch 1")
        ranks.wait_for(0, "batch 2", seconds=DEADLINE)
        data.cut()
        go("batch 2")
        data.resume()
        ranks.wait_for(0, "batch 3", seconds=DEADLINE)
        data.stall()
        go("batch 3")
        told = ranks.wait_for(0, "retry", seconds=DEADLINE)
        data.resume()
        ended = ranks.succeed(seconds=DEADLINE)
        assert data.connections >= 3
    who = r"StorageUnavailable: .*host 1 .*127.0.0.77.* partition 1, did not answer within"
    assert re.match(who, told[1])
    check_batches(ended, expected)


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_for_hosts()), reason=missing_for_hosts() or "hosts can be made")
def test_a_link_that_is_cut_and_healed(start: Start, expected: list[int], tmp_path: Path) -> None:
    """In time, nobody notices; else the batch is asked for again. Over TLS, as between real hosts."""
    with Network.of(2) as network:
        both: dict[str, Any] = {"dataset": {"timeout": DEADLINE}, "retries": 2}
        special = {0: {**both, "gates": ["batch 1", "batch 4"]}, 1: both}
        # TCP sends again 0.2, 0.6 and 1.4 s after what was lost: an ask must have more time than that.
        patient = {"timeout": 2 * TIMEOUT}
        with start(hosts=network.hosts, special=special, loader=patient, collectives=False) as ranks:
            ranks.wait_for(0, "batch 1", seconds=DEADLINE)
            network.hosts[1].cut()
            open_gate(tmp_path, "batch 1", rank=0)
            time.sleep(0.7)  # The time that the link is out.
            network.hosts[1].heal()
            ranks.wait_for(0, "batch 4", seconds=DEADLINE)
            assert [line for line in ranks.printed(0) if line[0] == "retry"] == []
            network.hosts[1].cut()
            open_gate(tmp_path, "batch 4", rank=0)
            told = ranks.wait_for(0, "retry", seconds=DEADLINE)
            network.hosts[1].heal()
            ended = ranks.succeed(seconds=DEADLINE)
    assert re.match(GONE, told[1])
    check_batches(ended, expected)


# What does not mend


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["auto", "3KB"])
def test_a_service_that_is_stopped_in_the_middle_and_at_the_end(
    start: Start, expected: list[int], tmp_path: Path, memory: str
) -> None:
    """At the end, the other host's service is killed as well: nobody needs either any more."""
    special = {0: {"gates": ["batch 2", "drained"], "retries": 2}, 1: {"gates": ["drained"]}}
    dataset = {"timeout": DEADLINE, "cache_size": 0}
    with start(
        special=special, dataset=dataset, loader={"feature_memory": memory}, collectives=False
    ) as ranks:
        ranks.wait_for(0, "batch 2", seconds=DEADLINE)
        service = service_of(ranks, 1)
        service.suspend()
        open_gate(tmp_path, "batch 2", rank=0)
        told = ranks.wait_for(0, "retry", seconds=DEADLINE)
        service.resume()
        for rank in (0, 1):
            ranks.wait_for(rank, "drained", seconds=DEADLINE)
        service.suspend()
        service_of(ranks, 0).kill()
        for rank in (0, 1):
            open_gate(tmp_path, "drained", rank=rank)
        ended = ranks.succeed(seconds=DEADLINE)
    assert re.match(GONE, told[1])
    check_batches(ended, expected)


@pytest.mark.slow
def test_a_service_that_is_killed_too_often(start: Start, tmp_path: Path) -> None:
    with start(special={0: {"gates": ["batch 2"]}}, collective_seconds=DEADLINE) as ranks:
        ranks.wait_for(0, "batch 2", seconds=DEADLINE)
        service = None
        for _ in range(3):
            service = service_of(ranks, 1, after=service)
            service.kill()
        open_gate(tmp_path, "batch 2", rank=0)
        asking, serving = ranks.finish(seconds=DEADLINE)
    assert re.match(GONE + ".*onnection refused", asking.failure), asking.errors
    assert re.match(BROKEN_COLLECTIVE, serving.failure), serving.errors
    assert "peer service of host 1 was killed by SIGKILL" in serving.errors
    assert "it stays down" in serving.errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("joined", f"TimeoutError: rank 1 did not open the graph as one of several .* within {TIMEOUT:g} s"),
        ("batch 1", GONE),
    ],
    ids=["start", "middle"],
)
def test_a_host_whose_rank_is_killed(start: Start, step: str, error: str, tmp_path: Path) -> None:
    special = {0: {"gates": ["batch 1"]}, 1: {"gates": [step]}}
    with start(special=special, collectives=False) as ranks:
        ranks.wait_for(1, step, seconds=DEADLINE)
        if step != "joined":
            ranks.wait_for(0, step, seconds=DEADLINE)
        ranks.send(1, signal.SIGKILL)
        ranks.finish(seconds=DEADLINE, ranks=[1])
        open_gate(tmp_path, "batch 1", rank=0)
        other, _ = ranks.finish(seconds=DEADLINE)
    assert re.match(error, other.failure), other.errors


@pytest.mark.slow
def test_a_host_whose_rank_is_stopped_goes_on_serving(start: Start, expected: list[int]) -> None:
    """Who has what he needs is not kept: he waits for the other at the end, and says so."""
    with start(special={1: {"gates": ["batch 1"]}}, collectives=False) as ranks:
        ranks.wait_for(1, "batch 1", seconds=DEADLINE)
        ranks.send(1, signal.SIGSTOP)
        (other,) = ranks.finish(seconds=DEADLINE, ranks=[0])
        ranks.send(1, signal.SIGKILL)
        ranks.finish(seconds=DEADLINE)
    assert other.status == 0
    assert seen_by(other) == shares(expected, 2)[0]
    assert f"rank 1 did not close the dataset within {TIMEOUT:g} s: no longer serving them" in other.errors


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
def test_the_host_with_the_store_of_the_group_is_gone(start: Start, stopped: bool) -> None:
    with start(special={0: {"gates": ["joined"]}}) as ranks:
        for rank in (0, 1):  # In init_process_group, a rank can wait for ever for a holder that is stopped.
            ranks.wait_for(rank, "joined", seconds=DEADLINE)
        ranks.send(0, signal.SIGSTOP if stopped else signal.SIGKILL)
        (other,) = ranks.finish(seconds=DEADLINE, ranks=[1])
        if stopped:
            ranks.send(0, signal.SIGKILL)
        ranks.finish(seconds=DEADLINE)
    assert other.failure.startswith(
        "ConnectionError: the key-value store of the process group does not answer"
    )


def test_a_graph_that_cannot_be_opened_on_one_host(start: Start, tmp_path: Path) -> None:
    with start(special={1: {"graph": str(tmp_path / "nowhere")}}) as ranks:
        other, failed = ranks.finish(seconds=DEADLINE)
    assert failed.failure.startswith("FileNotFoundError: ")
    assert other.failure.startswith("FileNotFoundError: rank 1: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("kill", "GiglError: {}the peer service was killed by SIGKILL .*while it started"),
        ("stop", f"TimeoutError: {{}}the peer service did not start within {0.8 * TIMEOUT:g} s"),
        ("raise", "GiglError: {}the peer service ended with exit code 1 while it started"),
    ],
    ids=["kill", "stop", "raise"],
)
def test_a_service_that_cannot_start(start: Start, what: str, error: str) -> None:
    with start(special={1: {"peer_faults": {"what": what}}}) as ranks:
        other, failed = ranks.finish(seconds=DEADLINE)
    assert re.match(error.format(""), failed.failure), failed.errors
    # Ending a stopped child takes 4 s, more than the fifth of this timeout that is left to tell of it.
    late = "TimeoutError: rank 1 did not serve the partitions" if what == "stop" else error.format("rank 1: ")
    assert re.match(error.format("rank 1: ") + "|" + late, other.failure), other.errors
    assert ("Mishap: as planned" in failed.errors) == (what == "raise")


@pytest.mark.slow
def test_a_service_that_raises_once_fails_nothing(start: Start, expected: list[int]) -> None:
    """It is asked again: what went wrong there says nothing about the request."""
    faults = {"what": "raise", "at_batch": 20}
    with start(special={1: {"peer_faults": faults}}, collectives=False) as ranks:
        asking, serving = ranks.succeed(seconds=DEADLINE)
    assert [line for line in asking.lines if line[0] == "retry"] == []
    assert "Mishap: as planned" in serving.errors
    assert seen_by(asking) == shares(expected, 2)[0]
