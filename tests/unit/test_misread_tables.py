"""Tables that a build could misread: they are refused, and what is printed builds the right graph."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_loader.cli.build_options import TableOptions
from gigl_loader.cli.table_options import open_tables
from gigl_loader.errors import FormatError
from gigl_loader.graph import Graph, MemoryFolder
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from tests.support.command_line import run_here

EDGES = "src,dst\n0,1\n1,2\n"
RATINGS = "userId,movieId,rating\n1,1,4\n1,3,4\n2,1,3.5\n"
MOVIES = "movieId,year\n1,1995\n3,1996\n"
OF_RATINGS = "--edges user,rated,movie=ratings.csv --nodes movie=movies.csv"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("e.csv", EDGES), ("ratings.csv", RATINGS), ("movies.csv", MOVIES)):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def partition(arguments: str, code: int = 0) -> str:
    """Run a build; return what it says."""
    done = run_here("partition", "graph", *shlex.split(arguments))
    assert done.returncode == code, done.stderr
    return done.stderr


def follow(error: str) -> Graph:
    """Run the command that a refusal prints; return its graph."""
    _, found, command = error.strip().partition("This would work: gigl-loader ")
    assert found, error
    done = run_here(*shlex.split(command))
    assert done.returncode == 0, done.stderr
    return Graph.open("graph")


@pytest.mark.parametrize(
    "rows",
    [
        "movieId,Age\n2,20\n0,0\n1,10\n",
        "Age,KEY\n20,2\n0,0\n10,1\n",
        ",Age\n2,20\n0,0\n1,10\n",
        "Unnamed: 0,Age\n2,20\n0,0\n1,10\n",
        "Age,position\n20,2\n0,0\n10,1\n",
        "city_id,nid,Age\n5,2,20\n5,0,0\n5,1,10\n",
    ],
)
def test_rows_are_not_numbered_where_a_column_looks_like_ids(rows: str) -> None:
    Path("n.csv").write_text(rows)
    error = partition("--edges e.csv --nodes n.csv", code=2)
    assert "n.csv: no column 'id', and " in error
    assert follow(error).node_column("node", "Age", 0).tolist() == [0, 10, 20]
    partition("--edges e.csv --nodes n.csv --row-ids node --overwrite")
    assert Graph.open("graph").node_column("node", "Age", 0).tolist() == [20, 0, 10]


@pytest.mark.parametrize(
    "rows",
    [
        "ID,Age\n0,20\n1,0\n2,10\n",  # Both readings are the same.
        ",Age\n0,20\n1,0\n2,10\n",
        "Age,born\n20,1990\n0,2010\n10,2000\n",
        "city_id,Age\n5,20\n5,0\n7,10\n",
        "label,Age\n2,20\n0,0\n1,10\n",
    ],
)
def test_rows_are_numbered_where_no_column_looks_like_ids(rows: str) -> None:
    Path("n.csv").write_text(rows)
    partition("--edges e.csv --nodes n.csv")
    assert Graph.open("graph").node_column("node", "Age", 0).tolist() == [20, 0, 10]


@pytest.mark.parametrize("rows", ["src,Age\n2,20\n0,0\n0,10\n", "src,Age\n2.5,20\n0.0,0\n1.0,10\n"])
def test_likely_ids_that_cannot_be_ids_have_no_command(rows: str) -> None:
    Path("n.csv").write_text(rows)
    error = partition("--edges e.csv --nodes n.csv", code=2)
    assert "'src' looks like the ids, but" in error
    assert "This would work" not in error


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("ID,Age\n2,20\n0,0\n0,10\n", "n.csv, line 4, column 'ID': node id 0 occurs a second time"),
    ],
)
def test_ids_by_convention_that_cannot_be_ids_have_no_command(rows: str, said: str) -> None:
    Path("n.csv").write_text(rows)
    error = partition("--edges e.csv --nodes n.csv", code=2)
    assert said in error
    assert "This would work" not in error


def test_ids_that_are_whole_decimals_are_integers() -> None:
    Path("n.csv").write_text("ID,Age\n2.0,20\n0.0,0\n1.0,10\n")
    partition("--edges e.csv --nodes n.csv")
    assert Graph.open("graph").node_column("node", "Age", 0).tolist() == [0, 10, 20]


@pytest.mark.parametrize("option", ["--rename node:ID=rank", "--drop ID", "--rename ID=ID --row-ids node"])
def test_a_column_that_options_rename_or_drop_is_no_id(option: str) -> None:
    Path("n.csv").write_text("ID,Age\n2,20\n0,0\n1,10\n")
    partition(f"--edges e.csv --nodes n.csv {option}")


@pytest.mark.parametrize(
    ("option", "said"),
    [("--row-ids user", "no table of nodes of this type"), ("--row-ids movie", "n.csv has a column 'id'")],
)
def test_rows_that_cannot_be_numbered_are_refused(option: str, said: str) -> None:
    Path("n.csv").write_text("id\n1\n3\n")
    arguments = "--edges user,rated,movie=ratings.csv --rename userId=src --rename movieId=dst"
    assert said in partition(f"{arguments} --nodes movie=n.csv {option}", code=2)


def test_arrow_streams_and_parquet_are_read_so_too_and_arrays_are_not(files: Path) -> None:
    table = pa.table({"movie_id": [3, 1], "year": [1996, 1995]})
    pq.write_table(table, files / "n.parquet")
    edges = {("u", "r", "m"): ArrayTable("e", {"src": np.array([0]), "dst": np.array([1])})}
    with pytest.raises(FormatError, match=r"'movie_id' looks like the ids.*Add --rename m:movie_id=id"):
        build_graph(GraphTables(edges, {"m": NodeTable(table)}), MemoryFolder())
    build_graph(GraphTables(edges, {"m": NodeTable(table, row_ids=True)}), MemoryFolder())
    arrays = ArrayTable("m", {"movie_id": np.array([3, 1])})
    build_graph(GraphTables(edges, {"m": NodeTable(arrays)}), MemoryFolder())
    assert "movie_id=id" in partition("--edges u,r,m=e.csv --nodes m=n.parquet", code=2)


def test_a_refusal_of_two_tables_ends_with_the_right_graph() -> None:
    for name, text in (("ratings.csv", RATINGS), ("movies.csv", MOVIES)):
        Path(name).write_text(text.replace("movieId", "film_key"))
    graph = follow(partition(OF_RATINGS, code=2))
    assert graph.schema.edges["user", "rated", "movie"].count == 3
    assert graph.directory("movie").node_ids(np.arange(2)).tolist() == [1, 3]


def test_rows_of_unknown_ids_are_not_dropped_by_advice_where_ids_count_rows() -> None:
    ends = "--rename userId=src --rename user,rated,movie:movieId=dst"
    for nodes in ("movies.csv --row-ids movie", "2"):
        error = partition(f"--edges user,rated,movie=ratings.csv {ends} --nodes movie={nodes}", code=2)
        assert "unknown node id 3 of type 'movie'; nodes of type 'movie' are 0 to 1" in error
        assert "--unknown-ids" not in error


def test_advice_does_not_drop_most_rows() -> None:
    ends = "--rename userId=src --rename movieId=dst"
    Path("n.csv").write_text("id\n3\n4\n")
    error = partition(f"--edges user,rated,movie=ratings.csv {ends} --nodes movie=n.csv", code=2)
    assert "most rows of ratings.csv name unknown nodes" in error
    assert "--unknown-ids" not in error
    Path("n.csv").write_text("id\n1\n4\n")
    error = partition(f"--edges user,rated,movie=ratings.csv {ends} --nodes movie=n.csv", code=2)
    assert follow(error).schema.edges["user", "rated", "movie"].count == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--edges e.csv --nodes 1 --unknown-ids drop", "the 2 rows of e.csv (left out: 2 unknown ids)"),
        ("--edges loops.csv --self-loops drop", "the 1 rows of loops.csv (left out: 1 self-loops)"),
        ("--edges empty.csv", "the 0 rows of empty.csv"),
    ],
)
def test_a_build_without_edges_fails_unless_it_may(arguments: str, said: str) -> None:
    Path("loops.csv").write_text("src,dst\n0,0\n")
    Path("empty.csv").write_text("src,dst\n")
    assert f"no edge comes of {said}" in partition(arguments, code=2)
    assert not Path("graph").exists()
    partition(f"{arguments} --allow-empty")
    assert Graph.open("graph").schema.edges["node", "to", "node"].count == 0


def test_arrays_without_a_row_make_a_graph_without_edges() -> None:
    none = np.empty(0, np.int64)
    tables = GraphTables(
        {("a", "r", "a"): ArrayTable("e", {"src": none, "dst": none})}, {"a": NodeTable(count=1)}
    )
    build_graph(tables, MemoryFolder())


@pytest.mark.parametrize(
    ("labels", "expected"),
    [(["0", "2", "", "0"], [0, 2, -1, 0]), (["0.5", "", "2", "1"], [0.5, np.nan, 2, 1])],
)
def test_labels_that_are_missing_get_no_mean(labels: list[str], expected: list[float]) -> None:
    rows = [f"{row},{label},{row or ''}" for row, label in enumerate(labels)]
    Path("n.csv").write_text("\n".join(["id,label,age", *rows, ""]))
    error = partition("--edges e.csv --nodes n.csv", code=2)
    assert "--fill age=mean" in error
    assert "label=mean" not in error
    np.testing.assert_array_equal(follow(error).node_column("node", "y", 0), expected)


def test_labels_of_edges_that_are_missing_get_no_mean() -> None:
    Path("l.csv").write_text("src,dst,label\n0,1,2\n1,2,\n2,0,0\n")
    graph = follow(partition("--edges l.csv", code=2))
    assert sorted(graph.edge_column(("node", "to", "node"), "label", 0).tolist()) == [-1, 0, 2]


def test_labels_without_a_value_for_missing_ones_have_no_command(files: Path) -> None:
    labels = pa.array([1, None], pa.uint8())
    pq.write_table(pa.table({"id": [0, 1], "label": labels, "age": [None, 1]}), files / "n.parquet")
    error = partition("--nodes n.parquet", code=2)
    assert "column 'label'" in error
    assert "This would work" not in error


def test_nodes_that_are_added_are_not_of_class_0() -> None:
    Path("n.csv").write_text("id,label\n0,0\n1,1\n")
    graph = follow(partition("--edges e.csv --nodes n.csv --unknown-ids add", code=2))
    assert graph.node_column("node", "y", 0).tolist() == [0, 1, -1]


def test_tables_of_a_schema_file_without_primary_key_are_numbered(files: Path) -> None:
    (files / "graph.yaml").write_text(
        "tables:\n"
        "  movie: {files: movies.csv, primary_key: movieId}\n"
        "  rating: {files: ratings.csv, foreign_keys: {movieId: movie}}\n"
    )
    assert open_tables(TableOptions(schema=files / "graph.yaml")).nodes["rating"].row_ids
