"""Processes of a host that copy rows from each other's caches, before a disk and before storage servers."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.clusters import addresses_of, servers_of
from tests.support.fork_server import ForkServer
from tests.support.ranks import Ranks, places
from tests.support.training import PROGRAM, open_gate, seen_by, shares

pytestmark = [pytest.mark.usefixtures("no_leftovers"), pytest.mark.slow]

DEADLINE = 40.0
FOUND_S = 1.5
"""Ranks have found each other's caches by then: they look every second."""


@pytest.fixture(params=["disk", "store"])
def addresses(request: pytest.FixtureRequest, graph: Path) -> Iterator[Sequence[str]]:
    if request.param == "disk":
        yield []
        return
    with servers_of(graph, 2) as servers:
        yield addresses_of(servers)


def start(fork_server: ForkServer, count: int, folder: Path, *, memory: str, **graph: Any) -> Ranks:
    """Start ranks that wait at their first batch, and at their third."""
    arguments: dict[str, Any] = {
        **graph,
        "folder": str(folder),
        "gates": ["batch 0", "batch 2"],
        "collectives": False,
        "loader": {"timeout": 20, "feature_memory": memory, "window": 1, "batch_size": 10},
    }
    return Ranks(fork_server, PROGRAM, places(count), folder, arguments=arguments)


def pass_gate(ranks: Ranks, step: str, count: int) -> None:
    for rank in range(count):
        ranks.wait_for(rank, step, seconds=DEADLINE)
    time.sleep(FOUND_S)
    for rank in range(count):
        open_gate(ranks.folder, step, rank=rank)


def alone(fork_server: ForkServer, graph: Path, folder: Path) -> list[int]:
    """Digests of the batches of a rank that reads mapped files."""
    arguments = {"graph": str(graph), "folder": str(folder), "loader": {"timeout": 20, "batch_size": 10}}
    with Ranks(
        fork_server, PROGRAM, places(1), folder, arguments={**arguments, "collectives": False}
    ) as ranks:
        (ended,) = ranks.succeed(seconds=DEADLINE)
    return seen_by(ended)


@pytest.mark.parametrize("memory", ["24KB", "48KB"])
def test_ranks_that_share_rows_see_the_batches_of_one_rank(
    fork_server: ForkServer, graph: Path, addresses: Sequence[str], memory: str, tmp_path: Path
) -> None:
    (tmp_path / "alone").mkdir()
    expected = alone(fork_server, graph, tmp_path / "alone")
    with start(fork_server, 2, tmp_path, memory=memory, graph=str(graph), addresses=addresses) as ranks:
        pass_gate(ranks, "batch 0", 2)
        pass_gate(ranks, "batch 2", 2)
        ended = ranks.succeed(seconds=DEADLINE)
    assert [seen_by(rank) for rank in ended] == shares(expected, 2)
    assert sum(line[1] for rank in ended for line in rank.lines if line[0] == "rows of ranks") > 0


def test_a_rank_that_is_killed_takes_no_row_with_it(
    fork_server: ForkServer, graph: Path, addresses: Sequence[str], tmp_path: Path
) -> None:
    """The others have counted on its rows. They read them, and go on."""
    (tmp_path / "alone").mkdir()
    expected = alone(fork_server, graph, tmp_path / "alone")
    with start(fork_server, 3, tmp_path, memory="40KB", graph=str(graph), addresses=addresses) as ranks:
        pass_gate(ranks, "batch 0", 3)
        for rank in range(3):
            ranks.wait_for(rank, "batch 2", seconds=DEADLINE)
        ranks.send(2, signal.SIGKILL)
        for rank in range(2):
            open_gate(ranks.folder, "batch 2", rank=rank)
        *ended, killed = ranks.finish(seconds=DEADLINE)
    assert killed.status == -signal.SIGKILL
    assert not any(rank.status for rank in ended), ended
    assert [seen_by(rank) for rank in ended] == shares(expected, 3)[:2]
