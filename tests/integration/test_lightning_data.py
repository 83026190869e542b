"""The data module of Lightning: three loaders, resumed at every place of an epoch, on one rank and on two."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from gigl_loader import DistABLPLoader, DistDataset, DistLinkNeighborLoader, DistNeighborLoader
from gigl_loader.graph import HOMOGENEOUS_EDGE
from gigl_loader.lightning import GiglDataModule
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.lightning_runs import check_each_seed_once, killed_and_resumed
from tests.support.pyg_graphs import heterogeneous, homogeneous

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")

DATA = homogeneous()
DATASET = DistDataset.from_pyg(DATA)
FANOUT = [3, 2]
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Model(lightning.LightningModule):
    """Records the nodes of all batches, with the epoch. Its loss needs a row for each seed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(6, 4)
        self.trained: list[tuple[int, list[int]]] = []
        self.validated: list[tuple[int, list[int]]] = []
        self.others: list[list[int]] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        self.trained.append((self.current_epoch, batch.n_id.tolist()))
        loss: torch.Tensor = self.inner(batch.x).square().mean()
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        if not self.trainer.sanity_checking:
            self.validated.append((self.current_epoch, batch.n_id.tolist()))

    def test_step(self, batch: Any, index: int) -> None:
        self.others.append(batch.n_id.tolist())

    def predict_step(self, batch: Any, index: int) -> Any:
        return batch.n_id[batch.seed_index]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own.
        yield


def module_of(**options: Any) -> GiglDataModule:
    defaults: dict[str, Any] = {
        "num_neighbors": FANOUT,
        "batch_size": 32,
        "num_workers": 0,
        "train": {"input_nodes": "train", "shuffle": True},
        "val": {"input_nodes": "val"},
    }
    return GiglDataModule(lambda: DistDataset.from_pyg(DATA), DistNeighborLoader, **{**defaults, **options})


def nodes_of(batches: list[tuple[int, list[int]]]) -> list[list[int]]:
    return [nodes for _, nodes in batches]


def fit(
    folder: Path, limit: dict[str, Any], every: dict[str, Any], checkpoint: Path | None = None, **options: Any
) -> tuple[Model, dict[int, Path]]:
    """Return the model, and the checkpoints by the steps before them."""
    model = Model()
    save = ModelCheckpoint(dirpath=folder, filename="{step}", save_top_k=-1, **every)
    with quiet():
        trainer = lightning.Trainer(callbacks=[save], **limit, **QUIET)
        trainer.fit(model, datamodule=module_of(**options), ckpt_path=checkpoint)
    return model, {int(path.stem.removeprefix("step=")): path for path in folder.glob("*.ckpt")}


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "limit",
    [
        pytest.param({"max_epochs": 3}, id="epochs"),
        pytest.param({"max_steps": 11}, id="steps", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "every",
    [
        {"every_n_train_steps": 2},
        {"every_n_train_steps": 5},
        {"every_n_epochs": 1},
        {"every_n_epochs": 1, "save_on_train_epoch_end": True},
    ],
    ids=["steps", "last steps", "epochs", "ends of training"],
)
@pytest.mark.parametrize("seed", [1, None], ids=["seed", "random seed"])
def test_a_run_goes_on_where_its_checkpoint_stands(
    seed: int | None, limit: dict[str, Any], every: dict[str, Any], tmp_path: Path
) -> None:
    whole, checkpoints = fit(tmp_path / "whole", limit, every, seed=seed)
    assert len(checkpoints) > 1
    for steps, checkpoint in checkpoints.items():
        resumed, _ = fit(tmp_path / f"from-{steps}", limit, every, checkpoint, seed=seed)
        assert nodes_of(resumed.trained) == nodes_of(whole.trained[steps:]), steps
        if "max_steps" in limit:
            continue  # With it, Lightning counts an epoch too many where it goes on.
        assert resumed.trained == whole.trained[steps:], steps
        assert resumed.validated == whole.validated[len(whole.validated) - len(resumed.validated) :], steps
        if steps < len(whole.trained):
            assert resumed.validated


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
def test_a_run_goes_on_with_another_number_of_workers(tmp_path: Path) -> None:
    limit, every = {"max_epochs": 2}, {"every_n_train_steps": 3}
    whole, checkpoints = fit(tmp_path / "whole", limit, every, num_workers=0)
    for steps, checkpoint in checkpoints.items():
        resumed, _ = fit(tmp_path / f"from-{steps}", limit, every, checkpoint, num_workers=1)
        assert resumed.trained == whole.trained[steps:]


CLASSES: dict[str, tuple[Any, dict[str, Any]]] = {
    "nodes": (DistNeighborLoader, {"input_nodes": None}),
    "links": (DistLinkNeighborLoader, {"batch_size": 600}),
}


@pytest.mark.some(1)
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize("name", CLASSES)
def test_every_stage_has_its_loader(name: str) -> None:
    loader_class, own = CLASSES[name]
    nodes = {"loader_class": DistNeighborLoader, "num_neighbors": FANOUT, "num_workers": 1, "batch_size": 64}
    data = GiglDataModule(
        DATASET,
        loader_class,
        num_neighbors=FANOUT,
        num_workers=1,
        train={"batch_size": 100, **own},
        test={**nodes, "input_nodes": "test"},
        predict=nodes,
    )
    model = Model()
    with quiet():
        trainer = lightning.Trainer(max_epochs=1, enable_checkpointing=False, **QUIET)
        trainer.fit(model, datamodule=data)
        trainer.test(model, datamodule=data, verbose=False)
        predicted: Any = trainer.predict(model, datamodule=data)
    assert model.trained
    assert model.others
    assert torch.cat(predicted).tolist() == list(range(DATASET.num_nodes))


def test_anchors_are_trained_on(tmp_path: Path) -> None:
    data = GiglDataModule(
        DATASET,
        DistABLPLoader,
        num_neighbors=FANOUT,
        batch_size=64,
        num_workers=0,
        train={"input_nodes": "train", "supervision_edge_type": HOMOGENEOUS_EDGE},
    )
    model = Model()
    with quiet():
        lightning.Trainer(max_epochs=1, enable_checkpointing=False, **QUIET).fit(model, datamodule=data)
    assert model.trained


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
def test_a_trainer_fits_twice_and_saves_afterwards(tmp_path: Path) -> None:
    whole, _ = fit(tmp_path / "whole", {"max_epochs": 4}, {"every_n_epochs": 9}, seed=1)
    model, data = Model(), module_of(seed=1, num_workers=1)
    with quiet():
        trainer = lightning.Trainer(max_epochs=2, enable_checkpointing=False, **QUIET)
        trainer.fit(model, datamodule=data)
        trainer.save_checkpoint(tmp_path / "saved.ckpt")
        trainer.fit_loop.max_epochs = 4
        trainer.fit(model, datamodule=data)
        assert model.trained == whole.trained
        resumed = Model()
        again = lightning.Trainer(max_epochs=4, enable_checkpointing=False, **QUIET)
        again.fit(resumed, datamodule=module_of(seed=1), ckpt_path=tmp_path / "saved.ckpt")
    assert resumed.trained == whole.trained[len(whole.trained) // 2 :]


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
def test_loaders_that_are_built_anew_every_epoch_go_on(tmp_path: Path) -> None:
    whole, _ = fit(tmp_path / "whole", {"max_epochs": 3}, {"every_n_epochs": 9}, seed=1)
    anew, _ = fit(
        tmp_path / "anew",
        {"max_epochs": 3, "reload_dataloaders_every_n_epochs": 1},
        {"every_n_epochs": 9},
        seed=1,
        num_workers=1,
    )
    assert anew.trained == whole.trained
    assert anew.validated == whole.validated


def test_validation_of_an_epoch_is_the_same_with_and_without_a_sanity_check(tmp_path: Path) -> None:
    limit, every = {"max_epochs": 2}, {"every_n_epochs": 9}
    checked, _ = fit(tmp_path / "checked", limit, every, seed=1)
    unchecked, _ = fit(tmp_path / "unchecked", {**limit, "num_sanity_val_steps": 0}, every, seed=1)
    assert checked.validated == unchecked.validated
    assert checked.validated[0] != checked.validated[len(checked.validated) // 2]


@pytest.mark.usefixtures("no_leftovers")
def test_nothing_is_left_after_an_exception() -> None:
    class Failing(Model):
        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            raise RuntimeError("as planned")

    with quiet(), pytest.raises(RuntimeError, match="as planned"):
        lightning.Trainer(max_epochs=1, enable_checkpointing=False, **QUIET).fit(
            Failing(), datamodule=module_of(num_workers=1)
        )


def test_a_checkpoint_of_other_options_is_refused(tmp_path: Path) -> None:
    _, checkpoints = fit(tmp_path / "whole", {"max_epochs": 2}, {"every_n_epochs": 1})
    with pytest.raises(ValueError, match="batch_size is 16 here, 32 in the state"):
        fit(tmp_path / "other", {"max_epochs": 2}, {}, min(checkpoints.values()), batch_size=16)


def test_other_options_of_validation_are_not_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, checkpoints = fit(tmp_path / "whole", {"max_epochs": 2}, {"every_n_epochs": 1}, seed=1)
    val = {"input_nodes": "val", "batch_size": 16}
    fit(tmp_path / "other", {"max_epochs": 2}, {}, min(checkpoints.values()), seed=1, val=val)
    assert "batch_size is 16 here, 32 in the state" in caplog.text


def wrong(value: Any) -> Any:
    """Return what a type checker would refuse."""
    return value


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GiglDataModule(wrong([]), DistNeighborLoader), "dataset must be a DistDataset"),
        (lambda: module_of(train=[1]), r"train must be a mapping of a loader's arguments, got \[1\]"),
        (
            lambda: GiglDataModule(DATASET, wrong(DistDataset), train={}),
            "loader_class must be a class such as",
        ),
    ],
)
def test_wrong_arguments_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


def test_a_stage_without_arguments_is_named() -> None:
    with quiet(), pytest.raises(ValueError, match=r"no arguments for test= \(given: train, val\)"):
        lightning.Trainer(enable_checkpointing=False, **QUIET).test(Model(), datamodule=module_of())


def test_without_a_trainer_loaders_can_be_built_by_hand() -> None:
    data = module_of()
    with data.train_dataloader() as loader:
        assert len(list(loader)) == len(loader)
    data.teardown()


class BothTypes(Model):
    """Records the seeds of each node type."""

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        self.trained.append(
            (self.current_epoch, [*batch["user"].batch.tolist(), *batch["item"].batch.tolist()])
        )
        return self.inner.weight.square().mean()


def test_seeds_of_several_types_are_trained_on() -> None:
    data = GiglDataModule(
        DistDataset.from_pyg(heterogeneous()),
        DistNeighborLoader,
        num_neighbors=FANOUT,
        batch_size=32,
        num_workers=0,
        train={"input_nodes": {"user": range(30), "item": range(40)}, "shuffle": True, "seed": 3},
    )
    model = BothTypes()
    with quiet():
        lightning.Trainer(max_epochs=2, enable_checkpointing=False, **QUIET).fit(model, datamodule=data)
    for epoch in range(2):
        seen = [node for of_epoch, seeds in model.trained if of_epoch == epoch for node in seeds]
        assert sorted(seen) == sorted([*range(30), *range(40)])


@pytest.mark.slow
def test_only_this_module_needs_lightning(tmp_path: Path) -> None:
    program = """
import sys
import gigl_loader
from gigl_loader import DistNeighborLoader, write_embeddings
assert not [name for name in sys.modules if name.partition(".")[0] in ("lightning", "pytorch_lightning")]
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if "lightning" in name else find(name)
try:
    import gigl_loader.lightning
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "gigl_loader.lightning needs Lightning: pip install lightning\n"


SCRIPT = """
import json, os, signal, sys
import torch
import pytorch_lightning as lightning
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.multiprocessing import ProcessExitedException
from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.lightning import GiglDataModule


class Model(lightning.LightningModule):
    def __init__(self, folder, killed_at):
        super().__init__()
        self.inner = torch.nn.Linear(6, 4)
        self.folder, self.killed_at = folder, killed_at

    def on_train_start(self):
        self.log_file = open(f"{self.folder}/{self.global_rank}.jsonl", "w")

    def training_step(self, batch, index):
        if self.global_step == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        line = {"epoch": self.current_epoch, "step": self.global_step, "places": batch.input_id.tolist()}
        print(json.dumps(line), file=self.log_file, flush=True)
        return self.inner(batch.x).square().mean()

    def validation_step(self, batch, index):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def open_graph():
    return DistDataset.open("graph")


def fit(folder, devices, killed_at=-1, checkpoint=None):
    os.mkdir(folder)
    every, strategy = json.loads(sys.argv[2]), sys.argv[4]
    save = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, **every)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=devices, strategy=strategy, max_epochs=3, logger=False, callbacks=[save],
        enable_progress_bar=False, enable_model_summary=False,
    )
    data = GiglDataModule(
        open_graph, DistNeighborLoader, num_neighbors=[3, 2], batch_size=10, num_workers=1,
        train={"input_nodes": torch.arange(290), "shuffle": True},
        val={"input_nodes": "val"} if strategy == "ddp_fork" else None,
    )
    trainer.fit(Model(folder, killed_at), datamodule=data, ckpt_path=checkpoint)


if __name__ == "__main__":
    try:
        fit("killed", 2, int(sys.argv[1]))
    except ProcessExitedException as error:
        print(error.signal_name)
    os.environ.pop("MASTER_PORT", None)
    fit("resumed", int(sys.argv[5]), checkpoint=f"killed/step={sys.argv[3]}.ckpt")
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize(
    ("killed_at", "every", "saved", "strategy", "devices"),
    [
        (8, {"every_n_train_steps": 3}, 6, "ddp_fork", 2),
        (20, {"every_n_epochs": 1}, 15, "ddp_fork", 2),
        (8, {"every_n_train_steps": 3}, 6, "ddp_spawn", 2),
        (8, {"every_n_train_steps": 3}, 6, "ddp_fork", 4),
        (8, {"every_n_train_steps": 3}, 6, "ddp_fork", 1),
        (20, {"every_n_epochs": 1}, 15, "ddp_fork", 3),
    ],
    ids=["middle", "end of an epoch", "spawned", "on four", "on one", "end of an epoch, on three"],
)
def test_two_ranks_that_were_killed_see_each_seed_once(
    *, killed_at: int, every: dict[str, Any], saved: int, strategy: str, devices: int, tmp_path: Path
) -> None:
    """Without a seed, too: that of the first run is in the checkpoint."""
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph", num_partitions=2)
    (tmp_path / "train.py").write_text(SCRIPT)
    arguments = [str(killed_at), json.dumps(every), str(saved), strategy, str(devices)]
    lines = killed_and_resumed(tmp_path, *arguments, saved=saved)
    check_each_seed_once(lines, epochs=3, seeds=290)
