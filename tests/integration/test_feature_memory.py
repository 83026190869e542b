"""Memory of a process whose features are read from a disk: by its own count, and by its control group's."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not BENCHMARKS.exists(), reason="the tests were copied without the benchmarks"),
]

NODES, EDGES, WIDTH = 200_000, 4_000_000, 512
FEATURES = 4 * NODES * WIDTH
TOPOLOGY = 8 * NODES + 8 * EDGES
CACHE = 96 << 20
OTHER = 64 << 20
"""Frames in flight of 1.6 MB each, skeletons, the reader's buffers, what PyTorch keeps, code loaded late."""

PROGRAM = """
import json, sys
from pathlib import Path

import torch

from gigl_loader import DistDataset, DistNeighborLoader

path, memory, charged = sys.argv[1:]


def resident():
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return [int(lines[name].split()[0]) << 10 for name in ("RssAnon", "RssFile")]


before, most = resident(), [0, 0]
result = {"charged_before": int(Path(charged).read_text()) if charged else 0}
options = {"batch_size": 64, "shuffle": True, "seed": 1, "num_workers": 0, "feature_memory": memory}
with DistDataset.open(path) as dataset, DistNeighborLoader(dataset, [6, 3], **options) as loader:
    for batch, _ in zip(loader, range(400)):
        most = [max(known, now - then) for known, now, then in zip(most, resident(), before)]
    result.update(loader.stats()["rows"], anonymous=most[0], files=most[1])
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of 410 MB of features and 34 MB of topology."""
    path = tmp_path_factory.mktemp("graphs") / "graph"
    random = np.random.default_rng(0)
    nodes: dict[str, np.ndarray] = {
        "id": np.arange(NODES),
        "x": random.random((NODES, WIDTH), dtype=np.float32),
    }
    edges = {each: random.integers(0, NODES, EDGES) for each in ("src", "dst")}
    tables = GraphTables(
        edges={("node", "to", "node"): ArrayTable("edges", edges)},
        nodes={"node": NodeTable(ArrayTable("nodes", nodes))},
    )
    build_graph(tables, path)
    return path


def measured(graph: Path, feature_memory: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return by how many bytes the memory of a trainer grew at most, and the rows that it read."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    groups = import_module("memory_group")
    groups.forget_pages(graph)
    with ExitStack() as stack:
        command, charged, group = [sys.executable, "-c", PROGRAM, str(graph), feature_memory], "", None
        try:
            group = stack.enter_context(groups.memory_group(64 << 30))
            charged = str(group.path / ("memory.usage_in_bytes" if group.version == 1 else "memory.current"))
            command = group.command(command)
        except RuntimeError as error:
            warnings.warn(f"only the own count of the process is checked: {error}", stacklevel=2)
        done = subprocess.run([*command, charged], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, int] = json.loads(done.stdout)
        peak = group.peak_bytes() if group else 0
        found["charged"] = peak - found["charged_before"] if peak else 0
    return found


def test_features_from_disk_stay_within_their_memory(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(graph, str(CACHE), monkeypatch)
    assert found["disk"] > CACHE // (4 * WIDTH), "the cache was filled, and more than once"
    assert found["anonymous"] < CACHE + OTHER
    assert found["files"] < TOPOLOGY + OTHER // 2
    assert found["charged"] < CACHE + TOPOLOGY + OTHER


def test_features_in_memory_do_not(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures of the other test can tell."""
    found = measured(graph, "4GB", monkeypatch)
    assert found["files"] > FEATURES // 2 > CACHE + OTHER
    if found["charged"]:
        assert found["charged"] > FEATURES > CACHE + TOPOLOGY + OTHER
