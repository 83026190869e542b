"""Embed nodes by random walks, without features, and predict the links that were held out.

python examples/node_embeddings.py [EPOCHS]

The graph joins each image of a handwritten digit to the eight that look most like it. Walks that follow its
edges are sentences for a skip-gram model with negatives (DeepWalk; with p and q other than 1, node2vec):
nodes that walks often visit together get vectors that point the same way.
"""

import sys

import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import kneighbors_graph
from torch.nn.functional import logsigmoid
from torch_geometric.data import Data

from gigl_loader import DistDataset, DistNeighborLoader, RandomWalkSamplerOptions
from gigl_loader.splits import split_edges

WALKS = RandomWalkSamplerOptions(walk_length=6, walks_per_seed=2, p=1.0, q=0.5)
WINDOW, NEGATIVES = 2, 3


def similar_digits() -> tuple[torch.Tensor, int]:
    """Return edges in both directions, int64 [2, E], and the number of images."""
    near = kneighbors_graph(load_digits().data, 8)
    edges = torch.from_numpy((near + near.T).toarray()).nonzero().t()
    return edges.contiguous(), near.shape[0]


class SkipGram(torch.nn.Module):
    """Two vectors for each node: one where it is the center of a window, one where it is beside it."""

    def __init__(self, count: int, width: int = 32) -> None:
        super().__init__()
        self.center = torch.nn.Embedding(count, width)
        self.beside = torch.nn.Embedding(count, width)
        torch.nn.init.normal_(self.center.weight, std=0.1)
        torch.nn.init.zeros_(self.beside.weight)

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        """Return the loss of pairs of nodes [2, P] that walks visit near each other."""
        center = self.center(pairs[0])
        others = torch.randint(self.beside.num_embeddings, (pairs.shape[1], NEGATIVES))
        near = (center * self.beside(pairs[1])).sum(dim=1)
        far = torch.einsum("pw,pnw->pn", center, self.beside(others))
        return -logsigmoid(near).mean() - logsigmoid(-far).sum(dim=1).mean()


def windows(walks: torch.Tensor) -> torch.Tensor:
    """Return all pairs of nodes [2, P] that are at most ``WINDOW`` steps apart. -1 is past a dead end."""
    ahead = [torch.stack([walks[:, :-step], walks[:, step:]]).flatten(1) for step in range(1, WINDOW + 1)]
    pairs = torch.cat(ahead, dim=1)
    pairs = pairs[:, (pairs >= 0).all(dim=0)]
    return torch.cat([pairs, pairs.flip(0)], dim=1)


def auc(scores: torch.Tensor, others: torch.Tensor) -> float:
    """Return how often a held-out link scores higher than a pair of random nodes. Ties count half."""
    others = others.sort().values
    below = torch.searchsorted(others, scores) + torch.searchsorted(others, scores, right=True)
    return float(below.float().mean() / (2 * len(others)))


def main(epochs: int) -> float:
    """Train, print a line per epoch and return the last AUC."""
    torch.manual_seed(0)
    edges, count = similar_digits()
    splits = split_edges(edges, {"train": 0.8, "test": 0.2}, undirected=True)
    known, held_out = edges[:, splits["train"]], edges[:, splits["test"]]
    pairs = torch.randint(count, (2, held_out.shape[1]))
    degree = torch.bincount(known[0], minlength=count).float()
    guess = auc(*(degree[ends].prod(dim=0) for ends in (held_out, pairs)))
    model, found = SkipGram(count), 0.0
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    dataset = DistDataset.from_pyg(Data(edge_index=known, num_nodes=count))
    options = {"batch_size": 32, "shuffle": True, "seed": 1}
    with DistNeighborLoader(dataset, sampler_options=WALKS, num_neighbors=None, **options) as loader:
        for epoch in range(epochs):
            for batch in loader:
                walks = torch.where(batch.walks < 0, -1, batch.n_id[batch.walks])
                loss = model(windows(walks))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            vectors = torch.nn.functional.normalize(model.center.weight.detach())
            found = auc(*(vectors[ends].prod(dim=0).sum(dim=1) for ends in (held_out, pairs)))
            print(
                f"epoch {epoch}: loss {loss:.3f}, AUC of held-out links {found:.3f} (by degree {guess:.3f})"
            )
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
