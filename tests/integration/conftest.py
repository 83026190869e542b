"""Fixtures that several tests of ranks and hosts share, because they take seconds to make."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.fork_server import ForkServer
from tests.support.pyg_graphs import homogeneous
from tests.support.training import FANOUT, OPTIONS, digest


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Ranks are born here that have imported what trainers import."""
    modules = ("tests.support.training", "gigl_loader.dataset", "gigl_loader.loaders.neighbor")
    with ForkServer.of(*modules, "torch_geometric.data") as fork_server:
        yield fork_server


@pytest.fixture(scope="session")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of two partitions, for ranks that run ``tests.support.training``."""
    path = tmp_path_factory.mktemp("graphs") / "graph"
    build_graph(tables_from_pyg(homogeneous(1_000, 8_000)), path, num_partitions=2)
    return path


@pytest.fixture(scope="session")
def expected(graph: Path) -> list[int]:
    """Digest of each batch of the first epoch, as one rank sees it alone, without workers."""
    options = OPTIONS | {"num_workers": 0}
    with DistNeighborLoader(DistDataset.open(graph), FANOUT, "train", **options) as loader:
        return [digest(batch) for batch in loader]
