"""gigl_loader beside PyG's own loaders, on the workload of ``gigl-loader bench``.

    python benchmarks/pyg_peer.py --data DIR --json pyg.json
    python benchmarks/pyg_peer.py --data DIR --task link

Both sides get the same graph, features, labels, seeds, batch size and fanout, and return edge ids. PyG gets
all settings that may be its best on two cores: no worker (with one thread and with torch's default), one
worker and two, rows gathered by the workers or by the trainer, persistent workers; ratios are over the
fastest. Every case is a process of its own: it loads the data, takes an epoch to warm up, and measures the
next ones. All cases take turns, once a round; figures are medians over the rounds. Returns 1 where the two
sides did not sample equally many edges.

``--task link`` measures batches of 1,024 links and as many random pairs (``neg_sampling="binary"``): PyG's
``LinkNeighborLoader`` beside ``DistLinkNeighborLoader``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
import torch_geometric
from pyg_side import Case

from gigl_loader.bench.rounds import Figures, Measured, run_rounds
from gigl_loader.bench.workload import FULL, QUICK, Workload, prepare

HERE = Path(__file__).resolve().parent
SETUP_LIMIT_S, CASE_LIMIT_S = 2 * 3600, 900
TOLERANCE = 0.01
"""By how much sampled edges per seed or link may differ between the sides."""
NOISY_CORES = 0.2
LINK_BATCHES = 4
"""Of as many batches around nodes, one around links is measured: it has four ends for every link."""

PYG_SETTINGS: tuple[dict[str, Any], ...] = (
    {"num_workers": 0},
    {"num_workers": 0, "threads": 1},
    *({"num_workers": count, "filter_per_worker": place} for count in (1, 2) for place in (True, False)),
)
OUR_SETTINGS: tuple[dict[str, Any], ...] = ({"num_workers": 0}, {"num_workers": 2})


def main() -> int:
    """Measure, print tables, write them where that was asked for."""
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # So that the process of a case ends, too.
    run([str(options.peer_script), "setup"], SETUP_LIMIT_S, output=sys.stderr)
    workload = QUICK if options.quick else FULL
    before = os.getloadavg()
    with folder(options.data) as data:
        cases = all_cases(workload, prepare(workload, data), data, options)
        print(f"{len(cases)} cases, {options.rounds} rounds", file=sys.stderr)
        versions: dict[str, dict[str, Any]] = {}
        measured = run_rounds(
            {str(case): partial(measure, case, options.peer_script, versions) for case in cases},
            rounds=options.rounds,
        )
    document = report(cases, measured) | {
        "machine": machine(),
        "versions": versions,
        "load_average_before": before,
        "others_busy_cores": {"all": measured.others_busy()},
    }
    print("\n".join(markdown(document)))
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0 if document["equal"] else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, help="directory of the workload, made where missing")
    parser.add_argument("--task", choices=("node", "link"), default="node", help="around what batches are")
    parser.add_argument("--quick", action="store_true", help="a small graph: does it run?")
    parser.add_argument("--rounds", type=int, default=3, help="how often each case is run")
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="how long each run of a case measures, in whole epochs"
    )
    parser.add_argument(
        "--backend",
        choices=("auto", "pyg-lib", "torch-sparse"),
        default="auto",
        help="what PyG samples by (default: pyg-lib where PyG's environment has it)",
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument(
        "--peer-script", type=Path, default=HERE / "pyg_peer.sh", help="runs PyG's side (see its head)"
    )
    return parser.parse_args()


def all_cases(workload: Workload, graph: Path, data: Path, options: argparse.Namespace) -> list[Case]:
    """Return every case, in the order of a round."""
    case = Case(
        side="gigl_loader",
        task=options.task,
        data=str(data.resolve()),
        graph=str(graph.resolve()),
        fanout=workload.fanout,
        batch_size=workload.batch_size,
        batches=workload.batches // (LINK_BATCHES if options.task == "link" else 1),
        seconds=options.seconds,
        backend=options.backend,
    )
    ours = [replace(case, **settings) for settings in OUR_SETTINGS]
    theirs = [replace(case, side="PyG", **settings) for settings in PYG_SETTINGS]
    if options.task == "node":
        theirs.append(replace(case, side="PyG", sampler_only=True))
    return ours + theirs


def measure(case: Case, script: Path, versions: dict[str, dict[str, Any]]) -> Mapping[str, Figures]:
    """Run a case in a process of its side's environment; keep what it says of its versions."""
    ours = [sys.executable, str(HERE / "pyg_side.py")]
    output = run([*([str(script)] if case.side == "PyG" else ours), case.to_json()], CASE_LIMIT_S)
    result = json.loads(output.splitlines()[-1])
    versions[case.side] = result["versions"]
    figures = result["figures"]
    speed = next(f"{value:,.0f} {metric}" for metric, value in figures.items())
    print(f"{case}: {speed}, {figures['others_busy_cores']:.2f} cores busy elsewhere", file=sys.stderr)
    return {str(case): figures}


def run(command: list[str], limit_s: float, *, output: int | IO[str] = subprocess.PIPE) -> str:
    """Return what a command prints. It gets a session of its own, so that all of it can be ended."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, text=True, start_new_session=True
    )
    try:
        printed, _ = process.communicate(timeout=limit_s)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
    return printed or ""


def report(cases: list[Case], measured: Measured) -> dict[str, Any]:
    """Return medians, ratios over PyG's fastest setting, and whether both sides sampled as many edges."""
    unit = "seed" if cases[0].task == "node" else "link"
    speed, cost = f"{unit}s_per_s", f"cpu_s_per_k{unit}"
    medians = {
        name: {metric: subject.median(metric) or 0.0 for metric in subject.samples}
        for name, subject in measured.subjects.items()
    }
    loaders = [str(case) for case in cases if case.side == "PyG" and not case.sampler_only]
    best = max(loaders, key=lambda name: medians[name][speed])
    cheapest = min(loaders, key=lambda name: medians[name][cost])
    ratios = {}
    for name in (str(case) for case in cases if case.side != "PyG"):
        label = name.partition(", ")[2]
        ratios[f"{label} over PyG's fastest"] = medians[name][speed] / medians[best][speed]
        ratios[f"CPU of {label} over PyG's fastest"] = medians[name][cost] / medians[best][cost]
        ratios[f"CPU of {label} over PyG's cheapest"] = medians[name][cost] / medians[cheapest][cost]
        if name.replace("gigl_loader", "PyG") in medians:
            same = name.replace("gigl_loader", "PyG")
            ratios[f"{label} over PyG, {label}"] = medians[name][speed] / medians[same][speed]
    drawn = {
        side: statistics.mean(
            figures[f"edges_per_{unit}"] for name, figures in medians.items() if name.startswith(side)
        )
        for side in {case.side for case in cases}
    }
    difference = max(drawn.values()) / min(drawn.values()) - 1
    return {
        "task": cases[0].task,
        "subjects": {
            name: {
                metric: {"median": medians[name][metric], "rounds": values}
                for metric, values in subject.samples.items()
            }
            for name, subject in measured.subjects.items()
        },
        "ratios": ratios,
        "pyg_fastest": best,
        "pyg_cheapest": cheapest,
        "edges_differ_by": difference,
        "equal": difference <= TOLERANCE,
    }


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return {
        "cpu": next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
    }


def markdown(document: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the report. Figures are medians, with the lowest and highest round."""
    unit = "seed" if document["task"] == "node" else "link"
    columns = {
        f"{unit}s_per_s": (f"{unit}s/s", "{:,.0f}"),
        f"cpu_s_per_k{unit}": (f"CPU s per 1,000 {unit}s", "{:.4f}"),
        "nodes_per_batch": ("nodes/batch", "{:,.0f}"),
        f"edges_per_{unit}": (f"edges/{unit}", "{:,.1f}"),
        "later_first_batch_s": ("first batch of an epoch, s", "{:.3f}"),
    }
    yield "| | " + " | ".join(heading for heading, _ in columns.values()) + " |"
    yield "|---|" + "---:|" * len(columns)
    for name, figures in document["subjects"].items():
        cells = (spread(figures[metric], form) for metric, (_, form) in columns.items())
        yield f"| {name} | " + " | ".join(cells) + " |"
    yield from ("", "| ratio | |", "|---|---:|")
    yield from (f"| {title} | {value:.2f} |" for title, value in document["ratios"].items())
    yield ""
    yield f"PyG's fastest: {document['pyg_fastest']}; its cheapest: {document['pyg_cheapest']}."
    yield f"Sampled edges per {unit} differ by {document['edges_differ_by']:.2%} between the sides."
    for side, versions in document["versions"].items():
        yield f"{side}: " + ", ".join(f"{name} {value}" for name, value in versions.items()) + "."
    about, busy = document["machine"], document["others_busy_cores"]["all"]
    load = ", ".join(f"{value:.2f}" for value in document["load_average_before"])
    yield (
        f"{about['cpu']}, {about['cpus']} cores, kernel {about['kernel']}, Python {about['python']}, "
        f"torch {about['torch']}; load average before: {load}; other processes used {busy:.2f} cores"
        + (" (above 0.2 the figures are void)." if busy > NOISY_CORES else ".")
    )


def spread(figure: dict[str, Any], form: str) -> str:
    median, low, high = (form.format(f(figure["rounds"])) for f in (lambda _: figure["median"], min, max))
    return median if low == high else f"{median} ({low} to {high})"


@contextmanager
def folder(path: Path | None) -> Iterator[Path]:
    if path is not None:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="gigl-pyg-") as temporary:
        yield Path(temporary)


if __name__ == "__main__":
    sys.exit(main())
