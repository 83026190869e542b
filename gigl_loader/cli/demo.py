"""``gigl-loader demo``: train a GraphSAGE model on a real graph and see where the time goes."""

from __future__ import annotations

import json as json_module
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from gigl_loader.cli.errors import importing
from gigl_loader.cli.options import StartMethod
from gigl_loader.options import workers_of


class Task(str, Enum):
    """Kind of prediction."""

    node = "node"
    link = "link"


class Mode(str, Enum):
    """Where batches are sampled."""

    colocated = "colocated"
    embedded = "embedded"
    graph_store = "graph-store"


class Transport(str, Enum):
    """Transport of batches from storage servers."""

    auto = "auto"
    ring = "ring"
    network = "network"
    flight = "flight"


def demo(
    *,
    task: Annotated[
        Task,
        typer.Option(
            help="node: the class of a node; link: which edges there are that the graph does not show, "
            "against a guess by popularity."
        ),
    ] = Task.node,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="digits, debian, synthetic, npz:PATH, planetoid:NAME or ogbn:NAME "
            "(default: digits; link: debian where apt has package lists)."
        ),
    ] = None,
    mode: Annotated[
        Mode,
        typer.Option(
            help="colocated: worker processes beside the trainer; embedded: in the trainer; "
            "graph-store: storage servers that hold the graph."
        ),
    ] = Mode.colocated,
    num_workers: Annotated[
        int | None,
        typer.Option(
            help="Sampling processes; threads of each server. (default: one a core, less one; graph-store: 1)"
        ),
    ] = None,
    start_method: Annotated[
        StartMethod | None, typer.Option(help="Of sampling processes (colocated). (default: spawn)")
    ] = None,
    servers: Annotated[
        int | None, typer.Option(min=1, help="Storage servers (graph-store). (default: 2)")
    ] = None,
    transport: Annotated[
        Transport,
        typer.Option(
            help="Of batches (graph-store): shared memory, the network (flight: its older name), or either."
        ),
    ] = Transport.auto,
    feature_memory: Annotated[
        str,
        typer.Option(help="Memory that features may take: 4MB reads features that do not fit from the disk."),
    ] = "auto",
    epochs: Annotated[int | None, typer.Option(min=1, help="Default: what suits the data set.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Seeds, or links, per batch.")] = None,
    fanout: Annotated[str | None, typer.Option(help="Neighbours per hop, for example 15,10,5.")] = None,
    hidden: Annotated[int | None, typer.Option(min=1, help="Width of the model.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of Adam.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of splits, model and sampling.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1. (default: cuda if any)")] = None,
    num_partitions: Annotated[
        int, typer.Option("--num-partitions", "-p", min=1, help="Parts to cut the graph in.")
    ] = 2,
    workdir: Annotated[Path | None, typer.Option(help="Keep the graph in this directory.")] = None,
    nodes: Annotated[int, typer.Option(help="Of the synthetic graph.")] = 100_000,
    edges: Annotated[int, typer.Option(help="Of the synthetic graph, before reverse edges.")] = 1_500_000,
    dim: Annotated[int, typer.Option(help="Features of the synthetic graph.")] = 64,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Train GraphSAGE on a real graph, sampled by worker processes, by storage servers or in the trainer.

    With --task link, edges of val and test are held out of all batches. The
    destination of each is ranked among 50 others that are drawn and to which
    the graph has no edge: MRR and hits@k, beside those of a guess by popularity.
    """
    from gigl_loader.demo.choices import Choices, SyntheticSize

    choices = Choices(
        task=task.value,
        dataset=dataset,
        num_workers=_num_workers(mode, num_workers),
        start_method=_start_method(mode, start_method),
        num_servers=_num_servers(mode, servers, transport),
        transport=transport.value,
        feature_memory=feature_memory,
        seed=seed,
        device=device,
        num_partitions=num_partitions,
        synthetic=SyntheticSize(nodes=nodes, edges=edges, dim=dim),
        epochs=epochs,
        batch_size=batch_size,
        fanout=None if fanout is None else _fanout(fanout),
        hidden=hidden,
        lr=lr,
    )
    with importing():
        from rich.console import Console

        from gigl_loader.demo.job import run_demo
        from gigl_loader.demo.screen import Screen
    screen = Screen(Console(quiet=json))
    with _folder(workdir) as folder:
        outcome = run_demo(choices, folder, screen)
    if json:
        print(json_module.dumps(outcome.to_json(), indent=2))
    else:
        screen.outcome(outcome)


@contextmanager
def _folder(workdir: Path | None) -> Iterator[Path]:
    """Yield the directory to work in: the user's, which is kept, or a temporary one."""
    if workdir is None:
        with tempfile.TemporaryDirectory(prefix="gigl-demo-") as folder:
            yield Path(folder)
        return
    if (workdir / "graph").exists():
        raise FileExistsError(f"{workdir / 'graph'} exists: choose another --workdir or remove it")
    workdir.mkdir(parents=True, exist_ok=True)
    yield workdir


def _num_workers(mode: Mode, asked: int | None) -> int:
    if mode is Mode.embedded:
        if asked:
            raise ValueError(f"--mode embedded samples in the trainer: --num-workers {asked} contradicts it")
        return 0
    if asked is not None and asked < 1:
        raise ValueError(
            f"--mode {mode.value} needs at least 1 worker, got {asked}; --mode embedded samples without"
        )
    if asked is not None:
        return asked
    return 1 if mode is Mode.graph_store else workers_of("auto", ranks=1)


def _start_method(mode: Mode, asked: StartMethod | None) -> str:
    if asked is not None and mode is not Mode.colocated:
        raise ValueError(f"--start-method needs --mode colocated: --mode {mode.value} starts no process")
    return (asked or StartMethod.spawn).value


def _num_servers(mode: Mode, asked: int | None, transport: Transport) -> int:
    if mode is Mode.graph_store:
        return 2 if asked is None else asked
    if asked is not None or transport is not Transport.auto:
        raise ValueError("--servers and --transport need --mode graph-store")
    return 0


def _fanout(text: str) -> tuple[int, ...]:
    try:
        fanout = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--fanout must be numbers with commas such as 15,10,5, got {text!r}") from None
    if any(count < -1 for count in fanout):
        raise ValueError(f"--fanout must hold -1 (all), 0 (none) or positive numbers, got {text!r}")
    return fanout
