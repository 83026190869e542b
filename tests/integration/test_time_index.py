"""Indexes of times: from the command line, built or added in place, checked and damaged."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from gigl_loader import DistDataset, DistNeighborLoader, FormatError
from gigl_loader.graph import Graph
from gigl_loader.graph.schema import GraphSchema
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.partition.steps.index import add_indexes
from tests.support.command_line import run_here
from tests.support.pyg_graphs import weighted

EDGE = ("node", "to", "node")


def _files(path: Path) -> dict[str, bytes]:
    return {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}


def _build(path: Path, data: Any = None, **options: Any) -> GraphSchema:
    tables = tables_from_pyg(weighted() if data is None else data, **options)
    return build_graph(tables, path, num_partitions=2, assigner="hash")


@pytest.mark.parametrize("of", ["edges", "nodes"])
def test_a_graph_that_is_indexed_is_the_graph_that_was_built_with_the_times(
    tmp_path: Path, of: Literal["edges", "nodes"]
) -> None:
    column, kind = ("t", "node,to,node") if of == "edges" else ("born", "node")
    plain, indexed = tmp_path / "plain", tmp_path / "indexed"
    _build(plain, weight_attr="w")
    _build(indexed, weight_attr="w", time_attr=column)
    said = run_here("index", str(plain), "--time", column).stdout
    assert said.endswith(f"batches can be drawn in time by {column} of {kind}\n")
    assert _files(plain) == _files(indexed)
    again = json.loads(run_here("index", str(plain), "--time", f"{kind}:{column}", "--json").stdout)
    assert again["times"] == {kind: [column]}
    assert _files(plain) == _files(indexed)
    assert f"times: {column}" in run_here("inspect", str(plain), "--verify").stdout


@pytest.mark.parametrize("columns", [False, True])
def test_weights_that_are_added_are_indexed_in_time_too(tmp_path: Path, *, columns: bool) -> None:
    """Also where they and the times are columns of a matrix, [N, 1], and the times are no int64."""
    added, built, data = tmp_path / "added", tmp_path / "built", weighted()
    if columns:
        data.w, data.t, data.born = (each.view(-1, 1) for each in (data.w, data.t.int(), data.born.short()))
    _build(added, data)
    add_indexes(added, times={EDGE: ("t",), "node": ("born",)})
    add_indexes(added, weights={EDGE: ("w",)})
    _build(built, data, weight_attr="w", time_attr={EDGE: "t", "node": "born"})
    assert _files(added) == _files(built)
    assert len([name for name in _files(built) if name.endswith("/w.safetensors")]) == 2 * 3


@pytest.mark.parametrize("memory_limit", [30_000, None])
def test_the_order_of_time_is_that_of_the_written_rules(tmp_path: Path, memory_limit: int | None) -> None:
    data = weighted()
    tables = tables_from_pyg(data, time_attr={EDGE: "t", "node": "born"})
    build_graph(tables, tmp_path / "g", num_partitions=3, assigner="hash", memory_limit=memory_limit)
    graph = Graph.open(tmp_path / "g")
    for part in range(3):
        topology = graph.topology(EDGE, part)
        for name, of_entry in (
            ("t", data.t.numpy()[topology["edge_ids"]]),
            ("born", data.born.numpy()[_ids(graph, topology["indices"])]),
        ):
            times, slots = graph.times(EDGE, name, part)
            for begin, end in zip(topology["indptr"], topology["indptr"][1:], strict=False):
                expected = sorted(range(begin, end), key=lambda slot: of_entry[slot])
                assert slots[begin:end].tolist() == expected
                assert times[begin:end].tolist() == of_entry[expected].tolist()
    born = graph.node_times("node", "born")
    by_id = np.argsort(_ids(graph, np.arange(300)))
    assert born.times.tolist() == data.born.numpy()[_ids(graph, np.arange(300))].tolist()
    assert born.order.tolist() == sorted(by_id.tolist(), key=lambda position: born.times[position])


def _ids(graph: Graph, positions: Any) -> Any:
    ids = graph.node_ids("node")
    return positions if ids is None else ids[positions]


def test_times_from_tables(tmp_path: Path) -> None:
    edges, nodes = tmp_path / "edges.csv", tmp_path / "nodes.csv"
    edges.write_text("src,dst,seen\n0,1,5\n2,1,3\n3,1,9\n")
    nodes.write_text("id,born\n0,1\n1,4\n2,2\n3,3\n")
    out = tmp_path / "graph"
    tables = ("--edges", str(edges), "--nodes", str(nodes), "--undirected")
    assert run_here("partition", str(out), *tables, "--time", "seen", "--time", "node:born").returncode == 0
    dataset = DistDataset.open(out)
    options: dict[str, Any] = {"num_workers": 0, "device": "cpu", "with_edge": True}
    with DistNeighborLoader(
        dataset, [-1], torch.tensor([1]), time_attr="seen", input_time=torch.tensor([5]), **options
    ) as loader:
        [batch] = loader
        assert batch.n_id.tolist() == [1, 2, 0], "in order of time"
    with DistNeighborLoader(dataset, [1], torch.tensor([1]), time_attr="born", **options) as loader:
        assert next(iter(loader)).seed_time.tolist() == [4]
    out = tmp_path / "other"
    refused = run_here("partition", str(out), *tables, "--time", "absent")
    assert refused.returncode == 2
    assert refused.stderr == "gigl-loader: --time absent: no node or edge type has a column 'absent'\n"
    assert not out.exists()


def test_dates_of_tables_are_times_with_a_unit(tmp_path: Path) -> None:
    edges, out = tmp_path / "edges.csv", tmp_path / "graph"
    edges.write_text("src,dst,seen\n0,1,2020-01-05\n2,1,2020-01-03 12:00:00\n3,1,2020-01-09\n")
    assert run_here("partition", str(out), "--edges", str(edges)).returncode == 0
    assert run_here("index", str(out), "--time", "seen").returncode == 0
    dataset = DistDataset.open(out)
    assert dataset.schema.edges[EDGE].columns["seen"].unit == "ns"
    options: dict[str, Any] = {"num_workers": 0, "device": "cpu", "with_edge": True, "time_attr": "seen"}
    for day, window, found in (("2020-01-05", None, [1, 0]), ("2020-01-05", timedelta(1), [0])):
        with DistNeighborLoader(
            dataset,
            [-1],
            torch.tensor([1]),
            input_time=np.array([day], "M8[D]"),
            time_window=window,
            **options,
        ) as loader:
            assert next(iter(loader)).e_id.tolist() == found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--time", "z"], "--time z: no node or edge type has a column 'z'"),
        (["--time", "x"], "the times 'x' are no column of integers"),
        (["--time", "a,b,c:t"], "unknown edge type ('a', 'b', 'c')"),
        ([], "nothing to add"),
    ],
)
def test_columns_that_cannot_be_indexed_are_refused_in_one_line(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    path = tmp_path / "graph"
    _build(path)
    before = _files(path)
    refused = run_here("index", str(path), *arguments)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert _files(path) == before


@pytest.mark.parametrize("array", ["slots", "times"])
def test_a_damaged_order_is_refused_when_it_is_first_used(tmp_path: Path, array: str) -> None:
    path = tmp_path / "graph"
    _build(path, time_attr="t")
    file = path / "part-00001/times/node+to+node/t.safetensors"
    with file.open("r+b") as opened:
        opened.seek(-12 if array == "slots" else 400, 2 if array == "slots" else 0)
        opened.write(b"\xff\xff\xff\x7f")
    options: dict[str, Any] = {"num_workers": 0, "time_attr": "t", "input_time": torch.full((300,), 99)}
    with pytest.raises(FormatError, match=r"part-00001/times/node\+to\+node/t\.safetensors"):
        DistNeighborLoader(DistDataset.open(path), [3], **options)
