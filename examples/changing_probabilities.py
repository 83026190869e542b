"""Children of each parent, drawn by probabilities that sampling processes change: none twice before all were.

A child that was drawn has the probability 0 until fewer are left than a draw takes; then those of its parent
are set back. All processes share the probabilities, so no two draw the same child.

python examples/changing_probabilities.py
"""

from typing import Any

import numpy as np

from gigl_loader.sampling.custom import SampledEdges, SamplingGraph, SeedBatch, Subgraph

PARENTS, CHILDREN, DRAWN, VISITS = 40, 12, 4, 6


class WithoutOverlap:
    """Draws ``count`` children of each parent among those that are left."""

    def __init__(self, graph: SamplingGraph, *, count: int) -> None:
        self.graph, self.count = graph, count
        (self.edge_type,) = graph.schema.edges

    def sample(self, batch: SeedBatch) -> Subgraph:
        parents = batch.seeds[np.sort(np.unique(batch.seeds, return_index=True)[1])]
        found = self.graph.neighbors(self.edge_type, parents, batch=batch)  # All children.
        uniform = batch.uniform(0, len(found.positions))
        ends = np.cumsum(found.counts)
        shared: Any = self.graph.shared
        with shared.lock():  # No longer than it takes to draw: other processes wait.
            left, initial = shared.array("left"), shared.array("initial")
            drawn = []
            for parent, begin, end in zip(parents, ends - found.counts, ends, strict=True):
                edges = found.edge_ids[begin:end]
                if np.count_nonzero(left[edges]) < self.count:
                    left[edges] = initial[edges]
                    shared.array("times_set_back")[self.graph.node_ids("parent", parent[None])] += 1
                chosen = draw(left[edges], uniform[begin:end], self.count)
                left[edges[chosen]] = 0
                drawn.append(begin + chosen)
        kept = np.concatenate(drawn)
        children, local = np.unique(found.positions[kept], return_inverse=True)
        sampled = SampledEdges(
            neighbors=local,
            targets=np.repeat(np.arange(len(parents)), found.counts)[kept],
            slots=found.slots[kept],
            edge_ids=found.edge_ids[kept],
        )
        return Subgraph(nodes={"parent": parents, "child": children}, edges={self.edge_type: sampled})


def draw(probability: np.ndarray, uniform: np.ndarray, count: int) -> np.ndarray:
    """Return places of up to ``count`` entries, without repetition, in proportion to what is left each time.

    Efraimidis and Spirakis 2006: the largest of ``uniform ** (1 / probability)``.
    """
    count = min(count, np.count_nonzero(probability))
    with np.errstate(divide="ignore"):
        return np.argsort(-np.log(uniform) / probability)[:count]


def main() -> int:
    """Return how many children were drawn; it is checked that each came equally often."""
    import torch  # Here: sampling processes import this module, and need no torch.
    from torch_geometric.data import HeteroData

    from gigl_loader import CustomSamplerOptions, DistDataset, DistNeighborLoader, SharedTensors

    torch.manual_seed(0)
    data = HeteroData()
    data["parent"].num_nodes, data["child"].num_nodes = PARENTS, PARENTS * CHILDREN
    child = torch.randperm(PARENTS * CHILDREN)
    data["child", "of", "parent"].edge_index = torch.stack([child, torch.arange(PARENTS).repeat(CHILDREN)])

    # One probability for each edge, by its id: a dict of dicts by parent and child, without the dicts.
    initial = torch.rand(len(child)) + 0.1
    shared = SharedTensors.create(
        {
            "initial": initial,
            "left": initial,
            "times_set_back": torch.zeros(PARENTS, dtype=torch.int64),
        }
    )
    times_drawn = torch.zeros(len(child), dtype=torch.int64)
    with DistNeighborLoader(
        DistDataset.from_pyg(data),
        None,
        ("parent", torch.arange(PARENTS).repeat(VISITS)),
        batch_size=10,
        num_workers=2,
        sampler_options=CustomSamplerOptions("changing_probabilities:WithoutOverlap", count=DRAWN),
        shared_tensors=shared,
        device="cpu",
    ) as loader:
        for batch in loader:
            edges = batch["child", "of", "parent"].e_id  # What was drawn comes with the batch.
            times_drawn[edges] += 1
            with shared.lock():  # The trainer changes them, too, for the next time that they are set back.
                shared["initial"][edges] *= 0.9

    assert set(times_drawn.tolist()) == {VISITS * DRAWN // CHILDREN}
    set_back = shared["times_set_back"].tolist()
    assert set(set_back) == {VISITS * DRAWN // CHILDREN - 1}
    print(
        f"{len(child)} children of {PARENTS} parents, each drawn {times_drawn[0]} times in {VISITS} visits "
        f"by 2 processes; set back {sum(set_back)} times"
    )
    return int(times_drawn.sum())


if __name__ == "__main__":
    main()
