"""A graph on disk whose labels are easy to learn, for scripts that train."""

from __future__ import annotations

from pathlib import Path

import torch
from torch_geometric.data import Data

from gigl_loader.partition import build_graph, tables_from_pyg


def learnable_graph(path: Path, *, num_partitions: int) -> Path:
    """Write 600 nodes of 4 classes, with columns x and y and splits train and test. Return ``path``."""
    torch.manual_seed(0)
    label = torch.arange(600) % 4
    data = Data(
        x=torch.eye(4)[label] + 0.1 * torch.randn(600, 4),
        y=label,
        edge_index=torch.randint(600, (2, 3_000)),
        train_mask=torch.arange(600) < 400,
        test_mask=torch.arange(600) >= 400,
    )
    build_graph(tables_from_pyg(data), path, num_partitions=num_partitions)
    return path
