"""Reversed edges, and masks for splits: what `--reverse`, `--undirected` and `--split` make of tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.transforms import ToUndirected

from gigl_loader import FormatError
from gigl_loader.cli.build_options import TableOptions
from gigl_loader.cli.table_options import open_tables
from gigl_loader.graph import EdgeType, Graph
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.schema import EdgeSplits
from gigl_loader.partition import (
    ArrayTable,
    GraphTables,
    NodeTable,
    build_graph,
    tables_from_pyg,
    with_reverse_edges,
)

BUYS, BOUGHT, KNOWS = ("user", "buys", "item"), ("item", "rev_buys", "user"), ("user", "knows", "user")


def small(**more: Any) -> GraphTables:
    """Return a graph in which no edge is there in both directions."""
    buys = {"src": np.array([0, 1, 1, 2]), "dst": np.array([3, 0, 2, 3]), "w": np.array([0.5, 1, 2, 4])}
    knows = {"src": np.array([0, 1]), "dst": np.array([1, 2])} | more
    return GraphTables(edges={BUYS: ArrayTable("buys", buys), KNOWS: ArrayTable("knows", knows)})


def edges_of(tables: GraphTables) -> dict[EdgeType, list[tuple[Any, ...]]]:
    """Return source, destination, edge id and columns of all edges of a built graph, sorted."""
    folder = MemoryFolder()
    schema = build_graph(tables, folder)
    graph = Graph.open(folder)
    found = {}
    for kind in schema.edges:
        lists = graph.topology(kind, 0)
        targets = np.repeat(np.arange(len(lists["indptr"]) - 1), np.diff(lists["indptr"]))
        columns = [graph.edge_column(kind, name, 0) for name in sorted(schema.edges[kind].columns)]
        arrays = [lists["indices"], targets, lists["edge_ids"], *columns]
        found[kind] = sorted(zip(*(array.tolist() for array in arrays), strict=True))
    return found


def test_a_reversed_type_has_the_ids_and_columns_of_its_edges() -> None:
    found = edges_of(with_reverse_edges(small(), {BUYS: BOUGHT}))
    assert found[BOUGHT] == sorted((dst, src, *rest) for src, dst, *rest in found[BUYS])
    assert set(found) == {BUYS, BOUGHT, KNOWS}


def test_both_directions_in_one_type() -> None:
    found = edges_of(with_reverse_edges(small(), {KNOWS: KNOWS}))[KNOWS]
    assert found == [(0, 1, 0), (1, 0, 2), (1, 2, 1), (2, 1, 3)]
    tables = with_reverse_edges(small(id=np.array([70, 80])), {KNOWS: KNOWS})
    assert edges_of(tables)[KNOWS] == [(0, 1, 70), (1, 0, 70), (1, 2, 80), (2, 1, 80)]


def test_undirected_has_the_edges_that_pyg_has() -> None:
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 3, 4
    data[BUYS].edge_index = torch.tensor([[0, 1, 1, 2], [3, 0, 2, 3]])
    data[KNOWS].edge_index = torch.tensor([[0, 1], [1, 2]])
    ours = edges_of(with_reverse_edges(tables_from_pyg(data), undirected=True))
    theirs = edges_of(tables_from_pyg(ToUndirected()(data)))
    assert {kind: [edge[:2] for edge in edges] for kind, edges in ours.items()} == {
        kind: [edge[:2] for edge in edges] for kind, edges in theirs.items()
    }


def test_declared_weights_hold_for_reversed_edges() -> None:
    buys = small().edges[BUYS]
    tables = with_reverse_edges(GraphTables(edges={BUYS: buys}, weights={BUYS: ("w",)}), undirected=True)
    assert build_graph(tables, MemoryFolder()).edges[BOUGHT].weights == ("w",)


@pytest.mark.parametrize(
    ("reverses", "message"),
    [
        ({("a", "b", "c"): BOUGHT}, "no edges of type .* to reverse; known: .*buys"),
        ({BUYS: ("user", "rev_buys", "item")}, "it must lead from 'item' to 'user'"),
        ({BUYS: BOUGHT, ("item", "rev_buys", "user"): BUYS}, "no edges of type"),
        (
            {BUYS: BOUGHT, ("user", "views", "item"): BOUGHT},
            "rev_buys.* is the reverse of .*buys.* and of .*views.*: name one",
        ),
    ],
)
def test_a_reverse_that_cannot_be_is_refused(reverses: dict[EdgeType, EdgeType], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_reverse_edges(small(), reverses)


def test_a_type_with_a_table_is_declared_as_the_reverse() -> None:
    tables = small()
    both = GraphTables(
        edges={**tables.edges, BOUGHT: ArrayTable("b", {"src": np.array([3]), "dst": np.array([0])})}
    )
    found = with_reverse_edges(both, undirected=True)
    assert found.edges[BOUGHT] is both.edges[BOUGHT]
    assert found.reverses == {BUYS: BOUGHT, BOUGHT: BUYS, KNOWS: KNOWS}
    assert set(found.edges) == {BUYS, BOUGHT, KNOWS}


def test_a_reverse_with_other_splits_is_refused() -> None:
    tables = small()
    bought = ArrayTable("b", {"src": np.array([3]), "dst": np.array([0])})
    splits = {BUYS: EdgeSplits(fractions={"train": 1.0}), BOUGHT: EdgeSplits(fractions={"train": 0.5})}
    both = GraphTables(edges={**tables.edges, BOUGHT: bought}, splits=splits)
    with pytest.raises(ValueError, match="both have the same splits, these differ"):
        with_reverse_edges(both, {BUYS: BOUGHT})
    given = with_reverse_edges(replace(both, splits={BOUGHT: splits[BOUGHT]}), {BUYS: BOUGHT}).splits
    assert {kind: (each.hashed, each.fractions) for kind, each in given.items()} == {
        BUYS: ("src,dst", {"train": 0.5}),
        BOUGHT: ("dst,src", {"train": 0.5}),
    }


# The command line


@pytest.fixture
def buys(tmp_path: Path) -> str:
    (tmp_path / "buys.csv").write_text("src,dst\nann,tea\nbob,milk\n")
    return f"user,buys,item={tmp_path / 'buys.csv'}"


@pytest.mark.parametrize(
    ("options", "added"),
    [
        ({"reverse": ["user,buys,item"]}, BOUGHT),
        ({"undirected": True}, BOUGHT),
        ({"reverse": ["user,buys,item=sold_to"]}, ("item", "sold_to", "user")),
        ({"reverse": ["user,buys,item=item,sold_to,user"]}, ("item", "sold_to", "user")),
    ],
)
def test_options_add_reversed_types(buys: str, options: dict[str, Any], added: EdgeType) -> None:
    tables = open_tables(TableOptions(edges=[buys], **options))
    assert set(tables.edges) == {BUYS, added}
    assert edges_of(tables)[added] == sorted((dst, src, at) for src, dst, at in edges_of(tables)[BUYS])


@pytest.mark.parametrize("weight", ["w", "user,buys,item:w", "item,rev_buys,user:w"])
def test_weights_of_a_type_hold_for_its_reverse(tmp_path: Path, weight: str) -> None:
    (tmp_path / "buys.csv").write_text("src,dst,w\nann,tea,1\n")
    buys = f"user,buys,item={tmp_path / 'buys.csv'}"
    tables = open_tables(TableOptions(edges=[buys], undirected=True, weights=[weight]))
    assert BOUGHT in tables.weights
    assert (BUYS in tables.weights) == ("rev" not in weight)


@pytest.mark.parametrize("option", ["user", "user,buys,item=a,b", "user,buys,thing"])
def test_an_option_that_cannot_be_is_refused(buys: str, option: str) -> None:
    with pytest.raises(ValueError, match="type"):
        open_tables(TableOptions(edges=[buys], reverse=[option]))


# Masks


def graph_with_split(mask: Any, ids: Any = None) -> Graph:
    columns = {"x": np.arange(4.0)} | ({} if ids is None else {"id": np.array(ids)})
    nodes = NodeTable(ArrayTable("n", columns), splits={"train": ArrayTable("mask", {"id": np.array(mask)})})
    folder = MemoryFolder()
    build_graph(GraphTables(edges={}, nodes={"node": nodes}), folder)
    return Graph.open(folder)


@pytest.mark.parametrize("ids", [None, [3, 1, 0, 2], ["a", "b", "c", "d"]])
def test_a_mask_selects_nodes_by_their_ids(ids: Any) -> None:
    graph = graph_with_split([True, False, False, True], ids)
    assert graph.split("node", "train").tolist() == [0, 3]


@pytest.mark.parametrize(
    ("mask", "ids", "message"),
    [
        ([True, False], None, "a mask of 2 rows for 4 nodes"),
        ([True, False, True, True], [10, 20, 30, 40], "these have gaps: give ids"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(mask: Any, ids: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        graph_with_split(mask, ids)
