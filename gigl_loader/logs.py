"""Log of a script, turned on from outside: ``GIGL_LOG=debug python train.py``."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

LOG_VARIABLE = "GIGL_LOG"

_LEVELS = ("debug", "info", "warning", "error")
_PACKAGES = ("gigl_loader", "gigl_client")
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_from_environment(environment: Mapping[str, str] | None = None) -> None:
    """Let this library log from the level that ``GIGL_LOG`` names: ``debug`` shows every request.

    Messages go to the handlers of the script, and to stderr where it has none. Without the variable nothing
    changes. ``ValueError`` for another level. Datasets call it when they are made. Calling it again is fine.
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
            handler.setFormatter(logging.Formatter(_FORMAT))
            logger.addHandler(handler)
