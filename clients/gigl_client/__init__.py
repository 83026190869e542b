"""The trainer's side of the graph store: batches from storage servers, for trainers that hold no graph.

``RemoteDistDataset.connect(address)`` takes the place of ``DistDataset.open(path)``; loaders stay the same.
"""

from __future__ import annotations

from gigl_client.dataset import RemoteDistDataset
from gigl_loader.rpc.credentials import Caller

__all__ = ["Caller", "RemoteDistDataset"]
