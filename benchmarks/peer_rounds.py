"""Rounds, medians and the report of a comparison with another library."""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import harness
import torch_geometric
from peer_case import OURS, Case

from gigl_loader.bench.report import NOISY_CORES, machine, subjects_json
from gigl_loader.bench.rounds import Figures, Measured, run_rounds
from gigl_loader.bench.workload import prepare

HERE = Path(__file__).resolve().parent
SETUP_LIMIT_S, CASE_LIMIT_S = 2 * 3600, 900
LINK_BATCHES = 4
"""Of as many batches around nodes, one around links is measured: it has four ends for every link."""

OUR_SETTINGS: tuple[dict[str, Any], ...] = ({"num_workers": 0}, {"num_workers": 2})


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of what all comparisons take."""
    parser = harness.parser(description)
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="how long each run of a case measures, in whole epochs"
    )
    return parser


@contextmanager
def plain_case(options: argparse.Namespace, task: str) -> Iterator[Case]:
    """Prepare the workload; yield gigl_loader's inline case of it, which the other cases are made from."""
    workload = harness.workload_of(options)
    with harness.folder(options.data) as data:
        yield Case(
            side=OURS,
            task=task,
            data=str(data.resolve()),
            graph=str(prepare(workload, data).resolve()),
            fanout=workload.fanout,
            batch_size=workload.batch_size,
            batches=workload.batches // (LINK_BATCHES if task == "link" else 1),
            seconds=options.seconds,
        )


def our_cases(case: Case) -> list[Case]:
    return [replace(case, **settings) for settings in OUR_SETTINGS]


def compare(
    cases: list[Case], peer_command: list[str], options: argparse.Namespace, *, tolerance: float
) -> int:
    """Measure all cases in rounds, print tables, write them where that was asked for; return the exit code.

    ``peer_command`` measures a case of the other side, given as its last argument. ``tolerance`` is by how
    much the sampled edges per seed or link may differ between the sides.
    """
    before = os.getloadavg()
    commands = {case.side: peer_command for case in cases}
    commands[OURS] = [sys.executable, str(HERE / "peer_case.py")]
    versions: dict[str, dict[str, Any]] = {}
    print(f"{len(cases)} cases, {options.rounds} rounds", file=sys.stderr)
    measured = run_rounds(
        {str(case): partial(measure, case, commands[case.side], versions) for case in cases},
        rounds=options.rounds,
    )
    document = report(cases, measured, tolerance) | {
        "machine": machine() | {"torch_geometric": torch_geometric.__version__},
        "versions": versions,
        "load_average_before": before,
        "others_busy_cores": {"all": measured.others_busy()},
    }
    print("\n".join(markdown(document)))
    harness.write_json(options, document)
    return 0 if document["equal"] else 1


def measure(case: Case, command: list[str], versions: dict[str, dict[str, Any]]) -> Mapping[str, Figures]:
    """Run a case in a process of its side's environment; keep what it says of its versions."""
    output = run([*command, case.to_json()], CASE_LIMIT_S)
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
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{' '.join(command)} did not end within {limit_s:g} s") from None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
    return printed or ""


def report(cases: list[Case], measured: Measured, tolerance: float) -> dict[str, Any]:
    """Return medians, ratios over the peer's fastest setting, and how many edges both sides sampled."""
    peer = next(case.side for case in cases if case.side != OURS)
    unit = "seed" if cases[0].task == "node" else "link"
    speed, cost = f"{unit}s_per_s", f"cpu_s_per_k{unit}"
    medians = {
        name: {metric: subject.median(metric) or 0.0 for metric in subject.samples}
        for name, subject in measured.subjects.items()
    }
    loaders = [str(case) for case in cases if case.side == peer and not case.sampler_only]
    best = max(loaders, key=lambda name: medians[name][speed])
    cheapest = min(loaders, key=lambda name: medians[name][cost])
    ratios = {}
    for name in (str(case) for case in cases if case.side == OURS):
        label = name.partition(", ")[2]
        ratios[f"{label} over {peer}'s fastest"] = medians[name][speed] / medians[best][speed]
        ratios[f"edges/s of {label} over {peer}'s fastest"] = (
            medians[name]["edges_per_s"] / medians[best]["edges_per_s"]
        )
        ratios[f"CPU of {label} over {peer}'s fastest"] = medians[name][cost] / medians[best][cost]
        ratios[f"CPU of {label} over {peer}'s cheapest"] = medians[name][cost] / medians[cheapest][cost]
        same = name.replace(OURS, peer)
        if same in medians:
            ratios[f"{label} over {same}"] = medians[name][speed] / medians[same][speed]
    drawn = {
        side: statistics.mean(
            figures[f"edges_per_{unit}"] for name, figures in medians.items() if name.startswith(side)
        )
        for side in (OURS, peer)
    }
    difference = max(drawn.values()) / min(drawn.values()) - 1
    return {
        "task": cases[0].task,
        "subjects": subjects_json(measured),
        "ratios": ratios,
        "peer": peer,
        "peer_fastest": best,
        "peer_cheapest": cheapest,
        "peer_edges_over_ours": drawn[peer] / drawn[OURS],
        "equal": difference <= tolerance,
    }


def markdown(document: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the report. Figures are medians, with the lowest and highest round."""
    unit, peer = "seed" if document["task"] == "node" else "link", document["peer"]
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
        cells = (harness.spread(figures[metric], form) for metric, (_, form) in columns.items())
        yield f"| {name} | " + " | ".join(cells) + " |"
    yield from ("", "| ratio | |", "|---|---:|")
    yield from (f"| {title} | {value:.2f} |" for title, value in document["ratios"].items())
    yield ""
    yield f"{peer}'s fastest: {document['peer_fastest']}; its cheapest: {document['peer_cheapest']}."
    yield (
        f"Sampled edges per {unit}: {peer}'s are {document['peer_edges_over_ours']:.4f} of gigl_loader's"
        + ("." if document["equal"] else ", which is too different to compare.")
    )
    for side, versions in document["versions"].items():
        yield f"{side}: " + ", ".join(f"{name} {value}" for name, value in versions.items()) + "."
    about, busy = document["machine"], document["others_busy_cores"]["all"]
    load = ", ".join(f"{value:.2f}" for value in document["load_average_before"])
    yield (
        f"{about['cpu']}, {about['cpus']} cores, kernel {about['kernel']}, Python {about['python']}, "
        f"torch {about['torch']}; load average before: {load}; other processes used {busy:.2f} cores"
        + (f" (above {NOISY_CORES} the figures are void)." if busy > NOISY_CORES else ".")
    )
