"""Builds by executors: the same bytes, the same errors, nothing done twice, nothing left."""

from __future__ import annotations

import errno
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing import connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_loader.errors import BuildError, FormatError
from gigl_loader.graph import HOMOGENEOUS_EDGE, Graph, MemoryFolder
from gigl_loader.partition import ArrayTable, GraphTables, LocalExecutor, NodeTable, build_graph, tasks
from gigl_loader.partition import runner as runner_module
from gigl_loader.partition.job import TaskTotals
from tests.support.executors import DeadlyTable, rich_tables, write_rich_files
from tests.support.tables import files_of

_MEMORY = 1 << 30


@pytest.fixture(autouse=True)
def _small_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "_FEW_ROWS", 100)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_rich_files(folder)
    return folder


@pytest.fixture(scope="module")
def expected(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("expected")
    build_graph(rich_tables(inputs), folder / "graph", num_partitions=3, assigner="hash")
    Graph.open(folder / "graph").verify()
    return files_of(folder / "graph")


def _build(inputs: Path, out: Path, **options: Any) -> TaskTotals:
    totals: list[TaskTotals] = []
    build_graph(
        rich_tables(inputs),
        out,
        num_partitions=3,
        assigner="hash",
        memory_limit=_MEMORY,
        summary=totals.append,
        **options,
    )
    return totals[0]


@pytest.mark.usefixtures("no_leftovers")
def test_processes_write_the_bytes_of_one(inputs: Path, expected: Any, tmp_path: Path) -> None:
    steps: dict[str, tuple[int, int]] = {}

    def progress(step: str, done: int, total: int) -> None:
        assert done >= steps.get(step, (0, 0))[0]
        steps[step] = done, total

    totals = _build(inputs, tmp_path / "graph", executor=LocalExecutor(2), progress=progress)
    assert files_of(tmp_path / "graph") == expected
    assert any(step.startswith("edges user,buys,item: sorting (3 tasks, 41") for step in steps)
    assert all(done == total for done, total in steps.values())
    assert totals.num_workers == 2
    assert totals.done > 20
    assert 0 < totals.task_bytes < _MEMORY // 2
    assert totals.peak_bytes > 0
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]


def test_a_build_with_a_scratch_is_the_same_and_empties_it(
    inputs: Path, expected: Any, tmp_path: Path
) -> None:
    _build(inputs, tmp_path / "graph", scratch=tmp_path / "scratch")
    assert files_of(tmp_path / "graph") == expected
    assert list((tmp_path / "scratch").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph", "scratch"]


def _stop_after(calls: int) -> Callable[..., None]:
    def progress(*_: object) -> None:
        nonlocal calls
        calls -= 1
        if calls < 0:
            raise KeyboardInterrupt

    return progress


@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize("after", [60, *(pytest.param(each, marks=pytest.mark.slow) for each in (20, 100))])
def test_a_build_that_was_cut_off_does_no_task_twice(
    inputs: Path, expected: Any, tmp_path: Path, after: int
) -> None:
    whole = _build(inputs, tmp_path / "whole", scratch=tmp_path / "other")
    with pytest.raises(KeyboardInterrupt):
        _build(inputs, tmp_path / "graph", scratch=tmp_path / "scratch", progress=_stop_after(after))
    assert not (tmp_path / "graph").exists()
    kept = len([path for path in (tmp_path / "scratch" / "done").rglob("*") if path.is_file()])
    assert kept > 0
    if after == 60:  # A crash of the machine may leave a record without its content.
        record = next(path for path in (tmp_path / "scratch" / "done" / "ids").rglob("0*"))
        record.write_bytes(b"")
        kept -= 1
    totals = _build(inputs, tmp_path / "graph", scratch=tmp_path / "scratch", resume=True)
    assert (totals.resumed, totals.done) == (kept, whole.done - kept)
    assert files_of(tmp_path / "graph") == expected
    assert list((tmp_path / "scratch").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph", "other", "scratch", "whole"]


def test_processes_resume_what_this_one_began(inputs: Path, expected: Any, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _build(inputs, tmp_path / "graph", scratch=tmp_path / "scratch", progress=_stop_after(60))
    executor = LocalExecutor(2)
    totals = _build(inputs, tmp_path / "graph", scratch=tmp_path / "scratch", resume=True, executor=executor)
    assert totals.resumed > 0
    assert files_of(tmp_path / "graph") == expected


_KILLED = """
import os, signal, sys
from pathlib import Path
from gigl_loader.partition import LocalExecutor, build_graph, runner
from tests.support.executors import rich_tables

runner._FEW_ROWS = 100

def die(step, done, total):
    if step.startswith("edges user,buys,item: sorting") and done:
        os.kill(os.getpid(), signal.SIGKILL)

inputs, out, scratch = sys.argv[1:]
build_graph(
    rich_tables(inputs), out, num_partitions=3, assigner="hash", memory_limit=1 << 30,
    executor=LocalExecutor(2), scratch=scratch, progress=die,
)
"""


@pytest.mark.usefixtures("no_leftovers")
def test_a_build_that_was_killed_resumes(inputs: Path, expected: Any, tmp_path: Path) -> None:
    out, scratch = tmp_path / "graph", tmp_path / "scratch"
    child = subprocess.run(
        [sys.executable, "-c", _KILLED, str(inputs), str(out), str(scratch)], check=False, timeout=90
    )
    assert child.returncode == -9
    assert not out.exists()
    totals = _build(inputs, out, scratch=scratch, resume=True)
    assert totals.resumed > 10
    assert files_of(out) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph", "scratch"]


def _edges(rows: int = 2000, nodes: int = 100) -> dict[str, Any]:
    random = np.random.default_rng(1)
    return {"src": random.integers(0, nodes, rows), "dst": random.integers(0, nodes, rows)}


def _homogeneous(table: ArrayTable) -> GraphTables:
    return GraphTables(edges={HOMOGENEOUS_EDGE: table}, nodes={"node": NodeTable(count=100)})


@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.some(1)
@pytest.mark.parametrize("nodes", [1, 100, 777])
def test_rows_that_come_in_order_are_copied_by_partition(tmp_path: Path, nodes: int) -> None:
    columns = {"x": np.arange(nodes * 3).reshape(nodes, 3), "y": np.arange(nodes) * 0.5}
    tables = GraphTables(
        edges={HOMOGENEOUS_EDGE: ArrayTable("edges", _edges(nodes=nodes))},
        nodes={"node": NodeTable(ArrayTable("nodes", columns))},
    )
    places: dict[str, dict[str, Any]] = {
        "here": {},
        "scratch": {"scratch": tmp_path / "kept"},
        "there": {"executor": LocalExecutor(2)},
    }
    for name, options in places.items():
        build_graph(tables, tmp_path / name, num_partitions=5, memory_limit=_MEMORY, **options)
    found = [files_of(tmp_path / name) for name in places]
    assert found[0] == found[1] == found[2]
    graph = Graph.open(tmp_path / "here")
    parts = [graph.node_column("node", "x", part) for part in range(5)]
    np.testing.assert_array_equal(np.concatenate(parts), columns["x"])


@pytest.mark.usefixtures("no_leftovers")
def test_a_task_whose_process_was_killed_is_done_again(tmp_path: Path) -> None:
    (tmp_path / "deaths").mkdir()
    table = DeadlyTable(_edges(), tmp_path / "deaths", times=2)
    build_graph(_homogeneous(table), tmp_path / "alone")
    totals: list[TaskTotals] = []
    build_graph(
        _homogeneous(table),
        tmp_path / "graph",
        executor=LocalExecutor(2),
        memory_limit=_MEMORY,
        summary=totals.append,
    )
    assert totals[0].lost == 2
    assert files_of(tmp_path / "graph") == files_of(tmp_path / "alone")


@pytest.mark.usefixtures("no_leftovers")
def test_a_task_that_kills_every_process_ends_the_build_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "deaths").mkdir()
    table = DeadlyTable(_edges(), tmp_path / "deaths", times=99)
    with pytest.raises(
        BuildError, match=r"node,to,node: reading, task 8 of 8: process \d+ was killed by SIGKILL"
    ):
        build_graph(_homogeneous(table), tmp_path / "graph", executor=LocalExecutor(2), memory_limit=_MEMORY)
    assert [path.name for path in tmp_path.iterdir()] == ["deaths"]


@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.some(1)
@pytest.mark.parametrize("wrong", ["unknown node", "missing value", "weight"])
def test_a_bad_row_in_the_last_file_gives_the_same_error(tmp_path: Path, wrong: str) -> None:
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    write_rich_files(inputs)
    last = inputs / "buys" / "2.parquet"
    columns = pq.read_table(last).to_pydict()
    name, value = {"unknown node": ("dst", 4), "missing value": ("price", None), "weight": ("w", -1.0)}[wrong]
    columns[name][-3] = value
    types = pq.read_schema(last)
    pq.write_table(pa.table(columns, schema=types), last, row_group_size=500)
    said = []
    for number, executor in enumerate([None, LocalExecutor(2)]):
        with pytest.raises(FormatError) as raised:
            _build(inputs, tmp_path / str(number), executor=executor)
        said.append(str(raised.value))
    assert said[0] == said[1]
    assert f"2.parquet, column '{name}', row 1997" in said[0]
    assert [path.name for path in tmp_path.iterdir()] == ["inputs"]


def test_a_scratch_of_something_else_is_refused(inputs: Path, tmp_path: Path) -> None:
    scratch, out = tmp_path / "scratch", tmp_path / "graph"
    with pytest.raises(ValueError, match="only a build with a scratch directory can be resumed"):
        _build(inputs, out, resume=True)
    with pytest.raises(ValueError, match="built by this process, without executor and scratch"):
        build_graph(rich_tables(inputs), MemoryFolder(), scratch=scratch)
    with pytest.raises(ValueError, match="must be apart"):
        _build(inputs, out, scratch=out / "scratch")
    (out / "other").mkdir(parents=True)
    with pytest.raises(ValueError, match="exists: give another name"):
        _build(inputs, out, scratch=scratch)
    (out / "other").rmdir()
    assert not scratch.exists()
    scratch.mkdir()
    (scratch / "thesis.txt").write_text("text")
    with pytest.raises(ValueError, match="is not empty, and holds no build"):
        _build(inputs, out, scratch=scratch)
    (scratch / "thesis.txt").unlink()
    with pytest.raises(KeyboardInterrupt):
        _build(inputs, out, scratch=scratch, progress=_stop_after(30))
    with pytest.raises(
        ValueError, match=r"holds a build that was cut off: resume it \(--resume\), or empty it"
    ):
        _build(inputs, out, scratch=scratch)
    with pytest.raises(ValueError, match="holds a build with other out: empty it"):
        _build(inputs, tmp_path / "elsewhere", scratch=scratch, resume=True)
    with pytest.raises(ValueError, match=r"with other partitions, tables \(a table that was changed"):
        build_graph(
            _homogeneous(ArrayTable("edges", _edges())), out, assigner="hash", scratch=scratch, resume=True
        )


def test_rows_that_were_damaged_in_the_scratch_are_refused(inputs: Path, tmp_path: Path) -> None:
    scratch, out = tmp_path / "scratch", tmp_path / "graph"

    def stop(step: str, done: int, total: int) -> None:
        if step.endswith("buys,item: sorting"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _build(inputs, out, scratch=scratch, progress=stop)
    for path in (scratch / "rows").rglob("0*"):
        data = bytearray(path.read_bytes())
        data[len(data) // 4] ^= 1
        path.write_bytes(bytes(data))
    with pytest.raises(FormatError, match=r"of the scratch: .* does not match its checksum"):
        _build(inputs, out, scratch=scratch, resume=True)


def test_the_number_of_processes_is_bounded_by_memory() -> None:
    assert LocalExecutor(64).plan(2 << 30).num_workers == 8
    assert LocalExecutor(64).plan(256 << 20).num_workers == 0
    assert LocalExecutor(1).plan(64 << 30).num_workers == 0
    with pytest.raises(ValueError, match="num_workers must be at least 1, got 0"):
        LocalExecutor(0)


@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize("allowed", [0, 1])
def test_a_limit_of_processes_is_named_or_leaves_fewer(
    inputs: Path, expected: Any, allowed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    popen = subprocess.Popen

    def limited(*arguments: Any, **options: Any) -> Any:
        if len(started) == allowed:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        started.append("process")
        return popen(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", limited)
    if allowed:
        _build(inputs, tmp_path / "graph", executor=LocalExecutor(2))
        assert files_of(tmp_path / "graph") == expected
    else:
        with pytest.raises(OSError, match=r"num_workers=2: no further .*ulimit -u, .*lower num_workers$"):
            _build(inputs, tmp_path / "graph", executor=LocalExecutor(2))


def test_a_process_that_can_start_no_thread_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(tasks, "leave_with", refuse)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # Of this process.
    ours, theirs = socket.socketpair()
    with connection.Connection(ours.detach()) as link:
        link.send_bytes(b'{"stage": "none", "task": 0, "parent": 1}')
        served = threading.Thread(target=tasks.do_tasks, args=(theirs,))
        served.start()
        with pytest.raises(OSError, match=r"num_workers: no further process .*ulimit -u"):
            tasks.read_result(link.recv_bytes(), what="a task")
    served.join(60)
    assert not served.is_alive()
