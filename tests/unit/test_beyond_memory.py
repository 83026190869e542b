"""``benchmarks/beyond_memory.py``: its trainer, its cgroup, and what it makes of their figures."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from importlib import import_module
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rich.console import Console

from gigl_loader import DistDataset
from gigl_loader.bench.rounds import Case, run_rounds
from gigl_loader.graph.graph import Graph

if TYPE_CHECKING:
    from types import ModuleType

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
pytestmark = pytest.mark.skipif(
    not BENCHMARKS.exists(), reason="the tests were copied without the benchmarks"
)


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.fixture
def trainer() -> ModuleType:
    return import_module("beyond_trainer")


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    from made_graph import made_tables  # type: ignore[import-not-found]

    from gigl_loader.partition import build_graph

    build_graph(made_tables(nodes=600, edges=3000, dim=4), tmp_path / "graph", num_partitions=1)
    return tmp_path / "graph"


def job(trainer: Any, graph: Path, way: str, **changed: Any) -> Any:
    sizes: dict[str, Any] = {"fanout": (3, 2), "batch_size": 8, "batches": 6, "num_workers": 0}
    return trainer.Job(graph=str(graph), way=way, concurrency=1, patience_s=20, **{**sizes, **changed})


def test_a_job_survives_its_command_line(trainer: Any, graph: Path) -> None:
    made = job(trainer, graph, "windows", options={"window": 3})
    assert trainer.Job.from_json(made.to_json()) == made


@pytest.mark.parametrize(("way", "advised"), [("mapped", True), ("unadvised", False)])
def test_maps_have_the_advice_that_is_measured(trainer: Any, graph: Path, way: str, advised: bool) -> None:
    with (
        trainer.advice(way),
        DistDataset.open(graph) as dataset,
        trainer.open_loader(dataset, job(trainer, graph, way)) as loader,
    ):
        next(iter(loader))
        maps = Path("/proc/self/smaps").read_text().split("\nVmFlags:")
    named = [flags for before, flags in pairwise(maps) if str(graph) in before]
    assert named
    assert [" rr" in flags.partition("\n")[0] for flags in named] == [advised] * len(named)


@pytest.mark.parametrize("seconds", [None, 0.0])
def test_a_trainer_measures_its_batches(trainer: Any, graph: Path, seconds: float | None) -> None:
    found = trainer.measure(job(trainer, graph, "mapped", seconds=seconds))
    assert found["batches"] == (6 if seconds is None else 1)
    assert 8 < found["nodes_per_batch"] < 8 * (1 + 3 + 6)
    assert found["seeds_per_s"] > 0
    assert json.dumps(found)


def test_places_are_the_nodes_of_two_epochs(trainer: Any, graph: Path) -> None:
    made = job(trainer, graph, "places")
    trainer.save_places(made)
    with np.load(trainer.places_file(made)) as saved:
        places = [saved[name] for name in saved.files]
    with DistDataset.open(graph) as dataset, trainer.open_loader(dataset, made) as loader:
        batches = [batch for _ in range(2) for batch in loader]
    rows = Graph.open(graph).node_column("node", "x", 0)
    assert len(places) == len(batches) == 12
    for where, batch in zip(places, batches, strict=True):
        np.testing.assert_array_equal(rows[where], batch.x.numpy())


@pytest.mark.parametrize(
    ("version", "stat", "events"),
    [
        (1, "rss 1\ntotal_rss 30\ntotal_shmem 4\n", "oom_kill_disable 0\noom_kill 2\n"),
        (2, "anon 30\nfile 99\nshmem 4\n", "oom 3\noom_kill 2\n"),
    ],
)
def test_both_versions_of_cgroups_are_read(version: int, stat: str, events: str, tmp_path: Path) -> None:
    memory_group = import_module("memory_group")
    (tmp_path / "memory.stat").write_text(stat)
    (tmp_path / ("memory.oom_control" if version == 1 else "memory.events")).write_text(events)
    group = memory_group.MemoryGroup(tmp_path, version)
    assert (group.own_bytes(), group.kills(), group.peak_bytes()) == (34, 2, 0)


def test_ratios_and_what_failed_are_told(graph: Path) -> None:
    beyond = import_module("beyond_memory")
    speeds = {"windows": iter([90.0, 100.0, 120.0]), "mapped": iter([10.0, 9.0, 20.0])}

    def case(way: str) -> Case:
        return lambda: {f"50 %, {way}": {"limit_gb": 2.0, "seeds_per_s": next(speeds[way])}}

    cases = {way: case(way) for way in speeds}
    cases["50 %, unadvised"] = lambda: {"50 %, unadvised": {"limit_gb": 2.0, "waited_s": 120.0}}
    options = Namespace(nodes=1, edges=1, dim=1, batch_size=1, batches=1, dtype="int8", fanout=(), workers=2)
    document = beyond.document_of(run_rounds(cases, rounds=3), graph, options)
    assert document["figures"]["50 %, windows"]["over_mapped"] == 10
    console = Console(width=200, record=True, file=StringIO())
    console.print(beyond.table_of(document))
    assert "none in 120 s" in console.export_text()


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
def test_a_small_graph_is_measured_under_a_limit(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "beyond_memory.py"), "--quick", "--rounds", "1"]
    command += ["--shares", "3000", "--seconds", "1", "--json", str(tmp_path / "figures.json")]
    command += ["--ways", "mapped,unadvised", "--plot", str(tmp_path / "plot.png")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    if "no memory cgroup" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())["figures"]
    assert len(figures) == 2
    assert all(each["own_gb"] < each["limit_gb"] and each["seeds_per_s"] > 0 for each in figures.values())
    assert (tmp_path / "plot.png").stat().st_size > 1000
