"""Checks of tables before a build: ends, ids, and columns that cannot be stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from gigl_loader.arrays import Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.column_names import check_column_names, reserved_names
from gigl_loader.graph.schema import Column, EdgeType, NodeType
from gigl_loader.partition.array_table import ArrayTable
from gigl_loader.partition.likely_ids import are_integers, likely_ids, may_be_ids, words_in
from gigl_loader.partition.readers import TEXT, Kind, Table
from gigl_loader.partition.refusals import OptionsNeeded, quoted, type_text
from gigl_loader.partition.roles import end_names, id_names, relation_column, relation_names, type_names
from gigl_loader.partition.steps.ids import require_integers
from gigl_loader.partition.steps.text_ids import IdColumn, are_texts, id_columns
from gigl_loader.partition.table import (
    NODE_ROLES,
    GraphTables,
    data_columns,
    edge_roles,
    option_for,
    unkept_columns,
)
from gigl_loader.partition.views import is_rounded, reader_of, source_of

_END_WORDS: Mapping[str, frozenset[str]] = {
    "src": frozenset({"src", "source", "from", "head", "subject", "start"}),
    "dst": frozenset({"dst", "target", "destination", "to", "tail", "object", "end"}),
}
"""Words in the names of columns that are likely to be the ends."""
_RELATION = "relation"
"""Name for the relations of triples without a header."""
_RELATION_WORDS = frozenset({"relation", "rel", "predicate", "type", "kind", "edge", "action"})
_FIRST_ROWS = 1000
"""Rows whose texts may be lists of numbers, or names of categories."""
_OFTEN = 4
"""Times that the texts of categories come in them, on average."""


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
    hopeless: bool = False
    """No option helps."""

    def option(self, kind: NodeType | EdgeType, value: str, *, typed: bool = False) -> str:
        """Return the value of an option for a table, as ``option_for`` does."""
        return option_for(self.tables, kind, value, typed=typed)

    def add_readings(self, readings: Sequence[list[str]]) -> None:
        """Add the readings of a table. Those of two tables are not combined."""
        self.hopeless |= bool(self.readings)
        self.readings = list(readings)

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
            if missing and (first_line := _first_row(table, ends=True)):
                self._find_no_header(kind, table, first_line)
                orders = _edge_columns(wanted, reader_of(table))
                self.note_ends(kind, table, orders[0])
                readings = [self._without_header(kind, named, wanted) for named in orders]
                if relation is None and _RELATION in orders[0]:
                    several = type_text((kind[0], "@relation", kind[2]))
                    self.problems[-1] += (
                        f"; if a column names relations, --edges {several}=FILES makes a type of each"
                    )
                if len(readings) > 1:
                    self.add_readings(readings)
                else:
                    self.options += readings[0]
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
        self.hopeless = True

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
        if _RELATION in unkept:
            options += ["--encode", self.option(kind, _RELATION)]
        if left := [name for name in unkept if name != _RELATION]:
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
        likely = _likely_ends(kind, table, missing)
        self.hopeless |= not likely
        self.renamed[kind] = set(likely)
        self.note_ends(kind, table, {likely.get(name, name): held for name, held in table.columns.items()})
        reader = reader_of(table)
        is_text = getattr(reader, "header", None) and {*reader.columns.values()} == {TEXT}
        by_order = not any(
            words_in(name) & _END_WORDS.get(end, _RELATION_WORDS) for name, end in likely.items()
        )
        if likely and is_text and by_order:
            self.problems[-1] += f"; unless its first line, {','.join(reader.columns)!r}, is a row"
            unkept = [name for name in table.columns if name not in likely and name not in edge_roles(kind)]
            dropped = ",".join(quoted(source_of(table, name)) for name in unkept)
            drop = ["--drop", self.option(kind, dropped)] if unkept else []
            wanted = [name for name in ("src", relation_column(kind), "dst") if name is not None]
            orders = [self._without_header(kind, named, wanted) for named in _edge_columns(wanted, reader)]
            self.add_readings([renamed(likely) + drop, *orders])
            self.renamed[kind] = set(table.columns)
        else:
            self.options += renamed(likely)

    def _find_missing_ids(self, node_type: NodeType, rows: Table) -> None:
        """Add nodes without ``id`` where the first line is a row, or where a column looks like ids."""
        if first_line := _first_row(rows, ends=False):
            self._find_no_header(node_type, rows, first_line)
            names = [f"column{at}" for at in range(1, 1 + len(reader_of(rows).columns))]
            if may_be_ids(reader_of(rows), next(iter(reader_of(rows).columns))):
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
            vectors = [name for name in unkept if _holds_vectors(table, name)]
            categories = [name for name in unkept if name not in vectors and _holds_categories(table, name)]
            for name in (*vectors, *categories):
                named = self.option(kind, quoted(source_of(table, name)), typed=name in elsewhere)
                self.options += ["--vector" if name in vectors else "--encode", named]
            if left := [name for name in unkept if name not in vectors and name not in categories]:
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
        faults.find_strange_ids()
    faults.find_unkept_columns()
    nodes, edges = faults.stored_columns()
    faults.find_reserved_names(reserved_names(nodes, edges, homogeneous=tables.homogeneous))
    if faults.problems:
        helps = not faults.hopeless
        raise OptionsNeeded(faults.problems, faults.options * helps, faults.readings * helps)
    check_column_names(nodes, edges, homogeneous=tables.homogeneous)


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


def _edge_columns(roles: Sequence[str], reader: Table) -> list[dict[str, Kind]]:
    """Return names for the columns of edges without a header.

    Of three texts, the second or the third is the relation: the one that has no value of the first, if the
    other has some; else both are possible. Of three integers, the third may be an end only if it has some.
    """
    kinds = list(reader.columns.values())
    orders = [list(roles)]
    if kinds[:3] == [TEXT] * 3:
        relation = roles[1] if len(roles) == 3 else _RELATION
        shares = _shares_values(reader, 2), _shares_values(reader, 1)
        orders = [["src", relation, "dst"], ["src", "dst", relation]]
        orders = [orders[at] for at in (0, 1) if shares[0] == shares[1] or shares[at]]
    elif len(roles) == 2 and len(kinds) == 3 and all(map(are_integers, kinds)) and _shares_values(reader, 2):
        others = [orders[0]] if _shares_values(reader, 1) else []
        orders = [*others, ["src", "column2", "dst"]]
    named = [[*order, *(f"column{at + 1}" for at in range(len(order), len(kinds)))] for order in orders]
    return [dict(zip(names, kinds, strict=False)) for names in named]


def _shares_values(reader: Table, at: int) -> bool:
    """Return whether a column has a value of the first among the first rows, of which the header is one."""
    names = list(reader.columns)
    chunk = next(iter(reader.read([names[0], names[at]], _FIRST_ROWS)), {})
    first, other = ({name, *chunk.get(name, ())} for name in (names[0], names[at]))
    return not first.isdisjoint(other)


def _likely_ends(kind: EdgeType, table: Table, missing: Sequence[str]) -> dict[str, str]:
    """Return which columns may be the missing ends or relation, by their names, else by their order."""
    roles = edge_roles(kind)
    free = [
        name
        for name, each in table.columns.items()
        if name not in roles and (each == TEXT or are_integers(each))
    ]
    found: dict[str, str] = {}
    for by_name in (True, False):
        for end in missing:
            if end in _END_WORDS:
                words = {*_END_WORDS[end]} | (
                    {kind[0 if end == "src" else 2].lower()} if kind[0] != kind[2] else set()
                )
                fitting = [name for name in free if not by_name or words & words_in(name)]
            else:
                words = {*_RELATION_WORDS, *words_in(end)}
                texts = [name for name in free if table.columns[name] == TEXT]
                fitting = [name for name in texts if not by_name or words & words_in(name)]
            if fitting and end not in found.values():
                found[fitting[0]] = end
                free.remove(fitting[0])
    return found if len(found) == len(missing) else {}


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


def _first_texts(table: Table, name: str) -> Array:
    """Return the first texts of a column, none of one that holds anything else."""
    none = np.empty(0, object)
    return (
        none
        if table.columns[name] != TEXT
        else next(iter(table.read([name], _FIRST_ROWS)), {name: none})[name]
    )


def _holds_categories(table: Table, name: str) -> bool:
    """Return whether the first texts of a column are a few that come again and again."""
    texts = _first_texts(table, name)
    return table.columns[name] == TEXT and _OFTEN * len({*texts} - {""}) <= len(texts)


def _holds_vectors(table: Table, name: str) -> bool:
    """Return whether the first texts of a column are lists of numbers, all of one length."""
    if not len(texts := _first_texts(table, name)) or isinstance(reader_of(table), ArrayTable):
        return False
    from gigl_loader.partition.vector_table import common_length

    return common_length(texts) is not None
