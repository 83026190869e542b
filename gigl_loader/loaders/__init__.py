"""Loaders: from seeds to batches on the trainer's device."""

from gigl_loader.loaders.arguments import LoaderOptions
from gigl_loader.loaders.base import BaseDistLoader
from gigl_loader.loaders.neighbor import DistNeighborLoader
from gigl_loader.loaders.seeds import SeedNodes, read_seed_nodes

__all__ = ["BaseDistLoader", "DistNeighborLoader", "LoaderOptions", "SeedNodes", "read_seed_nodes"]
