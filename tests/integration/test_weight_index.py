"""Weight indexes that are added to a graph in place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from gigl_loader import FormatError
from gigl_loader.graph import Graph
from gigl_loader.graph.weights import running_sums
from gigl_loader.partition import ArrayTable, GraphTables, build_graph, tables_from_pyg
from gigl_loader.partition.steps.index import add_indexes
from tests.support.command_line import COMMAND, run, run_here
from tests.support.graph_files import as_alpha, as_version_1
from tests.support.pyg_graphs import homogeneous, weighted

EDGE = ("node", "to", "node")


def _files(path: Path) -> dict[str, bytes]:
    return {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}


def test_a_graph_that_is_indexed_is_the_graph_that_was_built_with_the_weights(tmp_path: Path) -> None:
    plain, indexed = tmp_path / "plain", tmp_path / "indexed"
    build_graph(tables_from_pyg(weighted()), plain, num_partitions=2)
    build_graph(tables_from_pyg(weighted(), weight_attr="w"), indexed, num_partitions=2)
    before = _files(plain)
    assert run_here("index", str(plain), "--weight", "w").stdout.endswith(
        "edges node,to,node can be drawn by w\n"
    )
    assert _files(plain) == _files(indexed)
    assert {name for name in before if before[name] != _files(plain)[name]} == {"graph.json"}
    assert json.loads(run_here("index", str(plain), "--weight", "w", "--json").stdout)["weights"] == {
        "node,to,node": ["w"]
    }
    assert _files(plain) == _files(indexed)
    shown = run_here("inspect", str(plain), "--verify").stdout
    assert "weights: w" in shown


def test_what_an_interrupted_index_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "graph"
    build_graph(tables_from_pyg(weighted()), path)
    left = path / "part-00000/weights/node+to+node/w.safetensors"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    Graph.open(path).verify()
    add_indexes(path, weights={EDGE: ("w",)})
    Graph.open(path).verify()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("z", "no edge type has a column 'z'; known: edge_attr, t, w"),
        ("edge_attr", "a weight is one number an edge"),
        ("node:w", "'node' is no edge type"),
        ("a,b,c:w", "unknown edge type"),
    ],
)
def test_columns_that_cannot_be_indexed_are_refused_in_one_line(
    tmp_path: Path, option: str, message: str
) -> None:
    path = tmp_path / "graph"
    build_graph(tables_from_pyg(weighted()), path)
    before = _files(path)
    refused = run_here("index", str(path), "--weight", option)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert _files(path) == before


def test_a_value_that_is_no_weight_is_refused_with_its_place(tmp_path: Path) -> None:
    data = weighted()
    data.w[7] = -1
    path = tmp_path / "graph"
    build_graph(tables_from_pyg(data), path)
    before = _files(path)
    with pytest.raises(FormatError, match=r"part-00000/edges/.*, column 'w', row \d+: a weight is finite"):
        add_indexes(path, weights={EDGE: ("w",)})
    assert _files(path) == before


@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.some(1)
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(tmp_path: Path, kind: signal.Signals) -> None:
    path = tmp_path / "graph"
    random = np.random.default_rng(0)
    ends = {name: random.integers(0, 10**5, 3 * 10**6) for name in ("src", "dst")}
    tables = GraphTables(edges={EDGE: ArrayTable("edges", {**ends, "w": random.random(3 * 10**6)})})
    build_graph(tables, path, num_partitions=8)
    before = _files(path)
    child = subprocess.Popen(
        [*COMMAND, "index", str(path), "--weight", "w"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        while not list(path.glob("part-*/weights/*/w.safetensors")):
            assert child.poll() is None, "the index was done before it could be interrupted"
            time.sleep(0.005)
        os.kill(child.pid, kind)
        _, errors = child.communicate(timeout=30)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 128 + kind
    assert b"Traceback" not in errors
    assert _files(path) == before


def test_only_one_process_changes_a_graph_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "graph"
    build_graph(tables_from_pyg(weighted()), path)
    seen: list[subprocess.CompletedProcess[str]] = []

    def other(*_: object) -> None:
        if not seen:
            seen.append(run("index", str(path), "--weight", "w"))

    add_indexes(path, weights={EDGE: ("w",)}, progress=other)
    assert seen[0].returncode == 2
    assert "another process adds an index: wait until it is done" in seen[0].stderr
    assert seen[0].stderr.count("\n") == 1
    assert run_here("index", str(path), "--weight", "w").returncode == 0
    Graph.open(path).verify()


def test_a_graph_of_version_1_becomes_one_of_version_2(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for path in (old, new):
        build_graph(tables_from_pyg(weighted()), path, num_partitions=2)
    as_version_1(old)
    for path in (old, new):
        add_indexes(path, weights={EDGE: ("w",)})
    assert _files(old) == _files(new)


def test_weights_in_the_topology_of_early_graphs_are_indexed(tmp_path: Path) -> None:
    path = tmp_path / "graph"
    build_graph(tables_from_pyg(homogeneous()), path, num_partitions=2)
    as_alpha(path)
    assert run_here("index", str(path), "--weight", "weight").returncode == 0
    graph = Graph.open(path)
    graph.verify()
    for part in range(2):
        topology = graph.topology(EDGE, part)
        sums, counts = running_sums(topology["weight"].astype(np.float64), topology["indptr"])
        assert sums.any()
        for found, made in zip(graph.weights(EDGE, "weight", part), (sums, counts), strict=True):
            assert np.array_equal(found, made)


def test_a_damaged_column_is_not_indexed(tmp_path: Path) -> None:
    path = tmp_path / "graph"
    build_graph(tables_from_pyg(weighted()), path)
    column = path / "part-00000/edges/node+to+node.safetensors"
    with open(column, "r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"\x00\x01")
    with pytest.raises(FormatError, match="do not match their checksum"):
        add_indexes(path, weights={EDGE: ("w",)})
