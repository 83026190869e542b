"""Whether every part of a service lives, and what its process holds."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from grpc_health.v1 import health_pb2, health_pb2_grpc

from gigl_loader.rpc.requests import Envelope, encode_ping
from tests.fuzz.live.calls import control_channel
from tests.fuzz.live.target import Target
from tests.fuzz.live.tickets import data_caller

_ALIVE_S = 20.0


@dataclass(frozen=True, slots=True)
class Vitals:
    """What a process holds."""

    rss_bytes: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Vitals:
        status = Path(f"/proc/{pid}/statm").read_text().split()
        return cls(
            int(status[1]) * os.sysconf("SC_PAGE_SIZE"),
            len(os.listdir(f"/proc/{pid}/fd")),
            len(os.listdir(f"/proc/{pid}/task")),
        )


def dead_parts(target: Target) -> list[str]:
    """Ask every part of a service, over connections of their own, and return those that do not answer."""
    parts: dict[str, Callable[[Target], None]] = {"control port": _control, "data port": _data}
    if target.ring_socket:
        parts["ring server"] = _ring_server
    reasons = {name: _reason(ask, target) for name, ask in parts.items()}
    return [f"{name} of the {target.name}: {reason}" for name, reason in reasons.items() if reason]


def _reason(ask: Callable[[Target], None], target: Target) -> str:
    """Return why a part does not answer; empty if it does."""
    try:
        ask(target)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ""


def _control(target: Target) -> None:
    with control_channel(target) as channel:
        request = health_pb2.HealthCheckRequest(service="")
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=_ALIVE_S)
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise ConnectionError(f"its health is {answer.status}")


def _data(target: Target) -> None:
    with data_caller(target) as caller:
        caller.ask(encode_ping(Envelope(graph=target.graph, partition=0)), timeout_s=_ALIVE_S)


def _ring_server(target: Target) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as knocker:
        knocker.settimeout(_ALIVE_S)
        knocker.connect("\0" + target.ring_socket)
        knocker.send(bytes(16))
        if knocker.recv(16) != b"\0":
            raise ConnectionError("it did not say that there is no such ring")
