"""Builds and samples graphs of growing size on one machine: rates, memory, disk and time against size.

    python benchmarks/scale.py --work FOLDER                      30 M and 100 M edges
    python benchmarks/scale.py --work FOLDER --sizes 30M,100M,300M,1B --json scale.json --plot scale.png
    python benchmarks/scale.py --work FOLDER --sizes papers      as ogbn-papers100M, as far as the disk allows
    python benchmarks/scale.py --work FOLDER --sizes 1B --peer OTHER/bin/python --rounds 3

Tables are made while they are read, which costs CPU that is reported separately. Builds run in a process of
their own under ``--memory-limit``, by all cores; then two workers sample batches of 1,024 seeds, fanout
15,10,5. With ``--peer``, each build is done by the gigl_loader of another environment, too, in turns; its
graph must be the same. With ``--executor ray``, the Ray cluster that runs here builds (start it with this
folder in PYTHONPATH), ``--memory-limit`` being that of a task. While it builds, it takes twenty bytes of
the disk per edge, and the features twice.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

_HERE = Path(__file__).parent
_POLL_S = 0.1
_LIMIT_S = 4 * 3600.0
_SPARE_BYTES = 2 << 30
_PARTITIONS = 8
_FANOUT = [15, 10, 5]
_BATCH, _BATCHES, _WORKERS = 1024, 60, 2
_DIM = 32
"""Features of the growing graphs. Shapes of data sets have their own number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A graph to build."""

    name: str
    nodes: int
    edges: int
    dim: int = _DIM
    dtype: str = "F32"

    @property
    def feature_bytes(self) -> int:
        return self.nodes * self.dim * (1 if self.dtype == "I8" else 4)

    @property
    def disk_bytes(self) -> int:
        """Largest disk use of a build: the lists, the rows that wait for them, and the features."""
        return 20 * self.edges + 8 * self.nodes + 2 * self.feature_bytes

    def part(self, share: float) -> Size:
        """Return a graph of the same shape with a share of the nodes and edges."""
        name = f"{self.name}, {share:.0%}"
        return replace(self, name=name, nodes=int(self.nodes * share), edges=int(self.edges * share))


def _of_edges(name: str, edges: int) -> Size:
    return Size(name=name, nodes=edges // 50, edges=edges)


SIZES = {
    "1M": _of_edges("1M", 1_000_000),
    "30M": _of_edges("30M", 30_000_000),
    "100M": _of_edges("100M", 100_000_000),
    "300M": _of_edges("300M", 300_000_000),
    "1B": _of_edges("1B", 1_000_000_000),
    "products": Size(name="products", nodes=2_449_029, edges=123_718_280, dim=100),
    "papers": Size(name="papers", nodes=111_059_956, edges=1_615_685_872, dim=128, dtype="I8"),
}
"""By name. Numbers have 50 edges and 32 float32 features a node; names are shapes of data sets of OGB."""


def main() -> None:
    """Build, sample, and tell."""
    options = _arguments()
    if options.child:
        print(json.dumps(_CHILDREN[options.child](Size(**json.loads(options.size)), options)))
        return
    console = Console(stderr=True)
    results = []
    for name in options.sizes:
        size = _as_the_disk_allows(SIZES[name], options.work, console)
        with tempfile.TemporaryDirectory(prefix="gigl-scale-", dir=options.work) as folder:
            results.append(_measure(size, Path(folder), options, console))
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")
    Console().print(_table(results))
    if options.plot:
        _draw(results, options.plot)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder on a disk with enough room")
    parser.add_argument("--sizes", default="30M,100M", type=_names, help=f"some of {','.join(SIZES)}")
    parser.add_argument("--memory-limit", default="4GB", help="of a build")
    parser.add_argument("--executor", choices=["local", "ray"], default="local")
    parser.add_argument("--workers", type=int, help="tasks at once (default: all CPUs)")
    parser.add_argument("--rounds", type=int, default=1, help="how often each graph is built")
    parser.add_argument("--peer", type=Path, help="python of an environment with another gigl_loader")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="PNG")
    parser.add_argument("--child", choices=sorted(_CHILDREN), help=argparse.SUPPRESS)
    parser.add_argument("--size", help=argparse.SUPPRESS)
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    if not set(names) <= SIZES.keys():
        raise argparse.ArgumentTypeError(f"{text!r}: takes some of {','.join(SIZES)}")
    return names


def _as_the_disk_allows(size: Size, work: Path, console: Console) -> Size:
    work.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(work).free - _SPARE_BYTES
    share = free / size.disk_bytes
    if share >= 1:
        return size
    part = size.part(int(share * 100) / 100)
    console.print(f"{size.name}: {free / 1e9:.0f} GB are free of {size.disk_bytes / 1e9:.0f}: {part.name}")
    if not part.edges:
        raise SystemExit(f"no room for any part of {size.name} in {work}")
    return part


def _measure(size: Size, folder: Path, options: argparse.Namespace, console: Console) -> dict[str, Any]:
    builders = {"build": Path(sys.executable), **({"peer": options.peer} if options.peer else {})}
    builds: dict[str, list[dict[str, Any]]] = {name: [] for name in builders}
    made = _child("make", size, folder, options, sys.executable)
    graph = folder / "graph"
    for _ in range(options.rounds):
        for name, python in builders.items():
            shutil.rmtree(graph, ignore_errors=True)
            builds[name].append(_child("build", size, folder, options, python))
            console.print(f"{size.name}, {name}: {builds[name][-1]['seconds']:.1f} s")
    digests = {each["digest"] for runs in builds.values() for each in runs}
    if len(digests) != 1:
        raise SystemExit(f"builds of {size.name} differ: {digests}")
    if options.peer:  # Its format may be another one.
        shutil.rmtree(graph)
        builds["build"].append(_child("build", size, folder, options, sys.executable))
    stored = sum(file.stat().st_size for file in graph.rglob("*") if file.is_file())
    sampled = _child("sample", size, folder, options, sys.executable)
    seconds = {name: median(each["seconds"] for each in runs) for name, runs in builds.items()}
    figures = {
        **asdict(size),
        "make_cpu_s": made["cpu_s"],
        "build_s": seconds["build"],
        "build_edges_per_s": size.edges / seconds["build"],
        "build_cpu_s": median(each["cpu_s"] for each in builds["build"]),
        "peak_bytes": max(each["peak_bytes"] for each in builds["build"]),
        "graph_bytes": stored,
        **sampled,
    }
    if options.peer:
        figures |= {"peer_s": seconds["peer"], "times_peer": seconds["peer"] / seconds["build"]}
    return figures


def _child(step: str, size: Size, folder: Path, options: argparse.Namespace, python: Any) -> dict[str, Any]:
    """Do a step in a process of its own. Return what it tells, and the peak of the memory of its tree."""
    command = [str(python), str(Path(__file__).absolute()), "--child", step, "--work", str(folder)]
    command += ["--memory-limit", options.memory_limit, "--size", json.dumps(asdict(size))]
    command += ["--executor", options.executor]
    command += ["--workers", str(options.workers)] if options.workers else []
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output)
        peak = 0
        try:
            deadline = time.monotonic() + _LIMIT_S
            while process.poll() is None:
                if time.monotonic() > deadline:
                    raise SystemExit(f"{size.name}: {step} did not end within {_LIMIT_S:g} s")
                peak = max(peak, _own_memory(process.pid))
                time.sleep(_POLL_S)
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            raise SystemExit(f"{size.name}: {step} failed with exit code {process.returncode}")
        output.seek(0)
        return {"peak_bytes": peak, **json.loads(output.read().splitlines()[-1])}


def _own_memory(pid: int) -> int:
    """Return the bytes of a tree of processes that no file backs: mapped files are the page cache's."""
    from gigl_loader.bench.rounds import process_tree

    total = 0
    for each in process_tree(pid):
        try:
            lines = Path(f"/proc/{each}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(
            int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon:", "RssShmem:"))
        )
    return total


def _cpu_s() -> float:
    import resource

    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _tables(size: Size) -> Any:
    sys.path.insert(0, str(_HERE))
    from made_graph import made_tables

    return made_tables(nodes=size.nodes, edges=size.edges, dim=size.dim, dtype=size.dtype)


def _make(size: Size, options: argparse.Namespace) -> dict[str, Any]:
    """Read all tables once and throw them away."""
    tables = _tables(size)
    began = _cpu_s()
    rows: list[Iterator[Any]] = [table.read(["src", "dst"], 1 << 18) for table in tables.edges.values()]
    rows += [entry.rows.read(["x"], 1 << 18) for entry in tables.nodes.values()]
    for each in rows:
        for _ in each:
            pass
    return {"cpu_s": _cpu_s() - began}


def _build(size: Size, options: argparse.Namespace) -> dict[str, Any]:
    """Build the graph, by all cores where this version can."""
    from gigl_loader import partition
    from gigl_loader.partition.job import parse_bytes

    tables = _tables(size)
    own: dict[str, Any] = {}
    if options.executor == "ray":
        own["executor"] = partition.RayExecutor(num_workers=options.workers)
    elif hasattr(partition, "LocalExecutor"):
        own["executor"] = partition.LocalExecutor(options.workers)
    began = time.perf_counter()
    partition.build_graph(
        tables,
        options.work / "graph",
        num_partitions=_PARTITIONS,
        assigner="range",
        memory_limit=parse_bytes(options.memory_limit),
        **own,
    )
    seconds = time.perf_counter() - began
    digest = json.loads((options.work / "graph" / "graph.json").read_text())["digest"]
    return {"seconds": seconds, "cpu_s": _cpu_s(), "digest": digest}


def _sample(size: Size, options: argparse.Namespace) -> dict[str, Any]:
    """Open the graph, receive a first batch, an epoch that warms, and an epoch that counts."""
    import numpy as np

    from gigl_loader import DistDataset, DistNeighborLoader
    from gigl_loader.bench.loading import Pass
    from gigl_loader.bench.rounds import CpuMeter

    count = min(_BATCH * _BATCHES, size.nodes // 10)
    seeds = np.random.default_rng(2).integers(0, size.nodes, 2 * count)
    seeds = np.unique(seeds)[:count]
    began = time.perf_counter()
    with DistDataset.open(options.work / "graph") as dataset:
        opened = time.perf_counter() - began
        batch = min(_BATCH, max(count // 10, 1))
        run: dict[str, Any] = {"batch_size": batch, "shuffle": True, "seed": 3, "num_workers": _WORKERS}
        with DistNeighborLoader(dataset, _FANOUT, seeds, **run) as loader:
            warm = Pass.over(loader)
            meter, began = CpuMeter(), time.perf_counter()
            seen = Pass.over(loader)
            seconds, cpu = time.perf_counter() - began, meter.read()[0]
    return {
        "open_s": opened,
        "first_batch_s": warm.first_batch_s,
        "seeds_per_s": seen.seeds / seconds,
        "edges_per_s": seen.edges / seconds,
        "rows_per_s": seen.nodes / seconds,
        "feature_bytes_per_s": seen.nodes * size.feature_bytes / size.nodes / seconds,
        "rows_per_cpu_s": seen.nodes / cpu,
        "sample_cpu_s_per_kseed": 1e3 * cpu / seen.seeds,
    }


_CHILDREN = {"make": _make, "build": _build, "sample": _sample}

_COLUMNS = {
    "edges, M": ("edges", 1e6, "{:,.0f}"),
    "nodes, M": ("nodes", 1e6, "{:,.1f}"),
    "build, s": ("build_s", 1, "{:,.0f}"),
    "M edges/s": ("build_edges_per_s", 1e6, "{:.2f}"),
    "CPU, s": ("build_cpu_s", 1, "{:,.0f}"),
    "of which tables": ("make_cpu_s", 1, "{:,.0f}"),
    "peak, GB": ("peak_bytes", 1e9, "{:.2f}"),
    "graph, GB": ("graph_bytes", 1e9, "{:.2f}"),
    "open, ms": ("open_s", 1e-3, "{:.1f}"),
    "first batch, s": ("first_batch_s", 1, "{:.2f}"),
    "seeds/s": ("seeds_per_s", 1, "{:,.0f}"),
    "M edges/s drawn": ("edges_per_s", 1e6, "{:.1f}"),
    "M rows/s": ("rows_per_s", 1e6, "{:.1f}"),
    "M rows per CPU s": ("rows_per_cpu_s", 1e6, "{:.1f}"),
    "times the peer": ("times_peer", 1, "{:.2f}"),
}


def _table(results: list[dict[str, Any]]) -> Table:
    table = Table("", *(each["name"] for each in results), title=f"{_PARTITIONS} partitions")
    for title, (key, unit, form) in _COLUMNS.items():
        if any(key in each for each in results):
            table.add_row(title, *(form.format(each[key] / unit) if key in each else "" for each in results))
    return table


def _draw(results: list[dict[str, Any]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, (build, sample) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    series = [
        (build, "build_s", 1, "o", "seconds"),
        (sample, "rows_per_s", 1e6, "o", "M rows/s"),
        (sample, "edges_per_s", 1e6, "s", "M edges/s"),
    ]
    for number, (axes, key, unit, marker, label) in enumerate(series):
        style = {"color": f"C{max(number - 1, 0)}", "marker": marker}
        growing = [each for each in results if each["dim"] == _DIM]
        axes.plot(
            [each["edges"] for each in growing], [each[key] / unit for each in growing], label=label, **style
        )
        for each in results:
            if each["dim"] != _DIM:
                axes.plot([each["edges"]], [each[key] / unit], markerfacecolor="none", **style)
                if marker == "o":
                    point = (each["edges"], each[key] / unit)
                    axes.annotate(
                        each["name"],
                        point,
                        fontsize=8,
                        ha="right",
                        xytext=(-6, 4),
                        textcoords="offset points",
                    )
    build.set(xscale="log", yscale="log", xlabel="edges", ylabel="seconds", title="build")
    sample.set(xscale="log", xlabel="edges", ylim=(0, None), title="batches of 1,024 seeds, 2 workers")
    sample.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
