"""PyG's own interfaces over a dataset: its stores, for its loaders."""

from gigl_loader.pyg.feature_store import GiglFeatureStore
from gigl_loader.pyg.graph_store import GiglGraphStore

__all__ = ["GiglFeatureStore", "GiglGraphStore"]
