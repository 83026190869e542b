"""Tables of edges whose rows name the types of the ends: nodes of two types never become one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gigl_loader import FormatError
from gigl_loader.graph import Graph, MemoryFolder
from gigl_loader.partition import ArrayTable, GraphTables, build_graph
from tests.support.command_line import run_here

TEXT = """x_id,x_type,relation,y_id,y_type,w
1,gene,binds,1,drug,0.5
2,gene,binds,1,gene,1.5
1,drug,treats,7,disease,2.5
1,gene,causes,7,disease,3.5
"""


@pytest.fixture(autouse=True)
def kg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kg.csv").write_text(TEXT)
    monkeypatch.chdir(tmp_path)


def test_each_pair_of_types_and_relation_is_an_edge_type() -> None:
    done = run_here("partition", "g", "--edges", "@x_type,@relation,@y_type=kg.csv", "-p", "2")
    assert done.returncode == 0, done.stderr
    graph = Graph.open("g")
    assert {kind: each.count for kind, each in graph.schema.edges.items()} == {
        ("drug", "treats", "disease"): 1,
        ("gene", "binds", "drug"): 1,
        ("gene", "binds", "gene"): 1,
        ("gene", "causes", "disease"): 1,
    }
    assert {kind: each.count for kind, each in graph.schema.nodes.items()} == {
        "gene": 2,
        "drug": 1,
        "disease": 1,
    }
    weights = [graph.edge_column(("gene", "causes", "disease"), "w", part).tolist() for part in range(2)]
    assert [each for part in weights for each in part] == [3.5]


def test_one_end_may_be_a_type_and_the_relation_a_name() -> None:
    (Path("e.csv")).write_text("src,dst,y_type\n1,1,drug\n1,1,gene\n2,1,gene\n")
    done = run_here("partition", "g", "--edges", "gene,to,@y_type=e.csv")
    assert done.returncode == 0, done.stderr
    edges = Graph.open("g").schema.edges
    assert {kind: each.count for kind, each in edges.items()} == {
        ("gene", "to", "drug"): 1,
        ("gene", "to", "gene"): 2,
    }


def test_a_place_is_that_of_the_row_in_the_file() -> None:
    (Path("drugs.csv")).write_text("id\n1\n")
    (Path("genes.csv")).write_text("id\n1\n")
    options = [
        "--edges",
        "@x_type,@relation,@y_type=kg.csv",
        "--nodes",
        "drug=drugs.csv",
        "--nodes",
        "gene=genes.csv",
    ]
    done = run_here("partition", "g", *options)
    assert done.returncode == 2
    assert "kg.csv, line 3, column 'x_id': unknown node id 2 of type 'gene'" in done.stderr


def test_ids_of_two_types_are_refused_without_their_types() -> None:
    done = run_here("partition", "g", "--edges", "thing,@relation,thing=kg.csv")
    assert done.returncode == 2
    assert "give the table as --edges '@x_type,@relation,@y_type=FILES'" in done.stderr


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x_type": ["a", ""], "y_type": ["b", "b"]}, "column 'x_type', row 1: no type"),
        ({"x_type": ["a", "a"]}, "column 'y_type' of types: no such column"),
        ({"x_type": [1, 2], "y_type": ["b", "b"]}, "column 'x_type' of types: no texts"),
        (
            {"x_type": [f"t{at}" for at in range(1025)], "y_type": ["b"] * 1025},
            "more than 1024 pairs",
        ),
    ],
)
def test_what_names_no_types_is_refused(arrays: dict[str, list[object]], said: str) -> None:
    count = len(arrays["x_type"])
    ends = {"src": np.arange(count), "dst": np.arange(count)}
    table = ArrayTable("t", {**ends, **{name: np.array(each) for name, each in arrays.items()}})
    with pytest.raises(FormatError, match=said):
        build_graph(GraphTables({("@x_type", "to", "@y_type"): table}), MemoryFolder())
