"""Refusals of tables that options of the command line would mend."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from gigl_loader.errors import FormatError


class OptionsNeeded(FormatError, ValueError):
    """Tables that cannot be built from as they are. ``options`` of the command line would help.

    Where a table can be read in several ways, ``readings`` has the options of each, and ``options`` those
    that all of them need besides.
    """

    def __init__(
        self, problems: Sequence[str], options: Sequence[str], readings: Sequence[Sequence[str]] = ()
    ) -> None:
        self.problems = "; ".join(problems)
        self.options = list(options)
        self.readings = [list(each) for each in readings]
        added = " or ".join(shlex.join([*options, *each]) for each in self.readings or [[]])
        super().__init__(self.problems + (f". Add {added}" if added else ""))


def quoted(name: str) -> str:
    """Return the name of a column as options write it: in double quotes if it has a character of theirs."""
    return '"' + name.replace('"', '""') + '"' if set(name) & set('=,:"*?[') else name
