"""Fixtures that several tests of ranks and hosts share, because they take seconds to make."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.fork_server import ForkServer
from tests.support.pyg_graphs import homogeneous
from tests.support.training import FANOUT, OPTIONS, digest

_ALONE = "GIGL_TEST_ALONE"
_ATTEMPTS = 3


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test marked ``grpc_may_abort`` in a process of its own, and again where gRPC's core ended it.

    Some damaged bits of a plain control line make the C core of gRPC call ``abort`` (docs/limits.md), which
    would end all tests of this process. Nothing else is excused: neither a test that fails nor an abort of ours.
    """
    if pyfuncitem.get_closest_marker("grpc_may_abort") is None or _ALONE in os.environ:
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    for _ in range(_ATTEMPTS):
        done = subprocess.run(
            command,
            cwd=pyfuncitem.config.rootpath,
            env={**os.environ, _ALONE: "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        ours = "terminate called" in done.stderr
        if done.returncode != -signal.SIGABRT or ours:
            break
    assert done.returncode == 0, done.stdout + done.stderr
    return True


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
