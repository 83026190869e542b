"""Arrow streams of DuckDB, Polars and pyarrow as tables: the graph is that of the same rows in memory."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
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
from gigl_loader.partition.readers.arrow_files import ArrowStreamTable
from tests.support.tables import files_of

_SRC, _DST = np.arange(5000) * 3 % 100, np.arange(5000) * 7 % 100
_WEIGHT = np.arange(5000, dtype=np.float64)


def _edges(engine: str) -> Any:
    if engine == "duckdb":
        import duckdb

        ends = "range * 3 % 100 as src, range * 7 % 100 as dst"
        return duckdb.sql(f"select {ends}, range::double as w from range(5000)")
    columns = {"src": _SRC, "dst": _DST, "w": _WEIGHT}
    if engine == "polars":
        import polars

        return polars.DataFrame(columns)
    table = pa.table(columns)
    return table if engine == "table" else table.to_reader(999)


def _elsewhere(function: Callable[..., None], *arguments: Any) -> None:
    """Run a function in a process of its own: other tests fork, and engines have threads."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join(100)
    ended = process.exitcode
    process.kill()  # Of a process that has ended, nothing.
    process.join()
    assert ended == 0


def _build(engine: str, out: Path) -> None:
    x = np.column_stack([np.arange(100.0), np.ones(100)])
    nodes: Any = pa.table({"id": np.arange(100), "x": pa.FixedSizeListArray.from_arrays(x.reshape(-1), 2)})
    tables = GraphTables({HOMOGENEOUS_EDGE: _edges(engine)}, {"node": NodeTable(nodes)})
    build_graph(tables, out, num_partitions=2, executor=LocalExecutor(2))


@pytest.mark.some(2)
@pytest.mark.parametrize("engine", ["duckdb", "polars", "reader", "table"])
def test_a_stream_gives_the_graph_of_its_rows(engine: str, tmp_path: Path) -> None:
    _elsewhere(_build, engine, tmp_path / "graph")
    x = np.column_stack([np.arange(100.0), np.ones(100)])
    plain = GraphTables(
        {HOMOGENEOUS_EDGE: ArrayTable("edges", {"src": _SRC, "dst": _DST, "w": _WEIGHT})},
        {"node": NodeTable(ArrayTable("nodes", {"id": np.arange(100), "x": x}))},
    )
    build_graph(plain, tmp_path / "expected", num_partitions=2)
    assert files_of(tmp_path / "graph") == files_of(tmp_path / "expected")


def _named(out: Path) -> None:
    import polars

    kinds = polars.Series(["u"], dtype=polars.Categorical)
    lists = polars.Series([[1.0, 2.0]])
    frame = polars.DataFrame({"source": ["a"], "to": ["b"], "kind": kinds, "x": lists})
    table = open_table(frame, role="edges", options=ColumnOptions(rename={"to": "dst"}))
    [rows] = table.read(list(table.columns), 9)
    out.write_text(json.dumps({name: array.tolist() for name, array in rows.items()}))


def test_columns_of_a_stream_are_named_as_those_of_files(tmp_path: Path) -> None:
    _elsewhere(_named, tmp_path / "rows.json")
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert rows == {"src": ["a"], "dst": ["b"], "kind": ["u"], "x": [[1.0, 2.0]]}


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


@pytest.mark.parametrize("given", [3, None, {"src": [0]}, [[0, 1]]], ids=repr)
def test_what_is_no_table_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"edges of type .*: must be a table .* or an Arrow stream, got"):
        GraphTables({HOMOGENEOUS_EDGE: given})
    with pytest.raises(TypeError, match=r"nodes of type 'node' must be a NodeTable\(...\), got "):
        GraphTables({}, {"node": given})
    wrong: Any = {"edges": ArrayTable("edges", {"src": _SRC, "dst": _DST})}
    with pytest.raises(TypeError, match=r"edges: a type is \(source, relation, destination\), got 'edges'"):
        GraphTables(wrong)


def test_a_stream_that_fails_says_so() -> None:
    def batches() -> Any:
        yield pa.record_batch({"src": pa.array([1])})
        raise FormatError("the engine ran out of memory")

    reader = pa.RecordBatchReader.from_batches(pa.schema({"src": pa.int64()}), batches())
    with pytest.raises(FormatError, match="the engine ran out of memory"):
        ArrowStreamTable(reader, "links")
    with pytest.raises(FormatError, match="links: a column name occurs twice"):
        ArrowStreamTable(pa.table([[1], [2]], names=["src", "src"]), "links")
