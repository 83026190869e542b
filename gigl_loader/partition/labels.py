"""Label sets: pairs of anchors and their labels, which no batch has as edges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import label_list
from gigl_loader.partition.combined import ProjectedTable, Projection
from gigl_loader.partition.table import ArrayTable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gigl_loader.graph.schema import LabelSign
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.partition.table import Table

__all__ = ["label_set", "label_tables"]


def label_tables(
    labels: Mapping[EdgeType, Any] | None, node_types: Collection[NodeType]
) -> dict[EdgeType, Table]:
    """Return the tables of label sets by name.

    ``labels``: by supervision type, node ids [2, P] or a pair of positive and negative ones. ``ValueError``
    and ``TypeError`` name the type and the rule that it breaks.
    """
    found: dict[EdgeType, Table] = {}
    for edge_type, given in (labels or {}).items():
        if not (
            isinstance(edge_type, tuple)
            and len(edge_type) == 3
            and all(isinstance(part, str) for part in edge_type)
        ):
            raise TypeError(
                f"labels: a supervision type is (anchor type, relation, label type), got {edge_type!r}"
            )
        for end in (edge_type[0], edge_type[2]):
            if end not in node_types:
                raise ValueError(f"labels of {edge_type}: node type {end!r} is not in the graph")
        signs: tuple[LabelSign, ...] = ("positive", "negative")
        pairs = given if isinstance(given, tuple) else (given,)
        if not 1 <= len(pairs) <= 2:
            raise ValueError(f"labels of {edge_type}: positive ones, or (positive, negative)")
        for sign, each in zip(signs, pairs, strict=False):
            found[label_list(edge_type, sign)] = _table(f"{sign} labels of {edge_type}", each)
    return found


def label_set(table: Table) -> Table:
    """Return a table of pairs without its other columns. ``FormatError`` without ``src`` or ``dst``."""
    for name in ("src", "dst"):
        if name not in table.columns:
            raise FormatError(f"{table.name}: no column {name!r}: labels have src (the anchor) and dst")
    return ProjectedTable(table, {name: Projection((name,)) for name in ("src", "dst")})


def _table(what: str, given: Any) -> Table:
    array = np.asarray(given.detach().cpu().numpy() if hasattr(given, "detach") else given)
    if array.ndim != 2 or array.shape[0] != 2 or array.dtype.kind not in "iu":
        raise ValueError(f"{what} are {array.dtype} {list(array.shape)}, not integer node ids [2, P]")
    return ArrayTable(what, {"src": array[0], "dst": array[1]})
