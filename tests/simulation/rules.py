"""Rules that hold for every call of a simulated client, whatever its servers do.

The first rule: where a holder is ready for long enough, the call gets its reply meanwhile. ``call_s`` and
``batch_s`` say how long that is: the sum of what may have begun just before.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from gigl_loader.errors import SamplingError, StorageUnavailable
from tests.simulation.network import SLOWNESS, Network, Server, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.simulation.outcomes import Outcome, Record
    from tests.simulation.schedule import Schedule

BACKOFF_S = 0.5
"""Longest pause between two attempts (``gigl_loader.retry``)."""
ATTEMPT_S, SHORTEST_ATTEMPT_S = 30.0, 2.0
"""Longest attempt: a third of the timeout, within these (``rpc.replicas``)."""
HEARTBEAT_S = 10.0
"""Time between two heartbeats, whose replies tell of servers that have joined."""
OPEN_ATTEMPT_S = 15.0
"""Longest attempt to open a channel, of two calls or three (``gigl_client.channels``)."""
STEPS = 12
"""Waits of threads on the way of one attempt, each of which may end late on a loaded machine."""
MOST_ATTEMPTS, MOST_OF_BATCHES = 7, 14
"""Attempts of one call at one server within a second: the pauses are 0.05, 0.1, 0.2 and 0.4 s, each up to a
quarter shorter, then 0.5 s. A batch whose channel was lost is requested again without a pause, where the
channel had delivered another one."""


BATCH = re.compile(r"\d+")
"""Numbers in the name of a batch: its own, and that of its epoch."""


class Window(NamedTuple):
    """Time in which a call could have been served."""

    begin: float
    end: float
    servers: tuple[Server, ...]
    """Ready all the time."""

    @property
    def seconds(self) -> float:
        return self.end - self.begin


def broken_by_call(outcome: Outcome, record: Record, network: Network, schedule: Schedule) -> Iterator[str]:
    """Yield the rules that a call to the holders of a partition has broken."""
    if outcome.ended > record.closed_at:
        yield from _broken_by_closed(outcome, record, schedule, SamplingError)
        return
    yield from _broken_by_all(outcome, schedule)
    yield from _crowds(outcome)
    holders = [each for each in network.servers.values() if outcome.partition in each.partitions]
    for holder in holders:
        yield from _missed_by_call(outcome, holder, holders, network, schedule)
    # With less time, not every holder comes to its turn.
    if outcome.error is not None and call_s(outcome, schedule, len(holders)) < schedule.timeout_s:
        yield from _unnamed(outcome, holders, schedule)


def broken_by_batch(outcome: Outcome, record: Record, network: Network, schedule: Schedule) -> Iterator[str]:
    """Yield the rules that the wait for a batch has broken."""
    if outcome.ended > record.closed_at:
        yield from _broken_by_closed(outcome, record, schedule, ValueError)
        return
    yield from _broken_by_all(outcome, schedule)
    yield from _crowds(outcome)
    yield from _ahead(outcome, record, schedule)
    servers = list(network.servers.values())
    known = servers[: schedule.members]
    for window in _whole_windows(servers, outcome.began, outcome.ended_by):
        enough_s = batch_s(outcome, schedule, len(servers))
        enough_s += max(lag_s(each, window.begin, OPEN_ATTEMPT_S) for each in servers)
        if all(each in known for each in window.servers):
            yield from _missed(outcome, window, enough_s)
        else:
            told = max(
                _told(window, known), key=lambda each: each.seconds, default=window._replace(end=window.begin)
            )
            yield from _missed(outcome, told, enough_s + join_s(schedule) + HEARTBEAT_S)


def call_s(outcome: Outcome, schedule: Schedule, holders: int) -> float:
    """Return how long a holder must be ready for a call to get its reply, whatever happened before.

    A pause may have begun just before; each holder may be silent until it counts as stalled, or be killed in
    the middle of its reply; then the reply comes. Times for which holders are avoided do not add to it: all
    are tried in each round.
    """
    pieces_s = 4 * schedule.piece_s
    lost_s = holders * (outcome.stalled_s + pieces_s)
    return BACKOFF_S + lost_s + 2 * schedule.latency_s + pieces_s + late_s(schedule)


def batch_s(outcome: Outcome, schedule: Schedule, servers: int) -> float:
    """Return how long servers must be ready for a batch to come, whatever happened before.

    As for a call; before it, a channel is opened, after a pause of the client and one of gRPC.
    """
    return 2 * BACKOFF_S + call_s(outcome, schedule, servers) + 2 * late_s(schedule)


def lag_s(server: Server, at: float, longest_s: float) -> float:
    """Return how long a request that was sent to a server before ``at`` may keep a call from another one.

    Where the server was slow, until its reply comes. Where its line was cut, until the attempt ends: the
    kernel sends again what was lost, at intervals that double.
    """
    lags = {State.VANISHED: longest_s, State.SLOW: min(SLOWNESS * 2 * server.latency_s, longest_s)}
    return max(
        (lags.get(state, 0.0) for begin, end, state in periods(server) if begin < at <= end + longest_s),
        default=0.0,
    )


def join_s(schedule: Schedule) -> float:
    """Return how long it takes until a client knows a server that has joined.

    It fetches a view every 5 s while it misses a holder; each server that it calls may be silent for 2 s.
    """
    return 5.0 + 2.0 * schedule.members + late_s(schedule)


def late_s(schedule: Schedule) -> float:
    """Return how late an attempt may end because threads do."""
    return STEPS * schedule.load_s + 0.01


def attempt_s(schedule: Schedule) -> float:
    """Return how long an attempt may take."""
    return min(ATTEMPT_S, max(schedule.timeout_s / 3, SHORTEST_ATTEMPT_S))


def periods(server: Server) -> Iterator[tuple[float, float, State]]:
    """Yield begin, end and state of each period of a server."""
    for (begin, state), (end, _) in pairwise([*server.history, (math.inf, State.DOWN)]):
        yield begin, end, state


def ready(server: Server, begin: float, end: float) -> Iterator[tuple[float, float]]:
    """Yield when a server was ready, within an interval."""
    for since, until, state in periods(server):
        if state is State.READY and since < end and until > begin:
            yield max(since, begin), min(until, end)


def _broken_by_all(outcome: Outcome, schedule: Schedule) -> Iterator[str]:
    # A reply that is coming is waited for.
    coming_s = outcome.stalled_s + 4 * schedule.piece_s
    if outcome.ended > outcome.deadline + coming_s + late_s(schedule):
        yield f"{outcome}: ended {outcome.ended - outcome.deadline:.3f} s after its deadline"
    if outcome.error is None:
        if outcome.result != outcome.expected:
            yield f"{outcome}: wrong bytes"
    elif not isinstance(outcome.error, (StorageUnavailable, TimeoutError)):
        yield f"{outcome}: {outcome.error!r}"
    elif outcome.ended < outcome.deadline:
        yield f"{outcome}: gave up {outcome.deadline - outcome.ended:.3f} s early: {outcome.error}"
    if outcome.partition is not None:
        for attempt in outcome.attempts:
            if attempt.at > outcome.deadline + late_s(schedule):
                yield f"{outcome}: an attempt {attempt.at - outcome.deadline:.3f} s after the deadline"


def _broken_by_closed(
    outcome: Outcome, record: Record, schedule: Schedule, error: type[Exception]
) -> Iterator[str]:
    """Yield what a call did against the rule that closing its client ends it at once."""
    if outcome.ended > record.closed_at + late_s(schedule):
        yield f"{outcome}: ended {outcome.ended - record.closed_at:.3f} s after the client was closed"
    # A reply may have come just before.
    ended = isinstance(outcome.error, error) and not isinstance(outcome.error, StorageUnavailable)
    if outcome.error is not None and not ended:
        yield f"{outcome}: {outcome.error!r}, after the client was closed"


def _crowds(outcome: Outcome) -> Iterator[str]:
    """Yield the servers that were called too often."""
    most = MOST_OF_BATCHES if outcome.partition is None else MOST_ATTEMPTS
    by_server: dict[str, list[float]] = {}
    for attempt in outcome.attempts:
        by_server.setdefault(attempt.server, []).append(attempt.at)
    for server, times in by_server.items():
        least_s = min((later - first for first, later in zip(times, times[most:], strict=False)), default=1.0)
        if least_s < 1.0:
            yield f"{outcome}: {most + 1} attempts at {server} within {least_s:.3f} s"


def _ahead(outcome: Outcome, record: Record, schedule: Schedule) -> Iterator[str]:
    """Yield that a batch was requested before it may be in flight: a server that refuses would get all."""
    if not outcome.attempts:
        return
    number, epoch = BATCH.findall(outcome.name)
    first = outcome.attempts[0].at
    received = sum(
        each.error is None and each.ended <= first and BATCH.findall(each.name)[1] == epoch
        for each in record.outcomes
    )
    most = max(schedule.prefetch * len(schedule.partitions), 1)
    if int(number) >= received + most:
        yield f"{outcome}: requested when {received} were received, and {most} may be in flight"


def _missed(outcome: Outcome, window: Window, enough_s: float) -> Iterator[str]:
    """Yield that a window went by though it was long enough."""
    if window.seconds > enough_s:
        servers = ", ".join(str(each.number) for each in window.servers)
        yield (
            f"{outcome}: nothing within {window.seconds:.3f} s, while servers {servers} were ready from "
            f"{window.begin:.3f} to {window.end:.3f} s; {enough_s:.3f} s are enough; then {outcome.error!r}"
        )


def _missed_by_call(
    outcome: Outcome, holder: Server, holders: list[Server], network: Network, schedule: Schedule
) -> Iterator[str]:
    known = list(network.servers.values())[: schedule.members]
    for begin, end in ready(holder, outcome.began, outcome.ended_by):
        window, longest_s = Window(begin, end, (holder,)), attempt_s(schedule)
        enough_s = call_s(outcome, schedule, len(holders)) + lag_s(holder, begin, longest_s)
        if holder in known:
            yield from _missed(outcome, window, enough_s)
            continue
        # The holder before may be the only one that the client knows, and keep it for an attempt.
        enough_s += join_s(schedule) + max(lag_s(each, begin, longest_s) for each in holders)
        for told in _told(window, known):
            yield from _missed(outcome, told, enough_s)


def _told(window: Window, known: Iterable[Server]) -> Iterator[Window]:
    """Yield the parts of a window in which a server was ready that the client knows: it tells of others."""
    for server in known:
        for begin, end in ready(server, window.begin, window.end):
            yield Window(begin, end, (*window.servers, server))


def _unnamed(outcome: Outcome, holders: Iterable[Server], schedule: Schedule) -> Iterator[str]:
    """Yield the holders that an error does not name, of those that the client knows all the time."""
    for holder in holders:
        has_left = any(state is State.LEFT and begin < outcome.ended for begin, _, state in periods(holder))
        is_known = holder.number < schedule.members and not has_left
        if is_known and holder.endpoint.control_address not in str(outcome.error):
            yield f"{outcome}: {holder.endpoint} is not named: {outcome.error}"


def _whole_windows(servers: Iterable[Server], begin: float, end: float) -> Iterator[Window]:
    """Yield windows within an interval in which each partition had a holder that was ready all the time."""
    times = {each: list(ready(each, begin, end)) for each in servers}
    partitions = {part for server in times for part in server.partitions}
    for start in sorted({since for found in times.values() for since, _ in found}):
        until = {
            server: last for server, found in times.items() for since, last in found if since <= start < last
        }
        best = [
            max((each for each in until if part in each.partitions), key=until.__getitem__, default=None)
            for part in sorted(partitions)
        ]
        chosen = tuple(dict.fromkeys(each for each in best if each is not None))
        if None not in best:
            yield Window(start, min(until[each] for each in chosen), chosen)
