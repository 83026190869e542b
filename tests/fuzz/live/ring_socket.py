"""Knocks at the socket that hands out rings."""

from __future__ import annotations

import os
import random
import socket
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.fuzz.live.target import CALL_S

if TYPE_CHECKING:
    from tests.fuzz.live.target import Target


def knock_at(target: Target, draw: random.Random, count: int) -> Counter[str]:
    """Knock ``count`` times, with names of channels that are none."""
    for _ in range(count):
        size = draw.choice((0, 1, 15, 16, 16, 16, 17, 10_000))
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as knocker:
            knocker.settimeout(CALL_S)
            knocker.connect("\0" + target.ring_socket)
            knocker.send(draw.randbytes(size))
            if draw.random() < 0.5:
                _, files, _, _ = socket.recv_fds(knocker, 16, 4)
                for file in files:
                    os.close(file)
    return Counter({"ring server": count})
