"""Weighted draws through the loader."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.command_line import run_here
from tests.support.pyg_graphs import weighted

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 5, "device": "cpu", "timeout": 60.0}
FANOUT = [4, 3]
EDGE = ("node", "to", "node")


@pytest.mark.parametrize("hetero", [False, True])
def test_no_edge_without_weight_is_in_a_batch(hetero: bool) -> None:
    dataset = DistDataset.from_pyg(weighted(hetero=hetero), weight_attr="w")
    nodes = ("item", None) if hetero else None
    options = {**OPTIONS, "num_workers": 0}
    with DistNeighborLoader(dataset, FANOUT, nodes, weight_attr="w", **options) as loader:
        batches = list(loader)
    weights = [store["w"] for batch in batches for store in batch.stores if "w" in store]
    assert sum(map(len, weights)) > 500
    assert all((each > 0).all() for each in weights)


def test_weights_that_are_not_declared_are_refused_with_the_command(tmp_path: Path) -> None:
    build_graph(tables_from_pyg(weighted()), tmp_path / "graph")
    dataset = DistDataset.open(tmp_path / "graph")
    with pytest.raises(ValueError, match=r"'w' is not declared .* gigl-loader index GRAPH --weight w"):
        DistNeighborLoader(dataset, FANOUT, weight_attr="w", **OPTIONS)


def test_weights_are_declared_on_the_command_line(tmp_path: Path) -> None:
    edges = tmp_path / "edges.csv"
    edges.write_text("src,dst,w\n0,1,2.5\n1,2,0\n2,0,1\n")
    made = run_here("partition", str(tmp_path / "graph"), "--edges", str(edges), "--weight", "w", "--json")
    assert json.loads(made.stdout)["schema"]["edges"][0]["weights"] == ["w"]
    edges.write_text("src,dst,w\n0,1,2.5\n1,2,-3\n")
    refused = run_here("partition", str(tmp_path / "other"), "--edges", str(edges), "--weight", "w")
    *plan, error = refused.stderr.splitlines()
    assert refused.returncode == 2
    assert all(line.startswith("gigl-loader: reads ") for line in plan)
    assert "column 'w'" in error
    assert "got -3" in error
    assert not (tmp_path / "other").exists()
