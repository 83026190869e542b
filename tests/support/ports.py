"""Ports for those who must name one before somebody listens on it."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

_LOWEST = 10_000
_DRAWS = random.SystemRandom()
"""Not the seeded generator: tests that run beside each other must draw different ports."""


def free_port(address: str = "127.0.0.1", *, count: int = 1) -> int:
    """Return the first of ``count`` neighbouring ports on which nobody listens at ``address``.

    They lie below those that the kernel gives to outgoing connections and to port 0. One of those could be
    taken, by any process of the machine, before the test listens on it.
    """
    highest = _ephemeral_ports()[0] - count
    for _ in range(1000):
        port = _DRAWS.randint(_LOWEST, highest)
        try:
            with ExitStack() as taken:
                for each in range(port, port + count):
                    taken.enter_context(socket.create_server((address, each)))
        except OSError:
            continue
        return port
    raise AssertionError(f"no {count} neighbouring ports are free between {_LOWEST} and {highest}")


def _ephemeral_ports() -> tuple[int, int]:
    lowest, highest = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return int(lowest), int(highest)
