"""Weights of edges as draws need them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gigl_loader.arrays import Float64Array, Int64Array

_BITS = 62
"""The sum of a list stays below 2 to this power."""


def running_sums(weights: Float64Array, indptr: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the running sums [E] and the numbers of weights above 0 [T] of lists (``indptr`` [T + 1]).

    A weight counts as the whole part of ``weight * 2**shift``, at least 1 unless it is 0. The shift of a list
    of d edges, the largest of which is below ``2**e``, is ``62 - bits of d - e``.
    """
    degrees = np.diff(indptr)
    counts = np.zeros(len(degrees), np.int64)
    if not len(weights):
        return np.empty(0, np.int64), counts
    full = np.flatnonzero(degrees)
    starts = indptr[full]
    exponents = np.frexp(np.maximum.reduceat(weights, starts))[1]
    bits = np.frexp(degrees[full].astype(np.float64))[1]
    shifts = np.repeat(_BITS - bits - exponents, degrees[full])
    whole = np.maximum(np.ldexp(weights, shifts), 1.0).astype(np.int64)
    whole[weights == 0] = 0
    counts[full] = np.add.reduceat((weights > 0).astype(np.int64), starts)
    with np.errstate(over="ignore"):
        sums = np.cumsum(whole.view(np.uint64))  # Wraps around; the sums of one list do not.
        before = sums[starts] - whole.view(np.uint64)[starts]
        sums -= np.repeat(before, degrees[full])
    return sums.view(np.int64), counts
