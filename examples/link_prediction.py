"""Predict links: will package A depend on package B? Compared with a guess by popularity.

python examples/link_prediction.py graph/                                 makes graph/ if there is none
torchrun --nproc-per-node 2 examples/link_prediction.py graph/            any number of ranks
gigl-loader local-cluster graph/ -- python examples/link_prediction.py    storage servers hold graph/

The packages are from Debian where apt has lists of them, else made up. A part of the dependencies is held out
when the graph is built. Each of them is then ranked among 50 packages on which A does not depend.
Debian's packages take some minutes on two cores.
"""

import argparse
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistLinkNeighborLoader
from gigl_loader.demo.datasets import APT_LISTS, debian_packages, package_lists
from gigl_loader.graph.schema import EdgeSplits
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.splits import split_edges

DEPENDS, REVERSE = ("package", "depends", "package"), ("package", "rev_depends", "package")
SPLITS = {"train": 0.2, "test": 0.01}  # Other edges are messages, too, but are not predicted.


def made_up_packages(count: int = 2_000, topics: int = 20) -> HeteroData:
    """Return packages that depend on popular packages of their own topic, with noisy features."""
    torch.manual_seed(0)
    source, popular = torch.randint(count, (10 * count,)), count * torch.rand(10 * count) ** 3
    target = popular.long() // topics * topics + source % topics
    data = HeteroData()
    data["package"].x = torch.randn(count, 32) + 2 * torch.eye(32)[torch.arange(count) % topics]
    data[DEPENDS].edge_index = torch.stack([source, target])
    data[REVERSE].edge_index = torch.stack([target, source])
    return data


def make_graph(path: Path, apt_lists: Path) -> None:
    """Write the graph. An edge and its reverse are in one split. Edges of test are in no batch."""
    data = debian_packages(apt_lists)[0] if package_lists(apt_lists) else made_up_packages()
    edges, count = data[DEPENDS].edge_index, data["package"].num_nodes
    hidden = edges[:, split_edges(edges, SPLITS)["test"]]
    popularity = torch.bincount(edges[1], minlength=count) - torch.bincount(hidden[1], minlength=count)
    data["package"].popularity = popularity.float()
    rules = {DEPENDS: EdgeSplits(fractions=SPLITS), REVERSE: EdgeSplits(fractions=SPLITS, hashed="dst,src")}
    tables = replace(tables_from_pyg(data), splits=rules, message_edges=("train",))
    build_graph(tables, path, num_partitions=2)


def open_dataset(graph: Path, apt_lists: Path) -> DistDataset | RemoteDistDataset:
    """Return the graph: the only place that knows where it is."""
    if "GIGL_STORE" in os.environ:
        return RemoteDistDataset.connect(os.environ["GIGL_STORE"])
    if not graph.exists() and int(os.environ.get("RANK", "0")) == 0:
        make_graph(graph, apt_lists)
    if dist.is_initialized():
        dist.barrier()  # until the first rank has made it
    return DistDataset.open(graph)


class Model(torch.nn.Module):
    """Two layers of GraphSAGE. The score of a pair is a dot product: what A needs, and what B offers."""

    def __init__(self, width: int, edge_types: list[tuple[str, str, str]]) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(width, 64)
        layers = [HeteroConv({each: SAGEConv(64, 64) for each in edge_types}) for _ in range(2)]
        self.convs = torch.nn.ModuleList(layers)
        self.needs, self.offers = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, batch: HeteroData) -> torch.Tensor:
        """Return scores [links, 1 + negatives], of the true destinations in column 0."""
        x, edges = {"package": self.embed(batch["package"].x).relu()}, batch.edge_index_dict
        for layer, conv in enumerate(self.convs):
            x, edges, _ = trim_to_layer(layer, batch.num_sampled_nodes, batch.num_sampled_edges, x, edges)
            x = {"package": conv(x, edges)["package"].relu()}
        needs = self.needs(x["package"])[batch["package"].src_index] / 8  # the root of 64
        return torch.einsum("md,mad->ma", needs, self.offers(x["package"])[candidates(batch)])


def candidates(batch: HeteroData) -> torch.Tensor:
    """Return local packages [links, 1 + negatives], the true destinations in column 0."""
    return torch.cat([batch["package"].dst_pos_index[:, None], batch["package"].dst_neg_index], dim=1)


def measures(scores: torch.Tensor) -> torch.Tensor:
    """Return sums over links: of 1 / rank, of ranks up to 10, and of 1. Equal scores share a rank."""
    true, others = scores[:, :1], scores[:, 1:]
    rank = 1 + (others > true).sum(1) + 0.5 * (others == true).sum(1)
    return torch.stack([(1 / rank).sum(), (rank <= 10).sum(), rank.new_tensor(len(rank))])


@torch.no_grad()
def evaluate(model: Model, test: DistLinkNeighborLoader) -> list[list[float]]:
    """Return MRR and hits@10 over all ranks: of the model, and of popularity."""
    sums = torch.zeros(2, 3, device=test.device)
    test.set_epoch(0)  # the same candidates each time
    for batch in test:
        popular = batch["package"].popularity[candidates(batch)]
        sums += torch.stack([measures(model(batch)), measures(popular)])
    if dist.is_initialized():
        dist.all_reduce(sums)
    return (sums[:, :2] / sums[:, 2:]).tolist()


def train(dataset: DistDataset | RemoteDistDataset, epochs: int, batch_size: int) -> None:
    torch.manual_seed(0)  # the same first weights on every rank
    loader = partial(DistLinkNeighborLoader, dataset, [4, 2], batch_size=batch_size, seed=1)
    links = loader(
        (DEPENDS, "train"),
        neg_sampling={"mode": "triplet", "amount": 4},
        exclude_targets=True,  # The model must not see the links that it is to predict.
        reverse_edge_types={DEPENDS: REVERSE},
        shuffle=True,
    )
    strict = {"mode": "triplet", "amount": 50, "strict": True}  # No candidate is an edge, held out or not.
    test = loader((DEPENDS, "test"), neg_sampling=strict, even_batches=False)
    with links, test:
        model = Model(dataset.schema.nodes["package"].columns["x"].shape[0], dataset.edge_types)
        model = model.to(links.device)
        ranks = DistributedDataParallel(model) if dist.is_initialized() else model
        optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
        for epoch in range(epochs):
            for batch in links:
                scores = ranks(batch)
                loss = cross_entropy(scores, scores.new_zeros(len(scores), dtype=torch.int64))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            (mrr, hits), (guess, guess_hits) = evaluate(model, test)
            if not dist.is_initialized() or dist.get_rank() == 0:
                print(f"epoch {epoch}: MRR {mrr:.3f} (by popularity {guess:.3f}),", end=" ")
                print(f"hits@10 {hits:.1%} ({guess_hits:.1%})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Link prediction on a graph of packages")
    parser.add_argument("graph", type=Path, nargs="?", default="graph", help="made if there is none")
    parser.add_argument("--apt-lists", type=Path, default=APT_LISTS, help="apt's lists of packages")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=1024, help="links per batch of each rank")
    options = parser.parse_args()
    if "RANK" in os.environ:  # torchrun sets it
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    with open_dataset(options.graph, options.apt_lists) as dataset:
        train(dataset, options.epochs, options.batch_size)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
