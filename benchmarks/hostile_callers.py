"""Callers that hold a valid token and take all that they can: one behaviour each, for ``hostile.py``.

    python benchmarks/hostile_callers.py BEHAVIOUR '{"control": ..., "data": ..., "token": ..., "graph": ...}'

Says ``ready`` on a line of its own, goes on until it is killed, and talks to 127.0.0.1 only.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
import numpy as np
from hostile_bombs import BOMBS
from hostile_server import Scene

from gigl_loader.native import DataClient, StreamError, crc32c
from gigl_loader.native.draws import DRAW_SPECIFICATION
from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.tokens import JOB_HEADER, new_job
from gigl_loader.rpc.versions import WIRE_VERSION
from gigl_loader.sampling.columns import ColumnPlan
from gigl_loader.sampling.plan import BatchPlan
from gigl_loader.sampling.plans.neighbor import NeighborPlan

_EDGE = ("node", "to", "node")
_CALL_S = 600.0
_PAUSE_S = 0.02
_TRICKLED = 600


_REQUESTS = 64
"""For batches, that a caller has open."""


class _Caller:
    """Connections to both ports, under a job of its own."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.job = new_job()
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        self.channel = grpc.insecure_channel(scene.control, options)
        self._threads = ThreadPoolExecutor(_REQUESTS)

    @property
    def headers(self) -> list[tuple[str, str]]:
        token = [("authorization", f"Bearer {self.scene.token}")] if self.scene.token else []
        return [*token, (JOB_HEADER, self.job)]

    def call(self, method: str, request: Any) -> Any:
        stub = self.channel.unary_unary(f"/gigl.v1.GraphStore/{method}")
        return stub.future(request.SerializeToString(), metadata=self.headers, timeout=_CALL_S)

    def open(self, fanout: tuple[int, ...], *, replace: bool = False, share: int = 1) -> bytes:
        """Make a producer with a channel and return the channel's id. ``grpc.RpcError``."""
        sampler = NeighborPlan(seed_type="node", num_neighbors={_EDGE: fanout}, replace=replace)
        plan = BatchPlan(sampler=sampler, run_seed=1, columns=ColumnPlan(nodes={"node": ("x",)}))
        return self.open_plan(f"key {fanout} {replace}", plan, share=share)

    def open_plan(self, key: str, plan: BatchPlan, *, share: int = 1) -> bytes:
        """Make a producer of a plan with a channel, and return the channel's id. ``grpc.RpcError``."""
        create = messages.CreateProducerRequest(
            key=key, plan=plan.to_json(), graph=self.scene.graph, draw_specification=DRAW_SPECIFICATION
        )
        self.call("CreateProducer", create).result()
        order = messages.OpenChannelRequest(key=key, name="hostile", credit=64, share=share)
        return bytes(messages.Channel.FromString(self.call("OpenChannel", order).result()).id)

    def ask(self, channel: bytes, batch: int, seeds: int) -> Any:
        """Ask for a batch. The call ends when it is made."""
        chosen = (np.arange(seeds, dtype="<i8") + batch * seeds) % self.scene.nodes
        return self.ask_for(channel, batch, chosen.tobytes(), chosen.tobytes())

    def ask_for(self, channel: bytes, batch: int, index: bytes, inputs: bytes) -> Any:
        """Ask for a batch of these entries. The call ends when it is made."""
        request = messages.SampleRequest(channel=channel, epoch=0, batch=batch, inputs=inputs, index=index)
        return self._threads.submit(self._sampled, request.SerializeToString())

    def _sampled(self, request: bytes) -> tuple[DataClient, int]:
        """Ask for a batch. Return the connection, and the size of the reply that it can read.

        ``StreamError`` for a refusal.
        """
        host, _, port = self.scene.data.rpartition(":")
        client = DataClient(host, int(port))
        client.connect(_CALL_S)
        header = "".join(f"{name}: {value}\n" for name, value in self.headers)
        refused, nbytes, _ = client.call(header.encode(), request, _CALL_S, True)
        if refused:
            raise StreamError("refused")
        return client, nbytes


def _asking(
    scene: Scene, fanout: tuple[int, ...], seeds: int, *, replace: bool, share: int, read: bool
) -> None:
    """Keep every credit of some channels in use, and read what comes, or not."""
    caller = _Caller(scene)
    channels = [caller.open(fanout, replace=replace, share=share) for _ in range(4)]
    _say_ready()
    batch, unread = 0, []
    while True:
        calls = [caller.ask(channel, batch + place, seeds) for channel in channels for place in range(16)]
        batch += 16
        for call in calls:
            with suppress(grpc.RpcError, StreamError):
                client, nbytes = call.result()
                if read:
                    client.read(np.empty(nbytes, np.uint8))
                else:
                    unread.append(client)
        time.sleep(_PAUSE_S)


def expensive_plans(scene: Scene) -> None:
    """Draw with replacement as many neighbours as the server grants."""
    plans = (((60_000_000,), 1), ((1_000_000,), 64), ((10_000, 100), 64), ((100, 100, 100), 64))
    for fanout, seeds in (*plans, ((50, 50, 20), 64)):
        with suppress(grpc.RpcError):
            _asking(scene, fanout, seeds, replace=True, share=1, read=True)


def bomb(scene: Scene, kind: str) -> None:
    """Train on batches that take as long as their kind can."""
    caller = _Caller(scene)
    made = BOMBS[kind]
    channels = [caller.open_plan(f"{kind} {number}", made.plan) for number in range(2)]
    requests = [made.request(number, scene.nodes) for number in range(2)]
    _say_ready()
    batch = 0
    while True:
        calls = [caller.ask_for(each, batch + n, *requests[n]) for each in channels for n in range(2)]
        batch += 2
        for call in calls:
            with suppress(grpc.RpcError, StreamError):
                client, nbytes = call.result()
                client.read(np.empty(nbytes, np.uint8))
        time.sleep(_PAUSE_S)


def unread_frames(scene: Scene) -> None:
    """Have batches made and never read them."""
    _asking(scene, (15, 10, 5), 1000, replace=False, share=1, read=False)


def greedy_shares(scene: Scene) -> None:
    """Train, with the largest share that is granted."""
    _asking(scene, (15, 10, 5), 128, replace=False, share=64, read=True)


def unread_rows(scene: Scene) -> None:
    """Ask for 255 MiB of rows eight times, and read none of it."""
    rows = np.resize(np.arange(scene.nodes, dtype=np.int32), (255 << 20) // 4 // _dim(scene))
    _unread(scene, {"ask": "rows", "kind": '"node"', "columns": '["x"]'}, rows, 8)


def unread_neighbors(scene: Scene) -> None:
    """Ask for neighbours as often as there are turns, and read none of them."""
    targets = np.resize(np.arange(scene.nodes, dtype=np.int32), 500_000)
    fields = {"ask": "neighbors", "edge_type": json.dumps(_EDGE), "key": "7", "hop": "0", "fanout": "20"}
    _unread(scene, fields | {"flags": '["with_edge_ids"]'}, targets, 64)


def made_up_jobs(scene: Scene) -> None:
    """Create producers, each under a job of its own."""
    caller = _Caller(scene)
    _say_ready()
    while True:
        caller.job = new_job()
        with suppress(grpc.RpcError):
            caller.open((2,))
        time.sleep(_PAUSE_S / 10)


def silent_calls(scene: Scene) -> None:
    """Begin two thousand control calls and send no message."""
    callers = [_Caller(scene) for _ in range(20)]
    end = threading.Event()

    def nothing() -> Iterator[bytes]:
        end.wait(_CALL_S)
        yield b""

    def begin(caller: _Caller) -> Any:
        stub = caller.channel.stream_unary("/gigl.v1.GraphStore/Heartbeat")
        return stub.future(nothing(), metadata=caller.headers, timeout=_CALL_S)

    calls = [begin(caller) for caller in callers for _ in range(100)]
    _say_ready()
    while True:
        calls = [begin(callers[place // 100]) if call.done() else call for place, call in enumerate(calls)]
        time.sleep(0.5)


def trickled_bodies(scene: Scene) -> None:
    """Send requests whose bodies come a byte a second, on as many connections as there are calls."""
    head = request_head(_token(scene), body_bytes=1 << 20)
    held: list[socket.socket] = []
    said = False
    while True:
        held = [connection for connection in held if not ended(connection)]
        with suppress(OSError):
            while len(held) < _TRICKLED:
                held.append(connected(scene.data))
                held[-1].send(head)
        for connection in held:
            with suppress(OSError):
                connection.send(b"x")
        if not said:
            said = True
            _say_ready()
        time.sleep(1.0)


def bytes_after_requests(scene: Scene) -> None:
    """Send bytes after a request, and half of a second one."""
    head = request_head(_token(scene), body_bytes=0)
    _say_ready()
    while True:
        for more in (b"x" * 4096, head, head[:40]):
            with suppress(OSError), connected(scene.data) as connection:
                connection.send(head + more)
                time.sleep(_PAUSE_S)


def silent_connections(scene: Scene) -> None:
    """Hold silent connections to both ports, and open an ended one again."""
    held: list[socket.socket] = []
    said = False
    while True:
        held = [connection for connection in held if not ended(connection)]
        with suppress(OSError):
            while len(held) < 200:
                held.append(connected((scene.control, scene.data)[len(held) % 2]))
        if not said:
            said = True
            _say_ready()
        time.sleep(0.5)


def _unread(scene: Scene, fields: Mapping[str, str], rows: Any, count: int) -> None:
    caller = _Caller(scene)
    ticket = _document(scene, fields, rows)
    held: dict[int, Any] = {}

    def hold(place: int) -> None:
        while True:
            with suppress(StreamError):
                held[place] = caller.fetch(ticket)
                time.sleep(_CALL_S)
            time.sleep(0.5)

    for place in range(count):
        threading.Thread(target=hold, args=(place,), daemon=True).start()
    time.sleep(1.0)
    _say_ready()
    threading.Event().wait()


def _document(scene: Scene, fields: Mapping[str, str], rows: Any) -> bytes:
    header = {
        "__metadata__": {"wire": str(WIRE_VERSION), "graph": scene.graph, "partition": "0", **fields},
        "rows": {"dtype": "I32", "shape": [len(rows)], "data_offsets": [0, rows.nbytes]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(rows.tobytes())


def _dim(scene: Scene) -> int:
    """Return the float32 values of a row of ``x``: asked of nobody, the workload has 32 or 128."""
    return 32 if scene.nodes <= 20_000 else 128


def _token(scene: Scene) -> bytes:
    return f"authorization: Bearer {scene.token}\n".encode()


def request_head(header: bytes, *, body_bytes: int) -> bytes:
    """Return the head of a request to the data port, with its header text and without a body."""
    start = struct.pack("<4sHHIIQI", b"GIGL", WIRE_VERSION, 0, len(header), 0, body_bytes, 0)
    return start + struct.pack("<I", crc32c(np.frombuffer(start + header, np.uint8))) + header


def connected(address: str) -> socket.socket:
    """Return a connection that does not block."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), 5.0)
    connection.setblocking(False)
    return connection


def ended(connection: socket.socket) -> bool:
    """Return whether the other side hung up. A server's greeting is read and thrown away."""
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    connection.close()
    return True


def _say_ready() -> None:
    print("ready", flush=True)


BOMBERS: Mapping[str, Callable[[Scene], None]] = {f"bomb:{kind}": partial(bomb, kind=kind) for kind in BOMBS}
"""Bombs of each kind of plan, over the graph of ``build_bombed``."""

BEHAVIOURS: Mapping[str, Callable[[Scene], None]] = {
    behaviour.__name__: behaviour
    for behaviour in (
        expensive_plans,
        unread_frames,
        greedy_shares,
        unread_rows,
        unread_neighbors,
        made_up_jobs,
        silent_calls,
        silent_connections,
        trickled_bodies,
        bytes_after_requests,
    )
}


if __name__ == "__main__":
    {**BEHAVIOURS, **BOMBERS}[sys.argv[1]](Scene(**json.loads(sys.argv[2])))
