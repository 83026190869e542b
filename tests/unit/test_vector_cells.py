"""Cells that are lists of numbers, and lists that differ in length, as vectors."""

from __future__ import annotations

import json
import logging
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_loader import FormatError
from gigl_loader.graph import Graph, MemoryFolder
from gigl_loader.partition import ArrayTable, ColumnOptions, GraphTables, NodeTable, build_graph, open_table
from gigl_loader.partition.readers import Table
from tests.support.command_line import run_here

EDGES = {("node", "to", "node"): ArrayTable("edges", {"src": np.array([0]), "dst": np.array([1])})}


def csv_of(directory: Path, *cells: str) -> str:
    path = directory / "nodes.csv"
    path.write_text("id\tx\n" + "".join(f"{at}\t{cell}\n" for at, cell in enumerate(cells)))
    return str(path)


def opened(path: str, length: int | None = None, **options: Any) -> Table:
    return open_table(path, role="nodes", options=ColumnOptions(vector={"x": length}, **options))


def read(table: Table, rows: int = 100, name: str = "x") -> np.ndarray[Any, Any]:
    return np.concatenate([chunk[name] for chunk in table.read([name], rows)])


@pytest.mark.parametrize(
    "cells",
    [
        ("0.1,0.2", "3,-4"),
        ("0.1;0.2", "3;-4"),
        ("0.1|0.2", "3|-4"),
        ("0.1 0.2", "3 -4"),
        ("[0.1, 0.2]", "[3., -4.0e0]"),
        ("(0.1,0.2)", "( 3 , -4 )"),
        ("{0.1;  0.2}", "{3 ;-4}"),
        ('"[0.1\n  0.2]"', "[ 3. -4.]"),
    ],
)
def test_lists_of_numbers_in_texts_are_vectors(tmp_path: Path, cells: tuple[str, ...]) -> None:
    table = opened(csv_of(tmp_path, *cells))
    found = read(table, rows=1)
    assert found.dtype == np.float32
    assert found.tolist() == np.array([[0.1, 0.2], [3, -4]], np.float32).tolist()


def test_integers_stay_integers_and_digits_are_kept(tmp_path: Path) -> None:
    assert read(opened(csv_of(tmp_path, "1,2", "3,9007199254740993"))).tolist() == [[1, 2], [3, 2**53 + 1]]
    exact = read(opened(csv_of(tmp_path, "1,1577836800.123", "3,4.5")))
    assert (exact.dtype, exact[0, 1]) == (np.float64, 1577836800.123)
    rounded = read(opened(csv_of(tmp_path, "1,1577836800.123"), dtypes={"x": "float32"}))
    assert (rounded.dtype, rounded[0, 1]) == (np.float32, np.float32(1577836800.123))
    assert read(opened(csv_of(tmp_path, "1,2.5"), dtypes={"x": "float16"})).dtype == np.float16


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        (("1,2.5", "1,2,3"), "line 3, column 'x': 3 values, 2 in the first row (--vector COLUMN=LENGTH"),
        (("1,2.5", "1,b"), "line 3, column 'x': '1,b' is no list of numbers"),
        (("1,2.5", "1,"), "line 3, column 'x': '1,' is no list of numbers"),
        (("1,2.5", "[1,2"), "line 3, column 'x': '[1,2' is no list of numbers"),
        (("1,2.5", "1;2"), "line 3, column 'x': '1;2' is no list of numbers"),
        (("1;2", "1,5;2"), "'1,5;2' is no list of numbers"),
        (("1.5,2", "1 2,3"), "'1 2,3' is no list of numbers"),
        (("1,2", "0x1,2"), "'0x1,2' is no list of numbers"),
        (("", "NA"), "no list of numbers in any row"),
    ],
)
def test_a_cell_that_is_no_vector_of_the_column_is_refused(
    tmp_path: Path, cells: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(FormatError) as caught:
        read(opened(csv_of(tmp_path, *cells)))
    assert problem in str(caught.value)


def test_values_unlike_those_of_the_first_rows_are_refused(tmp_path: Path) -> None:
    many = ["1,2"] * 20_000
    with pytest.raises(FormatError, match=r"line 20002.*no integers.*--dtype x=float32"):
        read(opened(csv_of(tmp_path, *many, "1,2.5")))
    many = ["1,2.5"] * 20_000
    with pytest.raises(FormatError, match=r"line 20002.*16777217.0 would be 16777216.0.*--dtype x=float64"):
        read(opened(csv_of(tmp_path, *many, "1,16777217")), rows=50_000)


def test_missing_cells_and_numbers_are_filled(tmp_path: Path) -> None:
    path = csv_of(tmp_path, "1,2.5", "", "NA", "3,nan")
    with pytest.raises(FormatError, match=r"values are missing: .*line 3.*line 4.*line 5"):
        read(opened(path))
    assert read(opened(path, fill={"x": "9"})).tolist() == [[1, 2.5], [9, 9], [9, 9], [3, 9]]
    assert read(opened(path, fill={"x": "mean"})).tolist() == [[1, 2.5], [2, 2.5], [2, 2.5], [3, 2.5]]


def test_a_length_pads_and_cuts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = csv_of(tmp_path, "[]", "1.5", "1,2,3,4", "", "5,6,7")
    expected = [[0, 0, 0], [1.5, 0, 0], [1, 2, 3], [8, 8, 8], [5, 6, 7]]
    with caplog.at_level(logging.WARNING):
        assert read(opened(path, 3, fill={"x": "8"}), rows=2).tolist() == expected
    [warning] = caplog.messages
    assert "vectors of 3: of the first 4 lists, 2 get zeros at their ends, 1 lose elements" in warning


LISTS = [[], [1.5], [1, 2, 3, 4], None, [5, None, 7]]
PADDED = [[0, 0, 0], [1.5, 0, 0], [1, 2, 3], [8, 8, 8], [5, 8, 7]]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream", "query", "jsonl"])
def test_lists_of_any_length_are_padded_and_cut(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = pa.table({"x": pa.array(LISTS, pa.list_(pa.float32()))})
    path = tmp_path / f"nodes.{'parquet' if kind == 'query' else kind}"
    given: Any = str(path)
    if kind == "arrow":
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    elif kind == "stream":
        given = table.to_reader(2)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"x": each}) + "\n" for each in LISTS))
    else:
        pq.write_table(table, path, row_group_size=2)
    given = f"SELECT x FROM '{path}'" if kind == "query" else given
    with caplog.at_level(logging.WARNING):
        found = open_table(given, role="nodes", options=ColumnOptions(vector={"x": 3}, fill={"x": "8"}))
        assert read(found, rows=2).tolist() == PADDED
    assert (
        sum(
            "of the first 4 lists, 2 get zeros at their ends, 1 lose elements" in each
            for each in caplog.messages
        )
        == 1
    )
    folder = MemoryFolder()
    build_graph(GraphTables(EDGES, {"node": NodeTable(found)}), folder)
    graph = Graph.open(folder)
    assert graph.schema.nodes["node"].columns["x"].shape == (3,)
    assert graph.node_column("node", "x", 0).tolist() == PADDED


def test_files_whose_first_lists_differ_in_length_are_one_table(tmp_path: Path) -> None:
    for name, length in (("a", 1), ("b", 3)):
        lists = pa.array([np.full(length, 7.0)], pa.list_(pa.float64()))
        pq.write_table(pa.table({"feat": lists}), tmp_path / f"{name}.parquet")
    assert read(opened(str(tmp_path), 2)).tolist() == [[7, 0], [7, 7]]


def test_vectors_of_texts_are_stacked_under_their_names(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("age,emb\n3,1;2\n4,5;6\n")
    options = ColumnOptions(vector={"emb": None}, stack={"x": "age,emb"})
    assert read(open_table(str(path), role="nodes", options=options)).tolist() == [[3, 1, 2], [4, 5, 6]]
    one = ColumnOptions(stack={"x": "age"}, drop=["emb"])
    assert read(open_table(str(path), role="nodes", options=one)).tolist() == [[3], [4]]


def partition(directory: Path, *options: str) -> Any:
    (directory / "edges.csv").write_text("src,dst\n0,1\n")
    return run_here(
        *("partition", str(directory / "graph"), "--edges", str(directory / "edges.csv")),
        *("--nodes", str(directory / "nodes.csv"), *options),
    )


def test_the_command_line_takes_vectors_and_proposes_them(tmp_path: Path) -> None:
    csv_of(tmp_path, "0.5 1", "2 3")
    refused = partition(tmp_path)
    assert refused.returncode == 2
    assert "column 'x': holds text, not numbers" in refused.stderr
    proposed = shlex.split(refused.stderr.strip().splitlines()[-1])
    assert proposed[-2:] == ["--vector", "x"]
    assert partition(tmp_path, *proposed[-2:]).returncode == 0
    assert Graph.open(tmp_path / "graph").node_column("node", "x", 0).tolist() == [[0.5, 1], [2, 3]]
    assert "write --vector [TYPE:]COLUMN" in partition(tmp_path, "--vector", "x=a").stderr
    assert "no table has a column 'z'" in partition(tmp_path, "--vector", "z").stderr


def test_texts_that_are_not_all_lists_of_one_length_are_dropped(tmp_path: Path) -> None:
    csv_of(tmp_path, "1 2", "1 2 3")
    assert partition(tmp_path).stderr.strip().endswith("--drop x")
