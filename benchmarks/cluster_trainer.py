"""A trainer of ``cluster_simulation.py``: goes through the phases of a job, each when it is told to.

Reads a JSON object of options, then a line for each phase, from standard input. Prints a line after each.
"""

from __future__ import annotations

import datetime
import json
import resource
import sys
import time
from contextlib import ExitStack
from typing import Any

import torch.distributed as dist

from gigl_client import Caller, RemoteDistDataset, in_flight
from gigl_loader import DistNeighborLoader

_LIMIT_S = 300.0


def main() -> None:
    """Connect, open loaders, take an epoch of each, idle and close."""
    options = json.loads(sys.stdin.readline())
    if options["world_size"] > 1:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=_LIMIT_S))
    # The model is about large batches, whose frames are fetched. Those of this run would come in replies.
    in_flight.MAX_INLINE_BYTES = 0  # type: ignore[attr-defined]
    credentials = Caller(token=options["token"], insecure=True)
    with ExitStack() as stack:
        _told("joined")
        dataset = stack.enter_context(
            RemoteDistDataset.connect(options["addresses"], credentials=credentials, timeout=_LIMIT_S)
        )
        _told("connected")
        loaders = [
            stack.enter_context(
                DistNeighborLoader(
                    dataset,
                    options["fanout"],
                    "train",
                    batch_size=options["batch_size"],
                    seed=1,
                    timeout=_LIMIT_S,
                    name=f"loader {number}",
                )
            )
            for number in range(options["loaders"])
        ]
        _told("opened")
        shape = _epoch(loaders)
        _told("epoch", shape=shape, stats=_stats(loaders))
        _told("idle")
        stack.close()
        _told("closed")
    sys.stdin.readline()  # Rank 0 has the store of the process group: all end together.


def _epoch(loaders: list[DistNeighborLoader]) -> dict[str, Any]:
    """Take all batches. Return their number, and the nodes and edges of each hop in sum."""
    nodes: list[int] = []
    edges: list[int] = []
    batches = 0
    for loader in loaders:
        for batch in loader:
            batches += 1
            nodes = _sum(nodes, batch.num_sampled_nodes)
            edges = _sum(edges, batch.num_sampled_edges)
    return {"batches": batches, "nodes": nodes, "edges": edges}


def _sum(before: list[int], more: list[int]) -> list[int]:
    return [sum(pair) for pair in zip(before or [0] * len(more), map(int, more), strict=True)]


def _stats(loaders: list[DistNeighborLoader]) -> dict[str, float]:
    names = ("peer_calls", "wire_bytes_in", "wire_bytes_out", "retries")
    found = [loader.stats() for loader in loaders]
    return {name: sum(each[name] for each in found) for name in names}


def _told(phase: str, **more: Any) -> None:
    """Print that a phase is over, and wait for the next line."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    line = {"phase": phase, "at_s": time.monotonic(), "cpu_s": used.ru_utime + used.ru_stime, **more}
    print(json.dumps(line), flush=True)
    if phase != "closed":
        sys.stdin.readline()


if __name__ == "__main__":
    main()
