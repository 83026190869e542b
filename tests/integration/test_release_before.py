"""The release before this one: servers, trainers and graphs of 0.1.0 with those of this build."""

from __future__ import annotations

import inspect
import json
import subprocess
from pathlib import Path

import pytest
import torch

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader
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


def test_a_server_of_the_release_before_is_refused_by_name(graph: Path, before: Path) -> None:
    with BuildServers(graph, 1) as servers:
        servers.start_release(0, before)
        servers.wait_ready(0)
        with pytest.raises(
            ValueError, match=r"runs gigl-loader 0\.1\.0, whose wire version is .*4; here it is 5"
        ):
            RemoteDistDataset.connect(servers.addresses, timeout=DEADLINE)


def test_a_trainer_of_the_release_before_refuses_servers_of_this_build_by_name(
    graph: Path, before: Path
) -> None:
    with BuildServers(graph, 1) as servers:
        servers.start(0)
        servers.wait_ready(0)
        given = json.dumps([servers.addresses, FANOUT, OPTIONS | {"timeout": DEADLINE}])
        command = [str(before), "-I", "-c", TRAIN, given]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "whose wire version is 5; here it is" in done.stderr.splitlines()[-1]


def test_a_graph_of_the_release_before_gives_the_same_batches(
    expected: list[int], before: Path, tmp_path: Path
) -> None:
    torch.save(homogeneous(1_000, 8_000), tmp_path / "data.pt")
    command = [str(before), "-I", "-c", BUILD, str(tmp_path / "data.pt"), str(tmp_path / "graph")]
    subprocess.run(command, check=True, timeout=120)
    dataset = DistDataset.open(tmp_path / "graph", verify="full")
    with DistNeighborLoader(dataset, FANOUT, "train", **OPTIONS | {"num_workers": 0}) as loader:
        assert [digest(batch) for batch in loader] == expected
