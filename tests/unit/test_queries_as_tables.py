"""A SELECT, or a file of JSON lines, is a table: its rows in a stated order, no value rounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.dataset import dataset

from gigl_loader import FormatError
from gigl_loader.graph import Graph, MemoryFolder
from gigl_loader.partition import GraphTables, NodeTable, build_graph, open_table
from gigl_loader.partition.readers import Table
from gigl_loader.partition.roles import Role
from tests.support.command_line import run_here

EDGE = ("node", "to", "node")


@pytest.fixture(autouse=True)
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders/0.csv").write_text("user,sku,ts\nann,7,3\nbob,8,4\n")
    (tmp_path / "orders/1.csv").write_text("user,sku,ts\nann,9,5\n")
    (tmp_path / "catalogue.csv").write_text("sku,product\n9,tea\n8,milk\n7,tea\n")


def values(table: Table, rows: int = 2) -> dict[str, list[Any]]:
    chunks = list(table.read(list(table.columns), rows))
    return {name: [each for chunk in chunks for each in chunk[name].tolist()] for name in table.columns}


def opened(spec: str, role: Role = "edges") -> Table:
    return open_table(spec, role=role)


def test_a_query_over_files_has_their_rows_in_order() -> None:
    table = opened("SELECT user AS src, sku AS dst FROM 'orders/*.csv'")
    assert values(table) == {"src": ["ann", "bob", "ann"], "dst": [7, 8, 9]}
    assert table.num_rows == 3


def test_the_rows_of_a_join_come_sorted_by_all_columns() -> None:
    join = "SELECT user AS src, product AS dst, ts FROM 'orders/*.csv' JOIN 'catalogue.csv' USING (sku)"
    assert values(opened(join)) == {
        "src": ["ann", "ann", "bob"],
        "dst": ["tea", "tea", "milk"],
        "ts": [3, 5, 4],
    }
    assert values(opened(f"{join} ORDER BY ts DESC"))["ts"] == [5, 4, 3]


def test_partition_takes_queries() -> None:
    join = "SELECT user AS src, product AS dst, ts FROM 'orders/*.csv' JOIN 'catalogue.csv' USING (sku)"
    done = run_here("partition", "g", "--edges", f"user,buys,item={join}")
    assert done.returncode == 0, done.stderr
    graph = Graph.open("g")
    assert graph.schema.edges["user", "buys", "item"].count == 3
    done = run_here("partition", "h", "--edges", "SELECT a AS src, a AS dst FROM range(3) t(a) WHERE a <> 1")
    assert done.returncode == 0, done.stderr
    assert Graph.open("h").schema.edges[EDGE].count == 2


def test_lists_of_a_query_are_vectors_and_large_integers_are_whole() -> None:
    table = opened("SELECT 1 AS id, [0.5, 1.5]::FLOAT[] AS x, 4611686018427387905::HUGEINT AS h", "nodes")
    assert values(table) == {"id": [1], "x": [[0.5, 1.5]], "h": [4611686018427387905]}
    build_graph(
        GraphTables({EDGE: opened("SELECT 1 AS src, 1 AS dst")}, {"node": NodeTable(table)}), MemoryFolder()
    )
    with pytest.raises(FormatError, match="9223372036854775808 does not fit in int64"):
        values(opened("SELECT 1 AS src, 9223372036854775808 AS dst"))


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT 1 AS src; SELECT 2", "a table is one SELECT"),
        ("SELECT 1 AS src, 2 AS src", "a column name occurs twice"),
        ("SELECT nothing FROM 'orders/0.csv'", "nothing"),
        ("SELECT * FROM 'none.csv'", r"none\.csv"),
        ("SELECT * FROM 's3://bucket/x.parquet'", "Queries read files of this machine"),
        ("WITH x AS (SELECT 1) DELETE FROM x", "query"),
    ],
)
def test_a_query_that_cannot_be_is_refused(query: str, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        opened(query)


def test_an_error_of_a_row_names_the_query(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n" + "1,2\n" * 2000 + "1,x\n")
    table = opened("SELECT a AS src, CAST(b AS INTEGER) AS dst FROM read_csv('t.csv', all_varchar = true)")
    with pytest.raises(FormatError, match=r"query .SELECT a AS src.*x"):
        values(table)


def test_json_lines_are_a_table(tmp_path: Path) -> None:
    rows = [{"src": 0, "dst": 1, "x": [0.5, 1.0]}] * 3 + [{"src": 1, "dst": 3.7, "x": [1.5, 2.0]}]
    (tmp_path / "e.jsonl").write_text("\n".join(map(json.dumps, rows)))
    table = opened("e.jsonl")
    assert np.asarray(values(table)["x"]).shape == (4, 2)
    assert values(table)["dst"] == [1, 1, 1, 3.7]


def test_paths_queries_and_data_sets_are_tables_of_a_graph(tmp_path: Path) -> None:
    pq.write_table(pa.table({"src": [0, 1], "dst": [1, 0]}), tmp_path / "e.parquet")
    (tmp_path / "n.csv").write_text("node_id,age\n1,5\n0,4\n")
    graphs = []
    for edges in ("e.parquet", "SELECT src, dst FROM 'e.parquet'", dataset(tmp_path / "e.parquet")):
        folder = MemoryFolder()
        given: Any = edges
        build_graph(GraphTables({EDGE: given}, {"node": NodeTable(Path("n.csv"))}), folder)  # type: ignore[arg-type]
        graphs.append(Graph.open(folder))
    for graph in graphs:
        assert graph.schema.edges[EDGE].count == 2
        assert graph.node_column("node", "age", 0).tolist() == [4, 5]


def test_text_files_of_which_something_would_be_lost_are_refused(tmp_path: Path) -> None:
    (tmp_path / "late.csv").write_text("a,b\n" + "1,2\n" * 30_000 + "3.7,007\n")
    with pytest.raises(
        FormatError, match=r"read later values of late\.csv as others: read_csv\('late.csv', s"
    ):
        opened("SELECT a AS src, b AS dst FROM 'late.csv'")
    (tmp_path / "ragged.csv").write_text("src,dst\n1,2\n1,2,3\n")
    with pytest.raises(
        FormatError, match=r"leave out the first 2 lines of ragged\.csv: read_csv\('ragged.csv'"
    ):
        opened("SELECT * FROM 'orders/0.csv' o JOIN 'ragged.csv' r ON true")
    read = "SELECT a AS x, b AS id FROM read_csv('late.csv', sample_size = -1) ORDER BY ALL DESC LIMIT 1"
    assert values(opened(read, "nodes")) == {"x": [3.7], "id": ["007"]}
