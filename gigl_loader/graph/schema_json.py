"""Schemas of node and edge types as JSON-able values, as ``graph.json`` has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from gigl_loader.graph.quantization import Quantized
from gigl_loader.graph.schema import (
    Column,
    EdgeSchema,
    EdgeSplits,
    EdgeType,
    NodeSchema,
    NodeType,
    VocabularyFile,
)


def _columns_to_json(columns: Mapping[str, Column]) -> dict[str, Any]:
    """Return columns as JSON-able values."""
    return {
        name: {
            "dtype": column.dtype,
            "shape": list(column.shape),
            **({} if column.unit is None else {"unit": column.unit}),
            **({} if column.quantized is None else {"quantized": column.quantized.to_json()}),
            **({"frame": [list(each) for each in column.frame]} if column.frame else {}),
        }
        for name, column in columns.items()
    }


def _columns_from_json(document: Mapping[str, Any]) -> dict[str, Column]:
    """Return the columns that ``_columns_to_json`` wrote."""
    return {
        name: Column(
            str(entry["dtype"]),
            tuple(int(size) for size in entry["shape"]),
            entry.get("unit"),
            Quantized.from_json(entry["quantized"]) if "quantized" in entry else None,
            tuple((str(part), int(width)) for part, width in entry.get("frame", ())),
        )
        for name, entry in document.items()
    }


def _vocabularies_to_json(each: NodeSchema | EdgeSchema) -> dict[str, Any]:
    words = {name: list(texts) for name, texts in each.vocabularies.items()}
    files = {name: list(file) for name, file in each.vocabulary_files.items()}
    return {
        **({"vocabularies": words} if words else {}),
        **({"vocabulary_files": files} if files else {}),
    }


def _vocabularies_from_json(entry: Mapping[str, Any]) -> dict[str, Any]:
    words, files = entry.get("vocabularies", {}), entry.get("vocabulary_files", {})
    return {
        "vocabularies": {name: tuple(map(str, texts)) for name, texts in words.items()},
        "vocabulary_files": {name: VocabularyFile(*map(int, file)) for name, file in files.items()},
    }


def nodes_to_json(node_type: NodeType, nodes: NodeSchema) -> dict[str, Any]:
    """Return the schema of a node type as JSON-able values."""
    return {
        "type": node_type,
        "count": nodes.count,
        "bounds": list(nodes.bounds),
        "ids": nodes.ids,
        "columns": _columns_to_json(nodes.columns),
        "splits": dict(nodes.splits),
        **({"text_ids": True} if nodes.text_ids else {}),
        **({"times": list(nodes.times)} if nodes.times else {}),
        **_vocabularies_to_json(nodes),
    }


def nodes_from_json(entry: Mapping[str, Any]) -> tuple[NodeType, NodeSchema]:
    """Return the node type, and its schema, that ``nodes_to_json`` wrote."""
    return entry["type"], NodeSchema(
        count=int(entry["count"]),
        bounds=tuple(int(bound) for bound in entry["bounds"]),
        ids=entry["ids"],
        columns=_columns_from_json(entry["columns"]),
        splits={name: int(count) for name, count in entry["splits"].items()},
        text_ids=bool(entry.get("text_ids", False)),
        times=tuple(str(name) for name in entry.get("times", ())),
        **_vocabularies_from_json(entry),
    )


def edges_to_json(edge_type: EdgeType, edges: EdgeSchema) -> dict[str, Any]:
    """Return the schema of an edge type as JSON-able values."""
    return {
        "type": list(edge_type),
        "count": edges.count,
        "wide_indices": edges.wide_indices,
        "columns": _columns_to_json(edges.columns),
        "weight": edges.weight,
        "time": edges.time,
        **({"weights": list(edges.weights)} if edges.weights else {}),
        **({"times": list(edges.times)} if edges.times else {}),
        **({} if edges.splits is None else {"splits": _splits_to_json(edges.splits)}),
        **({} if edges.reverse is None else {"reverse": list(edges.reverse)}),
        **_vocabularies_to_json(edges),
    }


def edges_from_json(entry: Mapping[str, Any]) -> tuple[EdgeType, EdgeSchema]:
    """Return the edge type, and its schema, that ``edges_to_json`` wrote."""
    source, relation, destination = entry["type"]
    return (source, relation, destination), EdgeSchema(
        count=int(entry["count"]),
        wide_indices=bool(entry["wide_indices"]),
        columns=_columns_from_json(entry["columns"]),
        weight=bool(entry["weight"]),
        time=bool(entry["time"]),
        weights=tuple(str(name) for name in entry.get("weights", ())),
        splits=_splits_from_json(entry["splits"]) if "splits" in entry else None,
        times=tuple(str(name) for name in entry.get("times", ())),
        reverse=cast("EdgeType", tuple(entry["reverse"])) if "reverse" in entry else None,
        **_vocabularies_from_json(entry),
    )


def _splits_to_json(splits: EdgeSplits) -> dict[str, Any]:
    return {
        "fractions": [[name, fraction] for name, fraction in splits.fractions.items()],
        "hashed": splits.hashed,
        "seed": splits.seed,
        "counts": dict(splits.counts),
    }


def _splits_from_json(entry: Mapping[str, Any]) -> EdgeSplits:
    return EdgeSplits(
        fractions={name: float(fraction) for name, fraction in entry["fractions"]},
        hashed=entry["hashed"],
        seed=int(entry["seed"]),
        counts={name: int(count) for name, count in entry["counts"].items()},
    )
