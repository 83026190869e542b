"""Simulated network: servers whose state changes as a schedule says, and connections to their data ports."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gigl_loader.native import StreamCancelled, StreamClosed, StreamTimedOut
from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.rpc.refusals import Refusal, RefusalKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.arrays import Bytes
    from tests.simulation.control import ControlChannel
    from tests.simulation.world import Task, World

HOST, FIRST_PORT, FIRST_CONTROL_PORT = "127.0.0.1", 20_000, 10_000
GRAPH = "0" * 64
"""Digest of the graph that all servers have."""
ROUND_TRIP_S = 0.0005
PROBES_S = (10.0, 15.0, 20.0, 25.0)
"""Probes of a silent connection, after its last byte; the last one ends it (``csrc/data_stream.cc``)."""
SYN_S = (0.0, 1.0, 3.0, 7.0)
"""When the kernel tries to connect to a host that does not respond."""
RETRANSMISSIONS_S = (0.2, 0.6, 1.4, 3.0, 6.2, 12.6, 25.4, 51.0, 102.2, 204.6)
"""When the kernel sends bytes again that were not acknowledged, after it sent them first."""
SLOWNESS = 50.0
"""Factor on the latency of a slow server."""
REPLY = np.frombuffer(b"a reply of the right bytes......", np.uint8)


class State(Enum):
    """What a server does with connections and requests."""

    DOWN = "down"
    """No process: the kernel refuses connections. Those that were open were reset."""
    VANISHED = "vanished"
    """No host, or no line to it: nothing comes back. Open connections notice it by keepalive."""
    DEAF = "deaf"
    """Stopped: connections are accepted by the kernel, and requests wait."""
    JOINING = "joining"
    """Not ready: requests are refused."""
    READY = "ready"
    """Replies come within twice the latency."""
    SLOW = "slow"
    """Replies take long."""
    BUSY = "busy"
    """Requests are refused: a limit is used up."""
    FULL = "full"
    """No further connection is accepted; open ones are served."""
    DRAINING = "draining"
    """New requests are refused, those under way are served."""
    LEFT = "left"
    """As down, and no longer a member of the cluster."""


SILENT = frozenset({State.VANISHED, State.DEAF})
_ENDED = frozenset({State.DOWN, State.LEFT})
_SERVES = {State.READY, State.SLOW, State.FULL}
_REFUSES = {
    State.JOINING: RefusalKind.UNAVAILABLE,
    State.DRAINING: RefusalKind.UNAVAILABLE,
    State.BUSY: RefusalKind.BUSY,
}


class Application(Protocol):
    """What a server does that serves."""

    def restart(self) -> None:
        """Forget everything: a new process begins."""

    def reply(self, pending: Pending) -> Bytes | None:
        """Return the reply to a request, ``None`` where it must wait. Raises ``Refusal``."""

    def control(self, name: str, request: Any) -> tuple[Any, list[tuple[str, str]]]:
        """Return the reply to a control call, and further trailers. Raises ``Refusal``."""


class Echo:
    """Application whose replies are all ``REPLY``."""

    def restart(self) -> None:
        """Do nothing."""

    def reply(self, pending: Pending) -> Bytes | None:
        return REPLY

    def control(self, name: str, request: Any) -> tuple[Any, list[tuple[str, str]]]:
        raise Refusal(RefusalKind.UNIMPLEMENTED, f"no {name} here")


@dataclass(slots=True, eq=False)
class Pending:
    """A request on its way, or at its server."""

    link: Link
    sample: bool
    body: bytes
    since: float
    handled: bool = False


class Link:
    """One connection, as both sides see it: ``native.DataClient`` is what the caller has of it."""

    def __init__(self, network: Network, port: int) -> None:
        self._network = network
        self._world = network.world
        self.port = port
        self.server: Server | None = None
        self._task: Task | None = None
        """Thread of the caller that waits."""
        self._error: type[Exception] | None = None
        self._cancelled = False
        self._reply: Bytes | None = None
        self._refused = 0
        self._deadline = math.inf
        self._stall = math.inf
        """Silence that ends the call, once its reply has begun."""
        self._read = 0
        self.pending: Pending | None = None
        self.life = 0
        """Of the server, when it was connected."""

    # The caller's side

    def connect(self, timeout_s: float) -> None:
        self._deadline = self._world.now + timeout_s
        self._network.knock(self)
        self._wait(lambda: self.server is not None)

    def call(
        self, header: bytes, body: bytes, timeout_s: float, sample: bool = False
    ) -> tuple[int, int, int]:
        self._deadline, self._stall = self._world.now + timeout_s, math.inf
        self._reply, self._read = None, 0
        self.pending = Pending(self, sample, body, self._world.now)
        self._network.send(self)
        self._wait(lambda: self._reply is not None)
        return self._refused, len(self._payload), self._network.membership

    def expect_within(self, seconds: float) -> None:
        self._stall = seconds

    def read(self, out: Bytes) -> None:
        payload = self._payload
        if self._network.piece_s:
            arrives_at = self._world.now + self._network.piece_s
            self._world.at(arrives_at, self.wake)
            deadline, self._deadline = self._deadline, min(self._deadline, self._world.now + self._stall)
            self._wait(lambda: self._world.now >= arrives_at)
            self._deadline = deadline
        self._check()
        out[:] = payload[self._read : self._read + len(out)]
        self._read += len(out)

    def finish(self) -> bool:
        self._reply = None
        return True

    def cancel(self) -> None:
        self._cancelled = True
        self.drop()
        self.wake()

    def is_stale(self) -> bool:
        return self._error is not None

    @property
    def left(self) -> int:
        return 0 if self._reply is None else len(self._reply) - self._read

    @property
    def reusable(self) -> bool:
        return self._error is None and not self._cancelled and self.pending is None and self._reply is None

    @property
    def connects(self) -> bool:
        """Whether the caller waits for the connection."""
        return self.server is None and self._error is None and not self._cancelled

    def _wait(self, condition: Callable[[], bool]) -> None:
        self._task = self._world.current
        try:
            while not condition():
                self._check()
                self._world.park(self._deadline)
        finally:
            self._task = None

    @property
    def _payload(self) -> Bytes:
        assert self._reply is not None
        return self._reply

    def _check(self) -> None:
        """Raise what ends the call."""
        if self._cancelled:
            raise StreamCancelled("cancelled")
        if self._error is not None:
            raise self._error("the connection was closed")
        if self._world.now >= self._deadline:
            self._error = StreamTimedOut
            self.drop()
            raise StreamTimedOut("no answer in time")

    # The network's side

    def drop(self) -> None:
        """Forget the connection at its server: its request is not worked on."""
        if self.server is not None:
            self.server.links.pop(self, None)
        self.pending = None

    def accept(self, server: Server) -> None:
        self.server, self.life = server, server.life
        server.links[self] = None
        self.wake()

    def reset(self) -> None:
        self._error = self._error or StreamClosed
        self.drop()
        self.wake()

    def deliver(self, refused: int, payload: Bytes) -> None:
        self._reply, self._refused = payload, refused
        self._deadline += 4 * self._network.piece_s  # The time of an attempt is without that of its payload.
        self.pending = None
        self.wake()

    def wake(self) -> None:
        if self._task is not None:
            self._world.unpark(self._task)


class Server:
    """A storage server. Its state changes; each start is a new life."""

    def __init__(
        self, network: Network, number: int, partitions: tuple[int, ...], *, latency_s: float
    ) -> None:
        self.network = network
        self.number = number
        self.partitions = partitions
        self.latency_s = latency_s
        self.state = State.DOWN
        self.life = 0
        self.links: dict[Link, None] = {}
        self.channels: dict[ControlChannel, None] = {}
        """Connections to the control port."""
        self.application: Application = Echo()
        self.history: list[tuple[float, State]] = [(network.world.now, State.DOWN)]

    @property
    def port(self) -> int:
        return FIRST_PORT + self.number

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(
            what="server",
            host_index=self.number,
            host=HOST,
            control_port=FIRST_CONTROL_PORT + self.number,
            data_port=self.port,
            partitions=self.partitions,
            incarnation=self.life + 1,
        )

    @property
    def is_used(self) -> bool:
        """Whether a request waits for its reply."""
        return any(link.pending is not None for link in self.links)

    def become(self, state: State) -> None:
        """Enter a state. A process that ends resets its connections, unless its line is cut."""
        before, self.state = self.state, state
        self.history.append((self.network.world.now, state))
        if state is State.READY:
            self.network.join(self)
        if state is State.LEFT:
            self.network.leave(self)
        if state in _ENDED and before not in _ENDED:
            self.life += 1
            self.application.restart()
            if before is not State.VANISHED:
                for link in list(self.links):
                    link.reset()
                for channel in list(self.channels):
                    channel.reset()
        for link in list(self.links):
            self.handle(link)
        for channel in list(self.channels):
            channel.handle()

    def handle(self, link: Link) -> None:
        """Work on the request of a connection, as the state says."""
        pending = link.pending
        if pending is None or pending.handled or link.life != self.life:
            return
        if self.state in _SERVES:
            pending.handled = True
            seconds = self.latency_s * (1 + self.network.world.random.random())
            if self.state is State.SLOW:
                seconds *= SLOWNESS
            self.network.world.after(seconds, lambda: self._reply(link, pending))
        elif self.state in _REFUSES:
            pending.handled = True
            refusal = Refusal(_REFUSES[self.state], f"it is {self.state.value}")
            self.network.world.after(ROUND_TRIP_S / 2, lambda: self._refuse(link, pending, refusal))

    def _reply(self, link: Link, pending: Pending) -> None:
        if link.pending is not pending or link.life != self.life:
            return
        try:
            payload = self.application.reply(pending)
        except Refusal as refusal:
            self._refuse(link, pending, refusal)
            return
        if payload is None:
            self.network.world.after(0.1, lambda: self._reply(link, pending))
        else:
            self._send(link, pending, 0, payload)

    def _refuse(self, link: Link, pending: Pending, refusal: Refusal) -> None:
        self._send(link, pending, 1, np.frombuffer(refusal.to_record(), np.uint8))

    def control(self, name: str, request: Any) -> tuple[Any, list[tuple[str, str]]]:
        """Return the reply to a control call, and further trailers. Raises ``Refusal``."""
        if name == "Cluster":
            return self.network.view(self), []
        if self.state in _REFUSES:
            raise Refusal(_REFUSES[self.state], f"it is {self.state.value}")
        return self.application.control(name, request)

    def _send(self, link: Link, pending: Pending, refused: int, payload: Bytes) -> None:
        if link.pending is not pending or link.life != self.life:
            return
        if self.state in SILENT:  # Once the process goes on, or the line is mended.
            pending.handled = False
        else:
            link.deliver(refused, payload)


@dataclass(slots=True, eq=False)
class Network:
    """Servers, the cluster that they are members of, and the way of bytes between them and callers."""

    world: World
    servers: dict[int, Server] = field(default_factory=dict)
    """By data port."""
    members: dict[int, int] = field(default_factory=dict)
    """Life of each server of the cluster, by its number."""
    piece_s: float = 0.0
    """Time in which a piece of a reply arrives, as it is read."""
    membership: int = 1
    """Version of ``members``."""

    def add(self, number: int, partitions: tuple[int, ...], *, latency_s: float) -> Server:
        server = Server(self, number, partitions, latency_s=latency_s)
        self.servers[server.port] = server
        return server

    def join(self, server: Server) -> None:
        """Make a server a member of the cluster, or note that it was started again."""
        if self.members.get(server.number) != server.life:
            self.members[server.number] = server.life
            self.membership += 1

    def leave(self, server: Server) -> None:
        """Remove a server from the cluster."""
        self.members.pop(server.number, None)
        self.membership += 1

    @property
    def endpoints(self) -> list[Endpoint]:
        """Endpoints of the members."""
        return [self.servers[FIRST_PORT + number].endpoint for number in self.members]

    def is_whole(self, server: Server) -> bool:
        """Return whether a server reaches a holder of each partition."""
        held = {part for each in self.servers.values() if each.state in _SERVES for part in each.partitions}
        return held.issuperset(part for each in self.servers.values() for part in each.partitions)

    def view(self, server: Server) -> messages.ClusterView:
        """Return the view that a server has of the cluster."""
        view = messages.ClusterView(ready=server.state in _SERVES, reason="", membership=self.membership)
        view.self.graph = GRAPH
        for each in self.endpoints:
            view.servers.add(
                host=each.host,
                control_port=each.control_port,
                data_port=each.data_port,
                partitions=each.partitions,
                incarnation=each.incarnation,
            )
        return view

    def client(self, host: str, port: int, tls: Any = None, name: str = "") -> Link:
        """Stands for ``native.DataClient``."""
        return Link(self, port)

    def knock(self, link: Link) -> None:
        """Have a connection arrive at its server."""

        def arrive() -> None:
            server = self.servers[link.port]
            if not link.connects or server.state is State.VANISHED:
                return
            if server.state in (*_ENDED, State.FULL):
                link.reset()
            else:
                link.accept(server)

        for seconds in SYN_S:
            self.world.after(seconds + ROUND_TRIP_S, arrive)

    def send(self, link: Link) -> None:
        """Have a request arrive at its server. Over a cut line, the kernel sends it again and again."""
        server, pending = link.server, link.pending
        assert server is not None

        def arrive(again: int) -> None:
            if link.pending is not pending:
                return
            if server.state is State.VANISHED:
                if again < len(RETRANSMISSIONS_S):
                    self.world.at(sent_at + RETRANSMISSIONS_S[again], lambda: arrive(again + 1))
            elif link.life != server.life:
                link.reset()  # A new process, or none, knows nothing of the connection.
            else:
                server.handle(link)
                self._probe(link, server, 0)

        sent_at = self.world.now
        self.world.after(ROUND_TRIP_S / 2, lambda: arrive(0))

    def _probe(self, link: Link, server: Server, number: int) -> None:
        """Notice a server that has vanished while its reply is awaited, by the probes of the kernel."""
        pending = link.pending

        def probe() -> None:
            if link.pending is not pending or pending is None:
                return
            if server.state is State.VANISHED and number + 1 < len(PROBES_S):
                self._probe(link, server, number + 1)
            elif server.state is State.VANISHED or link.life != server.life:
                link.reset()
            else:
                self._probe(link, server, 0)

        self.world.after(PROBES_S[number] - (PROBES_S[number - 1] if number else 0.0), probe)
