"""Terminal output: lines, the console that tables are printed to, and progress bars.

Texts of other processes and of files are shown as they are: nothing in them is interpreted.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from gigl_loader.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console
    from rich.text import Text

_LINE_EVERY_S = 30.0


def say(text: object, *, file: TextIO | None = None) -> None:
    """Print a line, by default to standard output."""
    print(printable(text), file=file, flush=True)


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
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    described = TextColumn("{task.description}", markup=False)
    columns = (described, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=plain_console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def show(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(printable(step), total=total)
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
            say(line, file=sys.stderr)

    return show


def table_console() -> Console:
    """Return standard output: as wide as the terminal, and wide where it is none.

    A file or a pipe has no width of its own, and rich's 80 would break tables or cut them off.
    """
    console = plain_console()
    return console if console.is_terminal else plain_console(width=160)


def plain_console(**options: Any) -> Console:
    """Return a console of rich that shows every text, also those of cells, as by ``printable``.

    It reads no markup and no names of emoji. What has a style is a ``rich.text.Text``: see ``styled``.
    """
    from rich.console import Console

    class PlainConsole(Console):
        def render_str(self, text: str, **options: Any) -> Any:
            return super().render_str(printable(text), **{**options, "markup": False, "emoji": False})

    return PlainConsole(**options)


def styled(text: object, style: str) -> Text:
    """Return a text for a console in a style, shown as by ``printable``."""
    from rich.text import Text

    return Text(printable(text), style=style)
