"""Client of the holders of partitions under simulation: rows, neighbours, ids and queries go this way.

Real are ``gigl_client.cluster`` and its membership, ``rpc.replicas``, ``calls``, ``holders`` and
``connection``; simulated are their clock, threads and connections.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from tests.simulation import store
from tests.simulation.network import REPLY
from tests.simulation.outcomes import Record

if TYPE_CHECKING:
    from gigl_loader.rpc.replicas import Replicas
    from gigl_loader.rpc.reply_stream import ReplyStream
    from tests.simulation.network import Network
    from tests.simulation.schedule import Schedule
    from tests.simulation.world import World

MODULES = store.MODULES


def run(world: World, network: Network, schedule: Schedule) -> Record:
    """Make the calls of a schedule. Returns after the client was closed."""
    record = Record()
    with store.connected(network, schedule, record) as cluster:
        client = cluster.open_replicas(timeout_s=schedule.timeout_s)
        calls = [
            partial(_call, world, client, schedule, thread, record) for thread in range(schedule.callers)
        ]
        threads = [world.start(call, f"caller {number}") for number, call in enumerate(calls)]
        for thread in threads:
            world.join(thread, world.begin + schedule.closes_at_s)
        record.closed_at = world.now
        client.close()
        for thread in threads:
            world.join(thread)
    return record


def _call(world: World, client: Replicas, schedule: Schedule, thread: int, record: Record) -> None:
    random = Random(f"{schedule.seed} {thread}")
    for number in range(schedule.calls):
        world.sleep(random.random() * random.choice((0.01, 1.0, schedule.timeout_s)))
        if world.now > record.closed_at:
            return
        partition, name = random.randrange(schedule.members), f"call {thread}.{number}"
        outcome = record.begin(name, partition, world.now, schedule.timeout_s)
        try:
            outcome.result = client.connection(partition).call(name.encode(), _read)
            outcome.expected = REPLY.tobytes()
        except Exception as error:
            outcome.error = error
        outcome.ended = world.now
        record.stalls.append((world.now, client.hedging.stalled_s((type(_read), len(name).bit_length()))))


def _read(reply: ReplyStream) -> bytes:
    found = b"".join(piece.tobytes() for piece in reply.pieces([len(REPLY) // 4] * 4))
    reply.finish()
    return found
