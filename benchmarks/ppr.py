"""Seeds a second of personalised PageRank, beside sampled neighbourhoods.

    python benchmarks/ppr.py --data FOLDER [--rounds 5] [--eps 1e-4] [--json FILE]

The common workload (1 M nodes, 30 M edges), one thread, no features, batches of 1,024 seeds with 50
neighbours each. Cases take turns: pushes over the whole graph in one native pass; round by round, as over
partitions elsewhere, but with all of them here; and k-hop neighbourhoods of fanout 15, 10, 5. Figures are
medians over the rounds, of CPU seconds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import harness
import numpy as np

from gigl_loader.bench.sampling import BatchWriter
from gigl_loader.bench.workload import Workload, prepare
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from gigl_loader.sampling.partitioned import PartitionedStore
from gigl_loader.sampling.plan import BatchPlan, SamplerArguments
from gigl_loader.sampling.plans.neighbor import NeighborPlan
from gigl_loader.sampling.plans.ppr import PPRSamplerOptions
from gigl_loader.sampling.request import SEED, BatchRequest

BATCHES = 8


def seeds_per_second(writer: BatchWriter, requests: list[BatchRequest]) -> float:
    """Return the seeds of these batches over their CPU seconds."""
    began = time.thread_time()
    for request in requests:
        writer.write(request)
    return sum(map(len, requests)) / (time.thread_time() - began)


def cases(graph: Graph, workload: Workload, options: PPRSamplerOptions) -> dict[str, BatchWriter]:
    """Return a sampler of each kind."""
    ppr = BatchPlan(sampler=options.plan(graph.schema, HOMOGENEOUS_NODE, SamplerArguments()), run_seed=1)
    hops = NeighborPlan(seed_type=HOMOGENEOUS_NODE, num_neighbors={HOMOGENEOUS_EDGE: workload.fanout})
    return {
        "one pass": BatchWriter(ppr.open(graph)),
        "round by round": BatchWriter(ppr.open(graph, PartitionedStore.whole(graph))),
        "k hops": BatchWriter(BatchPlan(sampler=hops, run_seed=1).open(graph)),
    }


def main() -> None:
    parser = harness.parser(__doc__, rounds=5)
    parser.add_argument("--alpha", type=float, default=0.5)
    parser.add_argument("--eps", type=float, default=1e-4)
    arguments = parser.parse_args()
    with harness.folder(arguments.data) as data:
        measure(harness.workload_of(arguments), data, arguments)


def measure(workload: Workload, data: Path, arguments: argparse.Namespace) -> None:
    graph = Graph.open(prepare(workload, data), verify="none")
    (seeds,) = harness.arrays(data, "train")
    size = min(workload.batch_size, len(seeds) // 2)
    requests = [
        BatchRequest(0, batch, np.arange(size), {SEED: np.roll(seeds, -batch * size)[:size]})
        for batch in range(BATCHES)
    ]
    samplers = cases(graph, workload, PPRSamplerOptions(arguments.alpha, arguments.eps))
    for sampler in samplers.values():
        seeds_per_second(sampler, requests[:2])  # Warms up.
    rounds = [
        {name: seeds_per_second(sampler, requests) for name, sampler in samplers.items()}
        for _ in range(arguments.rounds)
    ]
    load = harness.load()
    figures = {name: statistics.median(each[name] for each in rounds) for name in samplers}
    print(f"seeds per CPU second (alpha {arguments.alpha}, eps {arguments.eps}; load {load:.1f})")
    for name, found in figures.items():
        print(f"  {name:15} {found:9,.0f}   {found / figures['k hops']:5.2f} of k hops")
    harness.write_json(arguments, {"load": load, "seeds_per_cpu_second": figures})


if __name__ == "__main__":
    main()
