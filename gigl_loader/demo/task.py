"""Seam between the job of the demo and its tasks: node classification and link prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gigl_loader.demo.choices import Choices, Recipe
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.loaders.base import BaseDistLoader
    from gigl_loader.loaders.dataset import Dataset
    from gigl_loader.partition import GraphTables

__all__ = ["Judged", "Task", "loader_options"]


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
