"""Programs for ranks of tests: a storage server, or a trainer that fetches from some."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tests.support.training import train

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PROGRAM", "serve_or_train"]

PROGRAM = f"{__name__}:serve_or_train"


def serve_or_train(
    *, serve: Sequence[str] | None = None, wire_version: int | None = None, **training: Any
) -> None:
    """Do what ``gigl-loader serve`` does with these arguments, or train.

    ``wire_version`` is another than a server of this version really speaks.
    """
    if serve is None:
        train(**training)
        return
    if wire_version is not None:
        from gigl_loader.rpc import requests

        requests.WIRE_VERSION = wire_version
    from gigl_loader.cli import main

    sys.argv = ["gigl-loader", "serve", *serve]
    main()
