"""Columns of texts that become integers, by vocabularies, or edge types, one for each text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gigl_loader.arrays import Array, Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.ids import TextIds
from gigl_loader.graph.manifest import vocabulary_path
from gigl_loader.graph.schema import Column, EdgeType, NodeType, VocabularyFile, is_hidden_list, type_name
from gigl_loader.native import TextIndex
from gigl_loader.partition.job import Job, nodes_or_edges, run_on_shards
from gigl_loader.partition.readers import LIST_DELIMITER, TEXT_LISTS, Kind, Table, numbered
from gigl_loader.partition.refusals import quoted, type_text
from gigl_loader.partition.roles import relation_column
from gigl_loader.partition.table import Encoding, GraphTables, NodeTable, of_relation
from gigl_loader.partition.views import TableView

_MAX_TEXTS = 4096
_MAX_BYTES = 64 << 10
"""Of the texts of a column in the schema, which every trainer gets. More lie in a file."""
_MAX_ONE_HOT, _MAX_MULTI_HOT = 256, 4096
_TEXT_BYTES = 128
"""Of a text in a set, beside its characters."""
_MAX_RELATIONS = 4096
"""Each is a file in every partition."""
_DELIMITERS = "|;,"
_ROWS = 1 << 16

Vocabularies = dict[NodeType | EdgeType, dict[str, tuple[str, ...] | VocabularyFile]]


def encode_columns(job: Job, given: GraphTables) -> tuple[GraphTables, Vocabularies]:
    """Return the tables with integers in place of the texts of columns, and the texts by type and column.

    Integers count the texts by their UTF-8 bytes, ascending; -1 stands for a missing text. ``FormatError``
    for more texts than a vector or the memory holds, and for one that a given vocabulary lacks.
    """
    found: Vocabularies = {}
    files: dict[tuple[str, ...], TextIds] = {}
    nodes, edges = dict(given.nodes), dict(given.edges)
    for kind, wanted in given.encodings.items():
        table = nodes.get(kind, NodeTable()).rows if isinstance(kind, str) else edges[kind]
        assert table is not None
        encodings = {name: _delimited(table, name, how) for name, how in wanted.items()}
        texts = {name: _vocabulary(job, kind, table, name, how) for name, how in encodings.items()}
        large = {name: _in_file(job, each, files) for name, each in texts.items() if _needs_file(each)}
        encoded = EncodedTable(table, encodings, {**texts, **large})
        if isinstance(kind, str):
            nodes[kind] = replace(nodes[kind], rows=encoded)
        else:
            edges[kind] = encoded
        numbers = {each: VocabularyFile(number, len(each)) for number, each in enumerate(files)}
        found[kind] = {name: numbers.get(each, each) for name, each in texts.items()}
    return replace(given, nodes=nodes, edges=edges, encode={}, texts_encoded=True), found


def schema_entries(found: Mapping[str, tuple[str, ...] | VocabularyFile]) -> dict[str, Any]:
    """Return the vocabularies of a type as entries of its schema."""
    files = {name: each for name, each in found.items() if isinstance(each, VocabularyFile)}
    texts = {name: each for name, each in found.items() if name not in files}
    return {"vocabularies": texts, "vocabulary_files": files}


def _needs_file(texts: Sequence[str]) -> bool:
    num_bytes = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    return len(texts) > _MAX_TEXTS or num_bytes > _MAX_BYTES


def _in_file(job: Job, texts: tuple[str, ...], files: dict[tuple[str, ...], TextIds]) -> TextIds:
    """Return the texts as those of a file, which is written unless ``files`` has them."""
    if texts not in files:
        index, name = TextIndex(), vocabulary_path(len(files))
        index.add(list(texts))
        files[texts] = TextIds.of_index(name, index)
        job.hold(files[texts].nbytes, f"a vocabulary of {len(texts):,} texts")
        job.write(name, files[texts].arrays())
        job.runner.share(files[texts], name)
    return files[texts]


def _vocabulary(
    job: Job, kind: NodeType | EdgeType, table: Table, name: str, how: Encoding
) -> tuple[str, ...]:
    texts = how.texts
    limit = _MAX_ONE_HOT if how.one_hot else _MAX_MULTI_HOT if how.multi_hot else None
    if texts is None:
        advice = "encode them as integers (--encode)"
        texts = distinct_texts(job, kind, table, name, limit=limit, advice=advice, delimiter=how.delimiter)
    if how.other and "other" not in texts:
        texts = (*texts, "other")
    if limit is not None and len(texts) > limit:
        raise FormatError(
            f"{table.name}, column {name!r}: a vocabulary of {len(texts):,} texts; at most {limit:,}"
        )
    return texts


def _delimited(table: Table, name: str, how: Encoding) -> Encoding:
    """Return an encoding with what delimits the texts of a value, by the first rows."""
    if not how.multi_hot or how.delimiter is not None:
        return how
    if table.columns[name] == TEXT_LISTS:
        return replace(how, delimiter=LIST_DELIMITER)
    cells = next(iter(table.read([name], _ROWS)), {name: np.empty(0, object)})[name].tolist()
    present = [each for each in _DELIMITERS if any(each in cell for cell in cells)]
    what = f"{table.name}, column {name!r}"
    if cells and all(cell.startswith("[") and cell.endswith("]") for cell in cells if cell):
        raise FormatError(
            f"{what}: printed lists such as {max(cells)!r:.100}: make lists of them in a query "
            f"(SELECT CAST({name} AS VARCHAR[]) AS {name} FROM ...)"
        )
    if len(present) > 1:
        given = " or ".join(f"--multi-hot '{name}={each}'" for each in present)
        raise FormatError(f"{what}: has {' and '.join(present)}: say what delimits its texts ({given})")
    return replace(how, delimiter=present[0] if present else _DELIMITERS[0])


class EncodedTable(TableView):
    """A table whose columns of texts read as integers, or as one-hot or multi-hot vectors of float32."""

    def __init__(
        self,
        table: Table,
        encodings: Mapping[str, Encoding],
        texts: Mapping[str, tuple[str, ...] | TextIds],
    ) -> None:
        """``texts`` are the vocabularies by column."""
        super().__init__(table)
        self._encodings = dict(encodings)
        self._numbers: dict[str, dict[str, int] | TextIds] = {
            name: each if isinstance(each, TextIds) else {text: at for at, text in enumerate(each)}
            for name, each in texts.items()
        }
        forms: dict[str, Kind] = {
            name: Column("F32", (len(texts[name]),)) if how.one_hot or how.multi_hot else Column("I64")
            for name, how in encodings.items()
        }
        self.columns = {**table.columns, **forms}

    def blank(self, name: str) -> Array | None:
        if name not in self._encodings:
            return super().blank(name)
        return np.asarray(self._values(name, np.array([""], dtype=object), 0)[0])

    def _values(self, name: str, array: Array, first_row: int) -> Array:
        if (how := self._encodings.get(name)) is None:
            return array
        cells = array
        if not how.one_hot and not how.multi_hot:
            return self._integers(name, cells.tolist(), np.arange(len(cells)) + first_row)
        parts = [_parts(cell, how.delimiter) for cell in cells.tolist()]
        rows = np.repeat(np.arange(len(cells)), [len(each) for each in parts])
        found = self._integers(name, [text for each in parts for text in each], rows + first_row)
        vectors = np.zeros((len(cells), len(self._numbers[name])), np.float32)
        vectors[rows, found] = 1
        return vectors

    def _integers(self, name: str, texts: list[str], rows: Int64Array) -> Int64Array:
        """Return the integer of each text, -1 for a missing one. ``rows`` are those of the texts."""
        known = self._numbers[name]
        if isinstance(known, TextIds):
            found = known.find(texts)
        else:
            found = np.fromiter((known.get(text, -1) for text in texts), np.int64, len(texts))
        unknown = [at for at in np.flatnonzero(found < 0).tolist() if texts[at]]
        if unknown and not self._encodings[name].other:
            raise FormatError(
                f"{self.where(name, int(rows[unknown[0]]))}: {texts[unknown[0]][:100]!r} is not in the "
                f"vocabulary (--encode {name}=other gives unknown texts a number of their own)"
            )
        if unknown:
            found[unknown] = self._integers(name, ["other"], rows)
        return found


def _parts(cell: str, delimiter: str | None) -> list[str]:
    """Return the texts of a value, without blanks around them."""
    texts = [cell] if delimiter is None else [each.strip() for each in cell.split(delimiter)]
    return [text for text in texts if text]


def distinct_texts(
    job: Job,
    kind: NodeType | EdgeType,
    table: Table,
    column: str,
    *,
    limit: int | None,
    advice: str,
    missing: str | None = None,
    delimiter: str | None = None,
) -> tuple[str, ...]:
    """Return the texts of a column, ascending by their UTF-8 bytes.

    ``FormatError`` with ``advice`` for more than ``limit``, ``ValueError`` for more than the memory holds. A
    missing text does not count, or is a ``FormatError`` that says ``missing``. With ``delimiter``, a value
    has several texts.
    """
    name = f"texts/{'nodes' if isinstance(kind, str) else 'edges'}/{type_name(kind)}/{type_name(column)}"
    step = f"{nodes_or_edges(kind)}: texts of {column}"
    search = _Search(column, limit, advice, missing, delimiter)
    texts: set[str] = set()
    for each in run_on_shards(job, table, name, step, search.run):
        texts.update(each["texts"])
        search.check(job, table, len(texts), sum(map(len, texts)))
    return tuple(sorted(texts))


@dataclass(frozen=True, slots=True)
class _Search:
    """Search for the different texts of a column."""

    column: str
    limit: int | None
    advice: str
    missing: str | None
    delimiter: str | None

    def run(self, job: Job, table: Table) -> dict[str, Any]:
        num_rows = num_bytes = 0
        texts: set[str] = set()
        for row, chunk in numbered(table, [self.column], _ROWS):
            cells = chunk[self.column].tolist()
            if self.missing is not None and "" in cells:
                raise FormatError(f"{table.where(self.column, row + cells.index(''))}: {self.missing}")
            new = {text for cell in {*cells} for text in _parts(cell, self.delimiter)} - texts
            num_bytes += sum(map(len, new))
            texts |= new
            self.check(job, table, len(texts), num_bytes)
            num_rows += len(cells)
            job.advance(len(cells))
        return {"rows": num_rows, "texts": sorted(texts)}

    def check(self, job: Job, table: Table, num_texts: int, num_bytes: int) -> None:
        """Raise an error for too many texts."""
        what = f"{table.name}, column {self.column!r}"
        if self.limit is not None and num_texts > self.limit:
            raise FormatError(f"{what}: more than {self.limit:,} different texts: {self.advice}")
        job.budget.require(num_bytes + _TEXT_BYTES * num_texts, f"{what}: the texts to encode")


def read_relations(job: Job, tables: GraphTables) -> dict[EdgeType, tuple[str, ...]]:
    """Return the texts of the relation column of each table that has one, ascending.

    ``FormatError`` for a missing text, for too many of them, and for one that makes a type of another table.
    """
    found: dict[EdgeType, tuple[str, ...]] = {}
    made: dict[EdgeType, EdgeType] = {}
    for kind, table in tables.edges.items():
        column = relation_column(kind)
        if column is not None:
            found[kind] = _texts_of(job, kind, table, column)
        for each in [kind] if column is None else [of_relation(kind, text) for text in found[kind]]:
            if each in made or (column is not None and is_hidden_list(each)):
                other = f", as {','.join(made[each])} does" if each in made else ", which names no edges"
                raise FormatError(f"{table.name}: {','.join(kind)} makes the type {','.join(each)}{other}")
            made[each] = kind
    return found


def reverses_of(
    reverses: Mapping[EdgeType, EdgeType], relations: Mapping[EdgeType, Sequence[str]]
) -> dict[EdgeType, EdgeType]:
    """Return the declared reverses by the edge types of the graph."""
    found: dict[EdgeType, EdgeType] = {}
    for kind, reverse in reverses.items():
        if kind in relations and reverse in relations:
            both = set(relations[kind]) & set(relations[reverse])
            found |= {of_relation(kind, text): of_relation(reverse, text) for text in both}
        elif kind not in relations and reverse not in relations:
            found[kind] = reverse
    return found


def _texts_of(job: Job, kind: EdgeType, table: Table, column: str) -> tuple[str, ...]:
    one_type = type_text((kind[0], column, kind[2]))
    advice = f"make it a column of one edge type (--edges {one_type}=FILES --encode {quoted(column)})"
    return distinct_texts(
        job, kind, table, column, limit=_MAX_RELATIONS, advice=advice, missing="no relation"
    )
