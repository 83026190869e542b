"""Log of a script, turned on from outside: ``GIGL_LOG=debug python train.py``."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from gigl_loader.group import RankGroup
from gigl_loader.printable import printable, printable_lines

LOG_VARIABLE = "GIGL_LOG"

_LEVELS = ("debug", "info", "warning", "error")
_PACKAGES = ("gigl_loader", "gigl_client")
_FORMAT = "%(asctime)s %(levelname)s %(rank)s%(name)s: %(message)s"


class PrintableFormatter(logging.Formatter):
    """Formatter whose lines show texts of other processes and of files as by ``printable``.

    A message is one line. A traceback keeps its lines.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


class RankFilter(logging.Filter):
    """Gives each record the attribute ``rank``: ``"rank 3 "`` in a process group, else empty.

    For ``%(rank)s`` in the format of a handler: ``handler.addFilter(RankFilter())``. It is the rank when the
    line is written, or that of torchrun's ``RANK`` while there is no process group, as in sampling processes.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._launched = (os.environ if environment is None else environment).get("RANK", "")

    def filter(self, record: logging.LogRecord) -> bool:
        """Return true for every record."""
        group = RankGroup.current()
        rank = self._launched if group is None else str(group.rank)
        record.rank = f"rank {rank} " if rank else ""
        return True


def log_from_environment(environment: Mapping[str, str] | None = None) -> None:
    """Let this library log from the level that ``GIGL_LOG`` names: ``debug`` shows every request.

    Messages go to the handlers of the script, and to stderr where it has none, with the rank. Without the
    variable nothing changes. ``ValueError`` for another level. Datasets call it when they are made, several
    times where there are several.
    """
    given = (os.environ if environment is None else environment).get(LOG_VARIABLE, "")
    if not given:
        return
    if given.lower() not in _LEVELS:
        raise ValueError(f"{LOG_VARIABLE} must be one of {', '.join(_LEVELS)}, got {given!r}")
    for name in _PACKAGES:
        logger = logging.getLogger(name)
        logger.setLevel(given.upper())
        if not logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(PrintableFormatter(_FORMAT))
            handler.addFilter(RankFilter(environment))
            logger.addHandler(handler)
