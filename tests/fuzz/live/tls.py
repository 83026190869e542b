"""TLS records: greetings that are changed, and records that are none."""

from __future__ import annotations

import random
import ssl
import struct
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fuzz.live.target import Target


def throw_records(target: Target, draw: random.Random, count: int) -> Counter[str]:
    """Send ``count`` records. After most of them the other side hangs up: each has its own connection."""
    sent: Counter[str] = Counter()
    for _ in range(count):
        kind = draw.choice(("ClientHello, changed", "ClientHello, cut", "records at random"))
        port = draw.choice((target.control_port, target.data_port))
        with suppress(OSError), target.connect(port) as connection:
            connection.sendall(_record(kind, draw))
        sent[f"TLS: {kind}"] += 1
    return sent


def _record(kind: str, draw: random.Random) -> bytes:
    hello = _client_hello(draw)
    if kind == "ClientHello, cut":
        return hello[: draw.randrange(1, len(hello))]
    if kind == "ClientHello, changed":
        changed = bytearray(hello)
        for _ in range(draw.randrange(1, 9)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        return bytes(changed)
    body = draw.randbytes(draw.randrange(200))
    size = draw.choice((len(body), draw.randrange(1 << 16)))
    return struct.pack(">BHH", draw.choice((20, 21, 22, 23, 24, draw.randrange(256))), 0x0303, size) + body


def _client_hello(draw: random.Random) -> bytes:
    """Return a good greeting. Its random parts are those of OpenSSL: a seed does not repeat them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "x" * draw.randrange(1, 200)])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    name = draw.choice(("localhost", "a" * 60, "xn--\\u0007".encode("ascii").decode()))
    session = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()
