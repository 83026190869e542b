"""The application ``gigl-loader``: all commands and the options before them."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from gigl_loader import __version__
from gigl_loader.cli.errors import DEBUG_VARIABLE, reported


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gigl-loader {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help=f"Show whole tracebacks; the same as {DEBUG_VARIABLE}=1.")
    ] = False,
) -> None:
    """Sampled mini-batches of large graphs for GNN training."""
    del version
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"


def build_app() -> typer.Typer:
    """Return the whole command line. Nothing heavy is imported: ``--help`` takes a tenth of a second."""
    from gigl_loader.cli.adopt import adopt
    from gigl_loader.cli.audit import audit
    from gigl_loader.cli.bench import bench
    from gigl_loader.cli.demo import demo
    from gigl_loader.cli.doctor import doctor
    from gigl_loader.cli.fetch import fetch
    from gigl_loader.cli.import_glt import import_glt
    from gigl_loader.cli.index import index
    from gigl_loader.cli.inspect import inspect
    from gigl_loader.cli.local_cluster import local_cluster
    from gigl_loader.cli.partition import partition
    from gigl_loader.cli.replay import replay
    from gigl_loader.cli.serve import serve
    from gigl_loader.cli.top import top

    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.callback()(_options)
    for command in (
        *(partition, import_glt, index, inspect, fetch, replay, audit),
        *(serve, adopt, local_cluster, top),
        *(demo, bench, doctor),
    ):
        app.command()(reported(command))
    return app
