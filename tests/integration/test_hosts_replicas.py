"""Hosts that hold copies of partitions: the service of one may be gone for good, and no batch fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.leftovers import wait_until
from tests.support.pyg_graphs import homogeneous
from tests.support.ranks import Ranks, places
from tests.support.training import FANOUT, OPTIONS, PROGRAM, digest, open_gate, seen_by, shares

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fork_server import ForkServer

pytestmark = pytest.mark.usefixtures("no_leftovers")

TIMEOUT = 60.0
DEADLINE = 120.0
HELD = ((0, 1), (1, 2), (0, 2))
LIVES = 3
"""A service that dies is started again twice."""


def test_a_service_that_is_gone_for_good_fails_no_batch(fork_server: ForkServer, tmp_path: Path) -> None:
    graph = tmp_path / "graph"
    build_graph(tables_from_pyg(homogeneous(1_000, 8_000)), graph, num_partitions=3)
    options = OPTIONS | {"num_workers": 0}
    with DistNeighborLoader(DistDataset.open(graph), FANOUT, "train", **options) as alone:
        expected = [digest(batch) for batch in alone]
    arguments: dict[str, Any] = {
        "graph": str(graph),
        "folder": str(tmp_path),
        "collective_seconds": TIMEOUT,
        "loader": {"timeout": TIMEOUT, "worker_concurrency": 1},
    }
    special = {
        rank: {"dataset": {"partitions": list(parts), "timeout": TIMEOUT}, "gates": ["batch 1"] * (rank == 0)}
        for rank, parts in enumerate(HELD)
    }
    with Ranks(
        fork_server, PROGRAM, places(1, 1, 1), tmp_path, arguments=arguments, special=special
    ) as ranks:
        ranks.wait_for(0, "batch 1", seconds=DEADLINE)
        killed: set[int] = set()
        for _ in range(LIVES):

            def started() -> list[Any]:
                return [each for each in ranks.children(1, "gigl-peer") if each.pid not in killed]

            assert wait_until(started, seconds=DEADLINE)
            (service,) = started()
            killed.add(service.pid)
            service.kill()
        assert wait_until(lambda: not ranks.children(1, "gigl-peer"), seconds=DEADLINE)
        open_gate(tmp_path, "batch 1", rank=0)
        ended = ranks.succeed(seconds=DEADLINE)
    assert [seen_by(rank) for rank in ended] == shares(expected, 3)
