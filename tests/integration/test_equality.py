"""A batch is a pure function of run seed, epoch and seed ids: not of workers, partitions or storage."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.partition import (
    ArrayTable,
    GraphTables,
    NodeTable,
    TableAssigner,
    build_graph,
    tables_from_pyg,
)
from tests.support.pyg_graphs import heterogeneous, homogeneous, same_batch

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.pairs

Direction = Literal["in", "out"]


@cache
def _tables(kind: str) -> GraphTables:
    """Graphs with dense ids, with types, and with ids that have gaps and are in no order."""
    if kind != "sparse":
        return tables_from_pyg(homogeneous() if kind == "dense" else heterogeneous())
    data = homogeneous()
    ids = np.random.default_rng(0).permutation(10**12 + np.arange(300) ** 4)
    src, dst = ids[data.edge_index.numpy()]
    columns = {"id": ids, "x": data.x.numpy(), "y": data.y.numpy()}
    return GraphTables(
        edges={
            ("node", "to", "node"): ArrayTable("edges", {"src": src, "dst": dst, "w": data.edge_attr.numpy()})
        },
        nodes={"node": NodeTable(ArrayTable("nodes", columns))},
    )


@cache
def _dataset(kind: str, edge_dir: Direction, partitions: int = 1, assigner: str = "range") -> DistDataset:
    folder = MemoryFolder()
    build_graph(_tables(kind), folder, num_partitions=partitions, edge_dir=edge_dir, assigner=assigner)
    return DistDataset(Graph.open(folder))


def _scattered(tables: GraphTables, partitions: int) -> TableAssigner:
    """Return an assigner by tables that put nodes anywhere, most into the last partition."""
    random, owners = np.random.default_rng(0), {}
    for node_type, nodes in tables.nodes.items():
        rows, count = nodes.rows, nodes.count if nodes.rows is None else nodes.rows.num_rows
        assert count is not None
        ids = np.arange(count)
        if rows is not None and "id" in rows.columns:
            ids = next(rows.read(["id"], count))["id"]
        parts = np.minimum(random.integers(0, 2 * partitions, count), partitions - 1)
        owners[node_type] = ArrayTable("owners", {"id": ids, "part": parts})
    return TableAssigner(owners)


def _batches(dataset: DistDataset, *, epochs: int = 2, **options: Any) -> list[Any]:
    nodes = None if dataset.schema.homogeneous else ("item", None)
    defaults: dict[str, Any] = {
        "batch_size": 32,
        "shuffle": True,
        "seed": 11,
        "num_workers": 0,
        "with_edge": True,
    }
    with DistNeighborLoader(dataset, [4, -1, 2], nodes, **{**defaults, **options}) as loader:
        return [batch for _ in range(epochs) for batch in loader]


@cache
def _expected(kind: str, edge_dir: Direction, **options: Any) -> list[Any]:
    return _batches(_dataset(kind, edge_dir), **options)


def _same(batches: list[Any], expected: list[Any]) -> bool:
    return len(batches) == len(expected) and all(map(same_batch, batches, expected))


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    """Graphs in memory are file descriptors: build them before leftovers are counted."""
    for kind in ("dense", "sparse", "hetero"):
        for edge_dir in ("in", "out"):
            _dataset(kind, edge_dir)


@pytest.mark.some(2)
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize(("kind", "num_workers"), [("dense", 3), ("sparse", 2), ("hetero", 1)])
def test_any_number_of_workers_gives_the_same_batches(kind: str, num_workers: int) -> None:
    assert _same(_batches(_dataset(kind, "in"), num_workers=num_workers), _expected(kind, "in"))


# Python's fork server outlives the loader, and is Python's to end.
@pytest.mark.parametrize("start", ["fork", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_any_way_to_start_workers_gives_the_same_batches(start: str) -> None:
    batches = _batches(_dataset("hetero", "in"), num_workers=2, multiprocessing_context=start)
    assert _same(batches, _expected("hetero", "in"))


@pytest.mark.some(1)
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize(
    "options", [{"worker_concurrency": 1}, {"channel_size": "2MB"}, {"worker_concurrency": 16}]
)
def test_no_setting_of_workers_changes_a_batch(options: dict[str, Any]) -> None:
    assert _same(_batches(_dataset("dense", "in"), num_workers=2, **options), _expected("dense", "in"))


@pytest.mark.usefixtures("no_leftovers")
def test_workers_out_of_order_give_the_same_set_of_batches() -> None:
    seen = _batches(_dataset("dense", "in"), num_workers=2, in_order=False, epochs=1)
    expected = _expected("dense", "in")[: len(seen)]
    assert len(seen) == 10
    assert all(any(same_batch(batch, other) for other in seen) for batch in expected)


@pytest.mark.parametrize("kind", ["dense", "sparse", "hetero"])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("partitions", [1, 2, 4])
@pytest.mark.parametrize("assigner", ["range", "hash", "ldg", "kaminpar", "table"])
@pytest.mark.parametrize("replace", [False, True])
def test_any_partitioning_gives_the_same_batches(
    kind: str, edge_dir: Direction, partitions: int, assigner: str, replace: bool
) -> None:
    folder = MemoryFolder()
    tables = _tables(kind)
    chosen = _scattered(tables, partitions) if assigner == "table" else assigner
    build_graph(tables, folder, num_partitions=partitions, edge_dir=edge_dir, assigner=chosen)
    dataset = DistDataset(Graph.open(folder))
    assert _same(_batches(dataset, replace=replace), _expected(kind, edge_dir, replace=replace))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_graph_on_disk_gives_the_same_batches(tmp_path: Path, num_workers: int) -> None:
    build_graph(_tables("hetero"), tmp_path / "graph", num_partitions=3, assigner="hash", edge_dir="out")
    batches = _batches(DistDataset.open(tmp_path / "graph"), num_workers=num_workers)
    assert _same(batches, _expected("hetero", "out"))
