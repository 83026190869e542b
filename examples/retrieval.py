"""Retrieve items for users: two kinds of labels, in-batch and random negatives, recall against popularity.

python examples/retrieval.py shop/                                 makes shop/ if there is none
torchrun --nproc-per-node 2 examples/retrieval.py shop/            any number of ranks
gigl-loader local-cluster shop/ -- python examples/retrieval.py    storage servers hold shop/

Users view items: views are the edges. Clicks and purchases are labels, which no batch has as edges. Later
purchases are predicted: all items are ranked for a user, and the best 30 count.
"""

import argparse
import os
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv

from gigl_client import RemoteDistDataset
from gigl_loader import DistABLPLoader, DistDataset, DistNeighborLoader
from gigl_loader.partition import build_graph, tables_from_pyg

USERS, ITEMS, GROUPS = 600, 300, 12
VIEWS, VIEWED_BY = ("user", "views", "item"), ("item", "viewed_by", "user")
CLICKS, BUYS, LATER = ("user", "clicks", "item"), ("user", "buys", "item"), ("user", "buys_later", "item")


def pairs(count: int, share: float) -> torch.Tensor:
    """Return users and items [2, count], of which a share is of one group. Some items are popular."""
    user, item = torch.randint(USERS, (count,)), (ITEMS * torch.rand(count) ** 2).long()
    alike = torch.rand(count) < share
    return torch.stack([user, torch.where(alike, item // GROUPS * GROUPS + user % GROUPS, item)])


def make_graph(path: Path) -> None:
    """Write a graph of views, with label sets of clicks, purchases and later purchases."""
    torch.manual_seed(0)
    views = pairs(6_000, 0.6)
    labels = {CLICKS: pairs(2_000, 0.7), BUYS: pairs(2_000, 0.9), LATER: pairs(600, 0.9)}
    data = HeteroData()
    data["user"].x = torch.randn(USERS, 16)
    data["item"].x = torch.randn(ITEMS, 16) + torch.eye(16)[torch.arange(ITEMS) % GROUPS]
    data["item"].popularity = torch.bincount(labels[BUYS][1], minlength=ITEMS).float()
    data[VIEWS].edge_index, data[VIEWED_BY].edge_index = views, views.flip(0)
    build_graph(tables_from_pyg(data, labels=labels), path, num_partitions=2)


def open_dataset(graph: Path) -> DistDataset | RemoteDistDataset:
    """Return the graph: the only place that knows where it is."""
    if "GIGL_STORE" in os.environ:
        return RemoteDistDataset.connect(os.environ["GIGL_STORE"])
    if not graph.exists() and int(os.environ.get("RANK", "0")) == 0:
        make_graph(graph)
    if dist.is_initialized():
        dist.barrier()  # until the first rank has made it
    return DistDataset.open(graph)


class Model(torch.nn.Module):
    """Two layers of GraphSAGE for both types of nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(
            HeteroConv({each: SAGEConv((width, width), 32) for each in (VIEWS, VIEWED_BY)})
            for width in (16, 32)
        )

    def forward(self, batch: HeteroData) -> dict[str, torch.Tensor]:
        """Return the embeddings of the nodes of a batch by type, [nodes, 32], each of length one."""
        first, second = self.convs
        hidden = {kind: x.relu() for kind, x in first(batch.x_dict, batch.edge_index_dict).items()}
        return {kind: normalize(x) for kind, x in second(hidden, batch.edge_index_dict).items()}


def loss_of(h: dict[str, torch.Tensor], batch: HeteroData) -> torch.Tensor:
    """Return the loss of telling each label from the other labels of the batch and from random items."""
    loss = h["user"].new_zeros(())
    for kind, weight in ((CLICKS, 0.3), (BUYS, 1.0)):
        users, items = batch.y_positive[kind]
        others = torch.cat([items, batch.random_negative_index[kind]])
        scores = h["user"][users] @ h["item"][others].t() / 0.2
        loss = loss + weight * cross_entropy(scores, torch.arange(len(users), device=scores.device))
    return loss


@torch.no_grad()
def evaluate(model: Model, items: DistNeighborLoader, later: DistABLPLoader) -> tuple[float, float]:
    """Return recall@30 of later purchases, over all ranks: of the model, and of popularity."""
    index = torch.zeros(ITEMS, 33, device=items.device)  # embeddings and popularity of the items, by id
    for batch in items:
        found, item = model(batch)["item"], batch["item"]
        index[item.batch] = torch.cat([found, item.popularity[:, None]], dim=1)[item.seed_index]
    if dist.is_initialized():
        dist.all_reduce(index)  # every rank has its share of the items
    popular = index[:, 32].topk(30).indices
    sums = torch.zeros(3, device=index.device)
    for batch in later:
        users, bought = batch.y_positive
        wanted = batch["item"].n_id[bought][:, None]
        best = (model(batch)["user"][users] @ index[:, :32].t()).topk(30).indices
        sums += torch.stack(
            [(best == wanted).sum(), (popular == wanted).sum(), wanted.new_tensor(len(wanted))]
        )
    if dist.is_initialized():
        dist.all_reduce(sums)
    return float(sums[0] / sums[2]), float(sums[1] / sums[2])


def train(dataset: DistDataset | RemoteDistDataset, epochs: int, batch_size: int) -> None:
    torch.manual_seed(0)  # the same first weights on every rank
    run = {"num_neighbors": [10, 10], "batch_size": batch_size, "seed": 1}
    # Who viewed an item is known before somebody buys it: views are no purchases the other way round.
    anchors = partial(DistABLPLoader, dataset, input_nodes=("user", None), reverse_edge_types={}, **run)
    labelled = anchors(
        supervision_edge_type=[CLICKS, BUYS], max_labels_per_anchor=3, num_random_negatives=64, shuffle=True
    )
    later = anchors(supervision_edge_type=LATER, even_batches=False)
    items = DistNeighborLoader(dataset, input_nodes=("item", None), even_batches=False, **run)
    with labelled, later, items:
        model = Model().to(labelled.device)
        ranks = DistributedDataParallel(model) if dist.is_initialized() else model
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        for epoch in range(epochs):
            for batch in labelled:
                loss = loss_of(ranks(batch), batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            recall, guess = evaluate(model, items, later)
            if not dist.is_initialized() or dist.get_rank() == 0:
                print(f"epoch {epoch}: recall@30 {recall:.1%} (by popularity {guess:.1%})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Retrieval of items for users")
    parser.add_argument("graph", type=Path, nargs="?", default="shop", help="made if there is none")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=100, help="users per batch of each rank")
    options = parser.parse_args()
    if "RANK" in os.environ:  # torchrun sets it
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    with open_dataset(options.graph) as dataset:
        train(dataset, options.epochs, options.batch_size)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
