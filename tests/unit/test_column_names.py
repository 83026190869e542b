"""Names of columns that batches reserve: refused when a graph is built, and by loaders of older graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gigl_loader.graph.column_names import check_column_names
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from tests.support.command_line import run_here

EDGE = ("node", "to", "node")


@pytest.mark.parametrize("column", ["n_id", "batch", "num_nodes", "seed_index", "edge_index"])
def test_columns_named_like_an_attribute_of_the_batch_are_refused(column: str) -> None:
    message = rf"column '{column}' of 'node' has the name of .*: rename it \(.* --rename {column}=NEW\)"
    with pytest.raises(ValueError, match=message):
        check_column_names({"node": [column]}, {}, homogeneous=True)


def test_those_of_edges_are_refused_where_they_lie_side_by_side() -> None:
    edges = {("a", "r", "a"): ["batch"]}
    check_column_names({"a": []}, edges, homogeneous=False)
    with pytest.raises(ValueError, match="column 'batch' of"):
        check_column_names({"a": []}, edges, homogeneous=True)


def test_one_name_of_nodes_and_edges_needs_its_prefix_free() -> None:
    check_column_names({"node": ["time"]}, {EDGE: ["time"]}, homogeneous=True)
    for taken in ({"node": ["time", "edge_time"]}, {"node": ["index"]}):
        with pytest.raises(ValueError, match=r"nodes and edges both have a column .* is taken: rename one"):
            check_column_names(taken, {EDGE: ["time", "index"]}, homogeneous=True)


def test_a_graph_with_such_a_column_is_not_built() -> None:
    edges = ArrayTable("edges", {"src": np.arange(2), "dst": np.arange(2), "e_id": np.arange(2)})
    nodes = ArrayTable("nodes", {"id": np.arange(2), "batch": np.arange(2)})
    for tables in (GraphTables(edges={EDGE: edges}), GraphTables(edges={}, nodes={"node": NodeTable(nodes)})):
        folder = MemoryFolder()
        with pytest.raises(ValueError, match="has the name of an attribute of every batch"):
            build_graph(tables, folder)
        assert folder.names() == []


def test_the_command_says_how_to_rename(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("src,dst,e_id\n0,1,5\n1,0,6\n")
    command = ["partition", str(tmp_path / "graph"), "--edges", str(tmp_path / "edges.csv")]
    refused = run_here(*command)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--rename e_id=NEW" in refused.stderr
    assert run_here(*command, "--rename", "e_id=number").returncode == 0
