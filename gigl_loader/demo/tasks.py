"""Tasks of the demo: node classification, and link prediction.

A task has the tables of a graph, loaders and a model for it, the loss and scores of a batch, and texts of
scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gigl_loader.demo.choices import Choices, Recipe
from gigl_loader.demo.datasets import Demonstration
from gigl_loader.demo.model import LinkScorer, sage
from gigl_loader.demo.training import Judged
from gigl_loader.graph.schema import HOMOGENEOUS_NODE, EdgeSplits, EdgeType, GraphSchema
from gigl_loader.loaders.dataset import Dataset
from gigl_loader.loaders.link import DistLinkNeighborLoader
from gigl_loader.loaders.neighbor import DistNeighborLoader
from gigl_loader.partition import GraphTables, tables_from_pyg
from gigl_loader.splits import edges_by_split


def _loader_options(choices: Choices, recipe: Recipe, split: str) -> dict[str, Any]:
    return {
        "batch_size": recipe.batch_size,
        "shuffle": split == "train",
        "seed": choices.seed,
        "num_workers": 1 if choices.num_servers else choices.num_workers,
        "multiprocessing_context": choices.start_method,
        "device": choices.device,
        "feature_memory": choices.feature_memory,
    }


class NodeTask:
    """Classification of nodes; its score is the accuracy."""

    unit = "seeds"
    columns = ("train", "val")

    def __init__(self, demonstration: Demonstration, choices: Choices) -> None:
        self.title = demonstration.title
        self.recipe = choices.recipe(demonstration.recipe)
        self._demonstration = demonstration
        self._choices = choices

    def tables(self) -> GraphTables:
        return tables_from_pyg(self._demonstration.data)

    def counts(self, schema: GraphSchema) -> Mapping[str, int]:
        """Return the number of seeds in each split."""
        return schema.nodes[HOMOGENEOUS_NODE if schema.homogeneous else self._demonstration.target].splits

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
            **_loader_options(self._choices, self.recipe, split),
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


def ranks(scores: Tensor) -> Tensor:
    """Return the rank of column 0 in each row, 1 for the highest score.

    Candidates with the same score share the mean of their ranks, so that a constant score ranks in the
    middle. Ranks are filtered where the other columns are no edges of the graph, as strict negatives are.

    ``scores``
        Float [M, 1 + A]: the true destination of each link, then A candidates.
    Returns float32 [M].
    """
    true, others = scores[:, :1], scores[:, 1:]
    return 1 + (others > true).sum(dim=1) + 0.5 * (others == true).sum(dim=1)


def rank_sums(scores: Tensor) -> dict[str, Tensor]:
    """Return sums over links, scalars: of the reciprocal rank, and of ranks that are at most 1 and 10.

    Divided by the number of links, they are the mean reciprocal rank, hits@1 and hits@10. ``scores`` are
    as in :func:`ranks`.
    """
    found = ranks(scores)
    return {"mrr": found.reciprocal().sum(), **{f"hits@{best}": (found <= best).sum() for best in (1, 10)}}


NEGATIVES = 4
"""Negative destinations of a link in training."""
CANDIDATES = 50
"""Destinations that a link of val or test is ranked among. None of them is an edge of the graph."""
TRAIN_LINKS, HELD_OUT_LINKS = 60_000, 3_000
"""Largest number of links to learn in an epoch, and of links of val and of test: an epoch takes seconds."""


class LinkTask:
    """Prediction of the destinations of edges; its scores are the mean reciprocal rank and hits@k.

    ``popularity_...`` are the scores of a guess that ranks destinations by their number of edges.
    """

    unit = "links"
    columns = ("MRR", "popular", "hits@10", "popular")

    def __init__(self, demonstration: Demonstration, choices: Choices) -> None:
        self._links = demonstration.links
        self.title = self._links.title or f"{demonstration.title}: will A be linked with B?"
        self.recipe = choices.recipe(self._links.recipe)
        self._data: Any = demonstration.data
        self._choices = choices

    def tables(self) -> GraphTables:
        """Return tables that hold out the edges of val and test, in both directions."""
        splits = self._splits()
        nodes = self._data if self._homogeneous else self._data[self._links.edge_type[2]]
        nodes.popularity = self._popularity(splits[self._links.edge_type])
        return replace(tables_from_pyg(self._data), splits=splits, message_edges=("train",))

    def counts(self, schema: GraphSchema) -> Mapping[str, int]:
        """Return the number of links in each split."""
        splits = schema.edges[self._links.edge_type].splits
        return {} if splits is None else splits.counts

    def facts(self, schema: GraphSchema) -> dict[str, Any]:
        links = dict(self.counts(schema))
        return {"edge_type": self._links.edge_type, "links": links, "candidates": 1 + CANDIDATES}

    def model(self, schema: GraphSchema) -> nn.Module:
        width = self.recipe.hidden
        return LinkScorer(sage(schema, self.recipe, target=self._links.edge_type[0], out=width), width)

    def open_loader(self, dataset: Dataset, split: str) -> DistLinkNeighborLoader:
        options = _loader_options(self._choices, self.recipe, split)
        negatives: dict[str, Any] = {"mode": "triplet", "amount": NEGATIVES}
        if split != "train":
            negatives = {"mode": "triplet", "amount": CANDIDATES, "strict": True}
            options["batch_size"] = -(-self.recipe.batch_size // 8)  # Candidates are seeds, too.
        return DistLinkNeighborLoader(
            dataset,
            list(self.recipe.fanout),
            (self._links.edge_type, split),
            neg_sampling=negatives,
            exclude_targets=True,
            reverse_edge_types={self._links.edge_type: self._links.reverse},
            **options,
        )

    def learn(self, model: nn.Module, batch: Any) -> Judged:
        scores = model(batch, *self._pairs(batch))
        return Judged(loss=_loss(scores), seeds=len(scores), sums={})

    def judge(self, model: nn.Module, batch: Any) -> Judged:
        source, destinations = self._pairs(batch)
        scores = model(batch, source, destinations)
        nodes = batch if self._homogeneous else batch[self._links.edge_type[2]]
        guessed = rank_sums(nodes.popularity[destinations])
        sums = {**rank_sums(scores), **{f"popularity_{name}": each for name, each in guessed.items()}}
        return Judged(loss=_loss(scores), seeds=len(scores), sums=sums)

    def cells(self, train: Mapping[str, float], val: Mapping[str, float]) -> list[str]:
        del train
        mrr = [f"{val[name]:.3f}" for name in ("mrr", "popularity_mrr")]
        hits = [f"{val[name]:.2%}" for name in ("hits@10", "popularity_hits@10")]
        return [*mrr, *hits]

    def verdict(self, test: Mapping[str, float]) -> str:
        model, guess = (
            f"MRR {test[f'{who}mrr']:.3f}, hits@1 {test[f'{who}hits@1']:.2%}, "
            f"hits@10 {test[f'{who}hits@10']:.2%}"
            for who in ("", "popularity_")
        )
        return f"test {model} of {1 + CANDIDATES} candidates; by popularity {guess}"

    @property
    def _homogeneous(self) -> bool:
        return not hasattr(self._data, "node_types")

    def _edge_index(self) -> Tensor:
        edges: Tensor = (self._data if self._homogeneous else self._data[self._links.edge_type]).edge_index
        return edges

    def _splits(self) -> dict[EdgeType, EdgeSplits]:
        """Return the rules of the splits, by which an edge and its reverse fall into the same one."""
        edge_type, reverse = self._links.edge_type, self._links.reverse
        edges = max(self._edge_index().shape[1], 1)
        held_out = min(0.1, HELD_OUT_LINKS / edges)
        fractions = {
            "train": min(1 - 2 * held_out, TRAIN_LINKS / edges),
            "val": held_out,
            "test": held_out,
        }
        rule = EdgeSplits(fractions=fractions, seed=self._choices.seed)
        if reverse == edge_type:
            return {edge_type: replace(rule, hashed="both")}
        return {edge_type: rule, reverse: replace(rule, hashed="dst,src")}

    def _popularity(self, rule: EdgeSplits) -> Tensor:
        """Return the number of edges that lead to each node, without those of val and test: float32 [N]."""
        src, dst = self._edge_index().numpy()
        splits = edges_by_split(rule, np.ascontiguousarray(src), np.ascontiguousarray(dst))
        known = ~(splits["val"] | splits["test"])
        nodes = self._data if self._homogeneous else self._data[self._links.edge_type[2]]
        counts = np.bincount(dst[known], minlength=len(nodes.x))
        return torch.from_numpy(counts.astype(np.float32))

    def _pairs(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return local sources [M] and destinations [M, 1 + A], the true one first."""
        source, _, destination = self._links.edge_type
        sources, destinations = (batch, batch) if self._homogeneous else (batch[source], batch[destination])
        true = destinations.dst_pos_index[:, None]
        return sources.src_index, torch.cat([true, destinations.dst_neg_index], dim=1)


def _loss(scores: Tensor) -> Tensor:
    """Return the cross entropy of the true destination, in column 0, among all."""
    return nn.functional.cross_entropy(scores, scores.new_zeros(len(scores), dtype=torch.int64))


Task = NodeTask | LinkTask


def task_of(demonstration: Demonstration, choices: Choices) -> Task:
    """Return the chosen task on a data set."""
    return (NodeTask if choices.task == "node" else LinkTask)(demonstration, choices)
