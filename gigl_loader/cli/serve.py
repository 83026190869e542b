"""``gigl-loader serve``: a storage server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

import typer

from gigl_loader.cli.errors import importing
from gigl_server.config import SERVE_OPTIONS


def serve(config: Path | None, **given: Any) -> None:
    """Serve partitions of a graph to trainers until SIGTERM or Ctrl-C.

    Every option may also be a variable (--data-port: GIGL_DATA_PORT) or a key of the file (data_port).

    A flag goes before a variable, a variable before the file.

    Exit codes: 0 ended in order, 1 a failure, 2 a mistake in the options, 3 a part of the server died.
    """
    flags = {name: value for name, value in given.items() if value != []}
    with importing():
        from gigl_server.config import read_settings, read_yaml
        from gigl_server.logs import quiet_grpc
        from gigl_server.preflight import check_serve_limits
    quiet_grpc()
    document = read_yaml(config) if config else {}
    options = read_settings(flags, os.environ, document, str(config))
    check_serve_limits(options)  # Before libraries are imported that crash or hang at a low limit.
    with importing():
        from gigl_server.main import run
    run(options)


def _parameters() -> Iterator[Parameter]:
    """Yield an argument for each option of the table, and one for the file that may hold them."""
    for name, option in SERVE_OPTIONS.items():
        more: dict[str, Any] = {"show_default": option.default or False, "help": option.help}
        argument = typer.Option(None, *option.flags, **more) if option.flags else typer.Argument(None, **more)
        yield Parameter(
            name, Parameter.KEYWORD_ONLY, default=argument, annotation=option.kind.argument_type | None
        )
    config = typer.Option(None, envvar="GIGL_CONFIG", help="YAML file of the options above.")
    yield Parameter("config", Parameter.KEYWORD_ONLY, default=config, annotation=Path | None)


serve.__signature__ = Signature(list(_parameters()))  # type: ignore[attr-defined]  # Read by typer.
