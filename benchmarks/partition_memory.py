"""Peak memory and speed of ``gigl-loader partition`` on a graph that does not fit its memory limit.

Writes a random power-law graph as ``.npy`` files in pieces, builds it in a child process, and watches
the memory of the child's process tree. By default: 100 M edges and 64 float32 features on 5 M nodes
under 2 GB. The exit code is 1 where the processes held more than the limit, which leaves out pages of files
(libraries), as they are shared and the kernel can drop them.

    python benchmarks/partition_memory.py --edges 5000000 --nodes 250000 --memory-limit 400MB
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from gigl_loader.partition.job import parse_bytes

_ROWS = 1 << 20
_SAMPLE_SECONDS = 0.05


def main() -> None:
    """Generate, build, watch, report."""
    options = _arguments()
    console = Console(stderr=True)
    with _work_directory(options.work) as work, Progress(console=console, transient=True) as bars:
        inputs = work / "inputs"
        _generate(inputs, options, bars)
        measured = _build(inputs, work / "graph", options, bars)
        measured["input_bytes"] = sum(file.stat().st_size for file in inputs.iterdir())
        measured["graph_bytes"] = sum(
            file.stat().st_size for file in (work / "graph").rglob("*") if file.is_file()
        )
        if options.verify:
            command = [*_COMMAND, "inspect", str(work / "graph"), "--verify", "--json"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            measured["verified"] = True
    if options.json:
        print(json.dumps(measured))
    else:
        Console().print(_table(measured))
    sys.exit(0 if measured["peak_held_bytes"] <= measured["limit_bytes"] else 1)


_COMMAND = [sys.executable, "-c", "from gigl_loader.cli import main; main()"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--edges", type=int, default=100_000_000)
    parser.add_argument("--nodes", type=int, default=5_000_000)
    parser.add_argument("--dim", type=int, default=64, help="float32 features per node")
    parser.add_argument("--edge-dim", type=int, default=0, help="float32 features per edge")
    parser.add_argument("--weight", action="store_true", help="one float32 weight per edge, indexed")
    parser.add_argument("--quantize", help="how features of nodes are quantised, e.g. uint1:per-row")
    parser.add_argument("--skew", type=float, default=2.0, help="node ids are uniform numbers to this power")
    parser.add_argument("--memory-limit", default="2GB")
    parser.add_argument("--num-partitions", type=int, default=1)
    parser.add_argument("--assigner", default="range", choices=["range", "hash", "ldg"])
    parser.add_argument("--work", type=Path, help="directory for inputs and graph (default: a temporary one)")
    parser.add_argument("--verify", action="store_true", help="check every byte of the graph afterwards")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


@contextmanager
def _work_directory(parent: Path | None) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="gigl-partition-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def _generate(inputs: Path, options: argparse.Namespace, bars: Progress) -> None:
    """Write the tables in pieces: the benchmark itself must not need the memory that it measures."""
    inputs.mkdir()
    generator = np.random.default_rng(0)

    def ids(rows: int) -> Any:
        return (generator.random(rows) ** options.skew * options.nodes).astype(np.int64)

    def features(rows: int, dim: int) -> Any:
        return generator.random((rows, dim), dtype=np.float32)

    for name in ("src", "dst"):
        _write_npy(inputs / f"{name}.npy", options.edges, ids, bars)
    if options.weight:
        _write_npy(inputs / "w.npy", options.edges, lambda rows: features(rows, 1)[:, 0], bars)
    _write_npy(inputs / "x.npy", options.nodes, lambda rows: features(rows, options.dim), bars)
    if options.edge_dim:
        _write_npy(
            inputs / "edge_attr.npy", options.edges, lambda rows: features(rows, options.edge_dim), bars
        )


def _write_npy(path: Path, rows: int, make: Any, bars: Progress) -> None:
    task = bars.add_task(f"writing {path.name}", total=rows)
    empty = make(0)
    header = {"descr": empty.dtype.str, "fortran_order": False, "shape": (rows, *empty.shape[1:])}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, rows, _ROWS):
            count = min(_ROWS, rows - start)
            make(count).tofile(file)
            bars.advance(task, count)


def _build(inputs: Path, graph: Path, options: argparse.Namespace, bars: Progress) -> dict[str, Any]:
    names = ["src", "dst", *(["edge_attr"] if options.edge_dim else []), *(["w"] if options.weight else [])]
    command = [
        *(*_COMMAND, "partition", str(graph), "--json", "--memory-limit", options.memory_limit),
        *("--edges", ",".join(str(inputs / f"{name}.npy") for name in names)),
        *("--nodes", str(inputs / "x.npy")),
        *("--num-partitions", str(options.num_partitions), "--assigner", options.assigner),
        *(("--weight", "w") if options.weight else ()),
        *(("--quantize", f"x={options.quantize}") if options.quantize else ()),
    ]
    limit = parse_bytes(options.memory_limit)
    task = bars.add_task("building", total=None)
    started = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        peaks = _watch(child, limit, lambda text: bars.update(task, description=text))
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    if peaks.pop("exit_code"):
        sys.exit(f"the build failed with exit code {child.returncode}")
    return {
        "edges": options.edges,
        "nodes": options.nodes,
        "dim": options.dim,
        "edge_dim": options.edge_dim,
        "num_partitions": options.num_partitions,
        "assigner": options.assigner,
        "limit_bytes": limit,
        "seconds": time.monotonic() - started,
        **peaks,
    }


def _watch(child: subprocess.Popen[bytes], limit: int, show: Any) -> dict[str, Any]:
    """Sample the process tree until it ends."""
    peak_pss = peak_rss = peak_held = 0
    while True:
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            break
        pss, rss, held = _tree_memory(child.pid)
        peak_pss, peak_rss, peak_held = max(peak_pss, pss), max(peak_rss, rss), max(peak_held, held)
        show(f"building: {pss >> 20} MiB now, {peak_pss >> 20} at most, {limit >> 20} allowed")
        time.sleep(_SAMPLE_SECONDS)
    return {
        "peak_pss_bytes": peak_pss,
        "peak_rss_bytes": peak_rss,
        "peak_held_bytes": peak_held,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "exit_code": child.returncode,
    }


def _tree_memory(pid: int) -> tuple[int, int, int]:
    """Return the PSS now, and the RSS at its highest with and without pages of files, of a process tree.

    The high-water mark is the kernel's, so no peak between two samples is missed. It is not that of
    ``getrusage``, which begins with the memory of the process that forked the child. The kernel keeps none
    without pages of files: those of this moment are subtracted.
    """
    pss = rss = held = 0
    try:
        parent = psutil.Process(pid)
        for process in [parent, *parent.children(recursive=True)]:
            pss += process.memory_full_info().pss
            highest, of_files = _high_water(process.pid)
            rss, held = rss + highest, held + highest - of_files
    except (psutil.Error, OSError):
        pass
    return pss, rss, held


def _high_water(pid: int) -> tuple[int, int]:
    """Return the highest RSS of a process so far, and its pages of files now, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {
        name: int(value.split()[0]) << 10
        for name, _, value in (line.partition(":") for line in lines)
        if name in ("VmHWM", "RssFile")
    }
    return found.get("VmHWM", 0), found.get("RssFile", 0)


def _table(measured: dict[str, Any]) -> Table:
    title = f"{measured['edges']:,} edges, {measured['nodes']:,} nodes, {measured['dim']} features"
    if measured["edge_dim"]:
        title += f", {measured['edge_dim']} per edge"
    table = Table("figure", "value", title=title)
    for name in ("limit", "peak_held", "peak_pss", "peak_rss", "input", "graph"):
        table.add_row(name.replace("_", " "), f"{measured[name + '_bytes'] / 1e6:,.0f} MB")
    table.add_row("of the limit", f"{measured['peak_held_bytes'] / measured['limit_bytes']:.0%}")
    table.add_row("seconds", f"{measured['seconds']:.1f}")
    table.add_row("CPU seconds", f"{measured['cpu_seconds']:.1f}")
    table.add_row("edges per second", f"{measured['edges'] / measured['seconds'] / 1e6:.2f} M")
    return table


if __name__ == "__main__":
    main()
