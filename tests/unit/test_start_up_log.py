"""The log of a graph store's start: docs/graph-store.md shows one as it comes."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gigl_client import RemoteDistDataset
from gigl_loader import DistNeighborLoader
from gigl_loader.logs import RankFilter
from tests.support.clusters import addresses_of, servers_of
from tests.support.store_graph import write_graph
from tests.support.thread_ranks import run_ranks

if TYPE_CHECKING:
    from gigl_loader.group import RankGroup

PAGE = Path(__file__).parents[2] / "docs" / "graph-store.md"
_SHOWN = re.compile(r"### The log of the start\n.*?```text\n(.*?)```", re.S)
_TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} "

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the tests were copied without the pages")


def _shape(line: str) -> str:
    """Return a line without its numbers. A rank that comes late is not in the line of its leader."""
    line = re.sub(r" led ranks? \d+(, \d+)*", " led ranks N", line)
    return re.sub(r"\d+(\.\d+)*", "N", line)


def test_the_page_shows_the_log_of_four_ranks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = _SHOWN.search(PAGE.read_text())
    assert found is not None
    shown = [re.sub(_TIME, "", line) for line in found[1].splitlines()]
    assert all(line.startswith("INFO rank ") for line in shown), shown

    connected = threading.Barrier(4)
    caplog.handler.addFilter(RankFilter())
    with servers_of(write_graph(tmp_path / "graph"), 2) as servers:

        def program(group: RankGroup) -> None:
            options: dict[str, Any] = {"batch_size": 16, "seed": 1, "name": "train", "timeout": 60}
            with RemoteDistDataset.connect(addresses_of(servers), timeout=60) as dataset:
                connected.wait(60)
                loader = DistNeighborLoader(
                    dataset,
                    [3, 2],
                    worker_key=f"host {group.rank // 2}",
                    max_concurrent_producer_inits=1,
                    process_start_gap_seconds=0.5,
                    **options,
                )
                loader.shutdown()

        for name in ("gigl_loader", "gigl_client"):
            caplog.set_level(logging.INFO, logger=name)
        assert run_ranks(4, program) == [None] * 4
    lines = [
        f"{record.levelname} {record.rank}{record.name}: {record.getMessage()}"  # type: ignore[attr-defined]
        for record in caplog.records
        if record.name.startswith(("gigl_loader", "gigl_client"))
    ]
    assert Counter(map(_shape, lines)) == Counter(map(_shape, shown))
