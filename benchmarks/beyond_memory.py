"""Graphs larger than memory: windows of batches beside mapped files, under memory limits.

    python benchmarks/beyond_memory.py --dir FOLDER --json beyond.json --plot docs/beyond-memory.png
    python benchmarks/beyond_memory.py --dir FOLDER --nodes 45M --edges 650M --dtype int8 --shares 25

Makes a graph of 8 M nodes, 80 M edges and 128 float32 features (4.8 GB) in FOLDER, once. A trainer with two
workers takes batches of 1,024 seeds, fanout 15,10,5, in a process of its own in a memory cgroup, whose limit
is a share of the graph's bytes: pages of files count. Before each run, the kernel forgets the graph.

Windows are measured over the second epoch, whole, beside an oracle that keeps the rows whose next use is
nearest, with the same memory and windows. Mapped files are measured after the features were read once in
sequence, which fills the memory. All take turns; figures are medians. With ``--base``, another environment's
gigl_loader shows what the same batches cost in memory before: CPU seconds without a limit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import harness
import numpy as np
from beyond_trainer import Job, Way, places_file
from cache_oracle import bytes_read, rows_read
from memory_group import MemoryGroup, forget_pages, memory_group, read_ahead
from rich.console import Console
from rich.table import Table

from gigl_loader.bench.report import machine
from gigl_loader.bench.rounds import Case, Measured, process_tree, run_rounds

_HERE = Path(__file__).parent
_POLL_S = 0.1
_RUN_LIMIT_S = 1800.0
_FULL = {"nodes": 8_000_000, "edges": 80_000_000, "dim": 128, "batch_size": 1024, "batches": 64}
_QUICK = {"nodes": 50_000, "edges": 500_000, "dim": 128, "batch_size": 64, "batches": 12}
_DTYPES = {"float32": "F32", "int8": "I8"}
_NONE = "in memory"
"""The limit that is none."""


def main() -> None:
    """Make the graph, measure, and tell."""
    options = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Trainers end with this process.
    console = Console(stderr=True)
    with harness.folder(options.dir) as folder:
        graph = made_graph(folder, options, console)
        cases = cases_of(graph, options, console)
        with read_ahead(folder, options.readahead):
            measured = run_rounds(cases, rounds=options.rounds)
        document = document_of(measured, graph, options)
        add_oracle(document, graph, options)
    harness.write_json(options, document)
    Console(width=160).print(table_of(document))
    if options.plot:
        draw(document, options.plot)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, help="folder of the graph, on a disk (default: a temporary one)")
    parser.add_argument("--quick", action="store_true", help="a small graph: does it run?")
    for name, value in _FULL.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=_count, help=f"default: {value:,}")
    parser.add_argument("--dtype", choices=list(_DTYPES), default="float32", help="of features")
    parser.add_argument("--fanout", type=_counts, default=(15, 10, 5))
    parser.add_argument("--workers", type=int, default=2, help="of the loader")
    parser.add_argument(
        "--shares", type=_counts, default=(100, 75, 50, 25), help="limits, in %% of the graph"
    )
    parser.add_argument("--limit-mb", type=_counts, default=(), help="further limits")
    parser.add_argument("--ways", type=_ways, default=("windows", "mapped", "unadvised"))
    parser.add_argument("--base", type=Path, help="python of an environment with a gigl_loader of before")
    parser.add_argument("--feature-memory", help="of the loader (default: its own)")
    parser.add_argument("--window", type=int, help="of the loader (default: its own)")
    parser.add_argument("--cache-policy", help="of the loader (default: its own)")
    parser.add_argument("--readahead", type=int, metavar="KB", help="set that of the disk, for the run")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds to wait for a batch")
    parser.add_argument("--seconds", type=float, default=40.0, help="of a run of mapped files")
    parser.add_argument("--rounds", type=int, default=3, help="how often each case is measured")
    parser.add_argument("--no-oracle", action="store_true")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--plot", type=Path, help="PNG")
    options = parser.parse_args()
    for name, value in (_QUICK if options.quick else _FULL).items():
        setattr(options, name, getattr(options, name) or value)
    return options


def _count(text: str) -> int:
    digits, unit = (text[:-1], {"M": 10**6, "k": 10**3}[text[-1]]) if text[-1:] in ("M", "k") else (text, 1)
    return int(float(digits) * unit)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def _ways(text: str) -> tuple[str, ...]:
    ways = tuple(text.split(","))
    if not set(ways) <= {"windows", "mapped", "unadvised"}:
        raise argparse.ArgumentTypeError(f"{text!r}: takes some of windows,mapped,unadvised")
    return ways


def made_graph(folder: Path, options: argparse.Namespace, console: Console) -> Path:
    """Return the graph of these sizes. It is built where it is missing."""
    from made_graph import made_tables

    from gigl_loader.partition import build_graph

    sizes = (options.nodes, options.edges, options.dim, options.dtype)
    graph = folder / "beyond-{}-{}-{}-{}".format(*sizes)
    if not graph.exists():
        nodes, edges, dim, dtype = sizes
        needed = 20 * edges + 8 * nodes + 2 * nodes * dim * (1 if dtype == "int8" else 4)
        if (free := shutil.disk_usage(folder).free) < needed:
            raise SystemExit(
                f"{folder} has {free / 1e9:.1f} GB free of the {needed / 1e9:.1f} that a build takes"
            )
        with console.status("building the graph"):
            tables = made_tables(nodes=nodes, edges=edges, dim=dim, dtype=_DTYPES[dtype])
            build_graph(tables, graph, num_partitions=1, assigner="range")
    return graph


def graph_bytes(graph: Path) -> int:
    return sum(file.stat().st_size for file in graph.rglob("*") if file.is_file())


def job_of(graph: Path, way: Way, options: argparse.Namespace) -> Job:
    """Return the job of a trainer under a limit."""
    given = {name: getattr(options, name) for name in ("feature_memory", "window", "cache_policy")}
    return Job(
        graph=str(graph),
        way=way,
        fanout=options.fanout,
        batch_size=options.batch_size,
        batches=options.batches,
        num_workers=options.workers,
        concurrency=1,  # Frames that wait take memory from the features.
        patience_s=options.patience,
        seconds=None if way == "windows" else options.seconds,
        options={name: value for name, value in given.items() if value is not None},
    )


def cases_of(graph: Path, options: argparse.Namespace, console: Console) -> dict[str, Case]:
    """Return the cases that take turns, by limit and way."""
    whole = graph_bytes(graph)
    limits = {f"{share} %": whole * share // 100 for share in options.shares}
    limits |= {f"{mb:,} MB": mb * 10**6 for mb in options.limit_mb}
    cases: dict[str, Case] = {}
    for title, limit in limits.items():
        for way in options.ways:
            cases[f"{title}, {way}"] = _case(f"{title}, {way}", job_of(graph, way, options), limit, console)
    if options.base:
        job = replace(job_of(graph, "windows", options), options={})
        for name, python in (("now", sys.executable), ("before", str(options.base))):
            cases[f"{_NONE}, {name}"] = _case(f"{_NONE}, {name}", job, None, console, python)
    return cases


def _case(name: str, job: Job, limit: int | None, console: Console, python: str = sys.executable) -> Case:
    def case() -> dict[str, dict[str, float]]:
        forget_pages(Path(job.graph))
        found = run(job, limit, python)
        console.print(f"{name}: {json.dumps(found)}", soft_wrap=True, highlight=False)
        return {name: figures_of(found, limit)}

    return case


def run(job: Job, limit: int | None, python: str) -> dict[str, Any]:
    """Run a trainer in a cgroup of this limit. Return what it told, and its memory."""
    command = [python, str(_HERE / "beyond_trainer.py"), job.to_json()]
    if limit is None:
        return _watched(command, None)
    try:
        with memory_group(limit) as group:
            return _watched(group.command(command), group)
    except RuntimeError as error:
        raise SystemExit(str(error)) from None


def _watched(command: list[str], group: MemoryGroup | None) -> dict[str, Any]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    own, deadline = 0, time.monotonic() + _RUN_LIMIT_S
    try:
        while True:
            try:
                output, errors = process.communicate(timeout=_POLL_S)
                break
            except subprocess.TimeoutExpired:
                own = max(own, group.own_bytes() if group else 0)
            if time.monotonic() > deadline:
                raise SystemExit(f"a run did not end within {_RUN_LIMIT_S:g} s: {command}")
    finally:
        end_tree(process)
    memory = {"own_bytes": own, "peak_bytes": group.peak_bytes()} if group else {}
    if process.returncode == 0:
        return {**json.loads(output.splitlines()[-1]), **memory}
    reason = "killed: the limit is too low" if group and group.kills() else errors.strip()[-2000:]
    return {"failed": reason, **memory}


def end_tree(process: subprocess.Popen[str]) -> None:
    """End a process and all that it started, if they have not ended."""
    if process.poll() is None:
        for pid in process_tree(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.communicate()


_FIGURES = (
    "first_batch_s",
    "seeds_per_s",
    "cpu_s_per_batch",
    "read_mb_per_batch",
    "nodes_per_batch",
    "waited_s",
)


def figures_of(found: dict[str, Any], limit: int | None) -> dict[str, float]:
    """Return the figures of a run; none but memory where it failed."""
    memory = {
        f"{name}_gb": found[f"{name}_bytes"] / 1e9 for name in ("own", "peak") if f"{name}_bytes" in found
    }
    limited = {"limit_gb": limit / 1e9} if limit else {}
    windows = {}
    if rows := found.get("first_epoch", {}).get("rows"):
        windows = {name: rows[name] for name in ("window", "slots") if name in rows}
        windows |= {"rows_read": rows["disk"], "bytes_read": found["first_epoch"]["read_bytes"]}
    return {**limited, **memory, **windows, **{name: found[name] for name in _FIGURES if name in found}}


def add_oracle(document: dict[str, Any], graph: Path, options: argparse.Namespace) -> None:
    """Compare what windows read in their first epoch with an oracle of as many slots and the same windows."""
    subjects = [each for each in document["figures"].values() if each.get("rows_read") and "slots" in each]
    if not subjects or options.no_oracle:
        return
    job = job_of(graph, "places", options)
    if not places_file(job).exists():
        run(job, None, sys.executable)
    with np.load(places_file(job)) as saved:
        batches = [saved[f"arr_{number}"] for number in range(options.batches)]
    row_bytes = options.dim * (1 if options.dtype == "int8" else 4)
    for figures in subjects:
        window = min(int(figures["window"]), options.batches)
        try:
            missing = rows_read(batches, window=window, num_slots=int(figures["slots"]))
        except ValueError:  # A window has more rows than the cache: the oracle keeps whole ones.
            continue
        blocks, _ = bytes_read(missing, row_bytes=row_bytes, gap=0)
        figures["oracle_rows"], figures["oracle_bytes"] = sum(map(len, missing)), blocks
        figures["rows_over_oracle"] = figures["rows_read"] / figures["oracle_rows"]
        figures["read_over_oracle"] = figures["bytes_read"] / blocks


def document_of(measured: Measured, graph: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the medians, all samples and the ratios, as the JSON file has them."""
    medians = {
        name: {metric: subject.median(metric) for metric in subject.samples}
        for name, subject in measured.subjects.items()
    }
    for name, figures in medians.items():
        limit, _, way = name.partition(", ")
        beside = medians.get(f"{limit}, mapped", {}).get("seeds_per_s")
        if way == "windows" and beside and figures.get("seeds_per_s"):
            figures["over_mapped"] = figures["seeds_per_s"] / beside
    found = {"before": medians.get(f"{_NONE}, before"), "now": medians.get(f"{_NONE}, now")}
    ratios = {}
    if all(found.values()):
        for metric in ("cpu_s_per_batch", "seeds_per_s"):
            ratios[f"{metric}, in memory, over before"] = found["now"][metric] / found["before"][metric]
    return {
        "machine": machine(),
        "graph_bytes": graph_bytes(graph),
        "workload": {name: getattr(options, name) for name in (*_FULL, "dtype", "fanout", "workers")},
        "figures": medians,
        "ratios": ratios,
        "samples": {name: subject.samples for name, subject in measured.subjects.items()},
        "others_busy_cores": {name: measured.others_busy(name) for name in measured.loads},
        "load": harness.load(),
    }


_COLUMNS = {
    "limit_gb": ("limit, GB", "{:.2f}"),
    "seeds_per_s": ("seeds/s", "{:,.0f}"),
    "over_mapped": ("over mapped", "{:.1f}"),
    "first_batch_s": ("first batch, s", "{:.1f}"),
    "read_mb_per_batch": ("MB read a batch", "{:,.0f}"),
    "read_over_oracle": ("over oracle", "{:.2f}"),
    "rows_over_oracle": ("rows over oracle", "{:.2f}"),
    "cpu_s_per_batch": ("CPU s a batch", "{:.3f}"),
    "own_gb": ("own memory, GB", "{:.2f}"),
    "peak_gb": ("with files, GB", "{:.2f}"),
}


def table_of(document: dict[str, Any]) -> Table:
    """Return the medians for people."""
    busy = max(document["others_busy_cores"].values())
    title = f"graph of {document['graph_bytes'] / 1e9:.2f} GB; others used up to {busy:.2f} cores"
    table = Table("", *(title for title, _ in _COLUMNS.values()), title=title)
    for name, figures in document["figures"].items():
        cells = [form.format(figures[key]) if key in figures else "" for key, (_, form) in _COLUMNS.items()]
        if "seeds_per_s" not in figures:
            cells[1] = f"none in {figures['waited_s']:.0f} s" if "waited_s" in figures else "failed"
        table.add_row(name, *cells)
    for name, ratio in document["ratios"].items():
        table.add_row(name, "", f"{ratio:.3f}")
    return table


_LABELS = {"windows": "windows", "mapped": "mapped files, advised", "unadvised": "mapped files"}


def draw(document: dict[str, Any], path: Path) -> None:
    """Plot seeds a second and bytes read a batch against the limit."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    lines = {way: (f"C{number}", label) for number, (way, label) in enumerate(_LABELS.items())}
    for (way, (color, label)), (pane, key) in product(lines.items(), zip(axes, _PLOTTED, strict=True)):
        points = sorted(
            (figures["limit_gb"], figures[key])
            for name, figures in document["figures"].items()
            if name.endswith(f", {way}") and key in figures
        )
        if points:
            pane.plot(*zip(*points, strict=True), color=color, marker="o", label=label)
    for pane, title in zip(axes, _PLOTTED.values(), strict=True):
        pane.axvline(document["graph_bytes"] / 1e9, color="0.8", zorder=0)
        pane.set(xlabel="memory, GB (grey: the graph)", ylabel=title, yscale="log", xlim=(0, None))
    axes[0].legend()
    figure.savefig(path, dpi=150)


_PLOTTED = {"seeds_per_s": "seeds a second", "read_mb_per_batch": "MB read a batch"}


if __name__ == "__main__":
    main()
