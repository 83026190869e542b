"""The mistakes that are made first with several hosts, and what one is told: on every rank, in one line.

Those that one host has room for are in test_rank_faults.py.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.fork_server import ForkServer
from tests.support.hosts import Host, Network, missing_for_hosts
from tests.support.pyg_graphs import homogeneous
from tests.support.ranks import Ended, Ranks, places
from tests.support.training import PROGRAM

pytestmark = pytest.mark.usefixtures("no_leftovers")
needs_hosts = pytest.mark.skipif(bool(missing_for_hosts()), reason=missing_for_hosts() or "hosts can be made")

TIMEOUT = 3.0
DEADLINE = 30.0


def outcome(
    fork_server: ForkServer,
    graph: Path,
    folder: Path,
    *,
    hosts: Sequence[Host] | None = None,
    by_rank: Sequence[dict[str, Any]] = ({}, {}),
) -> list[Ended]:
    """Start a rank on each of two hosts, and return how they ended."""
    special = {}
    for rank, own in enumerate(by_rank):
        dataset = {"partitions": [rank], "timeout": TIMEOUT, **own.pop("dataset", {})}
        special[rank] = {**own, "dataset": dataset}
    common = {
        "graph": str(graph),
        "folder": str(folder),
        "collective_seconds": TIMEOUT,
        "loader": {"timeout": TIMEOUT},
    }
    with Ranks(
        fork_server, PROGRAM, places(1, 1, hosts=hosts), folder, arguments=common, special=special
    ) as ranks:
        return ranks.finish(seconds=DEADLINE)


def check(ended: Sequence[Ended], *patterns: str) -> None:
    """Each rank was told what its pattern says, in one line."""
    for rank, pattern in zip(ended, patterns, strict=True):
        assert re.match(pattern, rank.failure), (rank.failure, rank.errors)
        assert "\n" not in rank.failure


@pytest.mark.slow
def test_a_wrong_partition_on_a_host(fork_server: ForkServer, graph: Path, tmp_path: Path) -> None:
    ended = outcome(fork_server, graph, tmp_path, by_rank=[{}, {"dataset": {"partitions": [0]}}])
    check(ended, *["ValueError: no host holds partition 1 of 2: host 0 holds 0; host 1 holds 0; "] * 2)


def test_another_graph_on_a_host(fork_server: ForkServer, graph: Path, tmp_path: Path) -> None:
    build_graph(tables_from_pyg(homogeneous(seed=1)), tmp_path / "other", num_partitions=2)
    ended = outcome(fork_server, graph, tmp_path, by_rank=[{}, {"graph": str(tmp_path / "other")}])
    check(ended, *["ValueError: hosts have different graphs: .* on rank 0, .*other on rank 1"] * 2)


@pytest.mark.slow
def test_a_port_that_is_taken(fork_server: ForkServer, graph: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        patient = {"dataset": {"timeout": 20}}
        ended = outcome(
            fork_server, graph, tmp_path, by_rank=[patient, {"dataset": {"listen": address, "timeout": 20}}]
        )
    check(ended, f"OSError: rank 1: cannot listen on {address}", f"OSError: cannot listen on {address}")


@pytest.mark.slow
def test_a_wrong_token(fork_server: ForkServer, graph: Path, tmp_path: Path) -> None:
    tokens = [{"token": "token-of-rank-0" * 3}, {"token": "token-of-rank-1" * 3}]
    ended = outcome(fork_server, graph, tmp_path, by_rank=tokens)
    # A rank that still waits for the others is told what one of them met.
    check(ended, *["ValueError: .*host [01] at .*: wrong token: all hosts must use the same one"] * 2)
    assert not any(word["token"] in rank.errors for word in tokens for rank in ended)


@pytest.mark.slow
def test_no_process_group(fork_server: ForkServer, graph: Path, tmp_path: Path) -> None:
    ended = outcome(fork_server, graph, tmp_path, by_rank=[{"join": False}, {"join": False}])
    check(ended, *["ValueError: .*partition.* process group.*init_process_group"] * 2)


@pytest.mark.slow
@needs_hosts
def test_a_firewall_between_hosts(fork_server: ForkServer, graph: Path, tmp_path: Path) -> None:
    with Network.of(2) as network:
        network.hosts[1].firewall(7301)
        ended = outcome(
            fork_server,
            graph,
            tmp_path,
            hosts=network.hosts,
            by_rank=[
                {"dataset": {"timeout": 15.0}},
                {"dataset": {"timeout": 15.0, "listen": f"{network.hosts[1].address}:7300"}},
            ],
        )
    told = r"host 1 at 10.77.0.2:7300 \(port 7301\): no answer .* in \d+\.\d s: is there a firewall between"
    check(ended, f"StorageUnavailable: {told}", f"StorageUnavailable: rank 0: {told}")


@pytest.mark.slow
@needs_hosts
def test_clocks_that_are_apart(fork_server: ForkServer, graph: Path, tmp_path: Path) -> None:
    with Network.of(2) as network:
        by_rank = [{"clock_s": -3 * 86_400.0}, {}]
        ended = outcome(fork_server, graph, tmp_path, hosts=network.hosts, by_rank=by_rank)
    told = "host 1 at .*: its certificate is not valid before .* and here it is .*: set the clocks"
    check(ended, f"ValueError: {told}", f"ValueError: rank 0: {told}")
