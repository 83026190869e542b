"""Faults of the lines to a service: proxies before its two ports, at an address of their own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.chaos.faults import Fault

__all__ = ["ADDRESS", "LINE_KINDS", "disturb"]

ADDRESS = "127.0.0.77"
"""What services behind proxies advertise. They listen at 127.0.0.1, on the same ports."""
LINE_KINDS = ("cut line", "silent line", "slow line", "half-closed line", "bit flip on the wire")


def disturb(lines: Sequence[Proxy], fault: Fault) -> None:
    """Commit a fault of a line, and undo it where it lasts. ``lines`` are those to control and data port."""
    both = fault.choice & 1
    chosen = list(lines) if both else [lines[(fault.choice >> 1) % len(lines)]]
    match fault.kind:
        case "cut line":
            _for_a_while(chosen, fault.seconds, Proxy.cut)
        case "silent line":
            _for_a_while(chosen, fault.seconds, Proxy.stall)
        case "half-closed line":
            for line in chosen:
                line.half_close()
        case "slow line":
            for line in chosen:
                line.latency_s, line.bytes_per_second = 0.01, 2_000_000
            time.sleep(fault.seconds)
            for line in chosen:
                line.latency_s = line.bytes_per_second = 0
        case "bit flip on the wire":
            for line in chosen:
                line.flip(fault.choice >> 8)


def _for_a_while(lines: Sequence[Proxy], seconds: float, change: object) -> None:
    assert callable(change)
    for line in lines:
        change(line)
    time.sleep(seconds)
    for line in lines:
        line.resume()
