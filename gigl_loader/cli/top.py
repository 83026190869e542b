"""``gigl-loader top``: a live view of a storage cluster."""

from __future__ import annotations

import json as json_module
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gigl_loader.cli.console import say
from gigl_loader.cli.errors import importing
from gigl_loader.cli.options import CallerOptions, grouped

if TYPE_CHECKING:
    from gigl_loader.cli.cluster_loads import Loads, Looker


@grouped
def top(
    address: Annotated[
        str, typer.Argument(help="HOST:PORT of any server of the cluster, or several with commas.")
    ],
    *,
    once: Annotated[bool, typer.Option("--once", help="Print one table and end.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document and end.")] = False,
    web: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            help="Show a page at this port of 127.0.0.1 (0: any free one), and print its link.",
        ),
    ] = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 1.0,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for every answer.")] = 5.0,
    credentials: CallerOptions,
) -> None:
    """Show what the servers of a cluster do: batches, bytes, queues, memory, peers. Ctrl-C ends it."""
    with importing():
        from gigl_loader.cli.cluster_loads import Looker
        from gigl_server.logs import quiet_grpc
    quiet_grpc()
    if sum((once, json, web is not None)) > 1:
        raise ValueError("--once, --json and --web exclude each other: give one of them")

    caller = credentials.caller()
    with Looker(address, caller, timeout) as looker:
        if json:
            print(json_module.dumps(looker.look().to_json()))
        elif once:
            _print(looker.look())
        elif web is not None:
            _serve(looker, port=web, interval_s=interval)
        else:
            with suppress(KeyboardInterrupt):  # That is how one ends it.
                _follow(looker, interval)


def _print(loads: Loads) -> None:
    from gigl_loader.cli.cluster_loads import tables
    from gigl_loader.cli.console import table_console

    console = table_console()
    for table in tables(loads, None, width=console.width):
        console.print(table)


def _serve(looker: Looker, *, port: int, interval_s: float) -> None:
    """Serve the page until Ctrl-C. Fails at once where no server answers, or the caller is refused."""
    from gigl_loader.cli.top_web import TopServer

    looker.look()
    with TopServer(looker.look, port=port, interval_s=interval_s) as server, suppress(KeyboardInterrupt):
        say(f"open {server.link} in a browser of this machine; Ctrl-C ends it")
        server.serve()


def _follow(looker: Any, interval: float) -> None:
    """Look again and again. Where there is no terminal, print one table after the other."""
    from rich.console import Group
    from rich.live import Live

    from gigl_loader.cli.cluster_loads import tables
    from gigl_loader.cli.console import table_console

    console = table_console()
    before = None
    with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
        while True:
            began = time.monotonic()
            loads = looker.look()
            shown = Group(*tables(loads, before, width=console.width))
            if live is None:
                console.print(shown)
            else:
                live.update(shown, refresh=True)
            before = loads
            time.sleep(max(interval - (time.monotonic() - began), 0.05))
