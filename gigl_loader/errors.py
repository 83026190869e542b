"""Exceptions, by what the catcher can do about each.

::

    Exception
    ├── ValueError, TypeError      the caller's mistake: mend the call
    ├── TimeoutError               nothing arrived in time: the message says who is alive and doing what
    └── GiglError
        ├── FormatError            bytes (a frame, a file, a table) that break a rule: mend or rebuild them
        ├── BuildError             a build lost its processes or its cluster: start or resume it
        └── SamplingError          one batch failed: go on with the next, or stop
            ├── WorkerDied         a sampling process ended and may not be restarted again
            └── StorageUnavailable a host that holds a partition does not answer: ask again later
"""

from __future__ import annotations

import sys
from typing import TypeVar

Failure = TypeVar("Failure", bound=Exception)


class GiglError(Exception):
    """Base of every failure that is not the caller's mistake."""


class FormatError(GiglError):
    """Bytes that break a rule of their format. The message names what was read and the rule."""


class BuildError(GiglError):
    """A build cannot go on: its processes or its cluster are gone. The message says which, and of what."""


class SamplingError(GiglError):
    """A batch could not be sampled. The message names the batch; a note carries the far traceback."""


class WorkerDied(SamplingError):
    """A sampling process cannot start, or died more often than ``max_worker_restarts`` allows."""


class StorageUnavailable(SamplingError):
    """A host that holds a partition did not answer before the deadline.

    The message names it, says for how long it was asked, and gives the last error. Nothing was
    consumed: asking for the batch again is safe.
    """


_EXTRAS = {"torch": "train", "torch_geometric": "train", "pyarrow": "tables"}


def naming_extra(error: ImportError) -> ImportError:
    """Return an error that names the extra with the missing library; ``error`` itself for other libraries."""
    library = (error.name or "").partition(".")[0]
    if (extra := _EXTRAS.get(library)) is None:
        return error
    return ModuleNotFoundError(
        f"{library} is not installed: pip install 'gigl-loader[{extra}]'", name=error.name
    )


def add_note(error: BaseException, note: str) -> None:
    """Add a note, which ``traceback`` prints below the message from Python 3.11 on."""
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:  # Same place, so that pytest and other readers of notes find it.
        error.__notes__ = [*getattr(error, "__notes__", []), note]


def strip_traceback(error: Failure) -> Failure:
    """Return an error that is kept: without cause, context and traceback, whose frames keep memory alive."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
