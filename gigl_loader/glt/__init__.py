"""Samplers of graphlearn-torch (GLT) behind this library's loaders, where it is installed."""

from gigl_loader.glt.store import GltDataset, GltStore

__all__ = ["GltDataset", "GltStore"]
