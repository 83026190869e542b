"""``gigl-loader audit``: check the batches of a loader for leaks."""

from __future__ import annotations

import json as json_module
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gigl_loader.cli.console import say, styled, table_console
from gigl_loader.cli.errors import importing
from gigl_loader.cli.options import CallerOptions, grouped
from gigl_loader.cli.replay import open_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.loaders.audit_report import AuditReport


class AuditCheck(str, Enum):
    """What is checked."""

    targets = "targets"
    times = "times"
    splits = "splits"
    seeds = "seeds"


@grouped
def audit(
    subject: Annotated[
        list[str],
        typer.Argument(
            help="A function that returns a loader (train.py:make_loader), ledgers of a run, or a graph; "
            "then arguments, such as num_neighbors=10,5.",
            metavar="SUBJECT",
        ),
    ],
    *,
    graph: Annotated[str | None, typer.Option(help="Directory of the graph of a ledger.")] = None,
    store: Annotated[
        list[str] | None, typer.Option(help="HOST:PORT of a storage server that has the graph, or several.")
    ] = None,
    batches: Annotated[
        int | None, typer.Option("--batches", "-n", min=1, help="From the start of the epoch. Default: all.")
    ] = None,
    epoch: Annotated[
        int | None, typer.Option(min=0, help="Default: that of the loader; of ledgers, all.")
    ] = None,
    check: Annotated[
        list[AuditCheck] | None, typer.Option(help="Only this check; repeat it for several.")
    ] = None,
    allow_sampler: Annotated[
        list[str] | None,
        typer.Option(help="package.module:Class that a ledger may have imported from here."),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for a batch.")] = 300.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    credentials: CallerOptions,
) -> None:
    """Check that no batch of a loader shows what it is to predict.

    No message edge is a label of its batch, or the reverse of one; none is later
    than its seed; splits share no edge in either direction; every seed comes once.
    The batches are made again here, from the same arguments.

      gigl-loader audit train.py:make_loader
      gigl-loader audit run.jsonl --graph GRAPH
      gigl-loader audit GRAPH num_neighbors=10,5 edge_label_index=user,buys,item
      gigl-loader audit GRAPH

    The last one checks the splits of a graph alone.
    Exit code 1: a check found a violation. The batch and the edge are named.
    """
    from gigl_loader.cli.loader_arguments import is_argument, is_function

    words = [word for word in subject if is_argument(word) and not Path(word).exists()]
    sources = [word for word in subject if word not in words]
    if graph is not None and store:
        raise ValueError("--graph and --store are two places of one graph: give one of them")
    with importing():
        from gigl_loader.cli.console import build_progress
        from gigl_loader.loaders.audit_report import CHECKS

    names = [each.value for each in check or ()]
    options: dict[str, Any] = {"checks": [name for name in CHECKS if not names or name in names]}
    with ExitStack() as stack, build_progress(quiet=json) as options["progress"]:

        def opened(path: str | None) -> Any:
            return open_whole(path, store or [], credentials.caller(), timeout, stack)

        if sources and all(Path(each).is_file() for each in sources):
            if words:
                raise ValueError(f"ledgers have the arguments of their loader: leave {words[0]} out")
            options |= {"allowed_samplers": set(allow_sampler or ()), "timeout_s": timeout}
            report = _of_ledgers(sources, graph, opened, epoch=epoch, batches=batches, **options)
        elif len(sources) == 1 and not Path(sources[0]).exists() and is_function(sources[0]):
            if graph is not None or store:
                raise ValueError(f"{sources[0]} opens its graph itself: leave --graph and --store out")
            report = _of_function(sources[0], words, stack, epoch=epoch, batches=batches, **options)
        else:
            path = _only_graph(sources, graph, store)
            report = _of_graph(opened(path), words, stack, epoch=epoch, batches=batches, **options)
    if json:
        print(json_module.dumps(report.to_json()))
    else:
        _tell(report)
    if not report.ok:
        raise typer.Exit(1)


def _of_function(word: str, words: list[str], stack: ExitStack, **options: Any) -> AuditReport:
    from gigl_loader.cli.loader_arguments import loader_of, read_arguments
    from gigl_loader.loaders.audit import audit as audited

    loader = loader_of(word, read_arguments(words))
    stack.callback(loader.shutdown)
    return audited(loader, **options)


def _of_graph(dataset: Any, words: list[str], stack: ExitStack, **options: Any) -> AuditReport:
    from gigl_loader.cli.loader_arguments import build_loader, read_arguments
    from gigl_loader.loaders.audit import audit as audited

    if not words:
        if options["epoch"] is not None or options["batches"] is not None:
            raise ValueError(
                "a graph alone has no batches: add the arguments of a loader, num_neighbors=10,5"
            )
        return audited(dataset, **options)
    loader = build_loader(dataset, read_arguments(words))
    stack.callback(loader.shutdown)
    return audited(loader, **options)


def _of_ledgers(
    paths: list[str],
    graph: str | None,
    opened: Callable[[str | None], Any],
    *,
    epoch: int | None,
    batches: int | None,
    **options: Any,
) -> AuditReport:
    from gigl_loader.loaders.audit import audit_ledgers
    from gigl_loader.loaders.replay import Recording

    def is_chosen(of_epoch: int, number: int) -> bool:
        return epoch in (None, of_epoch) and (batches is None or number < batches)

    recordings = [Recording.read(path, is_chosen) for path in paths]
    if not any(each.chosen for each in recordings):
        raise ValueError(f"{', '.join(paths)}: no such batch{'' if epoch is None else f' of epoch {epoch}'}")
    return audit_ledgers(recordings, opened(graph), **options)


def _only_graph(sources: list[str], graph: str | None, store: list[str] | None) -> str | None:
    """Return the directory of the graph; ``None`` where storage servers have it."""
    given = [*sources, *([] if graph is None else [graph])]
    if len(given) + bool(store) != 1:
        named = ", ".join([*given, *(store or [])]) or "nothing"
        raise ValueError(
            "audit takes a function (train.py:make_loader), ledgers of one run, or one graph (a directory or "
            f"--store), got {named}"
        )
    return given[0] if given else None


def _tell(report: AuditReport) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=report.subject, box=SIMPLE_HEAD, pad_edge=False, title_justify="left", title_style="")
    for name in ("check", "of", "looked at", "result"):
        table.add_column(name, overflow="fold")
    for each in report.findings:
        counts = ", ".join(f"{count:,} {what}" for what, count in each.looked_at.items())
        colour = "yellow" if each.unchecked else "red" if each.violations else "green"
        table.add_row(each.check, each.subject, counts, styled(each.result, colour))
    table_console().print(table)
    for each in report.findings:
        for found in each.examples:
            say(found.text)
        if each.violations > len(each.examples):
            say(f"and {each.violations - len(each.examples):,} more of {each.check}")
