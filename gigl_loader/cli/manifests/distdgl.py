"""Chunked graphs of DistDGL: ``metadata.json`` names the files of edges, and of the data of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gigl_loader.cli.manifests.entry import edge_type
from gigl_loader.partition.table import SPLIT_MASKS

if TYPE_CHECKING:
    from gigl_loader.cli.manifests.entry import Entry
    from gigl_loader.cli.manifests.listing import Listing


def read(listing: Listing) -> None:
    """Add the tables of each type. Ids are the row numbers of each type."""
    document = listing.document("metadata.json")
    chunks = "num_nodes_per_type" if "num_nodes_per_type" in document else "num_nodes_per_chunk"
    document.require("node_type", chunks, "edge_type", "edges")
    counts = document.numbers(chunks)
    for kind, count in zip(document.texts("node_type"), counts, strict=True):
        _nodes(listing, kind, count, document.entry("node_data").entry(kind))
    for kind in document.texts("edge_type"):
        entry = document.entry("edges").entry(kind)
        entry.require("format", "data")
        _edges(listing, edge_type(kind, entry.where), entry)
        _edge_data(listing, edge_type(kind, entry.where), document.entry("edge_data").entry(kind))


def _edge_data(listing: Listing, kind: tuple[str, str, str], data: Entry) -> None:
    files = {name: listing.files(data.entry(name).texts("data")) for name in data.values}
    for name, listed in files.items():
        if not all(file.endswith(".npy") for file in listed):
            listing.leave_out(f"{data.where}: {name}: of data of edges, only .npy files can be read yet")
            continue
        for file in listed:
            listing.join_npy(kind, {name: file})


def _nodes(listing: Listing, kind: str, count: int, data: Entry) -> None:
    columns: dict[str, list[str]] = {}
    rows: dict[str, list[int]] = {}
    for name in data.values:
        entry = data.entry(name)
        form = entry.entry("format").text("name")
        if form != "numpy":
            raise ValueError(
                f"{entry.where}: node data as {form} cannot be read yet: save it with numpy.save"
            )
        columns[name] = listing.files(entry.texts("data"))
        rows[name] = [listing.npy(file)[0] for file in columns[name]]
        if sum(rows[name]) != count:
            raise ValueError(f"{entry.where}: {sum(rows[name])} rows for {count} nodes")
        if name in SPLIT_MASKS:
            listing.column("dtypes", kind, name, "bool")
    if not columns:
        listing.nodes(kind, count)
        return
    if any(each != next(iter(rows.values())) for each in rows.values()):
        raise ValueError(f"{data.where}: all data of a type must be cut into files at the same rows")
    for files in zip(*columns.values(), strict=True):
        listing.nodes(kind, [",".join(f"{name}:{file}" for name, file in zip(columns, files, strict=True))])


def _edges(listing: Listing, kind: tuple[str, str, str], entry: Entry) -> None:
    form = entry.entry("format")
    files = listing.files(entry.texts("data"))
    listing.edges(kind, files)
    match form.text("name"):
        case "csv":
            listing.names(kind, ["src", "dst"])
            listing.delimiter(form.text("delimiter", " "), files[0])
        case "parquet":
            for name, end in zip(listing.table(files).columns, ("src", "dst"), strict=False):
                listing.rename(kind, name, end)
        case "numpy":
            if square := next((file for file in files if listing.npy(file) == (2, (2,))), None):
                raise ValueError(f"{square}: [2, 2] can be read in two ways: join the files of {kind}")
        case other:
            raise ValueError(f"{entry.where}: no reader for edges as {other!r}")
