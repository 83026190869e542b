"""Arrow streams of DuckDB, Polars and pyarrow as tables: the graph is that of the same rows in memory."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pytest

from gigl_loader.errors import FormatError
from gigl_loader.graph import HOMOGENEOUS_EDGE
from gigl_loader.partition import (
    ArrayTable,
    ColumnOptions,
    GraphTables,
    LocalExecutor,
    NodeTable,
    build_graph,
    open_table,
)
from gigl_loader.partition.readers.arrow_stream import ArrowStreamTable
from tests.support.tables import files_of

_SRC, _DST = np.arange(5000) * 3 % 100, np.arange(5000) * 7 % 100
_WEIGHT = np.arange(5000, dtype=np.float64)


def _edges(engine: str) -> Any:
    if engine == "duckdb":
        ends = "range * 3 % 100 as src, range * 7 % 100 as dst"
        return duckdb.sql(f"select {ends}, range::double as w from range(5000)")
    columns = {"src": _SRC, "dst": _DST, "w": _WEIGHT}
    if engine == "polars":
        return polars.DataFrame(columns)
    table = pa.table(columns)
    return table if engine == "table" else table.to_reader(999)


@pytest.mark.parametrize("engine", ["duckdb", "polars", "reader", "table"])
def test_a_stream_gives_the_graph_of_its_rows(engine: str, tmp_path: Path) -> None:
    nodes: Any = polars.DataFrame({"id": range(100), "x": [[float(i), 1.0] for i in range(100)]})
    tables = GraphTables({HOMOGENEOUS_EDGE: _edges(engine)}, {"node": NodeTable(nodes)})
    build_graph(tables, tmp_path / "graph", num_partitions=2, executor=LocalExecutor(2))
    x = np.column_stack([np.arange(100.0), np.ones(100)])
    plain = GraphTables(
        {HOMOGENEOUS_EDGE: ArrayTable("edges", {"src": _SRC, "dst": _DST, "w": _WEIGHT})},
        {"node": NodeTable(ArrayTable("nodes", {"id": np.arange(100), "x": x}))},
    )
    build_graph(plain, tmp_path / "expected", num_partitions=2)
    assert files_of(tmp_path / "graph") == files_of(tmp_path / "expected")


def test_columns_of_a_stream_are_named_as_those_of_files() -> None:
    kinds = polars.Series(["u"], dtype=polars.Categorical)
    frame = polars.DataFrame({"source": ["a"], "to": ["b"], "kind": kinds})
    table = open_table(frame, role="edges", options=ColumnOptions(rename={"to": "dst"}, drop=["kind"]))
    assert dict(table.columns) == {"src": "text", "dst": "text"}
    assert next(iter(table.read(["dst"], 9)))["dst"].tolist() == ["b"]


def test_a_table_of_a_stream_is_read_often_and_elsewhere_and_leaves_nothing() -> None:
    table = ArrowStreamTable(_edges("reader"), "links")
    file = Path(str(table._path))
    first, second = (next(iter(table.read(["w"], 10)))["w"].tolist() for _ in range(2))
    assert first == second == _WEIGHT[:10].tolist()
    assert pickle.loads(pickle.dumps(table)).num_rows == 5000
    assert table.where("w", 7) == "links, column 'w', row 7"
    assert table.stamp == ArrowStreamTable(_edges("table"), "again").stamp
    changed = pa.table({"src": _SRC, "dst": _DST, "w": _WEIGHT + 1})
    assert table.stamp != ArrowStreamTable(changed, "again").stamp
    [shard] = table.shards(10)
    del table
    assert file.exists(), "a shard needs the file"
    del shard
    assert not file.parent.exists()


def test_a_stream_that_fails_says_so() -> None:
    def batches() -> Any:
        yield pa.record_batch({"src": pa.array([1])})
        raise FormatError("the engine ran out of memory")

    reader = pa.RecordBatchReader.from_batches(pa.schema({"src": pa.int64()}), batches())
    with pytest.raises(FormatError, match="the engine ran out of memory"):
        ArrowStreamTable(reader, "links")
    with pytest.raises(FormatError, match="links: a column name occurs twice"):
        ArrowStreamTable(pa.table([[1], [2]], names=["src", "src"]), "links")
