"""An attack: tasks by seed, thrown by processes of their own, while somebody looks after the victims."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context

from tests.fuzz.live.calls import throw_messages
from tests.fuzz.live.http2 import throw_frames
from tests.fuzz.live.ring_socket import knock_at
from tests.fuzz.live.target import Target, Throw
from tests.fuzz.live.tickets import throw_tickets
from tests.fuzz.live.tls import throw_records

_KINDS: Mapping[str, tuple[Throw, int, int]] = {
    "frames": (throw_frames, 8_000, 20),
    "messages": (throw_messages, 1_000, 8),
    "tickets": (throw_tickets, 500, 6),
    "records": (throw_records, 500, 3),
    "ring": (knock_at, 1_000, 2),
}
"""By name: what throws, how many requests a task has, and how many tasks of each kind in a round."""
_ATTACKERS = 2
_TASK_S = 120.0


@dataclass(frozen=True, slots=True)
class Task:
    """Requests of one kind at one target. The same seed and number throw the same bytes."""

    seed: int
    number: int
    kind: str
    target: Target
    count: int

    def run(self) -> Counter[str]:
        throw, _, _ = _KINDS[self.kind]
        return throw(self.target, random.Random(f"{self.seed}/{self.number}"), self.count)

    def __str__(self) -> str:
        return f"seed {self.seed} task {self.number}: {self.count} {self.kind} at the {self.target.name}"


@dataclass(slots=True)
class Outcome:
    """What was thrown."""

    sent: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    defects: list[str] = field(default_factory=list)


def attack(
    targets: Sequence[Target], *, seed: int, requests: int, looked: object = lambda _: [], every: int = 10
) -> Outcome:
    """Throw ``requests`` requests. ``looked`` is called with the last tasks after ``every`` of them.

    It returns what it found dead, which ends the attack.
    """
    assert callable(looked)
    outcome = Outcome()
    began = time.monotonic()
    # Spawned: a fork would have the threads' locks of whoever looks after the victims.
    with ProcessPoolExecutor(_ATTACKERS, mp_context=get_context("spawn")) as attackers:
        running: dict[Future[Counter[str]], Task] = {}
        recent: list[Task] = []
        for task in _tasks(targets, seed, requests):
            running[attackers.submit(task.run)] = task
            recent.append(task)
            if len(running) > _ATTACKERS:
                _collect(running, outcome)
            if len(recent) >= every:
                outcome.defects += looked([str(each) for each in recent])
                recent.clear()
            if outcome.defects:
                break
        while running:
            _collect(running, outcome)
        outcome.defects += looked([str(each) for each in recent])
    outcome.seconds = time.monotonic() - began
    return outcome


def _collect(running: dict[Future[Counter[str]], Task], outcome: Outcome) -> None:
    """Wait for one task at least, and count what it sent."""
    done, _ = wait(running, _TASK_S, return_when=FIRST_COMPLETED)
    if not done:
        outcome.defects.append(f"no task ended within {_TASK_S:g} s: {', '.join(map(str, running.values()))}")
        running.clear()
    for future in done:
        task = running.pop(future)
        error = future.exception()
        if error is None:
            outcome.sent += future.result()
        else:
            outcome.defects.append(f"{task} broke: {type(error).__name__}: {error}")


def _tasks(targets: Sequence[Target], seed: int, requests: int) -> Iterator[Task]:
    """Yield tasks of every kind at every target in a shuffled order, until all requests are given out."""
    number = left = 0
    left = requests
    round_size = sum(size * times for _, size, times in _KINDS.values()) * len(targets)
    scale = min(requests / round_size, 1.0)
    while left > 0:
        round_of = [
            (kind, target)
            for target in targets
            for kind, (_, _, times) in _KINDS.items()
            if target.ring_socket or kind != "ring"
            for _ in range(times)
        ]
        random.Random(f"{seed}/round/{number}").shuffle(round_of)
        for kind, target in round_of:
            count = min(max(int(_KINDS[kind][1] * scale), 1), left)
            if count <= 0:
                return
            yield Task(seed, number, kind, target, count)
            number += 1
            left -= count
