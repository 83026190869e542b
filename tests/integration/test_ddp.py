"""The example of distributed training does the same with any number of ranks, hosts and partitions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.hosts import Host, Network, missing_for_hosts
from tests.support.leftovers import wait_until
from tests.support.torchrun import Torchrun, run_torchrun

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "ddp.py"
COMMAND = [str(SCRIPT), "--json", "--epochs", "1", "--max-steps", "4"]
SECONDS = 100.0

pytestmark = [
    pytest.mark.usefixtures("no_leftovers"),
    pytest.mark.skipif(not SCRIPT.exists(), reason="the tests were copied without the examples"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of two partitions: ten classes that the features and the neighbours tell."""
    random = torch.Generator().manual_seed(0)
    label = torch.arange(1_200) % 10
    source, target = torch.randint(1_200, (2, 12_000), generator=random)
    x = torch.randn(1_200, 20, generator=random) + 3 * torch.eye(10)[label].repeat(1, 2)
    chosen = torch.rand(1_200, generator=random) < 0.7
    edges = torch.stack([source, target - target % 10 + source % 10])
    data = Data(x=x, y=label, edge_index=edges, train_mask=chosen, test_mask=~chosen)
    path = tmp_path_factory.mktemp("graphs") / "whole"
    build_graph(tables_from_pyg(data), path, num_partitions=2)
    return path


@pytest.fixture(scope="module")
def graphs_of_hosts(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what each host has of the graph: one partition."""
    folder = tmp_path_factory.mktemp("hosts")
    for host in range(2):
        lacking = shutil.ignore_patterns(f"part-{1 - host:05d}")
        shutil.copytree(whole, folder / f"graph-{host}", ignore=lacking)
    return folder


@pytest.fixture(scope="module")
def alone(whole: Path) -> list[dict[str, float]]:
    """What one process prints that knows of no other."""
    return _parse(_run_alone("--graph", str(whole)))


@pytest.fixture
def two_hosts() -> Iterator[Sequence[Host] | None]:
    """Two hosts, or none where they cannot be made: then both are on this machine."""
    if missing_for_hosts():
        yield None
    else:
        with Network.of(2) as network:
            yield network.hosts


def _run_alone(*options: str) -> str:
    done = subprocess.run(
        [sys.executable, *COMMAND, *options],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def _parse(printed: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in printed.splitlines()]


def _check_same(printed: str, alone: list[dict[str, float]]) -> None:
    """The first weights and batches are the same; sums are rounded in another order."""
    lines = _parse(printed)
    assert [line.keys() for line in lines] == [line.keys() for line in alone]
    for line, expected in zip(lines, alone, strict=True):
        assert line == pytest.approx(expected, rel=1e-5 if "loss" in line else 0.02)


@pytest.mark.slow
def test_one_process_learns(alone: list[dict[str, float]]) -> None:
    losses = [line["loss"] for line in alone[:-1]]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)
    assert alone[-1]["test_accuracy"] > 0.5


@pytest.mark.slow
def test_without_a_graph_it_learns_digits() -> None:
    assert "test_accuracy" in _run_alone("--max-steps", "1")


@pytest.mark.slow
def test_four_ranks_do_the_same(whole: Path, alone: list[dict[str, float]], tmp_path: Path) -> None:
    (printed,) = run_torchrun(
        *COMMAND, "--graph", str(whole), ranks_per_host=4, seconds=SECONDS, folder=tmp_path
    )
    _check_same(printed, alone)


@pytest.mark.slow
def test_two_hosts_of_two_ranks_do_the_same_each_with_one_partition(
    graphs_of_hosts: Path,
    alone: list[dict[str, float]],
    two_hosts: Sequence[Host] | None,
    tmp_path: Path,
) -> None:
    first, second = run_torchrun(
        *(*COMMAND, "--graph", str(graphs_of_hosts / "graph-{host}")),
        ranks_per_host=2,
        num_hosts=2,
        hosts=two_hosts,
        seconds=SECONDS,
        folder=tmp_path,
    )
    _check_same(first, alone)
    assert second == ""


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_job_on_both_hosts_and_leaves_nothing(
    graphs_of_hosts: Path, two_hosts: Sequence[Host] | None, tmp_path: Path
) -> None:
    # The other rank may wait for rows of the host that is gone just then: a fault that may pass.
    options = ["--json", "--epochs", "1000", "--timeout", "30"]
    command = [str(SCRIPT), *options, "--graph", str(graphs_of_hosts / "graph-{host}")]
    with Torchrun(*command, ranks_per_host=1, num_hosts=2, hosts=two_hosts, folder=tmp_path) as job:
        assert wait_until(lambda: "loss" in job.output(0), seconds=SECONDS), job.errors(0)
        job.ranks()[1].kill()
        assert all(job.finish(seconds=SECONDS))
    assert "Signal 9 (SIGKILL)" in job.errors(1)
