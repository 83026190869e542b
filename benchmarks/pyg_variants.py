"""Draws beside the draws of PyG: weighted, disjoint, in time; per CPU second of one thread, with edge ids.

    python benchmarks/pyg_variants.py --data FOLDER [--rounds 5] [--json FILE]

Same graph, weights, times and batches as ``variants.py``, nodes and edges only. PyG's side is its
``NeighborSampler`` in the environment of ``pyg_peer.sh setup``, which needs pyg-lib: torch-sparse has no such
draws. Its lists are ordered by time before anything is measured, as ours are. Both sides take turns, each
time in a new process; figures are medians.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import made_columns
import numpy as np

KINDS = ("uniform", "weighted", "disjoint", "in time", "the last in time")
WARM_UP = 2
FANOUT = (15, 10, 5)
BATCH_SIZE = {False: 1024, True: 128}
"""Of the whole workload and of the quick one."""


def measure_ours(data: Path, *, quick: bool) -> dict[str, float]:
    """Return edges per CPU second of each kind."""
    from variants import KINDS as OURS
    from variants import Case, indexed_graph, requests_of

    from gigl_loader.bench.workload import FULL, QUICK
    from gigl_loader.graph.graph import Graph

    workload = QUICK if quick else FULL
    graph, requests = Graph.open(indexed_graph(workload, data), verify="none"), requests_of(workload, data)
    found = {}
    for kind in KINDS:
        case = Case(graph, workload.fanout, OURS[kind])
        case.seconds_per_edge(requests[:WARM_UP])
        found[kind] = 1 / case.seconds_per_edge(requests)
    return found


def measure_pyg(data: Path, *, quick: bool) -> dict[str, float]:
    """Return the same of PyG's sampler. Runs in PyG's environment, without gigl_loader."""
    warnings.filterwarnings("ignore")
    import torch
    from torch_geometric.data import Data
    from torch_geometric.sampler import NeighborSampler, NodeSamplerInput

    torch.set_num_threads(1)
    src, dst = (np.load(data / f"{name}.npy") for name in ("src", "dst"))
    graph = Data(
        edge_index=torch.from_numpy(np.stack([src, dst])),
        w=torch.from_numpy(made_columns.weights(len(src))),
        t=torch.from_numpy(made_columns.times(len(src))),
        num_nodes=int(max(src.max(), dst.max())) + 1,
    )
    options: dict[str, dict[str, Any]] = {
        "uniform": {},
        "weighted": {"weight_attr": "w"},
        "disjoint": {"disjoint": True},
        "in time": {"time_attr": "t"},
        "the last in time": {"time_attr": "t", "temporal_strategy": "last"},
    }
    batches = [
        NodeSamplerInput(input_id=None, node=torch.from_numpy(seeds), time=torch.from_numpy(times))
        for seeds, times in made_columns.batches(data, BATCH_SIZE[quick])
    ]
    found = {}
    for kind in KINDS:
        sampler = NeighborSampler(graph, list(FANOUT), **options[kind])
        if "time" not in kind:
            asked = [NodeSamplerInput(input_id=None, node=batch.node) for batch in batches]
        else:
            asked = batches
        for batch in asked[:WARM_UP]:
            sampler.sample_from_nodes(batch)
        edges, began = 0, time.thread_time()
        for batch in asked:
            out = sampler.sample_from_nodes(batch)
            edges += len(out.edge)
        found[kind] = edges / (time.thread_time() - began)
    return found


def main() -> None:
    if sys.argv[1:2] == ["--side"]:
        side, data, quick = sys.argv[2], Path(sys.argv[3]), sys.argv[4] == "quick"
        print(json.dumps((measure_pyg if side == "pyg" else measure_ours)(data, quick=quick)))
        return
    import harness

    options = harness.parser(__doc__, rounds=5).parse_args()
    if options.data is None:
        raise SystemExit("--data is needed: both sides read it")
    home = Path(os.environ.get("PYG_HOME", Path.home() / ".cache/gigl_loader_bench/pyg"))
    pythons = {"ours": sys.executable, "pyg": str(home / "bin" / "python")}
    size = "quick" if options.quick else "full"
    rounds: list[dict[str, dict[str, float]]] = []
    for _ in range(options.rounds):
        rounds.append({})
        for side, python in pythons.items():
            command = [python, __file__, "--side", side, str(options.data), size]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            rounds[-1][side] = json.loads(done.stdout.splitlines()[-1])
    load = harness.load()
    figures = {
        kind: {
            **{side: statistics.median(each[side][kind] for each in rounds) for side in pythons},
            "ratio": statistics.median(each["ours"][kind] / each["pyg"][kind] for each in rounds),
        }
        for kind in KINDS
    }
    print(f"edges per CPU second: ours, PyG's, ratio (load {load:.1f})")
    for kind, found in figures.items():
        print(f"  {kind:18} {found['ours'] / 1e6:6.1f} M  {found['pyg'] / 1e6:6.1f} M  {found['ratio']:5.2f}")
    harness.write_json(options, {"load": load, "figures": figures})


if __name__ == "__main__":
    main()
