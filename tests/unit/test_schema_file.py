"""Schema files: relational tables as a heterogeneous graph, in one command."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.cli.app import build_app

_SCHEMA = """
tables:
  user: {files: users.parquet, primary_key: uid, time: joined}
  product: {files: products.csv, primary_key: pid}
  review:
    files: [reviews-*.parquet]
    foreign_keys: {user: user, product: product, answers: user}
    time: at
    types: {text: drop, sure: drop, language: category, stars: float16}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    day = datetime(2021, 2, 1)
    users = {"uid": ["ann", "bob"], "joined": [day, day], "age": [31, 40]}
    pq.write_table(pa.table(users), tmp_path / "users.parquet")
    (tmp_path / "products.csv").write_text("pid,price\n10,1.5\n20,2.5\n")
    writers: list[list[str | None]] = [["ann", "bob", None], ["ann"]]
    for number, rows in enumerate(writers):
        reviews = {
            "user": pa.array(rows, pa.string()),
            "product": pa.array([20.0, float("nan"), 10.0][: len(rows)]),  # As pandas writes integers.
            "answers": pa.array([None] * len(rows), pa.string()),
            "stars": pa.array([1.0, 2.0, 3.0][: len(rows)]),
            "language": ["en", "de", "en"][: len(rows)],
            "sure": [True] * len(rows),
            "text": ["fine"] * len(rows),
            "at": [day] * len(rows),
        }
        pq.write_table(pa.table(reviews), tmp_path / f"reviews-{number}.parquet")
    (tmp_path / "graph.yaml").write_text(_SCHEMA)
    return tmp_path


def _partition(folder: Path, *more: str, code: int = 0) -> str:
    arguments = ["partition", str(folder / "graph"), "--schema", str(folder / "graph.yaml"), *more]
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code == code, result.output
    return result.stderr.strip() if code else ""


def test_rows_become_nodes_and_foreign_keys_edges(folder: Path) -> None:
    _partition(folder, "-p", "2")
    dataset = DistDataset.open(folder / "graph")
    schema = dataset.schema
    nodes = {kind: each.count for kind, each in schema.nodes.items()}
    assert nodes == {"product": 2, "review": 4, "user": 2}
    counts = {kind: edges.count for kind, edges in schema.edges.items()}
    assert counts == {
        ("review", "f2p_user", "user"): 3,
        ("user", "rev_f2p_user", "review"): 3,
        ("review", "f2p_product", "product"): 3,
        ("product", "rev_f2p_product", "review"): 3,
        ("review", "f2p_answers", "user"): 0,
        ("user", "rev_f2p_answers", "review"): 0,
    }
    assert set(schema.nodes["review"].columns) == {"language", "stars", "time"}
    assert dataset.vocabulary("review", "language") == ("de", "en")
    assert schema.nodes["review"].columns["stars"].dtype == "F16"
    assert schema.nodes["user"].times == ("time",)
    ann = dataset.node_ids_of(["ann"], "user")
    with DistNeighborLoader(dataset, [5], ("user", ann), batch_size=1, num_workers=0) as loader:
        [batch] = loader
    assert batch["review"].n_id.tolist() == [0, 3]


def test_files_without_a_header_have_keys(folder: Path) -> None:
    (folder / "sales.csv").write_text("ann,10\nbob,20\n")
    (folder / "graph.yaml").write_text(
        _SCHEMA + "  sale: {files: sales.csv, foreign_keys: {buyer: user, what: product}}\n"
    )
    _partition(folder, "--csv-columns", "sale:buyer,what")
    edges = DistDataset.open(folder / "graph").schema.edges
    assert edges["sale", "f2p_buyer", "user"].count == edges["sale", "f2p_what", "product"].count == 2


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("answers: user", "answers: nobody", "refers to 'nobody'; known: user, product, review"),
        ("answers: user", "answers: review", "refers to 'review', which has no primary_key"),
        ("answers: user", "reply: user", "no column 'reply', a key of the schema file"),
        ("files: products.csv", "file: products.csv", "must be a mapping with files"),
        ("time: at", "times: at", "unknown key 'times'"),
        ("tables:", "table:", "must have one entry, tables"),
        ("product: product", "stars: product", "unknown node id"),
        ("product: product", "sure: product", "keys are integers or texts"),
        ("tables:", "tables: {", "is not YAML"),
    ],
)
def test_mistakes_are_told_in_a_line(folder: Path, old: str, new: str, words: str) -> None:
    (folder / "graph.yaml").write_text(_SCHEMA.replace(old, new))
    error = _partition(folder, code=2)
    assert words in error
    assert all(line.startswith("gigl-loader: reads ") for line in error.splitlines()[:-1])
    assert not (folder / "graph").exists()


@pytest.mark.parametrize(("key", "words"), [(10.5, "10.5 is no integer"), (2.0**53, "is not exact")])
def test_keys_that_are_no_integers_are_refused_with_their_row(folder: Path, key: float, words: str) -> None:
    path = folder / "reviews-1.parquet"
    table: Any = pq.read_table(path).set_column(1, "product", [[key]])
    pq.write_table(table, path)
    error = _partition(folder, code=2)
    assert "reviews-1.parquet, column 'product', row 0: " in error
    assert words in error


def test_integers_with_gaps_as_pandas_writes_them_to_csv(folder: Path) -> None:
    (folder / "sales.csv").write_text("product,amount\n20.0,1\n,2\n16777217.0,3\n")
    (folder / "products.csv").write_text("pid,price\n16777216,1.5\n16777217,2.5\n20,1\n")
    (folder / "graph.yaml").write_text(
        "tables: {product: {files: products.csv, primary_key: pid}, "
        "sale: {files: sales.csv, foreign_keys: {product: product}}}"
    )
    _partition(folder)
    dataset = DistDataset.open(folder / "graph")
    with DistNeighborLoader(dataset, [5], ("product", [16777217]), num_workers=0) as loader:
        [batch] = loader
    assert batch["sale"].n_id.tolist() == [2]


def test_a_primary_key_may_be_a_foreign_key(folder: Path) -> None:
    (folder / "weights.csv").write_text("pid,kg\n20,0.5\n")
    (folder / "graph.yaml").write_text(
        "tables: {product: {files: products.csv, primary_key: pid}, "
        "weight: {files: weights.csv, primary_key: pid, foreign_keys: {pid: product}}}"
    )
    _partition(folder)
    dataset = DistDataset.open(folder / "graph")
    assert dataset.schema.edges["weight", "f2p_pid", "product"].count == 1
    with DistNeighborLoader(dataset, [5], ("product", [20]), num_workers=0) as loader:
        [batch] = loader
    assert (batch["weight"].n_id.tolist(), batch["weight"].kg.tolist()) == ([20], [0.5])


@pytest.mark.parametrize("name", ["a/b", "a=b", "a,b", "a:b"])
def test_names_of_tables_may_be_odd(folder: Path, name: str) -> None:
    (folder / "uses.csv").write_text("pid\n20\n10\n")
    (folder / "graph.yaml").write_text(
        f"tables: {{'{name}': {{files: products.csv, primary_key: pid}}, "
        f"use: {{files: uses.csv, foreign_keys: {{pid: '{name}'}}}}}}"
    )
    _partition(folder)
    schema = DistDataset.open(folder / "graph").schema
    assert (schema.nodes[name].count, schema.edges["use", "f2p_pid", name].count) == (2, 2)
