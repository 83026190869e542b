"""``partition --plan``: how each table is read, before anything is built."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_loader.cli.build_options import TableOptions
from gigl_loader.cli.table_options import open_tables
from gigl_loader.cli.table_plan import plan_of
from tests.support.command_line import run_here

USERS = "userId,f_0,f_1,f_2,age,label,split,title,Unnamed: 7\n5,0.5,1,2,,yes,train,a,0\n9,1,2,3,4,no,,b,1\n"
RATES = "userId;movieId;rating;when;genre\n5;1;3.5;2020-01-31;x\n9;2;4.5;2020-02-01;y\n"
OPTIONS = (
    "--nodes user=users.csv --edges user,rates,movie=rates.csv --drop title --time when --weight rating "
    "--one-hot genre --stack user:x=f_* --reverse user,rates,movie --split user:test=test.npy --fill age=0"
)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("users.csv").write_text(USERS)
    Path("rates.csv").write_text(RATES)
    np.save("test.npy", np.array([9]))


def plan(arguments: str) -> dict[tuple[str, str], Any]:
    done = run_here("partition", "graph", "--plan", "--json", *shlex.split(arguments))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return {(each["type"], each["content"]): each for each in json.loads(done.stdout)["tables"]}


def columns(table: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    return {
        each["column"]: (each["role"], each["name"], each["dtype"], each["first"])
        for each in table["columns"]
    }


def test_the_plan_tells_what_becomes_of_each_column() -> None:
    before = sorted(Path().iterdir())
    found = plan(OPTIONS)
    assert sorted(Path().iterdir()) == before
    users, rates = found["user", "nodes"], found["user,rates,movie", "edges"]
    assert (users["files"], users["read_as"]) == ("users.csv", "text, comma")
    assert columns(users) == {
        "userId": ("id", "id", "I64", "5"),
        "f_0": ("feature", "x", "F64[3]", "0.5"),
        "f_1": ("feature", "x", "F64[3]", "1"),
        "f_2": ("feature", "x", "F64[3]", "2"),
        "age": ("feature", "age", "I64", "missing"),
        "label": ("label, encoded", "y", "text", "yes"),
        "split": ("split", "split", "text", "train"),
        "title": ("left out: dropped", "", "text", "a"),
        "Unnamed: 7": ("left out: an index of pandas", "", "I64", "0"),
    }
    assert rates["read_as"] == "text, semicolon"
    assert columns(rates) == {
        "userId": ("src", "src", "I64", "5"),
        "movieId": ("dst", "dst", "I64", "1"),
        "rating": ("weight", "rating", "F32", "3.5"),
        "when": ("time", "when", "I64 ns", "2020-01-31"),
        "genre": ("feature, one-hot", "genre", "text", "x"),
    }
    assert found["movie", "nodes"]["read_as"] == "the ids that edges have"
    assert found["movie,rev_rates,user", "edges"]["read_as"] == "the edges of user,rates,movie reversed"
    assert columns(found["user", "split test"]) == {"id": ("id", "id", "I64", "9")}


def test_the_plan_is_a_table_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = run_here("partition", "graph", "--plan", *shlex.split(OPTIONS))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("│")]
    assert "f_0 .. f_2" in done.stdout
    assert "f_1" not in done.stdout
    assert sum(" feature" in line for line in lines) == 3
    assert not Path("graph").exists()


def test_other_kinds_of_tables_are_named() -> None:
    pq.write_table(pa.table({"x": [[0.5, 1.0]], "age": [3]}), "n.parquet")
    np.save("e.npy", np.array([[0, 0, 0], [0, 0, 0]]))
    found = plan("--nodes n.parquet --edges e.npy")
    assert found["node", "nodes"]["read_as"] == "Parquet, ids are row numbers"
    assert columns(found["node", "nodes"])["x"] == ("feature", "x", "F64[2]", "[0.5 1. ]")
    assert found["node,to,node", "edges"]["read_as"] == ".npy"
    assert plan("--nodes a=3")["a", "nodes"]["read_as"] == "3 nodes"


def test_every_build_begins_with_a_line_for_each_table() -> None:
    done = run_here("partition", "graph", *shlex.split(OPTIONS))
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("gigl-loader: reads ")]
    assert told[0] == (
        "gigl-loader: reads nodes of user from users.csv (text, comma): id=userId, x=f_0 .. f_2, age, "
        "y=label, split; left out: title, Unnamed: 7"
    )
    assert "edges of user,rates,movie from rates.csv (text, semicolon): src=userId, dst=movieId" in told[3]
    assert run_here("partition", "graph", "--overwrite", "--json", *shlex.split(OPTIONS)).stderr == ""


def test_the_lines_of_a_build_are_short() -> None:
    names = [f"c{at}x" for at in range(100)]
    Path("wide.csv").write_text(",".join(names) + "\n" + ",".join(["1"] * 100) + "\n")
    done = run_here("partition", "graph", "--nodes", "wide.csv")
    assert done.returncode == 0, done.stderr
    assert "c11x and 88 more" in done.stderr
    assert len(done.stderr) < 300


def test_the_plan_reads_only_the_beginning_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later row that breaks a rule is not seen."""
    np.save("src.npy", np.arange(10))
    tables = open_tables(TableOptions(edges=["src.npy,dst:src.npy"]))
    read: list[int] = []
    table = tables.edges["node", "to", "node"]
    whole = type(table.reader).read  # type: ignore[attr-defined]

    def counted(self: Any, names: Any, rows: int) -> Any:
        for chunk in whole(self, names, rows):
            read.append(rows)
            yield chunk

    monkeypatch.setattr(type(table.reader), "read", counted)  # type: ignore[attr-defined]
    [_, edges] = plan_of(tables)
    assert [column.first for column in edges.columns] == ["0", "0"]
    assert read == [1]
    read.clear()
    assert [column.first for column in plan_of(tables, values=False)[1].columns] == ["", ""]
    assert read == []
