"""The main job: partition a data set, open it, train through worker processes, test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from gigl_loader.dataset import DistDataset
from gigl_loader.demo.choices import Choices, Recipe
from gigl_loader.demo.datasets import Demonstration, default_dataset, load_demonstration
from gigl_loader.demo.tasks import LinkTask, NodeTask
from gigl_loader.demo.training import EpochReport, Loader, Task, evaluate, train
from gigl_loader.graph.schema import GraphSchema
from gigl_loader.loaders.transfer import target_device
from gigl_loader.partition import build_graph
from gigl_loader.partition.job import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReport:
    """What one storage server did for the job, all loaders together."""

    batches: int
    bytes: int
    transport: str
    """``"ring"``: shared memory; ``"network"``: over the network."""
    waiting: float
    """Seconds from the asks for these batches to the beginning of sampling."""
    sampling: float
    """Seconds of its threads. Neighbours that another server was asked for are in it."""


@contextmanager
def open_place(choices: Choices, graph: Path) -> Iterator[tuple[Any, Callable[[], list[ServerReport]]]]:
    """Yield the graph that was built at ``graph``, served by as many servers as were chosen.

    With it comes what asks each server; loaders that were shut down are not in it. Without servers, all that
    samples is a part of the trainer, and counted there.
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
            lambda: [_report(load.get("channels", [])) for load in remote.server_stats().values()],
        )


def _report(channels: list[dict[str, Any]]) -> ServerReport:
    return ServerReport(
        batches=sum(channel["batches"] for channel in channels),
        bytes=sum(channel["bytes"] for channel in channels),
        transport="/".join(sorted({channel["transport"] for channel in channels})),
        waiting=sum(channel["waiting_s"] for channel in channels),
        sampling=sum(channel["sampling_s"] for channel in channels),
    )


class Screen(Protocol):
    """Who shows how the job goes."""

    def building(self, title: str) -> AbstractContextManager[Progress | None]: ...
    def built(self, schema: GraphSchema, seconds: float) -> None: ...
    def training(self, task: Task, choices: Choices) -> None: ...
    def watch(self, what: str, loader: Loader) -> Iterator[Any]: ...
    def epoch(self, report: EpochReport, task: Task) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the job came to."""

    dataset: str
    nodes: int
    edges: int
    facts: dict[str, Any]
    """Of the task."""
    build_seconds: float
    recipe: Recipe
    num_workers: int
    servers: list[ServerReport]
    """One for each storage server."""
    reports: list[EpochReport]
    test: dict[str, float]
    """Scores by name."""
    verdict: str
    """The test scores in one line."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values: scores as ``test_NAME``, facts beside the others."""
        return {
            "dataset": self.dataset,
            "nodes": self.nodes,
            "edges": self.edges,
            **self.facts,
            "build_seconds": self.build_seconds,
            "recipe": asdict(self.recipe),
            "num_workers": self.num_workers,
            "servers": [asdict(server) for server in self.servers],
            "reports": [report.to_json() for report in self.reports],
            **{f"test_{name}": value for name, value in self.test.items()},
        }


_TASKS: dict[str, Callable[[Demonstration, Choices], Task]] = {"node": NodeTask, "link": LinkTask}


def run_demo(choices: Choices, folder: Path, screen: Screen) -> Outcome:
    """Build the graph in ``folder / "graph"``, train a model on it and return how it did."""
    torch.manual_seed(choices.seed)
    with _threads_beside(choices.num_workers * max(choices.num_servers, 1)):
        return _run(choices, folder, screen)


def _run(choices: Choices, folder: Path, screen: Screen) -> Outcome:
    if choices.device is not None:
        target_device(choices.device, None, local_rank=0)  # a wrong one is told before any work
    name = default_dataset(choices.task) if choices.dataset is None else choices.dataset
    cache = folder / "download"
    demonstration = load_demonstration(name, seed=choices.seed, cache=cache, synthetic=choices.synthetic)
    task = _TASKS[choices.task](demonstration, choices)
    with screen.building(task.title) as progress:
        schema, build_seconds = _build(task, folder / "graph", choices.num_partitions, progress)
    screen.built(schema, build_seconds)
    screen.training(task, choices)
    with ExitStack() as stack:
        dataset, ask_servers = stack.enter_context(open_place(choices, folder / "graph"))
        loaders = {
            split: stack.enter_context(task.open_loader(dataset, split)) for split in ("train", "val", "test")
        }
        model = task.model(schema).to(loaders["train"].device)
        reports = []
        for report in train(
            model, task, train_loader=loaders["train"], val_loader=loaders["val"], watch=screen.watch
        ):
            screen.epoch(report, task)
            reports.append(report)
        tested = evaluate(model, task, loaders["test"], watch=screen.watch)
        servers = ask_servers()
    return Outcome(
        dataset=name,
        nodes=sum(nodes.count for nodes in schema.nodes.values()),
        edges=sum(edges.count for edges in schema.edges.values()),
        facts=task.facts(schema),
        build_seconds=build_seconds,
        recipe=task.recipe,
        num_workers=choices.num_workers,
        servers=servers,
        reports=reports,
        test=tested.scores,
        verdict=task.verdict(tested.scores),
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
    task: Task, folder: Path, num_partitions: int, progress: Progress | None
) -> tuple[GraphSchema, float]:
    start = time.perf_counter()
    schema = build_graph(task.tables(), folder, num_partitions=num_partitions, progress=progress)
    return schema, time.perf_counter() - start
