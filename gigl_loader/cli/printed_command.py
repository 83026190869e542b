"""Command that a refusal of tables prints: it has passed the checks that refused the one that was given."""

from __future__ import annotations

import logging
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, get_type_hints

from gigl_loader.cli.build_options import TableOptions
from gigl_loader.cli.table_options import open_tables
from gigl_loader.errors import FormatError
from gigl_loader.partition.refusals import OptionsNeeded

_ROUNDS = 4
"""Refusals of which the changes are put together."""
_MOST = 4
"""Commands that a refusal prints."""
_FILES = ("edges", "nodes", "joins", "labels", "splits")
"""Options that name files of tables."""


@dataclass(frozen=True, slots=True)
class Change:
    """Change of a command: options that are added, and what is given in place of the FILES of others."""

    added: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    def then(self, other: Change) -> Change:
        """Return both changes as one."""
        return Change([*self.added, *other.added], {**self.files, **other.files})

    def in_place(self, value: str) -> str:
        """Return the value of an option with what is given in place of its FILES."""
        for old, new in self.files.items():
            if value == old or value.endswith(f"={old}"):
                return value.removesuffix(old) + new
        return value


@contextmanager
def printing_a_command(options: TableOptions) -> Iterator[None]:
    """Add to a refusal of tables the whole command with the changes that it needs, of each reading.

    A command that would be refused in turn is not printed.
    """
    try:
        yield
    except OptionsNeeded as error:
        changes = _changes(error)
        found = [passing for each in changes for passing in passing_changes(options, each)][:_MOST]
        if not found:
            raise ValueError(error.problems) from error
        given = [[each.in_place(value) for value in sys.argv[1:]] + [*each.added] for each in found]
        commands = [" ".join(["gigl-loader", *map(_in_quotes, each)]) for each in given]
        what = "This would work" if len(changes) == len(found) == 1 else "Choose"
        raise ValueError(f"{error.problems}. {what}: {'; or: '.join(commands)}") from error


def passing_changes(options: TableOptions, change: Change) -> list[Change]:
    """Return the change with what is needed then, in each way in which the tables pass."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # They were given when the tables were opened first.
    try:
        return _passing(options, change, _ROUNDS)
    finally:
        logging.disable(before)


def _passing(options: TableOptions, change: Change, rounds: int) -> list[Change]:
    changed = with_options(options, change)
    if rounds == 0 or changed == options:
        return []
    try:
        open_tables(changed)
    except OptionsNeeded as error:
        needed = (change.then(each) for each in _changes(error))
        return [passing for each in needed for passing in _passing(options, each, rounds - 1)]
    except (ValueError, TypeError, FormatError, OSError):
        return []
    return [change]


def _changes(error: OptionsNeeded) -> list[Change]:
    """Return the changes by which a refused command may pass, one for each reading."""
    readings = [Change([*error.options, *each]) for each in error.readings]
    readings += [Change(error.options, each) for each in error.files]
    return readings or ([Change(error.options)] if error.options else [])


def with_options(options: TableOptions, change: Change) -> TableOptions:
    """Return the changed options, as if added ones, ``["--drop", "title"]``, had been given last."""
    hints = get_type_hints(TableOptions, include_extras=True)
    names = {_flag(name, hint): name for name, hint in hints.items()}
    types = get_type_hints(TableOptions)
    for name in _FILES:
        files: Any = [*map(change.in_place, getattr(options, name))]
        options = replace(options, **{name: files})
    for flag, value in zip(change.added[::2], change.added[1::2], strict=True):
        name = names[flag]
        before = getattr(options, name)
        convert: Any = types[name] if isinstance(types[name], type) else str
        after: Any = [*before, value] if isinstance(before, list) else convert(value)
        options = replace(options, **{name: after})
    return options


def _in_quotes(word: str) -> str:
    """Return a word as a shell reads it: in double quotes where it has single ones, as queries do."""
    plain = "'" in word and re.fullmatch(r'(?:[^"$`!\\]|\\(?![$`"\\\n]))*', word)
    return f'"{word}"' if plain else shlex.quote(word)


def _flag(name: str, hint: Any) -> str:
    [option] = hint.__metadata__
    return option.default if isinstance(option.default, str) else "--" + name.replace("_", "-")
