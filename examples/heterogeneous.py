"""Train on a graph of several node and edge types: who buys what, and which things belong together.

python examples/heterogeneous.py [EPOCHS]
"""

import sys

import torch
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

from gigl_loader import DistDataset, DistNeighborLoader

USERS, ITEMS, CLASSES = 1_000, 500, 3


def shop() -> HeteroData:
    """Return users who buy items, mostly of their own taste; the taste of a user is to be learnt."""
    torch.manual_seed(0)
    data = HeteroData()
    taste, kind = torch.arange(USERS) % CLASSES, torch.arange(ITEMS) % CLASSES
    data["user"].x = torch.randn(USERS, 8)
    data["user"].y = taste
    data["user"].train_mask = torch.rand(USERS) < 0.5
    data["user"].test_mask = ~data["user"].train_mask
    data["item"].x = torch.randn(ITEMS, 12) + torch.eye(12)[kind]
    buyer, bought = torch.randint(USERS, (10 * USERS,)), torch.randint(ITEMS, (10 * USERS,))
    own = torch.rand(10 * USERS) < 0.7
    bought = torch.where(own, (bought - bought % CLASSES + buyer % CLASSES).clamp(max=ITEMS - 1), bought)
    data["user", "buys", "item"].edge_index = torch.stack([buyer, bought])
    data["item", "bought_by", "user"].edge_index = torch.stack([bought, buyer])
    first = torch.randint(ITEMS - CLASSES, (4 * ITEMS,))
    data["item", "goes_with", "item"].edge_index = torch.stack([first, first + CLASSES])
    return data


class Model(torch.nn.Module):
    """Two layers of GraphSAGE with weights of their own for each edge type."""

    def __init__(self, edge_types: list[tuple[str, str, str]]) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(
            HeteroConv({edge_type: SAGEConv((-1, -1), 32) for edge_type in edge_types}) for _ in range(2)
        )
        self.head = torch.nn.Linear(32, CLASSES)

    def forward(self, batch: HeteroData) -> torch.Tensor:
        x, edges = batch.x_dict, batch.edge_index_dict
        for layer, conv in enumerate(self.convs):
            # Nodes and edges of the outermost hop are of no use after the first layer.
            x, edges, _ = trim_to_layer(layer, batch.num_sampled_nodes, batch.num_sampled_edges, x, edges)
            x = {node_type: rows.relu() for node_type, rows in conv(x, edges).items()}
        return self.head(x["user"])[batch["user"].seed_index]


@torch.no_grad()
def accuracy_of(model: Model, loader: DistNeighborLoader) -> float:
    """Return the share of seeds that the model gets right."""
    right = seeds = 0
    for batch in loader:
        out = model(batch)
        right += int((out.argmax(dim=1) == batch["user"].y[batch["user"].seed_index]).sum())
        seeds += len(out)
    return right / seeds


def main(epochs: int) -> float:
    """Train, print a line per epoch and return the test accuracy."""
    dataset = DistDataset.from_pyg(shop())
    # Fanouts may differ by edge type; 0 leaves a type out at that hop.
    fanout = {
        ("item", "bought_by", "user"): [8, 4],
        ("user", "buys", "item"): [5, 5],
        ("item", "goes_with", "item"): [0, 3],
    }
    model = Model(dataset.edge_types)
    optimizer: torch.optim.Optimizer | None = None
    accuracy = 0.0
    options = {"batch_size": 128, "seed": 1}
    with (
        DistNeighborLoader(
            dataset, fanout, ("user", "train"), shuffle=True, num_workers="auto", **options
        ) as train,
        DistNeighborLoader(dataset, fanout, ("user", "test"), **options) as test,
    ):
        for epoch in range(epochs):
            for batch in train:
                out = model(batch)
                # The layers learn their widths from the first batch; before it there are no parameters.
                optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=0.01)
                loss = torch.nn.functional.cross_entropy(out, batch["user"].y[batch["user"].seed_index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            accuracy = accuracy_of(model, test)
            print(f"epoch {epoch}: loss {loss:.3f}, test accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
