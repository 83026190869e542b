"""Shards of every kind of table have its rows, and its messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gigl_loader.partition import ArrayTable, Table
from gigl_loader.partition.readers import first_rows, read_span, shards_of, stamp_of
from gigl_loader.partition.sources import ColumnOptions, open_table
from gigl_loader.partition.views import ProjectedTable, Projection, chain
from tests.support.executors import rich_tables, write_rich_files


def _arrays(rows: int) -> dict[str, Any]:
    return {"a": np.arange(rows), "b": np.arange(rows * 2).reshape(rows, 2).astype(np.float32)}


def _table(kind: str, folder: Path) -> Table:
    if kind == "arrays":
        return ArrayTable("arrays", _arrays(101))
    if kind == "none":
        return ArrayTable("none", _arrays(0))
    if kind == "projected":
        return ProjectedTable(ArrayTable("arrays", _arrays(50)), {"c": Projection(("b",))})
    if kind == "chained":
        return chain([ArrayTable(str(rows), _arrays(rows)) for rows in (30, 0, 71)])
    write_rich_files(folder, edges=900)
    files = {
        "npy": f"{folder}/src.npy,{folder}/dst.npy",
        "parquet": f"{folder}/items.parquet",
        "csv": f"{folder}/users.csv",
        "several": f"{folder}/buys",
    }
    options = ColumnOptions(fill={"age": "mean"}) if kind == "csv" else ColumnOptions()
    return open_table(files[kind], role="nodes", options=options)


def _whole(tables: list[Table], name: str) -> Any:
    return np.concatenate([chunk[name] for table in tables for chunk in table.read([name], 13)])


@pytest.mark.parametrize(
    "kind", ["arrays", "none", "projected", "chained", "npy", "parquet", "csv", "several"]
)
@pytest.mark.parametrize("rows", [1, 40, 10_000])
def test_shards_have_the_rows_and_the_places(kind: str, rows: int, tmp_path: Path) -> None:
    table = _table(kind, tmp_path)
    shards = shards_of(table, rows)
    bounds = first_rows(shards)
    assert bounds[-1] == table.num_rows
    assert len(shards) == 1 or kind == "csv" or rows < 10_000 or kind in ("chained", "several")
    for name in table.columns:
        whole = _whole([table], name) if table.num_rows else []
        if table.num_rows:
            np.testing.assert_array_equal(_whole(shards, name), whole)
        for shard, first in zip(shards, bounds, strict=False):
            if shard.num_rows:
                last = shard.num_rows - 1
                assert shard.where(name, last) == table.where(name, first + last)
        for begin, end in ((0, table.num_rows), (7, 45), (44, 44)):
            chunks = read_span(shards, bounds, begin, end, names=[name], rows=11)
            found = [value for chunk in chunks for value in chunk[name].tolist()]
            assert found == [
                value.tolist() if hasattr(value, "tolist") else value for value in whole[begin:end]
            ]
    again = shards_of(shards[0], 5)
    assert sum(shard.num_rows for shard in again) == shards[0].num_rows


def test_stamps_change_with_the_rows(tmp_path: Path) -> None:
    write_rich_files(tmp_path)
    first, same = rich_tables(tmp_path).stamp(), rich_tables(tmp_path).stamp()
    assert first == same
    text = (tmp_path / "users.csv").read_text()
    (tmp_path / "users.csv").write_text(text.replace("u7,", "v7,"))
    assert rich_tables(tmp_path).stamp() != first
    arrays = _arrays(10)
    before = stamp_of(ArrayTable("arrays", arrays))
    arrays["a"][3] += 1
    assert stamp_of(ArrayTable("arrays", arrays)) != before
