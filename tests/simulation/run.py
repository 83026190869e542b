"""One run of a schedule, and the rules that it broke."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tests.simulation import batches, rows
from tests.simulation.network import FIRST_PORT, Network
from tests.simulation.outcomes import Outcome, Record
from tests.simulation.rules import broken_by_batch, broken_by_call
from tests.simulation.schedule import Schedule, draw
from tests.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

_ENDS_S = 6.0
"""Time in which everything ends after a client was closed."""


@dataclass(frozen=True, slots=True)
class Client:
    """A kind of client under simulation, and its rules."""

    modules: tuple[ModuleType, ...]
    """Code that sees the simulated clock and threads."""
    run: Callable[[World, Network, Schedule], Record]
    broken: Callable[[Outcome, Record, Network, Schedule], Iterator[str]]


CLIENTS = {
    "rows": Client(rows.MODULES, rows.run, broken_by_call),
    "batches": Client(batches.MODULES, batches.run, broken_by_batch),
}


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a schedule."""

    schedule: Schedule
    outcomes: list[Outcome]
    broken: list[str]
    """Rules that were broken."""
    steps: int


def simulate(client: str, schedule: Schedule) -> Run:
    """Run a schedule with a client of this kind."""
    simulated = CLIENTS[client]
    world = World(schedule.seed, load_s=schedule.load_s)
    network = Network(world, piece_s=schedule.piece_s)
    for number, partitions in enumerate(schedule.partitions):
        server = network.add(number, partitions, latency_s=schedule.latency_s)
        if number < schedule.members:
            network.join(server)
    for change in schedule.changes:
        server = network.servers[FIRST_PORT + change.server]
        world.at(world.begin + change.at_s, partial(server.become, change.state))
    broken: list[str] = []
    record = Record()

    def program() -> None:
        nonlocal record
        record = simulated.run(world, network, schedule)
        world.sleep(_ENDS_S + 20 * schedule.load_s)
        broken.extend(f"left running: {name}" for name in world.alive)
        broken.extend(
            f"left open: a request at {each.endpoint}" for each in network.servers.values() if each.is_used
        )

    with world.installed(*simulated.modules):
        try:
            world.run(program)
        except AssertionError as error:
            broken.append(repr(error))
    record.finish()
    for outcome in record.outcomes:
        broken += simulated.broken(outcome, record, network, schedule)
    return Run(schedule, record.outcomes, broken, world.steps)


def simulate_seed(client: str, seed: int) -> Run:
    """Run the schedule of a seed with a client of this kind."""
    return simulate(client, draw(seed))
