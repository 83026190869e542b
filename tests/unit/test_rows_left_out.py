"""Rows that a build leaves out or adds nodes for: unknown ids, duplicates, self-loops."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader import DistDataset
from gigl_loader.cli.build_options import Kept, TableOptions, UnknownIdHandling
from gigl_loader.cli.table_options import open_tables
from gigl_loader.graph import Graph, MemoryFolder
from gigl_loader.graph.schema import EdgeSplits
from gigl_loader.partition import ArrayTable, GraphTables, LocalExecutor, NodeTable, build_graph
from gigl_loader.partition import runner as runner_module
from gigl_loader.partition.job import TaskTotals
from gigl_loader.splits import split_edges
from tests.support.tables import files_of

KIND = ("a", "r", "a")


def edges_of(folder: MemoryFolder) -> dict[Any, list[tuple[int, int, int, float]]]:
    """Return source, destination, id and weight of all edges, by type, sorted."""
    graph = Graph.open(folder)
    graph.verify()
    found: dict[Any, list[tuple[int, int, int, float]]] = {}
    for kind in graph.schema.edges:
        rows = found.setdefault(kind, [])
        for part in range(graph.schema.num_partitions):
            lists = graph.topology(kind, part)
            low = int(graph.bounds(graph.schema.target_type(kind))[part])
            targets = low + np.repeat(np.arange(len(lists["indptr"]) - 1), np.diff(lists["indptr"]))
            ids = graph.directory("a").node_ids(np.arange(graph.schema.nodes["a"].count))
            ends = [ids[lists["indices"]], ids[targets]]
            ends = ends if graph.schema.edge_dir == "in" else ends[::-1]
            weights = graph.edge_column(kind, "w", part)
            rows += zip(*(each.tolist() for each in (*ends, lists["edge_ids"], weights)), strict=True)
        assert len(rows) == graph.schema.edges[kind].count
        rows.sort()
    return found


rules = st.fixed_dictionaries(
    {
        "unknown_ids": st.sampled_from(["drop", "add"]),
        "duplicates": st.sampled_from(["keep", "drop"]),
        "self_loops": st.sampled_from(["keep", "drop"]),
    }
)
builds = st.fixed_dictionaries(
    {
        "num_partitions": st.integers(1, 3),
        "edge_dir": st.sampled_from(["in", "out"]),
        "assigner": st.sampled_from(["range", "hash", "ldg"]),
        "memory_limit": st.sampled_from([6000, 1 << 24]),
    }
)
ids = st.integers(-2, 12)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(ids, ids), max_size=60),
    st.lists(ids, unique=True, max_size=8),
    rules,
    builds,
    st.tuples(st.booleans(), st.booleans()),
)
def test_rows_are_kept_as_the_rules_say(
    pairs: list[tuple[int, int]],
    nodes: list[int],
    chosen: dict[str, Any],
    how: dict[str, Any],
    variant: tuple[bool, bool],
) -> None:
    relations, held_out = variant
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    names = np.array([f"r{(src + dst) % 3}" for src, dst in pairs], dtype=object)
    arrays = {"src": ends[:, 0], "dst": ends[:, 1], "w": np.arange(len(pairs)) / 4}
    kind = ("a", "@rel", "a") if relations else KIND
    tables = GraphTables(
        edges={kind: ArrayTable("edges", arrays | ({"rel": names} if relations else {}))},
        nodes={"a": NodeTable(ArrayTable("nodes", {"id": np.array(nodes, np.int64)}))},
        weights={kind: ("w",)},
        splits={kind: EdgeSplits(fractions={"train": 0.5, "val": 0.3})},
        message_edges=("train",) if held_out else None,
        **chosen,
    )
    folder = MemoryFolder()
    schema = build_graph(tables, folder, allow_empty=True, **how)
    known = set(nodes) | (
        {end for pair in pairs for end in pair} if chosen["unknown_ids"] == "add" else set()
    )
    expected: dict[Any, list[tuple[int, int, int, float]]] = {
        ("a", name, "a"): [] for name in (sorted({*names}) if relations else ["r"])
    }
    counts: dict[Any, Counter[str]] = {each: Counter(train=0, val=0) for each in expected}
    split = {
        row: name
        for name, rows in split_edges(torch.from_numpy(ends.T), {"train": 0.5, "val": 0.3}).items()
        for row in rows.tolist()
    }
    seen = set()
    for row, (src, dst) in enumerate(pairs):
        each = ("a", str(names[row]) if relations else "r", "a")
        if not {src, dst} <= known or (src == dst and chosen["self_loops"] == "drop"):
            continue
        if (each, src, dst) in seen and chosen["duplicates"] == "drop":
            continue
        seen.add((each, src, dst))
        counts[each].update([split[row]] if row in split else [])
        if not held_out or split.get(row) != "val":
            expected[each].append((src, dst, row, row / 4))
    assert schema.nodes["a"].count == len(known)
    assert edges_of(folder) == {each: sorted(rows) for each, rows in expected.items()}
    for each, built in schema.edges.items():
        assert built.splits is not None
        assert built.splits.counts == counts[each]


def test_the_first_of_parallel_edges_is_found_over_pieces_of_a_hub() -> None:
    random = np.random.default_rng(0)
    src = random.integers(0, 3, 4000)
    arrays = {"src": src, "dst": np.zeros(4000, np.int64), "w": np.arange(4000.0)}
    tables = GraphTables({KIND: ArrayTable("edges", arrays)}, {"a": NodeTable(count=9)}, duplicates="drop")
    folder = MemoryFolder()
    build_graph(tables, folder, memory_limit=5000)
    firsts = [int(np.flatnonzero(src == each)[0]) for each in range(3)]
    assert edges_of(folder)[KIND] == [(each, 0, at, float(at)) for each, at in enumerate(firsts)]


def tables_of_many(folder: Path, **options: Any) -> GraphTables:
    """Return tables of enough rows for several tasks, with text ids of which some are unknown."""
    random = np.random.default_rng(3)
    names = np.array([f"n{number}" for number in random.permutation(400)], dtype=object)
    src, dst = names[random.integers(0, 400, (2, 3000))]
    relation = np.array([f"r{number}" for number in random.integers(0, 3, 3000)], dtype=object)
    kind = np.array([f"k{number}" for number in random.integers(0, 9, 3000)], dtype=object)
    arrays = {"src": src, "dst": dst, "rel": relation, "w": random.random(3000), "kind": kind}
    if not (folder / "edges.parquet").exists():
        pq.write_table(pa.table(arrays), folder / "edges.parquet", row_group_size=300)
        nodes = {"id": names[:300], "x": random.random(300).astype(np.float32)}
        pq.write_table(pa.table(nodes), folder / "nodes.parquet", row_group_size=50)
    given = TableOptions(
        edges=[f"a,@rel,a={folder}/edges.parquet"],
        nodes=[f"a={folder}/nodes.parquet"],
        fill=["x=0.5"],
        reverse=["a,@rel,a"],
        split_edges=["0.8,0.2"],
        encode=["kind"],
        message_edges="train",
        **options,
    )
    return open_tables(given)


@pytest.mark.parametrize("unknown", ["drop", "add"])
@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_tasks_and_limits_change_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unknown: str, processes: int
) -> None:
    options = {"unknown_ids": UnknownIdHandling(unknown), "duplicates": Kept.drop, "self_loops": Kept.drop}
    monkeypatch.setattr(runner_module, "_FEW_ROWS", 100)
    built: list[dict[str, bytes]] = []
    left_out: list[Any] = []

    def count(totals: TaskTotals) -> None:
        left_out.append(totals.left_out)

    other: dict[str, Any] = {"memory_limit": 400_000, "scratch": tmp_path / "scratch"}
    if processes:
        other |= {"executor": LocalExecutor(processes), "memory_limit": 1 << 30}
    for name, how in (("one", {}), ("other", other)):
        tables = tables_of_many(tmp_path, **options)
        build_graph(tables, tmp_path / name, num_partitions=3, assigner="hash", summary=count, **how)
        built.append(dict(files_of(tmp_path / name)))
    assert built[0] == built[1]
    assert left_out[0] == left_out[1]
    graph = Graph.open(tmp_path / "one")
    graph.verify()
    assert graph.schema.nodes["a"].count == (300 if unknown == "drop" else 400)
    if unknown == "add":
        positions = graph.positions("a", np.arange(300, 400))
        columns = np.concatenate([graph.node_column("a", "x", part) for part in range(3)])
        assert columns[positions].tolist() == [0.5] * 100
        texts = DistDataset.open(tmp_path / "one").original_ids(torch.arange(300, 400), "a")
        assert texts == sorted(texts)


def test_a_mask_of_nodes_goes_with_added_nodes() -> None:
    edges = ArrayTable("edges", {"src": np.array([0, 9]), "dst": np.array([1, 0])})
    splits = {"train": ArrayTable("mask", {"id": np.array([True, False])})}
    tables = GraphTables({KIND: edges}, {"a": NodeTable(count=2, splits=splits)}, unknown_ids="add")
    folder = MemoryFolder()
    assert build_graph(tables, folder).nodes["a"].count == 3
    assert Graph.open(folder).split("a", "train").tolist() == [0]


@pytest.mark.parametrize("name", ["unknown_ids", "duplicates", "self_loops"])
def test_a_rule_that_is_unknown_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is one of .*, got 'some'"):
        GraphTables(edges={}, nodes={"a": NodeTable(count=1)}, **{name: "some"})  # type: ignore[arg-type]
