"""Simulated clients against simulated servers: schedules that broke a rule once, and others drawn by seed."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from tests.simulation.network import State
from tests.simulation.outcomes import describe
from tests.simulation.run import Run, simulate, simulate_seed
from tests.simulation.schedule import Change, Schedule, draw
from tests.simulation.world import Stuck, World

if TYPE_CHECKING:
    from collections.abc import Callable

BUSY, DEAF, DOWN, JOINING = State.BUSY, State.DEAF, State.DOWN, State.JOINING
LEFT, READY, VANISHED = State.LEFT, State.READY, State.VANISHED


def _schedule(
    *lives: dict[float, State], partitions: tuple[tuple[int, ...], ...] = (), **options: Any
) -> Schedule:
    """Return a schedule in which each server enters states at times. Each holds all partitions by default."""
    defaults: dict[str, Any] = {
        "seed": 0,
        "timeout_s": 60.0,
        "members": len(lives),
        "latency_s": 0.001,
        "piece_s": 0.0,
        "load_s": 0.0,
        "callers": 4,
        "calls": 4,
        "prefetch": 2,
    }
    every = tuple(range(len(lives)))
    changes = [Change(at, server, state) for server, life in enumerate(lives) for at, state in life.items()]
    return Schedule(
        **defaults | options,
        partitions=partitions or (every,) * len(lives),
        changes=tuple(sorted(changes, key=lambda each: each.at_s)),
    )


# Calls to the holders of a partition

CALLS = {
    "a holder that refuses is tried with pauses beside one that is silent": _schedule(
        {0: DEAF}, {0: DOWN}, timeout_s=5.0
    ),
    "a busy holder keeps no call from one that is ready": _schedule({0: BUSY}, {0: READY}),
    "three silent holders keep no call from a fourth": _schedule({0: DEAF}, {0: DEAF}, {0: DEAF}, {0: READY}),
    "the last holder leaves during an attempt, and another one joins": _schedule(
        {0: READY},
        {0: VANISHED, 2.0: LEFT},
        {30.0: JOINING, 31.0: READY},
        partitions=((0,), (1,), (1,)),
        members=2,
    ),
    "a holder joins while no reply tells of it": _schedule(
        {0: READY},
        {0: DOWN},
        {2.0: JOINING, 4.0: READY},
        partitions=((0,), (1,), (1,)),
        members=2,
        timeout_s=30.0,
        callers=1,
        calls=1,
        seed=4,
    ),
}


@pytest.mark.parametrize("schedule", CALLS.values(), ids=CALLS)
def test_calls_keep_the_rules(schedule: Schedule) -> None:
    _check("rows", schedule)


def test_a_call_is_at_another_holder_at_once_where_one_is_busy() -> None:
    """It waits no second, after which the busy one would count as stalled."""
    run = _check("rows", _schedule({0: BUSY}, {0: READY}))
    assert run.outcomes
    assert max(each.ended - each.began for each in run.outcomes) < 0.5


# Batches of a loader

BATCHES = {
    "without prefetching, a batch that failed once is requested again": _schedule(
        {0: READY, 0.5: BUSY, 1.0: READY}, prefetch=0
    ),
    "no wait for a batch ends before its deadline": _schedule(
        {0: DOWN}, {0: READY}, partitions=((0,), (1,)), timeout_s=10.0, prefetch=0
    ),
    "a server that refuses does not get all requests of an epoch": _schedule(
        {0: READY, 0.01: BUSY, 3.0: READY}
    ),
    "a server that refuses does not get every retry": _schedule(
        {0: READY, 0.1: BUSY}, {0: BUSY, 3.0: READY}, prefetch=4, timeout_s=20.0
    ),
    "a server that refuses does not get every hedge": _schedule(
        {0: READY, 1.0: BUSY}, {0: READY, 1.0: DEAF}, {0: READY}, timeout_s=20.0
    ),
    "two silent servers do not keep a batch from a third": _schedule(
        {0: READY, 1.0: DEAF}, {0: READY, 1.0: DEAF}, {0: READY}, timeout_s=20.0, prefetch=1
    ),
    "a busy server that has a frame does not keep the batch from another server": _schedule(
        {0: READY, 0.05: BUSY}, {0: DOWN, 2.0: READY}, latency_s=0.03, prefetch=1, seed=1
    ),
    "a server that was away for longer than the timeout is found again": _schedule(
        {0: READY, 1.0: DOWN, 8.0: READY}, {0: READY, 0.9: BUSY}, timeout_s=5.0, prefetch=0
    ),
}


@pytest.mark.parametrize("schedule", BATCHES.values(), ids=BATCHES)
def test_batches_keep_the_rules(schedule: Schedule) -> None:
    _check("batches", schedule)


# Schedules by seed: python -m tests.simulation --help


@pytest.mark.parametrize(("client", "count"), [("rows", 40), ("batches", 10)])
def test_some_schedules_keep_the_rules(client: str, count: int) -> None:
    for seed in range(count):
        _check(client, draw(seed))


@pytest.mark.slow
@pytest.mark.parametrize("client", ["rows", "batches"])
@pytest.mark.parametrize("first", [100, 10_000, 20_000, 30_000])
def test_many_schedules_keep_the_rules(client: str, first: int) -> None:
    for seed in range(first, first + (1_000 if client == "rows" else 300)):
        _check(client, draw(seed))


def _check(client: str, schedule: Schedule) -> Run:
    run = simulate(client, schedule)
    assert not run.broken, f"{schedule}\n" + "\n".join(run.broken[:10])
    return run


@pytest.mark.parametrize("client", ["rows", "batches"])
def test_a_seed_repeats_every_step(client: str) -> None:
    first, again = (simulate_seed(client, 7) for _ in range(2))
    assert first.steps == again.steps
    assert list(map(describe, first.outcomes)) == list(map(describe, again.outcomes))
    assert first.steps != simulate_seed(client, 8).steps


def test_a_wait_that_is_too_short_is_told() -> None:
    """The rules are strict enough to notice a client that gives up early."""
    schedule = _schedule({0: READY}, callers=1, calls=1)
    run = simulate("rows", replace(schedule, latency_s=3.0))
    assert not run.broken
    assert [each.error for each in run.outcomes] == [None]


# The world itself


def _program(world: World, run: Callable[[ModuleType], object]) -> object:
    module = ModuleType("simulated")
    vars(module).update(time=time, threading=threading)
    with world.installed(module):
        result = world.run(lambda: run(module))
    assert module.time is time
    return result


def test_an_hour_passes_at_once_and_threads_take_turns() -> None:
    world, seen = World(0), []

    def run(module: Any) -> None:
        changed, began = module.threading.Condition(), module.time.monotonic()

        def work() -> None:
            for _ in range(3):
                module.time.sleep(600.0)
                with changed:
                    seen.append(module.time.monotonic() - began)
                    changed.notify_all()

        threads = [module.threading.Thread(target=work, name="work", daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        with changed:
            assert changed.wait_for(lambda: len(seen) == 6, 3_600.0)
        for thread in threads:
            thread.join()

    began = time.monotonic()
    _program(world, run)
    assert time.monotonic() - began < 60
    assert [round(each, 1) for each in seen] == [600.0, 600.0, 1200.0, 1200.0, 1800.0, 1800.0]
    assert world.alive == []


def test_threads_that_wait_for_ever_are_told() -> None:
    with pytest.raises(Stuck, match="all threads wait for ever"):
        _program(World(0), lambda module: module.threading.Event().wait())


def test_what_a_thread_raises_is_raised() -> None:
    def run(module: Any) -> None:
        def fail() -> None:
            raise KeyError("lost")

        module.threading.Thread(target=fail, name="fails", daemon=True).start()
        module.time.sleep(1.0)

    with pytest.raises(KeyError, match="lost"):
        _program(World(0), run)


def test_threads_that_are_left_are_ended() -> None:
    ended = []

    def run(module: Any) -> None:
        def work() -> None:
            try:
                module.threading.Event().wait(math.inf)
            finally:
                ended.append(True)

        module.threading.Thread(target=work, name="left", daemon=True).start()
        module.time.sleep(1.0)

    _program(World(0), run)
    assert ended == [True]
