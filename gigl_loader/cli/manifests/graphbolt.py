"""On-disk data sets of GraphBolt: ``metadata.yaml`` names files of edges, features and seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE

if TYPE_CHECKING:
    from gigl_loader.cli.manifests.entry import Entry
    from gigl_loader.cli.manifests.listing import Listing

_SETS = {"train_set": "train", "validation_set": "val", "test_set": "test"}


def read(listing: Listing) -> None:
    """Add the tables of each type, and seeds of nodes as splits. Ids are the row numbers of each type."""
    document = listing.document("metadata.yaml")
    if "graph_topology" in document:
        raise ValueError(
            f"{document.where}: graph_topology is a pickle: give the metadata.yaml of the raw data"
        )
    document.require("graph")
    features = list(document.entries("feature_data"))
    for entry in document.entry("graph").entries("nodes"):
        _nodes(listing, entry, features)
    for entry in document.entry("graph").entries("edges"):
        _edges(listing, entry, features)
    labelled: set[str] = set()
    for task in document.entries("tasks"):
        labelled |= _splits(listing, task, labelled)


def _nodes(listing: Listing, entry: Entry, features: list[Entry]) -> None:
    kind, count = entry.text("type", HOMOGENEOUS_NODE), entry.number("num")
    columns = {
        each.text("name"): _npy(listing, each)
        for each in features
        if each.text("domain") == "node" and each.text("type", HOMOGENEOUS_NODE) == kind
    }
    for name, file in columns.items():
        if (rows := listing.npy(file)[0]) != count:
            raise ValueError(f"{file}: {rows} rows of {name!r} for {count} nodes")
    joined = ",".join(f"{name}:{file}" for name, file in columns.items())
    listing.nodes(kind, [joined] if columns else count)


def _edges(listing: Listing, entry: Entry, features: list[Entry]) -> None:
    kind, form = entry.edge_type("type", HOMOGENEOUS_EDGE), entry.text("format")
    files = listing.files([entry.text("path")])
    if form == "csv":
        listing.names(kind, ["src", "dst"])
    elif form != "numpy" or not files[0].endswith(".npy"):
        raise ValueError(f"{entry.where}: no reader for edges as {form!r}")
    elif listing.npy(files[0])[0] != 2:
        raise ValueError(f"{files[0]}: must have the shape [2, E]")
    listing.edges(kind, files)
    listing.join_npy(
        kind,
        {
            each.text("name"): _npy(listing, each)
            for each in features
            if each.text("domain") == "edge" and each.edge_type("type", HOMOGENEOUS_EDGE) == kind
        },
    )


def _splits(listing: Listing, task: Entry, labelled: set[str]) -> set[str]:
    """Add the splits of a task, and labels of types that have none yet. Return the types of these."""
    name, found = task.text("name", "a task"), dict[str, str]()
    for key, split in _SETS.items():
        for entry in task.entries(key):
            names = ["seeds", *(f"data {number}" for number in range(1, 100))]  # Of early versions.
            data = {
                each.text("name", name): _npy(listing, each)
                for name, each in zip(names, entry.entries("data"), strict=False)
            }
            seeds = data.pop("seeds", None) or data.pop("seed_nodes", None)
            if seeds is None or listing.npy(seeds)[1] or ":" in entry.text("type", ""):
                listing.leave_out(f"{key} of {name}: seeds that are edges")
                continue
            kind = entry.text("type", HOMOGENEOUS_NODE)
            listing.split(kind, split, seeds)
            if "labels" in data and kind not in labelled:
                listing.join_npy(kind, {"id": seeds, "label": (labels := data.pop("labels"))})
                found[kind] = labels
            if data:
                listing.leave_out(f"{', '.join(data)} of {key} of {name}: columns of some nodes only")
    for kind, file in found.items():
        listing.column("fill", kind, "label", "nan" if listing.is_decimal(file) else "-1")
    return {*found}


def _npy(listing: Listing, entry: Entry) -> str:
    [file] = listing.files([entry.text("path")])
    if entry.text("format") != "numpy":
        raise ValueError(f"{file}: no reader for {entry.text('format')}: save it with numpy.save")
    return file
