"""``gigl-loader partition`` and ``inspect``: from files to a graph, and one line for every mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from gigl_loader.cli.app import build_app
from gigl_loader.cli.build_options import TableOptions
from gigl_loader.cli.console import build_progress
from gigl_loader.cli.table_options import open_tables
from gigl_loader.graph import HOMOGENEOUS_EDGE, Graph
from gigl_loader.resources import FreeMemory
from tests.support.command_line import COMMAND
from tests.support.owners import owners_of


def _run(*arguments: Any, code: int = 0) -> str:
    result = CliRunner().invoke(build_app(), [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    if code:
        *told, line = result.stderr.strip().splitlines()
        assert all(each.startswith("gigl-loader: reads ") for each in told), result.stderr
        return line
    return result.stdout


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "papers.csv").write_text(
        "id,title,year,label,split,f_0,f_1\n10,a,2000,1,train,0.5,1\n7,b,2001,0,,1,2\n-3,c,2002,1,test,3,4.5\n"
    )
    table = pa.table({"author_id": [1, 2, 1], "dst": [10, 7, -3], "w": [0.25, 3.0, 4.0], "time": [5, 6, 7]})
    pq.write_table(table, tmp_path / "writes.parquet")
    np.save(tmp_path / "edge_index.npy", np.array([[0, 1, 2], [1, 2, 0]]))
    np.save(tmp_path / "src.npy", np.array([0, 1, 2]))
    np.save(tmp_path / "dst.npy", np.array([1, 2, 0]))
    np.save(tmp_path / "feat.npy", np.eye(3, dtype=np.float32))
    np.save(tmp_path / "label.npy", np.arange(3))
    np.save(tmp_path / "train.npy", np.array([2, 0]))
    return tmp_path


def test_a_homogeneous_graph_from_npy_files(files: Path) -> None:
    graph_path = files / "graph"
    _run(
        *("partition", graph_path, "--edges", files / "edge_index.npy"),
        *(
            "--nodes",
            f"{files / 'feat.npy'},{files / 'label.npy'}",
            "--split",
            f"train={files / 'train.npy'}",
        ),
    )
    graph = Graph.open(graph_path)
    assert graph.schema.homogeneous
    assert graph.topology(HOMOGENEOUS_EDGE, 0)["indices"].tolist() == [2, 0, 1]
    assert set(graph.schema.nodes["node"].columns) == {"x", "y"}
    assert graph.split("node", "train").tolist() == [0, 2]


def test_a_heterogeneous_graph_from_csv_and_parquet(files: Path) -> None:
    printed = _run(
        *("partition", files / "graph", "--json", "-p", 2, "--assigner", "hash", "--edge-dir", "out"),
        *("--nodes", f"paper={files / 'papers.csv'}", "--nodes", "author=3"),
        *("--edges", f"author,writes,paper={files / 'writes.parquet'}"),
        *("--rename", "author_id=src", "--rename", "author,writes,paper:w=weight"),
        *("--drop", "paper:title", "--stack", "x=f_*", "--dtype", "x=float16", "--memory-limit", "8GB"),
    )
    document = json.loads(printed)
    assert document["path"] == str(files / "graph")
    schema = Graph.open(files / "graph").schema
    assert document["schema"] == schema.to_json()
    papers, writes = schema.nodes["paper"], schema.edges["author", "writes", "paper"]
    assert {name: column.dtype for name, column in papers.columns.items()} == {
        "x": "F16",
        "y": "I64",
        "year": "I64",
    }
    assert papers.splits == {"train": 1, "test": 1}
    assert (schema.edge_dir, schema.num_partitions, papers.ids) == ("out", 2, "sparse")
    assert {name: column.dtype for name, column in writes.columns.items()} == {"time": "I64", "weight": "F64"}
    assert (writes.weight, writes.time) == (False, False)
    assert schema.nodes["author"].count == 3


def test_ids_may_be_implied_by_edges(files: Path) -> None:
    _run("partition", files / "graph", "--edges", f"{files / 'src.npy'},{files / 'dst.npy'}")
    assert Graph.open(files / "graph").schema.nodes["node"].count == 3


def test_inspect_shows_and_verifies(files: Path) -> None:
    graph_path = files / "graph"
    _run("partition", graph_path, "--edges", files / "edge_index.npy", "--nodes", files / "feat.npy")
    shown = _run("inspect", graph_path, "--verify")
    for word in ("homogeneous", "every byte verified", "node,to,node", "x F32[3]", "identity"):
        assert word in shown
    document = json.loads(_run("inspect", graph_path, "--json"))
    assert (document["verified"], document["files"]) == (False, 2)
    assert document["schema"] == Graph.open(graph_path).schema.to_json()
    data = bytearray((graph_path / "part-00000/nodes/node.safetensors").read_bytes())
    data[-1] ^= 1
    (graph_path / "part-00000/nodes/node.safetensors").write_bytes(data)
    _run("inspect", graph_path)
    assert "do not match their checksum" in _run("inspect", graph_path, "--verify", code=2)


@pytest.mark.parametrize("least", [1 << 30, 0], ids=["in memory", "nowhere"])
def test_inspect_tells_where_a_loader_would_read_features(
    files: Path, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    graph_path = files / "graph"
    _run("partition", graph_path, "--edges", files / "edge_index.npy", "--nodes", files / "feat.npy")
    monkeypatch.setattr("gigl_loader.resources.free_memory", lambda: FreeMemory(10**6, "memory.max of /a"))
    monkeypatch.setattr("gigl_loader.sampling.feature_memory._LEAST_CACHE", least)
    features = json.loads(_run("inspect", graph_path, "--json"))["features"]
    assert (features["free_bytes"], features["limit"]) == (10**6, "memory.max of /a")
    [of_nodes] = features["types"]
    assert (of_nodes["type"], of_nodes["bytes"], of_nodes.get("reader")) == (
        "node",
        36,
        "memory" if least else None,
    )
    decision, reason = "0.0 MB of features, and no room", ""
    if least:
        decision, reason = "features in memory", "; all features fit in 1.1 GB: "
    assert features["decision"].startswith(decision)
    assert f"a loader here: {decision}{reason}" in _run("inspect", graph_path)


def test_columns_are_quantised_and_inspect_tells_bytes_saved(files: Path) -> None:
    nodes = ("--nodes", f"{files / 'feat.npy'},{files / 'label.npy'}")
    command = ("partition", files / "graph", "--edges", files / "edge_index.npy", *nodes)
    _run(*command, "--quantize", "x=uint4:per-row")
    column = Graph.open(files / "graph").schema.nodes["node"].columns["x"]
    assert column.quantized is not None
    assert (str(column.quantized.how), column.row_bytes) == ("uint4:per-row", 10)
    [entry] = json.loads(_run("inspect", files / "graph", "--json"))["quantized"]
    assert entry == {"type": "node", "column": "x", "as": "uint4:per-row", "bytes": 30, "saved_bytes": 6}
    shown = " ".join(_run("inspect", files / "graph", "--verify").split())
    for text in ("x uint4[3]", "uint4:per-row", "6 of 36 as F32 (17%)"):
        assert text in shown
    assert json.loads(_run(*command, "--overwrite", "--json"))["schema"]["nodes"][0]["columns"]["x"] == {
        "dtype": "F32",
        "shape": [3],
    }


def test_reversed_edges_are_quantised_as_their_edges_and_types_have_their_own(files: Path) -> None:
    written = "author,writes,paper"
    edges = (
        "--edges",
        f"{written}={files / 'writes.parquet'}",
        "--rename",
        "author_id=src",
        "--drop",
        "time",
    )
    nodes = ("--nodes", f"paper={files / 'papers.csv'}", "--stack", "paper:x=f_*", "--drop", "paper:title")
    reverse = ("--reverse", written, "--quantize", f"{written}:w=int8", "--quantize", "paper:x=uint1")
    _run("partition", files / "graph", *edges, *nodes, *reverse)
    forms = {
        (kind, name): str(column.quantized.how)
        for kind, columns in Graph.open(files / "graph").schema.columns.items()
        for name, column in columns.items()
        if column.quantized is not None
    }
    assert forms == {
        ("paper", "x"): "uint1:per-column",
        (("author", "writes", "paper"), "w"): "int8:per-column",
        (("paper", "rev_writes", "author"), "w"): "int8:per-column",
    }
    own = (*reverse, "--quantize", "paper,rev_writes,author:w=uint2:per-row")
    _run("partition", files / "graph", *edges, *nodes, *own, "--overwrite")
    kind = Graph.open(files / "graph").schema.columns["paper", "rev_writes", "author"]["w"].quantized
    assert kind is not None
    assert str(kind.how) == "uint2:per-row"
    said = _run("index", files / "graph", "--weight", f"{written}:w", code=2)
    assert "is quantised: a weight must be exact" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["x"], "--quantize x: write --quantize [TYPE:]COLUMN=KIND, such as x=int8"),
        (["x=int4"], "--quantize: a column is quantised as one of int8, uint4, uint2, uint1, not 'int4'"),
        (["x=int8:row"], "--quantize: 'int8:row': write int8:per-row or int8:per-column"),
        (["z=int8"], "--quantize: no type has a column 'z'; known: dst, src, x, y"),
        (["y=int8"], "column 'y' holds I64: only F16, BF16, F32, F64 can be quantised"),
        (["paper:x=int8"], "--quantize: unknown type 'paper'; known: node, ('node', 'to', 'node')"),
        (["x=int8", "x=uint4"], "--quantize x=uint4: column 'x' is quantised twice"),
        (["src=int8"], "column 'src' names ids or splits, which cannot be quantised"),
    ],
)
def test_a_quantisation_that_cannot_be_is_named(files: Path, options: list[str], said: str) -> None:
    nodes = ("--nodes", f"{files / 'feat.npy'},{files / 'label.npy'}")
    given = [argument for option in options for argument in ("--quantize", option)]
    line = _run("partition", files / "g", "--edges", files / "edge_index.npy", *nodes, *given, code=2)
    assert said in line


@pytest.mark.parametrize("terminal", [False, True])
def test_tables_of_inspect_are_never_cut_off(
    files: Path, monkeypatch: pytest.MonkeyPatch, *, terminal: bool
) -> None:
    written = "author,has_written,paper"
    edges = ("--edges", f"{written}={files / 'writes.parquet'}", "--rename", "author_id=src")
    _run("partition", files / "graph", *edges, "--rename", "w=weight")
    monkeypatch.setenv("COLUMNS", "80")
    if terminal:
        monkeypatch.setattr("rich.console.Console.is_terminal", property(lambda _: True))
    shown = _run("inspect", files / "graph")
    assert all(word in shown for word in ("time I64", "weight", "F64"))  # On one line, or two.
    assert written in shown
    assert all(line[-1] in "┓┃┩│┘" for line in shown.splitlines()[-10:])


def test_inspect_refuses_what_is_no_graph(tmp_path: Path) -> None:
    assert "no graph at" in _run("inspect", tmp_path / "nothing", code=2)
    assert "is not a graph" in _run("inspect", tmp_path, code=2)


MISTAKES: dict[str, tuple[list[str], str]] = {
    "no table": ([], "at least one table"),
    "missing file": (["--edges", "{}/none.csv"], "no such file or directory: "),
    "no type": (["--edges", "a,b={}/src.npy"], "'a,b' is no type"),
    "node type for edges": (["--edges", "paper={}/src.npy"], "SOURCE,RELATION,DESTINATION=FILES"),
    "edge type for nodes": (["--nodes", "a,r,b={}/feat.npy"], "write --nodes [TYPE=FILES]"),
    "typed and untyped": (
        ["--nodes", "{}/feat.npy", "--nodes", "a={}/feat.npy"],
        "every table names its type, or there is only one type",
    ),
    "no column src": (["--edges", "{}/dst.npy,{}/label.npy"], "no column 'src'"),
    "text column": (
        ["--nodes", "{}/papers.csv"],
        "papers.csv, column 'title': holds text, not numbers. This would work: gigl-loader ",
    ),
    "rename of nothing": (["--nodes", "{}/feat.npy", "--rename", "a=b"], "no table has a column 'a'"),
    "stack of nothing": (["--nodes", "{}/feat.npy", "--stack", "x=f_*"], "no table has a column 'f_*'"),
    "drop of nothing": (
        ["--nodes", "{}/feat.npy", "--drop", "z"],
        "no table has a column 'z'; columns: feat, x",
    ),
    "option of no type": (
        ["--nodes", "{}/feat.npy", "--drop", "paper:z"],
        "no table of type paper; given: node",
    ),
    "option without a value": (
        ["--nodes", "{}/feat.npy", "--rename", "a"],
        "write --rename [TYPE:]NAME=VALUE",
    ),
    "split without a file": (["--nodes", "3", "--split", "train"], "write --split [TYPE:]NAME=FILE"),
    "unknown dtype": (["--nodes", "{}/feat.npy", "--dtype", "x=f33"], "unknown dtype 'f33'"),
    "dtype of nothing": (["--nodes", "{}/feat.npy", "--dtype", "z=float16"], "no table has a column 'z'"),
    "unknown assigner": (
        ["--nodes", "3", "--assigner", "best"],
        "unknown assigner 'best'; known: range, hash, ldg, kaminpar, or a table",
    ),
    "owners that are not there": (
        ["--nodes", "3", "--assigner", "{}/none.parquet"],
        "no such file or directory: ",
    ),
    "owners of some types without one": (
        ["--nodes", "a=3", "--assigner", "a=x.npy", "--assigner", "hash"],
        "--assigner hash: of several, each is TYPE=FILES",
    ),
    "owners of a type twice": (
        ["--nodes", "a=3", "--assigner", "a=x.npy", "--assigner", "a=y.npy"],
        "write --assigner [TYPE=]FILES, once for each type",
    ),
    "owners of an unknown type": (
        ["--nodes", "a=3", "--assigner", "b={}/label.npy"],
        "owners: no node type 'b'; known: 'a'",
    ),
    "no owner of a node": (
        ["--nodes", "9", "-p", "99", "--assigner", "{}/label.npy"],
        "label.npy: no owner of node id ",
    ),
    "no size": (["--nodes", "3", "--memory-limit", "much"], "'much' is no size; write for example 2GB"),
    "too little memory": (
        ["--nodes", "3", "--memory-limit", "20MB"],
        "is too small: the program itself takes",
    ),
    "unknown node": (
        ["--edges", "{}/edge_index.npy", "--nodes", "2"],
        "edge_index.npy, column 'src', row 2: unknown node id 2 of type 'node'",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(files: Path, case: str) -> None:
    arguments, message = MISTAKES[case]
    before = sorted(files.iterdir())
    error = _run(
        "partition", files / "graph", *(argument.replace("{}", str(files)) for argument in arguments), code=2
    )
    assert message in error
    assert sorted(files.iterdir()) == before


def test_owners_come_from_tables(files: Path) -> None:
    (files / "owners.csv").write_text("node_id;owner\n2;0\n0;1\n1;1\n")
    np.save(files / "owners.npy", np.array([1, 0]))
    _run(
        *("partition", files / "graph", "-p", 2, "--nodes", "a=3", "--nodes", "b=2", "--csv-delimiter", ";"),
        *("--assigner", f"a={files / 'owners.csv'}", "--assigner", f"b={files / 'owners.npy'}"),
    )
    graph = Graph.open(files / "graph")
    assert owners_of(graph) == {"a": [1, 1, 0], "b": [1, 0]}
    assert graph.manifest.build["assigner"] == "table"


def test_an_existing_graph_is_not_replaced_unasked(files: Path) -> None:
    arguments = ("partition", files / "graph", "--nodes", "3")
    _run(*arguments)
    assert "exists" in _run(*arguments, code=2)
    _run("partition", files / "graph", "--nodes", "4", "--overwrite")
    assert Graph.open(files / "graph").schema.nodes["node"].count == 4


def test_more_rows_come_from_more_files(files: Path) -> None:
    tables = open_tables(
        TableOptions(
            edges=[f"a,r,a={files / 'edge_index.npy'}", f"a,r,a={files / 'src.npy'},{files / 'dst.npy'}"]
        )
    )
    assert tables.edges["a", "r", "a"].num_rows == 6


def test_a_path_with_an_equals_sign_is_a_path(files: Path) -> None:
    folder = files / "date=2024"
    folder.mkdir()
    np.save(folder / "edges.npy", np.array([[0], [1]]))
    assert open_tables(TableOptions(edges=[f"{folder}/edges.npy"])).homogeneous


@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize(
    ("kind", "keeps"),
    [
        (signal.SIGINT, False),
        pytest.param(signal.SIGTERM, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, True, marks=pytest.mark.slow),
        (signal.SIGTERM, True),
    ],
)
def test_a_signal_leaves_nothing_or_what_a_resumed_build_needs(
    tmp_path: Path, kind: signal.Signals, keeps: bool
) -> None:
    random = np.random.default_rng(0)
    for name in ("src", "dst"):
        np.save(tmp_path / f"{name}.npy", random.integers(0, 10**6, 4 * 10**6))
    before = sorted(tmp_path.iterdir())
    command = [
        *(*COMMAND, "partition", str(tmp_path / "graph"), "--memory-limit", "150MB"),
        *("--edges", f"{tmp_path}/src.npy,{tmp_path}/dst.npy", "--nodes", "1000000"),
        *(["--scratch", str(tmp_path / "scratch")] if keeps else []),
    ]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        while not any(path.name.startswith(".graph") and any(path.iterdir()) for path in tmp_path.iterdir()):
            assert child.poll() is None, "the build ended before it could be interrupted"
            time.sleep(0.005)
        os.kill(child.pid, kind)
        _, errors = child.communicate(timeout=30)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 128 + kind
    assert b"Traceback" not in errors
    if not keeps:
        assert sorted(tmp_path.iterdir()) == before
        return
    kept = f"gigl-loader: finished tasks are kept in {tmp_path}/scratch: the same command with --resume"
    *told, line = errors.decode().splitlines()
    assert line.startswith(kept)
    assert all(each.startswith("gigl-loader: reads ") for each in told)
    subprocess.run([*command, "--resume"], check=True, timeout=120, capture_output=True)
    assert Graph.open(tmp_path / "graph").schema.edges[HOMOGENEOUS_EDGE].count == 4 * 10**6


def test_long_work_without_a_terminal_says_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("gigl_loader.cli.console.time.monotonic", lambda: now[0])
    with build_progress(quiet=False) as show:
        assert show is not None
        for second in range(0, 100, 10):
            now[0] = second
            show("edges", second * 1000, 100_000)
    assert capsys.readouterr().err.splitlines() == [
        f"gigl-loader: edges: {second},000 of 100,000, {second} s since the start" for second in (30, 60, 90)
    ]
    with build_progress(quiet=True) as show:
        assert show is None


def test_processes_and_a_scratch_are_told_in_the_summary(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gigl_loader.partition.runner._FEW_ROWS", 1)
    command = ("partition", files / "graph", "--edges", f"{files / 'src.npy'},{files / 'dst.npy'}", "-p", 2)
    more = ("--workers", 2, "--memory-limit", "3GB", "--scratch", files / "scratch", "--resume")
    said = _run(*command, *more)
    assert "; 2 tasks at once with " in said
    assert "the largest process took" in said
    found = json.loads(_run(*command, *more, "--overwrite", "--json"))["tasks"]
    assert (found["num_workers"], found["lost"], found["resumed"]) == (2, 0, 0)
    assert found["done"] > 2
    assert Graph.open(files / "graph").schema.edges[HOMOGENEOUS_EDGE].count == 3


def test_mistakes_with_executors_are_told_in_a_line(files: Path) -> None:
    command = ("partition", files / "graph", "--edges", files / "edge_index.npy")
    assert _run(*command, "--ray-address", "localhost:1", code=2).endswith(
        "--ray-address is for --executor ray"
    )
    assert "only a build with a scratch" in _run(*command, "--resume", code=2)
    ray = ("--executor", "ray", "--ray-address")
    assert "no Ray cluster at 127.0.0.1:1: Connection refused" in _run(*command, *ray, "127.0.0.1:1", code=1)
    assert "no address of a Ray cluster: 'here'" in _run(*command, *ray, "here", code=2)
    assert not (files / "graph").exists()
