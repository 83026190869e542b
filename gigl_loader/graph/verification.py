"""Verification of the files of a graph against its schema: headers when opening, bytes on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gigl_loader.arrays import Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.document import Document
from gigl_loader.graph.node_ids import Directory
from gigl_loader.graph.paths import (
    edges_path,
    ids_path,
    nodes_path,
    splits_path,
    timed_weights_path,
    times_path,
    topology_path,
    weights_path,
)
from gigl_loader.graph.schema import Column, EdgeType, GraphSchema, NodeType
from gigl_loader.tensors import ArraySpec

__all__ = ["check_part", "check_split", "verify_graph"]


_ROWS = 1 << 20


def check_part(schema: GraphSchema, documents: Mapping[str, Document], part: int) -> None:
    """Raise ``FormatError`` unless the files of a partition have the arrays of the schema."""
    for edge_type in schema.lists:
        edges = _check_topology(schema, documents[topology_path(part, edge_type)], edge_type, part)
        if edge_type in schema.labels:
            continue
        if schema.edges[edge_type].columns:
            _check_columns(documents[edges_path(part, edge_type)], schema.edges[edge_type].columns, edges)
        bounds = schema.nodes[schema.target_type(edge_type)].bounds
        for name in schema.edges[edge_type].weights:
            expected = {
                "sums": ArraySpec("I64", (edges,)),
                "counts": ArraySpec("I64", (bounds[part + 1] - bounds[part],)),
            }
            _require_all(documents[weights_path(part, edge_type, name)], expected)
        for time in schema.list_times(edge_type):
            document = documents[times_path(part, edge_type, time)]
            slots = ArraySpec(_width(document, "slots"), (edges,))
            _require_all(document, {"times": ArraySpec("I64", (edges,)), "slots": slots})
            for name in schema.edges[edge_type].weights:
                timed = documents[timed_weights_path(part, edge_type, time, name)]
                _require_all(timed, {"sums": ArraySpec("I64", (edges,))})
    for node_type, nodes in schema.nodes.items():
        rows = nodes.bounds[part + 1] - nodes.bounds[part]
        if nodes.columns:
            _check_columns(documents[nodes_path(part, node_type)], nodes.columns, rows)
        if nodes.splits:
            _check_splits(documents[splits_path(part, node_type)], nodes.splits)


def _check_topology(schema: GraphSchema, document: Document, edge_type: EdgeType, part: int) -> int:
    edges = schema.lists[edge_type]
    bounds = schema.nodes[schema.target_type(edge_type)].bounds
    indices = document.specs.get("indices")
    if indices is None or len(indices.shape) != 1:
        raise FormatError(f"{document.name}: no 1-D array 'indices'")
    count = indices.shape[0]
    expected = {
        "indptr": ArraySpec("I64", (bounds[part + 1] - bounds[part] + 1,)),
        "indices": ArraySpec("I64" if edges.wide_indices else "I32", (count,)),
        "edge_ids": ArraySpec(_width(document, "edge_ids"), (count,)),
    }
    if edges.weight:
        expected["weight"] = ArraySpec("F32", (count,))
    if edges.time:
        expected["time"] = ArraySpec("I64", (count,))
    _require_all(document, expected)
    indptr = document.array("indptr")
    if indptr[0] != 0 or indptr[-1] != count:
        raise FormatError(
            f"{document.name}: indptr runs from {indptr[0]} to {indptr[-1]}, not from 0 to {count}"
        )
    return count


def _width(document: Document, name: str) -> str:
    found = document.specs.get(name)
    return "I32" if found is not None and found.dtype == "I32" else "I64"


def _check_columns(document: Document, columns: Mapping[str, Column], rows: int) -> None:
    _require_all(document, {name: column.spec(rows) for name, column in columns.items()})


def _check_splits(document: Document, splits: Mapping[str, int]) -> None:
    if set(document.specs) != set(splits):
        raise FormatError(
            f"{document.name}: splits {sorted(document.specs)}, the schema says {sorted(splits)}"
        )
    for name, spec in document.specs.items():
        if spec.dtype != "I64" or len(spec.shape) != 1:
            raise FormatError(f"{document.name}: {name!r} is {spec.dtype} {list(spec.shape)}, not I64 [n]")


def _require_all(document: Document, expected: Mapping[str, ArraySpec]) -> None:
    for name, spec in expected.items():
        document.require(name, spec)
    if extra := set(document.specs) - set(expected):
        raise FormatError(f"{document.name}: {min(extra)!r} is not in the schema")


def verify_graph(
    schema: GraphSchema,
    documents: Mapping[str, Document],
    directories: Mapping[NodeType, Directory],
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Read every byte of the opened files. Raises ``FormatError`` at the first fault."""
    total = sum(document.layout.nbytes for document in documents.values())
    done = 0

    def report(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(done, total)

    for document in documents.values():
        document.verify(report)
    for node_type, directory in directories.items():
        _verify_ids(directory, ids_path(node_type))
    for part in range(schema.num_partitions):
        _verify_part(schema, documents, part)


def _verify_part(schema: GraphSchema, documents: Mapping[str, Document], part: int) -> None:
    for edge_type in schema.lists:
        document = documents.get(topology_path(part, edge_type))
        if document is not None:
            count = schema.nodes[schema.neighbor_type(edge_type)].count
            _verify_adjacency(document, count)
    for node_type, nodes in schema.nodes.items():
        document = documents.get(splits_path(part, node_type))
        for name in () if document is None else document.specs:
            assert document is not None
            check_split(document, name, nodes.bounds[part], nodes.bounds[part + 1])


def check_split(document: Document, name: str, low: int, high: int) -> None:
    """Raise ``FormatError`` unless the positions of a split ascend and lie in ``[low, high)``."""
    what = f"{document.name}: {name!r}"
    _verify_range(document.array(name), low, high, what)
    _verify_ascending(document.array(name), what, strictly=True)


def _verify_adjacency(document: Document, neighbors: int) -> None:
    _verify_ascending(document.array("indptr"), f"{document.name}: 'indptr'", strictly=False)
    _verify_range(document.array("indices"), 0, neighbors, f"{document.name}: 'indices'")


def _verify_ascending(array: Array, what: str, *, strictly: bool) -> None:
    for start in range(0, len(array), _ROWS):
        rows = array[start : start + _ROWS + 1]
        # Compared, not subtracted: the difference of ids may exceed int64.
        wrong = np.flatnonzero(rows[1:] <= rows[:-1] if strictly else rows[1:] < rows[:-1])
        if len(wrong):
            raise FormatError(f"{what} falls at row {start + int(wrong[0]) + 1}")


def _verify_range(array: Array, low: int, high: int, what: str) -> None:
    for start in range(0, len(array), _ROWS):
        rows = array[start : start + _ROWS]
        wrong = np.flatnonzero((rows < low) | (rows >= high))
        if len(wrong):
            value = rows[wrong[0]]
            raise FormatError(f"{what} is {value} at row {start + int(wrong[0])}, outside [{low}, {high})")


def _verify_ids(directory: Directory, what: str) -> None:
    if directory.ids is None:
        return
    if directory.places is not None:
        _verify_range(directory.places, 0, directory.count, f"{what}: 'positions'")
    keys = directory.ids if directory.places is None else directory.keys
    if keys is not None:
        _verify_ascending(keys, f"{what}: ids in ascending order", strictly=True)
    for start in range(0, directory.count, _ROWS):
        rows = np.arange(start, min(start + _ROWS, directory.count))
        wrong = np.flatnonzero(directory.find(directory.ids[rows]) != rows)
        if len(wrong):
            raise FormatError(f"{what}: the id at row {start + int(wrong[0])} is not found again")
