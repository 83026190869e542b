"""Timestamps of every kind of table become nanoseconds since 1970-01-01 UTC."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from gigl_loader.cli.app import build_app
from gigl_loader.errors import FormatError
from gigl_loader.graph import Column, Graph, GraphSchema
from gigl_loader.partition import GraphTables, NodeTable, build_graph
from gigl_loader.partition.sources import ColumnOptions, open_table

SECOND = 10**9
DAY = 86_400 * SECOND


def _parquet(path: Path, **columns: Any) -> str:
    pq.write_table(pa.table(columns), path)
    return str(path)


def _csv(path: Path, *rows: str) -> str:
    path.write_text("\n".join(("id,t", *rows)) + "\n")
    return str(path)


def _read(table: Any) -> list[int]:
    assert table.columns["t"] == Column("I64", unit="ns")
    return [value for chunk in table.read(["t"], 2) for value in chunk["t"].tolist()]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([1, -2, 0], pa.timestamp("s")), [SECOND, -2 * SECOND, 0]),
        (pa.array([1, -2], pa.timestamp("ms")), [10**6, -2 * 10**6]),
        (pa.array([1, -2], pa.timestamp("us")), [1000, -2000]),
        (pa.array([1, -2], pa.timestamp("ns")), [1, -2]),
        (pa.array([1, -2], pa.timestamp("s", "Asia/Tokyo")), [SECOND, -2 * SECOND]),
        (pa.array([1, -2], pa.date32()), [DAY, -2 * DAY]),
        (pa.array([86_400_000], pa.date64()), [DAY]),
    ],
    ids=str,
)
def test_every_unit_of_arrow_gives_nanoseconds(tmp_path: Path, values: Any, expected: list[int]) -> None:
    assert _read(open_table(_parquet(tmp_path / "n.parquet", t=values), role="nodes")) == expected


def test_lists_of_times_keep_their_unit(tmp_path: Path) -> None:
    values = pa.array([[1, 2], [3, 4]], pa.list_(pa.timestamp("us")))
    table = open_table(_parquet(tmp_path / "n.parquet", t=values), role="nodes")
    assert table.columns["t"] == Column("I64", (2,), unit="ns")
    (chunk,) = table.read(["t"], 9)
    assert chunk["t"].tolist() == [[1000, 2000], [3000, 4000]]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["0,1970-01-02", "1,1969-12-31"], [DAY, -DAY]),
        (["0,1970-01-01 00:00:01", "1,1970-01-01T00:00:00.5"], [SECOND, SECOND // 2]),
        (["0,1970-01-01 00:00:00.000001", "1,1970-01-02"], [1000, DAY]),
        (["0,1970-01-01T00:00:01Z", "1,1970-01-01T01:00:00+01:00"], [SECOND, 0]),
    ],
)
def test_csv_gives_nanoseconds(tmp_path: Path, rows: list[str], expected: list[int]) -> None:
    assert _read(open_table(_csv(tmp_path / "n.csv", *rows), role="nodes")) == expected


def test_parquet_and_csv_of_the_same_times_are_the_same(tmp_path: Path) -> None:
    texts = ["2024-02-29 12:00:00", "1999-12-31 23:59:59"]
    arrow = pa.array(texts).cast(pa.timestamp("ms"))
    parquet = open_table(_parquet(tmp_path / "n.parquet", t=arrow), role="nodes")
    csv = open_table(
        _csv(tmp_path / "n.csv", *(f"{row},{text}" for row, text in enumerate(texts))), role="nodes"
    )
    expected = np.array(texts, "datetime64[ns]").astype(np.int64).tolist()
    assert _read(parquet) == _read(csv) == expected


REFUSED: dict[str, tuple[Any, str]] = {
    "a year after 2262": (
        lambda path: _parquet(path / "n.parquet", t=pa.array([0, 32_503_680_000], pa.timestamp("s"))),
        r"n\.parquet, column 't', row 1: 3000-01-01 00:00:00.000 lies outside 1677 to 2262",
    ),
    "a date before 1677": (
        lambda path: _parquet(path / "n.parquet", t=pa.array([-200_000], pa.date32())),
        r"n\.parquet, column 't', row 0: 1422-\S+ lies outside 1677 to 2262",
    ),
    "a time beyond all calendars": (
        lambda path: _parquet(path / "n.parquet", t=pa.array([2**62], pa.timestamp("ms"))),
        r"column 't', row 0: .* lies outside 1677 to 2262",
    ),
    "the least number": (
        lambda path: _parquet(path / "n.parquet", t=pa.array([-(2**63)], pa.timestamp("us"))),
        r"column 't', row 0: .* lies outside 1677 to 2262",
    ),
    "no time": (
        lambda path: _parquet(path / "n.parquet", t=pa.array([0, 1, 2, None], pa.timestamp("s"))),
        r"n\.parquet, column 't', row 3\. Fill",
    ),
    "no time in a CSV": (
        lambda path: _csv(path / "n.csv", "0,2024-01-01 00:00:00", "1,", "2,2024-01-01 00:00:00"),
        r"n\.csv, line 3, column 't'\. Fill",
    ),
    "a year after 2262 in a CSV": (
        lambda path: _csv(path / "n.csv", "0,2024-01-01 00:00:00", "1,3000-01-01 00:00:00"),
        r"n\.csv.*column 't'.*3000-01-01 00:00:00",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_time_that_cannot_be_is_refused_by_file_column_and_row(tmp_path: Path, case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises(FormatError, match=message):
        _read(open_table(make(tmp_path), role="nodes"))


def test_times_and_numbers_do_not_mix(tmp_path: Path) -> None:
    _parquet(tmp_path / "a.parquet", t=pa.array([1], pa.timestamp("s")))
    _parquet(tmp_path / "b.parquet", t=pa.array([1]))
    with pytest.raises(FormatError, match=r"column 't': I64 \[\], but I64 \[\] in ns in .*a.parquet"):
        open_table(str(tmp_path / "*.parquet"), role="nodes")


def test_a_conversion_to_another_dtype_has_no_unit(tmp_path: Path) -> None:
    file = _parquet(tmp_path / "n.parquet", t=pa.array([1], pa.timestamp("s")))
    table = open_table(file, role="nodes", options=ColumnOptions(dtypes={"t": "float64"}))
    assert table.columns["t"] == Column("F64")


def test_inspect_tells_the_unit(tmp_path: Path) -> None:
    times = pa.array([1, 2], pa.timestamp("s"))
    nodes = open_table(_parquet(tmp_path / "n.parquet", t=times, count=pa.array([1, 2])), role="nodes")
    ends = {"src": pa.array([0, 1]), "dst": pa.array([1, 0])}
    edges = open_table(_parquet(tmp_path / "e.parquet", **ends, time=times), role="edges")
    tables = GraphTables(edges={("node", "to", "node"): edges}, nodes={"node": NodeTable(nodes)})
    build_graph(tables, tmp_path / "graph")
    graph = Graph.open(tmp_path / "graph")
    assert graph.node_column("node", "t", 0).tolist() == [SECOND, 2 * SECOND]
    shown = CliRunner().invoke(build_app(), ["inspect", str(tmp_path / "graph")], env={"COLUMNS": "300"})
    assert "count I64, t I64 (ns since 1970 UTC)" in shown.output
    assert "time I64 (ns since 1970 UTC)" in shown.output
    document = json.loads(
        CliRunner().invoke(build_app(), ["inspect", "--json", str(tmp_path / "graph")]).output
    )
    columns = document["schema"]["nodes"][0]["columns"]
    assert columns["t"] == {"dtype": "I64", "shape": [], "unit": "ns"}
    assert columns["count"] == {"dtype": "I64", "shape": []}


@pytest.mark.parametrize("unit", ["s", 7, ""])
def test_a_schema_with_another_unit_is_refused(unit: Any) -> None:
    node = {"type": "node", "count": 0, "bounds": [0, 0], "ids": "identity", "splits": {}}
    columns = {"t": {"dtype": "I64", "shape": [], "unit": unit}}
    document = {"edge_dir": "in", "homogeneous": True, "num_partitions": 1, "edges": []}
    with pytest.raises(FormatError, match="a unit must be 'ns' of I64"):
        GraphSchema.from_json({**document, "nodes": [{**node, "columns": columns}]})


_PANDAS = Path(__file__).parents[2] / "build/pandas"
_PROGRAM = """
import pandas as pd
from gigl_loader.graph.times import in_unit, read_window
days = pd.to_datetime(["2020-01-01", "2020-01-02 12:00"], format="mixed")
local = days.tz_localize("Europe/Berlin")
found = [days, pd.Series(days), list(days), local, pd.Series(local), list(local)]
for each in found:
    print(*in_unit("input_time", each, "ns"))
print(read_window(pd.Timedelta(days=1, nanoseconds=3), "ns"), *read_window((days[0], days[1]), "ns"))
"""


@pytest.mark.skipif(not _PANDAS.exists(), reason="needs pandas, which make puts into build/pandas")
def test_times_of_pandas_are_read_in_the_unit_of_a_column() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(_PANDAS)},
    )
    assert done.returncode == 0, done.stderr
    start, end = 1_577_836_800 * SECOND, 1_577_966_400 * SECOND
    zone = 3_600 * SECOND
    given, local = f"{start} {end}", f"{start - zone} {end - zone}"
    assert done.stdout.splitlines() == [*[given] * 3, *[local] * 3, f"{DAY + 3} {start} {end}"]
