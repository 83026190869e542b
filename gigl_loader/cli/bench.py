"""``gigl-loader bench``: what sampling and loading cost on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from gigl_loader.cli.errors import importing
from gigl_loader.cli.options import StartMethod


def bench(
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small graph: seconds instead of minutes.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(help="Directory of the workload, made where missing.  [default: a temporary one]"),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each thing is measured.")] = 3,
    workers: Annotated[str, typer.Option(help="Numbers of workers to measure.")] = "0,1,2",
    start_method: Annotated[
        StartMethod, typer.Option(help="Of sampling processes: loading and memory.")
    ] = StartMethod.spawn,
    measure: Annotated[
        str | None,
        typer.Option(
            help="Some of: sampling, loading, trainer, store, memory.  [default: all; with --quick, "
            "all but store]"
        ),
    ] = None,
    caches: Annotated[
        str, typer.Option(help="Memory for features at the trainer of a store, in percent of the features.")
    ] = "20",
    windows: Annotated[
        str,
        typer.Option(help="Batches whose rows it fetches together, at most; 0: as the loader decides."),
    ] = "0",
    json: Annotated[Path | None, typer.Option(help="Write all figures to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the medians into this PNG file.")] = None,
) -> None:
    """Measure sampler, gather, loader, thread of the trainer and graph store beside the machine's limits."""
    worker_counts, cache_percents, window_sizes = (
        _numbers(option, text)
        for option, text in (("--workers", workers), ("--caches", caches), ("--windows", windows))
    )
    if plot is not None and find_spec("matplotlib") is None:  # told before minutes of measuring, not after
        raise ImportError("--plot needs matplotlib: pip install 'gigl-loader[bench]'")

    with importing():
        from rich.console import Console

        from gigl_loader.bench.report import Report, save_plot
        from gigl_loader.bench.suite import GROUPS, QUICK_GROUPS, Suite
        from gigl_loader.bench.workload import FULL, QUICK

    workload = QUICK if quick else FULL
    groups: tuple[str, ...] = QUICK_GROUPS if quick else GROUPS
    if measure is not None:
        groups = tuple(part.strip() for part in measure.split(","))
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)  # a file has no width of its own, and 80 would break the tables
    with _folder(data) as folder:
        suite = Suite(
            workload=workload,
            folder=folder,
            rounds=rounds,
            workers=worker_counts,
            groups=groups,
            start_method=start_method.value,
            caches=cache_percents,
            windows=tuple(size or None for size in window_sizes),
        )
        report = Report(suite.run(console))
    report.show(console)
    if json is not None:
        from json import dumps

        json.write_text(dumps(report.to_json(workload), indent=2) + "\n")
    if plot is not None:
        save_plot(report.measured, plot)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{option} must be numbers with commas such as 0,1,2, got {text!r}") from None
    if min(numbers) < 0:
        raise ValueError(f"{option} must not be negative, got {text!r}")
    return numbers


@contextmanager
def _folder(data: Path | None) -> Iterator[Path]:
    if data is not None:
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="gigl-bench-") as folder:
        yield Path(folder)
