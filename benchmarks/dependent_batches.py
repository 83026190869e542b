"""Rows that batches share, by kind of draw: in windows, and in a cache that knows the next batches.

    python benchmarks/dependent_batches.py [--nodes 1000000] [--edges 40000000] [--batches 384]

Two made graphs, one uniform and one with a power law at both ends of its edges; batches of 128 seeds of a
shuffled epoch, fanout 10,10. Counts only: they are the same on every machine.
"""

from __future__ import annotations

import argparse
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from cache_oracle import rows_read
from torch_geometric.data import Data

from gigl_loader import DistDataset, DistNeighborLoader, KHopNeighborSamplerOptions, LaborSamplerOptions

_SHARES = (10, 20, 40)
"""Slots of a cache, in percent of the rows."""
_WINDOWS = (8, 16)
_FETCHED = 4
"""Batches whose rows are fetched into the cache together. It knows 64 more."""


def graph_of(kind: str, nodes: int, edges: int) -> Data:
    """Return the ``"uniform"`` or ``"power law"`` graph."""
    random = np.random.default_rng(0)
    if kind == "uniform":
        return Data(edge_index=torch.from_numpy(random.integers(0, nodes, (2, edges))), num_nodes=nodes)
    sums = np.cumsum((np.arange(nodes) + 10.0) ** -0.8)
    ends = [random.permutation(nodes)[np.searchsorted(sums, random.random(edges) * sums[-1])] for _ in "st"]
    return Data(edge_index=torch.from_numpy(np.stack(ends)), num_nodes=nodes)


def batches_of(dataset: DistDataset, options: Any, count: int) -> list[npt.NDArray[np.int64]]:
    """Return the nodes of the first batches of an epoch."""
    given: dict[str, Any] = {"batch_size": 128, "shuffle": True, "seed": 1, "num_workers": 0, "device": "cpu"}
    with DistNeighborLoader(dataset, [10, 10], with_edge=False, sampler_options=options, **given) as loader:
        return [batch.n_id.numpy() for batch in islice(loader, count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in {"nodes": 1_000_000, "edges": 40_000_000, "batches": 384}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    arguments = parser.parse_args()
    draws: dict[str, Any] = {"k hops": KHopNeighborSamplerOptions()}
    draws |= {f"LABOR, {m}": LaborSamplerOptions(batch_dependency=m) for m in (1, 8, 64)}
    for kind in ("uniform", "power law"):
        dataset = DistDataset.from_pyg(graph_of(kind, arguments.nodes, arguments.edges))
        for name, options in draws.items():
            batches = batches_of(dataset, options, arguments.batches)
            total = sum(map(len, batches))
            told = [f"{kind:9}  {name:10} {total / len(batches):8,.0f} rows a batch;"]
            for window in _WINDOWS:
                parts = [batches[i : i + window] for i in range(0, len(batches), window)]
                distinct = sum(len(np.unique(np.concatenate(part))) for part in parts)
                told.append(f"distinct of {window}: {distinct / total:.2f}")
            warm = 2 * len(batches) // 3 // _FETCHED  # Windows until most rows were wanted once.
            wanted = sum(map(len, batches[warm * _FETCHED :]))
            for share in _SHARES:
                slots = arguments.nodes * share // 100
                read = rows_read(batches, window=_FETCHED, num_slots=slots, ahead=64)
                told.append(f"read with a cache of {share} %: {sum(map(len, read[warm:])) / wanted:.2f}")
            print(*told, flush=True)


if __name__ == "__main__":
    main()
