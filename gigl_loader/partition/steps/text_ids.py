"""Text ids: nodes that the tables name by texts get the node ids 0, 1, 2, ..., and their texts are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from gigl_loader.arrays import first_true
from gigl_loader.errors import FormatError
from gigl_loader.graph.ids import TextIds
from gigl_loader.graph.manifest import text_ids_path
from gigl_loader.graph.schema import Column, NodeType
from gigl_loader.native import TextIndex
from gigl_loader.options import MAX_TEXT_ID
from gigl_loader.partition.job import Job
from gigl_loader.partition.readers import TEXT, Kind, Table, numbered
from gigl_loader.partition.steps.ids import NO_ID, NumberedTable
from gigl_loader.partition.table import GraphTables, NodeTable, is_mask
from gigl_loader.partition.views import ProjectedTable, Projection

_ROWS = 1 << 16
_TEXT_BYTES = 128
"""Of a text while it is a ``str`` in an array: 57 bytes and its characters."""


def number_text_ids(job: Job, tables: GraphTables) -> tuple[GraphTables, dict[NodeType, TextIds]]:
    """Return the tables with node ids in place of texts, and the texts of the node types that had texts.

    Nodes of a node table get its row numbers. Nodes that only edges mention are numbered by the UTF-8 bytes
    of their texts, ascending, after those of the table. The texts are written to the graph. ``FormatError``
    names file, column and row of a text that is missing, too long, repeated or unknown, and columns of which
    some name the nodes of a type by texts and some by integers. Unknown texts that are left out become -1.
    """
    known = tables.unknown_ids != "drop"
    texts: dict[NodeType, TextIds] = {}
    for node_type in tables.node_types:
        if are_texts(tables, node_type):
            found = texts[node_type] = _read_texts(job, tables, node_type)
            job.hold(found.nbytes, f"the {len(found):,} text ids of node type {node_type!r}")
            job.write(text_ids_path(node_type), found.arrays())
            job.runner.share(found, text_ids_path(node_type))
    if not texts:
        return tables, {}
    lists: dict[tuple[str, str, str], Table] = {}
    for kind, table in tables.lists.items():
        ends = {end: texts[of] for end, of in (("src", kind[0]), ("dst", kind[2])) if of in texts}
        types = {"src": kind[0], "dst": kind[2]}
        lists[kind] = NumberedTable(table, ends, types, known=known) if ends else table
    nodes = {
        kind: _numbered_nodes(table, texts[kind], kind, known=known) if kind in texts else table
        for kind, table in tables.nodes.items()
    }
    edges = {kind: lists[kind] for kind in tables.edges}
    labels = {kind: lists[kind] for kind in tables.labels}
    return replace(tables, edges=edges, labels=labels, nodes=nodes), texts


@dataclass(frozen=True, slots=True)
class IdColumn:
    """A column that names nodes of a type."""

    table: Table
    name: str
    scope: str
    """Type of the table, as options of the command line write it."""

    @property
    def kind(self) -> Kind | None:
        return self.table.columns.get(self.name)

    @property
    def is_mask(self) -> bool:
        """Whether it is a split that selects nodes by a boolean for each."""
        return is_mask(self.table, self.name)

    @property
    def place(self) -> str:
        return f"{self.table.name}, column {self.name!r}"


def id_columns(tables: GraphTables, node_type: NodeType) -> list[IdColumn]:
    """Return all columns that name nodes of a type, that of the node table first."""
    entry = tables.nodes.get(node_type, NodeTable())
    found: list[IdColumn] = []
    if entry.rows is not None and "id" in entry.rows.columns:
        found.append(IdColumn(entry.rows, "id", node_type))
    found += [
        IdColumn(table, name, ",".join(kind))
        for kind, table in tables.lists.items()
        for end, name in ((kind[0], "src"), (kind[2], "dst"))
        if end == node_type
    ]
    return [*found, *(IdColumn(table, "id", node_type) for table in entry.splits.values())]


def are_texts(tables: GraphTables, node_type: NodeType) -> bool:
    """Return whether nodes of a type are named by texts. ``FormatError`` where some columns say otherwise."""
    columns = id_columns(tables, node_type)
    texts = [column for column in columns if column.kind == TEXT]
    others = [column for column in columns if isinstance(column.kind, Column) and not column.is_mask]
    if not texts:
        return False
    if others:
        raise FormatError(
            f"nodes of type {node_type!r} have texts for ids ({_first_text(texts[0])}), and numbers in "
            f"{others[0].place}: read all of them as texts (--dtype {others[0].scope}:{others[0].name}=text)"
        )
    strange = [column for column in columns if column.kind != TEXT and not column.is_mask]
    if strange:
        what = "is missing" if strange[0].kind is None else f"holds {strange[0].kind}"
        raise FormatError(f"{strange[0].place}: {what}; nodes of type {node_type!r} have texts for ids")
    entry = tables.nodes.get(node_type, NodeTable())
    if entry.count is not None:
        raise FormatError(f"{texts[0].place}: holds texts, but nodes of type {node_type!r} are only counted")
    if entry.rows is not None and "id" not in entry.rows.columns:
        raise FormatError(f"{texts[0].place}: holds texts, but {entry.rows.name} has no column 'id'")
    return True


def _first_text(column: IdColumn) -> str:
    """Return the place and value of the first text that is no number, else the place of the column."""
    for row, chunk in numbered(column.table, [column.name], 1 << 16):
        texts = chunk[column.name].tolist()
        for at, text in enumerate(texts):
            if not text.lstrip("-").isdigit():
                return f"{column.table.where(column.name, row + at)}: {text[:100]!r}"
    return column.place


def _read_texts(job: Job, tables: GraphTables, node_type: NodeType) -> TextIds:
    """Return the texts of a type: those of its node table, else those that edges mention, ascending."""
    index = TextIndex()
    columns = id_columns(tables, node_type)
    entry = tables.nodes.get(node_type, NodeTable())
    adds = tables.unknown_ids == "add"
    if entry.rows is not None:
        _collect(job, index, columns[0], node_type, repeats=False)
    if entry.rows is None or adds:
        more = TextIndex()
        known = TextIds.of_index(text_ids_path(node_type), index) if len(index) else None
        for column in columns[0 if entry.rows is None else 1 :]:
            if column.name != "id" or (adds and not column.is_mask):
                _collect(job, more, column, node_type, repeats=True, known=known)
        job.budget.require(3 * more.nbytes, f"sorting the text ids of node type {node_type!r}")
        more.sort()
        if not len(index):
            return TextIds.of_index(text_ids_path(node_type), more)
        texts = TextIds.of_index("", more)
        for start in range(0, len(more), _ROWS):
            index.add(texts.texts(np.arange(start, min(start + _ROWS, len(more)))))
    return TextIds.of_index(text_ids_path(node_type), index)


def _collect(
    job: Job,
    index: TextIndex,
    column: IdColumn,
    node_type: NodeType,
    *,
    repeats: bool,
    known: TextIds | None = None,
) -> None:
    """Add the texts of a column that are not ``known``. ``FormatError`` for one that may not repeat."""
    advance = job.track(f"nodes {node_type}: texts of {column.name}", column.table.num_rows)
    for row, chunk in _texts_of(job, column):
        numbers = known.find(chunk) if known is not None else np.full(len(chunk), -1)
        texts = [chunk[at] for at in np.flatnonzero(numbers < 0).tolist()]
        size = len(index)
        numbers = index.add(texts)
        if not repeats and (at := first_true(numbers != np.arange(size, size + len(numbers)))) is not None:
            place = column.table.where(column.name, row + at)
            raise FormatError(f"{place}: node id {texts[at]!r} occurs a second time")
        # Twice: the arrays of the index are copied when it is complete.
        job.budget.require(2 * index.nbytes, f"collecting the text ids of node type {node_type!r}")
        advance(len(chunk))


def _texts_of(job: Job, column: IdColumn) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the first row and the texts of each chunk, checked."""
    for row, chunk in numbered(column.table, [column.name], job.budget.chunk_rows(_TEXT_BYTES)):
        texts = chunk[column.name].tolist()
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        if (at := first_true((lengths == 0) | (lengths > MAX_TEXT_ID))) is not None:
            length = int(lengths[at])
            what = f"an id of {length} characters; at most {MAX_TEXT_ID} are possible" if length else NO_ID
            raise FormatError(f"{column.table.where(column.name, row + at)}: {what}")
        yield row, texts


def _numbered_nodes(entry: NodeTable, texts: TextIds, node_type: NodeType, *, known: bool) -> NodeTable:
    """Return the nodes of a type by row number: those of a table without its ids, or only their number."""
    splits = {
        name: table
        if is_mask(table, "id")
        else NumberedTable(table, {"id": texts}, {"id": node_type}, known=known)
        for name, table in entry.splits.items()
    }
    if entry.rows is None:
        return NodeTable(count=len(texts), splits=splits, fractions=entry.fractions)
    rest = {name: Projection((name,)) for name in entry.rows.columns if name != "id"}
    if not rest:
        return NodeTable(count=entry.rows.num_rows, splits=splits, fractions=entry.fractions)
    return NodeTable(ProjectedTable(entry.rows, rest), splits=splits, fractions=entry.fractions)
