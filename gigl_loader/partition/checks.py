"""Checks of tables before a build: ends, ids, and columns that cannot be stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.errors import FormatError
from gigl_loader.graph.column_names import check_column_names, reserved_names
from gigl_loader.graph.schema import Column, EdgeType, NodeType
from gigl_loader.partition.array_table import ArrayTable
from gigl_loader.partition.likely_ends import (
    END_WORDS,
    RELATION,
    RELATION_WORDS,
    edge_columns,
    likely_ends,
    two_types,
)
from gigl_loader.partition.likely_ids import are_named_by_edges, likely_ids, may_be_ids, words_in
from gigl_loader.partition.readers import TEXT, Kind, Table, are_integers
from gigl_loader.partition.refusals import OptionsNeeded, quoted, type_text
from gigl_loader.partition.roles import end_names, id_names, relation_column, relation_names, type_names
from gigl_loader.partition.steps.ids import require_integers
from gigl_loader.partition.steps.text_ids import IdColumn, are_texts, id_columns
from gigl_loader.partition.stored_texts import conversions, way_of_texts
from gigl_loader.partition.table import (
    NODE_ROLES,
    GraphTables,
    data_columns,
    edge_roles,
    option_for,
    unkept_columns,
)
from gigl_loader.partition.views import is_rounded, reader_of, readers_of, source_of

if TYPE_CHECKING:
    from gigl_loader.partition.unusual_edges import Unusual


@dataclass(slots=True)
class _Faults:
    """Faults of tables, and the options of the command line that would mend them."""

    tables: GraphTables
    problems: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    renamed: dict[NodeType | EdgeType, set[str]] = field(default_factory=dict)
    """Columns that the options give a role, by type of the table."""
    texts: dict[NodeType, str] = field(default_factory=dict)
    """Tables whose ends name the nodes of a type by texts."""
    readings: list[list[str]] = field(default_factory=list)
    """Options by which a table would be read in several ways."""
    files: list[dict[str, str]] = field(default_factory=list)
    """What to give in place of the file of a table, of each further way, such as a query."""
    hopeless: bool = False
    """No option helps."""

    def option(self, kind: NodeType | EdgeType, value: str, *, typed: bool = False) -> str:
        """Return the value of an option for a table, as ``option_for`` does."""
        return option_for(self.tables, kind, value, typed=typed)

    def add_readings(
        self, readings: Sequence[list[str]], table: Table | None = None, given: Sequence[str] = ()
    ) -> None:
        """Add the readings of a table, or what is ``given`` in place of its file.

        Those of a second table come when the first is read.
        """
        if not self.readings and not self.files:
            self.readings = list(readings)
            self.files = [{reader_of(table).name: each} for each in given] if table is not None else []

    def note_ends(self, kind: EdgeType, table: Table, ends: Mapping[str, Kind]) -> None:
        """Remember which types the ends of a table name by texts."""
        for end, node_type in (("src", kind[0]), ("dst", kind[2])):
            if ends.get(end) == TEXT:
                self.texts.setdefault(node_type, table.name)

    def stored_columns(self) -> tuple[dict[NodeType, set[str]], dict[EdgeType, set[str]]]:
        """Return the names of the columns of nodes and edges."""
        encoded = self.tables.encodings
        nodes = {
            node_type: {*data_columns(each.rows, NODE_ROLES), *encoded.get(node_type, ())}
            for node_type, each in self.tables.nodes.items()
            if each.rows is not None
        }
        edges = {
            kind: {*data_columns(each, edge_roles(kind)), *encoded.get(kind, ())}
            for kind, each in self.tables.edges.items()
        }
        return nodes, edges

    def find_missing_ends(self) -> None:
        """Add edges without both ends, and files whose first line is a row, or unexpectedly a header."""
        for kind, table in self.tables.lists.items():
            relation = relation_column(kind)
            wanted = ("src", "dst") if relation is None else ("src", relation, "dst")
            missing = [name for name in wanted if name not in table.columns]
            encoded = self.tables.encodings.get(kind, ())
            if types := type_names(name for name in table.columns if name not in encoded):
                self._find_types_in_rows(kind, table, types)
            elif found := _unusual(table, kind):
                self.problems.append(f"{table.name}: {found.why}")
                self.options += found.options
                self.add_readings([], table, found.queries)
                self.renamed[kind] = set(table.columns)
            elif missing and (first_line := _first_row(table, ends=True)):
                self._find_rows_alone(kind, table, wanted, first_line)
            elif missing:
                self._find_ends_by_another_name(kind, table, missing)
            else:
                self.note_ends(kind, table, table.columns)
                self._find_header(table, partial(end_names, edge_type=kind))
        for node_type, entry in self.tables.nodes.items():
            if entry.rows is not None and "id" in entry.rows.columns:
                if entry.row_ids:
                    raise ValueError(f"{entry.rows.name} has a column 'id': its rows cannot be numbered")
                self._find_header(entry.rows, partial(id_names, node_type=node_type))
            elif entry.rows is not None:
                self._find_missing_ids(node_type, entry.rows)

    def _find_rows_alone(self, kind: EdgeType, table: Table, wanted: Sequence[str], first_line: str) -> None:
        """Add edges without a header line, with names for their columns."""
        self._find_no_header(kind, table, first_line)
        orders = edge_columns(wanted, reader_of(table))
        self.note_ends(kind, table, orders[0])
        readings = [self._without_header(kind, named, wanted) for named in orders]
        if len(wanted) == 2 and RELATION in orders[0]:
            several = type_text((kind[0], "@relation", kind[2]))
            self.problems[-1] += (
                f"; if a column names relations, --edges {several}=FILES makes a type of each"
            )
        if len(readings) > 1:
            self.add_readings(readings)
        else:
            self.options += readings[0]

    def _find_types_in_rows(self, kind: EdgeType, table: Table, types: Sequence[str]) -> None:
        """Add a table that names the types of ends in its rows."""
        if isinstance(reader_of(table), ArrayTable):
            return
        named, listed = " and ".join(map(repr, types)), ",".join(map(quoted, types))
        relations = relation_names(name for name, held in table.columns.items() if held == TEXT)
        relation = f"@{relations[0]}" if len(relations) == 1 else kind[1]
        source, target = (
            (f"@{types[0]}", f"@{types[1]}") if len(types) == 2 else ("@SOURCE_TYPE", "@TARGET_TYPE")
        )
        several = type_text((source, relation, target))
        self.problems.append(
            f"{table.name}: {named} give the types of the ends, of which two may have equal ids: give the "
            f"table as --edges '{several}=FILES', or, if all ids differ, add --drop {listed}"
        )
        self.renamed[kind] = {*types, *relations}
        typed = [f"{several}={reader_of(table).name}"] * (len(types) == 2)
        self.add_readings([["--drop", self.option(kind, listed)]], table, typed)

    def _find_header(self, table: Table, roles: Callable[[Sequence[str]], Sequence[object]]) -> None:
        """Add a file without a header, by its options, whose first line has names of columns with roles."""
        reader = reader_of(table)
        if getattr(reader, "header", None) != []:
            return
        texts = [name for name, held in reader.columns.items() if held == TEXT]
        first = next(iter(reader.read(texts, 1)), None) if texts else None
        names = [] if first is None else [str(first[name][0]) for name in texts if len(first[name])]
        if roles(names):
            what = "looks like a header: leave --csv-columns out, and add --rename where names differ"
            self.problems.append(f"{table.name}: the first line, {','.join(names)!r}, {what}")
            self.hopeless = True

    def _without_header(self, kind: EdgeType, named: Mapping[str, Kind], wanted: Sequence[str]) -> list[str]:
        """Return the options that read a table of edges without a header, given names for its columns."""
        options = ["--csv-columns", self.option(kind, ",".join(map(quoted, named)))]
        unkept = [name for name, held in named.items() if held == TEXT and name not in wanted]
        if RELATION in unkept:
            options += ["--encode", self.option(kind, RELATION)]
        if left := [name for name in unkept if name != RELATION]:
            options += ["--drop", self.option(kind, ",".join(left))]
        return options

    def _find_ends_by_another_name(self, kind: EdgeType, table: Table, missing: Sequence[str]) -> None:
        """Add edges whose ends have names that no convention has, or that two have."""
        listed = ", ".join(map(repr, table.columns)) or "none"
        none = " and none ".join(map(repr, missing))
        self.problems.append(f"{table.name}: no column {none}; columns: {listed}")

        def renamed(pairs: Mapping[str, str]) -> list[str]:
            values = [f"{quoted(source_of(table, old))}={new}" for old, new in pairs.items()]
            return [each for value in values for each in ("--rename", self.option(kind, value))]

        pairs = end_names(table.columns, kind) if {"src", "dst"} <= {*missing} else []
        if len(pairs) > 1:
            self.problems[-1] += (
                f"; ends may be {' or '.join(' and '.join(map(repr, pair)) for pair in pairs)}"
            )
            self.add_readings([renamed({pair[0]: "src", pair[1]: "dst"}) for pair in pairs])
            self.renamed[kind] = {name for pair in pairs for name in pair}
            return
        likely = likely_ends(kind, table, missing)
        self.hopeless |= not likely
        self.renamed[kind] = set(likely)
        self.note_ends(kind, table, {likely.get(name, name): held for name, held in table.columns.items()})
        reader = reader_of(table)
        is_text = getattr(reader, "header", None) and {*reader.columns.values()} == {TEXT}
        by_order = not any(
            words_in(name) & END_WORDS.get(end, RELATION_WORDS) for name, end in likely.items()
        )
        if likely and is_text and by_order:
            self.problems[-1] += f"; unless its first line, {','.join(reader.columns)!r}, is a row"
            unkept = [name for name in table.columns if name not in likely and name not in edge_roles(kind)]
            dropped = ",".join(quoted(source_of(table, name)) for name in unkept)
            drop = ["--drop", self.option(kind, dropped)] if unkept else []
            wanted = [name for name in ("src", relation_column(kind), "dst") if name is not None]
            orders = [self._without_header(kind, named, wanted) for named in edge_columns(wanted, reader)]
            self.add_readings([renamed(likely) + drop, *orders])
            self.renamed[kind] = set(table.columns)
        elif two := two_types(kind, likely):
            source, target = two
            self.problems[-1] += (
                f"; these may be of one type, or {source} and {target}, whose ids may be equal"
            )
            typed = f"{type_text((source, 'to', target))}={reader.name}"
            self.add_readings([renamed(likely)], table, [typed])
        else:
            self.options += renamed(likely)

    def _find_missing_ids(self, node_type: NodeType, rows: Table) -> None:
        """Add nodes without ``id`` where the first line is a row, or where a column looks like ids."""
        if first_line := _first_row(rows, ends=False):
            self._find_no_header(node_type, rows, first_line)
            names = [f"column{at}" for at in range(1, 1 + len(reader_of(rows).columns))]
            first = next(iter(reader_of(rows).columns))
            if may_be_ids(reader_of(rows), first) and are_named_by_edges(
                self.tables, node_type, reader_of(rows), first
            ):
                names[0] = "id"
            self.options += ["--csv-columns", self.option(node_type, ",".join(names))]
            if names[0] != "id":
                self.options += ["--stack", self.option(node_type, "x=column*", typed=True)]
        elif node_type in self.texts and (likely_id := _likely_id(node_type, rows)):
            listed = ", ".join(map(repr, rows.columns))
            self.problems.append(
                f"{rows.name}: no column 'id', and {self.texts[node_type]} names nodes of type "
                f"{node_type!r} by texts; columns: {listed}"
            )
            self.renamed[node_type] = {likely_id}
            old = quoted(source_of(rows, likely_id))
            self.options += ["--rename", self.option(node_type, f"{old}=id")]
        elif node_type not in self.texts:
            self._find_ids_by_another_name(node_type, rows)

    def _find_ids_by_another_name(self, node_type: NodeType, rows: Table) -> None:
        """Add a table whose rows would be numbered although a column looks like ids."""
        if (found := likely_ids(self.tables, node_type)) is None:
            return
        self.problems.append(
            f"{rows.name}: no column 'id', and {found.source!r} looks like the ids"
            + ("" if found.usable else ", but has values twice, or decimal numbers")
            + f"; if edges name its rows by number, add --row-ids {node_type}"
        )
        self.renamed[node_type] = {found.name}
        self.hopeless |= not found.usable

        def renamed(name: str) -> list[str]:
            return ["--rename", self.option(node_type, f"{quoted(name)}=id", typed=True)]

        several = [source_of(rows, name) for name in id_names(rows.columns, node_type)]
        if len(several) > 1:
            self.problems[-1] += f"; {' and '.join(map(repr, several))} may be ids"
            self.add_readings([renamed(name) for name in several])
        else:
            self.options += renamed(found.source)

    def _find_no_header(self, kind: NodeType | EdgeType, table: Table, first_line: str) -> None:
        self.problems.append(f"{table.name}: the first line, {first_line}, looks like a row, not a header")
        self.renamed[kind] = set(table.columns)

    def find_bytes(self) -> None:
        """Add queries that make texts of the bytes of ids in Parquet files."""
        of_nodes = (each.rows for each in self.tables.nodes.values() if each.rows is not None)
        for table in (*self.tables.edges.values(), *of_nodes):
            ids = [name for name in ("src", "dst", "id") if "binary" in str(table.columns.get(name))]
            names = [source_of(table, name).replace('"', '""') for name in ids]
            if names and len(readers_of(table)) == 1:
                decoded = ", ".join(f'decode("{name}") AS "{name}"' for name in names)
                self.problems.append(f"{table.name}, column {ids[0]!r}: holds binary, not integers or texts")
                query = f"SELECT * REPLACE ({decoded}) FROM '{reader_of(table).name}'"
                self.add_readings([], table, [query])

    def find_strange_ids(self) -> None:
        """Add columns of ids, and of relations, that hold anything else."""
        for node_type in self.tables.node_types:
            columns = [each for each in id_columns(self.tables, node_type) if not each.is_mask]
            try:
                strange = [] if are_texts(self.tables, node_type) else columns
            except FormatError as error:
                strange = []
                self._add_strange(str(error), columns, to_text=True)
            for column in strange:
                self._check_integers(column, columns)
        for kind, table in self.tables.edges.items():
            if "id" in table.columns:
                edge_ids = IdColumn(table, "id", ",".join(kind))
                self._check_integers(edge_ids, [edge_ids], may_be_text=False)
            if (relation := relation_column(kind)) and (held := table.columns[relation]) != TEXT:
                shown = held.dtype if isinstance(held, Column) else held
                what = f"{table.name}, column {relation!r}: holds {shown}, not texts"
                self._add_strange(what, [IdColumn(table, relation, ",".join(kind))], to_text=True)

    def _check_integers(
        self, column: IdColumn, columns: Sequence[IdColumn], *, may_be_text: bool = True
    ) -> None:
        """Add a column that holds no integers. ``columns``: all that name the same nodes or edges."""
        try:
            require_integers(column.table, column.name)
        except FormatError as error:
            self._add_strange(str(error), columns, to_text=may_be_text and _is_csv(column.table))

    def _add_strange(self, problem: str, columns: Sequence[IdColumn], *, to_text: bool) -> None:
        """Add a fault of ids, with the options that make texts, or whole numbers, of all their columns."""
        self.problems.append(problem)
        if to_text and any(are_integers(each.kind) for each in columns):  # 2 and 2.0 are two texts.
            self.hopeless |= any(_is_whole(each) for each in columns)
        for each in columns:
            integers = are_integers(each.kind)
            if each.kind == TEXT or (integers and not to_text):
                continue
            is_csv = _is_csv(each.table)  # Its decimal numbers are read as texts, and not as integers.
            self.hopeless |= not ((is_csv or integers) if to_text else not is_csv and _is_whole(each))
            option = f"{each.scope}:{quoted(each.name)}={'text' if to_text else 'int64'}"
            if option not in self.options:
                self.options += ["--dtype", option]
        self.hopeless |= not self.options

    def find_reserved_names(self, taken: Sequence[tuple[NodeType | EdgeType, str]]) -> None:
        """Add columns that would hide attributes of batches."""
        for kind, name in taken:
            table = self.tables.nodes[kind].rows if isinstance(kind, str) else self.tables.edges[kind]
            if table is None or name in self.renamed.get(kind, ()):
                continue
            what = f"has the name of an attribute of every batch: rename it (--rename {name}=NEW)"
            self.problems.append(f"{table.name}, column {name!r}: {what}")
            new = f"{'node' if isinstance(kind, str) else 'edge'}_{name}"
            while new in table.columns:
                new += "_"
            renamed = f"{quoted(source_of(table, name))}={new}"
            self.options += ["--rename", self.option(kind, renamed, typed=True)]

    def find_unkept_columns(self) -> None:
        """Add all columns of all tables that cannot be stored."""
        given: dict[NodeType | EdgeType, tuple[Table, Sequence[str]]] = {
            kind: (each.rows, NODE_ROLES) for kind, each in self.tables.nodes.items() if each.rows is not None
        }
        given |= {kind: (table, edge_roles(kind)) for kind, table in self.tables.edges.items()}
        dropped: dict[str, None] = {}
        for kind, (table, roles) in given.items():
            kept = (*self.renamed.get(kind, ()), *self.tables.encodings.get(kind, ()))
            unkept = unkept_columns(table, (*roles, *kept))
            if isinstance(kind, tuple) and len(relations := relation_names(unkept)) == 1:
                name, _ = relations[0], unkept.pop(relations[0])
                self.problems.append(
                    f"{table.name}, column {name!r}: names relations: --edges "
                    f"{kind[0]},@{name},{kind[2]}=FILES makes a type of each, --encode a column of integers"
                )
                self.options += ["--encode", self.option(kind, quoted(source_of(table, name)))]
            for name, held in unkept.items():
                what = f"holds {held}, not numbers" if name else "has no name"
                self.problems.append(f"{table.name}, column {name!r}: {what}")
            elsewhere = {name for other, (each, _) in given.items() if other != kind for name in each.columns}
            sources = {source_of(table, name): name for name, held in unkept.items() if held == TEXT}
            converted, queries = conversions(table, [*sources])
            self.add_readings([], table, queries)
            left = []
            for name in (name for name in unkept if name not in [sources[each] for each in converted]):
                if (way := way_of_texts(table, name)) is None:
                    left.append(name)
                    continue
                option, _, value = way.partition(" ")
                named = f"{quoted(source_of(table, name))}{value}"
                self.options += [option, self.option(kind, named, typed=name in elsewhere)]
            if left:
                listed = ",".join(quoted(source_of(table, name)) for name in left)
                dropped[self.option(kind, listed, typed=not elsewhere.isdisjoint(left))] = None
        self.problems[:] = dict.fromkeys(self.problems)
        self.options += [each for option in dropped for each in ("--drop", option)]


def check_tables(tables: GraphTables) -> None:
    """Raise ``FormatError`` for tables that no graph can be built from.

    Ends and ids come first, then columns that cannot be stored, then names that batches reserve: all faults
    of all tables at once, in ``OptionsNeeded``.
    """
    faults = _Faults(tables)
    faults.find_missing_ends()
    if not faults.problems:
        faults.find_bytes()
    if not faults.problems:
        faults.find_strange_ids()
    faults.find_unkept_columns()
    nodes, edges = faults.stored_columns()
    faults.find_reserved_names(reserved_names(nodes, edges, homogeneous=tables.homogeneous))
    if faults.problems:
        helps = not faults.hopeless
        raise OptionsNeeded(
            faults.problems, faults.options * helps, faults.readings * helps, faults.files * helps
        )
    check_column_names(nodes, edges, homogeneous=tables.homogeneous)


def _unusual(table: Table, kind: EdgeType) -> Unusual | None:
    """Return what is unusual about the file of a table of edges."""
    if not _is_csv(table) or len(readers_of(table)) > 1:
        return None
    from gigl_loader.partition.unusual_edges import unusual_edges

    return unusual_edges(reader_of(table), kind)


def _first_row(table: Table, *, ends: bool) -> str | None:
    """Return the first line of CSV files that have no header, as far as their names and values tell.

    A name that is a number is a value, unless all are 0, 1, 2, ..., by which pandas names columns: two such
    numbers are the first of many lists of edges. A name that its column has among its values is a value, too.
    Names that options change or drop are names.
    """
    reader = reader_of(table)
    names: Sequence[str] = getattr(reader, "header", ())
    numbers = [name for name in names if re.fullmatch(r"-?\d+(\.\d*)?([eE][-+]?\d+)?", name)]
    counted = sorted(numbers) == sorted(map(str, range(len(numbers))))
    if table.columns.keys() & {*numbers} and (not counted or (ends and len(names) == 2 == len(numbers))):
        return repr(",".join(names))
    return repr(",".join(names)) if ends and getattr(reader, "repeats_header", False) else None


def _likely_id(node_type: NodeType, table: Table) -> str | None:
    """Return the column of texts that may be the ids, by its name, else the first."""
    texts = [name for name, held in table.columns.items() if held == TEXT and name not in NODE_ROLES]
    words = {"id", "name", "key", "code", node_type.lower()}
    return next((name for name in texts if words & words_in(name)), next(iter(texts), None))


def _is_csv(table: Table) -> bool:
    return hasattr(reader_of(table), "header")


def _is_whole(column: IdColumn) -> bool:
    """Return whether a column holds decimal numbers that are all whole, and none is so large that it may be
    another, rounded."""
    kind = column.kind
    if not isinstance(kind, Column) or kind.shape or kind.dtype not in ("F32", "F64"):
        return False
    chunks = (chunk[column.name] for chunk in column.table.read([column.name], 1 << 20))
    return all(bool(((np.trunc(chunk) == chunk) & ~is_rounded(chunk)).all()) for chunk in chunks)
