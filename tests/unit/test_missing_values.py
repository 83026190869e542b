"""Values that tables lack: filled as told, else all columns that lack some are reported at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_loader import FormatError
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.partition import ColumnOptions, GraphTables, NodeTable, build_graph, open_table
from gigl_loader.partition.job import Budget

LIKES = ("user", "likes", "user")
COLUMNS: dict[str, pa.Array] = {
    "age": pa.array([30, None, 41, None], pa.int8()),
    "height": pa.array([1.5, 2.0, None, 1.0], pa.float32()),
    "half": pa.array(np.array([1, 2, 3, 4], np.float16), mask=np.array([False, True, False, False])),
    "happy": pa.array([True, None, False, True]),
    "born": pa.array([None, 5, 6, 7], pa.timestamp("s")),
    "emb": pa.array([[1.0, None], [3.0, 5.0], [4.0, 6.0], [5.0, None]], pa.list_(pa.float32(), 2)),
    "large": pa.array([2**63 - 1, None, 1, 2], pa.int64()),
}


@pytest.fixture(params=["parquet", "csv"])
def users(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"users.{request.param}"
    if request.param == "parquet":
        pq.write_table(pa.table(COLUMNS), path)
    else:
        path.write_text(
            "age,height,happy,born\n30,1.5,true,\n,2.0,,1970-01-01 00:00:05\n41,,false,1970-01-01 00:00:06\n"
            ",1.0,true,1970-01-01 00:00:07\n"
        )
    return path


def filled(path: Path, rows: int = 3, **fill: str) -> dict[str, np.ndarray[Any, Any]]:
    names = list(fill)
    known = open_table(str(path), role="nodes").columns
    drop = [name for name in known if name not in names]
    table = open_table(str(path), role="nodes", options=ColumnOptions(fill=fill, drop=drop))
    chunks = list(table.read(names, rows))
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in names}


@pytest.mark.parametrize("kind", [pa.list_(pa.float32(), 2), pa.list_(pa.float32())])
@pytest.mark.parametrize("rows", [1, 3, 100])
def test_missing_lists_are_filled_number_by_number(tmp_path: Path, kind: pa.DataType, rows: int) -> None:
    lists = pa.array([None, [1.0, None], None, [3.0, 5.0]], kind)
    pq.write_table(pa.table({"emb": lists}), tmp_path / "users.parquet")
    given = filled(tmp_path / "users.parquet", rows, emb="9")["emb"]
    assert given.tolist() == [[9, 9], [1, 9], [9, 9], [3, 5]]
    assert filled(tmp_path / "users.parquet", rows, emb="mean")["emb"].tolist() == [
        [2, 5],
        [1, 5],
        [2, 5],
        [3, 5],
    ]


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_missing_values_are_filled_as_told(users: Path, rows: int) -> None:
    found = filled(users, rows, age="-1", height="nan", happy="true", born="1970-01-02")
    assert found["age"].tolist() == [30, -1, 41, -1]
    np.testing.assert_array_equal(found["height"], np.array([1.5, 2.0, np.nan, 1.0], np.float32))
    assert found["happy"].tolist() == [True, True, False, True]
    assert found["born"].tolist() == [86_400 * 10**9, *(second * 10**9 for second in (5, 6, 7))]
    assert filled(users, born="1970-01-01T02:00:00+02:00")["born"][0] == 0
    means = filled(users, rows, age="mean", height="mean")
    assert means["age"].tolist() == [30, 36, 41, 36]  # 35.5, rounded.
    assert means["height"].tolist() == [1.5, 2.0, 1.5, 1.0]


def test_every_kind_of_number_can_be_filled(tmp_path: Path) -> None:
    path = tmp_path / "users.parquet"
    pq.write_table(pa.table(COLUMNS), path)
    found = filled(path, half="0.5", emb="mean", large="3")
    assert found["half"].tolist() == [1, 0.5, 3, 4]
    assert found["emb"].tolist() == [[1.0, 5.5], [3.0, 5.0], [4.0, 6.0], [5.0, 5.5]]
    assert found["large"].tolist() == [2**63 - 1, 3, 1, 2]
    assert filled(path, emb="0")["emb"][0].tolist() == [1, 0]


def test_a_mean_is_that_of_all_files_and_of_what_is_a_number(tmp_path: Path) -> None:
    for name, values in (("a", [1.0, None]), ("b", [3.0, np.nan, None])):
        pq.write_table(pa.table({"x": values}), tmp_path / f"{name}.parquet")
    table = open_table(f"{tmp_path}/*.parquet", role="nodes", options=ColumnOptions(fill={"x": "mean"}))
    found = np.concatenate([chunk["x"] for chunk in table.read(["x"], 1)])
    np.testing.assert_array_equal(found, [1.0, 2.0, 3.0, np.nan, 2.0])


def test_names_and_patterns_are_those_before_or_after_renaming(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("f0,f1,label\n1.5,,\n,2.5,1\n")
    for fill in ({"f*": "9", "y": "0"}, {"x": "9", "label": "0"}, {"f0": "9", "f1": "9", "y": "0"}):
        options = ColumnOptions(stack={"x": "f0,f1"}, fill=fill)
        [chunk] = open_table(str(tmp_path / "n.csv"), role="nodes", options=options).read(["x", "y"], 10)
        assert chunk["x"].tolist() == [[1.5, 9], [9, 2.5]]
        assert chunk["y"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("fill", "message"),
    [
        ({"age": "1.5"}, "column 'age': '1.5' is no I"),
        ({"age": "many"}, "column 'age': 'many' is no I"),
        ({"happy": "maybe"}, "column 'happy': 'maybe' is no BOOL"),
        ({"happy": "mean"}, "column 'happy': true and false have no mean"),
        ({"born": "soon"}, "column 'born': 'soon' is no date"),
        ({"born": "3000-01-01"}, "'3000-01-01' is no date between 1677 and 2262"),
        ({"born": "1600-01-01"}, "'1600-01-01' is no date between"),
        ({"born": "NaT"}, "'NaT' is no date"),
        ({"born": "now"}, "'now' is no date"),
        ({"born": "mean"}, "column 'born': points in time have no mean"),
        ({"nothing": "1"}, "no column 'nothing' to fill; columns: 'age'"),
    ],
)
def test_a_fill_that_cannot_be_is_refused(users: Path, fill: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_table(str(users), role="nodes", options=ColumnOptions(fill=fill))


def test_ids_are_never_filled(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("src,dst,w\n0,1,2\n,2,\n")
    with pytest.raises(ValueError, match="column 'src': ids cannot be filled"):
        open_table(str(tmp_path / "e.csv"), role="edges", options=ColumnOptions(fill={"src": "0"}))
    table = open_table(str(tmp_path / "e.csv"), role="edges", options=ColumnOptions(fill={"*": "0"}))
    [chunk] = table.read(["w"], 10)
    assert chunk["w"].tolist() == [2, 0]
    with pytest.raises(FormatError, match=r"line 3, column 'src' \(ids cannot be filled\)"):
        list(table.read(["src"], 10))


def test_there_must_be_a_value_for_a_mean(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([None, None], pa.float32())}), tmp_path / "n.parquet")
    with pytest.raises(FormatError, match=r"n\.parquet, column 'x': no value of which to take the mean"):
        filled(tmp_path / "n.parquet", x="mean")


@pytest.mark.parametrize("limit", [None, 2000])
def test_all_columns_that_lack_values_are_reported_at_once(tmp_path: Path, limit: int | None) -> None:
    (tmp_path / "users.csv").write_text(
        "age,x,name,title\n" + "".join(f"{row % 90 or ''},{row % 7 or ''},1,\n" for row in range(1000))
    )
    (tmp_path / "likes.csv").write_text("src,dst,w\n0,1,1\n2,3,\n")
    tables = GraphTables(
        edges={LIKES: open_table(str(tmp_path / "likes.csv"), role="edges")},
        nodes={
            "user": NodeTable(
                open_table(
                    str(tmp_path / "users.csv"),
                    role="nodes",
                    options=ColumnOptions(drop=["title"], fill={"name": "0"}),
                )
            )
        },
    )
    with pytest.raises(FormatError) as caught:
        build_graph(tables, MemoryFolder(), memory_limit=limit)
    message = str(caught.value).replace(f"{tmp_path}/", "")
    lines = [f"users.csv, line {line}, column 'age'" for line in (2, 92, 182)]
    assert f"{', '.join(lines)} and 9 more; users.csv, line 2, column 'x'" in message
    assert "likes.csv, line 3, column 'w'. Fill them (--fill COLUMN=VALUE" in message
    assert "title" not in message
    assert "\n" not in message


def test_the_build_with_fills_is_the_build_of_whole_tables(tmp_path: Path) -> None:
    for name, hole in (("holes", ""), ("whole", "7")):
        (tmp_path / f"{name}.csv").write_text(
            "id,x\n" + "".join(f"{n},{n % 3 or hole}\n" for n in range(300))
        )
    (tmp_path / "likes.csv").write_text("src,dst\n0,1\n2,3\n")
    digests = set()
    for name, limit in (("holes", None), ("whole", None), ("holes", 20_000)):
        options = ColumnOptions(fill={"x": "7"})
        folder = MemoryFolder()
        users = open_table(str(tmp_path / f"{name}.csv"), role="nodes", options=options)
        likes = open_table(str(tmp_path / "likes.csv"), role="edges")
        tables = GraphTables(edges={LIKES: likes}, nodes={"user": NodeTable(users)})
        build_graph(tables, folder, memory_limit=limit)
        digests.add(folder.open("graph.json").tobytes())
    assert len(digests) == 1
    assert Budget(20_000).chunk_rows(8) < 300
