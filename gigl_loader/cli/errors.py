"""Exit of the command line after an error: one line, and an exit code by the kind of error.

====  ==================================================================
code  meaning
====  ==================================================================
0     done
1     a failure: the same command may work another time
2     the user's mistake: the command, its arguments or its files are wrong
130   interrupted by Ctrl-C; 0 for a command that runs until then
====  ==================================================================
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import typer

from gigl_loader.cli.console import say
from gigl_loader.errors import FormatError, GiglError, naming_extra
from gigl_loader.printable import printable

DEBUG_VARIABLE = "GIGL_DEBUG"

# Click's UsageError: a wrong command or option. Newer versions of typer hold a click of their own.
USAGE_ERROR: Any = typer.BadParameter.__base__

_MISTAKES = (
    ValueError,
    TypeError,
    FileNotFoundError,
    FileExistsError,
    NotADirectoryError,
    IsADirectoryError,
    FormatError,
)
_EXPECTED = (*_MISTAKES, GiglError, OSError, ImportError, MemoryError)

_Command = TypeVar("_Command", bound=Callable[..., Any])


def exit_code(error: Exception) -> int:
    """Return 2 for what the user can mend in the command, 1 for everything else."""
    return 2 if isinstance(error, _MISTAKES) else 1


def one_line(error: Exception) -> str:
    """Return the error in one line, as by ``printable``. An unexpected one is named by its type as well."""
    told = error.args[0] if getattr(error, "program", ()) else error
    text = " ".join(str(naming_extra(error) if isinstance(error, ImportError) else told).split())
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        text = f"no such file or directory: {error.filename}"
    if isinstance(error, IsADirectoryError) and error.filename is not None:
        text = f"a directory, not a file: {error.filename}"
    if isinstance(error, _EXPECTED) and text:
        return printable(text)
    return f"{type(error).__name__}: {printable(text)} (--debug shows where)"


def reported(command: _Command) -> _Command:
    """Return the command with its exceptions turned into one line on stderr and an exit code."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except Exception as error:
            if os.environ.get(DEBUG_VARIABLE, "") not in ("", "0"):
                raise
            say(f"gigl-loader: {one_line(error)}", file=sys.stderr)
            for line in getattr(error, "program", ()):  # A file that has no reader: Python that reads it.
                say(f"    {line}", file=sys.stderr)
            raise typer.Exit(exit_code(error)) from error

    return run  # type: ignore[return-value]


@contextmanager
def importing() -> Iterator[None]:
    """Let Ctrl-C end the process at once, as in a program without a handler for it.

    For heavy imports, while there is nothing to clean up yet: an exception in the middle of one may be
    swallowed by code that tries several ways to import something, and leave a module half there. A handler
    that raises nothing, such as that of a server, stays.
    """
    raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not raises or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that incomplete files are removed."""

    def leave(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
