"""Cost of quantised features beside float32, from a graph store of two servers over the network.

    python benchmarks/quantised.py --data FOLDER [--rounds 3] [--json FILE]

The common workload (1 M nodes, 30 M edges, 128 features, fanout 15, 10, 5) in two partitions, edge ids. Two
servers are processes of this machine, and so is the trainer, which discards the batches. Every kind delivers
the same batches in turns; figures are medians over rounds. Batches have float32 values in each case.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import harness

from gigl_loader.bench.rounds import Case, run_rounds
from gigl_loader.bench.store import Setup, store_case
from gigl_loader.bench.workload import Workload, graph_tables, prepare, training_seeds
from gigl_loader.partition import build_graph

KINDS = ("float32", "int8", "int8:per-row", "uint4")
SETUP = Setup(servers=2, workers=1, transport="network")
RATIOS = ("seeds_per_s", "received_mb", "cpu_s_per_kseed")


def graph_of(workload: Workload, folder: Path, kind: str) -> Path:
    """Return the graph of the workload whose features are stored so. It is built where it is missing."""
    whole = prepare(workload, folder, partitions=2)
    path = folder / f"graph-2-{kind.replace(':', '-')}"
    if kind == "float32":
        return whole
    if not path.exists():
        arrays = harness.arrays(folder, "src", "dst", "feat", "label", "train")
        build_graph(graph_tables(*arrays, quantize=kind), path, num_partitions=2, assigner="hash")
    return path


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), help="float32 comes first")
    arguments = parser.parse_args()
    with harness.folder(arguments.data) as data:
        measure(harness.workload_of(arguments), data, arguments)


def measure(workload: Workload, data: Path, arguments: argparse.Namespace) -> None:
    graphs = {kind: graph_of(workload, data, kind) for kind in arguments.kinds}
    seeds = training_seeds(workload, data)

    def case(kind: str, path: Path) -> Case:
        measure = store_case(path, seeds, workload, SETUP, epochs=1)
        return lambda: {kind: measure()[str(SETUP)]}

    measured = run_rounds({kind: case(kind, path) for kind, path in graphs.items()}, rounds=arguments.rounds)
    samples = {kind: measured.subjects[kind].samples for kind in graphs}
    found = {
        kind: {
            **{name: statistics.median(values) for name, values in figures.items()},
            **{
                f"{name}_over_float32": statistics.median(
                    value / whole
                    for value, whole in zip(figures[name], samples["float32"][name], strict=True)
                )
                for name in RATIOS
            },
        }
        for kind, figures in samples.items()
    }
    busy = measured.others_busy()
    print(f"a graph store of 2 servers, over float32 features (other processes: {busy:.2f} cores)")
    for kind, of in found.items():
        print(
            f"  {kind:14} seeds/s {of['seeds_per_s_over_float32']:5.2f}  ({of['seeds_per_s']:,.0f});  "
            f"bytes {of['received_mb_over_float32']:.3f}  ({of['received_mb']:.1f} MB a batch);  "
            f"CPU {of['cpu_s_per_kseed_over_float32']:.2f}"
        )
    harness.write_json(arguments, {"others_busy": busy, "figures": found})


if __name__ == "__main__":
    main()
