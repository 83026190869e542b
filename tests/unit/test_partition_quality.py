"""Cut and balance are those that a count in plain Python gives."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.graph import Graph
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.partition import assigners as module
from gigl_loader.partition.assigners import balance_of, edge_quality
from tests.support.command_line import run_here
from tests.support.owners import owners_of
from tests.support.tables import PlainGraph, plain_graphs


@settings(max_examples=40)
@given(plain_graphs(), st.integers(1, 4), st.sampled_from(["in", "out"]), st.sampled_from([1, 5, 1 << 20]))
def test_measures_equal_a_plain_count(
    plain: PlainGraph, parts: int, edge_dir: Literal["in", "out"], rows: int
) -> None:
    folder = MemoryFolder()
    build_graph(plain.tables(), folder, num_partitions=parts, assigner="hash", edge_dir=edge_dir)
    graph = Graph.open(folder)
    owners = owners_of(graph)
    owner = {
        (kind, node): owners[kind][rank]
        for kind, ids in plain.nodes.items()
        for rank, node in enumerate(sorted(ids))
    }
    for edge_type, edges in plain.edges.items():
        ends = [(owner[edge_type[0], src], owner[edge_type[2], dst]) for src, dst, _ in edges.rows]
        listed = Counter(pair[1 if edge_dir == "in" else 0] for pair in ends)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_ROWS", rows)
            found = edge_quality(graph, edge_type)
        assert found.per_part == tuple(listed[part] for part in range(parts))
        assert found.cut == sum(one != other for one, other in ends)
        assert found.cut_share == pytest.approx(found.cut / max(len(ends), 1))
        assert found.balance == pytest.approx(max(found.per_part) * parts / len(ends) if ends else 1)


def test_balance_is_the_largest_over_the_mean() -> None:
    assert balance_of([2, 2, 2]) == 1
    assert balance_of([0, 0]) == 1
    assert balance_of([6, 0, 0]) == 3


def test_inspect_prints_them(tmp_path: Path) -> None:
    # A ring of four nodes, cut into 0, 1, 2 and 3.
    ring = ArrayTable("ring", {"src": np.arange(4), "dst": (np.arange(4) + 1) % 4})
    nodes = NodeTable(ArrayTable("nodes", {"id": np.arange(4)}))
    np.save(tmp_path / "owners.npy", np.array([0, 0, 0, 1]))
    for name, assigner in (("one", "range"), ("two", tmp_path / "owners.npy")):
        build_graph(
            GraphTables({HOMOGENEOUS_EDGE: ring}, {HOMOGENEOUS_NODE: nodes}),
            tmp_path / name,
            num_partitions=1 if name == "one" else 2,
            assigner=assigner,
        )
    document = json.loads(run_here("inspect", str(tmp_path / "two"), "--json").stdout)
    assert document["partitioning"] == {
        "nodes": [{"type": "node", "per_part": [3, 1], "balance": 1.5}],
        "edges": [
            {
                "type": ["node", "to", "node"],
                "per_part": [3, 1],
                "balance": 1.5,
                "cut": 2,
                "cut_share": 0.5,
            }
        ],
    }
    assert document["digest"] == Graph.open(tmp_path / "two").manifest.digest
    shown = " ".join(run_here("inspect", str(tmp_path / "two")).stdout.split())
    assert f"digest {document['digest']}" in shown
    assert "2 parts by table" in shown
    assert "node,to,node │ 4 │ 1 to 3 │ 1.500 │ 50.0% │ 1.00" in shown
    alone = run_here("inspect", str(tmp_path / "one")).stdout
    assert "cut" not in alone
    assert (
        json.loads(run_here("inspect", str(tmp_path / "one"), "--json").stdout)["partitioning"]["edges"][0][
            "cut"
        ]
        == 0
    )
