"""Rules of a frame beyond those of its container. One function per rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gigl_loader.errors import FormatError
from gigl_loader.strict_json import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gigl_loader.arrays import Bytes
    from gigl_loader.tensors import Layout

__all__ = ["MAX_HEADER_BYTES", "check"]

MAX_HEADER_BYTES = 1 << 20
"""Of a frame: some 7,000 arrays. The record of a failure has up to 300 KiB."""

Counts = dict[str, list[int]]

_REQUIRED = {"node": ("n_id",), "edge": ("rows", "colptr")}
_DTYPES = {
    ("node", "n_id"): "I64",
    ("edge", "rows"): "I32",
    ("edge", "colptr"): "I64",
    ("edge", "e_id"): "I64",
}


def check(buffer: Bytes, layout: Layout, *, edge_dir: str) -> None:
    """Raise ``FormatError`` unless every rule holds. Afterwards all local indices are in bounds."""
    _check_number(layout.metadata, "epoch")
    _check_number(layout.metadata, "batch")
    if "failure" in layout.metadata:
        _check_failure(layout)
        return
    nodes, edges = (
        _counts(layout.metadata, "num_sampled_nodes"),
        _counts(layout.metadata, "num_sampled_edges"),
    )
    _check_hops(nodes, edges)
    _check_seeds(layout, nodes)
    _check_names(layout, nodes, edges)
    _check_shapes(layout, nodes, edges)
    for edge_type in edges:
        _check_edges(buffer, layout, edge_type, nodes, edge_dir=edge_dir)


def _check_number(metadata: Mapping[str, str], key: str) -> None:
    value = _json(metadata, key)
    if type(value) is not int or not 0 <= value < 2**63:
        raise FormatError(f"frame: {key} is {metadata[key][:100]!r}, not a number from 0")


def _json(metadata: Mapping[str, str], key: str) -> Any:
    if key not in metadata:
        raise FormatError(f"frame: metadata lacks {key}")
    return read_json(metadata[key], what=f"frame: metadata {key}", max_bytes=MAX_HEADER_BYTES)


def _check_failure(layout: Layout) -> None:
    kinds = {"type": str, "message": str, "traceback": str, "worker": (int, type(None))}
    record = _json(layout.metadata, "failure")
    if not isinstance(record, dict) or record.keys() != kinds.keys():
        raise FormatError(f"frame: a failure record needs exactly {', '.join(kinds)}")
    for key, kind in kinds.items():
        if not isinstance(record[key], kind):  # type: ignore[arg-type]
            raise FormatError(f"frame: {key} of the failure record is a {type(record[key]).__name__}")
    if layout.specs:
        raise FormatError(f"frame: a failed batch has array {next(iter(layout.specs))!r}")


def _counts(metadata: Mapping[str, str], key: str) -> Counts:
    counts = _json(metadata, key)
    if not isinstance(counts, dict) or not all(_is_counts(value) for value in counts.values()):
        raise FormatError(f"frame: {key} must map types to lists of numbers per hop")
    return counts


def _is_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _check_hops(nodes: Counts, edges: Counts) -> None:
    """Nodes are counted for the seeds and every hop, edges for every hop, of each type alike."""
    lengths = {len(counts) for counts in nodes.values()} | {len(counts) + 1 for counts in edges.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise FormatError("frame: num_sampled_nodes and num_sampled_edges disagree on the number of hops")


def _check_seeds(layout: Layout, nodes: Counts) -> None:
    seed_type = _json(layout.metadata, "seed_type")
    if not isinstance(seed_type, str) or seed_type not in nodes:
        raise FormatError(f"frame: seed_type {str(seed_type)[:100]!r} is no type of num_sampled_nodes")
    for name in ("seeds", "input_id"):
        if name not in layout.specs:
            raise FormatError(f"frame: array {name!r} is missing")
        spec = layout.specs[name]
        if spec.dtype != "I64" or len(spec.shape) != 1:
            raise FormatError(f"frame: {name!r} is {spec.dtype} {list(spec.shape)}, not 1-D I64")
    seeds, inputs = (layout.specs[name].shape[0] for name in ("seeds", "input_id"))
    if seeds != inputs:
        raise FormatError(f"frame: {seeds} seeds, but {inputs} input ids")
    if nodes[seed_type][0] > seeds:
        raise FormatError(f"frame: {nodes[seed_type][0]} distinct seeds among {seeds}")


def _check_names(layout: Layout, nodes: Counts, edges: Counts) -> None:
    """Every array belongs to a counted type, and every counted type has the arrays it needs."""
    types = {"node": nodes, "edge": edges}
    for name in layout.specs:
        kind, _, rest = name.partition("/")
        type_name, _, column = rest.partition("/")
        if name in ("seeds", "input_id"):
            continue
        if kind not in types or type_name not in types[kind] or not column or "/" in column:
            raise FormatError(f"frame: array {name!r} belongs to no sampled type")
    for kind, counts in types.items():
        for type_name in counts:
            for column in _REQUIRED[kind]:
                if f"{kind}/{type_name}/{column}" not in layout.specs:
                    raise FormatError(f"frame: array '{kind}/{type_name}/{column}' is missing")


def _check_shapes(layout: Layout, nodes: Counts, edges: Counts) -> None:
    """Arrays of a type have a row per node or edge; the arrays of the format have its dtype, 1-D."""
    types = {"node": nodes, "edge": edges}
    for name, spec in layout.specs.items():
        kind, _, rest = name.partition("/")
        type_name, _, column = rest.partition("/")
        dtype = _DTYPES.get((kind, column))
        if dtype is not None and (spec.dtype != dtype or len(spec.shape) != 1):
            raise FormatError(f"frame: {name!r} is {spec.dtype} {list(spec.shape)}, not 1-D {dtype}")
        if kind in types and (kind, column) != ("edge", "colptr"):
            rows = sum(types[kind][type_name])
            if spec.shape[:1] != (rows,):
                raise FormatError(f"frame: {name!r} has shape {list(spec.shape)}, but {rows} were sampled")


def _check_edges(buffer: Bytes, layout: Layout, edge_type: str, nodes: Counts, *, edge_dir: str) -> None:
    """Rows are neighbours that exist, and colptr cuts them in groups of targets that exist."""
    neighbors, targets = (sum(nodes[name]) for name in _sides(edge_type, nodes, edge_dir))
    rows = layout.view(buffer, f"edge/{edge_type}/rows")
    colptr = layout.view(buffer, f"edge/{edge_type}/colptr")
    if not 1 <= len(colptr) <= targets + 1:
        raise FormatError(f"frame: colptr of {edge_type} has {len(colptr)} entries for {targets} nodes")
    if colptr[0] != 0 or colptr[-1] != len(rows) or (colptr[1:] < colptr[:-1]).any():
        raise FormatError(f"frame: colptr of {edge_type} does not rise from 0 to {len(rows)}")
    # As unsigned numbers, negative rows are larger than any other: one pass checks both bounds.
    if len(rows) and rows.view("u4").max() >= neighbors:
        raise FormatError(f"frame: rows of {edge_type} leave the {neighbors} sampled nodes")


def _sides(edge_type: str, nodes: Counts, edge_dir: str) -> tuple[str, str]:
    """Return the types of neighbours and targets."""
    parts = edge_type.split("+")
    if len(parts) != 3 or parts[0] not in nodes or parts[2] not in nodes:
        raise FormatError(f"frame: edge type {edge_type!r} does not join two sampled node types")
    return (parts[0], parts[2]) if edge_dir == "in" else (parts[2], parts[0])
