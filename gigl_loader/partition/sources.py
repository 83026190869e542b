"""Options of the columns of a table, and the table with its columns named by them."""

from __future__ import annotations

import fnmatch
import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from typing_extensions import TypeIs

from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import Column, EdgeType, NodeType
from gigl_loader.partition.files import OpenText, open_spec
from gigl_loader.partition.missing_values import FilledTable
from gigl_loader.partition.readers import TEXT, NewColumn, Table
from gigl_loader.partition.readers.text_format import CsvFormat
from gigl_loader.partition.refusals import OptionsNeeded
from gigl_loader.partition.roles import ID_ROLES, Role, by_convention, is_ignored
from gigl_loader.partition.views import ProjectedTable, Projection, chain
from gigl_loader.tensors import STORAGE_DTYPES

if TYPE_CHECKING:
    from gigl_loader.partition.remote_files import RemotePath


class ArrowStream(Protocol):
    """Record batches by Arrow's PyCapsule interface: of DuckDB, Polars, ADBC, pyiceberg, Lance, ..."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


logger = logging.getLogger(__name__)


_PANDAS_INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
"""Names of the index of a data frame in the files that pandas writes. It counts rows."""


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """Names, types and fills of the columns of a table."""

    rename: Mapping[str, str] = field(default_factory=dict)
    """Column to new name. Names of conventions (``label``, ``from``, ...) have their roles without."""
    stack: Mapping[str, str] = field(default_factory=dict)
    """New column to a pattern such as ``f_*``, or to several with commas between them: the columns that match
    the first, as they come, then those that match the next, side by side. Vectors may be among them."""
    drop: Sequence[str] = ()
    """Columns, or patterns of them, to leave out. Index columns of pandas are left out unless renamed."""
    fill: Mapping[str, str] = field(default_factory=dict)
    """Column, or a pattern, under its name in the file or its new one, to the value of rows that have none: a
    number, a date, ``true``, ``false``, or ``mean`` for the mean of the values that are there."""
    vector: Mapping[str, int | None] = field(default_factory=dict)
    """Column, under its name in the file or its new one, of texts that are lists of numbers, or of lists that
    differ in length, to the length of its vectors: zeros are added, or elements cut off. ``None``: all lists
    have the length of the first."""
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """Column, under its new name, to a dtype such as ``float32`` or ``F16``, or to ``text`` (of ids)."""

    csv: CsvFormat = field(default_factory=CsvFormat)
    """Delimiter, quote, encoding and columns of text files."""
    type: NodeType | EdgeType | None = None
    """Type of the table. A column may be named after it: ``user_id`` of ``"user"``."""
    keep: Sequence[str] = ()
    """Columns that keep their names, whatever convention these fit."""
    row_ids: bool = False
    """No column becomes the ids by convention: they are the row numbers."""

    def __post_init__(self) -> None:
        known = {str(dtype): name for name, dtype in STORAGE_DTYPES.items() if name != "BF16"}
        known["text"] = "TEXT"
        names = {column: known.get(dtype.lower(), dtype.upper()) for column, dtype in self.dtypes.items()}
        for column, name in names.items():
            if name not in known.values():
                listed = ", ".join(known)
                raise ValueError(f"column {column!r}: unknown dtype {self.dtypes[column]!r}; known: {listed}")
        object.__setattr__(self, "dtypes", names)
        if wrong := [length for length in self.vector.values() if length is not None and length < 1]:
            raise ValueError(f"vectors have a length of at least 1, got {wrong[0]}")


def is_stream(table: object) -> TypeIs[ArrowStream]:
    """Return whether an object is a stream of Arrow record batches, or a data set of pyarrow."""
    return hasattr(table, "__arrow_c_stream__") or type(table).__module__.startswith("pyarrow._dataset")


def open_table(
    specs: str | Sequence[str] | ArrowStream, *, role: Role, options: ColumnOptions | None = None
) -> Table:
    """Open the files of a table, or an Arrow stream, and name their columns.

    Each spec adds rows. It is a text (CSV, possibly compressed), ``.parquet``, ``.arrow`` or ``.orc`` file, a
    pattern that matches several, a directory with all below it, each of these also as a URI such as
    ``s3://bucket/edges``, a directory of ``.npy`` files (one column each, named after the file),
    ``a.npy,b.npy`` or ``name:a.npy,...`` (the same, listed), or for edges one ``.npy`` file of shape
    [2, E] or [E, 2]. Or it is a SELECT over files of this machine, which DuckDB runs. A stream, or a data set
    of pyarrow, is read once, here, into a temporary file.
    """
    options = options or ColumnOptions()
    if is_stream(specs):
        from gigl_loader.partition.readers.arrow import with_lengths
        from gigl_loader.partition.readers.arrow_files import ArrowStreamTable

        stream = ArrowStreamTable(specs, f"table of {role}")
        table = with_lengths(stream, _vectors(stream.columns, role, options))
        return name_columns(table, role=role, options=options)
    return name_columns(open_files(specs, role=role, options=options), role=role, options=options)


def open_files(specs: str | Sequence[str], *, role: Role, options: ColumnOptions) -> Table:
    """Open the files of a table, with the columns as they are called there.

    Of the options, only what a reader must know beforehand is used: dtypes of CSV columns, lengths of lists.
    """
    listed = [specs] if isinstance(specs, str) else list(specs)
    open_text = _text_reader(role, options)
    lengths_of = partial(_vectors, role=role, options=options) if options.vector else None
    tables = [table for spec in listed for table in open_spec(spec, role, open_text, lengths_of)]
    first = getattr(tables[0], "only_row", None) or {}
    if options.csv.columns and len(tables) > 1 and first and set(tables[0].columns.values()) == {TEXT}:
        raise FormatError(
            f"{tables[0].name}: its one line, {','.join(map(str, first.values()))!r:.200}, looks like the "
            "header of the other files: leave it out, or, if it is a row, give it last"
        )
    try:
        return chain(tables)
    except FormatError as error:
        below = f"{listed[0]}/**/*.parquet" if Path(listed[0]).is_dir() else listed[0]
        if len(listed) > 1 or not tables[0].name.endswith(".parquet"):
            raise
        query = f"SELECT * FROM read_parquet('{below}', union_by_name = true)"
        raise OptionsNeeded([str(error)], files=[{listed[0]: query}]) from None


def name_columns(table: Table, *, role: Role, options: ColumnOptions) -> Table:
    """Return the table with its columns renamed, stacked, dropped and converted."""
    table = _with_vectors(table, role=role, options=options)
    projections = column_sources(table, role=role, options=options)
    _require_columns(
        table, [name for name in options.dtypes if name not in projections], "to convert", projections
    )
    used = [source for each in projections.values() for source in each.sources]
    ids = [source for new in ID_ROLES & projections.keys() for source in projections[new].sources]
    label = projections.get("y" if role == "nodes" else "label")
    labels = label.sources if label is not None else ()
    fills = _fills(table, projections, options)
    filled = FilledTable(table, fills, used=used, ids=ids, labels=labels)
    same = projections == {name: Projection((name,)) for name in table.columns}
    named = filled if same else ProjectedTable(filled, projections)
    _tell(named, {name: why for name in table.columns if (why := why_left_out(name, options))}, options)
    return named


def _with_vectors(table: Table, *, role: Role, options: ColumnOptions) -> Table:
    """Return the table with vectors in place of the lists that options name."""
    if not options.vector:
        return table
    from gigl_loader.partition.vector_table import VectorTable

    new = new_columns(list(table.columns), role=role, options=options)
    names = {*table.columns, *(each.name for each in new.values())}
    missing = [name for name in options.vector if name not in names]
    _require_columns(table, missing, "to read as vectors", table.columns)
    return VectorTable(table, _vectors(list(table.columns), role, options), new)


def _vectors(names: Iterable[str], role: Role, options: ColumnOptions) -> dict[str, int | None]:
    """Return the columns of a file that become vectors, with their lengths."""
    new = new_columns(list(names), role=role, options=options)
    found = {name: {name, each.name} & options.vector.keys() for name, each in new.items()}
    return {name: options.vector[min(keys)] for name, keys in found.items() if keys}


def _fills(table: Table, projections: Mapping[str, Projection], options: ColumnOptions) -> dict[str, str]:
    """Return the fills by the columns' names in the file."""
    found: dict[str, str] = {}
    unmatched: list[str] = []
    for pattern, value in options.fill.items():
        matching = [
            (new, source)
            for new, each in projections.items()
            for source in each.sources
            if fnmatch.fnmatchcase(source, pattern) or fnmatch.fnmatchcase(new, pattern)
        ]
        if any(pattern in names and names[0] in ID_ROLES for names in matching):
            raise ValueError(f"{table.name}, column {pattern!r}: ids cannot be filled")
        sources = [source for new, source in matching if new not in ID_ROLES]
        unmatched += [] if sources else [pattern]
        found.update(dict.fromkeys(sources, value))
    _require_columns(table, unmatched, "to fill", projections)
    return found


def _require_columns(table: Table, missing: Sequence[str], purpose: str, known: Mapping[str, object]) -> None:
    """Raise ``ValueError`` that lists the columns, or patterns, that a table lacks."""
    if missing:
        names = " and none ".join(map(repr, missing))
        listed = ", ".join(map(repr, known)) or "none"
        raise ValueError(f"{table.name}: no column {names} {purpose}; columns: {listed}")


def _tell(table: Table, left_out: Mapping[str, str], options: ColumnOptions) -> None:
    """Log which columns are left out unasked, and which could take half of their bytes."""
    for why in dict.fromkeys(left_out.values()):
        if why != "dropped":
            names = ", ".join(repr(name) for name, each in left_out.items() if each == why)
            logger.warning("%s: left out %s, %s", table.name, names, why)
    for name, kind in table.columns.items():
        if isinstance(kind, Column) and kind.dtype == "F64" and kind.shape and name not in options.dtypes:
            logger.warning(
                "%s: column %r has %d float64 a row: --dtype %s=float32 halves them",
                *(table.name, name, math.prod(kind.shape), name),
            )


def why_left_out(name: str, options: ColumnOptions = ColumnOptions()) -> str | None:
    """Return why a column is left out: ``"dropped"``, or what makes it so unasked. ``None``: it is not."""
    if _matches(name, options.drop):
        return "dropped"
    if name in options.rename:
        return None
    if _PANDAS_INDEX.fullmatch(name):
        return "an index of pandas"
    return "which its header says to ignore" if is_ignored(name) else None


def _text_reader(role: Role, options: ColumnOptions) -> OpenText:
    """Return what opens a text file of a table."""

    def columns_of(names: Sequence[str]) -> dict[str, NewColumn]:
        vectors = _vectors(names, role, options)
        found = new_columns(names, role=role, options=options)
        return {name: replace(new, dtype="TEXT") if name in vectors else new for name, new in found.items()}

    def opened(path: Path | RemotePath) -> Table:
        from gigl_loader.partition.readers.text_table import TextTable
        from gigl_loader.partition.unusual_edges import refuse_unusual

        try:
            return TextTable(path, columns_of=columns_of, masks=role == "ids", form=options.csv)
        except FormatError as error:
            if role != "edges":
                raise
            refuse_unusual(path, options.csv, error)
            raise

    return opened


def new_columns(names: Sequence[str], *, role: Role, options: ColumnOptions) -> dict[str, NewColumn]:
    """Return what becomes of the columns with these names in a file: by options, else by convention.

    Columns that are left out are there, too.
    """
    left = [name for name in names if why_left_out(name, options) is None]
    stacks = {new: [each.strip() for each in listed.split(",")] for new, listed in options.stack.items()}
    stacked = {name: new for new, patterns in stacks.items() for name in left if _matches(name, patterns)}
    named = {name: options.rename[name] for name in left if options.rename.get(name)} | stacked
    free = [name for name in left if name not in stacked]
    usual = by_convention(free, role, options.type, renamed=named, keep=options.keep, row_ids=options.row_ids)
    chosen = {name: NewColumn(new) for name, new in named.items()}
    found = {name: chosen.get(name) or usual.get(name) or NewColumn(name) for name in names}
    return {name: replace(new, dtype=options.dtypes.get(new.name, new.dtype)) for name, new in found.items()}


def column_sources(table: Table, *, role: Role, options: ColumnOptions) -> dict[str, Projection]:
    """Return what becomes of the columns of a table, by new name.

    ``ValueError`` lists the columns and patterns that the table lacks.
    """
    _require_columns(table, _unmatched(table.columns, options.drop), "to drop", table.columns)
    new = new_columns(list(table.columns), role=role, options=options)
    left = [name for name in table.columns if why_left_out(name, options) is None]
    found: dict[str, Projection] = {}
    for name, listed in options.stack.items():
        patterns = [pattern.strip() for pattern in listed.split(",")]
        _require_columns(table, _unmatched(left, patterns), f"to stack into {name!r}", table.columns)
        matches = [each for pattern in patterns for each in left if fnmatch.fnmatchcase(each, pattern)]
        sources = tuple(dict.fromkeys(matches))
        found[name] = Projection(sources, stacked=True, dtype=options.dtypes.get(name))
        left = [each for each in left if each not in sources]
    _require_columns(table, [old for old in options.rename if old not in left], "to rename", table.columns)
    for old in left:
        if new[old].name in found:
            raise FormatError(f"{table.name}: two columns would be named {new[old].name!r}")
        found[new[old].name] = Projection((old,), dtype=new[old].dtype)
    return found


def _unmatched(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    known = list(names)
    return [pattern for pattern in patterns if not fnmatch.filter(known, pattern)]


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
