"""Builds of other versions: what works together, under load, and what is refused by name."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from gigl_client import RemoteDistDataset
from gigl_loader import DistNeighborLoader
from gigl_loader.rpc.versions import WIRE_VERSION
from gigl_server.config import ServeOptions
from gigl_server.server import build_storage_server
from tests.support.other_builds import BuildServers
from tests.support.training import FANOUT, OPTIONS, digest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("no_leftovers")

DEADLINE = 60.0
NEXT: dict[str, int] = {"wire_version": WIRE_VERSION + 1, "oldest_wire_version": WIRE_VERSION}
"""The build after this one: it still serves this one's version."""
BEFORE: dict[str, int] = {"wire_version": WIRE_VERSION - 1}
"""A build that this one does not serve any more."""
OTHER_DRAWS: dict[str, int] = {"draw_specification": 99}
TOLD = r"draw specification 99; here it is 2, and batches would differ"


def loader_of(dataset: Any) -> DistNeighborLoader:
    return DistNeighborLoader(dataset, FANOUT, "train", **OPTIONS | {"timeout": DEADLINE, "prefetch_size": 2})


@pytest.mark.slow
def test_a_rolling_upgrade_changes_no_batch(graph: Path, expected: list[int]) -> None:
    """Each server is replaced by the next build while batches are fetched, and then by this one again."""
    with BuildServers(graph, 2) as servers:
        for server in (0, 1):
            servers.start(server)
        with (
            RemoteDistDataset.connect(
                servers.addresses, timeout=DEADLINE, transport="flight", rows="direct"
            ) as dataset,
            loader_of(dataset) as loader,
        ):
            seen = []
            for batch in loader:
                seen.append(digest(batch))
                if len(seen) in (2, 5):
                    server = (2, 5).index(len(seen))
                    assert servers.stop(server)[0] == 0
                    servers.start(server, **NEXT)
                    servers.wait_ready(server)
        assert seen == expected
        with (
            RemoteDistDataset.connect(servers.addresses, timeout=DEADLINE) as dataset,
            loader_of(dataset) as loader,
        ):
            assert [digest(batch) for batch in loader] == expected


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (BEFORE, rf"whose wire version is {WIRE_VERSION}; here it is {WIRE_VERSION - 1}"),
        (OTHER_DRAWS, r"has draw specification 2; here it is 99, and batches would differ"),
    ],
    ids=["wire", "draws"],
)
def test_a_server_that_does_not_fit_is_refused_by_name(graph: Path, build: dict[str, int], told: str) -> None:
    first = ServeOptions(graph_dir=graph, partitions=(0,), listen="127.0.0.1:0", workers=1)
    with build_storage_server(first) as waiting, BuildServers(graph, 2) as servers:
        address = waiting.endpoint.control_address
        servers.start(1, "--peer", address, **build)
        code, log = servers.ended(1)
        assert code == 1
        assert re.search(rf"storage server at {address} runs gigl-loader .*{told}", log.splitlines()[-1]), log
        assert not waiting.ready


def test_a_trainer_of_other_draws_is_refused_at_once(graph: Path) -> None:
    with BuildServers(graph, 1) as servers:
        servers.start(0, **OTHER_DRAWS)
        servers.wait_ready(0)
        began = time.monotonic()
        with pytest.raises(ValueError, match=TOLD) as refused:
            RemoteDistDataset.connect(servers.addresses, timeout=10 * DEADLINE)
        assert time.monotonic() - began < DEADLINE
        assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_a_server_replaced_by_one_of_other_draws_serves_no_run_of_before(
    graph: Path, expected: list[int]
) -> None:
    """Batches that came are right; then the run ends with both numbers, and its state is good."""
    with BuildServers(graph, 1) as servers:
        servers.start(0)
        with (
            RemoteDistDataset.connect(servers.addresses, timeout=DEADLINE) as dataset,
            loader_of(dataset) as loader,
        ):
            batches = iter(loader)
            seen = [digest(next(batches)) for _ in range(2)]
            servers.stop(0)
            servers.start(0, **OTHER_DRAWS)
            with pytest.raises(ValueError, match="draw specification 2; here it is 99"):
                seen.extend(digest(batch) for batch in batches)
            assert seen == expected[: len(seen)]
            assert loader.state_dict()["batches"] == len(seen)
