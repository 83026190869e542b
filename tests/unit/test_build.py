"""The builder makes exactly the graph that its tables describe, whatever the memory limit, or nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.errors import FormatError
from gigl_loader.graph import HOMOGENEOUS_EDGE, Graph, MemoryFolder
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.partition.job import Budget
from tests.support.tables import PlainEdges, PlainGraph, check_built, files_of, plain_graphs

_SETTINGS = settings(max_examples=150)

options = st.fixed_dictionaries(
    {
        "num_partitions": st.integers(1, 4),
        "edge_dir": st.sampled_from(["in", "out"]),
        "assigner": st.sampled_from(["range", "hash"]),
    }
)


@settings(max_examples=60)
@given(plain_graphs(), options)
def test_a_built_graph_is_the_graph_of_its_tables(plain: PlainGraph, chosen: dict[str, Any]) -> None:
    folder = MemoryFolder()
    schema = build_graph(plain.tables(), folder, **chosen)
    graph = Graph.open(folder)
    assert graph.schema == schema
    check_built(graph, plain)


@pytest.mark.slow
@_SETTINGS
@given(plain_graphs(), options, st.sampled_from([2000, 5000]))
def test_the_memory_limit_changes_no_byte(plain: PlainGraph, chosen: dict[str, Any], limit: int) -> None:
    much, little = MemoryFolder(), MemoryFolder()
    build_graph(plain.tables(), much, **chosen)
    build_graph(plain.tables(), little, memory_limit=limit, **chosen)
    assert _bytes_of(much) == _bytes_of(little)
    check_built(Graph.open(little), plain)


def _bytes_of(folder: MemoryFolder) -> dict[str, bytes]:
    return {name: bytes(folder.open(name)) for name in folder.names()}


@pytest.mark.slow
@_SETTINGS
@given(plain_graphs(), st.integers(2, 4), st.sampled_from(["range", "hash", "ldg"]))
def test_lists_are_the_same_however_the_graph_is_cut(plain: PlainGraph, parts: int, assigner: Any) -> None:
    assert _lists(plain, num_partitions=1) == _lists(plain, num_partitions=parts, assigner=assigner)


def _lists(plain: PlainGraph, **chosen: Any) -> dict[Any, Any]:
    """Return the list of every target, in node ids."""
    folder = MemoryFolder()
    schema = build_graph(plain.tables(), folder, **chosen)
    graph = Graph.open(folder)

    def id_of(node_type: str, position: int) -> int:
        ids = graph.node_ids(node_type)
        return position if ids is None else int(ids[position])

    found = {}
    for edge_type in schema.edges:
        target, neighbor = schema.target_type(edge_type), schema.neighbor_type(edge_type)
        for part in range(schema.num_partitions):
            arrays = graph.topology(edge_type, part)
            low = int(graph.bounds(target)[part])
            for local in range(len(arrays["indptr"]) - 1):
                span = slice(arrays["indptr"][local], arrays["indptr"][local + 1])
                found[edge_type, id_of(target, low + local)] = (
                    [id_of(neighbor, position) for position in arrays["indices"][span]],
                    arrays["edge_ids"][span].tolist(),
                )
    return found


def _hub(edges: int = 4000) -> PlainGraph:
    """Most edges go to one node, most of those come from one node, and some share their id."""
    random = np.random.default_rng(0)
    dst = np.where(random.random(edges) < 0.8, 3, random.integers(0, 40, edges))
    src = np.where(random.random(edges) < 0.6, 5, random.integers(0, 40, edges))
    ids = random.integers(0, edges // 8, edges)
    rows = list(zip(src.tolist(), dst.tolist(), ids.tolist(), strict=True))
    columns = {"edge_attr": random.random((edges, 3)).astype(np.float32)}
    nodes = {"node": list(range(40))}
    return PlainGraph(
        nodes,
        {"node": {}},
        {"node": {}},
        {HOMOGENEOUS_EDGE: PlainEdges(rows, True, columns, weight=True)},
    )


@pytest.mark.parametrize("limit", [5000, 20_000, 200_000])
def test_a_hub_with_more_edges_than_memory_is_sorted_in_pieces(tmp_path: Path, limit: int) -> None:
    plain = _hub(2000)
    build_graph(plain.tables(), tmp_path / "much", num_partitions=2, assigner="hash")
    check_built(Graph.open(tmp_path / "much"), plain)
    build_graph(plain.tables(), tmp_path / "little", num_partitions=2, assigner="hash", memory_limit=limit)
    assert files_of(tmp_path / "much") == files_of(tmp_path / "little")


def test_pieces_of_a_sort_stay_below_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gigl_loader.partition.steps import edge_sorter as edges_module

    sizes = []
    leaves = edges_module.EdgeSorter.leaves

    def watched(self: Any, spill: Any, bucket: int) -> Any:
        for leaf in leaves(self, spill, bucket):
            sizes.append(leaf.spill.size(leaf.bucket))
            yield leaf

    monkeypatch.setattr(edges_module.EdgeSorter, "leaves", watched)
    build_graph(_hub().tables(), tmp_path / "graph", memory_limit=20_000)
    assert max(sizes) <= Budget(20_000).edge_bucket_rows(12)
    assert len(sizes) > 20


def test_graphs_of_a_folder_in_memory_need_no_room_on_disk_when_they_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "mkdtemp", lambda *_, **__: pytest.fail("made a temporary directory"))
    build_graph(_hub().tables(), MemoryFolder())


@pytest.mark.usefixtures("no_leftovers")
def test_graphs_of_a_folder_in_memory_spill_where_they_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = MemoryFolder()
    plain = _hub()
    build_graph(plain.tables(), folder, memory_limit=20_000)
    check_built(Graph.open(folder), plain)
    assert list(tmp_path.iterdir()) == []


def _table(**arrays: Any) -> ArrayTable:
    return ArrayTable("the.table", {name: np.asarray(array) for name, array in arrays.items()})


def _with_edges(**arrays: Any) -> GraphTables:
    return GraphTables(
        edges={HOMOGENEOUS_EDGE: _table(**{"src": [0, 1], "dst": [1, 0], **arrays})},
        nodes={"node": NodeTable(count=2)},
    )


def _with_nodes(splits: dict[str, Any] | None = None, **arrays: Any) -> GraphTables:
    tables = {name: _table(id=ids) for name, ids in (splits or {}).items()}
    return GraphTables(edges={}, nodes={"node": NodeTable(_table(**arrays), splits=tables)})


BAD_TABLES: dict[str, tuple[Callable[[], GraphTables], str]] = {
    "unknown source": (
        lambda: _with_edges(src=[0, 7]),
        "^the.table, column 'src', row 1: unknown node id 7 of type 'node'; nodes of type 'node' are 0 to 1$",
    ),
    "unknown destination": (lambda: _with_edges(dst=[-1, 7]), "column 'dst', row 0: unknown node id -1"),
    "no source": (
        lambda: GraphTables(edges={HOMOGENEOUS_EDGE: _table(dst=[1], weight=[0.5])}),
        "^the.table: no column 'src'; columns: 'dst', 'weight'$",
    ),
    "NaN ids": (
        lambda: _with_edges(src=[1.0, np.nan]),
        "^the.table, column 'src', row 1: NaN, not an integer$",
    ),
    "float ids": (lambda: _with_edges(src=[1.0, 0.0]), "column 'src': holds F64, not integers"),
    "boolean ids": (lambda: _with_edges(src=[True, False]), "column 'src': holds BOOL, not integers"),
    "text edge ids": (lambda: _with_edges(id=["a", "b"]), "column 'id': holds text, not integers"),
    "vectors as ids": (lambda: _with_edges(src=[[0], [1]]), r"column 'src': holds I64 \[1\] a row"),
    "ids beyond int64": (
        lambda: _with_edges(src=np.array([0, 2**63], np.uint64)),
        "column 'src', row 1: 9223372036854775808 does not fit in int64",
    ),
    "float edge ids": (lambda: _with_edges(id=[0.5, 1]), "column 'id': holds F64"),
    "text weights": (lambda: _with_edges(weight=["a", "b"]), "column 'weight': holds text, not numbers"),
    "text columns": (
        lambda: _with_edges(name=["a", "b"]),
        "^the.table, column 'name': holds text, not numbers. Add --drop name$",
    ),
    "duplicate nodes": (
        lambda: _with_nodes(id=[4, 9, 4, 9]),
        "^the.table, column 'id', row 2: node id 4 occurs a second time$",
    ),
    "float node ids": (lambda: _with_nodes(id=[4.0, np.nan]), "column 'id', row 1: NaN"),
    "text node columns": (lambda: _with_nodes(name=["a"]), "column 'name': holds text"),
    "unknown split number": (
        lambda: _with_nodes(split=[0, 3]),
        r"'split', row 1: 3, not -1 \(none\), 0 \(train\), 1 \(val\) or 2 \(test\)",
    ),
    "split of floats": (lambda: _with_nodes(split=[0.5]), "column 'split': holds float64"),
    "too many splits": (lambda: _with_nodes(split=list("abcdefghi")), "split 'i' is the ninth"),
    "unknown node in a split": (
        lambda: _with_nodes({"train": [0, 5]}, x=[1.0, 2.0]),
        "column 'id', row 1: unknown node id 5 of type 'node'",
    ),
    "float ids in a split": (lambda: _with_nodes({"train": [0.5]}, x=[1.0]), "column 'id': holds F64"),
    "ragged arrays": (
        lambda: _with_nodes(x=[1.0, 2.0], y=[1]),
        "^the.table: ragged columns: 'x' has 2 rows, 'y' has 1$",
    ),
    "a number as a column": (lambda: _with_nodes(x=1.0), "column 'x': a single number"),
    "complex numbers": (lambda: _with_nodes(x=[1j]), "column 'x': arrays of dtype complex128"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
@pytest.mark.parametrize("limit", [None, 1000])
def test_a_bad_table_is_refused_and_nothing_is_left(tmp_path: Path, case: str, limit: int | None) -> None:
    make, message = BAD_TABLES[case]
    with pytest.raises(FormatError, match=message):
        build_graph(make(), tmp_path / "new" / "graph", memory_limit=limit)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_partitions": 0}, "num_partitions must lie in"),
        ({"num_partitions": 65537}, "num_partitions must lie in"),
        ({"edge_dir": "both"}, "edge_dir must be"),
        ({"assigner": "best"}, "unknown assigner 'best'; known: range, hash, ldg, kaminpar, or a table"),
        ({"memory_limit": 0}, "memory limit must be positive"),
    ],
)
def test_arguments_without_sense_are_refused(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_graph(_with_edges(), tmp_path / "graph", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_no_table_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one table"):
        GraphTables(edges={})


def test_a_count_that_contradicts_its_table_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the\.table has 1 rows, not 3"):
        NodeTable(_table(x=[1.0]), count=3)
    with pytest.raises(ValueError, match="cannot have -1 nodes"):
        NodeTable(count=-1)


def test_a_directory_of_ids_that_cannot_fit_is_refused_with_what_it_needs(tmp_path: Path) -> None:
    nodes = NodeTable(_table(id=np.arange(1000) * 3))
    with pytest.raises(ValueError, match=r"needs 0\.0 MB at once.*raise the memory limit"):
        build_graph(GraphTables(edges={}, nodes={"node": nodes}), tmp_path / "graph", memory_limit=8000)


class _OddAssigner:
    name = "odd"
    ascending = False

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def assign(self, node_type: str, ids: Any, num_partitions: int) -> Any:
        return self._answer(ids)


def test_any_assigner_may_be_given() -> None:
    plain = _hub(500)
    folder = MemoryFolder()
    schema = build_graph(plain.tables(), folder, num_partitions=2, assigner=_OddAssigner(lambda ids: ids % 2))
    assert schema.nodes["node"].bounds == (0, 20, 40)
    check_built(Graph.open(folder), plain)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda ids: ids + 0.5, "'odd' gave float64"),
        (lambda ids: ids[1:] * 0, r"'odd' gave int64 \[39\] for 40 nodes"),
        (lambda ids: ids * 0 + 2, r"a partition outside 0\.\.1"),
        (lambda ids: ids * 0 - 1, r"a partition outside 0\.\.1"),
    ],
)
def test_an_assigner_that_breaks_its_promise_is_refused(answer: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_graph(_hub(50).tables(), MemoryFolder(), num_partitions=2, assigner=_OddAssigner(answer))


def test_splits_come_from_names_numbers_masks_and_lists() -> None:
    def splits(entry: NodeTable) -> dict[str, list[int]]:
        folder = MemoryFolder()
        schema = build_graph(GraphTables(edges={}, nodes={"node": entry}), folder)
        graph = Graph.open(folder)
        assert set(schema.nodes["node"].columns) <= {"x"}
        return {name: graph.split("node", name).tolist() for name in schema.nodes["node"].splits}

    names = NodeTable(_table(split=["train", "", "extra", "train"]))
    assert splits(names) == {"train": [0, 3], "extra": [2]}
    assert splits(NodeTable(_table(split=[0, -1, 2, 0]))) == {"train": [0, 3], "test": [2]}
    masks = _table(train_mask=[True, False], val_mask=[False, False], x=[1.0, 2.0])
    assert splits(NodeTable(masks)) == {"train": [0], "val": []}
    lists = NodeTable(count=4, splits={"train": _table(id=[3, 1, 3])})
    assert splits(lists) == {"train": [1, 3]}


def test_a_mask_of_several_columns_is_data() -> None:
    folder = MemoryFolder()
    masks = NodeTable(_table(train_mask=[[True, False], [False, False]]))
    schema = build_graph(GraphTables(edges={}, nodes={"node": masks}), folder)
    assert list(schema.nodes["node"].columns) == ["train_mask"]
    assert schema.nodes["node"].splits == {}


def test_progress_reaches_the_end_of_every_step() -> None:
    steps: dict[str, list[tuple[int, int]]] = {}
    build_graph(
        _hub().tables(),
        MemoryFolder(),
        memory_limit=50_000,
        progress=lambda step, done, total: steps.setdefault(step, []).append((done, total)),
    )
    assert "edges node,to,node: sorting" in steps
    for seen in steps.values():
        assert seen[-1][0] == seen[-1][1]
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize("lies_there", ["file", "link", "tables", "graph and tables"])
def test_overwriting_replaces_graphs_alone(tmp_path: Path, lies_there: str) -> None:
    target, table = tmp_path / "data", tmp_path / "data" / "edges.csv"
    if lies_there == "file":
        target.write_text("src,dst")
    elif lies_there == "link":
        target.symlink_to(tmp_path / "nowhere")
    else:
        if lies_there == "graph and tables":
            build_graph(_with_edges(), target)
        target.mkdir(exist_ok=True)
        table.write_text("src,dst")
    with pytest.raises(ValueError, match="data is not overwritten: it "):
        build_graph(_hub().tables(), target, overwrite=True)
    assert target.is_symlink() or (table if target.is_dir() else target).read_text() == "src,dst"


def test_overwriting_at_a_uri_replaces_graphs_alone(tmp_path: Path) -> None:
    target = f"file://{tmp_path}/data"
    build_graph(_with_edges(), target)
    build_graph(_hub().tables(), target, overwrite=True)
    (tmp_path / "data" / "tables").mkdir()
    (tmp_path / "data" / "tables" / "edges.csv").write_text("src,dst")
    before = files_of(tmp_path)
    with pytest.raises(ValueError, match="data is not overwritten: it holds 'tables"):
        build_graph(_with_edges(), target, overwrite=True)
    assert files_of(tmp_path) == before


def test_an_existing_target_is_kept_unless_overwriting(tmp_path: Path) -> None:
    target = tmp_path / "graph"
    target.mkdir()
    build_graph(_with_edges(), target)
    before = files_of(target)
    with pytest.raises(ValueError, match="exists: give another name, or ask to overwrite it"):
        build_graph(_hub().tables(), target)
    assert files_of(target) == before
    with pytest.raises(FormatError):
        build_graph(_with_edges(src=[0, 9]), target, overwrite=True)
    assert files_of(target) == before
    build_graph(_hub().tables(), target, overwrite=True)
    check_built(Graph.open(target), _hub())
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]


def test_a_folder_that_is_not_empty_is_refused() -> None:
    folder = MemoryFolder()
    build_graph(_with_edges(), folder)
    with pytest.raises(ValueError, match="not empty"):
        build_graph(_with_edges(), folder)


@pytest.mark.some(1)
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, OSError])
def test_nothing_is_left_wherever_a_build_is_interrupted(tmp_path: Path, error: type[BaseException]) -> None:
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    build_graph(_hub(800).tables(), tmp_path / "whole", memory_limit=40_000, progress=count)
    for stop in range(1, calls + 1, max(calls // 10, 1)):
        left = stop

        def fail(*_: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise error

        with pytest.raises(error):
            build_graph(_hub(800).tables(), tmp_path / "graph", memory_limit=40_000, progress=fail)
        assert [path.name for path in tmp_path.iterdir()] == ["whole"]


_KILLED = """
import os, sys, time
from tests.unit.test_build import _hub
from gigl_loader.partition import build_graph

def stop(step, done, total):
    if step.endswith("sorting") and done:
        print("here", flush=True)
        time.sleep(60)

build_graph(_hub().tables(), sys.argv[1], memory_limit=100_000, progress=stop)
"""


@pytest.mark.usefixtures("no_leftovers")
def test_a_killed_build_never_opens_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    target = tmp_path / "graph"
    child = subprocess.Popen([sys.executable, "-c", _KILLED, str(target)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"here\n"
        assert len(list(tmp_path.iterdir())) == 1
        # A second build beside a living one leaves that one alone.
        build_graph(_hub().tables(), target)
        assert len(list(tmp_path.iterdir())) == 2
        Graph.open(target).verify()
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
    build_graph(_hub().tables(), target, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]


def test_the_safetensors_package_reads_the_files(tmp_path: Path) -> None:
    plain = _hub(100)
    build_graph(plain.tables(), tmp_path / "graph")
    arrays = safetensors.numpy.load_file(
        tmp_path / "graph" / "part-00000" / "topology" / "node+to+node.safetensors"
    )
    assert set(arrays) == {"indptr", "indices", "edge_ids"}
    assert len(arrays["indices"]) == 100
    assert {str(arrays[name].dtype) for name in ("indices", "edge_ids")} == {"int32"}


def test_edge_ids_beyond_32_bits_are_kept() -> None:
    for edge_id in (2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**62):
        folder = MemoryFolder()
        build_graph(_with_edges(id=[0, edge_id]), folder)
        ids = Graph.open(folder).topology(HOMOGENEOUS_EDGE, 0)["edge_ids"]
        assert sorted(ids.tolist()) == sorted([0, edge_id])
        assert ids.dtype == (np.int32 if -(2**31) <= edge_id < 2**31 else np.int64)


def test_a_table_that_changes_while_it_is_read_is_refused() -> None:
    table = _table(src=[0, 1], dst=[1, 0])
    tables = GraphTables(edges={HOMOGENEOUS_EDGE: table}, nodes={"node": NodeTable(count=2)})
    table.num_rows = 3
    with pytest.raises(FormatError, match=r"the\.table: 2 rows, 3 before: it changed"):
        build_graph(tables, MemoryFolder())


def test_ids_further_apart_than_int64_can_say_are_in_order() -> None:
    folder = MemoryFolder()
    ids = np.array([0, -(2**63), 2**63 - 1])
    nodes = {"a": NodeTable(ArrayTable("nodes", {"id": ids}))}
    build_graph(GraphTables({}, nodes), folder)
    graph = Graph.open(folder)
    graph.verify()
    assert graph.positions("a", ids).tolist() == [1, 0, 2]
