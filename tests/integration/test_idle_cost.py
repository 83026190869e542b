"""What processes cost that have nothing to do: a server, a trainer, workers and the services of hosts."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import pytest
import torch.distributed as dist

from gigl_loader import DistDataset, DistNeighborLoader
from tests.support.ports import free_port
from tests.support.ranks import Place, Ranks, places

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.fork_server import ForkServer

pytestmark = pytest.mark.usefixtures("no_leftovers")

PROGRAM = f"{__name__}:serve_or_rest"
DEADLINE = 60.0
SECONDS = 5.0
CPU_IN_10_S = 0.3
"""Seconds of CPU in ten: 3 % of a core. Idle processes of a quiet machine take a tenth of it."""
WAKEUPS_A_SECOND = 150
SERVER, TRAINER, HOSTS = 0, 1, (2, 3)


def serve_or_rest(
    *,
    folder: str,
    graph: str = "",
    serve: Sequence[str] = (),
    addresses: Sequence[str] = (),
    dataset: dict[str, Any] | None = None,
) -> None:
    """Serve; or take two batches of a store or of two hosts, say so, and rest until told to go on."""
    if serve:
        from gigl_loader.cli import main

        sys.argv = ["gigl-loader", "serve", *serve]
        main()
        return
    if addresses:
        from gigl_client import RemoteDistDataset

        opened: Any = RemoteDistDataset.connect(list(addresses), **dataset or {})
    else:
        dist.init_process_group("gloo")
        opened = DistDataset.open(graph, **dataset or {})
    with opened, DistNeighborLoader(opened, [3, 2], "train", batch_size=25, num_workers=1) as loader:
        batches = iter(loader)
        next(batches)
        next(batches)
        print(json.dumps(["resting"]), flush=True)
        (Path(folder) / f"go-on-{os.environ['GIGL_TEST_PLACE']}").read_bytes()
    if not addresses:
        dist.destroy_process_group()


class _Spent(NamedTuple):
    cpu_s: float
    wakeups: int

    @classmethod
    def by(cls, process: psutil.Process) -> _Spent:
        times = process.cpu_times()
        wakeups = 0
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            fields = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines())
            wakeups += int(fields["voluntary_ctxt_switches"])
        return cls(times.user + times.system, wakeups)


def test_processes_that_have_nothing_to_do_cost_next_to_nothing(
    fork_server: ForkServer, graph: Path, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{free_port()}"
    common = {"folder": str(tmp_path), "graph": str(graph)}
    special: dict[int, dict[str, Any]] = {
        SERVER: {"serve": [str(graph), "--listen", address]},
        TRAINER: {"addresses": [address], "dataset": {"timeout": DEADLINE}},
        **{rank: {"dataset": {"partitions": [index]}} for index, rank in enumerate(HOSTS)},
    }
    alone = [Place({}, None)] * 2
    where = [
        Place({**place.environment, "GIGL_TEST_PLACE": str(number)}, None)
        for number, place in enumerate(alone + places(1, 1))
    ]
    for number in (TRAINER, *HOSTS):
        os.mkfifo(tmp_path / f"go-on-{number}")
    with Ranks(fork_server, PROGRAM, where, tmp_path, arguments=common, special=special) as ranks:
        for number in (TRAINER, *HOSTS):
            ranks.wait_for(number, "resting", seconds=DEADLINE)
        time.sleep(1.0)  # What was asked for ahead is sampled and sent meanwhile.
        resting = {
            "server": psutil.Process(ranks.pids[SERVER]),
            "trainer of a store": psutil.Process(ranks.pids[TRAINER]),
            "trainer": psutil.Process(ranks.pids[HOSTS[0]]),
            "worker": ranks.children(HOSTS[0], "gigl-worker")[0],
            "host service": ranks.children(HOSTS[0], "gigl-peer")[0],
        }
        before = {name: _Spent.by(process) for name, process in resting.items()}
        time.sleep(SECONDS)
        after = {name: _Spent.by(process) for name, process in resting.items()}
        for number in (TRAINER, *HOSTS):
            (tmp_path / f"go-on-{number}").write_bytes(b"")
        ranks.finish(seconds=DEADLINE, ranks=(TRAINER, *HOSTS))
        ranks.send(SERVER, 15)
        ranks.finish(seconds=DEADLINE)
    cost = {
        name: _Spent(
            (after[name].cpu_s - before[name].cpu_s) * 10 / SECONDS,
            round((after[name].wakeups - before[name].wakeups) / SECONDS),
        )
        for name in resting
    }
    print(cost)
    assert {name: cpu_s for name, (cpu_s, _) in cost.items() if cpu_s > CPU_IN_10_S} == {}
    assert {name: wakeups for name, (_, wakeups) in cost.items() if wakeups > WAKEUPS_A_SECOND} == {}
