"""An opened graph answers what its schema promises, and a damaged one does not open."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from gigl_loader.errors import FormatError
from gigl_loader.graph import HOMOGENEOUS_EDGE, Graph, MemoryFolder
from gigl_loader.graph.manifest import Manifest
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from tests.support.graph_files import as_alpha, as_version_1, edited, rewrite

WRITES = ("author", "writes", "paper")


def _tables() -> GraphTables:
    papers = ArrayTable(
        "papers",
        {
            "id": np.array([30, 10, 20, -5]),
            "x": np.arange(8, dtype=np.float32).reshape(4, 2),
            "split": np.array(["train", "test", "train", ""]),
        },
    )
    writes = ArrayTable(
        "writes",
        {
            "src": np.array([0, 1, 1, 2, 0]),
            "dst": np.array([10, 10, 20, -5, 10]),
            "weight": np.array([1.0, 2.0, 3.0, 4.0, 0.0]),
            "edge_attr": np.arange(5, dtype=np.float16),
        },
    )
    return GraphTables(
        edges={WRITES: writes}, nodes={"paper": NodeTable(papers), "author": NodeTable(count=3)}
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graphs") / "graph"
    build_graph(_tables(), path, num_partitions=2, assigner="hash")
    return path


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "graph"))


def test_the_arrays_are_those_of_the_tables(built: Path) -> None:
    graph = Graph.open(built)
    ids = graph.node_ids("paper")
    assert ids is not None
    assert sorted(ids.tolist()) == [-5, 10, 20, 30]
    assert graph.schema.nodes["paper"].ids == "sparse"
    assert graph.schema.nodes["author"].ids in ("identity", "dense")
    lists = {}
    for part in range(2):
        arrays = graph.topology(WRITES, part)
        low = graph.bounds("paper")[part]
        for local in range(len(arrays["indptr"]) - 1):
            span = slice(arrays["indptr"][local], arrays["indptr"][local + 1])
            authors = graph.node_ids("author")
            neighbors = arrays["indices"][span] if authors is None else authors[arrays["indices"][span]]
            columns = graph.edge_column(WRITES, "edge_attr", part)[span]
            lists[int(ids[low + local])] = (
                neighbors.tolist(),
                arrays["edge_ids"][span].tolist(),
                graph.edge_column(WRITES, "weight", part)[span].tolist(),
                columns.tolist(),
            )
    assert lists == {
        10: ([0, 0, 1], [0, 4, 1], [1.0, 0.0, 2.0], [0.0, 4.0, 1.0]),
        20: ([1], [2], [3.0], [2.0]),
        -5: ([2], [3], [4.0], [3.0]),
        30: ([], [], [], []),
    }


def test_a_graph_of_an_early_version_opens(built: Path, tmp_path: Path) -> None:
    older = Path(shutil.copytree(built, tmp_path / "older"))
    as_alpha(older)
    graph = Graph.open(older)
    graph.verify()
    edges = graph.schema.edges[WRITES]
    assert (edges.weight, edges.time) == (True, True)
    assert {"weight", "time"} <= graph.topology(WRITES, 0).keys()


def test_a_split_comes_by_ascending_node_id_whatever_the_partitions(built: Path) -> None:
    graph = Graph.open(built)
    ids = graph.node_ids("paper")
    assert ids is not None
    assert ids[graph.split("paper", "train")].tolist() == [20, 30]
    assert ids[graph.split("paper", "test")].tolist() == [10]
    assert ids[graph.all_positions("paper")].tolist() == [-5, 10, 20, 30]


def test_unknown_ids_are_listed_up_to_ten(built: Path) -> None:
    graph = Graph.open(built)
    with pytest.raises(ValueError, match=r"12 unknown node ids of type 'paper': 100, .*109, \.\.\."):
        graph.positions("paper", np.arange(100, 112))
    with pytest.raises(ValueError, match=r"1 unknown node ids of type 'author': 3$"):
        graph.positions("author", np.array([0, 3]))


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda graph: graph.split("paper", "val"), "no split 'val'; known: 'test', 'train'"),
        (lambda graph: graph.split("author", "train"), "no split 'train'; known: none"),
        (lambda graph: graph.node_column("paper", "y", 0), "no column 'y'; known: 'x'"),
        (lambda graph: graph.edge_column(WRITES, "x", 0), "no column 'x'; known: 'edge_attr'"),
        (lambda graph: graph.topology(("a", "b", "c"), 0), "unknown edge type"),
        (lambda graph: graph.bounds("venue"), "unknown node type 'venue'; known: 'author', 'paper'"),
        (lambda graph: graph.topology(WRITES, 2), "not among the opened partitions"),
    ],
)
def test_a_question_without_an_answer_is_a_value_error(
    built: Path, ask: Callable[[Graph], Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ask(Graph.open(built))


def test_some_partitions_open_alone(copy: Path) -> None:
    shutil.rmtree(copy / "part-00001")
    graph = Graph.open(copy, parts=[0])
    assert len(graph.topology(WRITES, 0)["indptr"]) == graph.bounds("paper")[1] + 1
    graph.verify()
    with pytest.raises(ValueError, match="not among the opened partitions"):
        graph.topology(WRITES, 1)
    with pytest.raises(ValueError, match="no partition 2 in a graph of 2"):
        Graph.open(copy, parts=[2])


def test_a_graph_in_memory_opens_by_reference() -> None:
    folder = MemoryFolder()
    build_graph(_tables(), folder)
    graph = Graph.open(folder)
    again = Graph.from_reference(json.loads(json.dumps(graph.reference)))
    again.verify()
    assert again.schema == graph.schema
    assert graph.pass_fds == folder.pass_fds


def test_verify_reports_its_progress(built: Path) -> None:
    seen: list[tuple[int, int]] = []
    graph = Graph.open(built)
    graph.verify(lambda done, total: seen.append((done, total)))
    data = sum(file.stat().st_size for file in built.rglob("*.safetensors"))
    assert seen[-1] == (data, data)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_every_file_opens_with_the_safetensors_package(built: Path) -> None:
    for file in built.rglob("*.safetensors"):
        assert safetensors.numpy.load_file(file)
    papers = [
        safetensors.numpy.load_file(built / f"part-0000{part}/nodes/paper.safetensors") for part in (0, 1)
    ]
    assert sum(len(arrays["x"]) for arrays in papers) == 4


def test_a_path_without_a_graph(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no graph at"):
        Graph.open(tmp_path / "nothing")
    with pytest.raises(FormatError, match=r"is not a graph: it has no graph\.json"):
        Graph.open(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FormatError, match="is not a graph"):
        Graph.open(tmp_path / "file")
    with pytest.raises(
        FileNotFoundError, match=r"no graph at store0:7070: of storage servers, use RemoteDist"
    ):
        Graph.open("store0:7070")


TOPOLOGY = "part-00000/topology/author+writes+paper.safetensors"
IDS = "ids/paper.safetensors"


def _flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def _older_with(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    as_alpha(path)
    rewrite(path, TOPOLOGY, change)


def _set(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.__setitem__(name, value)


def _put(array: str, place: int, value: int) -> Callable[[dict[str, Any]], None]:
    return lambda arrays: arrays[array].__setitem__(place, value)


OPENING: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no manifest": (lambda path: (path / "graph.json").unlink(), "is not a graph"),
    "half a manifest": (
        lambda path: (path / "graph.json").write_text((path / "graph.json").read_text()[:200]),
        "not JSON",
    ),
    "an empty manifest": (lambda path: (path / "graph.json").write_text(""), "not JSON"),
    "a manifest that is a list": (lambda path: (path / "graph.json").write_text("[]"), "not an object"),
    "another format": (lambda path: edited(path, _set("format", "other")), "not that of a graph"),
    "a newer version": (
        lambda path: edited(path, _set("version", 5)),
        "format version 5, this library reads 1 to 4",
    ),
    "a changed manifest": (
        lambda path: edited(
            path, lambda document: document["schema"]["nodes"][0].update(count=4), signed=False
        ),
        "do not match their digest",
    ),
    "no digest": (
        lambda path: edited(path, lambda document: document.pop("digest"), signed=False),
        "do not match their digest",
    ),
    "no schema": (lambda path: edited(path, lambda document: document.pop("schema")), "'schema'"),
    "bad schema": (lambda path: edited(path, _set("schema", {"edge_dir": 3})), "bad graph schema"),
    "files that are no records": (
        lambda path: edited(path, _set("files", {"a": 1})),
        "bad file record",
    ),
    "a file without a record": (
        lambda path: edited(path, lambda document: document["files"].pop(TOPOLOGY)),
        r"missing from graph\.json",
    ),
    "a missing file": (lambda path: (path / TOPOLOGY).unlink(), "missing from"),
    "a missing partition": (lambda path: shutil.rmtree(path / "part-00001"), "missing from"),
    "missing ids": (lambda path: (path / IDS).unlink(), "missing from"),
    "a file cut off": (
        lambda path: (path / TOPOLOGY).write_bytes((path / TOPOLOGY).read_bytes()[:-1]),
        r"bytes, graph\.json says",
    ),
    "an empty file": (lambda path: (path / TOPOLOGY).write_bytes(b""), r"0 bytes, graph\.json says"),
    "a longer file": (
        lambda path: (path / TOPOLOGY).write_bytes((path / TOPOLOGY).read_bytes() + b"x"),
        r"bytes, graph\.json says",
    ),
    "a changed header length": (lambda path: _flip(path / TOPOLOGY, 1), "header"),
    "a changed header": (lambda path: _flip(path / TOPOLOGY, 12), TOPOLOGY.replace("+", r"\+")),
    "changed space in a header": (lambda path: _space(path / TOPOLOGY), "does not match its checksum"),
    "an unknown array": (
        lambda path: rewrite(path, TOPOLOGY, _set("more", np.zeros(1))),
        "'more' is not in the schema",
    ),
    "a missing array": (
        lambda path: _older_with(path, lambda arrays: arrays.pop("weight")),
        "'weight' is missing",
    ),
    "no indices": (
        lambda path: rewrite(path, TOPOLOGY, lambda arrays: arrays.pop("indices")),
        "no 1-D array 'indices'",
    ),
    "another dtype": (
        lambda path: _older_with(path, lambda arrays: arrays.update(weight=arrays["weight"].astype("f8"))),
        "'weight' is F64",
    ),
    "too short an indptr": (
        lambda path: rewrite(path, TOPOLOGY, lambda arrays: arrays.update(indptr=arrays["indptr"][:-1])),
        "'indptr' is I64",
    ),
    "an indptr that ends elsewhere": (
        lambda path: rewrite(path, TOPOLOGY, _put("indptr", -1, 99)),
        "indptr runs from 0 to 99",
    ),
    "an indptr that begins elsewhere": (
        lambda path: rewrite(path, TOPOLOGY, _put("indptr", 0, -1)),
        "indptr runs from -1",
    ),
    "a file that no type has": (
        lambda path: edited(
            path, lambda document: document["files"].update(more=document["files"][TOPOLOGY])
        ),
        "more: is no file of this schema",
    ),
    "a name that occurs twice": (
        lambda path: (path / "graph.json").write_text(
            (path / "graph.json").read_text().replace('"format"', '"build": {}, "format"', 1)
        ),
        "a name occurs twice",
    ),
    "a size that is no number": (
        lambda path: (path / "graph.json").write_text(
            (path / "graph.json").read_text().replace('"nbytes": ', '"nbytes": Infinity, "n": ', 1)
        ),
        "Infinity is no number",
    ),
    "nodes of a split that are not there": (
        lambda path: edited(path, lambda document: document["schema"]["nodes"][1]["splits"].update(train=3)),
        "split 'train' of node type 'paper': 2 nodes stored, the schema says 3",
    ),
    "ids that are said to be positions": (
        lambda path: edited(path, lambda document: document["schema"]["nodes"][1].update(ids="identity")),
        r"ids/paper\.safetensors: is no file of this schema",
    ),
    "edges that are not there": (
        lambda path: edited(path, lambda document: document["schema"]["edges"][0].update(count=6)),
        "5 edges stored, the schema says 6",
    ),
    "too short a directory": (
        lambda path: rewrite(path, IDS, lambda arrays: arrays.update(ids=arrays["ids"][:-1])),
        r"'ids' is I64 \[3\]",
    ),
    "half a directory": (
        lambda path: rewrite(path, IDS, lambda arrays: arrays.pop("positions")),
        "cannot hold sparse ids",
    ),
    "another split": (
        lambda path: rewrite(path, "part-00000/splits/paper.safetensors", _set("val", np.zeros(0, np.int64))),
        r"splits \['test', 'train', 'val'\]",
    ),
    "a split of another dtype": (
        lambda path: rewrite(
            path, "part-00000/splits/paper.safetensors", _set("test", np.zeros(0, np.int32))
        ),
        r"'test' is I32",
    ),
    "too few rows of a column": (
        lambda path: rewrite(
            path, "part-00001/nodes/paper.safetensors", lambda arrays: arrays.update(x=arrays["x"][1:])
        ),
        "'x' is F32",
    ),
}


def _space(file: Path) -> None:
    """Change a byte that means nothing: the padding of the header."""
    data = file.read_bytes()
    changed = bytearray(data)
    place = int.from_bytes(data[:8], "little") + 7
    assert changed[place] == ord(" ")
    changed[place] = ord("\t")
    file.write_bytes(changed)


@pytest.mark.parametrize("damage", OPENING)
def test_a_damaged_graph_does_not_open(copy: Path, damage: str) -> None:
    harm, message = OPENING[damage]
    harm(copy)
    with pytest.raises(FormatError, match=message):
        Graph.open(copy)


VERIFYING: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a changed byte in a column": (
        lambda path: _flip(path / "part-00001/nodes/paper.safetensors", -1),
        r"part-00001/nodes/paper\.safetensors: bytes 0 to \d+ do not match",
    ),
    "a changed byte in the topology": (
        lambda path: _flip(path / TOPOLOGY, -1),
        "do not match their checksum",
    ),
    "a changed id": (lambda path: _flip(path / IDS, -1), "do not match their checksum"),
    "an indptr that falls": (
        lambda path: rewrite(path, _busy(path), _put("indptr", 1, 10**6)),
        "'indptr' falls at row 2",
    ),
    "an index out of range": (
        lambda path: rewrite(path, _busy(path), _put("indices", 0, 3)),
        r"'indices' is 3 at row 0, outside \[0, 3\)",
    ),
    "a negative index": (lambda path: rewrite(path, _busy(path), _put("indices", 0, -1)), "'indices' is -1"),
    "ids that are not found again": (
        lambda path: rewrite(path, IDS, lambda arrays: arrays.update(ids=arrays["ids"][::-1].copy())),
        "is not found again",
    ),
    "ids that do not ascend": (
        lambda path: rewrite(path, IDS, lambda arrays: arrays["sorted_ids"].fill(4)),
        "ids in ascending order",
    ),
    "a position out of range": (
        lambda path: rewrite(path, IDS, _put("positions", 0, 4)),
        r"'positions' is 4 at row 0, outside \[0, 4\)",
    ),
    "a split outside its part": (
        lambda path: rewrite(
            path,
            "part-00000/splits/paper.safetensors",
            lambda arrays: next(array for array in arrays.values() if len(array)).__setitem__(0, -1),
        ),
        "is -1 at row 0",
    ),
}


def _busy(path: Path) -> str:
    """Return the topology file that has at least two lists and an edge."""
    for part in (0, 1):
        name = f"part-0000{part}/topology/author+writes+paper.safetensors"
        arrays = safetensors.numpy.load_file(path / name)
        if len(arrays["indptr"]) > 2 and len(arrays["indices"]):
            return name
    raise AssertionError("no part has two lists")


@pytest.mark.parametrize("damage", VERIFYING)
def test_verify_finds_what_opening_does_not_read(copy: Path, damage: str) -> None:
    harm, message = VERIFYING[damage]
    harm(copy)
    with pytest.raises(FormatError, match=message):
        Graph.open(copy).verify()


def test_every_changed_byte_is_found(copy: Path) -> None:
    random = np.random.default_rng(0)
    for file in sorted(file for file in copy.rglob("*") if file.is_file()):
        data = file.read_bytes()
        for place in random.integers(0, len(data), 12).tolist():
            changed = bytearray(data)
            changed[place] ^= 1 << int(random.integers(8))
            file.write_bytes(changed)
            if file.name == "graph.json" and _same_json(data, bytes(changed)):
                continue
            with pytest.raises(FormatError):
                Graph.open(copy).verify()
        file.write_bytes(data)
    Graph.open(copy).verify()


def test_a_graph_of_version_1_opens_and_is_verified_array_by_array(copy: Path) -> None:
    digest = Graph.open(copy).manifest.digest
    as_version_1(copy)
    graph = Graph.open(copy)
    graph.verify()
    assert graph.manifest.digest != digest
    told = Manifest.parse(graph.manifest.to_bytes(), what="a reply")
    assert (told.version, told.digest) == (1, graph.manifest.digest)
    _flip(copy / TOPOLOGY, -1)
    with pytest.raises(FormatError, match=r"writes.*: the bytes of '\w+' do not match their checksum"):
        Graph.open(copy).verify()


def _same_json(one: bytes, other: bytes) -> bool:
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def test_a_homogeneous_graph_without_edges_opens() -> None:
    folder = MemoryFolder()
    build_graph(GraphTables(edges={}, nodes={"node": NodeTable(count=3)}), folder, num_partitions=2)
    graph = Graph.open(folder)
    assert graph.schema.homogeneous
    assert graph.schema.edges == {}
    assert graph.bounds("node").tolist() == [0, 1, 3]
    empty = ArrayTable("edges", {"src": np.empty(0, np.int64), "dst": np.empty(0, np.int64)})
    folder = MemoryFolder()
    build_graph(GraphTables(edges={HOMOGENEOUS_EDGE: empty}), folder)
    assert Graph.open(folder).topology(HOMOGENEOUS_EDGE, 0)["indptr"].tolist() == [0]
