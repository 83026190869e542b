"""The command ``gigl-loader``.

Modules here import only typer and the table of server options; what does the work is imported when it runs.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit."""
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if command == "serve":  # Before anything heavy is imported: a supervisor may end a server at any time.
        from gigl_server.signals import leave_on_signals

        leave_on_signals()
    from gigl_loader.cli.console import say
    from gigl_loader.cli.errors import USAGE_ERROR, importing, one_line

    with importing():
        import typer

        from gigl_loader.cli.app import build_app

        app = build_app()
    try:
        code = app(sys.argv[1:] or ["--help"], prog_name="gigl-loader", standalone_mode=False)
    except USAGE_ERROR as error:
        hint = f" ({error.ctx.command_path} --help)" if error.ctx else ""
        say(f"gigl-loader: {one_line(ValueError(error.format_message()))}{hint}", file=sys.stderr)
        sys.exit(2)
    except typer.Abort:  # older versions of typer make this of Ctrl-C
        sys.exit(130)
    sys.exit(code)
