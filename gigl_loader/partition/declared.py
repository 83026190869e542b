"""Columns that are declared as weights or times, or to be quantised: which ones a user means."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from gigl_loader.graph.quantization import FLOATS, MAX_ELEMENTS, Quantization
from gigl_loader.graph.schema import Column, EdgeType, NodeType
from gigl_loader.options import by_edge_type, is_edge_type, known_edge_type

Quantizations = Mapping[NodeType | EdgeType, Mapping[str, Quantization]]
"""Quantisation of columns, by type and name."""


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


def check_weight_column(column: Column, what: str) -> None:
    """Raise ``ValueError`` unless a column can hold weights: one number for each edge."""
    if column.quantized is not None:
        raise ValueError(f"{what} is quantised: a weight must be exact")
    if column.shape not in ((), (1,)) or column.dtype == "BOOL" or column.unit is not None:
        raise ValueError(f"{what} holds {column.dtype} {list(column.shape)}: a weight is one number an edge")


def declared_times(
    nodes: Mapping[NodeType, Collection[str]],
    edges: Mapping[EdgeType, Collection[str]],
    wanted: str | Mapping[Any, str] | None,
    what: str,
) -> dict[NodeType | EdgeType, tuple[str, ...]]:
    """Return the columns of each type that ``wanted`` declares as times, by the types' columns.

    A name declares the column of every node type that has it, or else of every edge type, a mapping those of
    its types. ``ValueError`` names a column that is not there.
    """
    if isinstance(wanted, str):
        found = [kind for kind, columns in nodes.items() if wanted in columns]
        found_edges = [kind for kind, columns in edges.items() if wanted in columns]
        if not found and not found_edges:
            raise ValueError(f"{what}: no node or edge type has a column {wanted!r}")
        return dict.fromkeys(found or found_edges, (wanted,))
    known: dict[NodeType | EdgeType, Collection[str]] = dict(nodes.items())
    known |= dict(edges.items())
    named: dict[NodeType | EdgeType, tuple[str, ...]] = {}
    for key, name in (wanted or {}).items():
        kind = known_edge_type(edges, key, what) if is_edge_type(key) else key
        if kind not in known:
            raise ValueError(f"{what}: unknown type {kind}; known: {', '.join(map(str, known)) or 'none'}")
        if name not in known[kind]:
            raise ValueError(f"{what}: {kind} has no column {name!r}")
        named[kind] = (name,)
    return named


def check_time_column(column: Column | str | None, name: str, what: object) -> None:
    """Raise ``ValueError`` unless a column can hold times: one integer for each row."""
    if column is None:
        raise ValueError(f"{what} has no column {name!r} to take times from")
    if not isinstance(column, Column) or not column.holds_times:
        held = f"{column.dtype} {list(column.shape)}" if isinstance(column, Column) else str(column)
        query = f'SELECT * REPLACE (round("{name}" * 1000)::BIGINT AS "{name}") FROM ...'
        raise ValueError(
            f"{what}, column {name!r} holds {held}: a time is one integer (seconds, days, ...); a query "
            f"makes one of fractions: {query}"
        )


def declared(
    edges: Mapping[EdgeType, Collection[str]], wanted: str | Mapping[Any, str] | None, what: str
) -> dict[EdgeType, tuple[str, ...]]:
    """Return the columns of each edge type that ``wanted`` declares, by the ``edges``' columns.

    A name declares the column of every type that has it, a mapping those of its types. ``ValueError`` names a
    column that is not there.
    """
    if wanted is None:
        return {}
    if isinstance(wanted, str):
        found: dict[EdgeType, tuple[str, ...]] = {
            kind: (wanted,) for kind, columns in edges.items() if wanted in columns
        }
        if not found:
            known = sorted({name for columns in edges.values() for name in columns} - {"src", "dst", "id"})
            raise ValueError(
                f"{what}: no edge type has a column {wanted!r}; known: {', '.join(known) or 'none'}"
            )
        return found
    named = by_edge_type(edges, wanted, what)
    for kind, name in named.items():
        if name not in edges[kind]:
            raise ValueError(f"{what}: edges of type {kind} have no column {name!r}")
    return {kind: (name,) for kind, name in named.items()}
