"""Command that a refusal of tables prints: it has passed the checks that refused the one that was given."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, get_type_hints

from gigl_loader.cli.build_options import TableOptions
from gigl_loader.cli.table_options import open_tables
from gigl_loader.errors import FormatError
from gigl_loader.partition.refusals import OptionsNeeded

_ROUNDS = 4
"""Refusals of which the options are put together."""


@contextmanager
def printing_a_command(options: TableOptions) -> Iterator[None]:
    """Add to a refusal of tables the whole command with the options that it needs, of each reading.

    A command that would be refused in turn is not printed.
    """
    try:
        yield
    except OptionsNeeded as error:
        readings = [[*error.options, *each] for each in error.readings or [[]]]
        found = [passing for each in readings if each and (passing := passing_options(options, each))]
        if not found:
            raise ValueError(error.problems) from error
        commands = [shlex.join(["gigl-loader", *sys.argv[1:], *each]) for each in found]
        what = "This would work" if len(error.readings) < 2 else "Choose"
        raise ValueError(f"{error.problems}. {what}: {'; or: '.join(commands)}") from error


def passing_options(options: TableOptions, added: Sequence[str]) -> list[str]:
    """Return added options, and those that are needed then, with which the tables pass. Empty: none do."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # They were given when the tables were opened first.
    try:
        found = list(added)
        for _ in range(_ROUNDS):
            if (needed := _needed(with_options(options, found))) is None:
                return []
            if not needed:
                return found
            found += needed
        return []
    finally:
        logging.disable(before)


def _needed(options: TableOptions) -> list[str] | None:
    """Return what the tables of a command need besides. ``None``: no option helps."""
    try:
        open_tables(options)
    except OptionsNeeded as error:
        return error.options if error.options and not error.readings else None
    except (ValueError, TypeError, FormatError, OSError):
        return None
    return []


def with_options(options: TableOptions, added: Sequence[str]) -> TableOptions:
    """Return the options with others, such as ``["--drop", "title"]``, as if these had been given last."""
    hints = get_type_hints(TableOptions, include_extras=True)
    names = {_flag(name, hint): name for name, hint in hints.items()}
    types = get_type_hints(TableOptions)
    for flag, value in zip(added[::2], added[1::2], strict=True):
        name = names[flag]
        before = getattr(options, name)
        after: Any = [*before, value] if isinstance(before, list) else types[name](value)
        options = replace(options, **{name: after})
    return options


def _flag(name: str, hint: Any) -> str:
    [option] = hint.__metadata__
    return option.default if isinstance(option.default, str) else "--" + name.replace("_", "-")
