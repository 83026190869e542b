"""Files of a table: those that a text names, and the reader of each."""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from gigl_loader.graph.folder import is_uri
from gigl_loader.partition.readers import Table
from gigl_loader.partition.readers.npy_table import edge_index_table, npy_table

if TYPE_CHECKING:
    from gigl_loader.partition.remote_files import RemotePath

    OpenText: TypeAlias = Callable[[Path | RemotePath], Table]
    """Opens a text file of a table."""

_CSV = (".csv", ".tsv")


def open_spec(spec: str, role: str, open_text: OpenText) -> list[Table]:
    """Open the files that a text names: a file, a pattern, a directory, a URI or a list of ``.npy`` files.

    ``role`` is that of the table. ``FileNotFoundError`` where there are none.
    """
    if is_uri(spec):
        from gigl_loader.partition.remote_files import remote_paths

        return [_open_file(path, open_text) for path in remote_paths(spec)]
    parts = spec.split(",")
    if all(part.endswith(".npy") for part in parts):
        return [_open_npy(spec, parts, role)]
    path = Path(spec)
    if path.is_dir():
        return _open_directory(path, open_text)
    matches = [spec] if path.exists() else sorted(glob.glob(spec))
    if not matches:
        raise FileNotFoundError(2, "no such file", spec)
    return [_open_file(Path(match), open_text) for match in matches]


def _open_directory(path: Path, open_text: OpenText) -> list[Table]:
    columns = {file.stem: file for file in sorted(path.glob("*.npy"))}
    if columns:
        return [npy_table(str(path), columns)]
    files = sorted(file for file in path.iterdir() if _is_table(file))
    if not files:
        raise FileNotFoundError(2, "no .npy, .parquet or .csv files here", str(path))
    return [_open_file(file, open_text) for file in files]


def _open_npy(spec: str, parts: Sequence[str], role: str) -> Table:
    columns: dict[str, Path] = {}
    for part in parts:
        name, colon, rest = part.partition(":")
        path = Path(rest) if colon and not Path(part).exists() else Path(part)
        name = name if colon and not Path(part).exists() else path.stem
        if name in columns:
            raise ValueError(f"{spec}: column {name!r} is given twice")
        if not path.exists():
            raise FileNotFoundError(2, "no such file", str(path))
        columns[name] = path
    if role == "edges" and len(columns) == 1:
        return edge_index_table(next(iter(columns.values())))
    if role == "ids" and len(columns) == 1:
        return npy_table(spec, {"id": next(iter(columns.values()))})
    if role == "owners" and len(columns) == 1:
        return npy_table(spec, {"part": next(iter(columns.values()))})
    return npy_table(spec, columns)


def _is_table(path: Path) -> bool:
    return path.suffix in (".parquet", ".pq") or any(suffix in _CSV for suffix in path.suffixes)


def _open_file(path: Path | RemotePath, open_text: OpenText) -> Table:
    if path.suffix in (".parquet", ".pq"):
        from gigl_loader.partition.readers.parquet_table import ParquetTable

        return ParquetTable(path)
    if any(suffix in _CSV for suffix in path.suffixes):
        return open_text(path)
    kinds = ".npy, .parquet, .csv or .tsv" if isinstance(path, Path) else ".parquet, .csv or .tsv"
    raise ValueError(f"{path}: no reader for this kind of file; give {kinds}")
