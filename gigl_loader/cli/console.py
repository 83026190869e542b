"""Console that tables are printed to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["table_console"]


def table_console() -> Console:
    """Return standard output: as wide as the terminal, and wide where it is none.

    A file or a pipe has no width of its own, and rich's 80 would break tables or cut them off.
    """
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=160)
