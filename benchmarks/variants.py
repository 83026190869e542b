"""Cost of kinds of draws beside uniform draws, per sampled edge.

    python benchmarks/variants.py --data FOLDER [--rounds 5] [--json FILE]

The common workload (1 M nodes, 30 M edges, fanout 15, 10, 5), one thread, edge ids, no features. By a fixed
seed, weights are exponential, times of edges uniform over a span, and seeds lie in its later half. Every
kind samples the same batches of 1,024 seeds, in turns; figures are medians over rounds: CPU seconds per
edge, and nodes per batch, both over uniform draws.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import made_columns
import numpy as np

from gigl_loader.bench.sampling import BatchWriter
from gigl_loader.bench.workload import Workload, prepare
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.sampling.plan import BatchPlan
from gigl_loader.sampling.plans.neighbor import NeighborPlan
from gigl_loader.sampling.request import SEED, TIME, BatchRequest

KINDS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "with replacement": {"replace": True},
    "weighted": {"weight_attr": "w"},
    "disjoint": {"disjoint": True},
    "in time": {"disjoint": True, "time_attr": "t", "with_times": True},
    "the last in time": {"disjoint": True, "time_attr": "t", "with_times": True, "last": True},
    "weighted, in time": {"disjoint": True, "time_attr": "t", "with_times": True, "weight_attr": "w"},
    "LABOR": {"labor": True},
}


def indexed_graph(workload: Workload, folder: Path) -> Path:
    """Return a graph of the workload's edges with weights and times."""
    prepare(workload, folder)
    path = folder / "graph-weights-times"
    if not path.exists():
        src, dst = harness.arrays(folder, "src", "dst")
        made = {"w": made_columns.weights(len(src)), "t": made_columns.times(len(src))}
        edges = ArrayTable("edges", {"src": src, "dst": dst, **made})
        tables = GraphTables(
            edges={HOMOGENEOUS_EDGE: edges},
            nodes={HOMOGENEOUS_NODE: NodeTable(count=workload.nodes)},
            weights={HOMOGENEOUS_EDGE: ("w",)},
            times={HOMOGENEOUS_EDGE: ("t",)},
        )
        build_graph(tables, path)
    return path


class Case:
    """A kind of draws: its sampler, and what the latest round sampled."""

    def __init__(self, graph: Graph, fanout: Sequence[int], options: dict[str, Any]) -> None:
        plan = NeighborPlan(
            seed_type=HOMOGENEOUS_NODE,
            num_neighbors={HOMOGENEOUS_EDGE: tuple(fanout)},
            with_edge=True,
            **options,
        )
        self._writer = BatchWriter(BatchPlan(sampler=plan, run_seed=1).open(graph))
        self.nodes = self.edges = 0

    def seconds_per_edge(self, requests: list[BatchRequest]) -> float:
        """Return the CPU seconds of an edge of these batches."""
        self.nodes = self.edges = 0
        seconds = 0.0
        for request in requests:
            began = time.thread_time()
            layout = self._writer.write(request)
            seconds += time.thread_time() - began
            counts = {name: json.loads(text) for name, text in layout.metadata.items() if "num" in name}
            self.nodes += sum(counts["num_sampled_nodes"]["node"])
            self.edges += sum(counts["num_sampled_edges"]["node+to+node"])
        return seconds / self.edges


def requests_of(workload: Workload, folder: Path) -> list[BatchRequest]:
    """Return the requests of the batches."""
    return [
        BatchRequest(0, batch, np.arange(len(seeds)), {SEED: seeds, TIME: times})
        for batch, (seeds, times) in enumerate(made_columns.batches(folder, workload.batch_size))
    ]


def main() -> None:
    arguments = harness.parser(__doc__, rounds=5).parse_args()
    with harness.folder(arguments.data) as data:
        measure(harness.workload_of(arguments), data, arguments)


def measure(workload: Workload, data: Path, arguments: argparse.Namespace) -> None:
    graph = Graph.open(indexed_graph(workload, data), verify="none")
    requests = requests_of(workload, data)
    cases = {name: Case(graph, workload.fanout, options) for name, options in KINDS.items()}
    for case in cases.values():
        case.seconds_per_edge(requests[:2])  # Warms up.
    rounds = [
        {name: case.seconds_per_edge(requests) for name, case in cases.items()}
        for _ in range(arguments.rounds)
    ]
    load = harness.load()
    figures = {
        name: {
            "ns_per_edge": statistics.median(each[name] for each in rounds) * 1e9,
            "over_uniform": statistics.median(each[name] / each["uniform"] for each in rounds),
            "nodes_over_uniform": case.nodes / cases["uniform"].nodes,
            "edges_over_uniform": case.edges / cases["uniform"].edges,
        }
        for name, case in cases.items()
    }
    print(f"CPU of an edge, over that of uniform draws (load {load:.1f})")
    for name, found in figures.items():
        print(
            f"  {name:18} {found['over_uniform']:5.2f}   {found['ns_per_edge']:6.1f} ns;  "
            f"nodes {found['nodes_over_uniform']:.3f}, edges {found['edges_over_uniform']:.3f}"
        )
    harness.write_json(arguments, {"load": load, "figures": figures})


if __name__ == "__main__":
    main()
