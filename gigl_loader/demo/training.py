"""Training through the loader, with a breakdown of where the time of an epoch goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

    from gigl_loader.demo.tasks import Task
    from gigl_loader.loaders.base import BaseDistLoader

    Watch = Callable[[str, BaseDistLoader], Iterator[Any]]
    """Iterates a loader and shows its progress."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judged:
    """Loss and scores of one batch."""

    loss: Tensor
    """Mean over the seeds, a scalar."""
    seeds: int
    """Nodes or links."""
    sums: Mapping[str, Tensor]
    """Scores by name, scalars, added up over the seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReport:
    """Loss, scores and seconds of one epoch of training."""

    epoch: int
    loss: float
    train: dict[str, float]
    """Scores of the batches that were learnt, at the time they were learnt."""
    val: dict[str, float]
    seconds: float
    """Of training, without evaluation. The three parts below add up to it."""
    waiting: float
    """For a batch to arrive. Includes sampling where the trainer samples."""
    copying: float
    """From a frame to tensors on the device, ``edge_index`` expanded."""
    computing: float
    """Forward, backward and optimizer step."""
    seeds: int
    """Nodes or links that were learnt."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values: scores as ``train_NAME`` and ``val_NAME``."""
        plain = asdict(self)
        scores = {
            f"{part}_{name}": value for part in ("train", "val") for name, value in plain.pop(part).items()
        }
        return {"epoch": plain.pop("epoch"), "loss": plain.pop("loss"), **scores, **plain}


class Stopwatch:
    """Adds up the time between laps under the name of each lap."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Count the time since the lap before as ``name``."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now


@dataclass(slots=True)
class RunningMean:
    """Running mean of the loss and the scores over batches."""

    seeds: int = 0
    _sums: dict[str, float] = field(default_factory=dict)

    def add(self, judged: Judged) -> None:
        self.seeds += judged.seeds
        for name, value in {"loss": judged.loss * judged.seeds, **judged.sums}.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.item()

    def result(self) -> dict[str, float]:
        """Return ``loss`` and the scores by name; a loss of 0 where there were no seeds."""
        return {"loss": 0.0, **{name: value / self.seeds for name, value in self._sums.items()}}


def train(
    model: nn.Module,
    task: Task,
    *,
    train_loader: BaseDistLoader,
    val_loader: BaseDistLoader,
    watch: Watch,
) -> Iterator[EpochReport]:
    """Train for ``task.recipe.epochs`` epochs, and yield a report after each."""
    optimizer = torch.optim.Adam(model.parameters(), lr=task.recipe.lr)
    for epoch in range(1, task.recipe.epochs + 1):
        model.train()
        clock, mean = Stopwatch(), RunningMean()
        copied = _seconds_copying(train_loader)
        for batch in watch(f"epoch {epoch}", train_loader):
            clock.lap("waiting")
            judged = task.learn(model, batch)
            optimizer.zero_grad()
            judged.loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            mean.add(judged)
            clock.lap("computing")
        clock.lap("waiting")
        copying = _seconds_copying(train_loader) - copied
        learnt = mean.result()
        yield EpochReport(
            epoch=epoch,
            loss=learnt.pop("loss"),
            train=learnt,
            val=evaluate(model, task, val_loader, watch=watch),
            seconds=sum(clock.seconds.values()),
            waiting=clock.seconds["waiting"] - copying,
            copying=copying,
            computing=clock.seconds.get("computing", 0.0),
            seeds=mean.seeds,
        )


@torch.no_grad()
def evaluate(model: nn.Module, task: Task, loader: BaseDistLoader, *, watch: Watch) -> dict[str, float]:
    """Return the scores of the model on the seeds of a loader."""
    model.eval()
    mean = RunningMean()
    for batch in watch("evaluate", loader):
        mean.add(task.judge(model, batch))
    scores = mean.result()
    del scores["loss"]
    return scores


def _seconds_copying(loader: BaseDistLoader) -> float:
    """Return the seconds that the loader has spent on turning frames into tensors on the device."""
    stats = loader.stats()
    return float(stats["seconds_copying"] + stats["seconds_collating"])
