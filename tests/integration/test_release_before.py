"""The release before this one: servers, trainers and graphs of 0.1.0 with those of this build."""

from __future__ import annotations

import inspect
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader, LaborSamplerOptions
from tests.support.other_builds import BuildServers
from tests.support.pyg_graphs import homogeneous
from tests.support.releases import interpreter
from tests.support.training import FANOUT, OPTIONS, digest

# The first of them builds the release.
pytestmark = [pytest.mark.usefixtures("no_leftovers"), pytest.mark.slow, pytest.mark.timeout(600)]

DEADLINE = 60.0

TRAIN = f"""
import json, sys, zlib
{inspect.getsource(digest)}
from gigl_client import RemoteDistDataset
from gigl_loader import DistNeighborLoader, __version__
addresses, fanout, options = json.loads(sys.argv[1])
with RemoteDistDataset.connect(addresses, timeout=options["timeout"]) as dataset:
    with DistNeighborLoader(dataset, fanout, "train", **options) as loader:
        print(json.dumps([__version__, [digest(batch) for batch in loader]]))
""".replace("batch: Any", "batch")

BUILD = """
import sys, torch
from gigl_loader.partition import build_graph, tables_from_pyg
build_graph(tables_from_pyg(torch.load(sys.argv[1], weights_only=False)), sys.argv[2], num_partitions=2)
"""


@pytest.fixture(scope="module")
def before() -> Path:
    return interpreter("0.1.0")


def loader_of(dataset: Any, **more: Any) -> DistNeighborLoader:
    options = OPTIONS | {"timeout": DEADLINE, "prefetch_size": 2} | more
    return DistNeighborLoader(dataset, FANOUT, "train", **options)


def test_a_rolling_upgrade_and_its_return_change_no_batch(
    graph: Path, expected: list[int], before: Path
) -> None:
    """Two servers of 0.1.0 are replaced by this build under load, one by one, and then by 0.1.0 again."""
    with BuildServers(graph, 2) as servers:
        for server in (0, 1):
            servers.start_release(server, before)
        for server in (0, 1):
            servers.wait_ready(server)
        with RemoteDistDataset.connect(servers.addresses, timeout=DEADLINE) as dataset:
            for start in (servers.start, lambda server: servers.start_release(server, before)):
                seen = []
                with loader_of(dataset) as loader:
                    for batch in loader:
                        seen.append(digest(batch))
                        if len(seen) in (2, 5):
                            server = (2, 5).index(len(seen))
                            assert servers.stop(server)[0] == 0
                            start(server)
                            servers.wait_ready(server)
                assert seen == expected


def test_a_trainer_of_the_release_before_trains_from_servers_of_this_build(
    graph: Path, expected: list[int], before: Path
) -> None:
    with BuildServers(graph, 2) as servers:
        for server in (0, 1):
            servers.start(server)
        for server in (0, 1):
            servers.wait_ready(server)
        given = json.dumps([servers.addresses, FANOUT, OPTIONS | {"timeout": DEADLINE}])
        command = [str(before), "-I", "-c", TRAIN, given]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["0.1.0", expected]


def test_what_the_release_before_has_not_is_refused_by_name(graph: Path, before: Path) -> None:
    with BuildServers(graph, 1) as servers:
        servers.start_release(0, before)
        servers.wait_ready(0)
        plan = LaborSamplerOptions(batch_dependency=4)
        with (
            RemoteDistDataset.connect(servers.addresses, timeout=DEADLINE) as dataset,
            pytest.raises(ValueError, match="batch_dependency"),
            loader_of(dataset, sampler_options=plan) as loader,
        ):
            next(iter(loader))
        with (
            RemoteDistDataset.connect(servers.addresses, timeout=DEADLINE) as dataset,
            loader_of(dataset) as loader,
        ):
            assert sum(1 for _ in loader) == len(loader)


def test_a_graph_of_the_release_before_gives_the_same_batches(
    expected: list[int], before: Path, tmp_path: Path
) -> None:
    torch.save(homogeneous(1_000, 8_000), tmp_path / "data.pt")
    command = [str(before), "-I", "-c", BUILD, str(tmp_path / "data.pt"), str(tmp_path / "graph")]
    subprocess.run(command, check=True, timeout=120)
    dataset = DistDataset.open(tmp_path / "graph", verify="full")
    with DistNeighborLoader(dataset, FANOUT, "train", **OPTIONS | {"num_workers": 0}) as loader:
        assert [digest(batch) for batch in loader] == expected
