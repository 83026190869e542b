"""GLT's side of ``glt_links.py``: one case, measured in a process of its own, in GLT's environment."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import graphlearn_torch as glt  # type: ignore[import-not-found]  # It is in GLT's environment only.
import numpy as np
import torch
from peer_case import Case, answer, input_links, measure

CPU = torch.device("cpu")
CHANNEL = "2GB"
"""Room for finished batches. GLT's default, 64 MB a worker, is less than a batch of the full workload."""


def measure_glt(case: Case) -> dict[str, Any]:
    if case.threads is not None:
        torch.set_num_threads(case.threads)
    make = distributed_loader if case.num_workers else local_loader
    versions = {"graphlearn-torch": version("graphlearn-torch"), "torch": torch.__version__}
    return {"figures": measure(case, lambda: make(case)), "versions": versions}


def local_loader(case: Case) -> AbstractContextManager[Any]:
    dataset = fill(glt.data.Dataset(edge_dir="in"), case)
    options = {"device": CPU, "seed": case.random_seed, **link_options(case)}
    return nullcontext(glt.loader.LinkNeighborLoader(dataset, list(case.fanout), **options))


@contextmanager
def distributed_loader(case: Case) -> Iterator[Any]:
    dataset = fill(glt.distributed.DistDataset(num_partitions=1, partition_idx=0, edge_dir="in"), case)
    num_nodes, num_edges = (len(array(case, name)) for name in ("label", "src"))
    dataset.node_pb = glt.partition.GLTPartitionBook(torch.zeros(num_nodes, dtype=torch.long))
    dataset.edge_pb = glt.partition.GLTPartitionBook(torch.zeros(num_edges, dtype=torch.long))
    dataset._node_feat_pb = dataset.node_pb  # It has no setter; without it workers find no features.
    glt.distributed.init_worker_group(world_size=1, rank=0, group_name="links")
    workers = glt.distributed.MpDistSamplingWorkerOptions(
        num_workers=case.num_workers,
        worker_devices=[CPU] * case.num_workers,
        master_addr="localhost",
        master_port=free_port(),
        channel_size=CHANNEL,
    )
    options = {"edge_dir": "in", "collect_features": True, "random_seed": case.random_seed}
    loader = glt.distributed.DistLinkNeighborLoader(
        dataset, list(case.fanout), to_device=CPU, worker_options=workers, **options, **link_options(case)
    )
    try:
        yield loader
    finally:
        loader.shutdown()


def fill(dataset: Any, case: Case) -> Any:
    """Give a dataset of GLT the graph and its features. Labels are left out: batches of links have none."""
    edges = torch.from_numpy(np.stack([array(case, "src"), array(case, "dst")]))
    edge_ids = torch.arange(edges.shape[1])
    dataset.init_graph(edge_index=edges, edge_ids=edge_ids, layout="COO", graph_mode="CPU")
    features = torch.from_numpy(np.load(Path(case.data) / "feat.npy"))
    dataset.init_node_features(features, id2idx=torch.arange(len(features)), split_ratio=0, with_gpu=False)
    return dataset


def link_options(case: Case) -> dict[str, Any]:
    return {
        "edge_label_index": input_links(case),
        "neg_sampling": glt.sampler.NegativeSampling("binary", 1),
        "batch_size": case.batch_size,
        "shuffle": False,
        "drop_last": True,
        "with_edge": True,
    }


def array(case: Case, name: str) -> np.ndarray[Any, Any]:
    mapped: np.ndarray[Any, Any] = np.load(Path(case.data) / f"{name}.npy", mmap_mode="r")
    return mapped


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    torch.multiprocessing.set_start_method("spawn")  # GLT's locks must be made for the workers it spawns.
    answer(measure_glt)
