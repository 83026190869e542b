"""The way of a batch is short, and docs/internals/architecture.md tells it: one is traced in each mode."""

from __future__ import annotations

import re
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.clusters import addresses_of, servers_of
from tests.support.pyg_graphs import homogeneous

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

ROOT = Path(__file__).parents[2]
PLACES = {
    str(ROOT / "gigl_loader"): "",
    str(ROOT / "servers" / "gigl_server"): "server/",
    str(ROOT / "clients" / "gigl_client"): "client/",
}
# Python calls no profile function in threads that native code has begun: what runs there alone is missing.
BEYOND_THE_TRACE = frozenset({"server/ports/data", "server/frames/ring", "rpc/reply_stream"})

IN_THE_WORKER = frozenset(
    {
        "workers/executor",
        "sampling/neighbor_sampler",
        "sampling/frame_writer",
        "sampling/frame_schema",
    }
)


class Trace:
    """The files of ours in which a function was called, in all threads of this process, while it is on."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.is_on = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.is_on and event == "call":
            self.files.add(frame.f_code.co_filename)

    def take(self) -> set[str]:
        """Return the modules of these files, and forget the files."""
        files, self.files = self.files, set()
        return {
            place + path.removeprefix(root + "/").removesuffix(".py")
            for path in files
            for root, place in PLACES.items()
            if path.startswith(root + "/")
        }


@contextmanager
def traced() -> Iterator[Trace]:
    trace = Trace()
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        yield trace
    finally:
        trace.is_on = False
        sys.setprofile(None)
        threading.setprofile(None)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "graph"
    build_graph(tables_from_pyg(homogeneous(1000, 8000)), path, num_partitions=2)
    return path


def modules_of_a_batch(trace: Trace, dataset: Any, *, num_workers: int) -> tuple[set[str], set[str]]:
    """Return the modules that each of four batches executes, all that they need being there, and any does.

    What runs by the clock, beside a batch, is executed during some of them.
    """
    traces = []
    with DistNeighborLoader(dataset, [3, 2], "train", batch_size=25, num_workers=num_workers) as loader:
        batches = iter(loader)
        next(batches)
        next(batches)
        for _ in range(4):
            time.sleep(0.3)  # Requests ahead are answered meanwhile.
            trace.take()
            trace.is_on = True
            next(batches)
            trace.is_on = False
            traces.append(trace.take())
    return set.intersection(*traces), set.union(*traces)


def described(mode: str) -> list[str]:
    """Return the modules that docs/internals/architecture.md names for a batch of this mode."""
    (row,) = re.findall(
        rf"^\| {mode} \(\d+\) \| (.*) \|$",
        (ROOT / "docs" / "internals" / "architecture.md").read_text(),
        re.M,
    )
    named = []
    place = ""
    for part in re.split(r"; |, | and | or ", row):
        if found := re.match(r"(client|server): ", part):
            place = found[1] + "/"
        name = re.findall(r"`([\w/]+)`", part)[0]
        ours = (ROOT / "gigl_loader" / f"{name}.py").exists()
        named.append(name if ours else place + name)
    return named


@pytest.mark.parametrize(("num_workers", "most"), [(0, 18), (1, 17)])
def test_a_batch_sampled_here_executes_few_files(graph: Path, num_workers: int, most: int) -> None:
    with traced() as trace:
        each, some = modules_of_a_batch(trace, DistDataset.open(graph), num_workers=num_workers)
    assert len(each) <= most, sorted(each)
    if num_workers:
        named = set(described("sampling processes")) - IN_THE_WORKER
        assert named - some == set()


def test_a_batch_of_a_storage_server_executes_few_files(graph: Path) -> None:
    with traced() as trace, ExitStack() as stack:
        servers = stack.enter_context(servers_of(graph, 1))
        dataset = stack.enter_context(RemoteDistDataset.connect(addresses_of(servers), transport="network"))
        each, some = modules_of_a_batch(trace, dataset, num_workers=0)
    assert len(each) <= 45, sorted(each)
    assert set(described("graph store")) - some - BEYOND_THE_TRACE == set()
