"""Retrieve items for users: two kinds of labels, in-batch and random negatives, recall against popularity.

python examples/retrieval.py [EPOCHS]
"""

import sys

import torch
from torch_geometric.data import HeteroData
from torch_geometric.nn import SAGEConv, to_hetero

from gigl_loader import DistABLPLoader, DistDataset

USERS, ITEMS, GROUPS = 600, 300, 12
CLICKS, BUYS = ("user", "clicks", "item"), ("user", "buys", "item")
VIEWS = ("user", "views", "item")


def shop() -> tuple[HeteroData, dict, torch.Tensor]:
    """Return a graph of views, label sets of clicks and purchases, and purchases that are held out [2, P]."""
    torch.manual_seed(0)

    def pairs(count: int, share: float) -> torch.Tensor:
        user, item = torch.randint(USERS, (count,)), torch.randint(ITEMS, (count,))
        alike = torch.rand(count) < share
        return torch.stack([user, torch.where(alike, item - item % GROUPS + user % GROUPS, item)])

    data = HeteroData()
    data["user"].x = torch.randn(USERS, 16)
    data["item"].x = torch.randn(ITEMS, 16) + torch.eye(16)[torch.arange(ITEMS) % GROUPS]
    views = pairs(6_000, 0.6)
    data[VIEWS].edge_index = views
    data["item", "rev_views", "user"].edge_index = views.flip(0)
    return data, {CLICKS: pairs(2_000, 0.7), BUYS: pairs(2_000, 0.9)}, pairs(600, 0.9)


class SAGE(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv((-1, -1), 32), SAGEConv((-1, -1), 32)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


def ranking_loss(anchors: torch.Tensor, labels: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return the loss of telling each label from the other labels of the batch and random items."""
    scores = anchors @ torch.cat([labels, others]).t() / 0.2
    return torch.nn.functional.cross_entropy(scores, torch.arange(len(anchors)))


@torch.no_grad()
def recall_at_30(scores: torch.Tensor, held_out: torch.Tensor) -> float:
    """Return the share of the held-out pairs whose item is among the user's 30 best."""
    best = scores.topk(30).indices
    return float((best[held_out[0]] == held_out[1][:, None]).any(dim=1).float().mean())


@torch.no_grad()
def embeddings(model: torch.nn.Module, data: HeteroData) -> dict[str, torch.Tensor]:
    return {
        kind: torch.nn.functional.normalize(h) for kind, h in model(data.x_dict, data.edge_index_dict).items()
    }


def main(epochs: int) -> float:
    """Train, print a line per epoch and return recall@30 of held-out purchases."""
    data, labels, held_out = shop()
    dataset = DistDataset.from_pyg(data, labels=labels)
    model = to_hetero(SAGE(), data.metadata())
    embeddings(model, data)  # Lazy layers see their sizes.
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    counts = torch.bincount(labels[BUYS][1], minlength=ITEMS).float()
    print(f"popularity: recall@30 {recall_at_30(counts.expand(USERS, -1), held_out):.1%}")
    found = 0.0
    with DistABLPLoader(
        dataset,
        [10, 10],
        ("user", None),
        supervision_edge_type=[CLICKS, BUYS],
        max_labels_per_anchor=3,
        num_random_negatives=64,
        batch_size=100,
        shuffle=True,
        seed=1,
    ) as loader:
        for epoch in range(epochs):
            for batch in loader:
                h = {
                    kind: torch.nn.functional.normalize(each)
                    for kind, each in model(batch.x_dict, batch.edge_index_dict).items()
                }
                losses = []
                for kind, weight in ((CLICKS, 0.3), (BUYS, 1.0)):
                    users, items = batch.y_positive[kind]
                    others = h["item"][batch.random_negative_index[kind]]
                    losses.append(weight * ranking_loss(h["user"][users], h["item"][items], others))
                loss = sum(losses)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            h = embeddings(model, data)
            found = recall_at_30(h["user"] @ h["item"].t(), held_out)
            print(f"epoch {epoch}: loss {loss:.3f}, recall@30 {found:.1%}")
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
