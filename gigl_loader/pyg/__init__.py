"""PyG's own interfaces over a dataset: its stores, and a sampler for its loaders."""

from gigl_loader.pyg.feature_store import GiglFeatureStore
from gigl_loader.pyg.graph_store import GiglGraphStore
from gigl_loader.pyg.sampler import GiglSampler

__all__ = ["GiglFeatureStore", "GiglGraphStore", "GiglSampler"]
