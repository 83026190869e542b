"""Texts from other processes and from files, as they may be shown: in a terminal, a log, a page, an error."""

from __future__ import annotations


def printable(text: object, most: int | None = None) -> str:
    """Return a text as one line that nothing interprets, with at most ``most`` characters of it.

    Escaped as in a literal of Python: control characters (escape sequences, line breaks), characters that
    change the direction of others, invisible ones, separators but the space, and halves of surrogate pairs.
    """
    shown = str(text)
    if most is not None and len(shown) > most:
        shown = f"{shown[:most]}..."
    if shown.isprintable():
        return shown
    return "".join(each if each.isprintable() else _escaped(each) for each in shown)


def printable_lines(text: object) -> str:
    """Return a text of several lines, each as by ``printable``."""
    return "\n".join(map(printable, str(text).split("\n")))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
