"""A trainer for tests that end it from outside: ``python -m tests.support.trainer WORKERS METHOD PHASE``.

Prints the worker's pids on one line when it has reached the phase, then goes on until it is ended.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time

from tests.support.faults import FaultPlan
from tests.support.sources import NUM_BATCHES, SourceKind


def main() -> None:
    workers, method, phase = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    faults = FaultPlan(what="sleep", at_batch=2) if phase == "sampling" else None
    source = SourceKind(workers, method).open(faults)
    pids = [worker["pid"] for worker in source.stats()["workers"]]
    if phase == "starting":
        announce(pids)
    source.start_epoch(0)
    kept = [source.receive(60), source.receive(60)]
    if phase == "forked":
        pids.append(fork_someone())
    if phase != "starting":
        announce(pids)
    if phase == "sampling":
        source.receive(60)
    for epoch in range(1, 1_000_000):
        source.start_epoch(epoch)
        for _ in range(NUM_BATCHES):
            kept = [kept[-1], source.receive(60)]


def announce(pids: list[int]) -> None:
    print(*pids, flush=True)


def fork_someone() -> int:
    """Leave a child that holds copies of all our files, as other libraries do."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(5,))
    child.start()
    assert child.pid is not None
    return child.pid


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
