"""Control calls with changed messages, with a token, a wrong one or none."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import grpc

from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.control import METHODS, SERVICE, STORE_METHODS, STORE_SERVICE
from tests.fuzz.live.target import CALL_S
from tests.support.hostile_clients import PLAN

if TYPE_CHECKING:
    from tests.fuzz.live.target import Target

_AT_ONCE = 32


def throw_messages(target: Target, draw: random.Random, count: int) -> Counter[str]:
    """Make ``count`` calls, some dozens at a time."""
    sent: Counter[str] = Counter()
    valid = _valid(target, draw)
    with control_channel(target) as channel:
        while sent.total() < count:
            calls = [
                _call(channel, target, valid, draw, sent) for _ in range(min(_AT_ONCE, count - sent.total()))
            ]
            for call in calls:
                call.exception()
    return sent


def _call(
    channel: Any, target: Target, valid: dict[tuple[str, str], bytes], draw: random.Random, sent: Counter[str]
) -> Any:
    service, method = draw.choice(list(valid))
    token = draw.choice((target.token, target.token, target.token[:-1] + "x", ""))
    headers = [("gigl-job", f"{draw.randrange(8):064x}")]
    if token:
        headers.append(("authorization", f"Bearer {token}"))
    data = (
        changed(valid[service, method], draw) if draw.random() < 0.9 else draw.randbytes(draw.randrange(300))
    )
    kind = "with the token" if token == target.token else "without the token"
    sent[f"control calls {kind}"] += 1
    return channel.unary_unary(f"/{service}/{method}").future(data, metadata=headers, timeout=CALL_S)


def control_channel(target: Target) -> Any:
    """Return a gRPC channel to the control port."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    if target.certificate:
        trust = grpc.ssl_channel_credentials(target.certificate.encode())
        return grpc.secure_channel(target.control, trust, options)
    return grpc.insecure_channel(target.control, options)


def changed(data: bytes, draw: random.Random) -> bytes:
    """Return bytes with some changed, cut off, added or repeated."""
    found = bytearray(data)
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(found) + 1)
        match draw.randrange(5):
            case 0 if found:
                found[min(at, len(found) - 1)] = draw.choice((0, 1, 127, 128, 255, draw.randrange(256)))
            case 1:
                del found[at:]
            case 2:
                found[at:at] = draw.randbytes(draw.randrange(1, 9))
            case 3:
                found[at:at] = found[at : at + 16]
            case _:
                found[at : at + 4] = draw.choice((b"\xff" * 4, b"\0" * 4, b"99999999", b"-1", b"[[[["))
    return bytes(found)


def _valid(target: Target, draw: random.Random) -> dict[tuple[str, str], bytes]:
    """Return a good message of every call. No valid one stays: what is made is reclaimed with its lease."""
    channel = draw.randbytes(16)
    told: dict[str, dict[str, Any]] = {
        "CreateProducer": {"key": "key", "plan": PLAN.to_json(), "graph": target.graph},
        "OpenChannel": {"key": "key", "name": "fuzz", "credit": 4, "share": 1},
        "Heartbeat": {"channels": [channel]},
        "CloseChannel": {"channel": channel},
        "DestroyProducer": {"key": "key"},
    }
    peer = {(SERVICE, name): kind().SerializeToString() for name, (kind, _) in METHODS.items()}
    check = messages.CreateProducerRequest(key="gigl.v1.Peer").SerializeToString()  # As Health reads it.
    peer["grpc.health.v1.Health", "Check"] = check
    peer["grpc.health.v1.Health", "List"] = b""
    store = {
        (STORE_SERVICE, name): kind(**told.get(name, {})).SerializeToString()
        for name, (kind, _) in STORE_METHODS.items()
    }
    return peer | store
