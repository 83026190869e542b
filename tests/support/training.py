"""What ranks do in tests of faults: train as a user would, say how far they are, and stop where told to.

Every step is said as a JSON line. A rank waits at a *gate* until the test opens it, so that a fault
comes exactly where it is meant to.
"""

from __future__ import annotations

import datetime
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.graph.graph import Graph
from gigl_loader.rpc import certificates
from gigl_loader.rpc.credentials import Credentials
from gigl_loader.sampling.source import BatchSource, SourceRequest
from gigl_loader.workers.process import start_source
from gigl_loader.workers.source import WorkerSource
from tests.support.faults import FAULTY_SAMPLER, FaultPlan, GraphWithFaults
from tests.support.faulty_peer import plan_peer_faults
from tests.support.leftovers import wait_until
from tests.support.ranks import Ended

PROGRAM = f"{__name__}:train"
FANOUT = [3, 2]
OPTIONS: dict[str, Any] = {
    "batch_size": 25,
    "shuffle": True,
    "drop_last": True,
    "seed": 9,
    "num_workers": 1,
    "timeout": 5.0,
}
_GATE_SECONDS = 60.0


def train(
    *,
    graph: str,
    folder: str,
    join: bool = True,
    gates: Sequence[str] = (),
    collectives: bool = True,
    collective_seconds: float = 5.0,
    retries: int = 0,
    faults: dict[str, Any] | None = None,
    peer_faults: dict[str, Any] | None = None,
    mistake: str = "",
    token: str = "",
    clock_s: float = 0.0,
    dataset: dict[str, Any] | None = None,
    addresses: Sequence[str] = (),
    caller: dict[str, Any] | None = None,
    loader: dict[str, Any] | None,
) -> None:
    """Go through the batches of ``graph``, with an all-reduce after each. ``gates`` name steps to wait at.

    With ``addresses`` they come from the storage servers there; ``caller`` are files of its credentials.

    ``join`` the process group or forget to; ``loader=None`` is a rank that builds none. ``retries`` is how
    many errors to carry on after; each is said. ``faults`` are a ``FaultPlan`` for the workers of a graph
    that lies here, ``peer_faults`` one for this host's service. A ``mistake`` is the step after which the
    user's own code fails. ``token`` is one of this rank's own; ``clock_s`` is how far this host's clock is
    ahead.
    """
    progress = _Progress(Path(folder), gates, mistake)
    if join:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=collective_seconds))
    progress.reach("joined")
    if peer_faults is not None:
        plan_peer_faults(peer_faults)
    if clock_s:
        _set_clock_ahead(clock_s)
    own: dict[str, Any] = {"credentials": Credentials.plaintext(token=token)} if token else {}
    with _opened(graph, addresses, caller, {**(dataset or {}), **own}) as opened:
        progress.reach("opened")
        if faults is not None:
            _plan_faults(opened, Graph.open(graph), FaultPlan(**faults))
        if loader is None:
            dist.barrier()
            return
        with DistNeighborLoader(opened, FANOUT, "train", **OPTIONS | loader) as batches:
            progress.reach("built")
            for number, batch in _batches(batches, retries, progress):
                progress.reach(f"batch {number}", digest(batch))
                if collectives:
                    dist.all_reduce(torch.ones(1))
            progress.reach("drained")
            if "feature_memory" in loader:
                progress.reach("rows of ranks", batches.stats()["rows"].get("ranks", 0))
    progress.reach("closed")
    if dist.is_initialized():
        dist.destroy_process_group()


def _opened(
    graph: str, addresses: Sequence[str], caller: dict[str, Any] | None, options: dict[str, Any]
) -> Any:
    if not addresses:
        return DistDataset.open(graph, **options)
    from gigl_client import Caller, RemoteDistDataset  # gRPC and Arrow, which a fork server must not import.

    credentials = None if caller is None else Caller.from_files(**caller)
    return RemoteDistDataset.connect(list(addresses), credentials=credentials, **options)


def _batches(loader: DistNeighborLoader, retries: int, progress: _Progress) -> Iterator[tuple[int, Any]]:
    """Yield the batches of an epoch with their numbers, asking again after so many errors."""
    batches = iter(loader)
    number = 0
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except Exception as error:
            if retries == 0:
                raise
            retries -= 1
            progress.reach("retry", f"{type(error).__name__}: {error}")
            continue
        yield number, batch
        number += 1


def digest(batch: Any) -> int:
    """Return a number that differs when the batch does."""
    value = 0
    for name in ("n_id", "edge_index", "e_id", "x", "y", "input_id"):
        value = zlib.crc32(batch[name].numpy().tobytes(), value)
    return value


def shares(batches: Sequence[int], world_size: int) -> list[list[int]]:
    """Return what each rank sees of the batches of a rank alone: a last step that lacks some is dropped."""
    steps = len(batches) // world_size
    return [list(batches[rank : steps * world_size : world_size]) for rank in range(world_size)]


def seen_by(rank: Ended) -> list[int]:
    """Return the digests of the batches that a rank saw."""
    return [line[1] for line in rank.lines if line[0].startswith("batch ")]


def open_gate(folder: Path, step: str, *, rank: int) -> None:
    """Let a rank go on from a step at which it waits, or will wait."""
    (folder / f"gate-{rank}-{step}").touch()


def _plan_faults(dataset: DistDataset, opened: Graph, faults: FaultPlan) -> None:
    """Let the workers of loaders of this dataset, whose graph is ``opened``, follow a plan of faults."""
    graph: Any = GraphWithFaults(opened, faults)

    def open_source(request: SourceRequest) -> BatchSource:
        return start_source(
            lambda: WorkerSource(
                graph, request.plan, request.schedule, request.workers, sampler=FAULTY_SAMPLER
            ),
            group=request.group,
            topology=request.topology,
            gap_s=request.start_gap_s,
            timeout=request.timeout_s,
        )

    dataset.open_source = open_source  # type: ignore[method-assign]


def _set_clock_ahead(seconds: float) -> None:
    """Let certificates made by this process begin, and be judged, as on a host whose clock is ahead."""

    class Ahead(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Ahead:
            return super().now(tz) + datetime.timedelta(seconds=seconds)

    vars(certificates)["datetime"] = SimpleNamespace(**vars(datetime) | {"datetime": Ahead})


class _Progress:
    def __init__(self, folder: Path, gates: Sequence[str], mistake: str) -> None:
        self._folder = folder
        self._mistake = mistake
        self._gates = frozenset(gates)
        self._rank = os.environ.get("RANK", "0")

    def reach(self, step: str, *more: object) -> None:
        print(json.dumps([step, *more]), flush=True)
        if step in self._gates:
            gate = self._folder / f"gate-{self._rank}-{step}"
            assert wait_until(gate.exists, seconds=_GATE_SECONDS), f"{gate} stayed closed"
        if step == self._mistake:
            raise ZeroDivisionError("the user's own mistake")
