"""Hooks of the site: links out of ``docs``, and arguments in docstrings."""

from __future__ import annotations

import re
from typing import Any

import griffe

_OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)]*)\)")
_ROLE = re.compile(r":(?:class|meth|attr|func):`~?([\w.]+)`")
_ARGUMENT = re.compile(r"^(``.+``)\n((?:    .*\n?)+)", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page with ``text (path)`` in place of links to files that the site does not have."""
    return _OUTSIDE.sub(_named, markdown)


def _named(link: re.Match[str]) -> str:
    text, path = link.groups()
    return text if text.strip("`") in path else f"{text} (`{path}`)"


class Arguments(griffe.Extension):
    """Turns the arguments in a docstring, which are indented below their names, into a list."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _ARGUMENT.sub(_item, _ROLE.sub(r"`\1`", obj.docstring.value))


def _item(argument: re.Match[str]) -> str:
    name, text = argument.groups()
    return f"- {name}: {' '.join(text.split())}\n"
