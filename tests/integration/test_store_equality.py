"""Batches of a graph store are those of the embedded loader, bit for bit, however they come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pytest

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.sampling import resident
from tests.support.clusters import addresses_of, check_same, embedded, servers_of
from tests.support.pyg_graphs import heterogeneous, homogeneous

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PARTITIONS = 4
SIZES = (1, 2, 4)
WAYS = (("ring", "through"), ("ring", "direct"), ("network", "through"), ("network", "direct"))
OPTIONS: dict[str, Any] = {
    "batch_size": 16,
    "shuffle": True,
    "with_edge": True,
    "seed": 11,
    "timeout": 30.0,
    "device": "cpu",
}
EPOCH = OPTIONS | {"batch_size": 48}
FANOUT = [4, 3, 2]


@dataclass(frozen=True, kw_only=True)
class GraphKind:
    """A graph and how it is cut."""

    name: str
    make: Callable[[], Any]
    assigner: Literal["range", "hash"]
    edge_dir: Literal["in", "out"]
    input_nodes: Any

    def __str__(self) -> str:
        return f"{self.name}-{self.assigner}-{self.edge_dir}"


KINDS = (
    GraphKind(name="homogeneous", make=homogeneous, assigner="hash", edge_dir="in", input_nodes="train"),
    GraphKind(
        name="heterogeneous", make=heterogeneous, assigner="hash", edge_dir="in", input_nodes=("user", None)
    ),
    GraphKind(
        name="heterogeneous", make=heterogeneous, assigner="range", edge_dir="out", input_nodes=("item", None)
    ),
)


@dataclass(frozen=True)
class Served:
    """A graph, the address of one of its servers, and what an epoch of it must be."""

    kind: GraphKind
    graph: Path
    address: str
    expected: list[Any]


@pytest.fixture(scope="module", params=KINDS, ids=str)
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[GraphKind, Path, list[Any]]:
    kind: GraphKind = request.param
    path = tmp_path_factory.mktemp("store") / "graph"
    tables = tables_from_pyg(kind.make())
    build_graph(tables, path, num_partitions=PARTITIONS, assigner=kind.assigner, edge_dir=kind.edge_dir)
    return kind, path, embedded(path, FANOUT, kind.input_nodes, **EPOCH)


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: f"{size}servers")
def served(request: pytest.FixtureRequest, built: tuple[GraphKind, Path, list[Any]]) -> Iterator[Served]:
    kind, path, expected = built
    with servers_of(path, request.param) as servers:
        # Whichever is asked knows the others.
        yield Served(kind, path, addresses_of(servers)[-1], expected)


@pytest.mark.some(8)
@pytest.mark.parametrize(
    ("transport", "rows", "feature_memory"),
    [
        (*way, memory)
        for way in WAYS
        for memory in ("auto", "10KB", "1GB")
        if memory == "auto" or way[1] != "through"
    ],
    ids=str,
)
def test_an_epoch(served: Served, transport: Any, rows: Any, feature_memory: str) -> None:
    with (
        RemoteDistDataset.connect(served.address, transport=transport, rows=rows, timeout=30) as dataset,
        DistNeighborLoader(
            dataset, FANOUT, served.kind.input_nodes, feature_memory=feature_memory, **EPOCH
        ) as loader,
    ):
        assert len(loader) == len(served.expected)
        check_same(list(loader), served.expected)


@pytest.mark.some(4)
@pytest.mark.parametrize("memory", [{}, {"feature_memory": "10KB", "window": 2}], ids=str)
@pytest.mark.parametrize("nbytes", ["2KB", "1GB"])
def test_epochs_with_rows_on_the_device(
    served: Served, nbytes: str, memory: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "_CENSUS_BATCHES", 2)
    options = {"feature_memory_device": nbytes, **memory, **EPOCH}
    with (
        RemoteDistDataset.connect(served.address, transport="network", timeout=30) as dataset,
        DistNeighborLoader(dataset, FANOUT, served.kind.input_nodes, **options) as loader,
    ):
        for _ in range(4):
            loader.set_epoch(0)
            check_same(list(loader), served.expected)
        assert loader.stats()["rows"]["device"] > 0


@pytest.mark.some(2)
@pytest.mark.parametrize("rows", ["through", "direct"])
def test_no_neighbours_cross_where_all_servers_have_all_topology(
    built: tuple[GraphKind, Path, list[Any]], rows: Any
) -> None:
    kind, path, expected = built
    with servers_of(path, 2, topology="all") as servers:
        with (
            RemoteDistDataset.connect(
                addresses_of(servers), transport="network", rows=rows, timeout=30
            ) as dataset,
            DistNeighborLoader(dataset, FANOUT, kind.input_nodes, **EPOCH) as loader,
        ):
            check_same(list(loader), expected)
            stats = dataset.server_stats().values()
            methods = {call["method"] for server in stats for call in server["calls"]}
            assert [server["topology_partitions"] for server in stats] == [4, 4]
        assert all(server.endpoint.partitions != (0, 1, 2, 3) for server in servers)
    assert "rows" in methods
    assert "neighbors" not in methods


@pytest.fixture(scope="module")
def homogeneous_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Two servers of a small graph."""
    path = tmp_path_factory.mktemp("store") / "graph"
    build_graph(tables_from_pyg(homogeneous()), path, num_partitions=2, assigner="hash")
    with servers_of(path, 2) as servers:
        yield path, addresses_of(servers)[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"replace": True, "drop_last": True},
        {"num_workers": 0},
        {"num_workers": 3, "prefetch_size": 1},
        {"prefetch_size": 20, "shuffle": False},
        {"feature_memory": "40KB", "window": 3, "cache_policy": "none"},
        {"feature_memory": "40KB", "num_workers": 0},
        {"feature_memory_device": "1GB", "num_workers": 0},
        {"channel_size": 1 << 20, "batch_size": 150, "prefetch_size": 8},
    ],
    ids=str,
)
def test_options_that_must_change_nothing_else(
    homogeneous_store: tuple[Path, str], changes: dict[str, Any]
) -> None:
    path, address = homogeneous_store
    options = OPTIONS | changes
    alone = {
        name: value
        for name, value in options.items()
        if name not in ("num_workers", "prefetch_size", "channel_size", "window", "cache_policy")
        and not name.startswith("feature_memory")
    }
    with (
        RemoteDistDataset.connect(address, timeout=30) as dataset,
        DistNeighborLoader(dataset, FANOUT, "train", **options) as loader,
    ):
        check_same(list(loader), embedded(path, FANOUT, "train", **alone))


@pytest.mark.parametrize("there_first", [True, False])
def test_an_epoch_begun_in_one_mode_goes_on_in_the_other(
    homogeneous_store: tuple[Path, str], there_first: bool
) -> None:
    path, address = homogeneous_store
    expected = embedded(path, FANOUT, "train", **OPTIONS)
    with RemoteDistDataset.connect(address, timeout=30) as remote:
        local = DistDataset.open(path)
        modes: list[tuple[Any, dict[str, Any]]] = [(remote, {}), (local, {"num_workers": 0})]
        if not there_first:
            modes.reverse()
        seen: list[Any] = []
        state: dict[str, Any] | None = None
        for dataset, more in modes:
            with DistNeighborLoader(dataset, FANOUT, "train", **OPTIONS, **more) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                for batch in loader:
                    seen.append(batch)
                    if state is None and len(seen) == 3:
                        break
                state = loader.state_dict()
    check_same(seen, expected)


def test_an_epoch_that_is_left_does_not_leak_into_the_next(homogeneous_store: tuple[Path, str]) -> None:
    path, address = homogeneous_store
    with DistNeighborLoader(DistDataset.open(path), FANOUT, "train", num_workers=0, **OPTIONS) as loader:
        epochs = [list(loader) for _ in range(4)]
    with (
        RemoteDistDataset.connect(address, timeout=30) as dataset,
        DistNeighborLoader(dataset, FANOUT, "train", prefetch_size=8, **OPTIONS) as loader,
    ):
        for number, epoch in enumerate(epochs):
            found = []
            for batch in loader:
                found.append(batch)
                if number % 2 == 0 and len(found) == 2:
                    break
            check_same(found, epoch[: len(found)])
            assert len(found) == (2 if number % 2 == 0 else len(epoch))


def test_several_loaders_at_once_have_each_their_own(homogeneous_store: tuple[Path, str]) -> None:
    path, address = homogeneous_store
    options = OPTIONS | {"shuffle": False}
    splits = ("train", "val", "test")
    with RemoteDistDataset.connect(address, timeout=30) as dataset:
        loaders = [DistNeighborLoader(dataset, FANOUT, split, **options) for split in splits]
        found: list[list[Any]] = [[] for _ in splits]
        streams = [iter(loader) for loader in loaders]
        for _ in range(3):
            for place, stream in enumerate(streams):
                found[place].append(next(stream))
        for loader in loaders:
            loader.shutdown()
    for split, batches in zip(splits, found, strict=True):
        check_same(batches, embedded(path, FANOUT, split, **options)[:3])
