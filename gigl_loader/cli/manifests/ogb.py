"""Raw files of OGB (Hu et al., 2020): ``raw/*.csv.gz`` and ``split/*/*.csv.gz`` without header lines."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import TYPE_CHECKING

from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gigl_loader.cli.manifests.listing import Listing
    from gigl_loader.graph.schema import EdgeType, NodeType

_NEW_NAMES = {"node-feat": "x", "node-label": "y", "edge-feat": "edge_attr"}
_SPLITS = {"train": "train", "valid": "val", "test": "test"}
_HALVES = frozenset({"proteins", "proteinfunc", "products", "ppa", "ppassoc", "collab", "ddi"})
"""Words in names of data sets to which OGB's loaders add the reversed edges."""


def read(listing: Listing) -> None:
    """Add the tables of each type. Ids are the row numbers of each type."""
    raw = listing.path / "raw"
    if (raw / "data.npz").exists():
        raise ValueError(f"{raw / 'data.npz'}: save its arrays as .npy files, and give these")
    if (raw / "triplet-type-list.csv.gz").exists():
        _read_types(listing, raw)
    else:
        counts = _rows(raw / "num-node-list.csv.gz")
        _require_one(raw, len(counts))
        _nodes(listing, HOMOGENEOUS_NODE, int(counts[0][0]), raw.glob("node[-_]*.csv.gz"))
        _edges(listing, HOMOGENEOUS_EDGE, raw)
        _splits(listing, {HOMOGENEOUS_NODE: "."})
    words = {*listing.path.name.replace("-", "_").split("_")}
    if words & _HALVES and not listing.given.undirected:
        listing.leave_out(
            "reversed edges, which OGB's own loader adds to this data set: --undirected adds them"
        )


def _read_types(listing: Listing, raw: Path) -> None:
    types, *counts = _rows(raw / "num-node-dict.csv.gz")
    _require_one(raw, len(counts))
    for kind, count in zip(types, counts[0], strict=True):
        files = [*(raw / "node-feat" / kind).glob("*.csv.gz"), *(raw / "node-label" / kind).glob("*.csv.gz")]
        _nodes(listing, kind, int(count), files)
    for source, relation, target in _rows(raw / "triplet-type-list.csv.gz"):
        folder = raw / "relations" / "___".join((source, relation, target))
        _edges(listing, (source, relation, target), folder)
    _splits(listing, {kind: kind for kind in types})


def _nodes(listing: Listing, kind: NodeType, count: int, files: Iterable[Path]) -> None:
    columns = {_column(file): str(file) for file in sorted(files)}
    if not columns:
        listing.nodes(kind, count)
        return
    first = "y" if "y" in columns else next(iter(columns))
    listing.headless(kind, first, columns.pop(first))
    for name, path in columns.items():
        listing.join_headless(kind, name, path)


def _edges(listing: Listing, kind: EdgeType, folder: Path) -> None:
    [file] = listing.files([str((folder / "edge.csv.gz").resolve())])
    listing.names(kind, ["src", "dst"])
    listing.edges(kind, [file])
    for data in sorted(folder.glob("edge[-_]*.csv.gz")):
        listing.join_headless(kind, _column(data), str(data))


def _splits(listing: Listing, folders: dict[NodeType, str]) -> None:
    """Add the lists of ids of the one kind of split that there is."""
    kinds = sorted(each for each in (listing.path / "split").glob("*") if each.is_dir())
    if len(kinds) > 1:
        raise ValueError(
            f"{kinds[0].parent}: splits of several kinds, {', '.join(each.name for each in kinds)}"
        )
    for folder in kinds:
        if pickles := sorted(each.name for each in folder.glob("*.pt")):
            listing.leave_out(f"{', '.join(pickles)} of {folder}: pickles are never loaded")
        for kind, inner in folders.items():
            for name, split in _SPLITS.items():
                if (file := folder / inner / f"{name}.csv.gz").exists():
                    listing.names(kind, ["id"])
                    listing.split(kind, split, str(file))


def _column(file: Path) -> str:
    """Return the column that a file holds: ``node_year.csv.gz`` is ``year``."""
    stem = file.name.partition(".")[0]
    return _NEW_NAMES.get(stem, re.sub("^(node|edge)[-_]", "", stem))


def _rows(file: Path) -> list[list[str]]:
    with gzip.open(file, "rt") as lines:
        return [line.strip().split(",") for line in lines if line.strip()]


def _require_one(raw: Path, graphs: int) -> None:
    if graphs != 1:
        raise ValueError(f"{raw}: {graphs} graphs, not one")
