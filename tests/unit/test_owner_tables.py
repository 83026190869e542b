"""Tables of owners are obeyed, or refused in one line that names the node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader import FormatError
from gigl_loader.graph import Graph
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.partition import (
    ArrayTable,
    GraphTables,
    NodeTable,
    TableAssigner,
    build_graph,
    owners_from_files,
)
from tests.support.owners import owners_of
from tests.support.tables import PlainGraph, check_built, plain_graphs

IDS = np.array([40, 10, 30, 20])
NAMES = np.array(["dora", "adam", "carl", "bea"], dtype=object)


def built(assigner: Any, nodes: NodeTable, **options: Any) -> Graph:
    folder = MemoryFolder()
    build_graph(
        GraphTables(edges={}, nodes={"user": nodes}),
        folder,
        num_partitions=3,
        assigner=assigner,
        **options,
    )
    return Graph.open(folder)


def people(*, texts: bool = False) -> NodeTable:
    return NodeTable(ArrayTable("users", {"id": NAMES if texts else IDS, "x": np.arange(4)}))


def table(**columns: Any) -> ArrayTable:
    return ArrayTable("owners", {name: np.array(values) for name, values in columns.items()})


@settings(max_examples=40)
@given(plain_graphs(), st.integers(1, 4), st.data())
def test_every_node_lies_where_the_table_says(plain: PlainGraph, parts: int, data: st.DataObject) -> None:
    owners, tables = {}, {}
    for node_type, given_ids in plain.nodes.items():
        ids = sorted(given_ids)
        owners[node_type] = [data.draw(st.integers(0, parts - 1)) for _ in ids]
        order = data.draw(st.permutations(range(len(ids))))
        tables[node_type] = ArrayTable(
            "owners",
            {
                "id": np.array([ids[at] for at in order], np.int64),
                "part": np.array([owners[node_type][at] for at in order], np.uint8),
            },
        )
    folder = MemoryFolder()
    build_graph(
        plain.tables(), folder, num_partitions=parts, assigner=TableAssigner(tables), memory_limit=200_000
    )
    graph = Graph.open(folder)
    assert owners_of(graph) == owners
    check_built(graph, plain)


@pytest.mark.parametrize("kind", ["npy", "npy of ids and owners", "parquet", "csv"])
def test_files_name_owners(tmp_path: Path, kind: str) -> None:
    ids, parts = np.array([3, 0, 2, 1]), np.array([2, 0, 2, 1])
    if kind == "npy":
        np.save(tmp_path / "o.npy", parts[np.argsort(ids)])
        spec = f"{tmp_path}/o.npy"
    elif kind == "parquet":
        pq.write_table(pa.table({"partition": parts, "node_id": ids}), tmp_path / "o.parquet")
        spec = f"{tmp_path}/o.parquet"
    elif kind == "csv":
        (tmp_path / "o.csv").write_text("id,owner\n3,2\n0,0\n2,2\n1,1\n")
        spec = f"{tmp_path}/o.csv"
    else:
        np.save(tmp_path / "id.npy", ids)
        np.save(tmp_path / "part.npy", parts)
        spec = f"{tmp_path}/id.npy,{tmp_path}/part.npy"
    assigners = [spec, {"user": spec}, owners_from_files(spec)]
    assigners += [] if "," in spec else [Path(spec)]
    for assigner in assigners:
        assert owners_of(built(assigner, NodeTable(count=4))) == {"user": [0, 1, 2, 2]}


def test_nodes_with_texts_for_ids_are_named_by_them(tmp_path: Path) -> None:
    (tmp_path / "o.csv").write_text("id,part\nadam,2\nbea,0\ncarl,1\ndora,0\n")
    # Texts are numbered by the rows of the node table: dora, adam, carl, bea.
    assert owners_of(built(tmp_path / "o.csv", people(texts=True))) == {"user": [0, 2, 1, 0]}


MISTAKES: dict[str, tuple[dict[str, Any], bool, str]] = {
    "missing": (
        {"id": [10, 20], "part": [0, 1]},
        False,
        "owners: no owner of node id 30 of type 'user', nor of 1 more",
    ),
    "missing text": (
        {"id": ["dora", "bea", "adam"], "part": [0, 1, 2]},
        True,
        "owners: no owner of node id 'carl' of type 'user'",
    ),
    "repeated": (
        {"id": [10, 20, 10], "part": [0, 1, 0]},
        False,
        "owners, column 'id', row 2: node id 10 occurs a second time",
    ),
    "repeated text": (
        {"id": ["bea", "bea"], "part": [0, 1]},
        True,
        "owners, column 'id', row 1: node id 'bea' occurs a second time",
    ),
    "unknown": ({"id": [10, 11], "part": [0, 1]}, False, "owners, column 'id', row 1: unknown node id 11 of"),
    "unknown text": ({"id": ["eve"], "part": [0]}, True, "column 'id', row 0: unknown node id 'eve' of"),
    "no such row": (
        {"part": [0] * 5},
        False,
        "owners, column 'part', row 0: unknown node id 0 of type 'user'",
    ),
    "too high": (
        {"id": [10, 20], "part": [0, 3]},
        False,
        "owners, column 'part', row 1: node id 20 in partition 3; partitions: 0 to 2",
    ),
    "too low": ({"id": [30], "part": [-1]}, False, "row 0: node id 30 in partition -1; partitions: 0 to 2"),
    "too high of a text": ({"id": ["bea"], "part": [9]}, True, "row 0: node id 'bea' in partition 9; par"),
    "beyond int64": ({"id": [10], "part": np.array([2**63], np.uint64)}, False, "does not fit in int64"),
    "no column": ({"id": [10]}, False, "owners: no column 'part'; columns: 'id'"),
    "floats": ({"id": [10], "part": [0.5]}, False, "column 'part': holds F64, not integers"),
    "numbers for texts": ({"id": [1], "part": [0]}, True, "holds no texts; nodes of type 'user' have texts"),
    "rows for texts": ({"part": [1]}, True, "'id': is missing; nodes of type 'user' have texts for ids"),
    "texts for numbers": ({"id": ["a"], "part": [0]}, False, "column 'id': holds text, not integers"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_names_the_node(case: str) -> None:
    columns, texts, message = MISTAKES[case]
    if texts and "id" in columns:
        columns = {
            **columns,
            "id": np.array(columns["id"], dtype=object if case != "numbers for texts" else None),
        }
    with pytest.raises(FormatError) as caught:
        built(TableAssigner({"user": table(**columns)}), people(texts=texts))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_repeated_node_is_found_across_chunks_of_rows() -> None:
    columns = {"id": np.arange(3000) % 2999, "part": np.zeros(3000, np.int64)}
    with pytest.raises(FormatError, match="row 2999: node id 0 occurs a second time"):
        built(TableAssigner(table(**columns)), NodeTable(count=2999), memory_limit=250_000)


def test_owners_need_as_many_tables_as_there_are_types() -> None:
    tables = GraphTables(edges={}, nodes={"user": NodeTable(count=1), "item": NodeTable(count=1)})
    owners = table(part=[0])
    mistakes: list[tuple[Any, str]] = [
        (owners, "name the node type of each table, such as TYPE=FILE; types: 'item', 'user'"),
        ({"user": owners}, "no table names those of node type 'item'"),
        ({"user": owners, "item": owners, "shop": owners}, "no node type 'shop'; known: 'item', 'user'"),
    ]
    for given_tables, message in mistakes:
        with pytest.raises(ValueError, match=message):
            build_graph(tables, MemoryFolder(), assigner=TableAssigner(given_tables))


def test_a_build_with_other_owners_is_not_resumed(tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_partitions": 3, "scratch": tmp_path / "scratch"}
    tables = GraphTables(edges={}, nodes={"user": people()})

    def interrupt(step: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    def owners(*parts: int) -> TableAssigner:
        return TableAssigner(ArrayTable("owners", {"id": IDS, "part": np.array(parts)}))

    with pytest.raises(KeyboardInterrupt):
        build_graph(tables, tmp_path / "graph", assigner=owners(0, 1, 2, 1), progress=interrupt, **options)
    with pytest.raises(ValueError, match="assigner"):
        build_graph(tables, tmp_path / "graph", assigner=owners(0, 1, 2, 2), resume=True, **options)
    build_graph(tables, tmp_path / "graph", assigner=owners(0, 1, 2, 1), resume=True, **options)
