"""Embeddings are complete, each node once and with the same row, whenever their writers were killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist

from gigl_loader import DistDataset, DistNeighborLoader, write_embeddings
from tests.support.fork_server import ForkServer
from tests.support.ranks import Ranks, places

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_leftovers")]

PROGRAM = f"{__name__}:write"
NODES = 1_000
DEADLINE = 60.0


class Model(torch.nn.Module):
    """One layer over sums of neighbours. (PyG's layers write files of their own.)"""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(6, 4)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x.index_add(0, edge_index[1], x[edge_index[0]]))
        return out


def write(*, graph: str, path: str, options: dict[str, Any], die_at: dict[str, int] | None = None) -> None:
    """Write the embeddings of a graph. ``die_at`` says at which flush to disk, or batch, to be killed."""
    torch.set_num_threads(1)
    to_come = dict(die_at or {})
    flush = os.fsync

    def count(what: str) -> None:
        if what in to_come:
            to_come[what] -= 1
            if to_come[what] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def fsync(fd: int) -> None:
        count("flush")
        flush(fd)

    os.fsync = fsync  # type: ignore[assignment]
    if os.environ["WORLD_SIZE"] != "1":
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model()
    with DistNeighborLoader(DistDataset.open(graph), [3, 2], None, batch_size=90, **options) as loader:
        model.register_forward_hook(lambda *_: count("batch"))
        write_embeddings(loader, model, path, rows_per_shard=180)


def rows_in(path: Path) -> dict[int, list[float]]:
    table = pq.read_table(path)
    assert table.num_rows == NODES
    rows = dict(zip(table["id"].to_pylist(), table["embedding"].to_pylist(), strict=True))
    assert sorted(rows) == list(range(NODES))
    return rows


class Writers:
    """Runs of ranks that write to one directory."""

    def __init__(self, fork_server: ForkServer, graph: Path, folder: Path, options: dict[str, Any]) -> None:
        self._fork_server, self._folder = fork_server, folder
        self._arguments = {"graph": str(graph), "options": {"timeout": 30.0, **options}}
        self._count = 0

    def run(self, name: str, *deaths: dict[str, int] | None) -> list[int]:
        """Run one rank for each of ``deaths``. Return how they ended."""
        self._count += 1
        folder = self._folder / f"run-{self._count}"
        folder.mkdir()
        arguments = {**self._arguments, "path": str(self._folder / name)}
        special = {rank: {"die_at": death} for rank, death in enumerate(deaths)}
        where = places(len(deaths))
        with Ranks(self._fork_server, PROGRAM, where, folder, arguments=arguments, special=special) as ranks:
            if not any(deaths):
                return [ended.status for ended in ranks.succeed(seconds=DEADLINE)]
            doomed = [rank for rank, death in enumerate(deaths) if death]
            statuses = [ended.status for ended in ranks.finish(seconds=DEADLINE, ranks=doomed)]
            for rank in set(range(len(deaths))) - set(doomed):
                ranks.send(rank, signal.SIGKILL)  # As torchrun does, roughly.
            ranks.finish(seconds=DEADLINE)
        return statuses


@pytest.mark.timeout(300)
@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 1, "seed": 3}], ids=str)
def test_one_rank_goes_on_wherever_it_was_killed(
    options: dict[str, Any], fork_server: ForkServer, graph: Path, tmp_path: Path
) -> None:
    """Batches of 90 make 12, so 6 shards: a flush of file and directory for each, and for 8 manifests.

    The third shard to the fifth are like the second.
    """
    writers = Writers(fork_server, graph, tmp_path, {"seed": 5, **options})
    writers.run("whole", None)
    whole = rows_in(tmp_path / "whole")
    flushes, batches = [*range(10), *range(22, 28)], [0, 1, 6, 11]
    deaths = [*({"flush": flush} for flush in flushes), *({"batch": batch} for batch in batches)]
    for number, death in enumerate(deaths if not options["num_workers"] else deaths[::5]):
        name = f"killed-{number}"
        assert writers.run(name, death) == [-signal.SIGKILL], death
        writers.run(name, None)
        assert rows_in(tmp_path / name) == whole, death
        assert not [path for path in (tmp_path / name).iterdir() if path.name.startswith(".")]


def test_a_run_that_is_killed_again_and_again_ends(
    fork_server: ForkServer, graph: Path, tmp_path: Path
) -> None:
    """Without a seed: the first run's is in the manifest."""
    writers = Writers(fork_server, graph, tmp_path, {"num_workers": 0})
    for _ in range(5):  # Each time, one of 6 shards is written.
        assert writers.run("killed", {"batch": 3}) == [-signal.SIGKILL]
    writers.run("killed", None)
    found = rows_in(tmp_path / "killed")
    writers.run("killed", None)
    assert rows_in(tmp_path / "killed") == found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [5, None], ids=["seed", "random seed"])
def test_two_ranks_go_on_wherever_they_were_killed(
    seed: int | None, fork_server: ForkServer, graph: Path, tmp_path: Path
) -> None:
    """One is further than the other, has not begun, is done, or lives and is ended by its launcher."""
    writers = Writers(fork_server, graph, tmp_path, {"seed": seed, "num_workers": 0})
    writers.run("whole", None, None)
    whole = rows_in(tmp_path / "whole")
    deaths: list[list[dict[str, int] | None]] = [
        [{"flush": 0}, {"flush": 3}],
        [{"flush": 6}, {"flush": 1}],
        [{"batch": 0}, {"batch": 5}],
        [{"batch": 5}, {"batch": 1}],
        [{"flush": 13}, {"flush": 5}],
        [{"flush": 2}, {"flush": 15}],
        [{"batch": 3}, None],
        [None, {"batch": 2}],
    ]
    for number, both in enumerate(deaths):
        name = f"killed-{number}"
        assert -signal.SIGKILL in writers.run(name, *both), both  # Its fellow may notice, and fail.
        writers.run(name, None, None)
        found = rows_in(tmp_path / name)
        if seed is not None:
            assert found == whole, both
