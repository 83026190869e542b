"""Training through the loader, with a breakdown of where the time of an epoch goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gigl_loader.demo.choices import Recipe

__all__ = ["EpochReport", "Evaluation", "Stopwatch", "evaluate", "train"]


class Loader(Protocol):
    """What training asks of a loader."""

    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...
    def stats(self) -> dict[str, Any]: ...


Watch = Callable[[str, Loader], Iterator[Any]]
"""Iterates a loader and shows how far it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """How well a model does on some seeds."""

    loss: float
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReport:
    """One epoch of training: how well, and how long what took (seconds)."""

    epoch: int
    loss: float
    train_accuracy: float
    val_accuracy: float
    seconds: float
    """Of training; evaluation is not in it. The three parts below add up to it."""
    waiting: float
    """For a batch to arrive; where the trainer samples itself, sampling is in it."""
    copying: float
    """From a frame to tensors on the device, ``edge_index`` expanded."""
    computing: float
    """Forward, backward and optimizer step."""
    seeds: int


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
    """Running mean of the loss and share of right answers over batches."""

    def __init__(self) -> None:
        self.seeds = 0
        self._loss = 0.0
        self._right = 0

    def add(self, logits: Tensor, labels: Tensor, loss: Tensor) -> None:
        self.seeds += len(labels)
        self._loss += loss.item() * len(labels)
        self._right += int((logits.argmax(dim=1) == labels).sum())

    def result(self) -> Evaluation:
        seeds = max(self.seeds, 1)
        return Evaluation(loss=self._loss / seeds, accuracy=self._right / seeds)


def train(
    model: nn.Module,
    *,
    target: str,
    recipe: Recipe,
    train_loader: Loader,
    val_loader: Loader,
    watch: Watch,
) -> Iterator[EpochReport]:
    """Train for ``recipe.epochs`` epochs, and yield a report after each."""
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.lr)
    for epoch in range(1, recipe.epochs + 1):
        model.train()
        clock, mean = Stopwatch(), RunningMean()
        copied = _seconds_copying(train_loader)
        for batch in watch(f"epoch {epoch}", train_loader):
            clock.lap("waiting")
            logits, labels = model(batch), _labels(batch, target)
            loss = nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            mean.add(logits, labels, loss)
            clock.lap("computing")
        clock.lap("waiting")
        copying = _seconds_copying(train_loader) - copied
        learnt = mean.result()
        yield EpochReport(
            epoch=epoch,
            loss=learnt.loss,
            train_accuracy=learnt.accuracy,
            val_accuracy=evaluate(model, val_loader, target=target, watch=watch).accuracy,
            seconds=sum(clock.seconds.values()),
            waiting=clock.seconds["waiting"] - copying,
            copying=copying,
            computing=clock.seconds.get("computing", 0.0),
            seeds=mean.seeds,
        )


@torch.no_grad()
def evaluate(model: nn.Module, loader: Loader, *, target: str, watch: Watch) -> Evaluation:
    """Return how well the model does on the seeds of a loader."""
    model.eval()
    mean = RunningMean()
    for batch in watch("evaluate", loader):
        logits, labels = model(batch), _labels(batch, target)
        mean.add(logits, labels, nn.functional.cross_entropy(logits, labels))
    return mean.result()


def _labels(batch: Any, target: str) -> Tensor:
    store = batch[target] if hasattr(batch, "node_types") else batch
    labels: Tensor = store.y[: store.batch_size]
    return labels


def _seconds_copying(loader: Loader) -> float:
    """Return the seconds that the loader has spent on turning frames into tensors on the device."""
    stats = loader.stats()
    return float(stats["seconds_copying"] + stats["seconds_collating"])
