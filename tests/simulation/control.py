"""Simulated gRPC channels to the control ports of simulated servers, as ``rpc.store_client`` uses them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from gigl_loader.rpc.control import MEMBERSHIP_HEADER, REFUSAL_HEADER, refusal_mark, status_of
from gigl_loader.rpc.refusals import Refusal
from tests.simulation.network import ROUND_TRIP_S, SILENT, State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gigl_loader.rpc.endpoint import Endpoint
    from tests.simulation.network import Network, Server
    from tests.simulation.world import Task, World

PING_S, PONG_S = 5.0, 5.0
"""When a silent connection is pinged, and how long the reply may take (``rpc.store_client``)."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 0.5
"""Pauses before another connection."""
CONNECT_S = 2.0


class Failed(grpc.RpcError):  # type: ignore[misc]
    """Call that failed."""

    def __init__(self, code: grpc.StatusCode, details: str, trailers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(details)
        self._code, self._details, self._trailers = code, details, trailers

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Sequence[tuple[str, str]]:
        return self._trailers


class Call:
    """One call: its own future."""

    def __init__(
        self, world: World, channel: ControlChannel, name: str, request: Any, timeout_s: float
    ) -> None:
        self._world = world
        self._channel = channel
        self.name = name
        self.request = request
        self.deadline = world.now + timeout_s
        self.ended = False
        self._value: Any = None
        self._error: Failed | None = None
        self._trailers: Sequence[tuple[str, str]] = ()
        self._waiting: list[Task] = []
        self._callbacks: list[Callable[[Any], object]] = []

    def end(
        self, value: Any = None, error: Failed | None = None, trailers: Sequence[tuple[str, str]] = ()
    ) -> None:
        if self.ended:
            return
        self.ended, self._value, self._error, self._trailers = True, value, error, trailers
        self._channel.calls.pop(self, None)
        for task in self._waiting:
            self._world.unpark(task)
        for callback in self._callbacks:
            # gRPC calls them in a thread of its own.
            self._world.start(partial(callback, self), "callback of gRPC")

    def result(self) -> Any:
        while not self.ended:
            self._waiting.append(self._world.current)
            self._world.park()
        if self._error is not None:
            raise self._error
        return self._value

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        if self.ended:
            self._world.start(partial(callback, self), "callback of gRPC")
        else:
            self._callbacks.append(callback)

    def trailing_metadata(self) -> Sequence[tuple[str, str]]:
        return self._trailers

    def cancel(self) -> None:
        self.end(error=Failed(grpc.StatusCode.CANCELLED, "cancelled"))


class ControlChannel:
    """``grpc.Channel``: connects when it is used, pauses after a failure, and pings what is silent."""

    def __init__(self, network: Network, endpoint: Endpoint) -> None:
        self._network = network
        self._world = network.world
        self._port = endpoint.data_port
        self._life: int | None = None
        """Of the server that it is connected to."""
        self._connecting = False
        self._not_before = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._closed = False
        self._heard_at = 0.0
        self.calls: dict[Call, None] = {}
        """Under way."""
        self._sent: set[Call] = set()

    def unary_unary(self, path: str, **_: object) -> Method:
        return Method(self, path.rpartition("/")[2])

    def close(self) -> None:
        self._closed = True
        self._lose("the channel was closed", grpc.StatusCode.CANCELLED)
        self._server.channels.pop(self, None)

    def begin(self, name: str, request: Any, timeout_s: float) -> Call:
        if self._closed:
            raise ValueError("Cannot invoke RPC on closed channel!")
        call = Call(self._world, self, name, request, timeout_s)
        self.calls[call] = None
        late = Failed(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        self._world.at(call.deadline, lambda: call.end(error=late))
        if self._life is not None:
            self._send(call)
        elif self._world.now < self._not_before:
            down = Failed(grpc.StatusCode.UNAVAILABLE, "the last connection failed")
            self._world.after(0.0, lambda: call.end(error=down))
        elif not self._connecting:
            self._connect()
        return call

    @property
    def _server(self) -> Server:
        return self._network.servers[self._port]

    def _connect(self) -> None:
        self._connecting = True
        self._world.after(ROUND_TRIP_S, lambda: self._arrive(self._world.now + CONNECT_S))

    def _arrive(self, until: float) -> None:
        """Have a connection arrive at the server."""
        server = self._server
        if self._closed:
            return
        # A stopped process does not send the first frame of HTTP/2.
        if server.state in SILENT and self._world.now < until:
            self._world.after(0.25, lambda: self._arrive(until))
            return
        self._connecting = False
        if server.state in (State.DOWN, State.LEFT, State.FULL, *SILENT):
            self._not_before = self._world.now + self._pause_s
            self._pause_s = min(1.6 * self._pause_s, LONGEST_PAUSE_S)
            self._lose("failed to connect to all addresses; last error: UNKNOWN: Connection refused")
            return
        self._life, self._pause_s = server.life, FIRST_PAUSE_S
        server.channels[self] = None
        for call in list(self.calls):
            self._send(call)

    def _send(self, call: Call) -> None:
        self._heard_at = max(self._heard_at, self._world.now)
        self._world.after(ROUND_TRIP_S / 2, self.handle)
        self._world.after(PING_S, lambda: self._ping(self._world.now))
        self._sent.add(call)

    def _ping(self, at: float) -> None:
        """Look whether the connection is silent while calls are under way."""
        if self._life is None or not self.calls or self._heard_at > at - PING_S + ROUND_TRIP_S:
            return
        server = self._server
        if server.state in SILENT or server.life != self._life:
            self._world.after(PONG_S, lambda: self._give_up(at))

    def _give_up(self, at: float) -> None:
        if self._heard_at < at and self._life is not None:
            self._lose("ping timeout")

    def reset(self) -> None:
        """End the connection: the server did."""
        self._lose("Socket closed")

    def _lose(self, reason: str, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        self._life = None
        self._server.channels.pop(self, None)
        self._sent.clear()
        for call in list(self.calls):
            call.end(error=Failed(code, reason))

    def handle(self) -> None:
        """Have the server work on the calls that have arrived."""
        server = self._server
        if self._life is None or server.state in SILENT:
            return
        if server.life != self._life:
            self._lose("Connection reset by peer")
            return
        for call in [each for each in self.calls if each in self._sent]:
            self._sent.discard(call)
            self._world.after(ROUND_TRIP_S / 2, partial(self._reply, call))

    def _reply(self, call: Call) -> None:
        server = self._server
        if call.ended or self._life != server.life:
            return
        if server.state in SILENT:
            self._sent.add(call)
            return
        self._heard_at = self._world.now
        try:
            value, more = server.control(call.name, call.request)
        except Refusal as refusal:
            mark = (REFUSAL_HEADER, refusal_mark(refusal.kind, refusal.message))
            call.end(error=Failed(status_of(refusal.kind), refusal.message, (mark,)))
        else:
            told = (MEMBERSHIP_HEADER, str(self._network.membership))
            call.end(value, trailers=(told, *more))


class Method:
    """``grpc.UnaryUnaryMultiCallable``."""

    def __init__(self, channel: ControlChannel, name: str) -> None:
        self._channel, self._name = channel, name

    def future(self, request: Any, *, timeout: float, metadata: Any) -> Call:
        return self._channel.begin(self._name, request, timeout)

    def with_call(self, request: Any, *, timeout: float, metadata: Any) -> tuple[Any, Call]:
        call = self.future(request, timeout=timeout, metadata=metadata)
        return call.result(), call
