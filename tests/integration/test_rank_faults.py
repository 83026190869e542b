"""Ranks of one host, when a worker or a rank fails: who is told what, how soon, and that nothing is left.

The table of faults (docs/faults.md) over several ranks: signals and exceptions, in a worker or a rank,
at the start, in the middle and at the end, while the other rank is in a collective.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.fork_server import ForkServer
from tests.support.ranks import Ranks, places
from tests.support.training import PROGRAM, open_gate, seen_by, shares

pytestmark = pytest.mark.usefixtures("no_leftovers")

TIMEOUT = 5.0
"""Of loaders and of collectives."""
DEADLINE = 60.0
"""Generous: for a machine that is busy."""
BROKEN_COLLECTIVE = r"RuntimeError: .*gloo.*(Connection (closed|reset) by peer|Timed out)"

Start = Callable[..., Ranks]


@pytest.fixture
def start(fork_server: ForkServer, graph: Path, tmp_path: Path) -> Start:
    """Start two ranks on one host; ``special`` has arguments by rank."""

    def start(
        *, special: dict[int, dict[str, Any]], collective_seconds: float = TIMEOUT, **loader: Any
    ) -> Ranks:
        common = {
            "graph": str(graph),
            "folder": str(tmp_path),
            "collective_seconds": collective_seconds,
            "loader": {"timeout": TIMEOUT, **loader},
        }
        return Ranks(fork_server, PROGRAM, places(2), tmp_path, arguments=common, special=special)

    return start


def test_ranks_share_the_batches_of_one_rank_also_when_workers_die(
    start: Start, expected: list[int], tmp_path: Path
) -> None:
    """One dies by plan, in the middle of a batch, and one is killed from outside."""
    special = {0: {"gates": ["batch 2"]}, 1: {"faults": {"what": "kill", "at_batch": 4}}}
    with start(special=special, collective_seconds=60, timeout=60) as ranks:
        ranks.wait_for(0, "batch 2", seconds=DEADLINE)
        (worker,) = ranks.children(0, "gigl-worker")
        worker.kill()
        open_gate(tmp_path, "batch 2", rank=0)
        ended = ranks.succeed(seconds=DEADLINE)
    assert [seen_by(rank) for rank in ended] == shares(expected, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("kill", r"WorkerDied: worker 0 \(pid \d+\) was killed by SIGKILL .* while it sampled batch 3"),
        ("stop", r"TimeoutError: no batch within 5 s .*worker 0 .*stopped by a signal, .* batch 3"),
        ("raise", r"SamplingError: .*batch 3: Mishap: as planned"),
    ],
    ids=["kill", "stop", "raise"],
)
def test_a_worker_that_fails_ends_its_rank_and_the_collective_of_others(
    start: Start, what: str, error: str
) -> None:
    faults = {"what": what, "at_batch": 3, "lives": 9}
    with start(special={1: {"faults": faults}}, max_worker_restarts=0) as ranks:
        other, failed = ranks.finish(seconds=DEADLINE)
    assert re.match(error, failed.failure), failed.errors
    assert re.match(BROKEN_COLLECTIVE, other.failure), other.errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("kill", r"WorkerDied: worker 0 \(pid \d+\) was killed by SIGKILL .* while it started"),
        ("stop", r"TimeoutError: the sampling processes were not up within 5 s; worker 0 .*stopped"),
        ("raise", r"WorkerDied: worker 0 \(pid \d+\) ended with exit code 1 while it started"),
    ],
    ids=["kill", "stop", "raise"],
)
def test_a_worker_that_cannot_start_fails_the_loader_of_its_rank(start: Start, what: str, error: str) -> None:
    special = {0: {"gates": ["opened"]}, 1: {"faults": {"what": what, "lives": 9}}}
    with start(special=special, max_worker_restarts=0) as ranks:
        (failed,) = ranks.finish(seconds=DEADLINE, ranks=[1])
        open_gate(ranks.folder, "opened", rank=0)
        (other,) = ranks.finish(seconds=DEADLINE, ranks=[0])
    assert re.match(error, failed.failure), failed.errors
    assert re.match("RuntimeError: rank 1 could not build DistNeighborLoader-1: " + error[:12], other.failure)


STORE = r"ConnectionError: the key-value store of the process group does not answer: .*rank 0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "step", "number", "error"),
    [
        (0, "joined", signal.SIGKILL, STORE),
        (0, "joined", signal.SIGSTOP, STORE + r".*no answer within 5 s"),
        (1, "joined", signal.SIGKILL, r"TimeoutError: rank 1 did not build the loader .* within 5 s"),
        (1, "opened", signal.SIGSTOP, r"TimeoutError: rank 1 did not build the loader .* within 5 s"),
        (1, "batch 2", signal.SIGKILL, BROKEN_COLLECTIVE),
        (1, "batch 2", signal.SIGSTOP, BROKEN_COLLECTIVE),
    ],
    ids=lambda value: "" if "Error" in str(value) else str(value),
)
def test_a_rank_that_is_killed_or_stopped(
    start: Start, victim: int, step: str, number: int, error: str
) -> None:
    with start(special={victim: {"gates": [step]}}) as ranks:
        ranks.wait_for(victim, step, seconds=DEADLINE)
        if victim == 0:  # It holds the store, and opening a dataset waits longer for that than a loader here.
            ranks.wait_for(1, "opened", seconds=DEADLINE)
        ranks.send(victim, number)
        (other,) = ranks.finish(seconds=DEADLINE, ranks=[1 - victim])
        if number == signal.SIGSTOP:
            ranks.send(victim, signal.SIGKILL)
        (dead,) = ranks.finish(seconds=DEADLINE, ranks=[victim])
    assert re.match(error, other.failure), other.errors
    assert dead.status == -signal.SIGKILL


def test_an_exception_of_the_users_own_leaves_nothing(start: Start) -> None:
    with start(special={1: {"mistake": "batch 2"}}, collective_seconds=60, timeout=60) as ranks:
        other, failed = ranks.finish(seconds=DEADLINE)
    assert failed.failure == "ZeroDivisionError: the user's own mistake"
    assert re.match(BROKEN_COLLECTIVE, other.failure), other.errors


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_at_the_end_nobody_needs_the_other_rank_or_a_worker(start: Start, number: int) -> None:
    with start(special={1: {"gates": ["drained"]}, 0: {"gates": ["drained"]}}) as ranks:
        for rank in (0, 1):
            ranks.wait_for(rank, "drained", seconds=DEADLINE)
        (worker,) = ranks.children(0, "gigl-worker")
        worker.send_signal(number)
        ranks.send(1, number)
        open_gate(ranks.folder, "drained", rank=0)
        (other,) = ranks.finish(seconds=DEADLINE, ranks=[0])
        if number == signal.SIGSTOP:
            ranks.send(1, signal.SIGKILL)
        ranks.finish(seconds=DEADLINE)
    assert (other.status, other.errors) == (0, "")


# Mistakes of a new user that one host has room for; test_host_mistakes.py has the others.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("special", "error"),
    [
        ({"join": False}, "ValueError: this process is one of WORLD_SIZE=2 ranks but has no process group: "),
        ({"loader": {"timeout": TIMEOUT, "seed": 5}}, r"ValueError: .*ranks differ: seed is .*5 on rank 1"),
        ({"loader": None}, "TimeoutError: rank 1 did not build the loader DistNeighborLoader-1 "),
        (
            {"loader": {"timeout": TIMEOUT, "batch_size": 7}},
            r"ValueError: .*ranks differ: batch_size is .*7 on rank 1",
        ),
    ],
    ids=["no process group", "different seeds", "loader on one rank only", "different options"],
)
def test_mistakes(start: Start, special: dict[str, Any], error: str) -> None:
    with start(special={1: special}) as ranks:
        other, mistaken = ranks.finish(seconds=DEADLINE)
    assert any(re.match(error, rank.failure) for rank in (mistaken, other)), (mistaken, other)


def test_unequal_ranks(fork_server: ForkServer, graph: Path, tmp_path: Path) -> None:
    arguments = {
        "graph": str(graph),
        "folder": str(tmp_path),
        "loader": {"timeout": 60},
        "collective_seconds": 60,
    }
    with Ranks(fork_server, PROGRAM, places(2, 1), tmp_path, arguments=arguments) as ranks:
        ended = ranks.finish(seconds=DEADLINE)
    told = r"ValueError: every host needs the same number of ranks: .*(host 0 has 2|host 1 has 1)"
    assert all(re.match(told, rank.failure) for rank in ended), ended
