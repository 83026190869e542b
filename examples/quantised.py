"""Train GraphSAGE on float32 features and on quantised ones: a fraction of the bytes, the same accuracy.

python examples/quantised.py [EPOCHS]
"""

import sys

import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from gigl_loader import DistDataset, DistNeighborLoader


def digits() -> Data:
    """Return the handwritten digits of scikit-learn, each linked with its ten nearest neighbours."""
    pixels, labels = load_digits(return_X_y=True)
    nearest = NearestNeighbors(n_neighbors=10, algorithm="kd_tree").fit(pixels).kneighbors_graph().tocoo()
    chosen = torch.rand(len(labels), generator=torch.Generator().manual_seed(0)) < 0.5
    return Data(
        x=torch.from_numpy(pixels / 16).float(),
        y=torch.from_numpy(labels),
        edge_index=torch.tensor([nearest.row.tolist(), nearest.col.tolist()]),
        train_mask=chosen,
        test_mask=~chosen,
    )


@torch.no_grad()
def accuracy_of(model: torch.nn.Module, loader: DistNeighborLoader) -> float:
    """Return the share of seeds that the model gets right."""
    right = seeds = 0
    for batch in loader:
        out = model(batch.x, batch.edge_index)[batch.seed_index]
        right += int((out.argmax(dim=1) == batch.y[batch.seed_index]).sum())
        seeds += len(out)
    return right / seeds


def train(dataset: DistDataset, epochs: int) -> float:
    """Train a model from the same start on the same batches; return its test accuracy."""
    torch.manual_seed(0)
    model = GraphSAGE(in_channels=64, hidden_channels=64, num_layers=2, out_channels=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with (
        DistNeighborLoader(
            dataset, [10, 5], "train", batch_size=128, shuffle=True, seed=1, num_workers="auto"
        ) as loader,
        DistNeighborLoader(dataset, [10, 5], "test", batch_size=512, seed=1, num_workers=0) as test,
    ):
        for _ in range(epochs):
            for batch in loader:
                # Whatever is stored, batches have float32 (or dequantize_to=torch.float16 and so on).
                out = model(batch.x, batch.edge_index)[batch.seed_index]
                loss = torch.nn.functional.cross_entropy(out, batch.y[batch.seed_index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return accuracy_of(model, test)


def main(epochs: int) -> None:
    """Print a line for each kind of features: bytes of a row and test accuracy."""
    data = digits()
    for kind in (None, "int8", "uint4", "uint2"):
        dataset = DistDataset.from_pyg(data, quantize=None if kind is None else {"x": kind})
        row_bytes = dataset.schema.nodes["node"].columns["x"].row_bytes
        accuracy = train(dataset, epochs)
        print(f"{kind or 'float32':7} {row_bytes:4} bytes a row, test accuracy {accuracy:.2%}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
