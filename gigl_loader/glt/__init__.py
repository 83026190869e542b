"""Samplers of graphlearn-torch (GLT) behind this library's loaders, where it is installed."""

from gigl_loader.glt.dataset import GltDataset
from gigl_loader.glt.store import GltStore

__all__ = ["GltDataset", "GltStore"]
