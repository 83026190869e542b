"""``gigl-loader doctor``: is this machine fit, and does a loader work on it?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def doctor(
    *,
    disk: Annotated[
        Path | None,
        typer.Option(
            "--disk",
            help="Measure the disk of this directory instead, in about 5 seconds.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Look at the machine and try a tiny loader with one worker process. Exit code 1 if anything fails."""
    if disk is not None:
        _measure_disk(disk, json=json)
        return
    from gigl_loader.cli.checkup import examine

    findings = examine()
    if json:
        from json import dumps

        print(dumps([finding.to_json() for finding in findings], indent=2))
    else:
        from rich.table import Table

        from gigl_loader.cli.console import styled, table_console

        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for _ in range(3):
            table.add_column(overflow="fold")
        colours = {"ok": "green", "note": "yellow", "failed": "red"}
        for finding in findings:
            table.add_row(styled(finding.verdict, colours[finding.verdict]), finding.subject, finding.detail)
        table_console().print(table)
    if any(finding.verdict == "failed" for finding in findings):
        raise typer.Exit(1)


def _measure_disk(path: Path, *, json: bool) -> None:
    from gigl_loader.cli.console import build_progress, table_console
    from gigl_loader.cli.disk_speeds import measure

    with build_progress(quiet=json) as show:
        found = measure(path, show)
    if json:
        from json import dumps

        print(dumps(found.to_json(), indent=2))
        return
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("in flight", "reads/s", "MB/s in sequence", "gap"):
        table.add_column(title, justify="right")
    for each in found.speeds:
        columns = (f"{each.reads_per_s:,.0f}", f"{each.bytes_per_s / 1e6:,.0f}", f"{each.gap / 1000:.0f} KB")
        table.add_row(str(each.depth), *columns)
    console = table_console()
    first, second = found.notes
    console.print(first, highlight=False)
    console.print(table)
    console.print(second, highlight=False)
