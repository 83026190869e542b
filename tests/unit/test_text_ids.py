"""Text ids: tables that name nodes by texts give the graph of the same tables with row numbers."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader, FormatError
from gigl_loader.cli.build_options import TableOptions
from gigl_loader.cli.table_options import open_tables
from gigl_loader.graph import Graph
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.options import MAX_TEXT_ID
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph, open_table
from gigl_loader.rpc.graph_requests import FindTextsRequest, TextsRequest, encode_graph_request
from gigl_loader.rpc.refusals import Refusal
from gigl_loader.rpc.requests import parse
from gigl_loader.tensors import STORAGE_DTYPES
from tests.support.clusters import addresses_of, check_same, servers_of

FOLLOWS = ("user", "follows", "user")
BUYS = ("user", "buys", "item")
USERS, ITEMS, EDGES = 60, 25, 400

_random = np.random.default_rng(0)
NAMES = [f"üser-{number}" for number in _random.permutation(1000)[:USERS]]
SKUS = [f"sku/{number:04}" for number in _random.permutation(1000)[:ITEMS]]
FOLLOW = _random.integers(0, USERS, (2, EDGES))
BUY = np.stack([_random.integers(0, USERS, EDGES), _random.integers(0, ITEMS, EDGES)])
AGE = _random.random(USERS, dtype=np.float32)


def named(names: list[str], rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = np.array(names, dtype=object)[rows]
    return found


def tables(*, texts: bool, split: list[int] | None = None) -> GraphTables:
    """Return users with a table, and items that only edges mention, by texts or by what texts become."""
    rank = np.argsort(np.argsort(np.array([sku.encode() for sku in SKUS])))
    users = named(NAMES, np.arange(USERS)) if texts else np.arange(USERS)
    ends = [named(NAMES, FOLLOW[0]), named(NAMES, FOLLOW[1]), named(NAMES, BUY[0]), named(SKUS, BUY[1])]
    if not texts:
        ends = [FOLLOW[0], FOLLOW[1], BUY[0], rank[BUY[1]]]
    chosen = np.array([7, 3, 59] if split is None else split)
    return GraphTables(
        edges={
            FOLLOWS: ArrayTable("follows", {"src": ends[0], "dst": ends[1]}),
            BUYS: ArrayTable("buys", {"src": ends[2], "dst": ends[3]}),
        },
        nodes={
            "user": NodeTable(
                ArrayTable("users", {"id": users, "age": AGE}),
                splits={"chosen": ArrayTable("chosen", {"id": users[chosen]})},
            )
        },
    )


def contents(folder: MemoryFolder) -> dict[str, bytes]:
    return {
        name: folder.open(name).tobytes()
        for name in folder.names()
        if not name.startswith("ids/text/") and name != "graph.json"
    }


@pytest.mark.parametrize("options", [{}, {"num_partitions": 3}, {"num_partitions": 3, "assigner": "hash"}])
def test_texts_give_the_graph_of_the_numbers_that_they_stand_for(options: dict[str, Any]) -> None:
    by_text, by_number = MemoryFolder(), MemoryFolder()
    build_graph(tables(texts=True), by_text, **options)
    build_graph(tables(texts=False), by_number, **options)
    assert contents(by_text) == contents(by_number)
    graph = Graph.open(by_text, verify="full")
    graph.verify()
    assert {kind: nodes.text_ids for kind, nodes in graph.schema.nodes.items()} == {
        "user": True,
        "item": True,
    }
    users, items = graph.text_ids("user"), graph.text_ids("item")
    assert users is not None
    assert items is not None
    assert users.texts(np.arange(USERS)) == NAMES
    assert items.texts(np.arange(len(items))) == sorted(SKUS)
    assert Graph.open(by_number).text_ids("user") is None


def test_a_memory_limit_changes_nothing(tmp_path: Path) -> None:
    rich, poor = MemoryFolder(), tmp_path / "poor"
    build_graph(tables(texts=True), rich, num_partitions=2)
    build_graph(tables(texts=True), poor, num_partitions=2, memory_limit=40_000)
    assert Graph.open(poor).manifest.digest == Graph.open(rich).manifest.digest
    with pytest.raises(ValueError, match=r"text ids of node type .* raise the memory limit"):
        build_graph(tables(texts=True), tmp_path / "less", memory_limit=3_000)


# Files


def write_csv(path: Path, columns: dict[str, list[Any]]) -> Path:
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def write_parquet(path: Path, columns: dict[str, list[Any]], *, encode: bool) -> Path:
    arrays = {
        name: pa.array(values).dictionary_encode() if encode and isinstance(values[0], str) else values
        for name, values in columns.items()
    }
    pq.write_table(pa.table(arrays), path)
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet", "dictionary", "npy"])
def test_every_kind_of_file_may_hold_texts(kind: str, tmp_path: Path) -> None:
    nodes = {"id": NAMES, "age": AGE.tolist()}
    follows = {"src": [NAMES[at] for at in FOLLOW[0]], "dst": [NAMES[at] for at in FOLLOW[1]]}

    def written(name: str, columns: dict[str, list[Any]]) -> str:
        if kind == "csv":
            return str(write_csv(tmp_path / f"{name}.csv", columns))
        if kind != "npy":
            return str(write_parquet(tmp_path / f"{name}.parquet", columns, encode=kind == "dictionary"))
        folder = tmp_path / name
        folder.mkdir()
        for column, values in columns.items():
            array = np.array(values)
            np.save(folder / f"{column}.npy", array.astype(np.float32) if array.dtype.kind == "f" else array)
        return str(folder)

    found = GraphTables(
        edges={FOLLOWS: open_table(written("follows", follows), role="edges")},
        nodes={"user": NodeTable(open_table(written("users", nodes), role="nodes"))},
    )
    folder = MemoryFolder()
    build_graph(found, folder)
    graph = Graph.open(folder)
    texts = graph.text_ids("user")
    assert texts is not None
    assert texts.texts(np.arange(USERS)) == NAMES
    assert np.allclose(graph.node_column("user", "age", 0), AGE)
    indptr = graph.topology(FOLLOWS, 0)["indptr"]
    assert np.array_equal(np.diff(indptr), np.bincount(FOLLOW[1], minlength=USERS))


# Refusals


def broken(**changed: Any) -> GraphTables:
    """Return a small graph of texts, some of whose columns are others."""
    given = {"id": ["a", "b", "c"], "src": ["a", "b"], "dst": ["c", "a"], "split": ["b"]} | changed
    columns = {
        name: np.array(value, dtype=object if isinstance(value[0], str) else None)
        for name, value in given.items()
    }
    return GraphTables(
        edges={FOLLOWS: ArrayTable("follows", {"src": columns["src"], "dst": columns["dst"]})},
        nodes={
            "user": NodeTable(
                ArrayTable("users", {"id": columns["id"]}),
                splits={"train": ArrayTable("train", {"id": columns["split"]})},
            )
        },
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"id": ["a", "b", "a"]}, "users, column 'id', row 2: node id 'a' occurs a second time"),
        ({"id": ["a", "", "c"]}, "users, column 'id', row 1: no id"),
        (
            {"id": ["a", "b", "c" * (MAX_TEXT_ID + 1)]},
            f"row 2: an id of {MAX_TEXT_ID + 1} ",
        ),
        ({"src": ["a", "x"]}, "follows, column 'src', row 1: unknown node id 'x' of type 'user'"),
        ({"dst": ["a", ""]}, "follows, column 'dst', row 1: no id"),
        ({"split": ["x"]}, "train, column 'id', row 0: unknown node id 'x' of type 'user'"),
        (
            {"src": [1, 2]},
            r"row 0: 'a'\), and numbers in follows, column 'src': .*--dtype user,follows,user:src=text",
        ),
        ({"id": [1, 2, 3]}, r"texts for ids \(follows, column 'src', row 0: 'a'\), and numbers in users"),
    ],
)
def test_a_text_that_cannot_be_an_id_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        build_graph(broken(**changed), MemoryFolder())


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (NodeTable(count=3), "nodes of type 'user' are only counted"),
        (NodeTable(ArrayTable("users", {"age": AGE[:3]})), "users has no column 'id'"),
    ],
)
def test_texts_need_nodes_that_have_texts(nodes: NodeTable, message: str) -> None:
    edges = ArrayTable("follows", {"src": np.array(["a"]), "dst": np.array(["b"])})
    with pytest.raises(FormatError, match=f"follows, column 'src': holds texts, but .*{message}"):
        build_graph(GraphTables(edges={FOLLOWS: edges}, nodes={"user": nodes}), MemoryFolder())


def test_a_column_of_something_else_is_named() -> None:
    edges = ArrayTable("follows", {"dst": np.array(["a"], dtype=object)})
    tables = GraphTables(edges={FOLLOWS: edges}, nodes=broken().nodes)
    with pytest.raises(FormatError, match="follows: no column 'src'; columns: 'dst'"):
        build_graph(tables, MemoryFolder())


@pytest.mark.parametrize(
    ("split", "options"),
    [
        ("id\n7\n9\n", {"dtypes": ["id=text", "src=text", "dst=text"]}),
        ("node_id\n7\n9\n", {"dtypes": ["id=text", "src=text", "dst=text"]}),
        ("id\ntrue\nfalse\ntrue\n", {"dtypes": ["node:id=text", "src=text", "dst=text"]}),
        ("id\n7\n9\n", {}),
    ],
)
def test_files_of_splits_are_read_as_the_ids_are(tmp_path: Path, split: str, options: dict[str, Any]) -> None:
    (tmp_path / "n.csv").write_text("id,x\n7,1\n8,2\n9,3\n")
    (tmp_path / "e.csv").write_text("src,dst\n7,8\n")
    (tmp_path / "s.csv").write_text(split)
    if "true" in split:
        options = {}
        (tmp_path / "n.csv").write_text("id,x\n0,1\n1,2\n2,3\n")
        (tmp_path / "e.csv").write_text("src,dst\n0,1\n")
    given = TableOptions(
        edges=[str(tmp_path / "e.csv")],
        nodes=[str(tmp_path / "n.csv")],
        splits=[f"train={tmp_path / 's.csv'}"],
        **options,
    )
    folder = MemoryFolder()
    build_graph(open_tables(given), folder)
    assert Graph.open(folder).split("node", "train").tolist() == [0, 2]


def test_a_split_file_without_ids_is_named(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("name,age\na,1\n")
    with pytest.raises(ValueError, match=r"s\.csv: no column 'id'; columns: 'name', 'age'"):
        open_tables(TableOptions(nodes=["3"], splits=[f"train={tmp_path / 's.csv'}"]))


# Datasets


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graphs") / "graph"
    build_graph(tables(texts=True), path, num_partitions=2, assigner="hash")
    return path


def test_every_dataset_speaks_the_ids_of_the_tables(path: Path) -> None:
    here = DistDataset.open(path)
    with (
        servers_of(path, 2) as servers,
        RemoteDistDataset.connect(addresses_of(servers), timeout=20) as there,
    ):
        for dataset in (here, there):
            assert dataset.original_ids(torch.tensor([5, 0, 5]), "user") == [NAMES[5], NAMES[0], NAMES[5]]
            assert dataset.original_ids(torch.arange(ITEMS), "item") == sorted(SKUS)
            assert dataset.original_ids(torch.empty(0, dtype=torch.int64), "item") == []
            assert dataset.node_ids_of(NAMES[3:5], "user").tolist() == [3, 4]
            assert dataset.node_ids_of([], "user").tolist() == []
            with pytest.raises(ValueError, match="2 unknown ids of type 'user': 'nobody', ''"):
                dataset.node_ids_of([NAMES[0], "nobody", ""], "user")
            with pytest.raises(ValueError, match="unknown node ids of type 'user': 60"):
                dataset.original_ids(torch.tensor([60]), "user")
            for wrong in ("ab", [None], [NAMES[0], 3]):
                with pytest.raises(TypeError, match=r"must be (texts|a list of texts), got"):
                    dataset.node_ids_of(wrong, "user")  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="texts and numbers"):
                DistNeighborLoader(dataset, [2], ("user", [NAMES[0], 3]))  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="must be texts, got 3"):
                dataset.node_ids_of([3], "user")  # type: ignore[list-item]
        texts, ids = [NAMES[at] for at in (9, 4, 9)], torch.tensor([9, 4, 9])
        options: dict[str, Any] = {"batch_size": 2, "seed": 1, "num_workers": 0}
        expected = list(DistNeighborLoader(here, [3, 2], ("user", ids), **options))
        for dataset in (here, there):
            several: list[Any] = [texts, np.array(texts), np.array(texts, dtype=object)]
            for given in several:
                with DistNeighborLoader(dataset, [3, 2], ("user", given), **options) as loader:
                    check_same(list(loader), expected)
            with pytest.raises(ValueError, match="unknown ids of type 'user': 'nobody'"):
                DistNeighborLoader(dataset, [3, 2], ("user", ["nobody"]))


def test_a_graph_without_texts_has_its_node_ids_for_original_ids() -> None:
    folder = MemoryFolder()
    build_graph(tables(texts=False), folder)
    dataset = DistDataset(Graph.open(folder))
    assert dataset.original_ids(torch.tensor([5, 0]), "user") == [5, 0]
    with pytest.raises(TypeError, match="node ids must be integers: tables named no nodes of type 'user'"):
        dataset.node_ids_of(["a"], "user")


def test_many_texts_come_from_servers_in_parts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigl_loader.rpc.remote_store.MAX_TEXTS", 7)
    with (
        servers_of(path, 1) as servers,
        RemoteDistDataset.connect(addresses_of(servers), timeout=20) as there,
    ):
        assert there.original_ids(torch.arange(USERS), "user") == NAMES
        assert there.node_ids_of(NAMES, "user").tolist() == list(range(USERS))


def test_requests_about_texts_that_break_a_rule_are_refused(path: Path) -> None:
    graph = Graph.open(path)
    digest = graph.manifest.digest
    no_texts = MemoryFolder()
    build_graph(tables(texts=False), no_texts)
    plain = Graph.open(no_texts)
    good = FindTextsRequest(node_type="user", texts=NAMES[:2])

    def kind_of(ticket: bytes, of: Graph = graph) -> str:
        with pytest.raises(Refusal) as caught:
            parse(ticket, of.schema, of.manifest.digest, {})
        return caught.value.kind.value

    assert parse(encode_graph_request(good, digest), graph.schema, digest, {}) == (None, good)
    for request in (good, TextsRequest(node_type="user", ids=np.arange(2))):
        assert kind_of(encode_graph_request(request, plain.manifest.digest), plain) == "invalid"
    beyond = TextsRequest(node_type="user", ids=np.array([USERS]))
    assert kind_of(encode_graph_request(beyond, digest)) == "invalid"
    long = FindTextsRequest(node_type="user", texts=["a", "b" * 9000])
    assert kind_of(encode_graph_request(long, digest)) == "malformed"
    many = TextsRequest(node_type="user", ids=np.zeros(5000, np.int64))
    assert kind_of(encode_graph_request(many, digest)) == "too large"
    ticket = encode_graph_request(good, digest)
    assert kind_of(ticket.replace("üser".encode(), b"\xff\xffser")) == "malformed"
    offsets = np.array([0], STORAGE_DTYPES["I64"]).tobytes() + np.array([len(NAMES[0].encode())]).tobytes()
    assert offsets in ticket
    assert kind_of(ticket.replace(offsets, np.array([9, 2**40]).tobytes())) == "malformed"


@cache
def _request() -> tuple[Graph, bytes]:
    folder = MemoryFolder()
    build_graph(tables(texts=True), folder)
    graph = Graph.open(folder)
    request = FindTextsRequest(node_type="user", texts=NAMES[:5])
    return graph, encode_graph_request(request, graph.manifest.digest)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=4), st.data())
def test_a_damaged_request_is_refused_or_read(changes: list[tuple[int, int]], data: st.DataObject) -> None:
    graph, ticket = _request()
    damaged = bytearray(ticket)
    for at, value in changes:
        damaged[at % len(damaged)] = value
    cut = bytes(damaged[: data.draw(st.integers(len(damaged) - 20, len(damaged)))])
    with suppress(Refusal):  # Any other exception would end a call with a traceback in the log.
        parse(cut, graph.schema, graph.manifest.digest, {})


def test_damaged_texts_are_told(path: Path, tmp_path: Path) -> None:
    folder = MemoryFolder()
    build_graph(tables(texts=True), folder)
    [name] = [name for name in folder.names() if name == "ids/text/item.safetensors"]
    graph = Graph.open(folder)
    texts = graph.text_ids("item")
    assert texts is not None
    slots = texts.arrays()["slots"].copy()
    slots[slots >= 0] = 0
    damaged = type(texts)(name, texts.arrays() | {"slots": slots})
    with pytest.raises(FormatError, match="text of node 1 is not found again"):
        damaged.verify()
    offsets = texts.arrays()["offsets"].copy()
    offsets[3] = 2**40
    with pytest.raises(FormatError, match=r"ids/text/item.safetensors: offsets of texts leave their bytes"):
        type(texts)(name, texts.arrays() | {"offsets": offsets}).texts(np.arange(5))
