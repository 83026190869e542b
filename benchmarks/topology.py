"""Topology on every server (``serve --topology all``) beside that of its own partitions alone.

Every case has as many partitions as servers, and one trainer. Cases take turns; figures are medians over
rounds, per batch. CPU seconds and requests depend less on other programs than time does.

    python benchmarks/topology.py --servers 2 4 8 --rounds 3
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from gigl_client import RemoteDistDataset
from gigl_loader import DistNeighborLoader
from gigl_loader.graph import Graph
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.rpc.credentials import Caller
from gigl_server.local_cluster import LocalCluster

_FIGURES = ("CPU ms of servers", "CPU ms of draws", "requests", "KB between servers", "RSS MB of a server")


def made(folder: Path, partitions: int, *, nodes: int, edges: int, dim: int) -> Path:
    """Build a random graph, the same for any number of partitions."""
    random = np.random.default_rng(0)
    src, dst = random.integers(0, nodes, (2, edges))
    columns = {"id": np.arange(nodes), "x": random.standard_normal((nodes, dim), dtype=np.float32)}
    edge_type = ("node", "to", "node")
    tables = GraphTables(
        edges={edge_type: ArrayTable("edges", {"src": src, "dst": dst})},
        nodes={"node": NodeTable(ArrayTable("nodes", columns))},
    )
    build_graph(tables, folder / f"graph-{partitions}", num_partitions=partitions, assigner="hash")
    return folder / f"graph-{partitions}"


def measured(graph: Path, servers: int, topology: str, *, rows: str, batches: int) -> dict[str, float]:
    """Return the figures of an epoch after one that warms the servers."""
    with (
        LocalCluster(graph, servers=servers, workers=1, options={"topology": topology}) as cluster,
        RemoteDistDataset.connect(
            cluster.addresses, credentials=Caller(), transport="network", rows=rows, timeout=120
        ) as dataset,
        DistNeighborLoader(
            dataset, [10, 5], np.arange(batches * 512), batch_size=512, seed=1, timeout=120
        ) as loader,
    ):
        list(loader)
        before = _counts(dataset)
        list(loader)
        after = _counts(dataset)
    spent = {name: (after[name] - before[name]) / batches for name in _FIGURES[:-1]}
    return spent | {_FIGURES[-1]: after[_FIGURES[-1]] / servers}


def _counts(dataset: RemoteDistDataset) -> dict[str, float]:
    loads = list(dataset.server_stats(timeout=60).values())
    peers = [peer for load in loads for peer in load["peers"]]
    totals: list[dict[str, Any]] = [load["totals"] for load in loads]
    return dict(
        zip(
            _FIGURES,
            (
                sum(each["cpu_s"] for each in totals) * 1e3,
                sum(each["sampling_s"] for each in totals) * 1e3,
                sum(peer["calls"] for peer in peers),
                sum(peer["bytes_in"] + peer["bytes_out"] for peer in peers) / 1e3,
                sum(load["rss_bytes"] for load in loads) / 1e6,
            ),
            strict=True,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--rows", choices=["direct", "through"], default="direct")
    parser.add_argument("--nodes", type=int, default=500_000)
    parser.add_argument("--edges", type=int, default=5_000_000)
    parser.add_argument("--dim", type=int, default=64)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gigl-topology-") as folder:
        sizes = {"nodes": given.nodes, "edges": given.edges, "dim": given.dim}
        graphs = {count: made(Path(folder), count, **sizes) for count in given.servers}
        cases = [(count, topology) for count in given.servers for topology in ("own", "all")]
        rounds: dict[tuple[int, str], list[dict[str, float]]] = {case: [] for case in cases}
        for _ in range(given.rounds):
            for count, topology in cases:
                found = measured(graphs[count], count, topology, rows=given.rows, batches=given.batches)
                rounds[count, topology].append(found)
        print(f"load average {os.getloadavg()[0]:.1f}; medians of {given.rounds} rounds, per batch")
        print("| servers | topology | mapped MB of a server | " + " | ".join(_FIGURES) + " |")
        for (count, topology), found in rounds.items():
            held = Graph.open(graphs[count], parts=[0], topology=topology)  # type: ignore[arg-type]
            figures = [statistics.median(each[name] for each in found) for name in _FIGURES]
            shown = " | ".join(f"{each:,.1f}" for each in figures)
            print(f"| {count} | {topology} | {held.structure_bytes / 1e6:,.0f} | {shown} |")


if __name__ == "__main__":
    main()
