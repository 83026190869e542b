"""Weighted draws through the loader: the same batches in every mode; graphs that are indexed in place."""

from __future__ import annotations

import json
import os
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader, FormatError
from gigl_loader.graph import Graph
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.partition.index import add_weights
from tests.support.clusters import addresses_of, check_same, servers_of
from tests.support.pyg_graphs import heterogeneous, homogeneous
from tests.unit.test_cli import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OPTIONS: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 5, "device": "cpu", "timeout": 60.0}
FANOUT = [4, 3]
EDGE = ("node", "to", "node")


def _weighted(*, hetero: bool = False) -> Any:
    """A third of the edges has no weight."""
    data = heterogeneous() if hetero else homogeneous()
    random = torch.Generator().manual_seed(1)
    stores = [data["user", "buys", "item"], data["user", "follows", "user"]] if hetero else [data]
    for store in stores:
        count = store.edge_index.shape[1]
        store.w = torch.rand(count, generator=random) * (torch.arange(count) % 3).float()
    return data


def _epochs(dataset: Any, nodes: Any = None, **options: Any) -> list[Any]:
    with DistNeighborLoader(dataset, FANOUT, nodes, weight_attr="w", **{**OPTIONS, **options}) as loader:
        return [batch for _ in range(2) for batch in loader]


@pytest.fixture(scope="module", params=["homogeneous", "heterogeneous"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    hetero = request.param == "heterogeneous"
    path = tmp_path_factory.mktemp("weighted") / "graph"
    tables = tables_from_pyg(_weighted(hetero=hetero), weight_attr="w")
    build_graph(tables, path, num_partitions=3, assigner="hash")
    return path, ("item", None) if hetero else None


@pytest.fixture(scope="module")
def expected(built: tuple[Path, Any]) -> list[Any]:
    path, nodes = built
    return _epochs(DistDataset.open(path), nodes, num_workers=0)


def test_no_edge_without_weight_is_in_a_batch(expected: list[Any]) -> None:
    weights = [store["w"] for batch in expected for store in batch.stores if "w" in store]
    assert sum(map(len, weights)) > 1000
    assert all((each > 0).all() for each in weights)


def test_workers_give_the_batches_of_the_embedded_loader(
    built: tuple[Path, Any], expected: list[Any]
) -> None:
    path, nodes = built
    check_same(_epochs(DistDataset.open(path), nodes, num_workers=2), expected)


def test_partitioning_changes_no_batch(built: tuple[Path, Any], expected: list[Any]) -> None:
    _, nodes = built
    data = _weighted(hetero=nodes is not None)
    alone = DistDataset.from_pyg(data, weight_attr="w")
    check_same(_epochs(alone, nodes, num_workers=0), expected)


@pytest.fixture(scope="module")
def address(built: tuple[Path, Any]) -> Iterator[str]:
    with servers_of(built[0], 3) as servers:
        yield addresses_of(servers)[0]


@pytest.mark.parametrize("transport", ["ring", "flight"])
@pytest.mark.parametrize("rows", ["through", "direct"])
def test_storage_servers_give_the_batches_of_the_embedded_loader(
    built: tuple[Path, Any], address: str, expected: list[Any], transport: Any, rows: Any
) -> None:
    with RemoteDistDataset.connect(address, transport=transport, rows=rows, timeout=60) as dataset:
        check_same(_epochs(dataset, built[1]), expected)


def test_an_epoch_goes_on_where_it_was_left(
    built: tuple[Path, Any], address: str, expected: list[Any]
) -> None:
    path, nodes = built
    with DistNeighborLoader(DistDataset.open(path), FANOUT, nodes, weight_attr="w", **OPTIONS) as loader:
        list(islice(loader, 2))
        state = json.loads(json.dumps(loader.state_dict()))
    with (
        RemoteDistDataset.connect(address, timeout=60) as dataset,
        DistNeighborLoader(dataset, FANOUT, nodes, weight_attr="w", **OPTIONS) as other,
    ):
        other.load_state_dict(state)
        check_same(list(other), expected[2 : len(other)])
    with (
        DistNeighborLoader(DistDataset.open(path), FANOUT, nodes, **OPTIONS) as uniform,
        pytest.raises(ValueError, match="weight_attr is None here, w in the state"),
    ):
        uniform.load_state_dict(state)


def test_weights_that_are_not_declared_are_refused_with_the_command(tmp_path: Path) -> None:
    build_graph(tables_from_pyg(_weighted()), tmp_path / "graph")
    dataset = DistDataset.open(tmp_path / "graph")
    with pytest.raises(ValueError, match=r"'w' is not declared .* gigl-loader index GRAPH --weight w"):
        DistNeighborLoader(dataset, FANOUT, weight_attr="w", **OPTIONS)


# --- indexed in place


def _files(path: Path) -> dict[str, bytes]:
    return {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}


def test_a_graph_that_is_indexed_is_the_graph_that_was_built_with_the_weights(tmp_path: Path) -> None:
    plain, weighted = tmp_path / "plain", tmp_path / "weighted"
    build_graph(tables_from_pyg(_weighted()), plain, num_partitions=2)
    build_graph(tables_from_pyg(_weighted(), weight_attr="w"), weighted, num_partitions=2)
    before = _files(plain)
    assert run("index", str(plain), "--weight", "w").stdout.endswith("edges node,to,node can be drawn by w\n")
    assert _files(plain) == _files(weighted)
    assert {name for name in before if before[name] != _files(plain)[name]} == {"graph.json"}
    assert json.loads(run("index", str(plain), "--weight", "w", "--json").stdout)["weights"] == {
        "node,to,node": ["w"]
    }
    assert _files(plain) == _files(weighted)
    shown = run("inspect", str(plain), "--verify").stdout
    assert "weights: w" in shown


def test_what_an_interrupted_index_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "graph"
    build_graph(tables_from_pyg(_weighted()), path)
    left = path / "part-00000/weights/node+to+node/w.safetensors"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    Graph.open(path).verify()
    add_weights(path, {EDGE: ("w",)})
    Graph.open(path).verify()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("z", "no edge type has a column 'z'; known: edge_attr, w"),
        ("edge_attr", "a weight is one number an edge"),
        ("node:w", "'node' is no edge type"),
        ("a,b,c:w", "unknown edge type"),
    ],
)
def test_columns_that_cannot_be_indexed_are_refused_in_one_line(
    tmp_path: Path, option: str, message: str
) -> None:
    path = tmp_path / "graph"
    build_graph(tables_from_pyg(_weighted()), path)
    before = _files(path)
    refused = run("index", str(path), "--weight", option)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert _files(path) == before


def test_a_value_that_is_no_weight_is_refused_with_its_place(tmp_path: Path) -> None:
    data = _weighted()
    data.w[7] = -1
    path = tmp_path / "graph"
    build_graph(tables_from_pyg(data), path)
    before = _files(path)
    with pytest.raises(FormatError, match=r"part-00000/edges/.*, column 'w', row \d+: a weight is finite"):
        add_weights(path, {EDGE: ("w",)})
    Graph.open(path).verify()
    assert {name: data for name, data in _files(path).items() if "/weights/" not in name} == before


def test_a_damaged_column_is_not_indexed(tmp_path: Path) -> None:
    path = tmp_path / "graph"
    build_graph(tables_from_pyg(_weighted()), path)
    column = path / "part-00000/edges/node+to+node.safetensors"
    with open(column, "r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"\x00\x01")
    with pytest.raises(FormatError, match="do not match their checksum"):
        add_weights(path, {EDGE: ("w",)})


def test_weights_are_declared_on_the_command_line(tmp_path: Path) -> None:
    edges = tmp_path / "edges.csv"
    edges.write_text("src,dst,w\n0,1,2.5\n1,2,0\n2,0,1\n")
    made = run("partition", str(tmp_path / "graph"), "--edges", str(edges), "--weight", "w", "--json")
    assert json.loads(made.stdout)["schema"]["edges"][0]["weights"] == ["w"]
    edges.write_text("src,dst,w\n0,1,2.5\n1,2,-3\n")
    refused = run("partition", str(tmp_path / "other"), "--edges", str(edges), "--weight", "w")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "column 'w'" in refused.stderr
    assert "got -3" in refused.stderr
    assert not (tmp_path / "other").exists()
