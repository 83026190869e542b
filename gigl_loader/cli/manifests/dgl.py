"""CSV data sets of DGL: ``meta.yaml`` names a file of each type, with a header line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from gigl_loader.partition.readers import TEXT
from gigl_loader.partition.table import SPLIT_MASKS

if TYPE_CHECKING:
    from gigl_loader.cli.manifests.entry import Entry
    from gigl_loader.cli.manifests.listing import Listing
    from gigl_loader.graph.schema import EdgeType, NodeType


def read(listing: Listing) -> None:
    """Add the tables of nodes and edges. A data set of several graphs is refused."""
    document = listing.document("meta.yaml")
    document.require("node_data", "edge_data")
    if "graph_data" in document:
        raise ValueError(f"{document.where}: graph_data: a data set of several graphs is no graph")
    listing.delimiter(document.text("separator", ","), document.where)
    for entry in document.entries("node_data"):
        kind = entry.text("ntype", HOMOGENEOUS_NODE)
        roles = {entry.text("node_id_field", "node_id"): "id"}
        columns = _columns(listing, document, entry, kind, roles)
        listing.nodes(kind, listing.files([entry.text("file_name")]))
        for mask in SPLIT_MASKS.keys() & columns:
            listing.column("dtypes", kind, mask, "bool")
    for entry in document.entries("edge_data"):
        edges = entry.edge_type("etype", HOMOGENEOUS_EDGE)
        ends = {entry.text("src_id_field", "src_id"): "src", entry.text("dst_id_field", "dst_id"): "dst"}
        _columns(listing, document, entry, edges, ends)
        listing.edges(edges, listing.files([entry.text("file_name")]))


def _columns(
    listing: Listing, document: Entry, entry: Entry, kind: NodeType | EdgeType, roles: dict[str, str]
) -> list[str]:
    """Return the columns of a file, after renaming those that have a role."""
    [file] = listing.files([entry.text("file_name")])
    columns = listing.table([file], document.text("separator", ",")).columns
    names = list(columns)
    if (graph := entry.text("graph_id_field", "graph_id")) in names:
        raise ValueError(f"{file}: column {graph!r}: a data set of several graphs is no graph")
    for name, role in roles.items():
        if name not in names:
            raise ValueError(f"{file}: no column {name!r}; columns: {', '.join(map(repr, names))}")
        listing.rename(kind, name, role)
    for name, held in columns.items():  # As DGL, take texts for lists of numbers.
        if held == TEXT and name not in (*roles, "label"):
            listing.column("vector", kind, name)
    return names
