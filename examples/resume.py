"""Stop in the middle of an epoch, start again, and see the batches that were still to come.

The second loader samples with another number of workers: its batches are the same all the same.

python examples/resume.py
"""

import json

import torch
from torch_geometric.data import Data

from gigl_loader import DistDataset, DistNeighborLoader


def main() -> int:
    """Return the number of batches that came after the resume; each is checked."""
    torch.manual_seed(0)
    data = Data(x=torch.randn(1_000, 8), edge_index=torch.randint(1_000, (2, 10_000)))
    dataset = DistDataset.from_pyg(data)

    def make_loader(num_workers: int) -> DistNeighborLoader:
        return DistNeighborLoader(
            dataset, [5, 3], batch_size=100, shuffle=True, seed=1, num_workers=num_workers
        )

    with make_loader(num_workers=2) as loader:
        uninterrupted = [batch.n_id.tolist() for batch in loader]

    with make_loader(num_workers=2) as loader:
        for count, _ in enumerate(loader, start=1):
            if count == 4:  # as if the job were ended here
                checkpoint = json.dumps(loader.state_dict())  # a job would write it beside its model
                break

    with make_loader(num_workers=1) as loader:
        loader.load_state_dict(json.loads(checkpoint))
        resumed = [batch.n_id.tolist() for batch in loader]

    assert resumed == uninterrupted[4:]
    print(f"4 batches before the stop, {len(resumed)} after it: none lost, none twice, all as without it")
    return len(resumed)


if __name__ == "__main__":
    main()
