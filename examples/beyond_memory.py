"""Train GraphSAGE where a fifth of the features may be in memory, and tell where rows came from.

python examples/beyond_memory.py [GRAPH] [--feature-memory 5MB] [--batch-dependency 64] [--epochs 2]

The graph is made where there is none. Batches, and so accuracies, are those of any other feature_memory.
"""

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from gigl_loader import DistDataset, DistNeighborLoader, LaborSamplerOptions
from gigl_loader.partition import build_graph, tables_from_pyg

CLASSES, DIM = 8, 128


def communities(count: int) -> Data:
    """Return a graph whose nodes know mostly nodes of their own class, some of them far more than others."""
    torch.manual_seed(0)
    label = torch.arange(count) % CLASSES
    source = (torch.rand(10 * count) ** 3 * count).long()  # Few nodes are the neighbours of many.
    target = torch.randint(count, (10 * count,))
    same = torch.rand(10 * count) < 0.8
    target = torch.where(same, target - target % CLASSES + source % CLASSES, target).clamp(max=count - 1)
    chosen = torch.rand(count)
    return Data(
        x=torch.eye(DIM)[label] + torch.randn(count, DIM),
        y=label,
        edge_index=torch.stack([source, target]),
        train_mask=chosen < 0.1,
        test_mask=chosen > 0.95,
    )


def main() -> None:
    """Print a line for what the loader decided, and one per epoch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graph", type=Path, nargs="?", help="folder of the graph (default: a temporary one)")
    parser.add_argument("--feature-memory", default="5MB", help="the features of the made graph take 26 MB")
    parser.add_argument("--batch-dependency", type=int, default=1, help="of LABOR: see docs/loader.md")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.graph or Path(stack.enter_context(tempfile.TemporaryDirectory())) / "graph"
        if not folder.exists():
            build_graph(tables_from_pyg(communities(50_000)), folder)
        dataset = stack.enter_context(DistDataset.open(folder))
        given = {"batch_size": 128, "seed": 1, "feature_memory": options.feature_memory}
        labor = LaborSamplerOptions(batch_dependency=options.batch_dependency)
        train = DistNeighborLoader(dataset, [5, 3], "train", shuffle=True, sampler_options=labor, **given)
        test = DistNeighborLoader(dataset, [5, 3], "test", num_workers=0, **given)
        stack.enter_context(train)
        stack.enter_context(test)
        print(train)
        torch.manual_seed(0)
        model = GraphSAGE(in_channels=DIM, hidden_channels=32, num_layers=2, out_channels=CLASSES)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for epoch in range(options.epochs):
            for batch in train:
                out = model(batch.x, batch.edge_index)[batch.seed_index]
                loss = torch.nn.functional.cross_entropy(out, batch.y[batch.seed_index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            rows = train.stats()["rows"]  # Of all epochs so far.
            origins = ", ".join(f"{name} {rows[name]:,}" for name in ("cache", "memory", "disk", "wire"))
            print(f"epoch {epoch}: test accuracy {accuracy_of(model, test):.1%}, rows: {origins}")


@torch.no_grad()
def accuracy_of(model: torch.nn.Module, loader: DistNeighborLoader) -> float:
    """Return the share of seeds that the model gets right."""
    right = seeds = 0
    for batch in loader:
        out = model(batch.x, batch.edge_index)[batch.seed_index]
        right += int((out.argmax(dim=1) == batch.y[batch.seed_index]).sum())
        seeds += len(out)
    return right / seeds


if __name__ == "__main__":
    main()
