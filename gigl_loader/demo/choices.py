"""Options of the demo, as frozen values. Imports nothing heavy, so that mistakes are reported at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from errno import ENOENT
from pathlib import Path
from typing import Literal

from gigl_loader.options import FeatureOptions


def dataset_kind(name: str) -> tuple[str, str]:
    """Split a name such as ``npz:PATH`` into kind and argument, which is empty where the kind takes none."""
    kind, _, argument = name.partition(":")
    kinds = ("npz", "planetoid", "ogbn") if argument else ("digits", "debian", "synthetic")
    if kind not in kinds:
        raise ValueError(
            f"unknown data set {name!r}: choose digits, debian, synthetic, "
            "npz:PATH, planetoid:NAME or ogbn:NAME"
        )
    return kind, argument


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Training settings with which a model learns a data set well."""

    epochs: int = 10
    batch_size: int = 512
    fanout: tuple[int, ...] = (10, 5)
    hidden: int = 128
    lr: float = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSize:
    """Size of the synthetic graph."""

    nodes: int = 100_000
    edges: int = 1_500_000
    dim: int = 64

    def __post_init__(self) -> None:
        if self.nodes < 100 or self.edges < 1 or self.dim < 1:
            raise ValueError(
                "a synthetic graph needs at least 100 nodes, an edge and one feature, "
                f"got --nodes {self.nodes} --edges {self.edges} --dim {self.dim}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The user's options. ``None`` leaves a choice to the task, or to the data set's recipe."""

    task: Literal["node", "link"] = "node"
    """Classes of nodes, or links to predict."""
    dataset: str | None = None
    num_workers: int = 2
    """Sampling processes, of each server threads. 0 samples in the trainer's process."""
    start_method: str = "spawn"
    """Of sampling processes."""
    num_servers: int = 0
    """Storage servers that hold the graph. 0: the trainer opens it."""
    transport: Literal["auto", "ring", "network", "flight"] = "auto"
    """Of batches from storage servers."""
    feature_memory: str = "auto"
    """Memory that features may take."""
    seed: int = 0
    device: str | None = None
    num_partitions: int = 2
    synthetic: SyntheticSize | None = None
    epochs: int | None = None
    batch_size: int | None = None
    fanout: tuple[int, ...] | None = None
    hidden: int | None = None
    lr: float | None = None

    def __post_init__(self) -> None:
        kind, argument = ("", "") if self.dataset is None else dataset_kind(self.dataset)
        if kind == "npz" and not Path(argument).exists():
            raise FileNotFoundError(ENOENT, "no such file", argument)
        if self.num_servers > self.num_partitions:
            raise ValueError(
                f"{self.num_servers} servers need as many partitions, got --num-partitions "
                f"{self.num_partitions}"
            )
        FeatureOptions.read(self.feature_memory, None, "auto", "census")
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise ValueError(f"--lr must be finite and above 0, got {self.lr}")

    def recipe(self, recipe: Recipe) -> Recipe:
        """Return the data set's recipe with the user's choices in place of its own."""
        names = ("epochs", "batch_size", "fanout", "hidden", "lr")
        chosen = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return replace(recipe, **chosen)
