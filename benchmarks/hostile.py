"""An honest trainer beside hostile callers of the same storage server, with tokens and without.

    python benchmarks/hostile.py --data DIR --json hostile.json

Measures, alternating in one run, on the small workload of ``gigl-loader bench --quick``:

- seeds per second of a trainer alone, and beside callers that hold valid tokens of their own and behave as
  ``hostile_callers.py`` says; their ratio to a fair share, an N-th of what the trainer has alone;
- the same beside eight callers that all send one kind of the bombs of ``hostile_bombs.py``, kind by kind, and
  for how long the server's sampling threads work after those callers have left;
- what callers without a token hold, who behave as ``hostile_strangers.py`` says: memory, threads and
  descriptors of the server, and for how long, in plain text and over TLS; and that batches stay equal;
- with ``--latency 250 1500``: the 99th percentile of an honest caller's calls beside so many strangers of
  each behaviour, over that beside a busy process which does not call.

Callers would have machines of their own: the server and its trainer have one half of the cores here, alone as
beside others, and the callers the other half.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import harness
import numpy as np
import numpy.typing as npt
from hostile_bombs import BOMBS, ENDLESS, build_bombed
from hostile_callers import BEHAVIOURS
from hostile_latency import measure_latency, missed_by_latency
from hostile_measure import ALL, measure_strangers, missed_by_strangers
from hostile_server import HostileServer, Scene
from hostile_strangers import STRANGERS

from gigl_client import RemoteDistDataset
from gigl_loader.bench.loading import open_loader
from gigl_loader.bench.workload import QUICK, prepare
from gigl_loader.errors import GiglError
from gigl_loader.loaders.neighbor import DistNeighborLoader

FAIR = 0.7
"""Of its fair share that an honest trainer keeps at least."""
_END_S, _TIMEOUT_S, _CALLERS_READY_S = 40.0, 10.0, 30.0
_BOMBERS = 8
_BOMBED_NODES, _BOMBED_EDGES = 2_000, 200_000
_GONE_S = 0.1
"""For which a sampling thread may work for callers that are gone."""
_LOOK_S, _IDLE_S = 0.01, 30.0


def main() -> int:
    """Measure, print ratios, and return 1 where a target is missed."""
    options = _arguments()
    ours, theirs = _halves(sorted(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, ours)
    rounds: list[dict[str, float]] = []
    with harness.folder(options.data) as folder:
        graph = prepare(QUICK, folder)
        for number in range(0 if options.latency else options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
            rounds.append(_round(graph, folder, options, theirs))
        latency: dict[str, dict[str, float]] = {}
        strangers: dict[str, dict[str, float]] = {}
        bombs: dict[str, dict[str, float]] = {}
        if options.latency:
            latency = measure_latency(
                graph,
                folder,
                [each for each in options.strangers if each != ALL],
                options.latency,
                rounds=max(options.rounds, 1),
                seconds=options.seconds,
                cores=theirs,
            )
        else:
            bombs = {kind: _bombed(kind, folder, options.seconds, theirs) for kind in options.bombs}
            strangers = measure_strangers(graph, folder, options.strangers, options.seconds, theirs)
    figures = {name: statistics.median(each[name] for each in rounds) for name in (rounds or [{}])[0]}
    _show(figures, bombs, strangers | latency)
    if options.json is not None:
        document = {"figures": figures, "rounds": rounds, "bombs": bombs, "strangers": strangers}
        options.json.write_text(json.dumps(document | {"latency": latency}, indent=2) + "\n")
    missed = [*_missed(figures), *_missed_by_bombs(bombs)]
    missed += [*missed_by_strangers(strangers), *missed_by_latency(latency)]
    for line in missed:
        print(f"MISSED {line}")
    return 1 if missed else 0


def _round(graph: Path, folder: Path, options: argparse.Namespace, theirs: Sequence[int]) -> dict[str, float]:
    alone = _honest(graph, folder, [], options.seconds)
    beside = _honest(graph, folder, options.only or list(BEHAVIOURS), options.seconds, cores=theirs)
    fair = alone["seeds_per_s"] / (1 + int(beside["callers"]))
    return {
        "alone_seeds_per_s": alone["seeds_per_s"],
        "beside_seeds_per_s": beside["seeds_per_s"],
        "fair_share": beside["seeds_per_s"] / fair,
        "longest_wait_s": beside["longest_wait_s"],
        "server_peak_mb": beside["server_peak_mb"],
        "servers_killed": beside["killed"],
    }


def _bombed(kind: str, folder: Path, seconds: float, theirs: Sequence[int]) -> dict[str, float]:
    """Train alone, then beside callers that send one kind of bomb."""
    print(f"bombs: {kind}", file=sys.stderr, flush=True)
    graph = folder / "bombed"
    if not graph.exists():
        build_bombed(graph, nodes=_BOMBED_NODES, edges=_BOMBED_EDGES)
    more = ["--allow-sampler", ENDLESS]
    seeds = np.arange(QUICK.num_seeds) % _BOMBED_NODES
    alone = _honest(graph, folder, [], seconds, seeds=seeds, options=more)
    hostile = [f"bomb:{kind}"] * _BOMBERS
    beside = _honest(graph, folder, hostile, seconds, cores=theirs, seeds=seeds, options=more)
    row = {
        "fair_share": beside["seeds_per_s"] / (alone["seeds_per_s"] / (1 + _BOMBERS)),
        "longest_wait_s": beside["longest_wait_s"],
        "busy_without_callers_s": beside["busy_without_callers_s"],
        "server_peak_mb": beside["server_peak_mb"],
    }
    print(", ".join(f"{name} {value:.2f}" for name, value in row.items()), file=sys.stderr, flush=True)
    return row


def _show(
    figures: dict[str, float], bombs: dict[str, dict[str, float]], strangers: dict[str, dict[str, float]]
) -> None:
    for name, value in figures.items():
        print(f"{name:32} {value:.2f}")
    for name, row in bombs.items():
        print(f"bomb {name}:", ", ".join(f"{figure} {value:.2f}" for figure, value in row.items()))
    for name, row in strangers.items():
        print(name + ":", ", ".join(f"{figure} {value:.1f}" for figure, value in row.items()))


def _missed_by_bombs(bombs: dict[str, dict[str, float]]) -> list[str]:
    """Return the targets that were missed beside bombs."""
    found = []
    for kind, row in bombs.items():
        if row["fair_share"] < FAIR:
            share = f"{row['fair_share']:.0%} of its fair share, not {FAIR:.0%}"
            found.append(f"beside bombs of kind {kind} the honest trainer keeps {share}")
        if row["busy_without_callers_s"] > _GONE_S:
            busy = f"{row['busy_without_callers_s']:.2f} s"
            found.append(f"sampling threads work {busy} for callers of {kind} that are gone")
    return found


def _missed(figures: dict[str, float]) -> list[str]:
    """Return the targets that were missed beside callers with tokens."""
    found = []
    if figures and figures["fair_share"] < FAIR:
        found.append(
            f"the honest trainer keeps {figures['fair_share']:.0%} of its fair share, not {FAIR:.0%}"
        )
    if figures and figures["servers_killed"]:
        found.append("a server took too much memory and was killed for it")
    return found


def _honest(
    graph: Path,
    folder: Path,
    hostile: Sequence[str],
    seconds: float,
    *,
    cores: Sequence[int] = (),
    seeds: npt.NDArray[np.int64] | None = None,
    options: Sequence[str] = (),
) -> dict[str, float]:
    """Train for a while beside hostile callers, which have these cores, on a fresh server."""
    with ExitStack() as stack:
        running = HostileServer.running(graph, folder, callers=len(hostile), options=options)
        server = stack.enter_context(running)
        dataset = stack.enter_context(server.connected(timeout_s=_TIMEOUT_S))
        if seeds is None:
            seeds = np.load(folder / "train.npy")[: QUICK.num_seeds].astype(np.int64)
        training = stack.enter_context(ExitStack())
        loader = training.enter_context(open_loader(dataset, QUICK, seeds, 1, timeout=_TIMEOUT_S))
        for _ in loader:
            pass
        stack.enter_context(server.watched())
        callers = stack.enter_context(ExitStack())
        started = [
            callers.enter_context(_caller(behaviour, replace(server.scene, token=token), cores))
            for behaviour, token in zip(hostile, server.tokens[1:], strict=True)
        ]
        _wait_until_ready(started)
        taken, longest = _train(loader, seconds)
        training.close()
        callers.close()
        return {
            "busy_without_callers_s": _busy_s(dataset),
            "seeds_per_s": taken / seconds,
            "longest_wait_s": longest,
            "server_peak_mb": server.peak.memory_mb,
            "killed": float(server.killed),
            "callers": float(len(hostile)),
        }


def _busy_s(dataset: RemoteDistDataset) -> float:
    """Return for how long sampling threads are busy from now on."""
    began = time.perf_counter()
    while time.perf_counter() - began < _IDLE_S:
        if not any(each["busy"] for each in dataset.server_stats().values()):
            break
        time.sleep(_LOOK_S)
    return time.perf_counter() - began


def _train(loader: DistNeighborLoader, seconds: float) -> tuple[int, float]:
    """Return the seeds taken in so many seconds, and the longest wait for a batch. Errors are waits."""
    taken, longest = 0, 0.0
    began = last = time.perf_counter()
    batches = iter(loader)
    while True:
        batch = None
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(loader)
            continue
        except (GiglError, TimeoutError):
            time.sleep(0.1)
        now = time.perf_counter()
        if now - began > seconds:
            return taken, max(longest, now - last)
        if batch is not None:
            longest, last = max(longest, now - last), now
            taken += batch.batch_size


@contextmanager
def _caller(behaviour: str, scene: Scene, cores: Sequence[int]) -> Iterator[subprocess.Popen[str]]:
    """Run a hostile caller on these cores until the end of the block."""
    command = [sys.executable, str(Path(__file__).with_name("hostile_callers.py")), behaviour]
    process = subprocess.Popen(
        [*command, json.dumps(asdict(scene))], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    os.sched_setaffinity(process.pid, cores)  # It has no other thread yet: those inherit it.
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=_END_S)


def _halves(cores: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Return two halves of the cores. Of a single one, both are that one."""
    middle = (len(cores) + 1) // 2
    return cores[:middle], cores[middle:] or cores


def _wait_until_ready(started: Sequence[subprocess.Popen[str]]) -> None:
    """Wait until all callers are at work, or were refused, or wait for the server themselves."""
    deadline = time.monotonic() + _CALLERS_READY_S
    for process in started:
        select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="where the workload is kept for the next run")
    parser.add_argument("--rounds", type=int, default=3, help="beside callers with tokens; 0: none")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--only", nargs="+", choices=list(BEHAVIOURS), help="these behaviours instead of all")
    parser.add_argument(
        "--bombs",
        nargs="*",
        choices=list(BOMBS),
        default=list(BOMBS),
        help="these kinds, one after the other",
    )
    parser.add_argument(
        "--strangers",
        nargs="*",
        choices=[*STRANGERS, ALL],
        default=[*STRANGERS, ALL],
        help="these behaviours of callers without a token, one after the other",
    )
    parser.add_argument(
        "--latency", nargs="+", type=int, default=[], help="numbers of strangers; measures only this"
    )
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
