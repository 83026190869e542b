"""Node classification: the label ``y`` of the nodes of one type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from gigl_loader.demo.choices import Choices
from gigl_loader.demo.datasets import Demonstration
from gigl_loader.demo.model import sage
from gigl_loader.demo.task import Judged, loader_options
from gigl_loader.graph.schema import GraphSchema
from gigl_loader.loaders.dataset import Dataset
from gigl_loader.loaders.neighbor import DistNeighborLoader
from gigl_loader.partition import GraphTables, tables_from_pyg

__all__ = ["NodeTask"]


class NodeTask:
    """Tells the classes of nodes; its score is the accuracy."""

    unit = "seeds"
    columns = ("train", "val")

    def __init__(self, demonstration: Demonstration, choices: Choices) -> None:
        self.title = demonstration.title
        self.recipe = choices.recipe(demonstration.recipe)
        self._demonstration = demonstration
        self._choices = choices

    def tables(self) -> GraphTables:
        return tables_from_pyg(self._demonstration.data)

    def facts(self, schema: GraphSchema) -> dict[str, Any]:
        del schema
        return {"classes": self._demonstration.num_classes}

    def model(self, schema: GraphSchema) -> nn.Module:
        demonstration = self._demonstration
        return sage(schema, self.recipe, target=demonstration.target, out=demonstration.num_classes)

    def open_loader(self, dataset: Dataset, split: str) -> DistNeighborLoader:
        return DistNeighborLoader(
            dataset,
            list(self.recipe.fanout),
            split if dataset.schema.homogeneous else (self._demonstration.target, split),
            **loader_options(self._choices, self.recipe, split),
        )

    def judge(self, model: nn.Module, batch: Any) -> Judged:
        logits, labels = model(batch), self._labels(batch)
        return Judged(
            loss=nn.functional.cross_entropy(logits, labels),
            seeds=len(labels),
            sums={"accuracy": (logits.argmax(dim=1) == labels).sum()},
        )

    learn = judge

    def cells(self, train: Mapping[str, float], val: Mapping[str, float]) -> list[str]:
        return [f"{scores['accuracy']:.2%}" for scores in (train, val)]

    def verdict(self, test: Mapping[str, float]) -> str:
        return f"test accuracy {test['accuracy']:.2%}"

    def _labels(self, batch: Any) -> Tensor:
        store = batch[self._demonstration.target] if hasattr(batch, "node_types") else batch
        labels: Tensor = store.y[: store.batch_size]
        return labels
