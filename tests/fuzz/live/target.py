"""Service under attack: where its ports are, and what a caller with a token knows."""

from __future__ import annotations

import random
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

CALL_S = 5.0
"""Deadline of anything that an attacker waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """All of it is plain data: attackers are other processes."""

    name: str
    host: str
    control_port: int
    data_port: int
    token: str
    certificate: str
    """PEM; empty: plain text."""
    graph: str
    """Digest."""
    ring_socket: str
    """Name of the abstract socket that hands out rings; empty: none."""

    @property
    def control(self) -> str:
        return f"{self.host}:{self.control_port}"

    @property
    def data(self) -> str:
        return f"{self.host}:{self.data_port}"

    def connect(self, port: int) -> socket.socket:
        """Return a plain TCP connection. Nothing leaves this machine."""
        assert self.host == "127.0.0.1"
        return socket.create_connection((self.host, port), CALL_S)


Throw: TypeAlias = Callable[[Target, random.Random, int], Counter[str]]
"""Sends ``count`` requests, and returns how many of which kind were sent."""
