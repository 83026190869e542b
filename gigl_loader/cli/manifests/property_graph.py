"""Property graphs in CSV files, whose headers name ids, ends, labels and types: of Neo4j and of Neptune."""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from gigl_loader.cli.column_options import csv_format
from gigl_loader.graph.schema import EdgeType, NodeType

if TYPE_CHECKING:
    from gigl_loader.cli.manifests.listing import Listing

_ROWS = 1 << 16
_ROLE = re.compile(r".*?:(ID|START_ID|END_ID|LABEL|TYPE|IGNORE)(?:\((.*)\))?(?:\{.*\})?")
_PROPERTY = re.compile(r"(.*):(\w+(?:\[\])?)(?:\(\w+\))?(?:\{.*\})?")
_TILDES = {"~id": ":ID", "~from": ":START_ID", "~to": ":END_ID", "~label": ":LABEL"}
_NEW_NAMES = {"ID": "id", "START_ID": "src", "END_ID": "dst"}
_DTYPES = {
    "byte": "int8",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "bool": "bool",
    "boolean": "bool",
    "string": "text",
    "char": "text",
}
_DELIMITERS = ",;\t|"
_PART = r"(?:[-_.](?:part[-_.]?)?\d+|[-_.]?part[-_.]?\d+)?"


@dataclass(frozen=True, slots=True)
class _Field:
    """Column of a header such as ``movieId:ID(Movie)``, ``year:int``, ``~from`` or ``weight:Double``."""

    column: str
    """As options name it: as in the header line, or, in files without one, as its new name."""
    name: str
    role: str
    """``ID``, ``START_ID``, ``END_ID``, ``LABEL``, ``TYPE``, ``IGNORE``; empty for a property."""
    space: str
    """Ids are unique within it. Empty: the one without a name."""
    kind: str
    """Declared type of a property, in lower case."""


@dataclass(frozen=True, slots=True)
class _Source:
    """Files with one header."""

    name: str
    files: tuple[str, ...]
    fields: tuple[_Field, ...]
    delimiter: str
    has_header: bool

    def field(self, role: str) -> _Field | None:
        return next((each for each in self.fields if each.role == role), None)

    def values(self, listing: Listing, role: str) -> Iterator[set[str]]:
        """Yield the values of a column, in pieces. Nothing for a role without a column."""
        if (field := self.field(role)) is not None:
            names = () if self.has_header else [each.column for each in self.fields]
            table = listing.table(self.files, self.delimiter, names)
            for chunk in table.read([field.column], _ROWS):
                yield {str(value) for value in set(chunk[field.column].tolist())}


def read(listing: Listing) -> None:
    """Add the tables of all CSV files of a directory. No file of edges is refused."""
    if not listing.path.is_dir():
        raise ValueError(f"{listing.path}: give the directory of the CSV files")
    sources = _sources(listing)
    edges = [source for source in sources if source.field("START_ID")]
    if not edges:
        raise FileNotFoundError(2, f"no edges of {listing.form}", f"{listing.path}/*.csv")
    types = {source: _node_type(listing, source) for source in sources if source not in edges}
    for source, node_type in types.items():
        listing.nodes(node_type, source.files)
        _add(listing, source, node_type)
    for source in edges:
        kind = _edge_type(listing, source, types)
        listing.edges(kind, source.files)
        _add(listing, source, kind)


def _sources(listing: Listing) -> list[_Source]:
    """Return the files of the directory, those with one header together."""
    lines = {path: _first_lines(path) for path in sorted(listing.path.rglob("*")) if ".csv" in path.suffixes}
    headers = [path for path, (_, second) in lines.items() if "header" in path.name and not second]
    used: set[Path | None] = set()
    found: dict[tuple[str, bool, str], list[str]] = {}
    for path, (first, _) in lines.items():
        if path in headers:
            continue
        header = next((each for each in headers if _belongs(path, each)), None)
        used.add(header)
        name = re.sub(f"{_PART}$", "", _stem(path)) or _stem(path)
        found.setdefault((name, header is None, first if header is None else lines[header][0]), []).append(
            str(path)
        )
    if unused := next((each for each in headers if each not in used), None):
        raise ValueError(f"{unused}: a header, and no file of rows beside it")
    return [
        _source(listing, name, files, line, has_header=has_header)
        for (name, has_header, line), files in found.items()
    ]


def _first_lines(path: Path) -> tuple[str, str]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", errors="replace") as file:
        return file.readline().rstrip("\r\n"), file.readline().rstrip("\r\n")


def _stem(path: Path) -> str:
    return path.name.partition(".csv")[0]


def _belongs(path: Path, header: Path) -> bool:
    """Return whether a file is ``movies.csv`` or ``movies-part1.csv`` for a header ``movies-header.csv``."""
    prefix = re.sub(r"[-_.]?header$", "", _stem(header))
    return path.parent == header.parent and re.fullmatch(re.escape(prefix) + _PART, _stem(path)) is not None


def _source(listing: Listing, name: str, files: Sequence[str], line: str, *, has_header: bool) -> _Source:
    given = csv_format(listing.given).delimiter
    for mark in _DELIMITERS if given is None else [given]:
        texts = next(csv.reader([line], delimiter=mark), [])
        fields = [_field(text.strip(), number) for number, text in enumerate(texts)]
        roles = {each.role for each in fields}
        if {"START_ID", "END_ID"} <= roles or roles & {"ID", "START_ID"} == {"ID"}:
            if has_header:
                columns = listing.table(files, mark).columns
                fields = [replace(each, column=column) for each, column in zip(fields, columns, strict=True)]
            return _Source(name, tuple(files), tuple(fields), mark, has_header)
    raise ValueError(
        f"{files[0]}: its first line is no header of {listing.form}, and it has no {name}-header.csv"
    )


def _field(text: str, number: int) -> _Field:
    shown = _TILDES.get(text, text)
    if (found := _ROLE.fullmatch(shown)) is not None:
        role = found[1]
        name = _NEW_NAMES.get(role, f"{role}_{number}" if role == "IGNORE" else role)
        return _Field(name, name, role, found[2] or "", "")
    typed = _PROPERTY.fullmatch(shown)
    name, kind = (typed[1], typed[2].lower()) if typed else (shown, "")
    return _Field(name, name, "", "", kind)


def _node_type(listing: Listing, source: _Source) -> NodeType:
    """Return the ID space, else the label that all rows have, else the name of the file."""
    field = source.field("ID")
    assert field is not None
    labels = set[str]().union(*source.values(listing, "LABEL"))
    common = (
        reduce(set[str].intersection, [{*each.split(";")} - {""} for each in labels]) if labels else set()
    )
    node_type = field.space or (common.pop() if len(common) == 1 else source.name)
    if len(labels) > 1:
        listing.leave_out(f"the labels of the rows of {node_type}: {len(labels)} different ones")
    return node_type


def _edge_type(listing: Listing, source: _Source, types: Mapping[_Source, NodeType]) -> EdgeType:
    """Return the types of the ends, and the relation: that of all rows, or ``@TYPE``, or the file's name."""
    ends = [_end(listing, source, role, types) for role in ("START_ID", "END_ID")]
    relations = set[str]().union(*source.values(listing, _relation(source)))
    single = next(iter(relations), source.name)
    return ends[0], "@TYPE" if len(relations) > 1 or set(single) & set("@#") else single, ends[1]


def _relation(source: _Source) -> str:
    return "TYPE" if source.field("TYPE") else "LABEL"


def _end(listing: Listing, source: _Source, role: str, types: Mapping[_Source, NodeType]) -> NodeType:
    """Return the type of the nodes that a column names. Of several, it is that of the first row's node."""
    field = source.field(role)
    assert field is not None
    holders = {each: kind for each, kind in types.items() if each.fields and _space(each) == field.space}
    kinds = set(holders.values())
    if len(kinds) < 2:
        return kinds.pop() if kinds else field.space or "node"
    first = next(iter(next(source.values(listing, role), {""})))
    for each, kind in holders.items():
        if any(first in ids for ids in each.values(listing, "ID")):
            return kind
    raise ValueError(f"{source.files[0]}, column {field.column!r}: {first!r} is in no file of nodes")


def _space(source: _Source) -> str:
    field = source.field("ID")
    return "" if field is None else field.space


def _add(listing: Listing, source: _Source, kind: NodeType | EdgeType) -> None:
    """Add the options of the columns."""
    listing.delimiter(source.delimiter, source.files[0])
    if not source.has_header:
        listing.names(kind, [each.column for each in source.fields])
    many = not isinstance(kind, str) and kind[1] == "@TYPE"
    for field in source.fields:
        if field.role in _NEW_NAMES and (field.role != "ID" or isinstance(kind, str)):
            listing.rename(kind, field.column, _NEW_NAMES[field.role])
        elif many and field.role == _relation(source):
            listing.rename(kind, field.column, "TYPE")
            listing.column("dtypes", kind, "TYPE", "text", source=field.column)
        elif field.role:
            listing.column("drop", kind, field.column)
        else:
            _add_property(listing, field, kind)
        if field.role == "ID" and not isinstance(kind, str):
            listing.leave_out(f"{field.column!r} of {source.name}: edge ids are the row numbers")


def _add_property(listing: Listing, field: _Field, kind: NodeType | EdgeType) -> None:
    element = _DTYPES.get(field.kind.removesuffix("[]"), "text")
    if field.kind.endswith("[]") and element in ("text", "bool"):
        listing.refuse(kind, field.column, "arrays of numbers alone are read")
    listing.rename(kind, field.column, field.name)
    if field.kind.endswith("[]"):
        listing.column("vector", kind, field.name, source=field.column)
    elif field.kind in _DTYPES:
        listing.column("dtypes", kind, field.name, _DTYPES[field.kind], source=field.column)
