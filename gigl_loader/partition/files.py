"""Files of a table: those that a text names, the reader of each, and columns in names of directories."""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeAlias
from urllib.parse import unquote

import numpy as np

from gigl_loader.arrays import Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.folder import is_uri, shown
from gigl_loader.graph.schema import Column
from gigl_loader.partition.readers import TEXT, Kind, Table
from gigl_loader.partition.readers.npy_table import edge_index_table, npy_table
from gigl_loader.partition.refusals import OptionsNeeded, foreign_directory, foreign_file
from gigl_loader.partition.views import TableView

if TYPE_CHECKING:
    from gigl_loader.partition.remote_files import RemotePath

OpenText: TypeAlias = "Callable[[Path | RemotePath], Table]"
"""Opens a text file of a table."""
LengthsOf: TypeAlias = Callable[[Iterable[str]], Mapping[str, int | None]]
"""Returns the columns, of these, that become vectors, with their lengths. ``None``: that of the first."""

logger = logging.getLogger(__name__)

_KINDS: Mapping[str, Sequence[str]] = {
    "Parquet": (".parquet", ".pq", ".parq"),
    "Arrow": (".arrow", ".feather", ".ipc"),
    "ORC": (".orc",),
    ".npy": (".npy",),
    "JSON": (".jsonl", ".ndjson"),
    "text": (".csv", ".tsv", ".psv", ".el", ".wel", ".edges", ".edgelist"),
}
_LIKELY: Sequence[Sequence[str]] = ((".txt", ".dat"), (".json",), ("",))
"""Endings of tables in a directory where no file has an ending that says more, in this order."""
_COMPRESSED = (".gz", ".bz2", ".zst", ".xz")
_MAGIC = {
    b"PAR1": "Parquet",
    b"ORC": "ORC",
    b"ARROW1": "Arrow",
    b"\x93NUMPY": ".npy",
    b"\x1f\x8b": ".gz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"PK\3\4": ".zip",
    b"\xfd7zXZ\0": ".xz",
    b"\x89HDF\r\n": ".h5",
    b"SQLite format 3\0": ".sqlite",
}
"""First bytes of files that are no texts, and their kind or ending."""
_NO_TABLES = (
    "_SUCCESS",
    "_metadata",
    "_common_metadata",
    "_committed_*",
    "_started_*",
    "*.crc",
    "*_$folder$",
)
"""Files that engines write beside those of a table."""
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_SHOWN = 100
_MAX_INTEGER = np.iinfo(np.int64).max


class _File(NamedTuple):
    """A file that a text names."""

    path: Path | RemotePath
    parts: tuple[str, ...]
    """Its path below the directory, or below the directory of a pattern."""
    nbytes: int

    @property
    def suffixes(self) -> list[str]:
        return PurePosixPath(self.parts[-1].lower()).suffixes

    @property
    def ending(self) -> str:
        """Its last suffix, before that of compressed files."""
        plain = [each for each in self.suffixes if each not in _COMPRESSED]
        return plain[-1] if plain else ""

    @property
    def kind(self) -> str:
        """Kind of table by its ending. Empty: no ending of tables."""
        if {".csv", ".tsv"} & {*self.suffixes}:
            return "text"
        return next((kind for kind, endings in _KINDS.items() if self.ending in endings), "")


def is_query(text: str) -> bool:
    """Return whether a text is a query and no name of files."""
    return re.match(r"\s*(select|with|from)\s", text, re.IGNORECASE) is not None


def open_spec(spec: str, role: str, open_text: OpenText, lengths_of: LengthsOf | None = None) -> list[Table]:
    """Open the files that a text names: a file, a pattern, a directory, a URI or a list of ``.npy`` files.

    ``role`` is that of the table. Files come in the order of their paths. A directory is read with all below
    it, and ``NAME=VALUE`` in names of directories is a column. ``lengths_of`` gives the number of
    elements that lists of numbers get.
    """
    if is_query(spec):
        from gigl_loader.partition.readers.sql_table import QueryTable

        return [_with_lengths(QueryTable(spec), lengths_of)]
    listed = spec.split(",")
    if all(each.endswith(".npy") for each in listed) and not glob.has_magic(spec) and not is_uri(spec):
        return [_open_npy(spec, listed, role)]
    patterns, found = _find(spec)
    files = [file for file in found if len(file.parts) <= len(patterns)]
    if len(files) < len(found) or not found:
        files += _tables_among([file for file in found if len(file.parts) > len(patterns)], spec)
    columns = {
        file.path.stem: file.path for file in files if file.kind == ".npy" and isinstance(file.path, Path)
    }
    if columns and not patterns:
        return [npy_table(spec, columns)]
    # Engines write empty files for tasks without a row.
    files = [file for file in files if file.nbytes or file.kind not in ("text", "")] or files[:1]
    files = sorted(files, key=lambda file: file.parts)
    values = _directory_columns(files, patterns, spec)
    tables = [_open_file(file, role, open_text) for file in files]
    tables = [table if columns else _with_lengths(table, lengths_of) for table in tables]
    return [_WithDirectories(*each) if each[1] else each[0] for each in zip(tables, values, strict=True)]


def _find(spec: str) -> tuple[list[str], list[_File]]:
    """Return the parts of the pattern, and the files that match it or lie below directories that do.

    A file is a pattern of one part, a directory one of none.
    """
    if is_uri(spec):
        from gigl_loader.partition.remote_files import remote_files

        patterns, listed = remote_files(spec)
        files = [_File(*each) for each in listed]
    else:
        patterns = _patterns(spec)
        base = Path(*Path(spec).parts[: len(Path(spec).parts) - len(patterns)])
        matches = [Path(spec)] if Path(spec).exists() else map(Path, sorted(glob.glob(spec)))
        files = [
            _File(file, file.relative_to(base).parts, file.stat().st_size)
            for match in matches
            for file in (_below(match) if match.is_dir() else [match])
        ]
    files.sort(key=lambda file: file.parts)
    if (refusal := foreign_directory(shown(spec), [file.parts for file in files])) is not None:
        raise refusal
    kept = [file for file in files if file.parts == tuple(patterns) or not _is_hidden(file)]
    if patterns and not kept:
        raise FileNotFoundError(f"{shown(spec)}: no file matches")
    return patterns, kept


def _patterns(spec: str) -> list[str]:
    path = Path(spec)
    if path.exists():
        return [] if path.is_dir() else [path.name]
    at = next((at for at, part in enumerate(path.parts) if glob.has_magic(part)), None)
    if at is None:
        raise FileNotFoundError(2, "no such file", spec)
    return list(path.parts[at:])


def _below(directory: Path) -> Iterator[Path]:
    """Yield the files below a directory."""
    seen = set()
    for root, _, names in os.walk(directory, onerror=_raise, followlinks=True):
        if (real := os.path.realpath(root)) in seen:
            raise FormatError(f"{root}: a link to {real}, whose files are read already")
        seen.add(real)
        yield from (Path(root, name) for name in names)


def _raise(error: OSError) -> NoReturn:
    raise error


def _is_hidden(file: _File) -> bool:
    name = file.parts[-1]
    return any(part.startswith(".") for part in file.parts) or any(
        fnmatchcase(name, each) for each in _NO_TABLES
    )


def _tables_among(files: Sequence[_File], spec: str) -> list[_File]:
    """Return the files of a directory that are its table; a warning names the others."""
    usual = [file for file in files if not any(part[0] == "_" and "=" not in part for part in file.parts)]
    found = [file for file in usual if file.kind and (file.kind != ".npy" or len(file.parts) == 1)]
    for endings in _LIKELY:
        found = found or [file for file in usual if file.ending in endings]
    if not found:
        refusals = (foreign_file(file.path, file.ending) for file in files)
        listed = f"; its files: {_listed(file.parts for file in files)}" if files else ""
        raise next(
            filter(None, refusals), FileNotFoundError(f"{shown(spec)}: a directory without tables{listed}")
        )
    first = {file.kind or "text": file for file in reversed(found)}
    if len(first) > 1:
        held = ", ".join(f"{kind} ({'/'.join(file.parts)})" for kind, file in first.items())
        meant = " or ".join(_pattern_of(file, found, spec) for file in first.values())
        raise FormatError(f"{shown(spec)}: holds tables of {len(first)} kinds, {held}: give {meant}")
    if left := [file.parts for file in files if file not in found]:
        logger.warning("%s: files that are not read: %s", shown(spec), _listed(left))
    return found


def _listed(paths: Iterable[Sequence[str]]) -> str:
    names = sorted("/".join(parts) for parts in paths)
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _pattern_of(file: _File, files: Sequence[_File], spec: str) -> str:
    """Return a text that names the files of a directory that are of the kind of one of them."""
    if file.kind == ".npy":
        return ",".join(str(each.path) for each in files if each.kind == ".npy")
    folders = [part.partition("=")[0] + "=*" if "=" in part else "*" for part in file.parts[:-1]]
    return "'" + "/".join([shown(spec).rstrip("/"), *folders, "*" + "".join(file.suffixes[-1:])]) + "'"


def _directory_columns(files: Sequence[_File], patterns: Sequence[str], spec: str) -> list[dict[str, Array]]:
    """Return for each file the value, masked [1], of each column that its directories give.

    Of the directories that a pattern names, these are the ones that it writes as ``NAME=``.
    """
    texts: list[dict[str, str]] = []
    for file in files:
        named = [
            part for at, part in enumerate(file.parts[:-1]) if at >= len(patterns) or "=" in patterns[at]
        ]
        pairs = (part.partition("=") for part in named)
        texts.append({unquote(name): unquote(value) for name, equals, value in pairs if name and equals})
    for file, found in zip(files, texts, strict=True):
        if missing := texts[0].keys() ^ found.keys():
            given = [_pattern_of(one, files, spec) for one in (files[0], file)]
            if {each.kind for each in files} == {"Parquet"} and not is_uri(spec):
                given.append(f"SELECT * FROM read_parquet('{spec}/**/*.parquet', hive_partitioning = false)")
            what = f"{files[0].path} and {file.path}: only one lies in a directory {min(missing)}=..."
            if patterns:
                raise FormatError(f"{what}: give each kind by a pattern of its own")
            what += f": give {given[0]} or {given[1]}"
            raise OptionsNeeded([what], files=[{spec: each.strip("'")} for each in given])
    columns = {name: _values_of([found[name] for found in texts]) for name in texts[0]}
    return [{name: values[at : at + 1] for name, values in columns.items()} for at in range(len(files))]


def _values_of(texts: Sequence[str]) -> Array:
    """Return integers where all texts are as integers print, masked where missing, or else the texts."""
    missing = [text == _HIVE_NULL for text in texts]
    if not all(missing) and all(gone or _is_integer(text) for text, gone in zip(texts, missing, strict=True)):
        values = np.array([0 if text == _HIVE_NULL else int(text) for text in texts])
        return np.ma.MaskedArray(values, missing) if any(missing) else values
    return np.array(["" if text == _HIVE_NULL else text for text in texts], object)


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and str(int(text)) == text and abs(int(text)) <= _MAX_INTEGER


class _WithDirectories(TableView):
    """A file with columns whose one value stands in the names of its directories."""

    def __init__(self, table: Table, values: Mapping[str, Array]) -> None:
        super().__init__(table)
        if both := table.columns.keys() & values.keys():
            raise FormatError(
                f"{table.name}: column {min(both)!r} is in the file and in the name of its directory: "
                "give the files by a pattern with * for the directories"
            )
        self._constants = values
        kinds: dict[str, Kind] = {
            name: TEXT if value.dtype == object else Column("I64") for name, value in values.items()
        }
        self.columns = {**table.columns, **kinds}

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        own = [name for name in names if name not in self._constants] or list(self._table.columns)[:1]
        for chunk in self._table.read(own, rows):
            count = len(chunk[own[0]])
            yield {
                name: self._constants[name].repeat(count) if name in self._constants else chunk[name]
                for name in names
            }


def _open_file(file: _File, role: str, open_text: OpenText) -> Table:
    path = file.path
    if isinstance(path, Path) and not path.is_file():
        raise FormatError(f"{path}: no regular file: tables are read several times")
    kind = file.kind or ("JSON" if file.ending == ".json" else "")
    if (refusal := foreign_file(path, file.ending)) is not None:
        raise refusal
    if kind in ("text", ""):
        kind = _kind_by_content(file)
    if kind == "Parquet":
        from gigl_loader.partition.readers.arrow_files import ParquetTable

        return ParquetTable(path)
    if kind in ("Arrow", "ORC"):
        from gigl_loader.partition.readers.arrow_files import ArrowFileTable

        return ArrowFileTable(path, kind)
    if kind == "JSON":
        from gigl_loader.partition.readers.sql_table import json_table

        return json_table(path)
    if kind == ".npy":
        if not isinstance(path, Path):
            raise ValueError(f"{path}: .npy files are read from a disk: copy it to one")
        return _open_npy(str(path), [str(path)], role)
    return open_text(path)


def _with_lengths(table: Table, lengths_of: LengthsOf | None) -> Table:
    if lengths_of is None:
        return table
    from gigl_loader.partition.readers.arrow import with_lengths

    return with_lengths(table, lengths_of(table.columns))


def _kind_by_content(file: _File) -> str:
    """Return the kind of a file without an ending of another kind, by its first bytes."""
    with file.path.open("rb") if isinstance(file.path, Path) else file.path.open_file() as opened:
        begin = bytes(opened.read(512))
    kind = next((kind for magic, kind in _MAGIC.items() if begin.startswith(magic)), "text")
    if kind == "text" or kind in _COMPRESSED:
        return "text"
    if kind not in _KINDS:
        raise foreign_file(file.path, kind) or FormatError(f"{file.path}: no text")
    # The first letters of a text may be the same.
    return kind if min(begin) < ord("\t") else "text"


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
    if len(columns) == 1 and role == "edges":
        return edge_index_table(*columns.values())
    only = {"ids": "id", "owners": "part"}.get(role)
    return npy_table(spec, {only: path} if len(columns) == 1 and only else columns)
