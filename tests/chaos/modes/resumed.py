"""Training jobs whose process is killed or stopped, and that go on from their last checkpoint.

After the last, the checkpoints together hold every batch of the epoch once.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from gigl_server.local_cluster import LocalCluster
from tests.chaos.client import Client
from tests.chaos.faults import Fault, draw_faults
from tests.chaos.ground import Ground
from tests.chaos.record import HANG_S, Record
from tests.support.leftovers import wait_until

KINDS = ("SIGKILL of the trainer", "SIGKILL of the trainer", "SIGSTOP of the trainer")


@dataclass(frozen=True, slots=True)
class Job:
    """Where the batches of the job come from."""

    servers: int
    """0: from a worker process of its own."""

    @property
    def name(self) -> str:
        return f"job resumed, {f'{self.servers} servers' if self.servers else '1 worker'}"

    def run(self, ground: Ground, seed: int, leg: int, count: int) -> Record:
        """Run a leg of ``count`` faults."""
        record = Record(self.name, leg)
        folder = ground.fresh_folder(f"{self.name}-{leg}")
        faults = draw_faults(seed, self.name, leg, count, kinds=KINDS)
        expected = ground.expected(0)
        with ExitStack() as stack:
            addresses: list[str] = []
            if self.servers:
                options = {"lease": 2}
                cluster = LocalCluster(ground.graph, servers=self.servers, options=options)
                addresses = stack.enter_context(cluster).addresses
            run = _Run(ground, folder, addresses, record)
            stack.callback(run.close)
            for fault in faults:
                run.reach(min(fault.at_batch, len(expected) - 1))
                run.commit(fault)
            run.finish(expected)
        return record


class _Run:
    """A job over its trainers, one after the other."""

    def __init__(self, ground: Ground, folder: Path, addresses: list[str], record: Record) -> None:
        self._ground, self._folder, self._addresses = ground, folder, addresses
        self._record = record
        self._count = 0
        self._client = self._start()
        record.start()

    def reach(self, batch: int) -> None:
        """Wait until a checkpoint holds so many batches."""
        wait_until(lambda: self._look() >= batch or self._client.status is not None, seconds=4 * HANG_S)

    def commit(self, fault: Fault) -> None:
        self._record.committed(fault)
        time.sleep(fault.choice % 16 / 1000)  # Somewhere within a batch.
        if fault.kind.startswith("SIGSTOP"):
            with suppress(ProcessLookupError):
                os.kill(self._client.pid, signal.SIGSTOP)
                time.sleep(fault.seconds)
                os.kill(self._client.pid, signal.SIGCONT)
            return
        self._client.kill()
        self._client = self._start()

    def finish(self, expected: list[int]) -> None:
        """Let the job end, and compare."""
        self.reach(len(expected))
        if not wait_until(lambda: self._client.status is not None, seconds=HANG_S):
            self._record.defect("the trainer did not end")
        elif self._client.status != 0:
            failure = self._folder / "failure"
            text = failure.read_text() if failure.exists() else ""
            self._record.defect(f"the trainer ended with {self._client.status}: {text[:300]}")
        self._record.compare(self._client.seen, expected)

    def close(self) -> None:
        self._client.kill()

    def _look(self) -> int:
        seen = len(self._client.seen)
        if seen > self._count:
            self._record.arrived(seen - self._count)
            self._count = seen
        return seen

    def _start(self) -> Client:
        return Client(self._ground, self._folder, addresses=self._addresses)


JOBS = (Job(0), Job(2))
