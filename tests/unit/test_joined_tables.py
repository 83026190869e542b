"""Columns of several tables side by side, by row and by id."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_loader.cli.build_options import TableOptions
from gigl_loader.cli.table_options import open_tables
from gigl_loader.errors import FormatError
from gigl_loader.graph import Column, Graph
from gigl_loader.partition import (
    ArrayTable,
    GraphTables,
    NodeTable,
    Table,
    build_graph,
    open_table,
    side_by_side,
)
from gigl_loader.partition.readers import TEXT, shards_of
from gigl_loader.partition.readers.arrow_files import ParquetTable
from tests.support.command_line import run_here


def _read(table: Table, rows: int = 3, names: list[str] | None = None) -> dict[str, list[Any]]:
    names = list(table.columns) if names is None else names
    chunks = list(table.read(names, rows))
    assert all(len(each) <= rows for chunk in chunks for each in chunk.values())
    assert all(list(chunk) == names for chunk in chunks)
    return {name: [value for chunk in chunks for value in chunk[name].tolist()] for name in names}


def _parquet(path: Path, group: int = 4, **columns: Any) -> Table:
    pq.write_table(pa.table(columns), path, row_group_size=group)
    return open_table(str(path), role="nodes")


def _npy(path: Path, array: Any) -> Table:
    np.save(path, array)
    return open_table(str(path), role="nodes")


def _csv(path: Path, text: str) -> Table:
    path.write_text(text)
    return open_table(str(path), role="nodes")


@pytest.fixture
def nodes(tmp_path: Path) -> Table:
    """A table of ten nodes, in pieces of four rows."""
    return _parquet(tmp_path / "nodes.parquet", id=list(range(100, 110)), age=list(range(10)))


def test_columns_of_the_same_rows(nodes: Table, tmp_path: Path) -> None:
    vectors = _npy(tmp_path / "x.npy", np.arange(20, dtype=np.float32).reshape(10, 2))
    texts = _csv(tmp_path / "t.csv", "word,y\n" + "".join(f"w{row},{row % 3}\n" for row in range(10)))
    table = side_by_side([nodes, vectors, texts])
    assert dict(table.columns) == {
        "id": Column("I64"),
        "age": Column("I64"),
        "x": Column("F32", (2,)),
        "word": TEXT,
        "y": Column("I64"),
    }
    assert table.num_rows == 10
    expected = {name: values for each in (nodes, vectors, texts) for name, values in _read(each).items()}
    for rows in (1, 3, 4, 100):
        assert _read(table, rows) == expected
    assert _read(table, names=["y", "id"]) == {name: expected[name] for name in ("y", "id")}
    assert _read(table, names=["x"]) == {"x": expected["x"]}
    assert table.where("age", 3) == f"{tmp_path}/nodes.parquet, column 'age', row 3"
    assert table.where("x", 3) == f"{tmp_path}/x.npy, column 'x', row 3"
    assert table.where("y", 3) == f"{tmp_path}/t.csv, line 5, column 'y'"


@pytest.mark.parametrize("group", [2, 3, 4, 10])
def test_shards_of_tables_that_are_cut_elsewhere(nodes: Table, tmp_path: Path, group: int) -> None:
    other = _parquet(tmp_path / "o.parquet", group, z=[row * 10 for row in range(10)])
    table = side_by_side([nodes, other])
    shards = shards_of(table, 3)
    assert [shard.num_rows for shard in shards] == ([10] if group == 10 else [4, 4, 2])
    parts = [_read(pickle.loads(pickle.dumps(shard)), 2) for shard in shards]
    assert {name: [value for part in parts for value in part[name]] for name in table.columns} == _read(table)
    last = shards[-1]
    assert last.where("z", last.num_rows - 1) == f"{tmp_path}/o.parquet, column 'z', row 9"


def test_a_table_that_cannot_be_cut_is_read_by_one_task(nodes: Table, tmp_path: Path) -> None:
    words = _csv(tmp_path / "t.csv", "word\n" + "w\n" * 10)
    assert len(shards_of(side_by_side([nodes, words]), 2)) == 1


def test_numbers_of_rows_that_differ_are_refused(nodes: Table, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"nodes.parquet has 10 rows, .*x.npy has 9"):
        side_by_side([nodes, _npy(tmp_path / "x.npy", np.arange(9))])


def test_a_column_of_two_files_is_refused(nodes: Table, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"column 'age' is in .*nodes.parquet and in .*age.npy"):
        side_by_side([nodes, _npy(tmp_path / "age.npy", np.arange(10))])


KINDS: dict[str, Any] = {
    "flag": pa.array([True, None, False]),
    "byte": pa.array([1, 2, None], pa.uint8()),
    "long": pa.array([1 << 62, -5, 7]),
    "half": pa.array(np.array([0.5, 2.0, 3.0], np.float16)),
    "real": pa.array([0.25, float("nan"), None]),
    "x": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2)),
    "day": pa.array([0, 1, None], pa.timestamp("ns")),
    "word": pa.array(["a", None, "c"]),
    "WORD": pa.array(["A", "B", "C"]),
}


@pytest.mark.parametrize("texts", [False, True])
def test_rows_are_looked_up_by_id(tmp_path: Path, *, texts: bool) -> None:
    """In the order of the ids of the first table, of which some have no row."""

    def ids(values: list[int]) -> Any:
        return pa.array([f"n{value}" for value in values] if texts else values)

    table = _parquet(tmp_path / "n.parquet", id=ids([7, 3, 9, 1, 5]))
    pq.write_table(pa.table({"id": ids([5, 7, 1]), **KINDS}), tmp_path / "o.parquet")
    other = ParquetTable(tmp_path / "o.parquet")
    fill = dict.fromkeys(("byte", "long", "half", "real", "x"), "0") | {"flag": "false", "day": "1970-01-02"}
    found = side_by_side([table, other], fill=fill)
    assert dict(found.columns) == {**table.columns, **{name: other.columns[name] for name in KINDS}}
    day = 86_400 * 10**9
    expected = {
        "flag": [False, False, False, False, True],
        "byte": [2, 0, 0, 0, 1],
        "long": [-5, 0, 0, 7, 1 << 62],
        "half": [2.0, 0, 0, 3.0, 0.5],
        "x": [[3, 4], [0, 0], [0, 0], [5, 6], [1, 2]],
        "day": [1, day, day, day, 0],
        "word": ["", "", "", "c", "a"],
        "WORD": ["B", "", "", "C", "A"],
    }
    read = _read(found)
    np.testing.assert_array_equal(read.pop("real"), [float("nan"), 0, 0, 0, 0.25])
    assert {name: values for name, values in read.items() if name != "id"} == expected
    assert found.where("byte", 1) == f"{tmp_path}/o.parquet, column 'byte', id {'n3' if texts else 3}"


def test_rows_without_an_entry_have_missing_values(nodes: Table, tmp_path: Path) -> None:
    labels = _csv(tmp_path / "y.csv", "id,y\n105,2\n101,0\n")
    with pytest.raises(FormatError, match=r"values are missing: .*y\.csv, column 'y', id 100, .* and 5 more"):
        _read(side_by_side([nodes, labels]))
    found = side_by_side([nodes, labels], fill={"y": "-1"})
    assert _read(found)["y"] == [-1, 0, -1, -1, -1, 2, -1, -1, -1, -1]


def test_ids_that_the_first_table_lacks(
    nodes: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    labels = _csv(tmp_path / "y.csv", "id,y\n101,0\n1,1\n102,0\n")
    message = r"y\.csv, line 3, column 'id': 1 of 3 ids are not in .*nodes\.parquet: --unknown-ids drop"
    with pytest.raises(FormatError, match=message):
        side_by_side([nodes, labels])
    with caplog.at_level(logging.WARNING):
        found = side_by_side([nodes, labels], fill={"y": "9"}, unknown_ids="drop")
    assert "1 of 3 ids are not in" in caplog.text
    assert _read(found)["y"] == [9, 0, 0, 9, 9, 9, 9, 9, 9, 9]


@pytest.mark.parametrize("unknown", ["error", "drop"])
def test_ids_of_other_nodes_are_refused(nodes: Table, tmp_path: Path, unknown: Any) -> None:
    labels = _csv(tmp_path / "y.csv", "id,y\n1,0\n2,1\n")
    with pytest.raises(FormatError, match=r"2 of 2 ids are not in .*nodes\.parquet$"):
        side_by_side([nodes, labels], unknown_ids=unknown)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,y\n101,0\n102,1\n101,2\n", r"y\.csv, line 4, column 'id': id 101 is also in .*y\.csv, line 2"),
        ("id,y\n101,0\n,1\n", r"y\.csv, line 3, column 'id' .*cannot be filled"),
        ("id,y\na,0\nb,1\n", r"y\.csv: ids are of the type large_string, but int64 in .*nodes\.parquet"),
        ("id,y\n101.5,0\n", r"y\.csv, column 'id': ids are integers or texts, not F64"),
    ],
)
def test_ids_that_are_none_are_refused(nodes: Table, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        side_by_side([nodes, _csv(tmp_path / "y.csv", text)])


def test_row_numbers_are_ids_where_there_are_no_others(tmp_path: Path) -> None:
    vectors = _npy(tmp_path / "x.npy", np.arange(3.0))
    found = side_by_side([vectors, _csv(tmp_path / "y.csv", "id,y\n2,7\n0,5\n")], fill={"y": "-1"})
    assert _read(found) == {"x": [0.0, 1.0, 2.0], "y": [5, -1, 7]}
    with pytest.raises(FormatError, match="row numbers: it has no column of ids"):
        side_by_side([vectors, _csv(tmp_path / "z.csv", "id,z\n2,7\n3,5\n")])


def test_tables_without_rows(tmp_path: Path) -> None:
    none = ArrayTable("none", {"id": np.empty(0, np.int64), "y": np.empty(0, np.int64)})
    some = ArrayTable("some", {"id": np.arange(2)})
    assert _read(side_by_side([some, none], fill={"y": "-1"}))["y"] == [-1, -1]
    assert _read(side_by_side([ArrayTable("no ids", {"id": np.empty(0, np.int64)}), none]))["y"] == []


def test_a_graph_of_such_tables(nodes: Table, tmp_path: Path) -> None:
    labels = _csv(tmp_path / "y.csv", "id,y\n109,2\n100,0\n")
    vectors = _npy(tmp_path / "x.npy", np.arange(10.0))
    edges = ArrayTable("edges", {"src": np.arange(100, 109), "dst": np.arange(101, 110)})
    rows = side_by_side([nodes, vectors, labels], fill={"y": "-1"})
    schema = build_graph(
        GraphTables({("node", "to", "node"): edges}, {"node": NodeTable(rows)}), tmp_path / "g"
    )
    assert set(schema.nodes["node"].columns) == {"age", "x", "y"}


EDGES = "src,dst\n7,3\n3,9\n9,7\n"


def _build(tmp_path: Path, files: dict[str, str], *options: str, code: int = 0) -> str:
    """Write text files and build ``graph`` from them. Return what went to standard error, in one line."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    arguments = [
        "partition",
        str(tmp_path / "graph"),
        *(each.replace("{}", str(tmp_path)) for each in options),
    ]
    done = run_here(*arguments)
    assert done.returncode == code, done.stderr
    return " ".join(done.stderr.split())


def test_join_by_row_and_by_id(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[0.5, 1], [2, 3], [4, 5]], np.float32))
    files = {
        "e.csv": EDGES,
        "n.csv": ",id,age\n0,7,70\n1,3,30\n2,9,90\n",
        "labels.csv": ",node_id,label,split\n0,9,1,train\n1,7,0,test\n",
    }
    tables = ["--edges", "{}/e.csv", "--nodes", "{}/n.csv", "--join", "{}/x.npy", "--join", "{}/labels.csv"]
    refused = _build(tmp_path, files, *tables, code=2)
    assert f"values are missing: {tmp_path}/labels.csv, column 'label', id 3" in refused
    assert "--fill label=-1" in refused
    _build(tmp_path, files, *tables, "--fill", "label=-1")
    graph = Graph.open(tmp_path / "graph")
    assert set(graph.schema.nodes["node"].columns) == {"age", "x", "y"}
    tables_again = open_tables(
        TableOptions(
            edges=[str(tmp_path / "e.csv")],
            nodes=[str(tmp_path / "n.csv")],
            joins=[str(tmp_path / "x.npy"), str(tmp_path / "labels.csv")],
            fill=["label=-1"],
        )
    )
    rows = tables_again.nodes["node"].rows
    assert rows is not None
    assert _read(rows) == {
        "id": [7, 3, 9],
        "age": [70, 30, 90],
        "x": [[0.5, 1], [2, 3], [4, 5]],
        "y": [0, -1, 1],
        "split": ["test", "", "train"],
    }


def test_join_to_a_number_of_nodes_and_to_edges(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.array([0.5, 1.5, 2.5]))
    np.save(tmp_path / "x.npy", np.arange(10.0))
    files = {"e.csv": EDGES, "y.csv": "userId,y\n9,1\n0,2\n"}
    _build(
        tmp_path,
        files,
        *("--edges", "user,to,user={}/e.csv", "--join", "user,to,user={}/w.npy"),
        *("--nodes", "user=10", "--join", "user={}/y.csv", "--join", "user={}/x.npy", "--fill", "y=-1"),
    )
    schema = Graph.open(tmp_path / "graph").schema
    assert set(schema.edges["user", "to", "user"].columns) == {"w"}
    assert set(schema.nodes["user"].columns) == {"x", "y"}
    assert schema.nodes["user"].count == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--join", "item={}/y.csv"),
            "--join: no table of type item: give columns of nodes by --nodes, of edges by --join",
        ),
        (
            ("--join", "{}/short.csv"),
            "n.csv has 3 rows, {}/short.csv has 1: files side by side have the same",
        ),
        (("--join", "{}/age.csv"), "column 'age' is in {}/n.csv and in {}/age.csv"),
        (
            ("--join", "{}/y.csv"),
            "y.csv, line 3, column 'node': 1 of 3 ids are not in {}/n.csv: --unknown-ids",
        ),
        (
            ("--join", "{}/row.csv"),
            "row.csv: its first line, '5', looks like a row: name its columns by a query",
        ),
    ],
)
def test_joins_that_are_refused(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    files = {
        "e.csv": EDGES,
        "n.csv": "id,age\n7,70\n3,30\n9,90\n",
        "y.csv": "node,y\n7,1\n8,1\n9,0\n",
        "short.csv": "z\n1\n",
        "age.csv": "age\n1\n2\n3\n",
        "row.csv": "5\n6\n7\n8\n",
    }
    shared = ("--edges", "{}/e.csv", "--nodes", "{}/n.csv", "--rename", "node:node=id")
    refused = _build(tmp_path, files, *shared, *options, code=2)
    assert message.replace("{}", str(tmp_path)) in refused


def test_join_leaves_out_ids_that_are_not_there(tmp_path: Path) -> None:
    files = {"e.csv": EDGES, "n.csv": "id\n7\n3\n9\n", "y.csv": "ref,y\n7,1\n8,1\n9,0\n"}
    shared = ("--edges", "{}/e.csv", "--nodes", "{}/n.csv", "--join", "{}/y.csv", "--fill", "y=-1")
    _build(tmp_path, files, *shared, "--rename", "node:ref=id", "--unknown-ids", "drop")
    assert Graph.open(tmp_path / "graph").schema.nodes["node"].count == 3


def test_join_a_query(tmp_path: Path) -> None:
    files = {"e.csv": EDGES, "n.csv": "id\n7\n3\n9\n", "y.csv": "9,1\n7,2\n3,0\n"}
    query = "SELECT column0 AS id, column1 AS y FROM read_csv('{}/y.csv', header = false)"
    _build(tmp_path, files, "--edges", "{}/e.csv", "--nodes", "{}/n.csv", "--join", query)
    assert set(Graph.open(tmp_path / "graph").schema.nodes["node"].columns) == {"y"}
