"""Notes on exceptions, for every Python that is supported."""

from __future__ import annotations

import sys

__all__ = ["add_note"]


def add_note(error: BaseException, note: str) -> None:
    """Add a note, which ``traceback`` prints below the message from Python 3.11 on."""
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:  # Same place, so that pytest and other readers of notes find it.
        error.__notes__ = [*getattr(error, "__notes__", []), note]
