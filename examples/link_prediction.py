"""Predict links: who knows whom, against the guess that everybody knows whoever is popular.

python examples/link_prediction.py [EPOCHS]
"""

import sys

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from gigl_loader import DistDataset, DistLinkNeighborLoader
from gigl_loader.splits import split_edges

CANDIDATES = 20
EDGE = ("node", "to", "node")


def communities(count: int = 2_000, classes: int = 20) -> Data:
    """Return an undirected graph whose nodes know mostly nodes of their own class, with noisy features."""
    torch.manual_seed(0)
    source, target = torch.randint(count, (2, 6 * count))
    same = torch.rand(6 * count) < 0.8
    target = torch.where(same, target - target % classes + source % classes, target).clamp(max=count - 1)
    x = torch.randn(count, 32) + 0.7 * torch.eye(32)[torch.arange(count) % classes]
    return Data(x=x, edge_index=torch.stack([source, target]))


@torch.no_grad()
def hits_at_1(score, loader: DistLinkNeighborLoader) -> float:
    """Return how often the true destination has a higher score than all the others."""
    hits = links = 0
    for batch in loader:
        positive, negative = score(batch)
        hits += int((positive > negative.max(dim=1).values).sum())
        links += len(positive)
    return hits / links


def main(epochs: int) -> float:
    """Train, print a line per epoch and return hits@1 on links that the graph does not have."""
    data = communities()
    splits = split_edges(data.edge_index, [0.9, 0.0, 0.1], undirected=True)
    known, hidden = data.edge_index[:, splits["train"]], data.edge_index[:, splits["test"]]
    both_ways = torch.cat([known, known.flip(0)], dim=1)
    dataset = DistDataset.from_pyg(Data(x=data.x, edge_index=both_ways))

    model = GraphSAGE(in_channels=32, hidden_channels=64, num_layers=2, out_channels=32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    popularity = torch.bincount(both_ways[1], minlength=data.num_nodes)

    def learnt(batch: Data) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.nn.functional.normalize(model(batch.x, batch.edge_index))
        source = h[batch.src_index]
        return (source * h[batch.dst_pos_index]).sum(-1), torch.einsum(
            "nd,nad->na", source, h[batch.dst_neg_index]
        )

    def popular(batch: Data) -> tuple[torch.Tensor, torch.Tensor]:
        known_by = popularity[batch.n_id].float()
        return known_by[batch.dst_pos_index], known_by[batch.dst_neg_index]

    train = DistLinkNeighborLoader(
        dataset,
        [10, 5],
        known,
        neg_sampling={"mode": "triplet", "amount": 5},
        exclude_targets=True,  # The model must not see the links that it is to predict.
        reverse_edge_types={EDGE: EDGE},
        batch_size=512,
        shuffle=True,
        seed=1,
    )
    test = DistLinkNeighborLoader(
        dataset,
        [10, 5],
        hidden,
        neg_sampling={"mode": "triplet", "amount": CANDIDATES, "strict": True},
        batch_size=256,
        seed=1,
        num_workers=0,
    )
    with train, test:
        print(f"popularity: hits@1 {hits_at_1(popular, test):.1%} of {CANDIDATES + 1} candidates")
        test.set_epoch(0)
        found = 0.0
        for epoch in range(epochs):
            for batch in train:
                positive, negative = learnt(batch)
                scores = 10 * torch.cat([positive[:, None], negative], dim=1)
                loss = torch.nn.functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.int64))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            test.set_epoch(0)  # The same candidates each time.
            found = hits_at_1(learnt, test)
            print(f"epoch {epoch}: loss {loss:.3f}, hits@1 {found:.1%}")
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
