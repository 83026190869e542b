"""Faults of a moment: nothing is raised within the timeout, and one error that names its cause after it."""

from __future__ import annotations

import re
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gigl_client import RemoteDistDataset
from gigl_loader import DistNeighborLoader
from gigl_loader.errors import StorageUnavailable
from gigl_loader.native import DataCall
from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.ring_client import RESPONSE_NONE
from gigl_server.admission import Identity
from gigl_server.frames.ring import RingServer
from gigl_server.ports.graph_store_servicer import GraphStoreServicer
from gigl_server.ports.sample_calls import SampleCalls
from tests.support.clusters import addresses_of, servers_of
from tests.support.ports import free_port
from tests.support.proxy import Proxy
from tests.support.training import FANOUT, OPTIONS, digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gigl_server.server import StorageServer

LONG = 60.0
"""Timeout that no fault of these tests reaches, on a busy machine either."""
SHORT = 2.5
BURST_S = 0.5
PAUSE_S = 0.1
"""Between two epochs, of which several begin within a burst."""
ADDRESS = "127.0.0.78"


@contextmanager
def behind_lines(
    graph: Path, count: int, *, timeout: float = LONG, **ways: Any
) -> Iterator[tuple[DistNeighborLoader, list[list[Proxy]], list[StorageServer]]]:
    """Lend a loader, the lines to control and data port of each server, and the servers."""
    with ExitStack() as stack:
        special: dict[int, dict[str, Any]] = {}
        lines: list[list[Proxy]] = []
        for server in range(count):
            port = free_port(count=2)
            special[server] = {
                "listen": f"127.0.0.1:{port}",
                "data_port": port + 1,
                "advertise": ADDRESS,
            }
            lines.append(
                [
                    stack.enter_context(Proxy(("127.0.0.1", each), listen=(ADDRESS, each)))
                    for each in (port, port + 1)
                ]
            )
        servers = stack.enter_context(servers_of(graph, count, special=special))
        dataset = stack.enter_context(RemoteDistDataset.connect(addresses_of(servers), timeout=LONG, **ways))
        loader = stack.enter_context(
            DistNeighborLoader(dataset, FANOUT, "train", **OPTIONS | {"timeout": timeout})
        )
        yield loader, lines, servers
        for line in lines:
            for each in line:
                each.close()  # A connection whose framing is damaged may hold up the server's end.


def flip(line: Proxy) -> None:
    line.flip_bits(every=2_000, seed=5)


BURSTS: dict[str, Callable[[Proxy], None]] = {
    "flip": flip,
    "cut": Proxy.cut,
    "hold": Proxy.stall,
    "drop": Proxy.drop,
}


def goes_on(loader: DistNeighborLoader, expected: list[int], seconds: float) -> None:
    """Go through epochs for a while, and one more: nothing is raised, and no batch differs."""
    first = loader.state_dict()
    until = time.monotonic() + seconds
    last = False
    while not last:
        last = time.monotonic() >= until
        loader.load_state_dict(first)
        assert [digest(batch) for batch in loader] == expected
        time.sleep(0 if last else PAUSE_S)


WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "1 server, network": (1, {"transport": "network"}),
    "1 server, ring": (1, {"transport": "ring"}),
    "2 servers, through": (2, {"transport": "network", "rows": "through"}),
    "2 servers, direct": (2, {"transport": "network", "rows": "direct"}),
    "2 servers, ring": (2, {"transport": "ring"}),
}
FAST = "2 servers, direct"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("port", [0, 1], ids=["control", "data"])
@pytest.mark.parametrize("burst", BURSTS)
@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[] if way == FAST else [pytest.mark.slow]) for way in WAYS]
)
def test_a_burst_raises_nothing_and_changes_no_batch(
    graph: Path, expected: list[int], way: str, burst: str, port: int
) -> None:
    servers, options = WAYS[way]
    with behind_lines(graph, servers, **options) as (loader, lines, _):
        line = lines[-1][port]
        timers = [
            threading.Timer(0.05, BURSTS[burst], (line,)),
            threading.Timer(0.05 + BURST_S, line.resume),
        ]
        for timer in timers:
            timer.start()
        goes_on(loader, expected, 0.1 + BURST_S)
        for timer in timers:
            timer.join()


def persistent(batches: Iterator[Any], errors: list[tuple[float, Exception]]) -> Iterator[int]:
    """Yield the digest of each batch. Ask again after an error, and record it and its time."""
    while True:
        try:
            batch = next(batches, None)
        except Exception as error:
            errors.append((time.monotonic(), error))
            yield -1
            continue
        if batch is None:
            return
        yield digest(batch)


@pytest.mark.parametrize("burst", BURSTS)
def test_after_the_timeout_one_error_names_the_last_cause(
    graph: Path, expected: list[int], burst: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, has_begun = SampleCalls.begin, threading.Event()

    def held(
        self: SampleCalls, call: DataCall, caller: Identity, job: bytes, body: bytes, *more: Any
    ) -> None:
        """No epoch ends before the fault."""
        if messages.SampleRequest.FromString(body).batch > 2:
            has_begun.wait()
        begin(self, call, caller, job, body, *more)

    monkeypatch.setattr(SampleCalls, "begin", held)
    errors: list[tuple[float, Exception]] = []
    with behind_lines(graph, 1, timeout=SHORT, transport="network") as (loader, lines, _):
        digests = persistent(iter(loader), errors)
        seen = [next(digests)]
        for line in lines[0]:
            BURSTS[burst](line)
        has_begun.set()
        began = time.monotonic()
        while not errors:
            seen.append(next(digests))
            began = time.monotonic() if seen[-1] >= 0 else began
        for line in lines[0]:
            line.resume()
        seen += digests
    raised, error = errors[0]
    assert raised - began > 0.9 * SHORT
    assert isinstance(error, StorageUnavailable)
    assert re.search(rf"storage server 0 at {ADDRESS}:\d+.*: .", str(error))
    assert "\n" not in str(error)
    assert [each for each in seen if each >= 0] == expected


def test_a_lost_request_is_found_and_sent_again(
    graph: Path, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has nothing to answer, and the caller waits."""
    begin, lost = SampleCalls.begin, list[DataCall]()

    def losing(
        self: SampleCalls, call: DataCall, caller: Identity, job: bytes, body: bytes, *more: Any
    ) -> None:
        if messages.SampleRequest.FromString(body).batch == 2 and not lost:
            lost.append(call)
            call.wait()
            return
        begin(self, call, caller, job, body, *more)

    monkeypatch.setattr(SampleCalls, "begin", losing)
    with behind_lines(graph, 1, transport="network") as (loader, _, _):
        began = time.monotonic()
        assert [digest(batch) for batch in loader] == expected
        assert lost
        assert time.monotonic() - began < LONG / 2


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["network", "ring"])
def test_a_connection_that_carries_no_calls_any_more_is_left(
    graph: Path, expected: list[int], transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage to the windows of flow control does that. Pings are answered, so gRPC itself keeps it."""
    begin, heartbeat, lost = SampleCalls.begin, GraphStoreServicer._heartbeat, list[DataCall]()
    deaf, ended = list[str](), threading.Event()

    def losing(
        self: SampleCalls, call: DataCall, caller: Identity, job: bytes, body: bytes, *more: Any
    ) -> None:
        if messages.SampleRequest.FromString(body).batch == 2 and not lost:
            lost.append(call)
            call.wait()
            return
        begin(self, call, caller, job, body, *more)

    def hearing(self: GraphStoreServicer, request: Any, call: Any) -> Any:
        if lost and not deaf:
            deaf.append(call.connection)
        if call.connection in deaf:
            ended.wait(LONG)
        return heartbeat(self, request, call)

    monkeypatch.setattr(SampleCalls, "begin", losing)
    monkeypatch.setattr(GraphStoreServicer, "_heartbeat", hearing)
    with behind_lines(graph, 1, transport=transport) as (loader, _, _):
        began = time.monotonic()
        assert [digest(batch) for batch in loader] == expected
        assert deaf
        assert time.monotonic() - began < LONG / 2
        ended.set()


def ring_faults() -> dict[str, Callable[[RingServer, Any, bytes], None]]:
    def cut(server: RingServer, visitor: Any, channel: bytes) -> None:
        """Close without an answer, as a server without descriptors does."""

    def drop(server: RingServer, visitor: Any, channel: bytes) -> None:
        visitor.send(RESPONSE_NONE)

    def flipped(server: RingServer, visitor: Any, channel: bytes) -> None:
        visitor.send(b"\x11")

    def bare(server: RingServer, visitor: Any, channel: bytes) -> None:
        visitor.send(b"\1")  # The caller had no descriptor left to receive it.

    return {"cut": cut, "drop": drop, "flip": flipped, "no descriptor": bare}


@pytest.mark.parametrize("fault", ring_faults())
def test_a_ring_that_cannot_be_had_for_a_moment_passes(
    graph: Path, expected: list[int], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Met: 289 exceptions in 8 s, of a server without descriptors."""
    with behind_lines(graph, 1, transport="ring") as (loader, lines, _):
        batches = iter(loader)
        seen = [digest(next(batches))]
        with monkeypatch.context() as patch:
            patch.setattr(RingServer, "_hand_out", ring_faults()[fault])
            healed = threading.Timer(1.0, patch.undo)
            healed.start()
            lines[0][0].cut()  # The channel is lost, and with it the ring.
            lines[0][0].resume()
            seen += [digest(batch) for batch in batches]
            healed.join()
    assert seen == expected
