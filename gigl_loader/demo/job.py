"""The main job: partition a data set, open it, train through worker processes, test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from gigl_loader.dataset import DistDataset
from gigl_loader.demo.choices import Choices, Recipe
from gigl_loader.demo.datasets import default_dataset, load_demonstration
from gigl_loader.demo.screen import Screen
from gigl_loader.demo.tasks import task_of
from gigl_loader.demo.training import EpochReport, evaluate, train
from gigl_loader.loaders.transfer import target_device
from gigl_loader.partition import build_graph

_SPLITS = ("train", "val", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Everything that the job found."""

    dataset: str
    nodes: int
    edges: int
    facts: dict[str, Any]
    """Of the task."""
    build_seconds: float
    recipe: Recipe
    num_workers: int
    servers: list[dict[str, Any]]
    """Totals of each storage server: batches, bytes, transport, seconds waiting and sampling."""
    rows: dict[str, Any]
    """``stats()["rows"]`` of the loader that trained."""
    reports: list[EpochReport]
    test: dict[str, float]
    """Scores by name."""
    verdict: str
    """The test scores in one line."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values: scores as ``test_NAME``, facts beside the other values."""
        return {
            "dataset": self.dataset,
            "nodes": self.nodes,
            "edges": self.edges,
            **self.facts,
            "build_seconds": self.build_seconds,
            "recipe": asdict(self.recipe),
            "num_workers": self.num_workers,
            "servers": self.servers,
            "rows": self.rows,
            "reports": [report.to_json() for report in self.reports],
            **{f"test_{name}": value for name, value in self.test.items()},
        }


def run_demo(choices: Choices, folder: Path, screen: Screen) -> Outcome:
    """Build the graph in ``folder / "graph"``, train a model on it and return how it did."""
    torch.manual_seed(choices.seed)
    with _threads_beside(choices.num_workers * max(choices.num_servers, 1)):
        return _run(choices, folder, screen)


def _run(choices: Choices, folder: Path, screen: Screen) -> Outcome:
    if choices.device is not None:
        target_device(choices.device, None, local_rank=0)  # a wrong one is refused before any work
    name = choices.dataset or default_dataset(choices.task)
    cache, graph = folder / "download", folder / "graph"
    task = task_of(
        load_demonstration(name, seed=choices.seed, cache=cache, synthetic=choices.synthetic), choices
    )
    with screen.building(task.title) as progress:
        began = time.perf_counter()
        schema = build_graph(task.tables(), graph, num_partitions=choices.num_partitions, progress=progress)
        build_seconds = time.perf_counter() - began
    screen.built(schema, build_seconds)
    for split in _SPLITS:
        if not task.counts(schema).get(split):
            raise ValueError(f"the graph is too small for the demo: split {split!r} has no {task.unit}")
    screen.training(task, choices)
    with ExitStack() as stack:
        dataset, server_totals = stack.enter_context(_open(choices, graph))
        loaders = {split: stack.enter_context(task.open_loader(dataset, split)) for split in _SPLITS}
        model = task.model(schema).to(loaders["train"].device)
        reports = []
        for report in train(
            model, task, train_loader=loaders["train"], val_loader=loaders["val"], watch=screen.watch
        ):
            screen.epoch(report, task)
            reports.append(report)
        test = evaluate(model, task, loaders["test"], watch=screen.watch)
        servers, rows = server_totals(), loaders["train"].stats()["rows"]
    return Outcome(
        dataset=name,
        nodes=sum(nodes.count for nodes in schema.nodes.values()),
        edges=sum(edges.count for edges in schema.edges.values()),
        facts=task.facts(schema),
        build_seconds=build_seconds,
        recipe=task.recipe,
        num_workers=choices.num_workers,
        servers=servers,
        rows=rows,
        reports=reports,
        test=test,
        verdict=task.verdict(test),
    )


@contextmanager
def _open(choices: Choices, graph: Path) -> Iterator[tuple[Any, Callable[[], list[dict[str, Any]]]]]:
    """Yield the graph, and a function that returns the totals of each storage server.

    The totals lack loaders that were shut down. Without servers there are none: sampling is part of the
    trainer.
    """
    if not choices.num_servers:
        with DistDataset.open(graph) as dataset:
            yield dataset, list
        return
    # Of a graph store; needs gRPC and Arrow.
    from gigl_client import Caller, RemoteDistDataset
    from gigl_loader.rpc.tokens import new_token
    from gigl_server.local_cluster import LocalCluster

    token = new_token()
    with (
        LocalCluster(graph, servers=choices.num_servers, workers=choices.num_workers, token=token) as cluster,
        RemoteDistDataset.connect(
            cluster.addresses[0], credentials=Caller(token=token), transport=choices.transport
        ) as remote,
    ):
        yield (
            remote,
            lambda: [_totals(load.get("channels", [])) for load in remote.server_stats().values()],
        )


def _totals(channels: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the totals of one server. ``sampling`` includes waits for neighbours from other servers."""
    return {
        "batches": sum(channel["batches"] for channel in channels),
        "bytes": sum(channel["bytes"] for channel in channels),
        "transport": "/".join(sorted({channel["transport"] for channel in channels})),
        "waiting": sum(channel["waiting_s"] for channel in channels),
        "sampling": sum(channel["sampling_s"] for channel in channels),
    }


@contextmanager
def _threads_beside(num_workers: int) -> Iterator[None]:
    """Leave a core to each sampling process: threads of torch that lack a core hold up all of its threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(before - num_workers, 1))
    try:
        yield
    finally:
        torch.set_num_threads(before)
