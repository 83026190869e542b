"""Times of the entries of an input, as a user passes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gigl_loader.arrays import Int64Array

if TYPE_CHECKING:
    from gigl_loader.loaders.seeds import SeedNodes

__all__ = ["read_times", "timed_seeds"]


def timed_seeds(seeds: SeedNodes, input_time: Any) -> SeedNodes:
    """Return seeds with the times that a user passed for them, if any."""
    if input_time is None:
        return seeds
    count = len(seeds.positions)
    return seeds.with_times(read_times("input_time", input_time, count=count, places=seeds.places))


def read_times(name: str, value: Any, *, count: int, places: Int64Array | None = None) -> Int64Array:
    """Return the time of each entry, int64 [count].

    ``places``: where each entry stands in a mask; ``value`` may then have a time for each place of the mask.
    ``TypeError`` and ``ValueError`` name the rule that is broken.
    """
    try:
        times = torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be a tensor of integers, got a {type(value).__name__}") from None
    if times.is_floating_point() or times.is_complex() or times.dtype == torch.bool:
        raise TypeError(f"{name} must hold integers, got {times.dtype}")
    if times.ndim != 1:
        raise ValueError(f"{name} must be 1-D, got shape {list(times.shape)}")
    array = np.ascontiguousarray(times.to(torch.int64).numpy())
    if places is not None and len(array) != count and len(array) > int(places.max()):
        array = array[places]
    if len(array) != count:
        raise ValueError(
            f"{name} needs one time for each of the {count} entries of the input, got {len(array)}"
        )
    return array
