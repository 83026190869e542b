"""Columns of other files beside those of a table: ``--join [TYPE=]FILES``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from gigl_loader.partition.array_table import ArrayTable
from gigl_loader.partition.likely_ids import first_ids, likely_key, may_be_ids
from gigl_loader.partition.readers import Table
from gigl_loader.partition.readers.npy_table import NpyTable
from gigl_loader.partition.refusals import OptionsNeeded, quoted, type_text
from gigl_loader.partition.roles import Role
from gigl_loader.partition.side_by_side import beside
from gigl_loader.partition.sources import ColumnOptions, new_columns, open_files, why_left_out
from gigl_loader.partition.views import ProjectedTable, Projection, chain, reader_of


class Joined(NamedTuple):
    """A table with the columns of other files."""

    table: Table
    ids: list[str]
    """Columns by which files were looked up, which the table does not have."""


def with_joined(
    table: Table, files: Sequence[str], *, role: Role, options: ColumnOptions, drops_unknown: bool
) -> Joined:
    """Return a table with the columns of other files. They have their names in the files.

    Files with the same columns are one after the other.

    ``options`` say which columns are ids, and which of those that two files have are left out.
    """
    ids = []
    # The columns that options name are those of the table.
    of_others = replace(options, csv=replace(options.csv, columns=()))
    opened = [open_files(spec, role="nodes", options=of_others) for spec in files]
    rows: dict[frozenset[str], list[Table]] = {}
    for other in opened:
        _require_header(other)
        rows.setdefault(frozenset(other.columns), []).append(other)
    for alike in rows.values():
        other = chain(alike)
        left_out = {name for name in table.columns if why_left_out(name, options)}
        if not left_out.isdisjoint(other.columns):
            kept = [name for name in other.columns if name not in left_out]
            other = ProjectedTable(other, {name: Projection((name,)) for name in kept})
        own_id, other_id = _id_of(table, role, options), _id_of(other, "nodes", options)
        if other_id is None:
            _require_order(table, other, own_id, options)
        table = beside(table, other, ids=(own_id, other_id), drops_unknown=drops_unknown)
        ids += [other_id] if other_id is not None else []
    return Joined(table, ids)


def _id_of(table: Table, role: Role, options: ColumnOptions) -> str | None:
    """Return the column of a table that is its id."""
    columns = new_columns(list(table.columns), role=role, options=options)
    found = [name for name, new in columns.items() if new.name == "id" and not why_left_out(name, options)]
    return found[0] if found else None


def _require_order(table: Table, other: Table, own_id: str | None, options: ColumnOptions) -> None:
    """Raise ``OptionsNeeded`` for a file read row by row that has a column of ids."""
    if isinstance(reader_of(other), (ArrayTable, NpyTable)):
        return
    names = [name for name in other.columns if not why_left_out(name, options)]
    shared = next((name for name in names if own_id is None and name in table.columns), None)
    if shared is not None and may_be_ids(other, shared):
        key: str | None = shared
    else:
        key = likely_key(other, names, first_ids(table, own_id))
    if key is not None:
        scope = "" if options.type is None else f"{type_text(options.type)}:"
        what = f"no column 'id', and {key!r} looks like ids of {table.name}"
        if shared is None:
            what += f"; if both have the same rows in the same order, add --drop {scope}{quoted(key)}"
        raise OptionsNeeded([f"{other.name}: {what}"], ["--rename", f"{scope}{quoted(key)}=id"])


def _require_header(table: Table) -> None:
    """Raise ``ValueError`` for a text file whose first line is a row: it would be lost."""
    header = getattr(reader_of(table), "header", ())
    if any(name.lstrip("-").replace(".", "", 1).isdigit() for name in header):
        raise ValueError(
            f"{table.name}: its first line, {','.join(header)!r:.200}, looks like a row: name its columns by "
            f"a query, such as SELECT column0 AS y FROM read_csv('{table.name}', header = false)"
        )
