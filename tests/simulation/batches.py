"""Client of a graph store under simulation: a loader's source of batches.

Real are ``gigl_client`` from ``RemoteSource`` down, with ``rpc.store_client`` and ``rpc.connection``;
simulated are their clock, threads and connections.
"""

from __future__ import annotations

from functools import cache
from random import Random
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np

from gigl_client import channel_pool, channels, dispatcher, in_flight, receiver, source
from gigl_loader.channel.frame import Failure
from gigl_loader.errors import StorageUnavailable
from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.control import PENDING_HEADER
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from tests.simulation import store
from tests.simulation.outcomes import Record
from tests.support.sources import NUM_BATCHES, PLAN, bytes_of, sampled_frames, small_schedule

if TYPE_CHECKING:
    from gigl_loader.arrays import Bytes
    from tests.simulation.network import Network, Pending, Server
    from tests.simulation.schedule import Schedule
    from tests.simulation.world import World

MODULES = (*store.MODULES, channel_pool, channels, dispatcher, in_flight, receiver, source)
_PEER_S = 10.0
"""Time for which a server tries to reach the owner of nodes (``gigl_server.cluster.stores``)."""
_SIZE = Struct("<I")
_EPOCHS = 2
_MOST_WAITS = 3 * NUM_BATCHES
"""Waits for a batch in one run, those that failed among them."""


@cache
def _frames(epoch: int) -> list[bytes]:
    return sampled_frames(epoch)


class Sessions:
    """Application of a storage server: producers, channels, and batches."""

    def __init__(self, network: Network, server: Server) -> None:
        self._network, self._server = network, server
        self.restart()

    def restart(self) -> None:
        self._producers: set[str] = set()
        self._channels: set[bytes] = set()

    def control(self, name: str, request: Any) -> tuple[Any, list[tuple[str, str]]]:
        if name == "CreateProducer":
            created = request.key not in self._producers
            self._producers.add(request.key)
            return messages.CreateProducerReply(created=created), []
        if name == "OpenChannel":
            if request.key not in self._producers:
                raise Refusal(RefusalKind.NOT_FOUND, f"no producer {request.key}")
            channel = self._network.world.random.randbytes(16)
            self._channels.add(channel)
            return messages.Channel(id=channel, lease_s=30.0), []
        if name == "Heartbeat":
            known = [each for each in request.channels if each in self._channels]
            pending = ",".join(map(str, self._pending(request.channels[0])))
            trailers = [(PENDING_HEADER, pending)] if len(request.channels) == 1 else []
            return messages.HeartbeatReply(channels=known), trailers
        if name == "CloseChannel":
            self._channels.discard(request.channel)
            return messages.CloseChannelReply(), []
        assert name == "DestroyProducer", name
        return messages.DestroyProducerReply(), []

    def reply(self, pending: Pending) -> Bytes | None:
        assert pending.sample
        request = messages.SampleRequest.FromString(pending.body)
        if request.channel not in self._channels:
            raise Refusal(RefusalKind.NOT_FOUND, "no such channel")
        if not self._network.is_whole(self._server):
            if self._network.world.now < pending.since + _PEER_S:
                return None
            return _message(self._unavailable(request))
        frame = _frames(request.epoch)[request.batch]
        return _message(messages.SampleReply(frame=True, nbytes=len(frame)), frame)

    def _pending(self, channel: bytes) -> list[int]:
        requests = [
            messages.SampleRequest.FromString(link.pending.body)
            for link in self._server.links
            if link.pending is not None and link.pending.sample
        ]
        return [each.batch for each in requests if each.channel == channel]

    def _unavailable(self, request: Any) -> Any:
        error = StorageUnavailable("no holder of a partition answered")
        failure = Failure.of(error, epoch=request.epoch, batch=request.batch, worker=None)
        buffer = np.empty(failure.layout.nbytes, np.uint8)
        failure.write(buffer)
        return messages.SampleReply(failure=buffer.tobytes(), unavailable=True)


def _message(message: Any, frame: bytes = b"") -> Bytes:
    body = message.SerializeToString()
    return np.frombuffer(_SIZE.pack(len(body)) + body + frame, np.uint8)


def run(world: World, network: Network, schedule: Schedule) -> Record:
    """Receive epochs of batches. Returns after the source was closed."""
    record = Record()
    for server in network.servers.values():
        server.application = Sessions(network, server)
    with store.connected(network, schedule, record) as cluster:
        batches = source.RemoteSource(
            cluster,
            PLAN,
            small_schedule(),
            key="train",
            name="train",
            prefetch=schedule.prefetch,
            transport="network",
            rows="through",
            timeout_s=schedule.timeout_s,
        )
        trainer = world.start(lambda: _train(world, batches, schedule, record), "trainer")
        try:
            world.join(trainer, world.begin + schedule.closes_at_s)
        finally:
            record.closed_at = world.now
            batches.close()
        world.join(trainer)
    return record


def _train(world: World, batches: source.RemoteSource, schedule: Schedule, record: Record) -> None:
    random = Random(f"{schedule.seed} trainer")
    for epoch in range(_EPOCHS):
        number = 0
        while number < NUM_BATCHES and len(record.outcomes) < _MOST_WAITS:
            world.sleep(random.random() * random.choice((0.01, 0.1, 0.1, 3.0)))
            if world.now > record.closed_at:
                return
            if number == 0:
                batches.start_epoch(epoch)
            name = f"batch {number} of epoch {epoch}"
            outcome = record.begin(name, None, world.now, schedule.timeout_s)
            try:
                outcome.result = bytes_of(batches.receive(schedule.timeout_s))
                outcome.expected = _frames(epoch)[number]
                number += 1
            except Exception as error:
                outcome.error = error
            outcome.ended = world.now
