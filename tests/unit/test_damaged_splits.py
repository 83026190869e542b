"""Splits whose positions are damaged: a clean error that names file and rule, before anything is indexed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from gigl_loader import DistDataset, DistNeighborLoader, FormatError
from gigl_loader.graph.graph import Graph
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.tensors import Layout

if TYPE_CHECKING:
    from pathlib import Path

SPLITS = "part-00000/splits/node.safetensors"


@pytest.fixture(params=["identity", "sparse"])
def graph(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """100 nodes, 50 of them for training."""
    random = np.random.default_rng(0)
    factor = 1 if request.param == "identity" else 1000
    ids = np.arange(100) * factor
    splits = np.where(np.arange(100) % 2, "train", "")
    src, dst = random.choice(ids, (2, 500))
    tables = GraphTables(
        edges={("node", "to", "node"): ArrayTable("edges", {"src": src, "dst": dst})},
        nodes={"node": NodeTable(ArrayTable("nodes", {"id": ids, "split": splits}))},
    )
    build_graph(tables, tmp_path / "graph", num_partitions=2)
    return tmp_path / "graph"


def damage(graph: Path, row: int, position: int) -> None:
    path = graph / SPLITS
    data = bytearray(path.read_bytes())
    buffer = np.frombuffer(data, np.uint8)
    Layout.parse(buffer).view(buffer, "train")[row] = position
    path.write_bytes(data)


@pytest.mark.parametrize("position", [100, -1, 10**6, 2**62, -(2**63), 0])
def test_a_position_that_cannot_be_is_named_with_its_file(graph: Path, position: int) -> None:
    damage(graph, 5, position)
    opened = Graph.open(graph, verify="none")  # What no checksum covers: a builder that erred.
    with pytest.raises(
        FormatError, match=f"^{SPLITS}: 'train' (is {position} at row 5, outside|falls at row 5)"
    ):
        opened.split("node", "train")
    with pytest.raises(FormatError, match=SPLITS):
        DistNeighborLoader(DistDataset.open(graph), [2], "train", batch_size=10, num_workers=0)


def test_a_split_that_is_whole_is_read(graph: Path) -> None:
    assert len(Graph.open(graph).split("node", "train")) == 50
