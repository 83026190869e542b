"""Seed weights: the forms in which a user may pass them, read as shared weights of the input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gigl_loader.sampling.request import SEED, TIME
from gigl_loader.sampling.seed_weights import WEIGHT, SeedDraw
from gigl_loader.shared import SharedTensors

if TYPE_CHECKING:
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.loaders.seeds import LoaderInput

__all__ = ["read_seed_weights", "seed_draw"]


def read_seed_weights(
    value: Any, seeds: LoaderInput, schema: GraphSchema, *, shuffle: bool
) -> SharedTensors | None:
    """Return shared tensors whose ``weight`` holds one float32 or float64 for each entry of the input.

    ``None`` for ``None``. A tensor alone is copied: such weights stay as they are. ``TypeError`` and
    ``ValueError`` name the rule that is broken.
    """
    if value is None:
        return None
    if SEED not in seeds.columns:
        raise ValueError("seed_weights draws input nodes, and the input of this loader is links")
    if shuffle:
        raise ValueError("shuffle=True has no meaning beside seed_weights: seeds are drawn anew each time")
    if isinstance(value, torch.Tensor):
        value = SharedTensors.create({WEIGHT: value})
    if not isinstance(value, SharedTensors):
        raise TypeError(
            "seed_weights must be a tensor, or SharedTensors.create({'weight': ...}) for weights that "
            f"change while batches are made, got a {type(value).__name__}"
        )
    if WEIGHT not in value:
        raise ValueError(
            f"seed_weights needs a tensor named '{WEIGHT}'; it has: {', '.join(value) or 'none'}"
        )
    weight = value[WEIGHT]
    if weight.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"seed weights must be float32 or float64, got {weight.dtype}")
    # Seeds have places only where the input was a mask over all nodes.
    count = len(seeds.columns[SEED]) if seeds.places is None else schema.nodes[str(seeds.kind)].count
    if weight.shape != (count,):
        raise ValueError(
            f"seed_weights needs one weight for each entry of the input, shape ({count},), "
            f"got {tuple(weight.shape)}"
        )
    return value


def seed_draw(
    weights: SharedTensors | None, seeds: LoaderInput, *, run_seed: int, rank: int, timeout: float
) -> SeedDraw | None:
    """Return how seeds are drawn; ``None`` without weights. ``timeout`` is how long a loader waits, in s."""
    if weights is None:
        return None
    return SeedDraw.of(
        weights,
        seeds.columns[SEED],
        places=seeds.places,
        times=seeds.columns.get(TIME),
        run_seed=run_seed,
        rank=rank,
        # Half: so that the batch fails with the name of the lock's holder before the loader gives up.
        timeout_s=timeout / 2,
    )
