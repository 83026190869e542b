"""Lightning leaves an epoch in many ways, and goes on: the batches are those of the undisturbed training.

Trainers are given a loader, or a data module; both must see the same.
"""

from __future__ import annotations

import importlib.metadata
import logging
import warnings
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import ModelCheckpoint, OnExceptionCheckpoint

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.lightning import GiglDataModule
from gigl_loader.lightning_epochs import LoaderEpochs
from tests.support.pyg_graphs import homogeneous

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")

DATASET = DistDataset.from_pyg(homogeneous())
SEEDS, BATCHES, LEFT_AT = 130, 13, 6
OPTIONS: dict[str, Any] = {"num_neighbors": [3, 2], "batch_size": 10, "num_workers": 0}
TRAIN: dict[str, Any] = {"input_nodes": torch.arange(SEEDS), "shuffle": True, "seed": 1}
VAL: dict[str, Any] = {"input_nodes": torch.arange(20), "seed": 2}
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
Seen = list[tuple[int, list[list[int]]]]
"""Epoch, and the nodes of the batch of each loader."""


class Model(lightning.LightningModule):
    """Records the nodes of all batches."""

    def __init__(
        self, *, stops_at: int | None = None, fails_at: int | None = None, asks_for_steps: bool = False
    ) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(6, 4)
        self.stops_at, self.fails_at, self.asks_for_steps = stops_at, fails_at, asks_for_steps
        self.trained: Seen = []
        self.validated: Seen = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        if len(self.trained) == self.fails_at:
            raise RuntimeError("as planned")
        batches = list(batch.values()) if isinstance(batch, dict) else [batch]
        self.trained.append((self.current_epoch, [each.n_id.tolist() for each in batches]))
        if len(self.trained) == self.stops_at:
            self.trainer.should_stop = True  # As after Trainer(max_time=...).
        return self.inner.weight.square().mean()

    def validation_step(self, batch: Any, index: int) -> None:
        if not self.trainer.sanity_checking:
            self.validated.append((self.current_epoch, [batch.n_id.tolist()]))

    def configure_optimizers(self) -> Any:
        if self.asks_for_steps:
            assert self.trainer.estimated_stepping_batches > 0
        return torch.optim.SGD(self.parameters(), lr=0.01)


def loader_of(options: dict[str, Any]) -> DistNeighborLoader:
    return DistNeighborLoader(DATASET, **{**OPTIONS, **options})


def fit(model: Model, given: str, checkpoint: Path | None = None, **limits: Any) -> lightning.Trainer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own.
        trainer = lightning.Trainer(**{**QUIET, **limits})
        if given == "module":
            data = GiglDataModule(DATASET, DistNeighborLoader, **OPTIONS, train=TRAIN, val=VAL)
            trainer.fit(model, datamodule=data, ckpt_path=checkpoint)
        else:
            with loader_of(TRAIN) as train, loader_of(VAL) as val:
                trainer.fit(model, train, val, ckpt_path=checkpoint)
    return trainer


@cache
def undisturbed(given: str, epochs: int, *limits: tuple[str, Any]) -> Model:
    model = Model()
    fit(model, given, max_epochs=epochs, enable_checkpointing=False, **dict(limits))
    return model


def left_early(
    given: str, folder: Path, options: dict[str, Any], limits: dict[str, Any]
) -> tuple[Seen, Path]:
    """Return what a training saw that ended early, and the checkpoint that Lightning writes by default."""
    model = Model(**options)
    trainer = fit(model, given, default_root_dir=folder, **limits)
    saved: Any = trainer.checkpoint_callback
    return model.trained, Path(saved.best_model_path)


GIVEN = ("loader", "module")
LEFT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "steps": ({}, {"max_steps": LEFT_AT}),
    "an epoch": ({}, {"max_steps": BATCHES}),
    "second epoch": ({}, {"max_steps": BATCHES + 4}),
    "stopped": ({"stops_at": LEFT_AT}, {}),
    "accumulated": ({}, {"max_steps": 2, "accumulate_grad_batches": 4}),
    "validated between": ({}, {"max_steps": LEFT_AT, "val_check_interval": 3}),
    "limited": ({}, {"max_steps": LEFT_AT, "limit_train_batches": 9}),
    "a limited epoch": ({}, {"max_steps": 9, "limit_train_batches": 9}),
    "estimated": ({"asks_for_steps": True}, {"max_steps": LEFT_AT}),
    "estimated at an end": ({"asks_for_steps": True}, {"max_steps": BATCHES}),
}
"""Options of the model, and limits of the trainer. In the fast tests each is given in one of the two ways."""


@pytest.mark.parametrize(
    ("given", "options", "limits"),
    [
        pytest.param(
            given, *case, id=f"{name}-{given}", marks=[] if number % 2 == way else [pytest.mark.slow]
        )
        for number, (name, case) in enumerate(LEFT.items())
        for way, given in enumerate(GIVEN)
    ],
)
def test_an_epoch_that_was_left_goes_on(
    given: str,
    options: dict[str, Any],
    limits: dict[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen, checkpoint = left_early(given, tmp_path, options, limits)
    others = {name: value for name, value in limits.items() if name != "max_steps"}
    whole = undisturbed(given, 2, *others.items())
    resumed = Model(asks_for_steps=bool(options.get("asks_for_steps")))
    with caplog.at_level(logging.WARNING):
        fit(resumed, given, checkpoint, max_epochs=2, enable_checkpointing=False, **others)
    assert seen == whole.trained[: len(seen)]
    assert resumed.trained == whole.trained[len(seen) :]
    assert resumed.validated == whole.validated[len(whole.validated) - len(resumed.validated) :]
    assert "aside" not in caplog.text


@pytest.mark.some(2)
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("validated", [0, 1.0])
def test_steps_go_on_after_the_end_of_an_epoch(given: str, validated: float, tmp_path: Path) -> None:
    """With ``max_steps``, Lightning alone goes on in an epoch that has ended."""
    options = {"limit_val_batches": validated, "enable_checkpointing": False}
    seen, checkpoint = left_early(given, tmp_path, {}, {"max_steps": BATCHES, "limit_val_batches": validated})
    resumed = Model()
    fit(resumed, given, checkpoint, max_steps=2 * BATCHES, **options)
    assert [*seen, *resumed.trained] == undisturbed(given, 2).trained


def test_a_checkpoint_of_the_start_of_an_epoch_goes_on(tmp_path: Path) -> None:
    class Saving(Model):
        def on_train_epoch_start(self) -> None:
            self.trainer.save_checkpoint(tmp_path / f"{self.current_epoch}.ckpt")

    resumed = Model()
    fit(Saving(), "loader", max_epochs=2, default_root_dir=tmp_path)
    for epoch in range(2):
        resumed = Model()
        fit(resumed, "loader", tmp_path / f"{epoch}.ckpt", max_epochs=2, enable_checkpointing=False)
        assert resumed.trained == undisturbed("loader", 2).trained[epoch * BATCHES :]


@pytest.mark.some(2)
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("fails_at", [LEFT_AT, BATCHES - 1])
def test_a_batch_whose_step_failed_comes_again(given: str, fails_at: int, tmp_path: Path) -> None:
    failed, resumed = Model(fails_at=fails_at), Model()
    save = OnExceptionCheckpoint(tmp_path, filename="failed")
    with pytest.raises(RuntimeError, match="as planned"):
        fit(failed, given, max_epochs=2, callbacks=[save])
    fit(resumed, given, tmp_path / "failed.ckpt", max_epochs=2, enable_checkpointing=False)
    assert [*failed.trained, *resumed.trained] == undisturbed(given, 2).trained


@pytest.mark.parametrize("given", GIVEN)
def test_overfitting_has_the_same_batches_in_every_epoch(given: str) -> None:
    model = Model()
    fit(model, given, max_epochs=3, overfit_batches=2, enable_checkpointing=False)
    epochs = [[nodes for epoch, nodes in model.trained if epoch == each] for each in range(3)]
    assert [len(each) for each in epochs] == [2, 2, 2]
    assert epochs[0] == epochs[1] == epochs[2]
    assert len({str(nodes) for _, nodes in model.validated}) == 2


@pytest.mark.parametrize(
    "limits", [{"max_steps": LEFT_AT}, {"max_steps": BATCHES}], ids=["early", "at its end"]
)
def test_several_loaders_go_on(limits: dict[str, Any], tmp_path: Path) -> None:
    """The shorter one is in another epoch: Lightning begins it again."""

    def run(model: Model, checkpoint: Path | None = None, **options: Any) -> lightning.Trainer:
        long, short = loader_of(TRAIN), loader_of({**TRAIN, "input_nodes": torch.arange(150, 200), "seed": 3})
        with warnings.catch_warnings(), long, short:
            warnings.simplefilter("ignore")
            trainer = lightning.Trainer(**QUIET, **options)
            trainer.fit(model, {"long": long, "short": short}, ckpt_path=checkpoint)
        return trainer

    whole, first, resumed = Model(), Model(), Model()
    run(whole, max_epochs=2, enable_checkpointing=False)
    trainer: Any = run(first, default_root_dir=tmp_path, **limits)
    run(resumed, Path(trainer.checkpoint_callback.best_model_path), max_epochs=2, enable_checkpointing=False)
    assert [*first.trained, *resumed.trained] == whole.trained


def test_loaders_that_a_model_builds_anew_every_epoch_go_on() -> None:
    class Building(Model):
        def train_dataloader(self) -> DistNeighborLoader:
            return loader_of(TRAIN)

    anew = Building()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        limits: dict[str, Any] = {"max_epochs": 2, "enable_checkpointing": False, "limit_val_batches": 0}
        lightning.Trainer(**QUIET, **limits, reload_dataloaders_every_n_epochs=1).fit(anew)
    assert anew.trained == undisturbed("loader", 2).trained


def test_a_checkpoint_of_other_options_is_refused_where_batches_would_be_lost(tmp_path: Path) -> None:
    _, checkpoint = left_early("loader", tmp_path, {}, {"max_steps": LEFT_AT})
    with loader_of({**TRAIN, "batch_size": 26}) as other, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(**QUIET, max_epochs=2, enable_checkpointing=False)
        with pytest.raises(ValueError, match="batch_size is 26 here, 10 in the state"):
            trainer.fit(Model(), other, ckpt_path=checkpoint)


def test_every_trainer_has_the_callback_once() -> None:
    for group in ("pytorch_lightning.callbacks_factory", "lightning.pytorch.callbacks_factory"):
        (entry,) = importlib.metadata.entry_points(group=group, name="gigl_loader")
        assert [type(each) for each in entry.load()()] == [LoaderEpochs]
    trainer = fit(Model(), "module", max_steps=1, enable_checkpointing=False)
    callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
    assert len([each for each in callbacks if isinstance(each, LoaderEpochs)]) == 1


def test_a_checkpoint_by_time_goes_on(tmp_path: Path) -> None:
    save = ModelCheckpoint(
        tmp_path, filename="{step}", save_top_k=-1, train_time_interval=timedelta(microseconds=1)
    )
    whole, resumed = Model(), Model()
    fit(whole, "loader", max_epochs=2, callbacks=[save])
    fit(resumed, "loader", tmp_path / "step=4.ckpt", max_epochs=2, enable_checkpointing=False)
    assert resumed.trained == whole.trained[4:]
