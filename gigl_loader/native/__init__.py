"""The native kernels, typed. They know no torch, no files and no processes."""

from gigl_loader.native._core import (
    Adjacency,
    Batch,
    BatchBuilder,
    NeighborSampler,
    batch_key,
    build_adjacency,
    copy_rows,
    count_rows,
    draw_hop,
    expand_edges,
    gather,
    permutation,
    philox,
    split_by_cache,
    split_by_owner,
    uniforms,
)

__all__ = [
    "Adjacency",
    "Batch",
    "BatchBuilder",
    "NeighborSampler",
    "batch_key",
    "build_adjacency",
    "copy_rows",
    "count_rows",
    "draw_hop",
    "expand_edges",
    "gather",
    "permutation",
    "philox",
    "split_by_cache",
    "split_by_owner",
    "uniforms",
]
