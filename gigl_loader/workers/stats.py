"""Counters of workers, and the statistics made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gigl_loader.channel.message import NOTHING, Spent

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["WorkerStats", "statistics"]


@dataclass(slots=True)
class WorkerStats:
    """Counters of one worker. They outlive its processes."""

    pid: int = 0
    batches: int = 0
    bytes: int = 0
    copied_out: int = 0
    oversize: int = 0
    restarts: int = 0
    sampling_ns: int = 0
    spent: Spent = NOTHING
    """By the current process."""
    past: Spent = NOTHING
    """By the processes before it."""

    def reap(self) -> None:
        """Move what the current process spent to ``past``, and count one restart."""
        self.restarts += 1
        self.past = self.past.plus(self.spent)
        self.spent = NOTHING

    def counts(self) -> dict[str, Any]:
        """Return the counters that can be added up over workers, in seconds, bytes and calls."""
        spent = self.spent.plus(self.past)
        return {
            "batches": self.batches,
            "bytes": self.bytes,
            "copied_out": self.copied_out,
            "oversize": self.oversize,
            "restarts": self.restarts,
            "seconds_sampling": self.sampling_ns / 1e9,
            "cpu_seconds": spent.cpu_ns / 1e9,
            "cpu_sampling": spent.cpu_sampling_ns / 1e9,
            "cpu_gathering": spent.cpu_gathering_ns / 1e9,
            "cpu_wire": spent.cpu_wire_ns / 1e9,
            "wire_bytes_in": spent.wire_bytes_in,
            "wire_bytes_out": spent.wire_bytes_out,
            "peer_calls": spent.peer_calls,
        }


def statistics(workers: Sequence[WorkerStats]) -> dict[str, Any]:
    """Return the counters summed over all workers, and those of each worker under ``workers``."""
    each = [worker.counts() for worker in workers]
    listed = [{"worker": i, "pid": workers[i].pid, **counts} for i, counts in enumerate(each)]
    return {**{name: sum(counts[name] for counts in each) for name in each[0]}, "workers": listed}
