"""Declarations of columns that are to be quantised: read from options, and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gigl_loader.graph.quantization import FLOATS, MAX_ELEMENTS, Quantization
from gigl_loader.graph.schema import Column, EdgeType, NodeType

__all__ = ["Quantizations", "check_quantized_column", "read_quantize"]

Quantizations = Mapping[NodeType | EdgeType, Mapping[str, Quantization]]
"""How columns are quantised, by type and name."""


def read_quantize(
    wanted: Any, known: Mapping[NodeType | EdgeType, Mapping[str, object]], what: str
) -> dict[NodeType | EdgeType, dict[str, Quantization]]:
    """Return how a user wants columns to be quantised: ``{"x": "int8"}``, or such mappings by type.

    A column without a type is one of every type in ``known`` (columns by type) that has it; what is said of a
    type itself comes first. ``ValueError`` and ``TypeError`` name what is not there and begin with ``what``.
    """
    if wanted is None:
        return {}
    if not isinstance(wanted, Mapping):
        raise TypeError(f"{what} must map columns to kinds, such as {{'x': 'int8'}}, got {wanted!r:.200}")
    found: dict[NodeType | EdgeType, dict[str, Quantization]] = {}
    for name, kind in wanted.items():
        if isinstance(kind, Mapping):
            continue
        having = [each for each, columns in known.items() if name in columns]
        if not having:
            columns = sorted({column for each in known.values() for column in each})
            raise ValueError(f"{what}: no type has a column {name!r}; known: {', '.join(columns) or 'none'}")
        for each in having:
            found.setdefault(each, {})[name] = _parsed(kind, what)
    for each, kinds in wanted.items():
        if not isinstance(kinds, Mapping):
            continue
        if each not in known:
            raise ValueError(f"{what}: unknown type {each!r}; known: {', '.join(map(str, known)) or 'none'}")
        for name, kind in kinds.items():
            if name not in known[each]:
                raise ValueError(f"{what}: {each!r} has no column {name!r}")
            found.setdefault(each, {})[name] = _parsed(kind, what)
    return found


def _parsed(kind: Any, what: str) -> Quantization:
    if isinstance(kind, Quantization):
        return kind
    if not isinstance(kind, str):
        raise TypeError(f"{what}: a column is quantised as a text such as 'int8' says, got {kind!r:.200}")
    try:
        return Quantization.parse(kind)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


def check_quantized_column(kind: object, how: Quantization, what: str) -> None:
    """Raise ``ValueError`` unless a column holds decimal numbers, which can be quantised."""
    if not isinstance(kind, Column):
        raise ValueError(f"{what} holds {kind}: only columns of decimal numbers can be quantised")
    if kind.dtype not in FLOATS:
        raise ValueError(f"{what} holds {kind.dtype}: only {', '.join(FLOATS)} can be quantised")
    elements = math.prod(kind.shape)
    if not elements:
        raise ValueError(f"{what} has rows without values, which cannot be quantised")
    if how.per == "column" and elements > MAX_ELEMENTS:
        raise ValueError(
            f"{what} has rows of {elements} values; at most {MAX_ELEMENTS} are quantised per column: "
            f"use {how.kind}:per-row"
        )
