"""Splits by hash: whether a node or an edge is in train, val or test depends on its ids alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from gigl_loader.arrays import plain_values, tensor_of
from gigl_loader.graph.schema import EdgeSplits
from gigl_loader.native import batch_key, philox_words
from gigl_loader.options import real_number

if TYPE_CHECKING:
    import torch

    from gigl_loader.arrays import BoolArray, Int64Array, Values

_NAMES = ("train", "val", "test")
_UNITS = 2**53


def split_nodes(
    ids: Values, fractions: Values | Mapping[str, float], seed: int = 0
) -> dict[str, torch.Tensor]:
    """Return the node ids of each split, in the order of ``ids``.

    A node is in the same split whatever other nodes there are, in every process and graph; other seeds split
    otherwise. ``gigl-loader partition --split-nodes`` makes the same splits.
    ``docs/internals/randomness.md`` specifies the hash.

    ``ids``
        Integers [N].
    ``fractions``
        Of train, val and test (or train and val), or by name. They may add up to less than 1: other nodes
        are in no split. Of N nodes, a fraction f has about f * N, with a deviation of sqrt(f * (1 - f) * N).
    ``seed``
        Not negative.

    ``ValueError`` and ``TypeError`` name the rule that is broken.
    """
    import torch

    tensor = ids if isinstance(ids, torch.Tensor) else tensor_of("ids", ids)
    tensor = tensor if tensor.numel() else tensor.long()  # Of nothing, torch makes floats.
    numbers = _integers("ids", tensor, 1)
    return {
        name: tensor[torch.from_numpy(which).to(tensor.device)]
        for name, which in hash_splits(numbers, None, named_fractions(fractions), seed).items()
    }


def split_edges(
    edge_index: Values,
    fractions: Values | Mapping[str, float],
    seed: int = 0,
    undirected: bool = False,
) -> dict[str, torch.Tensor]:
    """Return the numbers of the edges of each split, int64 and ascending: columns of ``edge_index``.

    An edge is in a split for its two node ids: parallel edges fall into the same. With ``undirected``, so do
    an edge and its reverse.

    ``edge_index``
        Integers [2, E], node ids.
    ``fractions``, ``seed``
        As for :func:`split_nodes`.
    """
    import torch

    ends = _integers("edge_index", tensor_of("edge_index", edge_index), 2)
    rule = EdgeSplits(
        fractions=named_fractions(fractions), hashed="both" if undirected else "src,dst", seed=seed
    )
    splits = edges_by_split(rule, np.ascontiguousarray(ends[0]), np.ascontiguousarray(ends[1]))
    return {name: torch.from_numpy(np.flatnonzero(which)) for name, which in splits.items()}


def named_fractions(fractions: Any) -> dict[str, float]:
    """Return fractions by the name of the split. ``ValueError`` and ``TypeError`` name the broken rule."""
    fractions = plain_values("fractions", fractions)
    if isinstance(fractions, np.ndarray):
        fractions = fractions.tolist()
    if isinstance(fractions, Mapping):
        named = dict(fractions)
    elif isinstance(fractions, Sequence) and not isinstance(fractions, str):
        if not 1 <= len(fractions) <= len(_NAMES):
            raise ValueError(f"fractions are 1 to 3 numbers, of train, val and test, got {len(fractions)}")
        named = dict(zip(_NAMES, fractions, strict=False))
    else:
        raise TypeError(f"fractions are numbers, of train, val and test, or by name, got {fractions!r}")
    for name, fraction in named.items():
        real_number(f"the fraction of {name!r}", fraction)
        if not (math.isfinite(fraction) and 0 <= fraction <= 1):
            raise ValueError(f"the fraction of {name!r} must lie in [0, 1], got {fraction}")
    if sum(named.values()) > 1 + 1e-9:
        raise ValueError(f"fractions add up to {sum(named.values()):g}, more than 1")
    return named


def hash_splits(
    first: Int64Array, second: Int64Array | None, fractions: Mapping[str, float], seed: Any
) -> dict[str, BoolArray]:
    """Return which entries are in each split, bool [N]. An entry is one id, or the ids of two ends."""
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= int(seed) < 2**64:
        raise ValueError(f"seed must be a whole number in [0, 2**64), got {seed!r}")
    words, unused = np.empty(len(first), np.uint64), np.empty(len(first), np.uint64)
    key = batch_key(int(seed), 0, np.array([1 if second is None else 2], np.int64))
    high = np.zeros(len(first), np.int64) if second is None else np.ascontiguousarray(second)
    philox_words(key, np.ascontiguousarray(first), high, words, unused)
    places = (words >> np.uint64(11)).astype(np.int64)  # in [0, 2**53)
    splits, begin, total = {}, 0, 0.0
    for name, fraction in fractions.items():
        total += fraction
        end = min(round(total * _UNITS), _UNITS)
        splits[name] = (places >= begin) & (places < end)
        begin = end
    return splits


def edges_in_split(splits: EdgeSplits, name: str, src: Int64Array, dst: Int64Array) -> BoolArray:
    """Return which edges are in a split, bool [E]. ``src``, ``dst``: node ids, int64 [E]."""
    return edges_by_split(splits, src, dst)[name]


def edges_by_split(splits: EdgeSplits, src: Int64Array, dst: Int64Array) -> dict[str, BoolArray]:
    """Return which edges are in each split, bool [E]. ``src``, ``dst``: node ids, int64 [E]."""
    first, second = (dst, src) if splits.hashed == "dst,src" else (src, dst)
    if splits.hashed == "both":
        first, second = np.minimum(src, dst), np.maximum(src, dst)
    return hash_splits(first, second, splits.fractions, splits.seed)


def _integers(what: str, tensor: torch.Tensor, ndim: int) -> Int64Array:
    array = tensor.detach().cpu().numpy()
    array = array if array.size else array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{what} must be integers, got {array.dtype}")
    if array.ndim != ndim or (ndim == 2 and array.shape[0] != 2):
        raise ValueError(f"{what} must be {'[N]' if ndim == 1 else '[2, E]'}, got {list(array.shape)}")
    return np.ascontiguousarray(array, np.int64)
