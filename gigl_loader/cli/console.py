"""Terminal output: the console that tables are printed to, and progress bars."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

_LINE_EVERY_S = 30.0


@contextmanager
def build_progress(*, quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """Show a bar for each step on standard error: call it with the step, the rows done and all rows.

    Where that is no terminal, a line is written twice a minute. With ``quiet``, ``None`` is lent.
    """
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def show(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=total)
            bars.update(tasks[step], completed=done)

        yield show


def _lines() -> Callable[[str, int, int], None]:
    began = last = time.monotonic()

    def show(step: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _LINE_EVERY_S:
            last = now
            line = f"gigl-loader: {step}: {done:,} of {total:,}, {now - began:.0f} s since the start"
            print(line, file=sys.stderr, flush=True)

    return show


def table_console() -> Console:
    """Return standard output: as wide as the terminal, and wide where it is none.

    A file or a pipe has no width of its own, and rich's 80 would break tables or cut them off.
    """
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=160)
