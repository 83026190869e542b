"""Tables of a graph, and its assigner, from options such as ``--edges author,writes,paper=writes.csv``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gigl_loader.cli.build_options import TableOptions
from gigl_loader.cli.column_options import (
    OptionsByTable,
    TableType,
    before_equals,
    column_of,
    csv_format,
    table_type,
)
from gigl_loader.cli.joined_files import with_joined
from gigl_loader.cli.manifests import with_manifest
from gigl_loader.cli.schema_file import foreign_key_edges, read_schema_file, with_schema
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.quantization import Quantization
from gigl_loader.graph.reverses import reverse_name
from gigl_loader.graph.schema import (
    HOMOGENEOUS_EDGE,
    HOMOGENEOUS_NODE,
    EdgeSplits,
    EdgeType,
    NodeType,
    label_list,
)
from gigl_loader.partition.array_table import ArrayTable
from gigl_loader.partition.assigners import assigner_named
from gigl_loader.partition.checks import check_tables
from gigl_loader.partition.declared import declared, declared_times, read_quantize
from gigl_loader.partition.files import is_query
from gigl_loader.partition.owner_tables import TableAssigner, owners_from_files
from gigl_loader.partition.readers import TEXT, TEXT_LISTS, Table
from gigl_loader.partition.refusals import OptionsNeeded, type_text
from gigl_loader.partition.reversed_edges import with_reverse_edges
from gigl_loader.partition.roles import Role
from gigl_loader.partition.sources import (
    ColumnOptions,
    name_columns,
    open_files,
)
from gigl_loader.partition.table import Encoding, GraphTables, NodeTable, known_columns
from gigl_loader.partition.views import label_set, reader_of
from gigl_loader.splits import named_fractions

if TYPE_CHECKING:
    from gigl_loader.partition.assigners import Assigner, GraphAssigner

_Default = TypeVar("_Default", NodeType, None)


def open_tables(options: TableOptions) -> GraphTables:
    """Open every table that the options name, and those of the manifest and the schema file."""
    options, relational = with_manifest(options)
    relational += [] if options.schema is None else read_schema_file(options.schema)
    options = with_schema(options, relational)
    edges = _by_type(options.edges, "--edges")
    nodes = _by_type(options.nodes, "--nodes")
    types = dict.fromkeys((*edges, *nodes, *_labels(options.labels)))
    scoped = OptionsByTable(csv_format(options), types)
    for option, values, kind in (
        ("--rename", options.rename, "rename"),
        ("--stack", options.stack, "stack"),
        ("--drop", options.drop, "drop"),
        ("--dtype", options.dtypes, "dtypes"),
        ("--fill", options.fill, "fill"),
        ("--vector", options.vector, "vector"),
        ("--csv-columns", options.csv_columns, "csv_columns"),
        ("", (*options.encode, *options.one_hot, *options.multi_hot, *options.quantize), "keep"),
        ("", (*options.weights, *options.times), "keep"),
    ):
        for value in values:
            scoped.add(option, value, kind)
    row_ids = [node_type for each in options.row_ids if isinstance(node_type := table_type(each), str)]
    for node_type in row_ids:
        scoped.number_rows(node_type)
    foreign_keys = foreign_key_edges(relational, scoped.csv_of)
    seen: list[str] = []
    scoped.drops_unknown = options.unknown_ids.value == "drop"
    scoped.joins = _by_type(options.joins, "--join")
    if strange := [key for key in scoped.joins if key not in types]:
        what = f"--join: no table of type {type_text(strange[0])}: {_place_of_columns(edges, strange[0])}"
        of_edges = [type_text(kind) for kind in edges] if strange[0] == HOMOGENEOUS_NODE else []
        files = [{spec: f"{kind}={spec}" for spec in scoped.joins[strange[0]]} for kind in of_edges]
        raise OptionsNeeded([what], files=files)
    edge_tables = {key: _open(key, specs, "edges", scoped, seen) for key, specs in edges.items()}
    node_tables = {key: _node_table(key, specs, scoped, seen) for key, specs in nodes.items()}
    label_tables = {
        key: label_set(_open(key, specs, "edges", scoped, seen))
        for key, specs in _labels(options.labels).items()
    }
    scoped.require_used([*edges, *nodes, *label_tables], seen)
    for node_type, splits in _splits(options.splits, scoped).items():
        table = node_tables.get(node_type, NodeTable())
        node_tables[node_type] = replace(table, splits=splits)
    for node_type, fractions in _fractions(options.split_nodes).items():
        table = node_tables.get(node_type, NodeTable())
        node_tables[node_type] = replace(table, fractions=fractions)
    for node_type in row_ids:
        node_tables[node_type] = _with_row_ids(node_tables, node_type)
    tables = GraphTables(
        edges={
            **{key: table for key, table in edge_tables.items() if isinstance(key, tuple)},
            **foreign_keys,
        },
        nodes={key: table for key, table in node_tables.items() if isinstance(key, str)},
        labels=label_tables,
        unknown_ids=options.unknown_ids.value,
        duplicates=options.duplicates.value,
        self_loops=options.self_loops.value,
    )
    tables = replace(tables, encode=_encodings(options, tables))
    check_tables(tables)
    tables = replace(tables, splits=_edge_splits(options.split_edges, tables.edges))
    reverses = _reverses(options.reverse)
    added = with_reverse_edges(tables, reverses, undirected=options.undirected)
    columns = {key: table.columns for key, table in added.edges.items()}
    weights = weight_columns(columns, options.weights)
    # Declared first where they can be: the reversed edges of a type are drawn by its weights, too.
    declared_first = {kind: names for kind, names in weights.items() if kind in tables.edges}
    node_columns = {kind: each.rows.columns for kind, each in tables.nodes.items() if each.rows is not None}
    times = time_columns(node_columns, columns, options.times)
    reversed_ = set(added.edges) - set(tables.edges)
    times_first = {kind: names for kind, names in times.items() if kind not in reversed_}
    quantize = _quantize(options.quantize, known_columns(added.nodes, added.edges))
    quantize_first = {kind: named for kind, named in quantize.items() if kind not in reversed_}
    tables = replace(tables, weights=declared_first, times=times_first, quantize=quantize_first)
    tables = with_reverse_edges(tables, reverses, undirected=options.undirected)
    return replace(
        tables,
        weights={**weights, **tables.weights},
        times={**times, **tables.times},
        quantize={
            kind: {**tables.quantize.get(kind, {}), **quantize.get(kind, {})}
            for kind in (*tables.quantize, *quantize)
        },
        message_edges=_message_edges(options.message_edges),
    )


def _encodings(options: TableOptions, tables: GraphTables) -> dict[TableType, dict[str, Encoding]]:
    """Return what ``--encode``, ``--one-hot`` and ``--multi-hot`` say, and how labels are encoded."""
    found: dict[TableType, dict[str, Encoding]] = {key: dict(each) for key, each in tables.encodings.items()}
    known = known_columns(tables.nodes, tables.edges)
    columns_known = {name for columns in known.values() for name in columns}
    given = {"--encode": options.encode, "--one-hot": options.one_hot, "--multi-hot": options.multi_hot}
    for option, value in ((option, value) for option, values in given.items() for value in values):
        kind, name, rest = column_of(value, known, columns_known)
        how = Encoding(
            one_hot=option == "--one-hot", multi_hot=option == "--multi-hot", other=rest == "other"
        )
        if how.multi_hot:
            how = replace(how, other=False, delimiter=rest or None)
        elif rest is not None and (how.one_hot or not how.other):
            raise ValueError(
                f"{option} {value}: write --encode [TYPE:]COLUMN[=other], --one-hot COLUMN or "
                "--multi-hot COLUMN[=DELIMITER]"
            )
        columns = {
            key: "y" if name == "label" and "y" in each else name
            for key, each in known.items()
            if kind in (None, key)
        }
        kinds = (TEXT, TEXT_LISTS) if how.multi_hot else (TEXT,)
        having = {key: column for key, column in columns.items() if known[key].get(column) in kinds}
        if not having:
            raise ValueError(f"{option} {value}: no column {name!r} of texts")
        for key, column in having.items():
            found.setdefault(key, {})[column] = how
    if options.vocabulary is None:
        return found
    graph = Graph.open(options.vocabulary)
    types: list[Any] = [*graph.schema.nodes.items(), *graph.schema.edges.items()]
    for key, each in types:
        files = {name: graph.vocabulary(file.number) for name, file in each.vocabulary_files.items()}
        words = {**each.vocabularies, **files}
        for name, how in found.get(key, {}).items():
            found[key][name] = replace(how, texts=words.get(name))
    return found


def _quantize(
    options: Sequence[str], known: Mapping[TableType, Mapping[str, object]]
) -> dict[TableType, dict[str, Quantization]]:
    """Return how columns are quantised for all ``--quantize [TYPE:]COLUMN=KIND[:per-row|:per-column]``."""
    wanted: dict[Any, Any] = {}
    for option in options:
        key, name, kind = column_of(option, known, {name for each in known.values() for name in each})
        if not name or kind is None:
            raise ValueError(f"--quantize {option}: write --quantize [TYPE:]COLUMN=KIND, such as x=int8")
        named = wanted if key is None else wanted.setdefault(key, {})
        if name in named:
            raise ValueError(f"--quantize {option}: column {name!r} is quantised twice")
        named[name] = kind
    return read_quantize(wanted, known, "--quantize")


def _fractions(options: Sequence[str]) -> dict[NodeType, dict[str, float]]:
    """Return the fractions of splits by node type for each ``--split-nodes [TYPE=]TRAIN,VAL,TEST``."""
    found: dict[NodeType, dict[str, float]] = {}
    for option in options:
        key, fractions = _split_option("--split-nodes", option, HOMOGENEOUS_NODE)
        if not isinstance(key, str):
            raise ValueError(f"--split-nodes {option}: {type_text(key)} are edges: use --split-edges")
        found[key] = fractions
    return found


def _edge_splits(options: Sequence[str], known: Iterable[EdgeType]) -> dict[EdgeType, EdgeSplits]:
    """Return the splits by edge type for each ``--split-edges [TYPE=]TRAIN,VAL,TEST``.

    Without a type, it is for all types that have no splits of their own.
    """
    found: dict[EdgeType, EdgeSplits] = {}
    shared: EdgeSplits | None = None
    for option in options:
        key, fractions = _split_option("--split-edges", option, None)
        if isinstance(key, str):
            raise ValueError(f"--split-edges {option}: {key!r} is no edge type; write SRC,REL,DST=FRACTIONS")
        if key is None:
            shared = EdgeSplits(fractions=fractions)
        else:
            found[key] = EdgeSplits(fractions=fractions)
    return found if shared is None else {**dict.fromkeys(known, shared), **found}


def _message_edges(option: str | None) -> tuple[str, ...] | None:
    """Return the splits that ``--message-edges NAME,...`` names."""
    return None if option is None else tuple(filter(None, option.split(",")))


def _split_option(name: str, option: str, default: _Default) -> tuple[TableType | _Default, dict[str, float]]:
    scope, equals, listed = option.rpartition("=")
    key = table_type(scope) if equals else default
    try:
        numbers = [float(each) for each in listed.split(",")]
    except ValueError:
        raise ValueError(
            f"{name} {option}: write {name} [TYPE=]TRAIN,VAL,TEST, such as 0.8,0.1,0.1"
        ) from None
    try:
        return key, named_fractions(numbers)
    except ValueError as error:
        raise ValueError(f"{name} {option}: {error}") from None


def _labels(options: Sequence[str]) -> dict[EdgeType, list[str]]:
    """Group ``--labels SRC,REL,DST[:negative]=FILES`` by label set."""
    found: dict[EdgeType, list[str]] = {}
    for option in options:
        left, files = before_equals(option)
        scope = left.removesuffix(":negative")
        key = table_type(scope)
        if isinstance(key, str) or not files or ":" in _outside_quotes(scope):
            raise ValueError(f"--labels {option}: write --labels SRC,REL,DST[:negative]=FILES")
        found.setdefault(label_list(key, "positive" if scope == left else "negative"), []).append(files)
    return found


def _reverses(options: Sequence[str]) -> dict[EdgeType, EdgeType]:
    """Return the type of the reversed edges for each ``--reverse TYPE[=NAME]``."""
    found: dict[EdgeType, EdgeType] = {}
    for option in options:
        left, right = before_equals(option)
        kind = table_type(left)
        if isinstance(kind, str):
            raise ValueError(f"--reverse {option}: {left!r} is no edge type; write SRC,REL,DST[=NAME]")
        name = table_type(right) if right is not None else reverse_name(kind)
        found[kind] = (kind[2], name, kind[0]) if isinstance(name, str) else name
    return found


def weight_columns(
    edges: Mapping[EdgeType, Collection[str]], options: Sequence[str]
) -> dict[EdgeType, tuple[str, ...]]:
    """Return the columns that ``--weight [TYPE:]COLUMN`` declares, given the columns of each edge type."""
    found: dict[EdgeType, tuple[str, ...]] = {}
    for option in options:
        key, name, _ = column_of(option, edges, {name for columns in edges.values() for name in columns})
        if isinstance(key, str):
            raise ValueError(f"--weight {option}: {key!r} is no edge type; write SRC,REL,DST:COLUMN")
        named = declared(edges, name if key is None else {key: name}, f"--weight {option}")
        for kind, names in named.items():
            found[kind] = tuple(sorted({*found.get(kind, ()), *names}))
    return found


def time_columns(
    nodes: Mapping[NodeType, Collection[str]],
    edges: Mapping[EdgeType, Collection[str]],
    options: Sequence[str],
) -> dict[TableType, tuple[str, ...]]:
    """Return the columns that ``--time [TYPE:]COLUMN`` declares, given the columns of each type."""
    found: dict[TableType, tuple[str, ...]] = {}
    known = {name for columns in (*nodes.values(), *edges.values()) for name in columns}
    for option in options:
        key, name, _ = column_of(option, (*nodes, *edges), known)
        wanted = name if key is None else {key: name}
        for kind, names in declared_times(nodes, edges, wanted, f"--time {option}").items():
            found[kind] = tuple(sorted({*found.get(kind, ()), *names}))
    return found


def _place_of_columns(edges: Mapping[TableType, Sequence[str]], key: TableType) -> str:
    """Return how to give the columns of a type that has no table."""
    if isinstance(key, tuple):
        return "give these files by --edges"
    columns = [f"--join {type_text(kind)}=FILES" for kind in edges]
    return f"give columns of nodes by --nodes, of edges by {' or '.join(columns) or '--edges'}"


def _open(key: TableType, specs: Sequence[str], role: Role, scoped: OptionsByTable, seen: list[str]) -> Table:
    table = open_files(specs, role=role, options=scoped.of_reader(key, role))
    return _named(key, table, role, scoped, seen)


def _named(key: TableType, table: Table, role: Role, scoped: OptionsByTable, seen: list[str]) -> Table:
    joined = with_joined(
        table,
        scoped.joins.get(key, ()),
        role=role,
        options=scoped.of_reader(key, role),
        drops_unknown=scoped.drops_unknown,
    )
    named = name_columns(joined.table, role=role, options=scoped.of(key, joined.table, role, gone=joined.ids))
    seen += [*joined.table.columns, *joined.ids, *named.columns]
    return named


def _node_table(key: TableType, specs: Sequence[str], scoped: OptionsByTable, seen: list[str]) -> NodeTable:
    if len(specs) > 1 or not specs[0].isdigit():
        return NodeTable(_open(key, specs, "nodes", scoped, seen))
    if key not in scoped.joins:
        return NodeTable(count=int(specs[0]))
    numbers = ArrayTable(f"--nodes {type_text(key)}={specs[0]}", {"id": np.arange(int(specs[0]))})
    return NodeTable(_named(key, numbers, "nodes", scoped, seen))


def _with_row_ids(tables: Mapping[TableType, NodeTable], node_type: NodeType) -> NodeTable:
    """Return the nodes of a type, of which no column may be taken for ids."""
    rows = tables.get(node_type, NodeTable()).rows
    if rows is None or "id" in rows.columns:
        what = (
            "no table of nodes of this type"
            if rows is None
            else f"{rows.name} has a column 'id' (in a schema file, primary_key: id)"
        )
        raise ValueError(f"--row-ids {node_type}: {what}")
    return replace(tables[node_type], row_ids=True)


def _by_type(values: Sequence[str], option: str) -> dict[TableType, list[str]]:
    """Group ``[TYPE=]FILES`` by type. A node type is a word, an edge type three with commas."""
    found: dict[TableType, list[str]] = {}
    edges = option == "--edges"
    for value in values:
        left, right = before_equals(value)
        if right and "/" not in _outside_quotes(left) and not is_query(value):
            key = table_type(left)
        else:
            key, right = (HOMOGENEOUS_EDGE if edges else HOMOGENEOUS_NODE), value
        if isinstance(key, tuple) != edges and option != "--join":
            wanted = "SOURCE,RELATION,DESTINATION=FILES" if edges else "TYPE=FILES"
            raise ValueError(f"{option} {value}: {left!r} is no type; write {option} [{wanted}]")
        found.setdefault(key, []).append(right)
    if option != "--join" and len(found) > 1 and (HOMOGENEOUS_EDGE in found or HOMOGENEOUS_NODE in found):
        raise ValueError(f"{option}: either every table names its type, or there is only one type")
    return found


def _outside_quotes(text: str) -> str:
    return re.sub('".*?"', "", text)


def _splits(values: Sequence[str], scoped: OptionsByTable) -> Mapping[NodeType, dict[str, Table]]:
    found: dict[NodeType, dict[str, Table]] = {}
    for value in values:
        left, files = before_equals(value)
        scope, colon, name = left.rpartition(":")
        key = table_type(scope) if colon else HOMOGENEOUS_NODE
        if not name or not files or not isinstance(key, str):
            raise ValueError(f"--split {value}: write --split [TYPE:]NAME=FILE")
        found.setdefault(key, {})[name] = _split_table(files, key, scoped)
    return found


def _split_table(files: str, node_type: NodeType, scoped: OptionsByTable) -> Table:
    """Open the nodes of a split. Of the options, it has the name and the dtype of ids of its type."""
    options = scoped.of_reader(node_type, "ids")
    dtypes = {name: dtype for name, dtype in options.dtypes.items() if name == "id"}
    rename = {old: new for old, new in options.rename.items() if new == "id"}
    options = ColumnOptions(rename=rename, dtypes=dtypes, csv=options.csv, type=node_type)
    table = open_files(files, role="ids", options=options)
    if [name for name in getattr(reader_of(table), "header", ()) if name.isdigit()] == list(table.columns):
        options = replace(options, csv=replace(options.csv, columns=("id",)))  # The first line is an id.
        table = open_files(files, role="ids", options=options)
    rename = {old: new for old, new in rename.items() if old in table.columns}
    named = name_columns(table, role="ids", options=replace(options, rename=rename, dtypes={}))
    if "id" not in named.columns:
        raise ValueError(f"{table.name}: no column 'id'; columns: {', '.join(map(repr, named.columns))}")
    return name_columns(named, role="ids", options=ColumnOptions(dtypes=dtypes)) if dtypes else named


def read_assigner(values: Sequence[str], options: TableOptions) -> Assigner | GraphAssigner:
    """Return the assigner for all ``--assigner NAME`` or ``--assigner [TYPE=]FILES``.

    ``ValueError`` for an unknown name, and for a type without files or with them twice.
    """
    of_csv = ColumnOptions(csv=csv_format(options))
    files: dict[NodeType, str] = {}
    for value in values:
        left, each = before_equals(value)
        if each is None or "/" in _outside_quotes(left):
            if len(values) > 1:
                raise ValueError(f"--assigner {value}: of several, each is TYPE=FILES")
            named = assigner_named(value)
            of_files = isinstance(named, TableAssigner)
            return owners_from_files(value, options=of_csv) if of_files else named
        node_type = table_type(left) if left else ""
        if not node_type or not each or node_type in files or not isinstance(node_type, str):
            raise ValueError(f"--assigner {value}: write --assigner [TYPE=]FILES, once for each type")
        files[node_type] = each
    return owners_from_files(files, options=of_csv)
