"""Schedules of a simulated cluster: states of its servers, and calls of a client, drawn from a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.network import State

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Change:
    """A server enters a state."""

    at_s: float
    server: int
    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One simulated hour, or minute: servers with their changes, and the calls of a client."""

    seed: int
    timeout_s: float
    partitions: tuple[tuple[int, ...], ...]
    """Of each server."""
    members: int
    """Servers that the client knows at first. The others join when they are ready."""
    latency_s: float
    piece_s: float
    """Time in which one of the four pieces of a reply arrives."""
    load_s: float
    """Longest delay of a thread that is to go on."""
    changes: tuple[Change, ...]
    callers: int
    """Threads that call at the same time."""
    calls: int
    """Of each of them."""
    prefetch: int
    closes_at_s: float = math.inf
    """When the client is closed while its calls are under way."""

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {len(self.partitions)} servers, {self.members} of them members at first; "
            f"partitions {list(self.partitions)}; {self.callers} threads with {self.calls} calls each, or "
            f"{self.prefetch} batches ahead; timeout {self.timeout_s:g} s; replies after {self.latency_s:g} "
            f"s, in 4 pieces of {self.piece_s:g} s; threads up to {self.load_s:g} s late; closed after "
            f"{self.closes_at_s:.3f} s",
            *(f"  {each.at_s:7.3f} s  server {each.server} {each.state.value}" for each in self.changes),
        ]
        return "\n".join(lines)


_FAULTS = (State.DEAF, State.VANISHED, State.SLOW, State.BUSY, State.FULL, State.DRAINING, State.DOWN)


def draw(seed: int) -> Schedule:
    """Return the schedule of a seed."""
    random = Random(seed)
    timeout_s = random.choice((5.0, 10.0, 20.0, 60.0))
    copies = random.choice((1, 1, 2, 2, 3, 5))
    servers = copies + random.randrange(3)
    partitions = [
        tuple(part for part in range(servers) if (server - part) % servers < copies)
        for server in range(servers)
    ]
    changes: list[Change] = []
    for server in range(servers):
        changes += _life(random, server, timeout_s * random.choice((2, 4)))
    for _ in range(random.choice((0, 0, 1, 3))):
        changes = _outage(random, changes, servers, timeout_s)
    for server in range(servers):
        if random.random() < 0.1:
            changes = _replaced(random, changes, server, len(partitions), timeout_s)
            partitions.append(partitions[server])
    return Schedule(
        seed=seed,
        timeout_s=timeout_s,
        partitions=tuple(partitions),
        members=servers,
        latency_s=random.choice((0.001, 0.005, 0.03)),
        piece_s=random.choice((0.0, 0.0, 0.002, 0.5)),
        load_s=random.choice((0.0, 0.0, 0.02, 0.2)),
        changes=tuple(sorted(changes, key=lambda each: (each.at_s, each.server))),
        callers=random.choice((1, 1, 2, 4)),
        calls=random.choice((1, 3, 10)),
        prefetch=random.choice((0, 1, 2, 4)),
        closes_at_s=random.choice((math.inf,) * 9 + (random.random() * 2 * timeout_s,)),
    )


def _life(random: Random, server: int, until_s: float) -> Sequence[Change]:
    """Draw the life of a server: it starts, serves, suffers and ends, again and again."""
    starts_s = random.choice((0.2, 2.0, 8.0))
    serves_s = random.choice((0.3, 2.0, 10.0, 40.0))
    killed = random.random()
    changes: list[Change] = []
    now = 0.0

    def become(state: State, longest_s: float) -> None:
        nonlocal now
        changes.append(Change(now, server, state))
        now += random.random() * longest_s

    if random.random() < 0.7:
        become(State.READY, serves_s)
    while now < until_s:
        if random.random() < killed:
            become(State.DOWN, starts_s)
        else:
            state = random.choice(_FAULTS)
            become(state, random.choice((0.5, 3.0, 30.0)))
            if (
                state in (State.DEAF, State.VANISHED, State.SLOW, State.BUSY, State.FULL)
                and random.random() < 0.6
            ):
                become(State.READY, serves_s)
                continue
            become(State.DOWN, starts_s / 2)
        become(State.JOINING, starts_s)
        become(State.READY, serves_s)
    return changes


def _outage(random: Random, changes: list[Change], servers: int, timeout_s: float) -> list[Change]:
    """Have several servers fail at the same time, for the same time."""
    state = random.choice((State.DEAF, State.VANISHED, State.DOWN, State.BUSY))
    begin = random.random() * 2 * timeout_s
    end = begin + random.random() * timeout_s
    hit = random.sample(range(servers), random.randint(1, servers))
    kept = [each for each in changes if each.server not in hit or not begin <= each.at_s <= end]
    after = State.JOINING if state is State.DOWN else State.READY
    begins = [Change(begin, server, state) for server in hit]
    ends = [Change(end, server, after) for server in hit]
    ready = [Change(end + random.random(), server, State.READY) for server in hit]
    return [*kept, *begins, *ends, *ready]


def _replaced(random: Random, changes: list[Change], server: int, by: int, timeout_s: float) -> list[Change]:
    """Have a server end for good, and another one take over its partitions at another address."""
    end = random.random() * timeout_s
    begin = end + random.random() * timeout_s
    kept = [each for each in changes if each.server != server or each.at_s < end]
    gone = [Change(end, server, random.choice((State.DOWN, State.VANISHED)))]
    left = [Change(begin + random.random() * 60.0, server, State.LEFT)]
    life = [replace(each, at_s=each.at_s + begin) for each in _life(random, by, 4 * timeout_s)]
    return [*kept, *gone, *left, *life]
