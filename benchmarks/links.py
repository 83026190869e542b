"""Cost of batches of links and of anchors beside batches of nodes, per seed that is expanded.

    python benchmarks/links.py --data FOLDER [--rounds 5] [--json FILE]

The common workload (1 M nodes, 30 M edges, fanout 15, 10, 5), one thread, edge ids, no features. Each kind
of batch is sampled beside a batch of nodes that has the same seeds, in turns; figures are medians of the
ratio of CPU seconds, and the ratio of the bytes of frames. Links: 1,024 a batch. Anchors: 256 a batch, with
5 labels each and 256 random negatives.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np

from gigl_loader.bench.sampling import BatchWriter
from gigl_loader.bench.workload import Workload, prepare
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, label_list
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.sampling.khop import KHop
from gigl_loader.sampling.negatives import Negatives
from gigl_loader.sampling.plan import BatchPlan, SamplerPlan
from gigl_loader.sampling.plans.ablp import ABLPPlan
from gigl_loader.sampling.plans.link import LinkPlan
from gigl_loader.sampling.plans.neighbor import NeighborPlan
from gigl_loader.sampling.request import SEED, BatchRequest

LIKES = ("node", "likes", "node")
LABELS = 5
ANCHORS = 256
RANDOMS = 256


def labelled_graph(workload: Workload, folder: Path) -> Path:
    """Return a graph of the same edges with a label set: five of each training node, two hops away."""
    prepare(workload, folder)
    path = folder / "graph-labels"
    if path.exists():
        return path
    random = np.random.default_rng(1)
    src, dst, train = harness.arrays(folder, "src", "dst", "train")
    anchors = np.repeat(train, LABELS)
    labels = src[random.integers(0, len(src), len(anchors))]
    tables = GraphTables(
        edges={HOMOGENEOUS_EDGE: ArrayTable("edges", {"src": src, "dst": dst})},
        nodes={HOMOGENEOUS_NODE: NodeTable(count=workload.nodes)},
        labels={label_list(LIKES, "positive"): ArrayTable("labels", {"src": anchors, "dst": labels})},
    )
    build_graph(tables, path)
    return path


class Case:
    """One kind of batch, and batches of nodes with the same seeds."""

    def __init__(self, graph: Graph, plan: SamplerPlan, requests: list[BatchRequest], hops: KHop) -> None:
        nodes = NeighborPlan(
            seed_type=HOMOGENEOUS_NODE, num_neighbors=hops.num_neighbors, with_edge=hops.with_edge
        )
        self._own, self._nodes = (
            BatchWriter(BatchPlan(sampler=each, run_seed=1).open(graph)) for each in (plan, nodes)
        )
        self._requests = requests
        self.num_seeds = 0
        self.frame_bytes = 0
        """Of all batches, as servers send them, without rows of features."""
        self.node_bytes = 0
        """Of the batches of nodes."""
        self._same: list[BatchRequest] = []
        for request in requests:
            layout = self._own.write(request)
            count = json.loads(layout.metadata["num_sampled_nodes"])["node"][0]
            seeds = layout.view(self._own.buffer, "node/node/n_id")[:count].copy()
            self.num_seeds += len(seeds)
            self.frame_bytes += layout.nbytes
            self._same.append(BatchRequest(0, request.batch, np.arange(len(seeds)), {SEED: seeds}))
            self.node_bytes += self._nodes.write(self._same[-1]).nbytes

    def seconds(self) -> tuple[float, float]:
        """Return CPU seconds of the batches, and of the batches of nodes."""
        return _seconds(self._own, self._requests), _seconds(self._nodes, self._same)


def _seconds(writer: BatchWriter, requests: list[BatchRequest]) -> float:
    began = time.thread_time()
    for request in requests:
        writer.write(request)
    return time.thread_time() - began


def cases(workload: Workload, folder: Path) -> dict[str, Case]:
    graph = Graph.open(labelled_graph(workload, folder), verify="none")
    hops = KHop(num_neighbors={HOMOGENEOUS_EDGE: workload.fanout}, with_edge=True)
    random = np.random.default_rng(2)
    src, dst, train = harness.arrays(folder, "src", "dst", "train")
    count = min(workload.batches, 20)
    links = []
    for batch in range(count):
        edges = np.sort(random.integers(0, len(src), workload.batch_size))
        columns = {"src": src[edges].astype(np.int64), "dst": dst[edges].astype(np.int64)}
        links.append(BatchRequest(0, batch, np.arange(len(edges)), columns))
    anchors = [
        BatchRequest(0, batch, np.arange(ANCHORS), {SEED: train[batch * ANCHORS : (batch + 1) * ANCHORS]})
        for batch in range(min(count, len(train) // ANCHORS))
    ]

    def link_plan(**options: Any) -> LinkPlan:
        return LinkPlan(edge_type=HOMOGENEOUS_EDGE, hops=hops, **options)

    plans: dict[str, tuple[SamplerPlan, list[BatchRequest]]] = {
        "links": (link_plan(), links),
        "links, excluded": (link_plan(excluded=(HOMOGENEOUS_EDGE,)), links),
        "links, binary": (link_plan(negatives=Negatives(mode="binary")), links),
        "links, binary, strict": (link_plan(negatives=Negatives(mode="binary", strict=True)), links),
        "anchors": (
            ABLPPlan(supervision=(LIKES,), hops=hops, max_labels=LABELS, random_negatives=RANDOMS),
            anchors,
        ),
    }
    return {name: Case(graph, plan, requests, hops) for name, (plan, requests) in plans.items()}


def main() -> None:
    arguments = harness.parser(__doc__, rounds=5).parse_args()
    with harness.folder(arguments.data) as data:
        measure(cases(harness.workload_of(arguments), data), arguments)


def measure(made: dict[str, Case], arguments: argparse.Namespace) -> None:
    ratios: dict[str, list[float]] = {name: [] for name in made}
    costs: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(arguments.rounds):
        for name, case in made.items():
            own, nodes = case.seconds()
            ratios[name].append(own / nodes)
            costs[name].append(own / case.num_seeds * 1e6)
    load = harness.load()
    print(f"CPU of a batch, against a batch of nodes with the same seeds (load {load:.1f})")
    sizes = {name: case.frame_bytes / case.node_bytes for name, case in made.items()}
    for name, size in sizes.items():
        low, high = min(ratios[name]), max(ratios[name])
        median = statistics.median(ratios[name])
        print(
            f"  {name:24} {median:5.2f}  ({low:.2f} to {high:.2f}); "
            f"{statistics.median(costs[name]):6.2f} us a seed; "
            f"bytes {size:.3f}"
        )
    harness.write_json(arguments, {"load": load, "ratios": ratios, "us_per_seed": costs, "bytes": sizes})


if __name__ == "__main__":
    main()
