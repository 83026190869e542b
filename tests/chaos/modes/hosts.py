"""Colocated over two hosts of one rank each, whose peer services ask each other over the loopback."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import psutil

from tests.chaos.faults import Fault, draw_faults
from tests.chaos.ground import LOADER, Ground, Repairs
from tests.chaos.lines import ADDRESS, BURST_KINDS, LINE_KINDS, disturb
from tests.chaos.record import HANG_S, Record
from tests.chaos.wrongs import few_descriptors, stopped
from tests.support.leftovers import wait_until
from tests.support.ports import free_port
from tests.support.proxy import Proxy
from tests.support.ranks import Ranks, places
from tests.support.training import PROGRAM, open_gate, seen_by, shares

NAME = "colocated, 2 hosts"
BURSTS_NAME = "bursts: colocated, 2 hosts"
_BURST_S = 0.6
KINDS = (
    "SIGKILL of a peer service",
    "SIGSTOP of a peer service",
    "few descriptors of a peer service",
    "SIGKILL of a worker",
    "SIGSTOP of a worker",
    *LINE_KINDS,
)
MAX_FAULTS = 20
"""In a leg: an epoch of one rank has 125 batches."""
_MAX_KILLS = 2
"""Of one peer service. The third would end it for good, which is told and rightly ends the run."""
_JOIN_S = 60.0


def run(ground: Ground, seed: int, leg: int, count: int) -> Record:
    """Run a leg of ``count`` faults."""
    faults = draw_faults(seed, NAME, leg, count, kinds=KINDS, spacing=(2, 6))
    return _run(ground, Record(NAME, leg), _survivable(faults))


def run_bursts(ground: Ground, seed: int, leg: int, count: int) -> Record:
    """Run a leg of ``count`` bursts on the lines, of which none may be raised."""
    faults = draw_faults(
        seed, BURSTS_NAME, leg, count, kinds=BURST_KINDS, spacing=(2, 6), most_seconds=_BURST_S
    )
    record = _run(ground, Record(BURSTS_NAME, leg), faults)
    for name, times in record.raised.items():
        record.defect(f"{name} raised {times} times")
    return record


def _run(ground: Ground, record: Record, faults: list[Fault]) -> Record:
    leg, name = record.leg, record.mode
    repairs = Repairs(2)
    control = free_port(count=2)
    gates = [f"batch {fault.at_batch}" for fault in faults]
    common: dict[str, Any] = {
        "graph": str(ground.graph),
        "collective_seconds": 4 * HANG_S,
        "retries": 50,
        "loader": {"batch_size": LOADER["batch_size"], "timeout": HANG_S, "max_worker_restarts": 1000},
    }
    folder = ground.fresh_folder(f"{name}-{leg}")
    line = {"listen": f"127.0.0.1:{control}", "advertise": ADDRESS}
    special: dict[int, dict[str, Any]] = {
        0: {"gates": gates, "dataset": {"partitions": [0], "timeout": _JOIN_S}},
        1: {"dataset": {"partitions": [1], "timeout": _JOIN_S, **line}},
    }
    with ExitStack() as stack:
        lines = [
            stack.enter_context(Proxy(("127.0.0.1", port), listen=(ADDRESS, port)))
            for port in (control, control + 1)
        ]
        ranks = stack.enter_context(
            Ranks(
                ground.fork_server,
                PROGRAM,
                places(1, 1),
                folder,
                arguments=common | {"folder": str(folder)},
                special=special,
            )
        )
        ranks.wait_for(0, "built", seconds=_JOIN_S)
        watch = _Watch(ranks, record)
        for fault in faults:
            watch.until(f"batch {fault.at_batch}")
            if name == BURSTS_NAME:
                repairs.finish()  # So that each burst falls on batches that are on their way.
            record.committed(fault)
            repairs.run(fault.target, lambda host, fault=fault: _harm(ranks, host, lines, fault))  # type: ignore[misc]
            open_gate(folder, f"batch {fault.at_batch}", rank=0)
        watch.until("drained")
        repairs.finish()
        ended = ranks.finish(seconds=4 * HANG_S)
    for rank, found, expected in zip(ended, map(seen_by, ended), shares(ground.expected(0), 2), strict=True):
        for kind, *text in rank.lines:
            if kind == "retry":
                record.raised_to_trainer(str(text[0]).partition(":")[0])
                if text[0].startswith("SamplingError"):  # It consumed its batch.
                    record.defect(text[0][:300])
        if rank.status:
            record.defect(f"rank {rank.rank} ended with {rank.status}: {rank.failure[:300]}")
        record.compare(found, expected)
    record.defects.extend(f"{error} [{name} leg {leg}]" for error in repairs.errors)
    return record


def _survivable(faults: list[Fault]) -> list[Fault]:
    """Stop services instead of killing them once too often."""
    kills = [0, 0]
    found: list[Fault] = []
    for fault in faults:
        if fault.kind == "SIGKILL of a peer service":
            kills[fault.target % 2] += 1
            if kills[fault.target % 2] > _MAX_KILLS:
                found.append(replace(fault, kind="SIGSTOP of a peer service"))
                continue
        found.append(fault)
    return found


def _harm(ranks: Ranks, host: int, lines: list[Proxy], fault: Fault) -> None:
    if fault.kind in (*LINE_KINDS, *BURST_KINDS):
        disturb(lines, fault)
        return
    process = _process_of(ranks, host, "gigl-peer" if "peer" in fault.kind else "gigl-worker")
    if process is None:
        return
    match fault.kind.split(" of ")[0]:
        case "SIGKILL":
            process.kill()
        case "SIGSTOP":
            with stopped(process.pid):
                time.sleep(fault.seconds)
        case "few descriptors":
            few_descriptors(process.pid, fault.seconds)


def _process_of(ranks: Ranks, host: int, name: str) -> psutil.Process | None:
    """Return a process of a host, once there is one: it may start again. ``None`` after the last batch."""

    def is_done() -> bool:
        return any(line[0] == "drained" for line in ranks.printed(host))

    there = wait_until(lambda: is_done() or bool(ranks.children(host, name)), seconds=HANG_S)
    assert there, f"no {name} on host {host}"
    found = ranks.children(host, name)
    return found[0] if found else None


class _Watch:
    """Follows what both ranks print, and times their batches."""

    def __init__(self, ranks: Ranks, record: Record) -> None:
        self._ranks, self._record = ranks, record
        self._count = 0
        record.start()

    def until(self, word: str) -> None:
        """Wait until rank 0 said a word, or has ended."""

        def said() -> bool:
            lines = self._ranks.printed(0)
            count = sum(line[0].startswith("batch ") for line in lines)
            if count > self._count:
                self._record.arrived(count - self._count)
                self._count = count
            return any(line[0] == word for line in lines)

        if not wait_until(lambda: said() or self._ranks._has_ended(0), seconds=4 * HANG_S):
            self._record.defect(f"hang: rank 0 did not reach {word!r}")
            raise TimeoutError(f"rank 0 did not reach {word!r}")
