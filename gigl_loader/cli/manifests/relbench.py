"""Databases of RelBench (Robinson et al., 2024): ``db/*.parquet``, whose metadata name keys and times."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from gigl_loader.cli.schema_file import RelationalTable, check_keys
from gigl_loader.strict_json import read_json

if TYPE_CHECKING:
    from gigl_loader.cli.manifests.listing import Listing

_KEYS = ("pkey_col", "fkey_col_to_pkey_table", "time_col")
_MAX_BYTES = 1 << 20


def read(listing: Listing) -> None:
    """Add a relational table for each file of ``db/``, or of the directory itself."""
    folder = listing.path / "db" if (listing.path / "db").is_dir() else listing.path
    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise FileNotFoundError(2, "no tables of relbench", f"{folder}/*.parquet")
    tables = [_table(listing, file) for file in files]
    check_keys(tables, listing.path)
    listing.relational += tables


def _table(listing: Listing, file: Path) -> RelationalTable:
    primary, foreign, time = (_value(file, pq.read_schema(file).metadata or {}, key) for key in _KEYS)
    return RelationalTable(
        file.stem,
        (str(file),),
        None if primary is None else str(primary),
        {str(column): str(target) for column, target in (foreign or {}).items()},
        None if time is None else str(time),
        {},
    )


def _value(file: Path, metadata: Mapping[bytes, bytes], key: str) -> Any:
    text = metadata.get(key.encode())
    if text is None:
        raise ValueError(f"{file}: no {key!r} in its metadata: this is no table of RelBench")
    return read_json(text, what=f"{file}: {key}", max_bytes=_MAX_BYTES)
