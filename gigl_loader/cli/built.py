"""Options and output that the commands share which build a graph."""

from __future__ import annotations

import json as json_module
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gigl_loader.graph import GraphSchema

__all__ = ["EdgeDirection", "report", "working_memory"]

_LEAST_BYTES = 32 << 20


class EdgeDirection(str, Enum):
    """Which edges of a node its list holds."""

    inward = "in"
    outward = "out"


def working_memory(text: str) -> int:
    """Return what a limit for the whole process leaves to work with.

    An eighth is kept back: readers decode, and allocators keep some of what is freed.
    """
    from gigl_loader.partition.limits import parse_bytes, resident_bytes

    limit, taken = parse_bytes(text), resident_bytes()
    if limit - taken < _LEAST_BYTES:
        raise ValueError(
            f"a memory limit of {text} is too small: the program itself takes {taken >> 20} MiB; "
            f"give at least {(taken + _LEAST_BYTES) >> 20}MiB"
        )
    return (limit - taken) * 7 // 8


def report(out: Path, schema: GraphSchema, seconds: float, *, as_json: bool) -> None:
    """Say what was built, in one line or as JSON."""
    nodes = sum(entry.count for entry in schema.nodes.values())
    edges = sum(entry.count for entry in schema.edges.values())
    if as_json:
        print(json_module.dumps({"path": str(out), "seconds": round(seconds, 3), "schema": schema.to_json()}))
        return
    parts = f"{schema.num_partitions} part{'s' if schema.num_partitions > 1 else ''}"
    print(f"{out}: {nodes:,} nodes, {edges:,} edges in {parts}, {seconds:.1f} s")
