"""Negative sampling, as users ask for it: ours, PyG's, a mode or a dict of fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gigl_loader.sampling.negatives import MAX_AMOUNT, Negatives, NodeWeights

if TYPE_CHECKING:
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType, NodeType

__all__ = ["NegativeSampling", "read_negatives"]


@dataclass(frozen=True, slots=True, eq=False)
class NegativeSampling:
    """How many negatives a link has, and how they are drawn. Names and meanings are PyG's, but ``strict``.

    Negatives are drawn anew in each epoch, as a function of the run seed, the epoch and the links of the
    batch.
    """

    mode: str = "binary"
    """``"binary"`` draws pairs of nodes, ``"triplet"`` other destinations for the source of each link."""
    amount: float = 1
    """Negatives per link: ``ceil(M * amount)`` for M links. A whole number for triplets."""
    src_weight: torch.Tensor | None = None
    """Weight of each node of the source type, by ascending node id, [N]. Not for triplets."""
    dst_weight: torch.Tensor | None = None
    """Weight of each node of the destination type, by ascending node id, [N]."""
    strict: bool = False
    """Draw again what is an edge of the graph, up to 100 times. ``stats()["negatives_not_strict"]`` counts
    negatives that are one nevertheless."""

    def __post_init__(self) -> None:
        """``TypeError`` and ``ValueError`` name the field and the rule that it breaks."""
        if self.mode not in ("binary", "triplet"):
            raise ValueError(f"mode of negative sampling must be 'binary' or 'triplet', got {self.mode!r}")
        if isinstance(self.amount, bool) or not isinstance(self.amount, (int, float)):
            raise TypeError(f"amount of negatives must be a number, got {self.amount!r}")
        if not math.isfinite(self.amount) or not 0 < self.amount <= MAX_AMOUNT:
            raise ValueError(f"amount of negatives must be positive, at most {MAX_AMOUNT}, got {self.amount}")
        if not isinstance(self.strict, bool):
            raise TypeError(f"strict must be True or False, got {self.strict!r}")


_FIELDS = tuple(each.name for each in fields(NegativeSampling))


def read_negatives(value: Any, schema: GraphSchema, edge_type: EdgeType) -> Negatives | None:
    """Return what ``neg_sampling`` stands for. ``TypeError`` and ``ValueError`` name the rule it breaks."""
    if value is None:
        return None
    given = _given(value)
    source, _, destination = edge_type
    return Negatives(
        mode="triplet" if given.mode == "triplet" else "binary",
        amount=float(given.amount),
        strict=given.strict,
        src_weight=_weights("src_weight", given.src_weight, schema, source),
        dst_weight=_weights("dst_weight", given.dst_weight, schema, destination),
    )


def _given(value: Any) -> NegativeSampling:
    if isinstance(value, NegativeSampling):
        return value
    if isinstance(value, str):
        return NegativeSampling(value)
    if isinstance(value, Mapping):
        unknown = [name for name in value if name not in _FIELDS]
        if unknown:
            raise ValueError(f"neg_sampling has no field {unknown[0]!r}; known: {', '.join(_FIELDS)}")
        return NegativeSampling(**value)
    mode = getattr(value, "mode", None)
    if mode is None or not hasattr(value, "amount"):
        raise TypeError(
            "neg_sampling must be None, 'binary', 'triplet', a NegativeSampling (of gigl_loader or PyG) or a "
            f"dict of its fields, got {value!r}"
        )
    return NegativeSampling(
        getattr(mode, "value", mode),
        value.amount,
        src_weight=getattr(value, "src_weight", None),
        dst_weight=getattr(value, "dst_weight", None),
    )


def _weights(name: str, value: Any, schema: GraphSchema, node_type: NodeType) -> NodeWeights | None:
    if value is None:
        return None
    weights = torch.as_tensor(value).detach().cpu()
    if not weights.is_floating_point():
        raise TypeError(f"{name} must be a float tensor, got {weights.dtype}")
    count = schema.nodes[node_type].count
    if weights.shape != (count,):
        raise ValueError(
            f"{name} needs one weight for each of the {count} nodes of type {node_type!r}, got shape "
            f"{tuple(weights.shape)}"
        )
    try:
        return NodeWeights(np.ascontiguousarray(weights.float().numpy()))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
