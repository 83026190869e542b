"""Latency of an honest caller's calls while strangers, who have no token, attack both ports of its server."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import grpc
import numpy as np
from hostile_server import HostileServer

from gigl_loader.native import DataClient, StreamError, TlsContext
from gigl_loader.rpc.graph_requests import ManifestRequest, encode_graph_request

__all__ = ["LATENCY_RATIO", "measure_latency", "missed_by_latency"]

LATENCY_RATIO, LATENCY_MB = 3.0, 64.0
"""Of the 99th percentile alone, and what strangers hold of both ports together."""
_PROGRAM = Path(__file__).with_name("hostile_strangers.py")
_SPIN = "while True: pass"
_CALL_S, _PAUSE_S, _SETTLE_S, _END_S = 20.0, 0.02, 1.0, 60.0
_PERCENTILE = 99.0


def measure_latency(
    graph: Path,
    folder: Path,
    behaviours: Sequence[str],
    counts: Sequence[int],
    *,
    rounds: int,
    seconds: float,
    cores: Sequence[int],
) -> dict[str, dict[str, float]]:
    """Return figures by behaviour, number of strangers, and plain text or TLS: medians of rounds.

    A round measures the caller alone, beside one busy process, and beside the strangers, each for
    ``seconds``. Strangers and the busy process have ``cores``.
    """
    figures: dict[str, dict[str, float]] = {}
    for tls in (False, True):
        with HostileServer.running(graph, folder, callers=0, tls=tls) as server, _Caller(server) as caller:
            caller.measure(seconds)  # The server is warm now.
            for behaviour in behaviours:
                for count in counts:
                    name = f"{count} {behaviour}, {'TLS' if tls else 'plain'}"
                    print(name, file=sys.stderr, flush=True)
                    chosen = behaviour, count
                    measured = [_round(server, caller, chosen, seconds, cores) for _ in range(rounds)]
                    figures[name] = {
                        figure: statistics.median(each[figure] for each in measured) for figure in measured[0]
                    }
                    figures[name]["failed"] = sum(each["failed"] for each in measured)
                    print(json.dumps(figures[name]), file=sys.stderr, flush=True)
    return figures


def missed_by_latency(figures: dict[str, dict[str, float]]) -> list[str]:
    """Return the targets that were missed."""
    found = []
    for name, each in figures.items():
        found += [
            f"{name}: {kind} calls take {each[f'{kind}_ratio']:.1f} times as long"
            for kind in ("data", "new", "control")
            if each[f"{kind}_ratio"] > LATENCY_RATIO
        ]
        if each["failed"]:
            found.append(f"{name}: {each['failed']:.0f} calls failed")
        if each["peak_mb"] > LATENCY_MB:
            found.append(f"{name}: strangers hold {each['peak_mb']:.0f} MB")
    return found


def _round(
    server: HostileServer,
    caller: _Caller,
    strangers: tuple[str, int],
    seconds: float,
    cores: Sequence[int],
) -> dict[str, float]:
    with _running([sys.executable, "-c", _SPIN], cores):
        alone = caller.measure(seconds)
    scene = json.dumps(asdict(server.scene) | {"token": ""})
    behaviour, count = strangers
    arguments = [behaviour, str(seconds + _SETTLE_S + _END_S), scene, str(count)]
    before = server.held
    with server.watched(), _running([sys.executable, str(_PROGRAM), *arguments], cores) as attack:
        assert attack.stdout is not None
        attack.stdout.readline()
        time.sleep(_SETTLE_S)
        beside = caller.measure(seconds)
    figures = {"failed": beside["failed"], "peak_mb": (server.peak - before).memory_mb}
    for kind in ("data", "new", "control"):
        figures[f"{kind}_alone_ms"] = alone[kind] * 1e3
        figures[f"{kind}_ms"] = beside[kind] * 1e3
        figures[f"{kind}_ratio"] = beside[kind] / alone[kind]
    return figures


@contextmanager
def _running(command: Sequence[str], cores: Sequence[int]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    os.sched_setaffinity(process.pid, cores)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=_END_S)


class _Caller:
    """A caller with a token: calls on a data connection that stays, on new ones, and on the control port."""

    def __init__(self, server: HostileServer) -> None:
        scene = server.scene
        self._token = f"authorization: Bearer {scene.token}\n".encode()
        self._metadata = [("authorization", f"Bearer {scene.token}")]
        host, _, port = scene.data.rpartition(":")
        self._place = host, int(port)
        certificate = scene.certificate.encode()
        self._tls = TlsContext.client(certificate) if certificate else None
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        self._channel = (
            grpc.secure_channel(scene.control, grpc.ssl_channel_credentials(certificate), options)
            if certificate
            else grpc.insecure_channel(scene.control, options)
        )
        self._load = self._channel.unary_unary("/gigl.v1.GraphStore/Load")
        self._request = encode_graph_request(ManifestRequest(), "")
        self._stack = ExitStack()

    def __enter__(self) -> _Caller:
        self._stack.callback(self._channel.close)
        self._held = self._connected()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def measure(self, seconds: float) -> dict[str, float]:
        """Return the 99th percentile of each kind of call in seconds, and how many calls failed."""
        end = time.monotonic() + seconds
        seen: dict[str, list[float]] = {"data": [], "new": [], "control": []}
        failed: list[str] = []

        def keep(kind: str, call: Callable[[], None], pause_s: float) -> None:
            while time.monotonic() < end:
                began = time.perf_counter()
                try:
                    call()
                except (StreamError, grpc.RpcError) as error:
                    failed.append(f"{kind}: {error}")
                seen[kind].append(time.perf_counter() - began)
                time.sleep(pause_s)

        def call_anew() -> None:
            self._ask(self._connected())

        def call_control() -> None:
            self._load(b"", metadata=self._metadata, timeout=_CALL_S)

        others = [
            threading.Thread(target=keep, args=("new", call_anew, _PAUSE_S)),
            threading.Thread(target=keep, args=("control", call_control, _PAUSE_S)),
        ]
        for each in others:
            each.start()
        keep("data", lambda: self._ask(self._held), _PAUSE_S / 10)
        for each in others:
            each.join()
        for line in sorted(set(failed)):
            print(line, file=sys.stderr, flush=True)
        return {kind: float(np.percentile(times, _PERCENTILE)) for kind, times in seen.items()} | {
            "failed": float(len(failed))
        }

    def _connected(self) -> DataClient:
        client = DataClient(*self._place, self._tls)
        client.connect(_CALL_S)
        return client

    def _ask(self, client: DataClient) -> None:
        refused, nbytes, _ = client.call(self._token, self._request, _CALL_S)
        client.read(np.empty(nbytes, np.uint8))
        if refused or not client.finish():
            raise StreamError("the call was refused, or damaged")
