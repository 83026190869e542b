"""The graph of a campaign, the batches of an undisturbed run over it, and processes that help."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.chaos.record import HANG_S
from tests.support.fork_server import ForkServer
from tests.support.training import FANOUT, OPTIONS, digest

LOADER: dict[str, Any] = OPTIONS | {"batch_size": 20, "timeout": HANG_S}
_NODES, _EDGES, _FEATURES, _SEEDS = 20_000, 200_000, 64, 5_000


@dataclass(frozen=True)
class Ground:
    """What all legs of a campaign share. Make one with ``of``."""

    folder: Path
    fork_server: ForkServer

    @classmethod
    @contextmanager
    def of(cls, folder: Path) -> Iterator[Ground]:
        """Build the graph in ``folder`` and start the process that forks trainers."""
        modules = ("tests.support.training", "gigl_loader.dataset", "gigl_loader.loaders.neighbor")
        with ForkServer.of(*modules, "torch_geometric.data") as fork_server:
            ground = cls(folder, fork_server)
            build_graph(tables_from_pyg(_data()), ground.graph, num_partitions=2)
            build_graph(tables_from_pyg(_data()), ground.graph_of_three, num_partitions=3)
            yield ground

    @property
    def graph(self) -> Path:
        return self.folder / "graph"

    @property
    def graph_of_three(self) -> Path:
        """The same graph in three partitions: its batches are the same."""
        return self.folder / "graph-3"

    def fresh_folder(self, name: str) -> Path:
        """Make an empty folder for a leg."""
        path = self.folder / name
        path.mkdir()
        return path

    def expected(self, epoch: int) -> list[int]:
        """Return the digests of an epoch's batches as one process makes them, alone."""
        return _undisturbed(self.graph, epoch)


@functools.cache
def _undisturbed(graph: Path, epoch: int) -> list[int]:
    with DistNeighborLoader(
        DistDataset.open(graph), FANOUT, "train", **LOADER | {"num_workers": 0}
    ) as loader:
        for _ in range(epoch):
            for _ in loader:
                pass
        return [digest(batch) for batch in loader]


def _data() -> Data:
    random = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(_NODES, _FEATURES, generator=random),
        y=torch.randint(0, 4, (_NODES,), generator=random),
        edge_index=torch.randint(0, _NODES, (2, _EDGES), generator=random),
        edge_attr=torch.randn(_EDGES, 3, generator=random),
        train_mask=torch.randperm(_NODES, generator=random) < _SEEDS,
        num_nodes=_NODES,
    )


class Repairs:
    """Threads that commit faults and undo them: those of one target one after the other."""

    def __init__(self, targets: int) -> None:
        self._locks = [threading.Lock() for _ in range(targets)]
        self._threads: list[threading.Thread] = []
        self.errors: list[str] = []

    def run(self, target: int, work: Callable[[int], None]) -> None:
        """Call ``work`` with the target's number, once earlier work on it has ended."""
        number = target % len(self._locks)

        def in_turn() -> None:
            with self._locks[number]:
                try:
                    work(number)
                except Exception as error:
                    self.errors.append(f"{type(error).__name__}: {error}")

        thread = threading.Thread(target=in_turn, daemon=True)
        self._threads.append(thread)
        thread.start()

    def finish(self, seconds: float = 120.0) -> None:
        """Wait until everything is repaired."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))
            if thread.is_alive():
                self.errors.append(f"not repaired within {seconds:g} s")
