"""KaMinPar's cut is taken as it is, and what it cannot hold is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gigl_loader.graph import Graph
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from tests.support.owners import owners_of
from tests.support.tables import files_of

RING = ("user", "knows", "user")
BUYS = ("user", "buys", "item")
GROUPS, SIZE = 4, 40


def groups() -> GraphTables:
    """Four groups of users and items, some edges twice or from a node to itself, and one between groups."""
    random = np.random.default_rng(0)
    group = random.integers(0, GROUPS, 3000)
    src, dst, item = (group + GROUPS * random.integers(0, SIZE, 3000) for _ in range(3))
    src[0], dst[0] = 0, 1
    return GraphTables(
        edges={
            RING: ArrayTable("knows", {"src": src, "dst": dst}),
            BUYS: ArrayTable("buys", {"src": src, "dst": item}),
        },
        nodes={kind: NodeTable(count=GROUPS * SIZE) for kind in ("user", "item")},
    )


def test_groups_lie_apart(tmp_path: Path) -> None:
    for name in ("one", "other"):
        build_graph(groups(), tmp_path / name, num_partitions=GROUPS, assigner="kaminpar")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "other")
    found = owners_of(Graph.open(tmp_path / "one"))
    of_group = {node % GROUPS: owner for node, owner in enumerate(found["user"])}
    assert sorted(of_group.values()) == list(range(GROUPS))
    for owners in found.values():
        assert owners == [of_group[node % GROUPS] for node in range(GROUPS * SIZE)]


@pytest.mark.parametrize("parts", [1, 3])
def test_a_graph_without_edges_is_dealt_out(parts: int) -> None:
    folder = MemoryFolder()
    tables = GraphTables(edges={}, nodes={"node": NodeTable(count=7)})
    schema = build_graph(tables, folder, num_partitions=parts, assigner="kaminpar")
    assert np.diff(schema.nodes["node"].bounds).tolist() == ([7] if parts == 1 else [3, 2, 2])


def test_a_graph_beyond_the_memory_limit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kaminpar's graph of 320 nodes and 6,000 edges needs .* raise the"):
        build_graph(groups(), MemoryFolder(), num_partitions=2, assigner="kaminpar", memory_limit=1_000_000)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigl_loader.partition.locality.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'gigl-loader\[kaminpar\]'"):
        build_graph(groups(), MemoryFolder(), num_partitions=2, assigner="kaminpar")
