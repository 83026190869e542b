"""Slots of several types in one cache: windows that do not fit, shares that move, files that change."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gigl_loader.arrays import Bytes, Int64Array
from gigl_loader.graph.folder import DiskFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.sampling.cached_columns import CachedColumns, cached_columns
from gigl_loader.sampling.columns import ColumnPlan
from gigl_loader.sampling.feature_cache import FeatureCache, Places, Window
from gigl_loader.sampling.rows import DiskRows
from gigl_loader.sampling.store import GatherRequest

SLOT = 8 + 22
ROWS = 1_000


class Reader:
    """Row r of a type is r plus what the type adds."""

    def __init__(self, added: int) -> None:
        self.added = added
        self.count = 0

    def read(self, rows: Int64Array, targets: Int64Array, out: Sequence[Bytes]) -> None:
        self.count += len(rows)
        out[0].view(np.int64)[targets, 0] = rows + self.added

    def close(self) -> None:
        """Do nothing."""


class Types:
    """A cache over types of 1,000 rows, and what batches had from it."""

    def __init__(self, num_slots: int, *names: str, written: Any = int) -> None:
        self.readers = {name: Reader(10_000 * number) for number, name in enumerate(names)}
        columns = {
            name: CachedColumns(reader=reader, row_bytes=(8,), num_rows=ROWS, written=written)
            for name, reader in self.readers.items()
        }
        self.cache = FeatureCache(columns, num_slots * SLOT)  # type: ignore[arg-type]

    def slots(self, name: str) -> int:
        return self.cache._types[name].num_slots

    def read(self) -> int:
        return sum(reader.count for reader in self.readers.values())

    def fetched(self, *batches: Places, ahead: Sequence[Places] = ()) -> Window:
        window = self.cache.plan(batches, ahead)
        assert window is not None
        self.cache.fetch(window)
        return window

    def check(self, window: Window, number: int, places: Places) -> None:
        """The rows of a batch are those of its places."""
        for kind, rows in places.items():
            out = np.zeros((len(rows), 8), np.uint8)
            want = GatherRequest(kind=kind, columns=("x",), rows=rows, distinct=True, out=[out])
            self.cache.gather(window.slots[number], [want])
            assert np.array_equal(out.view(np.int64)[:, 0], rows + self.readers[str(kind)].added)


def places(**rows: range) -> Places:
    return {name: np.array(each, np.int64) for name, each in rows.items()}


def test_a_window_that_does_not_fit_changes_no_type() -> None:
    types = Types(200, "paper", "author")
    first = places(paper=range(80), author=range(80))
    held = types.fetched(first)
    types.cache.release(held)
    pinned = types.fetched(places(author=range(100, 170)))
    before = types.read()
    assert types.cache.plan([places(paper=range(80, 160), author=range(200, 290))], []) is None
    again = types.fetched(places(paper=range(80)))
    assert types.read() == before  # What the first type held is there.
    types.check(again, 0, places(paper=range(80)))
    for window in (pinned, again):
        types.cache.release(window)


def test_slots_move_to_a_type_that_the_first_batches_lack() -> None:
    types = Types(1_000, "paper", "author")
    batch = places(author=range(400), paper=range(10))
    types.cache.release(types.fetched(places(paper=range(300))))
    assert types.slots("author") < 100
    for _ in range(20):
        window = types.fetched(batch)
        types.check(window, 0, batch)
        types.cache.release(window)
    assert types.slots("author") >= 400
    before = types.read()
    types.cache.release(types.fetched(batch))
    assert types.read() == before


def test_no_slot_moves_while_a_window_is_open() -> None:
    types = Types(1_000, "paper", "author")
    wanted = places(paper=range(300))
    opened = types.fetched(wanted)
    batches = [places(author=range(60))] * 20
    assert types.cache.plan(batches, []) is None
    types.check(opened, 0, wanted)
    types.cache.release(opened)
    types.check(types.fetched(*batches), 19, batches[19])


def test_rows_are_read_again_after_files_were_written_to() -> None:
    status = [1]
    types = Types(400, "paper", "author", written=lambda: status[0])
    batch = places(paper=range(100), author=range(100))
    opened = types.fetched(batch)
    for reader in types.readers.values():
        reader.added += 5
    status[0] += 1
    assert types.cache.plan([batch], []) is None  # Its slots are in use.
    types.cache.release(opened)
    again = types.fetched(batch)
    assert types.read() == 400
    types.check(again, 0, batch)
    types.cache.release(again)
    types.fetched(batch)
    assert types.read() == 400


def test_rows_of_other_hosts_do_not_tell_that_their_files_changed(tmp_path: Path) -> None:
    nodes = {"node": NodeTable(ArrayTable("nodes", {"x": np.zeros((4, 2), np.float32)}))}
    build_graph(GraphTables(edges={}, nodes=nodes), tmp_path / "graph")
    schema = Graph.open(tmp_path / "graph").schema
    readers: dict[Any, Any] = {"node": Reader(0)}  # As those of servers, it reads no file of this host.
    columns = cached_columns(schema, ColumnPlan(nodes={"node": ("x",)}, edges={}), readers)
    assert columns["node"].written() == columns["node"].written() == 0


@pytest.mark.parametrize("sets_time_back", [False, True])
def test_a_file_that_was_overwritten_and_mended_leaves_no_row_of_between(
    sets_time_back: bool, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).random((ROWS, 4), dtype=np.float32)
    nodes = {"node": NodeTable(ArrayTable("nodes", {"id": np.arange(ROWS), "x": x}))}
    edges = {("node", "to", "node"): ArrayTable("edges", {each: np.arange(ROWS) for each in ("src", "dst")})}
    build_graph(GraphTables(edges=edges, nodes=nodes), DiskFolder(tmp_path / "graph"), num_partitions=2)
    (file, _) = sorted((tmp_path / "graph").glob("part-*/nodes/*"))
    good, status = file.read_bytes(), file.stat()
    graph = Graph.open(tmp_path / "graph")
    reader = DiskRows(graph, "node", ["x"], gap=0)
    columns = cached_columns(graph.schema, ColumnPlan(nodes={"node": ("x",)}, edges={}), {"node": reader})
    cache = FeatureCache(columns, ROWS * (16 + 22))

    def rows() -> np.ndarray:
        window = cache.plan([{"node": np.arange(ROWS)}], [])
        assert window is not None
        cache.fetch(window)
        out = np.zeros((ROWS, 16), np.uint8)
        want = GatherRequest(kind="node", columns=("x",), rows=np.arange(ROWS), distinct=True, out=[out])
        cache.gather(window.slots[0], [want])
        cache.release(window)
        return out.view(np.float32)

    def overwrite(data: bytes) -> None:
        with open(file, "r+b") as opened:
            opened.write(data)
        if sets_time_back:
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    expected = rows()
    overwrite(good[:-800] + bytes(800))
    assert not np.array_equal(rows(), expected)
    overwrite(good)
    assert np.array_equal(rows(), expected)
    cache.close()
