"""Screen of the demo: a line per epoch, tables and progress bars. A quiet console shows nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from gigl_loader.options import size_text

if TYPE_CHECKING:
    from gigl_loader.demo.choices import Choices
    from gigl_loader.demo.job import Outcome
    from gigl_loader.demo.tasks import Task
    from gigl_loader.demo.training import EpochReport
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.loaders.base import BaseDistLoader
    from gigl_loader.partition.job import Progress as BuildProgress


class Screen:
    """Prints a line per epoch, and bars that vanish when they are full (none outside a terminal)."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def building(self, title: str) -> Iterator[BuildProgress]:
        self._line(f"[bold]{title}[/bold]")
        with self._bars() as bars:
            tasks: dict[str, TaskID] = {}

            def show(step: str, done: int, total: int) -> None:
                if step not in tasks:
                    tasks[step] = bars.add_task(step)
                bars.update(tasks[step], completed=done, total=total)

            yield show

    def built(self, schema: GraphSchema, seconds: float) -> None:
        nodes = sum(nodes.count for nodes in schema.nodes.values())
        edges = sum(edges.count for edges in schema.edges.values())
        self._line(
            f"{nodes:,} nodes, {edges:,} edges, edge types: {len(schema.edges)}, "
            f"partitions: {schema.num_partitions}; built in {seconds:.1f} s"
        )

    def training(self, task: Task, choices: Choices) -> None:
        recipe, scores = task.recipe, " ".join(f"{heading:>7}" for heading in task.columns)
        fanout = ",".join(map(str, recipe.fanout))
        self._line(
            f"GraphSAGE, {recipe.hidden} wide; fanout {fanout}; {recipe.batch_size} {task.unit} a batch, "
            f"sampled {_where(choices)}\n"
        )
        self._line(
            f"[bold]{'epoch':>5} {'loss':>6} {scores}  {'seconds':>7} ="
            f" {'waiting':>7} + {'copying':>7} + {'computing':>9}  {f'{task.unit}/s':>8}[/bold]"
        )

    def epoch(self, report: EpochReport, task: Task) -> None:
        scores = " ".join(f"{cell:>7}" for cell in task.cells(report.train, report.val))
        self._line(
            f"{report.epoch:5} {report.loss:6.3f} {scores}"
            f"  {report.seconds:7.2f} = {report.waiting:7.2f} + {report.copying:7.2f}"
            f" + {report.computing:9.2f}  {report.seeds / report.seconds:8,.0f}"
        )

    def _line(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def watch(self, what: str, loader: BaseDistLoader) -> Iterator[Any]:
        with self._bars() as bars:
            task = bars.add_task(what, total=len(loader))
            for batch in loader:
                yield batch
                if self._console.is_terminal:
                    bars.update(
                        task, advance=1, description=f"{what}, rows: {_origins(loader.stats()['rows'])}"
                    )

    def _bars(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        terminal = self._console.is_terminal
        return Progress(*columns, console=self._console, transient=True, disable=not terminal)

    def outcome(self, outcome: Outcome) -> None:
        """Print where the time went, all epochs together, and the test scores."""
        table = Table(title="time in training", title_justify="left", box=None, padding=(0, 2, 0, 0))
        table.add_column("")
        table.add_column("seconds", justify="right")
        table.add_column("share", justify="right")
        whole = sum(report.seconds for report in outcome.reports)
        for part in ("waiting", "copying", "computing"):
            seconds = sum(getattr(report, part) for report in outcome.reports)
            table.add_row(part, f"{seconds:.2f}", f"{seconds / whole:.0%}")
        self._console.print()
        self._console.print(table)
        rows = outcome.rows
        self._line(
            f"\n{rows['wanted']:,} rows of features to learn from: {_origins(rows)}; "
            f"{size_text(rows['bytes'])} read, {rows['seconds_waiting']:.2f} s waited"
        )
        if outcome.servers:
            self._console.print()
            self._console.print(_server_table(outcome))
        self._line(f"\n[bold green]{outcome.verdict}[/bold green]")


def _origins(rows: Mapping[str, Any]) -> str:
    """Return from where rows came, such as ``75% cache, 25% disk``."""
    origins = {
        name: rows[name] for name in ("device", "host", "cache", "memory", "disk", "wire") if rows[name]
    }
    return ", ".join(f"{count / rows['wanted']:.0%} {name}" for name, count in origins.items()) or "none"


def _where(choices: Choices) -> str:
    """Return where batches are sampled, in words."""
    workers = choices.num_workers
    if choices.num_servers:
        threads = "a sampling thread" if workers == 1 else f"{workers} sampling threads"
        if choices.num_servers == 1:
            return f"by a storage server with {threads}"
        return f"by {choices.num_servers} storage servers with {threads} each"
    if not workers:
        return "in the trainer"
    return "in 1 worker process" if workers == 1 else f"in {workers} worker processes"


def _server_table(outcome: Outcome) -> Table:
    """Return a table of the batches, bytes and seconds of each server."""
    table = Table(title="storage servers", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("", "batches", "MB", "transport", "requests waited, s", "sampling, s"):
        table.add_column(name, justify="left" if name in ("", "transport") else "right")
    for number, server in enumerate(outcome.servers):
        megabytes = f"{server['bytes'] / 1e6:,.0f}"
        times = (f"{server['waiting']:.2f}", f"{server['sampling']:.2f}")
        table.add_row(f"server {number}", f"{server['batches']:,}", megabytes, server["transport"], *times)
    return table
