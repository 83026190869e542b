"""Comparison of assigners: cut, balance, time to build, and bytes between two hosts or more.

    python benchmarks/assigners.py --work FOLDER [--data FOLDER] [--npz FILE] [--graphs communities ...]

Graphs: ``communities`` (generated: equal communities, ids in no order), ``common`` (the common workload, kept
in ``--data``), ``debian`` (packages and all their relations, from apt's lists of this machine) and ``npz`` (a
CSR matrix and its features). Each is built by each assigner, then a trainer for each partition samples over
the loopback, without a cache: seeds of any partition, as loaders share them out, and seeds of its own.
The table is Markdown. Each time is of one build: on a busy machine, trust the CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from crowd import Crowd, Job

from gigl_loader.bench.workload import FULL, Workload, prepare
from gigl_loader.demo.datasets import APT_LISTS, debian_packages
from gigl_loader.graph import Graph
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.partition.assigners import balance_of, edge_quality

_LIMIT_S = 600.0
_HEADER = (
    "| graph | assigner | cut | cut / hash | balance of nodes, edges | build, s (CPU) | CPU / hash "
    "| MB a batch, any seeds | MB a batch, own seeds |\n|---|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True, slots=True)
class Source:
    """The arrays of a graph, and what is sampled from it."""

    name: str
    src: npt.NDArray[np.int64]
    dst: npt.NDArray[np.int64]
    features: npt.NDArray[np.float32]
    seeds: npt.NDArray[np.int64]
    workload: Workload

    def tables(self) -> GraphTables:
        nodes = NodeTable(ArrayTable("nodes", {"x": self.features}))
        return GraphTables(
            {HOMOGENEOUS_EDGE: ArrayTable("edges", {"src": self.src, "dst": self.dst})},
            {HOMOGENEOUS_NODE: nodes},
        )


def communities(options: argparse.Namespace) -> Source:
    """Return a planted partition: ``--within`` of the edges stay in a community, the rest go anywhere."""
    random = np.random.default_rng(0)
    count, edges = options.nodes, options.edges
    shuffled = random.permutation(count)
    src = random.integers(0, count, edges)
    size = -(-count // options.communities)
    first = src // size * size
    near = first + (random.random(edges) * np.minimum(size, count - first)).astype(np.int64)
    dst = np.where(random.random(edges) < options.within, near, random.integers(0, count, edges))
    features = random.standard_normal((count, options.dim), dtype=np.float32)
    name = f"communities ({count:,} nodes, {edges:,} edges, {options.within:.0%} within)"
    return _source(name, shuffled[src], shuffled[dst], features)


def common(options: argparse.Namespace) -> Source:
    """Return the common workload."""
    prepare(FULL, options.data)
    arrays = {name: np.load(options.data / f"{name}.npy", mmap_mode="r") for name in ("src", "dst", "feat")}
    seeds = np.load(options.data / "train.npy")
    workload = Workload(**{**_fields(FULL), "batches": 16})
    return Source("common workload", arrays["src"], arrays["dst"], arrays["feat"], seeds, workload)


def debian(options: argparse.Namespace) -> Source:
    """Return the packages of Debian, and their relations as one edge type."""
    data, _ = debian_packages(APT_LISTS)
    pairs = [data[kind].edge_index.numpy() for kind in data.edge_types]
    src, dst = np.concatenate(pairs, axis=1)
    return _source("Debian packages", src, dst, data["package"].x.numpy())


def from_npz(options: argparse.Namespace) -> Source:
    """Return the graph in a file of ``adj_*`` and ``attr_*``, the parts of two CSR matrices."""
    with np.load(options.npz, allow_pickle=False) as file:
        indptr, indices = file["adj_indptr"].astype(np.int64), file["adj_indices"].astype(np.int64)
        rows, columns = file["attr_shape"]
        features = np.zeros((rows, columns), np.float32)
        of_row = np.repeat(np.arange(rows), np.diff(file["attr_indptr"]))
        features[of_row, file["attr_indices"]] = file["attr_data"]
    src = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    both = np.concatenate([[src, indices], [indices, src]], axis=1)
    return _source(options.npz.stem, both[0], both[1], features)


GRAPHS: dict[str, Callable[[argparse.Namespace], Source]] = {
    "communities": communities,
    "common": common,
    "debian": debian,
    "npz": from_npz,
}


def _source(
    name: str, src: npt.NDArray[np.int64], dst: npt.NDArray[np.int64], features: npt.NDArray[np.float32]
) -> Source:
    """Return a graph of which a tenth of the nodes, at most, are seeds of 16 batches."""
    count = len(features)
    batch = max(min(count // 160, 512), 1)
    seeds = np.random.default_rng(1).permutation(count)[: count // 10]
    workload = Workload(
        nodes=count, edges=len(src), dim=features.shape[1], fanout=(10, 5), batch_size=batch, batches=16
    )
    return Source(name, src, dst, features, seeds, workload)


def _fields(workload: Workload) -> dict[str, Any]:
    return {name: getattr(workload, name) for name in Workload.__dataclass_fields__}


def measure(source: Source, assigner: str, options: argparse.Namespace) -> dict[str, Any]:
    """Build by one assigner, and sample."""
    path = options.work / "graph"
    shutil.rmtree(path, ignore_errors=True)
    began, cpu = time.perf_counter(), time.process_time()
    build_graph(source.tables(), path, num_partitions=options.partitions, assigner=assigner)
    figures: dict[str, Any] = {
        "graph": source.name,
        "assigner": assigner,
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
    }
    graph = Graph.open(path, verify="none")
    quality = edge_quality(graph, HOMOGENEOUS_EDGE)
    figures |= {"cut": quality.cut_share, "edge_balance": quality.balance}
    figures["node_balance"] = balance_of(np.diff(graph.bounds(HOMOGENEOUS_NODE)).tolist())
    np.save(options.work / "seeds.npy", source.seeds)
    for name, own in (("any_mb", False), ("own_mb", True)):
        figures[name] = _wire_mb(path, source.workload, options, own_seeds=own) if options.wire else None
    shutil.rmtree(path)
    return figures


def _wire_mb(path: Path, workload: Workload, options: argparse.Namespace, *, own_seeds: bool) -> float:
    """Return the megabytes that cross between hosts for a batch, in both directions."""
    job = Job(
        graph=str(path),
        seeds=str(options.work / "seeds.npy"),
        workload=workload,
        num_workers=1,
        epochs=1,
        partitions=tuple((part,) for part in range(options.partitions)),
        own_seeds=own_seeds,
    )
    hosts = options.partitions
    with Crowd("measure", job, ranks=hosts, hosts=hosts) as crowd, crowd.within(_LIMIT_S):
        records = crowd.read()
    crossed = sum(each["workers_wire_bytes_in"] + each["workers_wire_bytes_out"] for each in records)
    return float(crossed / sum(each["batches"] for each in records) / 1e6)


def rows(measured: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table. Ratios are over the first assigner of each graph."""
    for each in measured:
        base = next(other for other in measured if other["graph"] == each["graph"])
        wire = [
            "" if each[name] is None else f"{each[name]:.2f} ({each[name] / max(base[name], 1e-9):.2f})"
            for name in ("any_mb", "own_mb")
        ]
        yield (
            " | ".join(
                [
                    f"| {each['graph']}",
                    each["assigner"],
                    f"{each['cut']:.1%}",
                    f"{each['cut'] / max(base['cut'], 1e-9):.2f}",
                    f"{each['node_balance']:.3f}, {each['edge_balance']:.3f}",
                    f"{each['seconds']:.1f} ({each['cpu_seconds']:.1f})",
                    f"{each['cpu_seconds'] / base['cpu_seconds']:.2f}",
                    *wire,
                ]
            )
            + " |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder for graphs, which are removed again")
    parser.add_argument("--data", type=Path, help="folder of the common workload, made where missing")
    parser.add_argument("--npz", type=Path, help="file of the graph npz")
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=["communities"])
    parser.add_argument("--assigners", nargs="+", default=["hash", "ldg"], help="the first is the base")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=500_000, help="of communities")
    parser.add_argument("--edges", type=int, default=5_000_000)
    parser.add_argument("--communities", type=int, default=1000)
    parser.add_argument("--within", type=float, default=0.8, help="part of the edges that stay within one")
    parser.add_argument("--dim", type=int, default=32, help="features of a node")
    parser.add_argument("--no-wire", dest="wire", action="store_false", help="build only")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    if "common" in options.graphs and options.data is None:
        parser.error("the graph common needs --data")
    if "npz" in options.graphs and options.npz is None:
        parser.error("the graph npz needs --npz")
    options.work.mkdir(parents=True, exist_ok=True)
    measured: list[dict[str, Any]] = []
    for name in options.graphs:
        source = GRAPHS[name](options)
        for assigner in options.assigners:
            measured.append(measure(source, assigner, options))
            print(json.dumps(measured[-1]), file=sys.stderr, flush=True)
    load = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(f"{options.partitions} partitions; load of the machine: {load}\n")
    print(_HEADER)
    for line in rows(measured):
        print(line)
    if options.json is not None:
        options.json.write_text(json.dumps(measured) + "\n")


if __name__ == "__main__":
    main()
