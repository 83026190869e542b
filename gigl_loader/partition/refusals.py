"""Refusals of tables that options of the command line would mend."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import EdgeType, NodeType


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
    return _in_quotes(name) if set(name) & set('=,:"*?[') else name


def type_text(kind: NodeType | EdgeType) -> str:
    """Return a type as options write it: names with a character of theirs are in double quotes."""
    names = [kind] if isinstance(kind, str) else kind
    return ",".join(_in_quotes(name) if set(name) & set('=,:"/') else name for name in names)


def _in_quotes(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
