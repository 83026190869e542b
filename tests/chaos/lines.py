"""Faults of the lines to a service: proxies before its two ports, at an address of their own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.chaos.faults import Fault

ADDRESS = "127.0.0.77"
"""What services behind proxies advertise. They listen at 127.0.0.1, on the same ports."""
LINE_KINDS = ("cut line", "silent line", "slow line", "half-closed line", "bit flip on the wire")

BURST_KINDS = (
    "flipping line",
    "flipping line",
    "cut line",
    "silent line",
    "dropping line",
    "half-closed line",
)
"""Faults of a moment: all of them end within ``timeout``, and none may be raised."""
_BYTES_PER_FLIP = (200, 2_000, 20_000, 100_000)


def disturb(lines: Sequence[Proxy], fault: Fault) -> None:
    """Commit a fault of a line, and undo it where it lasts. ``lines`` are those to control and data port."""
    both = fault.choice & 1
    chosen = list(lines) if both else [lines[(fault.choice >> 1) % len(lines)]]
    for line in chosen:
        match fault.kind:
            case "cut line":
                line.cut()
            case "silent line":
                line.stall()
            case "dropping line":
                line.drop()
            case "slow line":
                line.slow_down()
            case "flipping line":
                line.flip_bits(_BYTES_PER_FLIP[(fault.choice >> 8) % len(_BYTES_PER_FLIP)], fault.choice)
            case "half-closed line":
                line.half_close()
            case "bit flip on the wire":
                line.flip(fault.choice >> 8)
    if fault.kind not in ("half-closed line", "bit flip on the wire"):
        time.sleep(fault.seconds)
        for line in chosen:
            line.resume()
