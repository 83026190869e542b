"""The main job: partition a data set, open it, train through worker processes, test."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from gigl_loader.demo.choices import Choices, Recipe
from gigl_loader.demo.datasets import Demonstration, load_demonstration
from gigl_loader.demo.model import HeteroSAGE, HomogeneousSAGE
from gigl_loader.demo.place import ServerReport, open_place
from gigl_loader.demo.training import EpochReport, Loader, evaluate, train
from gigl_loader.graph.schema import GraphSchema
from gigl_loader.loaders.arguments import target_device
from gigl_loader.loaders.dataset import Dataset
from gigl_loader.loaders.neighbor import DistNeighborLoader
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.partition.job import Progress

__all__ = ["Outcome", "Screen", "run_demo"]


class Screen(Protocol):
    """Who shows how the job goes."""

    def building(self, title: str) -> AbstractContextManager[Progress | None]: ...
    def built(self, schema: GraphSchema, seconds: float) -> None: ...
    def training(self, recipe: Recipe, choices: Choices) -> None: ...
    def watch(self, what: str, loader: Loader) -> Iterator[Any]: ...
    def epoch(self, report: EpochReport) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the job came to."""

    dataset: str
    nodes: int
    edges: int
    classes: int
    build_seconds: float
    recipe: Recipe
    num_workers: int
    servers: list[ServerReport]
    """One for each storage server."""
    reports: list[EpochReport]
    test_accuracy: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run_demo(choices: Choices, folder: Path, screen: Screen) -> Outcome:
    """Build the graph in ``folder / "graph"``, train a model on it and return how it did."""
    torch.manual_seed(choices.seed)
    with _threads_beside(choices.num_workers * max(choices.num_servers, 1)):
        return _run(choices, folder, screen)


def _run(choices: Choices, folder: Path, screen: Screen) -> Outcome:
    if choices.device is not None:
        target_device(choices.device, None, local_rank=0)  # a wrong one is told before any work
    demonstration = load_demonstration(
        choices.dataset, seed=choices.seed, cache=folder / "download", synthetic=choices.synthetic
    )
    recipe = choices.recipe(demonstration.recipe)
    with screen.building(demonstration.title) as progress:
        schema, build_seconds = _build(demonstration, folder / "graph", choices.num_partitions, progress)
    screen.built(schema, build_seconds)
    screen.training(recipe, choices)
    with ExitStack() as stack:
        dataset, ask_servers = stack.enter_context(open_place(choices, folder / "graph"))
        loaders = {
            split: stack.enter_context(_loader(dataset, split, demonstration.target, recipe, choices))
            for split in ("train", "val", "test")
        }
        model = _model(schema, demonstration, recipe).to(loaders["train"].device)
        reports = []
        for report in train(
            model,
            target=demonstration.target,
            recipe=recipe,
            train_loader=loaders["train"],
            val_loader=loaders["val"],
            watch=screen.watch,
        ):
            screen.epoch(report)
            reports.append(report)
        tested = evaluate(model, loaders["test"], target=demonstration.target, watch=screen.watch)
        servers = ask_servers()
    return Outcome(
        dataset=choices.dataset,
        nodes=sum(nodes.count for nodes in schema.nodes.values()),
        edges=sum(edges.count for edges in schema.edges.values()),
        classes=demonstration.num_classes,
        build_seconds=build_seconds,
        recipe=recipe,
        num_workers=choices.num_workers,
        servers=servers,
        reports=reports,
        test_accuracy=tested.accuracy,
    )


@contextmanager
def _threads_beside(num_workers: int) -> Iterator[None]:
    """Leave a core to each who samples: torch's threads wait for each other, and badly without a core."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(before - num_workers, 1))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _build(
    demonstration: Demonstration, folder: Path, num_partitions: int, progress: Progress | None
) -> tuple[GraphSchema, float]:
    start = time.perf_counter()
    tables = tables_from_pyg(demonstration.data)
    schema = build_graph(tables, folder, num_partitions=num_partitions, progress=progress)
    return schema, time.perf_counter() - start


def _loader(
    dataset: Dataset, split: str, target: str, recipe: Recipe, choices: Choices
) -> DistNeighborLoader:
    return DistNeighborLoader(
        dataset,
        list(recipe.fanout),
        split if dataset.schema.homogeneous else (target, split),
        batch_size=recipe.batch_size,
        shuffle=split == "train",
        seed=choices.seed,
        num_workers=1 if choices.num_servers else choices.num_workers,
        device=choices.device,
    )


def _model(schema: GraphSchema, demonstration: Demonstration, recipe: Recipe) -> nn.Module:
    """Return an untrained GraphSAGE that fits the graph, one layer per hop."""
    dims = {node_type: nodes.columns["x"].shape[0] for node_type, nodes in schema.nodes.items()}
    hops, classes = len(recipe.fanout), demonstration.num_classes
    if schema.homogeneous:
        dim = dims[demonstration.target]
        return HomogeneousSAGE(dim=dim, hidden=recipe.hidden, classes=classes, hops=hops)
    return HeteroSAGE(
        dims=dims,
        edge_types=schema.edges,
        target=demonstration.target,
        hidden=recipe.hidden,
        classes=classes,
        hops=hops,
    )
