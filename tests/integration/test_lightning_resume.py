"""Lightning goes on from a checkpoint: with two ranks that were killed, and at every place of an epoch."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.lightning_runs import check_each_seed_once, killed_and_resumed
from tests.support.pyg_graphs import homogeneous

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")]

DATASET = DistDataset.from_pyg(homogeneous())
SEEDS = 290
KILLED_AT, SAVED_EVERY = 8, 3
SAVED = KILLED_AT // SAVED_EVERY * SAVED_EVERY

SCRIPT = """
import json, os, signal, sys
import torch
import pytorch_lightning as lightning
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.multiprocessing import ProcessExitedException
from gigl_loader import DistDataset, DistNeighborLoader

graph, killed_at, saved_every, devices = sys.argv[1], *map(int, sys.argv[2:])
# Without steps between checkpoints, each is of the end of an epoch, and the first training ends in one.
every, ends_at = ({"every_n_train_steps": saved_every}, -1) if saved_every else ({}, killed_at)
saved = killed_at // saved_every * saved_every if saved_every else killed_at


class Model(lightning.LightningModule):
    def __init__(self, folder, killed_at):
        super().__init__()
        self.inner = torch.nn.Linear(6, 4)
        self.folder, self.killed_at = folder, killed_at

    def train_dataloader(self):
        return DistNeighborLoader(
            DistDataset.open(graph), [3, 2], torch.arange(290), batch_size=10, shuffle=True, seed=1
        )

    def on_train_start(self):
        self.log_file = open(f"{self.folder}/{self.global_rank}.jsonl", "w")

    def training_step(self, batch, index):
        if self.global_step == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        line = {"epoch": self.current_epoch, "step": self.global_step, "places": batch.input_id.tolist()}
        print(json.dumps(line), file=self.log_file, flush=True)
        out = self.inner(batch.x)[batch.seed_index]
        return torch.nn.functional.cross_entropy(out, batch.y[batch.seed_index])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(folder, devices, killed_at=-1, checkpoint=None, max_steps=-1):
    os.mkdir(folder)
    save = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, **every)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=devices, strategy="ddp_fork", max_epochs=2, logger=False, callbacks=[save],
        enable_progress_bar=False, enable_model_summary=False, max_steps=max_steps,
    )
    trainer.fit(Model(folder, killed_at), ckpt_path=checkpoint)


try:
    fit("killed", 2, killed_at, max_steps=ends_at)
except ProcessExitedException as error:
    print(error.signal_name)
os.environ.pop("MASTER_PORT", None)
fit("resumed", devices, checkpoint=f"killed/step={saved}.ckpt")
"""


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize("devices", [2, 1, 3])
def test_two_ranks_that_were_killed_see_each_seed_once(devices: int, tmp_path: Path) -> None:
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph", num_partitions=2)
    (tmp_path / "train.py").write_text(SCRIPT)
    lines = killed_and_resumed(tmp_path, "graph", str(KILLED_AT), str(SAVED_EVERY), str(devices), saved=SAVED)
    check_each_seed_once(lines, epochs=2, seeds=SEEDS)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize("devices", [2, 3])
def test_two_ranks_that_left_an_epoch_go_on_in_it(devices: int, tmp_path: Path) -> None:
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph", num_partitions=2)
    (tmp_path / "train.py").write_text(SCRIPT)
    arguments = ["graph", str(KILLED_AT), "0", str(devices)]
    lines = killed_and_resumed(tmp_path, *arguments, saved=KILLED_AT, is_killed=False)
    check_each_seed_once(lines, epochs=2, seeds=SEEDS)


@pytest.mark.parametrize("limit", [{"max_epochs": 3}, {"max_steps": 11}], ids=["epochs", "steps"])
@pytest.mark.parametrize(
    "every", [{"every_n_train_steps": 2}, {"every_n_epochs": 1}], ids=["steps", "epochs"]
)
def test_a_run_goes_on_where_its_checkpoint_stands(
    limit: dict[str, Any], every: dict[str, Any], tmp_path: Path
) -> None:
    whole, checkpoints = _fit(tmp_path / "whole", limit, every)
    assert len(checkpoints) > 1
    for steps, checkpoint in checkpoints.items():
        resumed, _ = _fit(tmp_path / f"from-{steps}", limit, every, checkpoint)
        assert resumed == whole[steps:], steps


def _fit(
    folder: Path, limit: dict[str, Any], every: dict[str, Any], checkpoint: Path | None = None
) -> tuple[list[list[int]], dict[int, Path]]:
    """Return the node ids of all batches, and the checkpoints by the steps before them."""
    import pytorch_lightning as lightning
    from pytorch_lightning.callbacks import ModelCheckpoint

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(6, 4)
            self.seen: list[list[int]] = []

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            self.seen.append(batch.n_id.tolist())
            out = self.inner(batch.x)[batch.seed_index]
            return torch.nn.functional.cross_entropy(out, batch.y[batch.seed_index])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    model = Model()
    save = ModelCheckpoint(dirpath=folder, filename="{step}", save_top_k=-1, **every)
    with (
        warnings.catch_warnings(),
        DistNeighborLoader(
            DATASET, [3, 2], "train", batch_size=32, shuffle=True, seed=1, num_workers=0
        ) as loader,
    ):
        warnings.simplefilter("ignore")  # Lightning's own.
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=1,
            logger=False,
            callbacks=[save],
            enable_progress_bar=False,
            enable_model_summary=False,
            **limit,
        )
        trainer.fit(model, loader, ckpt_path=checkpoint)
    return model.seen, {int(path.stem.removeprefix("step=")): path for path in folder.glob("*.ckpt")}
