"""Colocated: worker processes on the trainer's own host."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from gigl_loader import DistDataset, DistNeighborLoader
from tests.chaos.drive import drive
from tests.chaos.faults import Fault, draw_faults
from tests.chaos.ground import LOADER, Ground, Repairs
from tests.chaos.record import Record
from tests.chaos.wrongs import few_descriptors, stopped
from tests.support.training import FANOUT

NAME = "colocated, 2 workers"
KINDS = ("SIGKILL of a worker", "SIGSEGV of a worker", "SIGSTOP of a worker", "few descriptors of a worker")
_WORKERS = 2


def run(ground: Ground, seed: int, leg: int, count: int) -> Record:
    """Run a leg of ``count`` faults."""
    record = Record(NAME, leg)
    repairs = Repairs(_WORKERS)
    options = LOADER | {"num_workers": _WORKERS, "max_worker_restarts": 10_000}
    faults = draw_faults(seed, NAME, leg, count, kinds=KINDS)
    with DistNeighborLoader(DistDataset.open(ground.graph), FANOUT, "train", **options) as loader:

        def commit(fault: Fault) -> None:
            def work(worker: int) -> None:
                _harm(loader.stats()["workers"][worker]["pid"], fault)

            repairs.run(fault.target, work)

        drive(loader, faults, commit, ground=ground, record=record)
        repairs.finish()
    record.defects.extend(repairs.errors)
    return record


def _harm(pid: int, fault: Fault) -> None:
    match fault.kind:
        case "SIGKILL of a worker":
            _send(pid, signal.SIGKILL)
        case "SIGSEGV of a worker":
            _send(pid, signal.SIGSEGV)
        case "SIGSTOP of a worker":
            with stopped(pid):
                time.sleep(fault.seconds)
        case "few descriptors of a worker":
            few_descriptors(pid, fault.seconds)


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
