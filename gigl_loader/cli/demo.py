"""``gigl-loader demo``: train a GraphSAGE model on a real graph and see where the time goes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gigl_loader.cli.errors import importing

if TYPE_CHECKING:
    from gigl_loader.demo.choices import Choices

__all__ = ["demo"]


class Mode(str, Enum):
    """Where batches are sampled."""

    colocated = "colocated"
    embedded = "embedded"


def demo(
    *,
    dataset: Annotated[
        str, typer.Option(help="digits, debian, synthetic, npz:PATH, planetoid:NAME or ogbn:NAME.")
    ] = "digits",
    mode: Annotated[
        Mode, typer.Option(help="colocated: worker processes beside the trainer; embedded: in the trainer.")
    ] = Mode.colocated,
    num_workers: Annotated[int | None, typer.Option(help="Sampling processes.  [default: 2]")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Default: what suits the data set.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Seeds per batch.")] = None,
    fanout: Annotated[str | None, typer.Option(help="Neighbours per hop, for example 15,10,5.")] = None,
    hidden: Annotated[int | None, typer.Option(min=1, help="Width of the model.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of Adam.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of splits, model and sampling.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1.  [default: cuda if any]")] = None,
    num_partitions: Annotated[
        int, typer.Option("--num-partitions", "-p", min=1, help="Parts to cut the graph in.")
    ] = 2,
    workdir: Annotated[Path | None, typer.Option(help="Keep the graph in this directory.")] = None,
    nodes: Annotated[int, typer.Option(help="Of the synthetic graph.")] = 100_000,
    edges: Annotated[int, typer.Option(help="Of the synthetic graph, before reverse edges.")] = 1_500_000,
    dim: Annotated[int, typer.Option(help="Features of the synthetic graph.")] = 64,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Train GraphSAGE on a real graph through worker processes, shared memory and native kernels."""
    from gigl_loader.demo.choices import Choices, SyntheticSize

    choices = Choices(
        dataset=dataset,
        num_workers=_num_workers(mode, num_workers),
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
    run = _to_json if json else _to_console
    with importing():
        import gigl_loader.demo.job  # noqa: F401
    with _folder(workdir) as folder:
        run(choices, folder)


def _to_console(choices: Choices, folder: Path) -> None:
    from rich.console import Console

    from gigl_loader.demo.job import run_demo
    from gigl_loader.demo.screen import ConsoleScreen

    screen = ConsoleScreen(Console())
    screen.outcome(run_demo(choices, folder, screen))


def _to_json(choices: Choices, folder: Path) -> None:
    import json

    from gigl_loader.demo.job import run_demo
    from gigl_loader.demo.screen import SilentScreen

    print(json.dumps(run_demo(choices, folder, SilentScreen()).to_json(), indent=2))


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
            f"--mode colocated needs at least 1 worker, got {asked}; --mode embedded samples without"
        )
    return 2 if asked is None else asked


def _fanout(text: str) -> tuple[int, ...]:
    try:
        fanout = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--fanout must be numbers with commas such as 15,10,5, got {text!r}") from None
    if any(count < -1 for count in fanout):
        raise ValueError(f"--fanout must hold -1 (all), 0 (none) or positive numbers, got {text!r}")
    return fanout
