"""Puts the measurements together and runs them in turns.

A peer on the same files: a script that runs another system and prints JSON lines.

The script is called as ``SCRIPT setup`` once, then as ``SCRIPT DATA sampler``, ``SCRIPT DATA colocated`` and
``SCRIPT DATA store`` with the environment variables NB (batches), NW (workers), S (hosts that hold a part
each), SEED and REPS; it prints a JSON line per result.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from gigl_loader.bench.loading import loader_case, memory_case
from gigl_loader.bench.ranks import hosts_case, ranks_case, start_memory_case
from gigl_loader.bench.rounds import Case, Figures, Measured, run_rounds, workers_in_words
from gigl_loader.bench.sampling import gather_case, sampler_case
from gigl_loader.bench.store import (
    DIRECT,
    DIRECT_4,
    NETWORK,
    RING,
    SMALL,
    SMALL_RING,
    THROUGH,
    THROUGH_4,
    Setup,
    crowd_case,
    idle_case,
    kill_case,
    small_case,
    store_case,
)
from gigl_loader.bench.workload import Workload, prepare
from gigl_loader.graph.graph import Graph

_SETUP_LIMIT_S = 3600
_RUN_LIMIT_S = 900

# What the peer calls its metrics, and what we call them.
_METRICS = {
    "seeds_s": "seeds_per_s",
    "edges_s": "edges_per_s",
    "cpu_per_kseed": "cpu_s_per_kseed",
    "nodes_batch": "nodes_per_batch",
    "edges_batch": "edges_per_batch",
    "first_batch_s": "first_batch_s",
    "epoch_first_batch_s": "later_first_batch_s",
}


def set_up_peer(script: Path) -> None:
    """Let the script make its environment. Quick when it is there already."""
    _run([str(script), "setup"], dict(os.environ), _SETUP_LIMIT_S)


def peer_case(
    script: Path,
    folder: Path,
    workload: Workload,
    mode: str,
    *,
    num_workers: int,
    hosts: int = 1,
    repeats: int = 2,
) -> Case:
    """Run one mode of the peer, seeded, and return what it measured under the names that it prints.

    ``num_workers`` are those of each host.
    """
    environment = _environment(workload, num_workers, repeats) | {"S": str(hosts)}

    def case() -> dict[str, Figures]:
        output = _run([str(script), str(folder), mode], environment, _RUN_LIMIT_S)
        results = _results(output)
        if not results:
            raise RuntimeError(f"{script.name} {mode} printed no result: {output[-500:]!r}")
        return results

    return case


def peer_memory_case(script: Path, folder: Path, workload: Workload, *, num_workers: int) -> Case:
    """Run the peer's loader for an epoch while its script watches the memory of its process tree."""
    environment = _environment(workload, num_workers, 1) | {"METER": "1"}

    def case() -> dict[str, Figures]:
        records = map(
            _record, _run([str(script), str(folder), "colocated"], environment, _RUN_LIMIT_S).splitlines()
        )
        peaks = [record["meter"]["peak_pss_GB"] for record in records if "meter" in record]
        return {f"memory, peer {workers_in_words(num_workers)}": {"peak_pss_gb": peak} for peak in peaks}

    return case


def _environment(workload: Workload, num_workers: int, repeats: int) -> dict[str, str]:
    settings = {
        "NB": workload.batches,
        "NW": num_workers,
        "SEED": 1,
        "REPS": repeats,
        "LIMIT": _RUN_LIMIT_S - 60,
    }
    return dict(os.environ) | {name: str(value) for name, value in settings.items()}


def _run(command: list[str], environment: Mapping[str, str], limit_s: int) -> str:
    """Return what a command prints. It gets a session of its own, so that all of it can be ended."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if process.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with exit code {process.returncode}: {output[-500:]!r}"
        )
    return output


def _results(output: str) -> dict[str, Figures]:
    results: dict[str, Figures] = {}
    for line in output.splitlines():
        record = _record(line)
        if "tag" in record:
            known = {
                ours: record[theirs] for theirs, ours in _METRICS.items() if record.get(theirs) is not None
            }
            results[str(record["tag"])] = known
    return results


def _record(line: str) -> dict[str, Any]:
    if not line.startswith("{"):
        return {}
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


GROUPS = ("sampling", "loading", "ranks", "hosts", "store", "memory")
"""What can be measured, in order. How several ranks start is weighed with both ``ranks`` and ``memory``."""

QUICK_GROUPS = ("sampling", "loading", "memory")
"""What takes seconds on a small graph: each of the others starts many processes."""

_TWO = 2
"""Hosts of the group of that name; partitions of its graph."""

_STORES = (RING, NETWORK, DIRECT, THROUGH, DIRECT_4, THROUGH_4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What to measure."""

    workload: Workload
    folder: Path
    """Holds the workload's files, or will."""
    rounds: int = 3
    workers: tuple[int, ...] = (0, 1, 2)
    groups: tuple[str, ...] = GROUPS
    peer_script: Path | None = None

    @property
    def seeds(self) -> Path:
        """File of the training seeds."""
        return self.folder / "train.npy"

    def __post_init__(self) -> None:
        unknown = [group for group in self.groups if group not in GROUPS]
        if unknown or not self.groups:
            raise ValueError(f"--measure takes some of {','.join(GROUPS)}, got {','.join(self.groups)!r}")
        script = self.peer_script
        if script is not None and not os.access(script, os.X_OK):
            raise ValueError(f"--peer-script {script} is not an executable file")


def run_suite(suite: Suite, console: Console) -> Measured:
    """Run every measurement of the suite, those of time alternating."""
    with console.status("preparing the workload") if console.is_terminal else _quiet():
        graph = prepare(suite.workload, suite.folder)
        if "hosts" in suite.groups:
            prepare(suite.workload, suite.folder, partitions=_TWO)
        for setup in _STORES if "store" in suite.groups else ():
            prepare(suite.workload, suite.folder, partitions=setup.servers)
        if suite.peer_script is not None:
            set_up_peer(suite.peer_script.absolute())
    with _one_thread(), _bar(console) as progress:
        measured = run_rounds(_timed(suite, graph), rounds=suite.rounds, progress=progress)
        for case in _weighed(suite, graph):
            measured.add(case())
    return measured


def _timed(suite: Suite, graph: Path) -> dict[str, Case]:
    makers = {
        "sampling": _sampling,
        "loading": _loading,
        "ranks": _ranks,
        "hosts": _hosts,
        "store": _store,
    }
    cases: dict[str, Case] = {}
    for group, make in makers.items():
        if group in suite.groups:
            cases |= make(suite, graph)
    return cases


def _sampling(suite: Suite, graph: Path) -> dict[str, Case]:
    seeds = np.load(suite.seeds)[: suite.workload.num_seeds]
    opened = Graph.open(graph)
    return {
        "sampler": sampler_case(opened, suite.workload, seeds),
        "gather": gather_case(opened, suite.workload, seeds),
        **_peer(suite, "sampler", num_workers=2),
    }


def _loading(suite: Suite, graph: Path) -> dict[str, Case]:
    seeds = np.load(suite.seeds)[: suite.workload.num_seeds]
    cases = {
        f"loader, {workers_in_words(count)}": loader_case(graph, suite.workload, seeds, num_workers=count)
        for count in suite.workers
    }
    return cases | _peer(suite, "colocated", num_workers=2)


def _ranks(suite: Suite, graph: Path) -> dict[str, Case]:
    """Two ranks of a worker each, beside one rank with as many workers."""
    return {
        f"{ranks} ranks": ranks_case(graph, suite.seeds, suite.workload, ranks=ranks, num_workers=workers)
        for ranks, workers in ((1, 2), (2, 1))
    }


def _hosts(suite: Suite, graph: Path) -> dict[str, Case]:
    parted = prepare(suite.workload, suite.folder, partitions=_TWO)
    cases = {"hosts": hosts_case(parted, suite.seeds, suite.workload)}
    return cases | _peer(suite, "store", num_workers=1, hosts=_TWO)


def _store(suite: Suite, graph: Path) -> dict[str, Case]:
    """One server beside the loader that samples here, with as many workers; then several servers."""
    seeds = np.load(suite.seeds)[: suite.workload.num_seeds]
    cases = {"loader, 2 workers": loader_case(graph, suite.workload, seeds, num_workers=_TWO)}
    for setup in _STORES:
        path = prepare(suite.workload, suite.folder, partitions=setup.servers)
        cases[str(setup)] = store_case(path, seeds, suite.workload, setup)
    for setup in (SMALL, SMALL_RING):
        path = prepare(suite.workload, suite.folder, partitions=setup.servers)
        cases[f"small batches, {setup}"] = small_case(path, seeds, suite.workload, setup)
    cases |= {
        **{f"store, kill, {setup}": _kill(suite, seeds, setup) for setup in (NETWORK, DIRECT)},
        "store, idle": idle_case(graph, suite.workload),
        "store, crowd": crowd_case(graph, seeds, suite.workload),
    }
    return (
        cases
        | _peer(suite, "store", num_workers=2, hosts=1)
        | _peer(suite, "store", num_workers=1, hosts=_TWO)
    )


def _kill(suite: Suite, seeds: Any, setup: Setup) -> Case:
    path = prepare(suite.workload, suite.folder, partitions=setup.servers)
    return kill_case(path, seeds, suite.workload, setup)


def _peer(suite: Suite, mode: str, *, num_workers: int, hosts: int = 1) -> dict[str, Case]:
    if suite.peer_script is None:
        return {}
    script = suite.peer_script.absolute()
    case = peer_case(script, suite.folder, suite.workload, mode, num_workers=num_workers, hosts=hosts)
    return {f"peer, {mode}" + (f", {hosts} servers" if mode == "store" else ""): case}


def _weighed(suite: Suite, graph: Path) -> list[Case]:
    if "memory" not in suite.groups:
        return []
    cases = [memory_case(graph, suite.seeds, suite.workload, num_workers=count) for count in suite.workers]
    if "ranks" in suite.groups:
        cases.append(start_memory_case(graph, suite.seeds, suite.workload, ranks=4, num_workers=2))
    if suite.peer_script is not None:
        script = suite.peer_script.absolute()
        cases.append(peer_memory_case(script, suite.folder, suite.workload, num_workers=2))
    return cases


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch to one thread: every figure is of one thread unless it says otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _bar(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("measuring")
        yield lambda name, done, whole: progress.update(task, description=name, completed=done, total=whole)


@contextmanager
def _quiet() -> Iterator[None]:
    yield
