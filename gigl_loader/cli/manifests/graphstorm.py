"""Configurations of GraphStorm (``gconstruct-v0.1``): tables of each type, features, labels, splits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gigl_loader.cli.manifests.entry import Entry
    from gigl_loader.cli.manifests.listing import Listing
    from gigl_loader.graph.schema import EdgeType, NodeType

_SPLITS = {"train": "train", "valid": "val", "test": "test"}
_OF_TEXTS = frozenset({"tokenize_hf", "bert_hf", "edge_dst_hard_negative"})
"""Transforms whose columns cannot be stored without them."""


def read(listing: Listing) -> None:
    """Add the table of each type, with the columns that are features and labels."""
    document = listing.document("config.json")
    if (version := document.text("version", "gconstruct-v0.1")) != "gconstruct-v0.1":
        raise ValueError(f"{document.where}: version {version}, not gconstruct-v0.1")
    document.require("nodes", "edges")
    seen: set[NodeType | EdgeType] = set()
    for entry in document.entries("nodes"):
        kind = entry.text("node_type")
        _require_new(entry, kind, seen)
        ids = {entry.text("node_id_col"): "id"} if "node_id_col" in entry else {}
        listing.nodes(kind, _table(listing, entry, kind, ids))
        if not ids:
            listing.add("row_ids", listing.scope(kind))
    for entry in document.entries("edges"):
        edges = entry.edge_type("relation")
        _require_new(entry, edges, seen)
        ends = {entry.text("source_id_col"): "src", entry.text("dest_id_col"): "dst"}
        listing.edges(edges, _table(listing, entry, edges, ends))


def _require_new(entry: Entry, kind: NodeType | EdgeType, seen: set[NodeType | EdgeType]) -> None:
    if kind in seen:
        raise ValueError(f"{entry.where}: {kind} again: tables side by side cannot be read yet")
    seen.add(kind)


def _table(listing: Listing, entry: Entry, kind: NodeType | EdgeType, roles: dict[str, str]) -> list[str]:
    """Add the options of a table, and return its files."""
    files, form = listing.files(entry.texts("files")), entry.entry("format").text("name").lower()
    if form not in ("csv", "json", "parquet"):
        raise ValueError(f"{entry.where}: no reader for {form}: write it as Parquet")
    delimiter = entry.entry("format").text("separator", ",") if form == "csv" else None
    if delimiter is not None:
        listing.delimiter(delimiter, files[0])
    names = list(listing.table(files, delimiter).columns)
    new = _labels(listing, entry, kind) | roles
    for name, role in new.items():
        listing.rename(kind, name, role)
    used = {*new}
    for feature in entry.entries("features"):
        used |= _feature(listing, feature, kind, used)
    if missing := sorted(used - {*names}):
        raise ValueError(f"{files[0]}: no column {missing[0]!r}; columns: {', '.join(map(repr, names))}")
    for name in names:
        if name not in used:
            listing.column("drop", kind, name)
    return files


def _feature(listing: Listing, feature: Entry, kind: NodeType | EdgeType, used: set[str]) -> set[str]:
    """Add the options of a feature, and return the columns that it takes."""
    columns, transform = feature.texts("feature_col"), feature.entry("transform")
    name = feature.text("feature_name", columns[0] if columns else None)
    how = transform.text("name", "no-op")
    if used & {*columns} or how in _OF_TEXTS or "separator" in transform:
        reason = f"transform {how}" if not used & {*columns} else "its column has another role"
        listing.leave_out(f"feature {name!r} of {kind}: {reason}")
        return set()
    if len(columns) > 1:
        listing.column("stack", kind, name, ",".join(columns))
    else:
        listing.rename(kind, columns[0], name)
    if how == "to_categorical":
        listing.column("dtypes", kind, name, "text", source=columns[0])
        listing.column("one_hot", kind, name, source=columns[0])
    elif transform.values:
        listing.leave_out(f"transform {how} of feature {name!r} of {kind}: it is stored as it is")
    if "out_dtype" in feature and how != "to_categorical":
        listing.column("dtypes", kind, name, feature.text("out_dtype"), source=columns[0])
    return {*columns}


def _labels(listing: Listing, entry: Entry, kind: NodeType | EdgeType) -> dict[str, str]:
    """Add the splits of the labels, and return the columns of labels with their names."""
    labels = list(entry.entries("labels"))
    for label in labels[:1]:
        _split(listing, label, kind, entry.text("node_id_col", "id"))
    for label in labels[1:]:
        listing.leave_out(f"splits of label {label.text('label_col', '')!r} of {kind}: a type has one split")
    columns = list(dict.fromkeys(label.text("label_col") for label in labels if "label_col" in label))
    if len(columns) == 1:
        return {columns[0]: "y" if isinstance(kind, str) else "label"}
    return {name: name for name in columns}


def _split(listing: Listing, label: Entry, kind: NodeType | EdgeType, ids: str) -> None:
    custom = label.entry("custom_split_filenames")
    if not custom.values:
        fractions = ",".join(map(str, label.values.get("split_pct", (0.8, 0.1, 0.1))))
        listing.add(
            "split_nodes" if isinstance(kind, str) else "split_edges", f"{listing.scope(kind)}={fractions}"
        )
    elif not isinstance(kind, str):
        listing.leave_out(f"custom_split_filenames of {kind}: splits of edges by id")
    elif custom.texts("column") not in ([], [ids]):
        raise ValueError(f"{custom.where}: column must be {ids!r}, the ids of {kind}")
    else:
        for key, split in _SPLITS.items():
            files = listing.files(custom.texts(key))
            if len(files) > 1:
                raise ValueError(f"{custom.where}: {key} has {len(files)} files: write one")
            for file in files:
                listing.split(kind, split, file)
                if file.endswith(".json"):  # An id in each line.
                    listing.names(kind, ["id"])
