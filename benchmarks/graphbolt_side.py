"""GraphBolt's side of ``graphbolt_peer.py``: one case, in a process of its own, in DGL's environment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dgl.graphbolt as gb  # type: ignore[import-not-found]  # It is in DGL's environment only.
import numpy as np
import torch
from peer_case import Case, Counted, answer, input_nodes, measure


def measure_graphbolt(case: Case) -> dict[str, Any]:
    if case.threads is not None:
        torch.set_num_threads(case.threads)
    versions = {"dgl": version("dgl"), "torch": torch.__version__}
    return {"figures": measure(case, lambda: make(case)), "versions": versions}


def make(case: Case) -> AbstractContextManager[Iterable[Any]]:
    data = Path(case.data)
    features = torch.from_numpy(np.load(data / "feat.npy"))
    labels = torch.from_numpy(np.load(data / "label.npy"))
    graph = csc_graph(np.load(data / "src.npy"), np.load(data / "dst.npy"), len(features))
    seeds = input_nodes(case)
    items = gb.ItemSet((seeds.to(torch.int32), labels[seeds]), names=("seed_nodes", "labels"))
    pipe = gb.ItemSampler(items, batch_size=case.batch_size, shuffle=False, drop_last=True)
    # The last fanout is that of the seeds.
    pipe = pipe.sample_neighbor(graph, list(reversed(case.fanout)))
    if not case.sampler_only:
        store = gb.BasicFeatureStore({("node", None, "feat"): gb.TorchBasedFeature(features)})
        pipe = pipe.fetch_feature(store, node_feature_keys=["feat"])
    return nullcontext(Batches(gb.DataLoader(pipe, num_workers=case.num_workers), case))


def csc_graph(sources: np.ndarray[Any, Any], targets: np.ndarray[Any, Any], num_nodes: int) -> Any:
    """Return the graph with the ids of its edges, both of 32 bits, which GraphBolt allows."""
    order = np.argsort(targets, kind="stable")
    ends = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(targets, minlength=num_nodes), out=ends[1:])
    return gb.fused_csc_sampling_graph(
        torch.from_numpy(ends),
        torch.from_numpy(sources[order].astype(np.int32)),
        edge_attributes={gb.ORIGINAL_EDGE_ID: torch.from_numpy(order.astype(np.int32))},
    )


class Batches:
    """Batches of a loader, counted as those of PyG are: all layers' edges together."""

    def __init__(self, loader: Iterable[Any], case: Case) -> None:
        self._loader = loader
        self._with_rows = not case.sampler_only

    def __iter__(self) -> Iterator[Counted]:
        for batch in self._loader:
            layers = batch.sampled_subgraphs
            edges = sum(len(layer.original_edge_ids) for layer in layers)
            nodes = batch.input_nodes
            if self._with_rows and len(batch.node_features["feat"]) != len(nodes):
                raise RuntimeError("a batch without the rows of its nodes")
            yield Counted(len(batch.seed_nodes), torch.empty(2, edges, device="meta"), len(nodes))


if __name__ == "__main__":
    answer(measure_graphbolt)
