"""``gigl-loader doctor``: is this machine fit, and does a loader work on it?"""

from __future__ import annotations

from typing import Annotated

import typer


def doctor(
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Look at the machine and try a tiny loader with one worker process. Exit code 1 if anything fails."""
    from gigl_loader.cli.checkup import examine

    findings = examine()
    if json:
        from json import dumps

        print(dumps([finding.to_json() for finding in findings], indent=2))
    else:
        from rich.table import Table

        from gigl_loader.cli.console import table_console

        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for _ in range(3):
            table.add_column(overflow="fold")
        colours = {"ok": "green", "note": "yellow", "failed": "red"}
        for finding in findings:
            table.add_row(
                f"[{colours[finding.verdict]}]{finding.verdict}[/]", finding.subject, finding.detail
            )
        table_console().print(table)
    if any(finding.verdict == "failed" for finding in findings):
        raise typer.Exit(1)
