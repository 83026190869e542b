"""Process groups that come after the loader: Lightning, and ``torch.multiprocessing.spawn``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, multiprocessing

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.ports import free_port
from tests.support.pyg_graphs import homogeneous

pytestmark = [pytest.mark.usefixtures("no_leftovers"), pytest.mark.slow, pytest.mark.timeout(300)]

RANKS = 2
SEEDS = 290
SECONDS = 250.0


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> str:
    resource_tracker.ensure_running()  # For this process's whole life: not to be taken for something left.
    path = tmp_path_factory.mktemp("graphs") / "graph"
    build_graph(tables_from_pyg(homogeneous()), path, num_partitions=2)
    return str(path)


# torch.multiprocessing.spawn


def _loader(graph: str, **options: Any) -> DistNeighborLoader:
    defaults = {"batch_size": 16, "shuffle": True, "num_workers": 1, "even_batches": False, "timeout": 60}
    dataset = DistDataset.open(graph)
    return DistNeighborLoader(dataset, [3, 2], torch.arange(SEEDS), **{**defaults, **options})


def _places(loader: DistNeighborLoader) -> list[int]:
    return [place for batch in loader for place in batch.input_id.tolist()]


def _begin(rank: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    distributed.init_process_group("gloo", rank=rank, world_size=RANKS)


def _late_and_early(rank: int, graph: str, port: int, folder: str) -> None:
    """Train with a loader from before the group, then with one from after it."""
    with _loader(graph) as late:
        _begin(rank, port)
        length, seen = len(late), [_places(late) for _ in range(2)]
        with _loader(graph, seed=late.seed) as early:
            expected = [_places(early) for _ in range(2)]
        told = {"length": length, "batches": late.stats()["batches"], "seed": late.seed, "seen": seen}
        Path(folder, f"{rank}.json").write_text(json.dumps({**told, "expected": expected}))
        distributed.barrier()  # Rank 0 holds the store of all.
        distributed.destroy_process_group()
        with pytest.raises(RuntimeError, match=f"the share of rank {rank} of 2, of a process group that was"):
            iter(late)


def _never(rank: int, loader: DistNeighborLoader) -> None:
    raise AssertionError("a loader came through")


def test_a_group_that_comes_after_the_loader_in_a_spawned_process(graph: str, tmp_path: Path) -> None:
    arguments = (graph, free_port(), str(tmp_path))
    multiprocessing.spawn(_late_and_early, arguments, nprocs=RANKS)  # type: ignore[attr-defined, no-untyped-call]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS)]
    assert ranks[0]["seed"] == ranks[1]["seed"]  # Neither gave one.
    for rank in ranks:
        assert rank["seen"] == rank["expected"]
        assert rank["batches"] == 2 * rank["length"]
    for epoch in range(2):
        assert sorted(place for rank in ranks for place in rank["seen"][epoch]) == list(range(SEEDS))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_is_not_carried_into_a_spawned_process(graph: str, num_workers: int) -> None:
    with (
        _loader(graph, num_workers=num_workers) as loader,
        pytest.raises(TypeError, match="build a loader in the process that uses it"),
    ):
        multiprocessing.spawn(_never, (loader,), nprocs=RANKS)  # type: ignore[attr-defined, no-untyped-call]


# Lightning

SCRIPT = """
import json, sys
import torch
import pytorch_lightning as lightning
from gigl_loader import DistDataset, DistNeighborLoader

strategy, where, graph, folder = sys.argv[1:]


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(6, 4)
        self.seen = []

    def training_step(self, batch, index):
        self.seen += batch.input_id.tolist()
        out = self.inner(batch.x)[batch.seed_index]
        return torch.nn.functional.cross_entropy(out, batch.y[batch.seed_index])

    def on_train_epoch_end(self):
        with open(f"{folder}/{self.current_epoch}-{self.global_rank}.json", "w") as file:
            json.dump(self.seen, file)
        self.seen = []

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Data(lightning.LightningDataModule):
    def __init__(self, dataset):
        super().__init__()
        self.dataset = dataset

    def train_dataloader(self):
        return build(self.dataset)


def build(dataset):
    return DistNeighborLoader(
        dataset, [3, 2], torch.arange(290), batch_size=5, shuffle=True, num_workers=1, timeout=60
    )


if __name__ == "__main__":
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=strategy, max_epochs=2, logger=False, default_root_dir=folder,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    dataset = DistDataset.open(graph)
    trainer.fit(Model(), build(dataset) if where == "before" else Data(dataset))
"""


def _train(strategy: str, where: str, graph: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, "script.py", strategy, where, graph, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def _seen(folder: Path, epoch: int) -> Sequence[int]:
    files = sorted(folder.glob(f"{epoch}-*.json"))
    assert len(files) == RANKS
    return sorted(place for file in files for place in json.loads(file.read_text()))


def test_ranks_of_lightning_see_the_input_once_with_a_loader_from_before(graph: str, tmp_path: Path) -> None:
    done = _train("ddp", "before", graph, tmp_path)
    assert done.returncode == 0, done.stderr
    for epoch in range(2):
        assert _seen(tmp_path, epoch) == list(range(SEEDS))


def test_a_loader_that_lightning_would_carry_into_its_ranks_is_refused(graph: str, tmp_path: Path) -> None:
    done = _train("ddp_spawn", "before", graph, tmp_path)
    assert done.returncode != 0
    assert "cannot be pickled or copied: it owns processes and memory of this process" in done.stderr
    assert "in train_dataloader()" in done.stderr
    assert not list(tmp_path.glob("*.json"))
