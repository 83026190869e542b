"""Checks of tables before a build: ends, ids, and columns that cannot be stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

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

    def add_readings(self, readings: Sequence[list[str]]) -> None:
        """Add the readings of a table. Those of two tables are not combined."""
        self.hopeless |= bool(self.readings)
        self.readings = list(readings)

    def note_ends(self, kind: EdgeType, table: Table, ends: Mapping[str, Kind]) -> None:
        """Remember which types the ends of a table name by texts."""
        for end, node_type in (("src", kind[0]), ("dst", kind[2])):
            if ends.get(end) == TEXT:
                self.texts.setdefault(node_type, table.name)


def check_tables(tables: GraphTables) -> None:
    """Raise ``FormatError`` for tables that no graph can be built from.

    Ends and ids come first, then columns that cannot be stored, then names that batches reserve: all faults
    of all tables at once, in ``OptionsNeeded``.
    """
    faults = _Faults()
    _find_missing_ends(tables, faults)
    if not faults.problems:
        _find_strange_ids(tables, faults)
    _find_unkept_columns(tables, faults)
    nodes, edges = _stored_columns(tables)
    _find_reserved_names(tables, faults, reserved_names(nodes, edges, homogeneous=tables.homogeneous))
    if faults.problems:
        helps = not faults.hopeless
        raise OptionsNeeded(faults.problems, faults.options * helps, faults.readings * helps)
    check_column_names(nodes, edges, homogeneous=tables.homogeneous)


def _stored_columns(tables: GraphTables) -> tuple[dict[NodeType, set[str]], dict[EdgeType, set[str]]]:
    """Return the names of the columns of nodes and edges."""
    encoded = tables.encodings
    nodes = {
        node_type: {*data_columns(each.rows, NODE_ROLES), *encoded.get(node_type, ())}
        for node_type, each in tables.nodes.items()
        if each.rows is not None
    }
    edges = {
        kind: {*data_columns(each, edge_roles(kind)), *encoded.get(kind, ())}
        for kind, each in tables.edges.items()
    }
    return nodes, edges


def _find_missing_ends(tables: GraphTables, faults: _Faults) -> None:
    """Add edges without both ends, and files whose first line is a row, or is a header though it is none."""
    for kind, table in tables.lists.items():
        relation = relation_column(kind)
        wanted = ("src", "dst") if relation is None else ("src", relation, "dst")
        missing = [name for name in wanted if name not in table.columns]
        if types := type_names(name for name in table.columns if name not in tables.encodings.get(kind, ())):
            _find_types_in_rows(faults, kind, table, types)
        if missing and (first_line := _first_row(table, ends=True)):
            _find_no_header(faults, kind, table, first_line)
            orders = _edge_columns(wanted, reader_of(table))
            faults.note_ends(kind, table, orders[0])
            readings = [_without_header(tables, kind, named, wanted) for named in orders]
            if relation is None and _RELATION in orders[0]:
                several = type_text((kind[0], "@relation", kind[2]))
                faults.problems[-1] += (
                    f"; if a column names relations, --edges {several}=FILES makes a type of each"
                )
            if len(readings) > 1:
                faults.add_readings(readings)
            else:
                faults.options += readings[0]
        elif missing:
            _find_ends_by_another_name(tables, kind, table, missing, faults)
        else:
            faults.note_ends(kind, table, table.columns)
            _find_header(faults, table, lambda names, kind=kind: end_names(names, kind))  # type: ignore[misc]
    for node_type, entry in tables.nodes.items():
        if entry.rows is not None and "id" in entry.rows.columns:
            if entry.row_ids:
                raise ValueError(f"{entry.rows.name} has a column 'id': its rows cannot be numbered")
            _find_header(faults, entry.rows, lambda names, kind=node_type: id_names(names, kind))  # type: ignore[misc]
        elif entry.rows is not None:
            _find_missing_ids(tables, node_type, entry.rows, faults)


def _find_types_in_rows(faults: _Faults, kind: EdgeType, table: Table, types: Sequence[str]) -> None:
    """Add a table that names the types of ends in its rows."""
    if isinstance(reader_of(table), ArrayTable):
        return
    named, listed = " and ".join(map(repr, types)), ",".join(map(quoted, types))
    relations = relation_names(name for name, held in table.columns.items() if held == TEXT)
    relation = f"@{relations[0]}" if len(relations) == 1 else kind[1]
    source, target = (f"@{types[0]}", f"@{types[1]}") if len(types) == 2 else ("@SOURCE_TYPE", "@TARGET_TYPE")
    several = type_text((source, relation, target))
    faults.problems.append(
        f"{table.name}: {named} give the types of the ends, of which two may have equal ids: give the table "
        f"as --edges '{several}=FILES', or, if all ids differ, add --drop {listed}"
    )
    faults.renamed[kind] = {*types, *relations}
    faults.hopeless = True


def _find_header(faults: _Faults, table: Table, roles: Callable[[Sequence[str]], Sequence[object]]) -> None:
    """Add a file without a header, as options say, whose first line has names of columns that have roles."""
    reader = reader_of(table)
    if getattr(reader, "header", None) != []:
        return
    texts = [name for name, held in reader.columns.items() if held == TEXT]
    first = next(iter(reader.read(texts, 1)), None) if texts else None
    names = [] if first is None else [str(first[name][0]) for name in texts if len(first[name])]
    if roles(names):
        what = "looks like a header: leave --csv-columns out, and add --rename where names differ"
        faults.problems.append(f"{table.name}: the first line, {','.join(names)!r}, {what}")
        faults.hopeless = True


def _without_header(
    tables: GraphTables, kind: EdgeType, named: Mapping[str, Kind], wanted: Sequence[str]
) -> list[str]:
    """Return the options that read a table of edges without a header, given names for its columns."""
    options = ["--csv-columns", option_for(tables, kind, ",".join(map(quoted, named)))]
    unkept = [name for name, held in named.items() if held == TEXT and name not in wanted]
    if _RELATION in unkept:
        options += ["--encode", option_for(tables, kind, _RELATION)]
    if left := [name for name in unkept if name != _RELATION]:
        options += ["--drop", option_for(tables, kind, ",".join(left))]
    return options


def _find_ends_by_another_name(
    tables: GraphTables, kind: EdgeType, table: Table, missing: Sequence[str], faults: _Faults
) -> None:
    """Add edges whose ends have names that no convention has, or that two have."""
    listed = ", ".join(map(repr, table.columns)) or "none"
    none = " and none ".join(map(repr, missing))
    faults.problems.append(f"{table.name}: no column {none}; columns: {listed}")

    def renamed(pairs: Mapping[str, str]) -> list[str]:
        values = [f"{quoted(source_of(table, old))}={new}" for old, new in pairs.items()]
        return [each for value in values for each in ("--rename", option_for(tables, kind, value))]

    pairs = end_names(table.columns, kind) if {"src", "dst"} <= {*missing} else []
    if len(pairs) > 1:
        faults.problems[-1] += f"; ends may be {' or '.join(' and '.join(map(repr, pair)) for pair in pairs)}"
        faults.add_readings([renamed({pair[0]: "src", pair[1]: "dst"}) for pair in pairs])
        faults.renamed[kind] = {name for pair in pairs for name in pair}
        return
    likely = _likely_ends(kind, table, missing)
    faults.hopeless |= not likely
    faults.renamed[kind] = set(likely)
    faults.note_ends(kind, table, {likely.get(name, name): held for name, held in table.columns.items()})
    reader = reader_of(table)
    is_text = getattr(reader, "header", None) and {*reader.columns.values()} == {TEXT}
    by_order = not any(words_in(name) & _END_WORDS.get(end, _RELATION_WORDS) for name, end in likely.items())
    if likely and is_text and by_order:
        faults.problems[-1] += f"; unless its first line, {','.join(reader.columns)!r}, is a row"
        unkept = [name for name in table.columns if name not in likely and name not in edge_roles(kind)]
        dropped = ",".join(quoted(source_of(table, name)) for name in unkept)
        drop = ["--drop", option_for(tables, kind, dropped)] if unkept else []
        wanted = [name for name in ("src", relation_column(kind), "dst") if name is not None]
        orders = [_without_header(tables, kind, named, wanted) for named in _edge_columns(wanted, reader)]
        faults.add_readings([renamed(likely) + drop, *orders])
        faults.renamed[kind] = set(table.columns)
    else:
        faults.options += renamed(likely)


def _find_missing_ids(tables: GraphTables, node_type: NodeType, rows: Table, faults: _Faults) -> None:
    """Add nodes without ``id`` where the first line is a row, or where a column looks like ids."""
    if first_line := _first_row(rows, ends=False):
        _find_no_header(faults, node_type, rows, first_line)
        names = [f"column{at}" for at in range(1, 1 + len(reader_of(rows).columns))]
        if may_be_ids(reader_of(rows), next(iter(reader_of(rows).columns))):
            names[0] = "id"
        faults.options += ["--csv-columns", option_for(tables, node_type, ",".join(names))]
        if names[0] != "id":
            faults.options += ["--stack", option_for(tables, node_type, "x=column*", typed=True)]
    elif node_type in faults.texts and (likely_id := _likely_id(node_type, rows)):
        listed = ", ".join(map(repr, rows.columns))
        faults.problems.append(
            f"{rows.name}: no column 'id', and {faults.texts[node_type]} names nodes of type "
            f"{node_type!r} by texts; columns: {listed}"
        )
        faults.renamed[node_type] = {likely_id}
        old = quoted(source_of(rows, likely_id))
        faults.options += ["--rename", option_for(tables, node_type, f"{old}=id")]
    elif node_type not in faults.texts:
        _find_ids_by_another_name(tables, node_type, rows, faults)


def _find_ids_by_another_name(tables: GraphTables, node_type: NodeType, rows: Table, faults: _Faults) -> None:
    """Add a table whose rows would be numbered although a column looks like ids."""
    if (found := likely_ids(tables, node_type)) is None:
        return
    faults.problems.append(
        f"{rows.name}: no column 'id', and {found.source!r} looks like the ids"
        + ("" if found.usable else ", but has values twice, or decimal numbers")
        + f"; if edges name its rows by number, add --row-ids {node_type}"
    )
    faults.renamed[node_type] = {found.name}
    faults.hopeless |= not found.usable

    def renamed(name: str) -> list[str]:
        return ["--rename", option_for(tables, node_type, f"{quoted(name)}=id", typed=True)]

    several = [source_of(rows, name) for name in id_names(rows.columns, node_type)]
    if len(several) > 1:
        faults.problems[-1] += f"; {' and '.join(map(repr, several))} may be ids"
        faults.add_readings([renamed(name) for name in several])
    else:
        faults.options += renamed(found.source)


def _find_no_header(faults: _Faults, kind: NodeType | EdgeType, table: Table, first_line: str) -> None:
    faults.problems.append(f"{table.name}: the first line, {first_line}, looks like a row, not a header")
    faults.renamed[kind] = set(table.columns)


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


def _find_strange_ids(tables: GraphTables, faults: _Faults) -> None:
    """Add columns of ids, and of relations, that hold anything else."""
    for node_type in tables.node_types:
        columns = [each for each in id_columns(tables, node_type) if not each.is_mask]
        try:
            strange = [] if are_texts(tables, node_type) else columns
        except FormatError as error:
            strange = []
            _add_strange(faults, str(error), columns, to_text=True)
        for column in strange:
            _check_integers(faults, column, columns)
    for kind, table in tables.edges.items():
        if "id" in table.columns:
            edge_ids = IdColumn(table, "id", ",".join(kind))
            _check_integers(faults, edge_ids, [edge_ids], may_be_text=False)
        if (relation := relation_column(kind)) and (held := table.columns[relation]) != TEXT:
            shown = held.dtype if isinstance(held, Column) else held
            what = f"{table.name}, column {relation!r}: holds {shown}, not texts"
            _add_strange(faults, what, [IdColumn(table, relation, ",".join(kind))], to_text=True)


def _check_integers(
    faults: _Faults, column: IdColumn, columns: Sequence[IdColumn], *, may_be_text: bool = True
) -> None:
    """Add ``column`` where it does not hold integers. ``columns``: all that name the same nodes or edges."""
    try:
        require_integers(column.table, column.name)
    except FormatError as error:
        _add_strange(faults, str(error), columns, to_text=may_be_text and _is_csv(column.table))


def _add_strange(faults: _Faults, problem: str, columns: Sequence[IdColumn], *, to_text: bool) -> None:
    """Add a fault of ids, with the options that make texts, or whole numbers, of all columns of the ids."""
    faults.problems.append(problem)
    if to_text and any(are_integers(each.kind) for each in columns):  # 2 and 2.0 are two texts.
        faults.hopeless |= any(_is_whole(each) for each in columns)
    for each in columns:
        integers = are_integers(each.kind)
        if each.kind == TEXT or (integers and not to_text):
            continue
        is_csv = _is_csv(each.table)  # Its decimal numbers are read as texts, and not as integers.
        faults.hopeless |= not ((is_csv or integers) if to_text else not is_csv and _is_whole(each))
        option = f"{each.scope}:{quoted(each.name)}={'text' if to_text else 'int64'}"
        if option not in faults.options:
            faults.options += ["--dtype", option]
    faults.hopeless |= not faults.options


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


def _find_reserved_names(
    tables: GraphTables, faults: _Faults, taken: Sequence[tuple[NodeType | EdgeType, str]]
) -> None:
    """Add columns that would hide attributes of batches."""
    for kind, name in taken:
        table = tables.nodes[kind].rows if isinstance(kind, str) else tables.edges[kind]
        if table is None or name in faults.renamed.get(kind, ()):
            continue
        what = f"has the name of an attribute of every batch: rename it (--rename {name}=NEW)"
        faults.problems.append(f"{table.name}, column {name!r}: {what}")
        new = f"{'node' if isinstance(kind, str) else 'edge'}_{name}"
        while new in table.columns:
            new += "_"
        renamed = f"{quoted(source_of(table, name))}={new}"
        faults.options += ["--rename", option_for(tables, kind, renamed, typed=True)]


def _find_relation(tables: GraphTables, faults: _Faults, kind: EdgeType, table: Table, name: str) -> None:
    """Add a column that names the relation of each edge, in a table of one type."""
    several = f"{kind[0]},@{name},{kind[2]}"
    faults.problems.append(
        f"{table.name}, column {name!r}: names relations: --edges {several}=FILES makes a type of each, "
        "--encode a column of integers"
    )
    faults.options += ["--encode", option_for(tables, kind, quoted(source_of(table, name)))]


def _find_unkept_columns(tables: GraphTables, faults: _Faults) -> None:
    """Add all columns of all tables that cannot be stored."""
    given: dict[NodeType | EdgeType, tuple[Table, Sequence[str]]] = {
        kind: (each.rows, NODE_ROLES) for kind, each in tables.nodes.items() if each.rows is not None
    }
    given |= {kind: (table, edge_roles(kind)) for kind, table in tables.edges.items()}
    dropped: dict[str, None] = {}
    for kind, (table, roles) in given.items():
        kept = (*faults.renamed.get(kind, ()), *tables.encodings.get(kind, ()))
        unkept = unkept_columns(table, (*roles, *kept))
        if isinstance(kind, tuple) and len(relations := relation_names(unkept)) == 1:
            _find_relation(tables, faults, kind, table, relations[0])
            del unkept[relations[0]]
        for name, held in unkept.items():
            what = f"holds {held}, not numbers" if name else "has no name"
            faults.problems.append(f"{table.name}, column {name!r}: {what}")
        elsewhere = {name for other, (each, _) in given.items() if other != kind for name in each.columns}
        vectors = [name for name in unkept if _holds_vectors(table, name)]
        categories = [name for name in unkept if name not in vectors and _holds_categories(table, name)]
        for name in (*vectors, *categories):
            named = option_for(tables, kind, quoted(source_of(table, name)), typed=name in elsewhere)
            faults.options += ["--vector" if name in vectors else "--encode", named]
        if left := [name for name in unkept if name not in vectors and name not in categories]:
            listed = ",".join(quoted(source_of(table, name)) for name in left)
            dropped[option_for(tables, kind, listed, typed=not elsewhere.isdisjoint(left))] = None
    faults.problems[:] = dict.fromkeys(faults.problems)
    faults.options += [each for option in dropped for each in ("--drop", option)]


def _holds_categories(table: Table, name: str) -> bool:
    """Return whether the first texts of a column are a few that come again and again."""
    if table.columns[name] != TEXT:
        return False
    texts = next(iter(table.read([name], _FIRST_ROWS)), {name: np.empty(0, object)})[name]
    return _OFTEN * len({*texts} - {""}) <= len(texts)


def _holds_vectors(table: Table, name: str) -> bool:
    """Return whether the first texts of a column are lists of numbers, all of one length."""
    if table.columns[name] != TEXT or isinstance(reader_of(table), ArrayTable):
        return False
    from gigl_loader.partition.vector_table import common_length

    chunk = next(iter(table.read([name], _FIRST_ROWS)), {name: np.empty(0, object)})
    return common_length(chunk[name]) is not None
