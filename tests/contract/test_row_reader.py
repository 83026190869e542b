"""What every ``RowReader`` promises. One suite for all of them."""

from __future__ import annotations

import os
import re
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gigl_loader.errors import FormatError
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.manifest import edges_path, nodes_path
from gigl_loader.graph.quantization import Quantization
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.partitioned import OwnerRows, PartitionedStore
from gigl_loader.sampling.rows import DiskRows, MappedRows
from gigl_loader.sampling.store import SLOT_BITS, FeatureRequest
from gigl_loader.tensors import STORAGE_DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gigl_loader.arrays import Bytes, Int64Array
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.rows import RowReader

PARTITIONS = 3
EDGE = ("node", "to", "node")
KINDS: list[NodeType | EdgeType] = ["node", EDGE]
HERE: dict[str, Callable[..., RowReader]] = {
    "mapped": MappedRows,
    "io_uring": partial(DiskRows, engine="io_uring", gap=0),
    "threads": partial(DiskRows, engine="threads", depth=3),
}


def owners(graph: Graph, kind: NodeType | EdgeType, columns: Sequence[str]) -> RowReader:
    """Return a reader of rows of which one owner is this host."""
    stores = [LocalStore(graph, part) for part in graph.parts]
    store = PartitionedStore(graph.schema, local={1: stores[1]}, remote={0: stores[0], 2: stores[2]})
    return OwnerRows(store, kind, columns)


READERS: dict[str, Callable[..., RowReader]] = {**HERE, "owners": owners}


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    """Have several requests sent to an owner at the same time."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr("gigl_loader.sampling.partitioned._PIECE_BYTES", 4096)
        yield


@pytest.fixture(params=["disk", "memory"], scope="module")
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A graph with a column of every dtype and quantised ones, on the disk and on tmpfs."""
    random = np.random.default_rng(0)

    def columns(count: int) -> dict[str, Any]:
        found: dict[str, Any] = {
            name.lower(): random.integers(0, 2 if name == "BOOL" else 100, (count, 3)).astype(dtype)
            for name, dtype in STORAGE_DTYPES.items()
            if name != "BF16"
        }
        floats = random.standard_normal((count, 33), np.float32)
        return {**found, "none": np.empty((count, 0), np.float32), "wide": floats, "packed": floats}

    nodes = ArrayTable("nodes", {"id": np.arange(700), **columns(700)})
    src, dst = random.integers(0, 700, (2, 3000))
    edges = ArrayTable("edges", {"src": src, "dst": dst, **columns(3000)})
    quantize: dict[NodeType | EdgeType, dict[str, Quantization]] = {
        "node": {"packed": Quantization("uint4", "row")},
        EDGE: {"packed": Quantization("int8", "column")},
    }
    tables = GraphTables({EDGE: edges}, {"node": NodeTable(nodes)}, quantize=quantize)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if request.param == "memory" else None) as path:
        build_graph(tables, path, num_partitions=PARTITIONS, assigner="hash")
        yield Path(path)


@pytest.fixture(scope="module")
def graph(folder: Path) -> Graph:
    return Graph.open(folder)


@pytest.fixture(params=READERS, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "io_uring":
        try:
            from gigl_loader.native import DiskReader

            DiskReader(engine="io_uring").close()
        except RuntimeError as error:
            pytest.skip(str(error))
    return str(request.param)


def columns_of(graph: Graph, kind: NodeType | EdgeType) -> dict[str, int]:
    """Names of the columns of a type, with the bytes of their rows."""
    schema = graph.schema
    columns = schema.nodes[kind].columns if isinstance(kind, str) else schema.edges[kind].columns
    return {name: column.row_bytes for name, column in columns.items()}


def places_of(graph: Graph, kind: NodeType | EdgeType) -> list[Int64Array]:
    """All places of each partition."""
    if isinstance(kind, str):
        bounds = graph.bounds(kind)
        return [np.arange(*bounds[part : part + 2]) for part in graph.parts]
    counts = [len(graph.topology(kind, part)["indices"]) for part in graph.parts]
    return [(part << SLOT_BITS) + np.arange(count) for part, count in enumerate(counts)]


def gathered(graph: Graph, kind: NodeType | EdgeType, rows: Int64Array) -> list[Bytes]:
    """The rows as ``LocalStore`` has them, in order."""
    columns = columns_of(graph, kind)
    out = [np.empty((len(rows), size), np.uint8) for size in columns.values()]
    for part, places in enumerate(places_of(graph, kind)):
        mine = np.flatnonzero(np.isin(rows, places))
        there = rows[mine] if isinstance(kind, str) else rows[mine] - (part << SLOT_BITS)
        request = FeatureRequest(kind=kind, columns=tuple(columns), rows=there)
        LocalStore(graph, part).gather(request, mine, out)
    return out


def read(
    reader: RowReader, graph: Graph, kind: NodeType | EdgeType, rows: Int64Array, spare: int = 2
) -> None:
    """Read rows to shuffled targets, and compare them. The other rows of the targets keep their bytes."""
    targets = np.random.default_rng(len(rows)).permutation(len(rows) + spare)
    out = [np.full((len(targets), size), 7, np.uint8) for size in columns_of(graph, kind).values()]
    reader.read(rows, targets[spare:].copy(), out)
    for found, expected in zip(out, gathered(graph, kind, rows), strict=True):
        assert np.array_equal(found[targets[spare:]], expected)
        assert (found[targets[:spare]] == 7).all()


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rows_are_those_of_the_stores(
    data: st.DataObject, name: str, graph: Graph, kind: NodeType | EdgeType
) -> None:
    """Any rows of any partitions, repeated or not; all of them; none."""
    reader = READERS[name](graph, kind, list(columns_of(graph, kind)))
    places = np.concatenate(places_of(graph, kind))
    picked = data.draw(st.lists(st.integers(0, len(places) - 1), max_size=50))
    if data.draw(st.booleans()):
        picked += range(len(places))
    read(reader, graph, kind, places[np.sort(np.array(picked, np.int64))])
    reader.close()
    reader.close()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_first_and_last_rows_of_each_partition(name: str, graph: Graph, kind: NodeType | EdgeType) -> None:
    reader = READERS[name](graph, kind, list(columns_of(graph, kind)))
    read(reader, graph, kind, np.concatenate([each[[0, 0, -1, -1]] for each in places_of(graph, kind)]))
    read(reader, graph, kind, np.empty(0, np.int64))
    reader.close()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rows_outside_are_refused(name: str, graph: Graph, kind: NodeType | EdgeType) -> None:
    reader = READERS[name](graph, kind, ["wide"])
    out = [np.empty((1, 132), np.uint8)]
    for row in (-1, places_of(graph, kind)[-1][-1] + 1, PARTITIONS << SLOT_BITS):
        with pytest.raises(ValueError, match=r"outside|cannot be copied"):
            reader.read(np.array([row]), np.zeros(1, np.int64), out)
    reader.close()


@pytest.mark.parametrize("name", HERE, indirect=True)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rows_of_other_partitions_are_refused(name: str, graph: Graph, kind: NodeType | EdgeType) -> None:
    places = places_of(graph, kind)
    some = HERE[name](Graph.open(graph.folder, parts=[0, 2]), kind, ["wide"])
    out = [np.empty((1, 132), np.uint8)]
    with pytest.raises(ValueError, match="partition 1 is not among"):
        some.read(places[1][:1], np.zeros(1, np.int64), out)
    some.read(places[2][:1], np.zeros(1, np.int64), out)
    some.close()


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """A copy of the graph that a test may damage."""
    import shutil

    return Path(shutil.copytree(folder, tmp_path / "graph"))


@pytest.mark.parametrize("engine", ["io_uring", "threads"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_files_of_an_open_reader(engine: str, kind: NodeType | EdgeType, copied: Path) -> None:
    """A removed file is read on. One that was cut, or replaced before it was opened, is named."""
    graph = Graph.open(copied, verify="none")
    name = nodes_path(1, kind) if isinstance(kind, str) else edges_path(1, kind)
    try:
        reader = DiskRows(graph, kind, ["wide"], engine=engine)
    except RuntimeError as error:
        pytest.skip(str(error))
    rows = places_of(graph, kind)[1]
    out = [np.empty((len(rows), 132), np.uint8)]
    os.truncate(copied / name, 3000)
    with pytest.raises(FormatError, match=rf"{re.escape(name)}: it ends before byte \d+"):
        reader.read(rows, np.arange(len(rows)), out)
    with pytest.raises(FormatError, match=f"{re.escape(name)}: it was replaced or written to"):
        DiskRows(graph, kind, ["wide"], engine=engine)
    kept = places_of(graph, kind)[0]
    expected = [np.array(each) for each in gathered(graph, kind, kept)]
    for path in copied.rglob("*.safetensors"):
        path.unlink()
    with pytest.raises(FormatError, match="was replaced"):
        DiskRows(graph, kind, ["wide"])
    reader.read(kept, np.arange(len(kept)), out := [np.empty((len(kept), 132), np.uint8)])
    assert np.array_equal(out[0], expected[list(columns_of(graph, kind)).index("wide")])
    reader.close()
    with pytest.raises(OSError, match="the reader was closed"):
        reader.read(kept, np.arange(len(kept)), out)


def test_a_graph_in_memory_has_no_files() -> None:
    from tests.support.stores import store_graphs

    graph = store_graphs()[0].graph
    with pytest.raises(ValueError, match="a graph in memory has no files"):
        DiskRows(graph, "user", ["x"])
    reader = MappedRows(graph, "user", ["x", "y"])
    reader.read(
        np.array([3, 3]), np.array([1, 0]), out := [np.empty((2, 64), np.uint8), np.empty((2, 8), np.uint8)]
    )
    assert np.array_equal(out[0][0], out[0][1])
    stored = np.concatenate([graph.node_column("user", "x", part) for part in range(3)])
    assert np.array_equal(out[0][0].view(np.float32), stored[3])
