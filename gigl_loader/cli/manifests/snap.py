"""Edge lists of SNAP: a text file, with ``# FromNodeId ToNodeId`` or nothing before the edges."""

from __future__ import annotations

import gzip
from itertools import islice
from typing import TYPE_CHECKING

from gigl_loader.graph.schema import HOMOGENEOUS_EDGE

if TYPE_CHECKING:
    from gigl_loader.cli.manifests.listing import Listing

_ENDS = ["src", "dst"]
_MAX_COMMENTS = 1000


def read(listing: Listing) -> None:
    """Add the file. Its first two columns are the ends."""
    if listing.path.is_dir():
        raise ValueError(f"{listing.path}: give the file of edges")
    opened = gzip.open if listing.path.suffix == ".gz" else open
    with opened(listing.path, "rt", encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in islice(file, _MAX_COMMENTS)]
    comments = [line[1:] for line in lines if line.startswith("#")]
    first = next((line for line in lines if line and not line.startswith("#")), "")
    delimiter = next((mark for mark in "\t, " if mark in first), "\t")
    values = [each.strip() for each in first.split(delimiter)]
    named = next((line.split() for line in reversed(comments) if line.split()[:1] == ["FromNodeId"]), [])
    listing.edges(HOMOGENEOUS_EDGE, [str(listing.path)])
    listing.delimiter(delimiter, str(listing.path))
    if any(line.split()[:1] == ["Undirected"] for line in comments) and not listing.given.undirected:
        listing.leave_out(
            "reversed edges: the graph is undirected; if each edge is there once, add --undirected"
        )
    if listing.given.csv_columns:
        return
    if not values[0].lstrip("-").isdigit():
        for name, end in zip(values, _ENDS, strict=False):
            listing.rename(HOMOGENEOUS_EDGE, name, end)
        return
    names = [*_ENDS, *named[2:]]
    if len(names) != len(values):
        raise ValueError(
            f"{listing.path}: {len(values)} columns, and no line names them: add --csv-columns src,dst,NAME"
        )
    listing.names(HOMOGENEOUS_EDGE, names)
