"""Statistics of a loader over time, as TensorBoard and Lightning show them."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any

import pytest
import pytorch_lightning as lightning
import torch
from pytorch_lightning.loggers import CSVLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from gigl_loader import DistDataset, DistNeighborLoader, StatsWriter
from gigl_loader.lightning import GiglDataModule, LoaderStatsMonitor
from gigl_loader.loaders.stats import StatsRates
from tests.support.pyg_graphs import homogeneous

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DATASET = DistDataset.from_pyg(homogeneous())


@pytest.fixture
def loader() -> Iterator[DistNeighborLoader]:
    with DistNeighborLoader(DATASET, [3, 2], "train", batch_size=16, num_workers=0, seed=1) as made:
        yield made


def test_rates_are_those_of_the_period(loader: DistNeighborLoader) -> None:
    times = iter([100.0, 110.0, 130.0, 130.0])
    rates = StatsRates(loader, clock=lambda: next(times))
    next(loader)
    first, counted = rates.read(), loader.stats()
    assert first["seconds_waiting_share"] == pytest.approx(counted["seconds_waiting"] / 10)
    assert first["seconds_collating_share"] == pytest.approx(counted["seconds_collating"] / 10)
    assert first["batches_per_second"] == pytest.approx(0.1)
    assert first["bytes_per_second"] == pytest.approx(counted["bytes"] / 10)
    assert set(rates.read().values()) == {0.0}
    assert rates.read() == {}  # No time has passed.


def test_a_source_that_counts_anew_gives_no_negative_rate(loader: DistNeighborLoader) -> None:
    times = iter([0.0, 1.0])
    list(loader)
    rates = StatsRates(loader, clock=lambda: next(times))
    loader._frames.seconds_waiting = 0.0
    assert rates.read()["seconds_waiting_share"] == 0.0


def test_tensorboard_shows_every_write(loader: DistNeighborLoader, tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        stats = StatsWriter(writer, loader, tag="train")
        for step, _ in enumerate(loader):
            stats.write(step)
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    waiting = found.Scalars("train/seconds_waiting_share")
    assert [each.step for each in waiting] == list(range(len(loader)))
    assert all(0 < each.value <= 1 for each in waiting)
    assert {tag.partition("/")[2] for tag in found.Tags()["scalars"]} == set(StatsRates(loader).read())


def test_a_writer_without_scalars_is_refused(loader: DistNeighborLoader) -> None:
    with pytest.raises(TypeError, match="add_scalar"):
        StatsWriter(object(), loader)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore")  # Lightning's own.
def test_the_monitor_of_lightning_logs_steps_and_epochs(tmp_path: Path) -> None:
    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(6, 4)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.inner(batch.x).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    data = GiglDataModule(
        DATASET,
        DistNeighborLoader,
        num_neighbors=[3, 2],
        batch_size=32,
        num_workers=0,
        train={"input_nodes": "train"},
    )
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=CSVLogger(str(tmp_path), name="", version=""),
        callbacks=[LoaderStatsMonitor(every_n_steps=2)],
    )
    trainer.fit(Model(), datamodule=data)
    steps = trainer.num_training_batches
    assert steps >= 2
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    by_step = [row for row in rows if row["loader/seconds_waiting_share"]]
    by_epoch = [row for row in rows if row["loader/epoch/seconds_waiting_share"]]
    assert len(by_step) == 2 * (steps // 2)
    assert [int(row["step"]) for row in by_epoch] == [steps, 2 * steps]
    assert all(0 < float(row["loader/epoch/seconds_waiting_share"]) <= 1 for row in by_epoch)
    assert all(float(row["loader/epoch/batches_per_second"]) > 0 for row in by_epoch)


@pytest.mark.filterwarnings("ignore")  # Lightning's own.
def test_a_monitor_without_a_logger_is_refused() -> None:
    trainer = lightning.Trainer(logger=False, accelerator="cpu", callbacks=[LoaderStatsMonitor()])
    with pytest.raises(ValueError, match="needs a logger"):
        LoaderStatsMonitor().setup(trainer, None, "fit")
    with pytest.raises(ValueError, match="at least 1"):
        LoaderStatsMonitor(every_n_steps=0)
