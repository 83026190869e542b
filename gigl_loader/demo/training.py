"""Training through the loader, with a breakdown of where the time of an epoch goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor

    from gigl_loader.demo.choices import Choices, Recipe
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.loaders.base import BaseDistLoader
    from gigl_loader.loaders.dataset import Dataset
    from gigl_loader.partition import GraphTables


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judged:
    """One batch as a model sees it."""

    loss: Tensor
    """Mean over the seeds, a scalar."""
    seeds: int
    """Nodes or links."""
    sums: Mapping[str, Tensor]
    """Scores by name, scalars, added up over the seeds."""


class Task(Protocol):
    """Task on a data set: tables, model, loaders, and how scores are shown."""

    @property
    def title(self) -> str: ...
    @property
    def recipe(self) -> Recipe: ...
    @property
    def unit(self) -> str:
        """Plural noun for what a batch holds."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Headings of the scores of an epoch."""

    def tables(self) -> GraphTables:
        """Return the tables from which the graph is built."""

    def facts(self, schema: GraphSchema) -> dict[str, Any]:
        """Return what the report says of the task, as plain values."""

    def model(self, schema: GraphSchema) -> nn.Module:
        """Return an untrained model."""

    def open_loader(self, dataset: Dataset, split: str) -> BaseDistLoader:
        """Return a loader of ``"train"`` (shuffled), ``"val"`` or ``"test"``."""

    def learn(self, model: nn.Module, batch: Any) -> Judged:
        """Return the loss to minimise, with scores where a training batch has them."""

    def judge(self, model: nn.Module, batch: Any) -> Judged:
        """Return how well the model does on a batch of ``"val"`` or ``"test"``."""

    def cells(self, train: Mapping[str, float], val: Mapping[str, float]) -> list[str]:
        """Return the scores of an epoch as texts, one for each of ``columns``."""

    def verdict(self, test: Mapping[str, float]) -> str:
        """Return the test scores in one line."""


def loader_options(choices: Choices, recipe: Recipe, split: str) -> dict[str, Any]:
    """Return the arguments that loaders of every task have."""
    return {
        "batch_size": recipe.batch_size,
        "shuffle": split == "train",
        "seed": choices.seed,
        "num_workers": 1 if choices.num_servers else choices.num_workers,
        "device": choices.device,
    }


class Loader(Protocol):
    """What training asks of a loader."""

    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...
    def stats(self) -> dict[str, Any]: ...


Watch = Callable[[str, Loader], Iterator[Any]]
"""Iterates a loader and shows how far it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Means over some seeds."""

    loss: float
    scores: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReport:
    """One epoch of training: how well, and how long what took (seconds)."""

    epoch: int
    loss: float
    train: dict[str, float]
    """Scores of the batches that were learnt, while they were."""
    val: dict[str, float]
    seconds: float
    """Of training; evaluation is not in it. The three parts below add up to it."""
    waiting: float
    """For a batch to arrive; where the trainer samples itself, sampling is in it."""
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


class RunningMean:
    """Running mean of the loss and the scores over batches."""

    def __init__(self) -> None:
        self.seeds = 0
        self._loss = 0.0
        self._sums: dict[str, float] = {}

    def add(self, judged: Judged) -> None:
        self.seeds += judged.seeds
        self._loss += judged.loss.item() * judged.seeds
        for name, value in judged.sums.items():
            self._sums[name] = self._sums.get(name, 0) + value.item()

    def result(self) -> Evaluation:
        seeds = max(self.seeds, 1)
        scores = {name: value / seeds for name, value in self._sums.items()}
        return Evaluation(loss=self._loss / seeds, scores=scores)


def train(
    model: nn.Module, task: Task, *, train_loader: Loader, val_loader: Loader, watch: Watch
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
            loss=learnt.loss,
            train=learnt.scores,
            val=evaluate(model, task, val_loader, watch=watch).scores,
            seconds=sum(clock.seconds.values()),
            waiting=clock.seconds["waiting"] - copying,
            copying=copying,
            computing=clock.seconds.get("computing", 0.0),
            seeds=mean.seeds,
        )


@torch.no_grad()
def evaluate(model: nn.Module, task: Task, loader: Loader, *, watch: Watch) -> Evaluation:
    """Return how well the model does on the seeds of a loader."""
    model.eval()
    mean = RunningMean()
    for batch in watch("evaluate", loader):
        mean.add(task.judge(model, batch))
    return mean.result()


def _seconds_copying(loader: Loader) -> float:
    """Return the seconds that the loader has spent on turning frames into tensors on the device."""
    stats = loader.stats()
    return float(stats["seconds_copying"] + stats["seconds_collating"])
