"""Programs for ranks of tests: a storage server, or a trainer that fetches from some."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gigl_loader.native import draws
from gigl_loader.rpc import versions

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = f"{__name__}:serve_or_train"


def serve_or_train(
    *,
    serve: Sequence[str] | None = None,
    wire_version: int | None = None,
    oldest_wire_version: int | None = None,
    draw_specification: int | None = None,
    **training: Any,
) -> None:
    """Do what ``gigl-loader serve`` does with these arguments, or train.

    The server passes for one of another build: with another wire version, alone or with older ones, and with
    another draw specification. What it reads, sends and draws is that of this build.
    """
    if serve is None:
        from tests.support.training import train  # Imports torch, which servers do without.

        train(**training)
        return
    if wire_version is not None:
        versions.WIRE_VERSION = wire_version
        versions.OLDEST_WIRE_VERSION = oldest_wire_version or wire_version
    if draw_specification is not None:
        draws.DRAW_SPECIFICATION = draw_specification
    from gigl_loader.cli import main

    sys.argv = ["gigl-loader", "serve", *serve]
    main()
