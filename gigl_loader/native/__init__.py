"""The native kernels, typed. They know no torch, no files and no processes."""

from gigl_loader.native._core import (
    Adjacency,
    NeighborSampler,
    batch_key,
    build_adjacency,
    expand_edges,
    gather,
    permutation,
    philox,
)

__all__ = [
    "Adjacency",
    "NeighborSampler",
    "batch_key",
    "build_adjacency",
    "expand_edges",
    "gather",
    "permutation",
    "philox",
]
