"""Train GraphSAGE on a homogeneous graph: the smallest whole program.

python examples/homogeneous.py [EPOCHS]
"""

import sys

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from gigl_loader import DistDataset, DistNeighborLoader


def communities(count: int = 2_000, classes: int = 4) -> Data:
    """Return a graph whose nodes know mostly nodes of their own class, with very noisy features."""
    torch.manual_seed(0)
    label = torch.arange(count) % classes
    source, target = torch.randint(count, (2, 20 * count))
    target = torch.where(torch.rand(20 * count) < 0.7, target - target % classes + source % classes, target)
    x = torch.randn(count, 16) + torch.eye(16)[label]
    chosen = torch.rand(count) < 0.5
    edge_index = torch.stack([source, target.clamp(max=count - 1)])
    return Data(x=x, y=label, edge_index=edge_index, train_mask=chosen, test_mask=~chosen)


@torch.no_grad()
def accuracy_of(model: torch.nn.Module, loader: DistNeighborLoader) -> float:
    """Return the share of seeds that the model gets right."""
    right = seeds = 0
    for batch in loader:
        out = model(batch.x, batch.edge_index)[batch.seed_index]
        right += int((out.argmax(dim=1) == batch.y[batch.seed_index]).sum())
        seeds += len(out)
    return right / seeds


def main(epochs: int) -> float:
    """Train, print a line per epoch and return the test accuracy."""
    dataset = DistDataset.from_pyg(communities())
    model = GraphSAGE(in_channels=16, hidden_channels=32, num_layers=2, out_channels=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    fanout, batch_size = [10, 5], 128
    accuracy = 0.0
    with (
        DistNeighborLoader(
            dataset, fanout, "train", batch_size=batch_size, shuffle=True, seed=1, num_workers="auto"
        ) as train,
        DistNeighborLoader(dataset, fanout, "test", batch_size=batch_size, seed=1, num_workers=0) as test,
    ):
        for epoch in range(epochs):
            for batch in train:
                out = model(batch.x, batch.edge_index)[batch.seed_index]
                loss = torch.nn.functional.cross_entropy(out, batch.y[batch.seed_index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            accuracy = accuracy_of(model, test)
            print(f"epoch {epoch}: loss {loss:.3f}, test accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
