"""Loaders: from seeds to batches on the trainer's device."""

from gigl_loader.loaders.arguments import LoaderOptions
from gigl_loader.loaders.base import BaseDistLoader
from gigl_loader.loaders.inputs import SeedNodes, read_seed_nodes
from gigl_loader.loaders.neighbor import DistNeighborLoader

__all__ = ["BaseDistLoader", "DistNeighborLoader", "LoaderOptions", "SeedNodes", "read_seed_nodes"]
