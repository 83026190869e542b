"""Columns of texts that become integers, and the vocabularies by which they do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gigl_loader.arrays import Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import Column, EdgeType, NodeType, type_name
from gigl_loader.partition.job import Job
from gigl_loader.partition.readers import Kind, Table
from gigl_loader.partition.readers.shards import numbered
from gigl_loader.partition.stage import StageInfo
from gigl_loader.partition.table import Encoding, GraphTables, NodeTable
from gigl_loader.partition.views import TableView

_MAX_TEXTS = 4096
_MAX_BYTES = 64 << 10
"""Of the texts of a column. They are part of the schema, which every trainer gets."""
_MAX_ONE_HOT = 256
_ROWS = 1 << 16

Vocabularies = dict[NodeType | EdgeType, dict[str, tuple[str, ...]]]


def encode_columns(job: Job, given: GraphTables) -> tuple[GraphTables, Vocabularies]:
    """Return the tables with integers in place of the texts of columns, and the texts by type and column.

    Integers count the texts by their UTF-8 bytes, ascending; -1 stands for a missing text. ``FormatError``
    for more texts than a vocabulary holds, and for one that a given vocabulary lacks.
    """
    found: Vocabularies = {}
    nodes, edges = dict(given.nodes), dict(given.edges)
    for kind, encodings in given.encodings.items():
        table = nodes.get(kind, NodeTable()).rows if isinstance(kind, str) else edges[kind]
        assert table is not None
        texts = {name: _vocabulary(job, kind, table, name, how) for name, how in encodings.items()}
        encoded = EncodedTable(table, encodings, texts)
        if isinstance(kind, str):
            nodes[kind] = replace(nodes[kind], rows=encoded)
        else:
            edges[kind] = encoded
        found[kind] = texts
    return replace(given, nodes=nodes, edges=edges, encode={}, texts_encoded=True), found


def _vocabulary(
    job: Job, kind: NodeType | EdgeType, table: Table, name: str, how: Encoding
) -> tuple[str, ...]:
    texts = how.texts
    if texts is None:
        texts = distinct_texts(job, kind, table, name, limit=_MAX_TEXTS)
    if how.other and "other" not in texts:
        texts = (*texts, "other")
    if (nbytes := sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)) > _MAX_BYTES:
        raise FormatError(f"{table.name}, column {name!r}: texts of {nbytes:,} bytes; at most {_MAX_BYTES:,}")
    if how.one_hot and len(texts) > _MAX_ONE_HOT:
        raise FormatError(
            f"{table.name}, column {name!r}: {len(texts)} texts; at most {_MAX_ONE_HOT} can be one-hot: "
            "encode them as integers"
        )
    return texts


class EncodedTable(TableView):
    """A table whose columns of texts read as integers, or as one-hot vectors of float32."""

    def __init__(
        self, table: Table, encodings: Mapping[str, Encoding], texts: Mapping[str, Sequence[str]]
    ) -> None:
        """``texts`` are the vocabularies by column."""
        super().__init__(table)
        self._encodings = dict(encodings)
        self._numbers = {
            name: {text: number for number, text in enumerate(each)} for name, each in texts.items()
        }
        forms: dict[str, Kind] = {
            name: Column("F32", (len(texts[name]),)) if how.one_hot else Column("I64")
            for name, how in encodings.items()
        }
        self.columns = {**table.columns, **forms}

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        for row, chunk in numbered(self._table, names, rows):
            yield {
                name: self._encoded(name, array, row) if name in self._encodings else array
                for name, array in chunk.items()
            }

    def blank(self, name: str) -> Array | None:
        if name not in self._encodings:
            return super().blank(name)
        return np.asarray(self._encoded(name, np.array([""], dtype=object), 0)[0])

    def _encoded(self, name: str, texts: Array, first_row: int) -> Array:
        how, numbers = self._encodings[name], self._numbers[name]
        unknown = numbers["other"] if how.other else None
        found = np.empty(len(texts), np.int64)
        for at, text in enumerate(texts.tolist()):
            number = numbers.get(text, unknown) if text else -1
            if number is None:
                raise FormatError(
                    f"{self.where(name, first_row + at)}: {text[:100]!r} is not in the vocabulary "
                    f"(--encode {name}=other gives unknown texts a number of their own)"
                )
            found[at] = number
        if not how.one_hot:
            return found
        vectors = np.zeros((len(found), len(numbers)), np.float32)
        known = np.flatnonzero(found >= 0)
        vectors[known, found[known]] = 1
        return vectors


def distinct_texts(
    job: Job,
    kind: NodeType | EdgeType,
    table: Table,
    column: str,
    *,
    limit: int,
    missing: str | None = None,
) -> tuple[str, ...]:
    """Return the texts of a column, ascending by their UTF-8 bytes. ``FormatError`` for more than ``limit``.

    A missing text does not count, or is a ``FormatError`` that says ``missing``.
    """
    shards = job.runner.shards(table)
    group, what = ("nodes", kind) if isinstance(kind, str) else ("edges", ",".join(kind))
    info = StageInfo(
        name=f"texts/{group}/{type_name(kind)}/{type_name(column)}",
        step=f"{group} {what}: texts of {column}",
        num_rows=table.num_rows,
        num_tasks=len(shards),
    )
    results = job.runner.run(job, _TextStage(info, column, shards, limit, missing))
    found = sorted({text for each in results for text in each["texts"]})
    if len(found) > limit:
        raise FormatError(_too_many(table, column, limit))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _TextStage:
    """Collects the texts of a column, a shard of the table a task."""

    info: StageInfo
    column: str
    shards: Sequence[Table]
    limit: int
    missing: str | None

    def run(self, job: Job, task: int) -> dict[str, Any]:
        table, num_rows = self.shards[task], 0
        texts: set[str] = set()
        for row, chunk in numbered(table, [self.column], _ROWS):
            values = chunk[self.column].tolist()
            texts.update(values)
            if "" in texts:
                if self.missing is not None:
                    raise FormatError(f"{table.where(self.column, row + values.index(''))}: {self.missing}")
                texts.discard("")
            if len(texts) > self.limit:
                raise FormatError(_too_many(table, self.column, self.limit))
            num_rows += len(values)
            job.advance(len(values))
        return {"rows": num_rows, "texts": sorted(texts)}


def _too_many(table: Table, column: str, limit: int) -> str:
    return f"{table.name}, column {column!r}: more than {limit:,} different texts"
