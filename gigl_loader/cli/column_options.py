"""Options for columns, ``[TYPE:]COLUMN[=VALUE]``, sorted by the tables that they are for."""

from __future__ import annotations

import glob
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from gigl_loader.graph.schema import EdgeType, NodeType
from gigl_loader.partition.readers import Table
from gigl_loader.partition.readers.text_format import CsvFormat
from gigl_loader.partition.refusals import type_text
from gigl_loader.partition.roles import Role, end_names, has_type
from gigl_loader.partition.sources import ColumnOptions, column_sources

if TYPE_CHECKING:
    from gigl_loader.cli.build_options import TableOptions

TableType = NodeType | EdgeType

_BEFORE_EQUALS = re.compile(r'((?:"(?:[^"]|"")*"|[^"=])*)=(.*)', re.DOTALL)


def csv_format(options: TableOptions) -> CsvFormat:
    """Return the format of text files, without names of columns."""
    names = {"tab": "\t", "\\t": "\t", "space": " "}
    delimiter = options.csv_delimiter and names.get(options.csv_delimiter, options.csv_delimiter)
    quote = "" if options.csv_quote == "none" else options.csv_quote
    return CsvFormat(delimiter, quote, encoding=options.csv_encoding)


def table_type(text: str) -> TableType:
    """Return a type by its name in options. ``ValueError`` for what is none."""
    parts = names_of(text)
    if not all(parts) or len(parts) not in (1, 3):
        raise ValueError(f"{text!r} is no type: a node type is one name, an edge type three, with commas")
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else parts[0]


def before_equals(value: str) -> tuple[str, str | None]:
    """Return a value up to its first equals sign outside quotes, and what follows it, if there is one."""
    found = _BEFORE_EQUALS.fullmatch(value)
    return (value, None) if found is None else (found[1], found[2])


def scope_of(value: str, types: Iterable[TableType]) -> tuple[TableType | None, str]:
    """Return the type that an option's value begins with, and the rest. ``None``: it begins with none."""
    scopes = {f"{text}:": kind for kind in types for text in (type_text(kind), _unquoted(kind))}
    scope = max((each for each in scopes if value.startswith(each)), key=len, default="")
    return scopes.get(scope), value[len(scope) :]


def _unquoted(kind: TableType) -> str:
    return kind if isinstance(kind, str) else ",".join(kind)


def name_of(text: str, end: str = "=") -> tuple[str, str | None, bool]:
    """Return the column that a text begins with, what follows ``end``, and whether the name was quoted.

    In double quotes, a name may have any character; quotes in it are doubled.
    """
    at = 1
    while text.startswith('"') and (at := text.find('"', at)) > 0:
        if not text.startswith('"', at + 1):
            rest = text[at + 1 :]
            if rest and not rest.startswith(end):
                break
            return text[1:at].replace('""', '"'), rest[len(end) :] if rest else None, True
        at += 2
    name, found, rest = text.partition(end)
    return name, rest if found else None, False


def names_of(text: str, *, patterns: bool = False) -> tuple[str, ...]:
    """Return the columns of a list with commas. As ``patterns``, those in quotes match themselves alone."""
    found: list[str] = []
    rest: str | None = text
    while rest is not None:
        name, rest, quoted = name_of(rest, ",")
        found.append(glob.escape(name) if quoted and patterns else name)
    return tuple(found)


def column_of(
    value: str, types: Iterable[TableType], columns: Collection[str]
) -> tuple[TableType | None, str, str | None]:
    """Return the type, the column and the value of ``[TYPE:]COLUMN[=VALUE]``, given all columns.

    A type that is not there is returned as well, for the caller to name it.
    """
    kind, text = scope_of(value, types)
    name, rest, quoted = name_of(text)
    if kind is None and not quoted and name not in columns and ":" in name:
        scope, _, name = name.rpartition(":")
        kind = table_type(scope)
    return kind, name, rest


@dataclass(slots=True)
class OptionsByTable:
    """Column options by type. Options under ``None`` apply to every table that has such a column."""

    csv: CsvFormat
    types: Collection[TableType]
    by_type: dict[TableType | None, ColumnOptions] = field(default_factory=dict)
    csv_columns: list[tuple[TableType | None, tuple[str, ...]]] = field(default_factory=list)
    joins: Mapping[TableType, Sequence[str]] = field(default_factory=dict)
    """Files whose columns stand beside those of a table."""
    drops_unknown: bool = False
    """Leave out rows of these files with ids that the table lacks."""

    def add(self, option: str, value: str, kind: str) -> None:
        """Add the value of an option. ``kind`` is the field of ``ColumnOptions`` that it is for."""
        key, text = scope_of(value, self.types)
        if kind == "csv_columns":
            self._add_csv_columns(key, text)
            return
        found = self.by_type.get(key, ColumnOptions())
        if kind in ("drop", "keep"):
            names: Any = names_of(text, patterns=True) if kind == "drop" else (name_of(text)[0],)
            self.by_type[key] = _with(found, kind, (*getattr(found, kind), *names))
            return
        name, rest, quoted = name_of(text)
        if kind == "vector":
            if not name or not (rest is None or rest.isdecimal()):
                raise ValueError(f"{option} {value}: write {option} [TYPE:]COLUMN or [TYPE:]COLUMN=LENGTH")
            length = None if rest is None else int(rest)
            self.by_type[key] = _with(found, kind, {**found.vector, name: length})
            return
        if not rest or not (name or kind == "rename"):  # An index of pandas has no name.
            raise ValueError(f"{option} {value}: write {option} [TYPE:]NAME=VALUE")
        if quoted and kind == "fill":
            name = glob.escape(name)
        self.by_type[key] = _with(found, kind, {**getattr(found, kind), name: rest})

    def number_rows(self, node_type: NodeType) -> None:
        """Let no column of a type become its ids by convention."""
        self.by_type[node_type] = replace(self.by_type.get(node_type, ColumnOptions()), row_ids=True)

    def _add_csv_columns(self, key: TableType | None, text: str) -> None:
        names = names_of(text)
        if key is None and (strange := [name for name in names if ":" in name and not has_type(name)]):
            scope = text[: text.index(strange[0]) + strange[0].rindex(":")]
            given = ", ".join(map(type_text, self.types))
            raise ValueError(f"no table of type {scope}; given: {given}")
        self.csv_columns.append((key, names))

    def csv_of(self, key: TableType, role: Role) -> CsvFormat:
        """Return the format of the CSV files of a table. Names with an end are of edges, ``id`` of splits."""
        by_scope = sorted(self.csv_columns, key=lambda each: (each[0] is None, each[1] == ("id",)))
        for scope, names in by_scope:
            fits = scope == key or (scope is None and self._names_ends(names) == (role == "edges"))
            if fits and (role != "ids" or names == ("id",)):
                return replace(self.csv, columns=names)
        return self.csv

    def _names_ends(self, names: Sequence[str]) -> bool:
        edge_types = [kind for kind in self.types if isinstance(kind, tuple)]
        return not {"src", "dst"}.isdisjoint(names) or any(end_names(names, kind) for kind in edge_types)

    def of_reader(self, key: TableType, role: Role) -> ColumnOptions:
        """Return what a reader must know before it sees the columns: names and dtypes, used or not."""
        shared, own = self.by_type.get(None, ColumnOptions()), self.by_type.get(key, ColumnOptions())
        return ColumnOptions(
            rename={**shared.rename, **own.rename},
            stack={**shared.stack, **own.stack},
            drop=(*shared.drop, *own.drop),
            vector={**shared.vector, **own.vector},
            dtypes={**shared.dtypes, **own.dtypes},
            csv=self.csv_of(key, role),
            type=key,
            keep=(*shared.keep, *own.keep),
            row_ids=own.row_ids,
        )

    def of(self, key: TableType, table: Table, role: Role, *, gone: Collection[str] = ()) -> ColumnOptions:
        """Return the options for one table: its own, and the general ones that apply to its columns.

        Names of columns that are ``gone`` may be those of columns of the table, too.
        """
        names = list(table.columns)
        shared = self.by_type.get(None, ColumnOptions())
        own = self.by_type.get(key, ColumnOptions())
        own_names = {old: new for old, new in own.rename.items() if old in names or old not in gone}
        options = replace(
            self.of_reader(key, role),
            rename={old: new for old, new in shared.rename.items() if old in names} | own_names,
            stack={new: p for new, p in shared.stack.items() if _all_match(p, names)} | dict(own.stack),
            drop=(*(pattern for pattern in shared.drop if _matches(pattern, names)), *own.drop),
            dtypes={},
        )
        final = column_sources(table, role=role, options=options)
        dtypes = {name: dtype for name, dtype in shared.dtypes.items() if name in final}
        fill = {name: value for name, value in shared.fill.items() if _matches(name, [*names, *final])}
        vector = {name: each for name, each in shared.vector.items() if name in {*names, *final}}
        return replace(
            options,
            dtypes=dtypes | dict(own.dtypes),
            fill=fill | dict(own.fill),
            vector=vector | dict(own.vector),
        )

    def require_used(self, keys: Iterable[TableType], columns: Iterable[str]) -> None:
        """Raise ``ValueError`` for options that apply to nothing."""
        known, names = set(keys), set(columns)
        shared = self.by_type.get(None, ColumnOptions())
        stacked = [pattern.strip() for listed in shared.stack.values() for pattern in listed.split(",")]
        given = (*shared.rename, *shared.dtypes, *shared.vector)
        exact = [name for name in given if name not in names]
        patterns = [each for each in (*stacked, *shared.drop, *shared.fill) if not _matches(each, names)]
        if unmatched := [*exact, *patterns]:
            listed = ", ".join(map(repr, dict.fromkeys(unmatched)))
            if scopes := [pattern.partition(":")[0] for pattern in unmatched if ":" in pattern]:
                raise ValueError(
                    f"no table of type {scopes[0]}; given: {', '.join(map(type_text, known))}; "
                    f"and no table has a column {listed}"
                )
            raise ValueError(f"no table has a column {listed}; columns: {', '.join(sorted(names))}")


def _with(options: ColumnOptions, name: str, value: Any) -> ColumnOptions:
    return replace(options, **{name: value})


def _matches(pattern: str, names: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _all_match(patterns: str, names: Sequence[str]) -> bool:
    return all(_matches(pattern.strip(), names) for pattern in patterns.split(","))
