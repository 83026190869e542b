"""Classify handwritten digits by the neighbours that personalised PageRank finds, weighted by their scores.

python examples/ppr.py [EPOCHS]

A batch has up to 30 nodes for each seed, however many hops away, and one edge to each of them: a single layer
sees them all. The score of an edge says how much its node counts, and a small network what the hop adds to
that. Needs scikit-learn.
"""

import sys

import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn
from torch_geometric.data import Data

from gigl_loader import DistDataset, DistNeighborLoader, PPRSamplerOptions


def digits() -> Data:
    """Return digits, joined with their ten nearest; half of them have lost three quarters of their pixels."""
    pixels, label = (torch.from_numpy(each) for each in load_digits(return_X_y=True))
    near = NearestNeighbors(n_neighbors=11).fit(pixels).kneighbors(pixels, return_distance=False)
    target = torch.arange(len(pixels)).repeat_interleave(10)
    edges = torch.stack([torch.from_numpy(near[:, 1:]).reshape(-1), target])
    random = torch.Generator().manual_seed(0)
    kept = torch.rand(pixels.shape, generator=random) < 0.25
    whole = torch.rand(len(pixels), generator=random) < 0.5
    x = torch.where(whole[:, None] | kept, pixels, 0.0).float() / 16
    train = torch.rand(len(pixels), generator=random) < 0.2
    return Data(
        x=x, y=label, edge_index=torch.cat([edges, edges.flip(0)], 1), train_mask=train, test_mask=~train
    )


class WeightedMean(nn.Module):
    """Averages the pixels of a seed's neighbours by weights of score and hop, and classifies the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.by_hop = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1), nn.Softplus())
        self.classify = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, batch: Data) -> Tensor:
        seed, node = batch.edge_index
        score, closeness = batch.edge_attr.split(1, dim=1)
        weight = score * self.by_hop(closeness)
        total = weight.new_zeros(batch.batch_size, 1).index_add(0, seed, weight)
        mean = batch.x.new_zeros(batch.batch_size, 64).index_add(0, seed, weight * batch.x[node]) / total
        out: Tensor = self.classify(torch.cat([batch.x[: batch.batch_size], mean], dim=1))
        return out[batch.seed_index]


@torch.no_grad()
def accuracy_of(model: nn.Module, loader: DistNeighborLoader) -> float:
    """Return the share of seeds that the model gets right."""
    right = [model(batch).argmax(dim=1) == batch.y[batch.seed_index] for batch in loader]
    return float(torch.cat(right).float().mean())


def main(epochs: int) -> float:
    """Train, print a line per epoch and return the test accuracy."""
    torch.manual_seed(0)
    dataset = DistDataset.from_pyg(digits())
    options = PPRSamplerOptions(alpha=0.25, eps=1e-4, max_ppr_nodes=30)
    model = WeightedMean()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    accuracy = 0.0
    with (
        DistNeighborLoader(
            dataset,
            None,
            "train",
            sampler_options=options,
            batch_size=32,
            shuffle=True,
            seed=1,
            num_workers="auto",
        ) as train,
        DistNeighborLoader(
            dataset, None, "test", sampler_options=options, batch_size=256, seed=1, num_workers=0
        ) as test,
    ):
        for epoch in range(epochs):
            for batch in train:
                loss = nn.functional.cross_entropy(model(batch), batch.y[batch.seed_index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            accuracy = accuracy_of(model, test)
            print(f"epoch {epoch}: loss {loss:.3f}, test accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
