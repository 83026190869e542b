"""Builds a graph from a directory that graphlearn-torch (GLT) has partitioned a graph into."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from gigl_loader.arrays import Array, Int64Array, first_true
from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import EdgeType, GraphSchema, NodeType
from gigl_loader.partition.build import build_graph
from gigl_loader.partition.glt.layout import (
    Edges,
    FeatureFiles,
    GltLayout,
    JoinedTable,
    LabelledTable,
    TensorTable,
)
from gigl_loader.partition.glt.tensors import Rows, saved_tensor
from gigl_loader.partition.job import Budget, Progress, available_memory, tracked
from gigl_loader.partition.output import refuse_existing, refuse_other_than_graph_at
from gigl_loader.partition.readers import Table
from gigl_loader.partition.table import GraphTables, NodeTable
from gigl_loader.partition.views import chain

_ROWS = 1 << 20


def check_range(rows: Rows, end: int, what: str, advance: Callable[[int], None]) -> None:
    """Raise ``FormatError`` unless all values are in ``0..end - 1``."""
    for row, values in _chunks(rows):
        _require_range(rows, row, values, end, what)
        advance(len(values))


def check_edge_ids(
    edge_ids: Rows, features: FeatureFiles | None, seen: EdgeIds, advance: Callable[[int], None]
) -> bool:
    """Note the edge ids of a partition; return whether its features come in the order of its edges.

    ``FormatError`` for an id that is out of range, or was there before.
    """
    in_order = features is not None
    others = _chunks(features.ids) if features is not None else None
    for row, ids in _chunks(edge_ids):
        seen.add(edge_ids, row, ids)
        if others is not None:
            in_order &= np.array_equal(ids, next(others)[1])
        advance(len(ids))
    return in_order


class EdgeIds:
    """The set of edge ids that were seen, with a bit for each that there can be."""

    def __init__(self, num_edges: int) -> None:
        self._num_edges = num_edges
        self._bits = np.zeros(self.nbytes(num_edges), np.uint8)

    @staticmethod
    def nbytes(num_edges: int) -> int:
        return -(-num_edges // 8)

    def add(self, rows: Rows, first_row: int, ids: Array) -> None:
        """Add ids, which are ``rows`` from ``first_row`` on. ``FormatError`` for one that is there."""
        _require_range(rows, first_row, ids, self._num_edges, "edge id")
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        places, bits = ordered >> 3, np.uint8(1) << (ordered & 7).astype(np.uint8)
        known = (self._bits[places] & bits) != 0
        known[1:] |= ordered[1:] == ordered[:-1]
        if known.any():
            row = int(order[known].min())
            raise FormatError(f"{rows.path}, row {first_row + row}: edge id {ids[row]} occurs a second time")
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        if len(starts):
            self._bits[places[starts]] |= np.bitwise_or.reduceat(bits, starts)


def _chunks(rows: Rows) -> Iterator[tuple[int, Array]]:
    for start in range(0, len(rows), _ROWS):
        yield start, rows.read(start, min(_ROWS, len(rows) - start))


def _require_range(rows: Rows, first_row: int, values: Array, end: int, what: str) -> None:
    if (row := first_true((values < 0) | (values >= end))) is not None:
        raise FormatError(f"{rows.path}, row {first_row + row}: {what} {values[row]} is not in 0..{end - 1}")


_INDEX_BYTES = 24
"""For each edge whose features lie in another order: its id, the sorted ids and the order."""


def import_glt(
    directory: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    edge_dir: Literal["in", "out"] = "in",
    labels: Mapping[NodeType, str | os.PathLike[str]] | None = None,
    splits: Mapping[NodeType, Mapping[str, Sequence[str | os.PathLike[str]]]] | None = None,
    memory_limit: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> GraphSchema:
    """Build a graph from a directory that GLT's partitioners wrote, and return its schema.

    GLT is not needed, and nothing in the files is run. Every node stays in its partition, and node ids and
    edge ids stay what they are. Features become the columns ``x`` and
    ``edge_attr``, edge weights the declared column ``weight``. Rows that GLT's ``FrequencyPartitioner``
    cached in further partitions are copies, and left out.

    GLT keeps labels and splits elsewhere, in files of ``torch.save``. ``labels`` gives, by node type, a file
    with a row for each node, which becomes ``y``. ``splits`` gives, by node type and name, files of node ids
    or of a mask. The type of a homogeneous graph is ``"node"``. The other arguments are those of
    ``build_graph``. Raises ``FormatError`` for a file that breaks a rule, naming it, ``OSError`` for one that
    is not there, and ``ValueError`` for arguments that make no sense.
    """
    root, target = Path(directory), Path(os.path.abspath(out))
    if target in (root.resolve(), *root.resolve().parents):
        raise ValueError(f"{target} holds the directory to import: give another name")
    (refuse_other_than_graph_at if overwrite else refuse_existing)(target)
    source = _Import(
        GltLayout(root),
        labels=labels or {},
        splits=splits or {},
        budget=Budget(available_memory() // 2 if memory_limit is None else memory_limit),
        progress=progress,
    )
    tables = source.tables()
    return build_graph(
        tables,
        out,
        num_partitions=source.layout.num_partitions,
        edge_dir=edge_dir,
        assigner=_BookAssigner(source.books),
        memory_limit=source.budget.total - source.held_bytes,
        overwrite=overwrite,
        allow_empty=True,
        progress=progress,
    )


class _BookAssigner:
    """Assigns nodes as GLT's partition books say."""

    name: str = "glt"
    ascending: bool = False

    def __init__(self, books: Mapping[NodeType, Rows]) -> None:
        self._books = books

    def assign(self, node_type: NodeType, ids: Int64Array, num_partitions: int) -> Int64Array:
        return self._books[node_type].take(ids).astype(np.int64, copy=False)


class _Import:
    """Checks a directory, and opens its tables."""

    def __init__(
        self,
        layout: GltLayout,
        *,
        labels: Mapping[NodeType, str | os.PathLike[str]],
        splits: Mapping[NodeType, Mapping[str, Sequence[str | os.PathLike[str]]]],
        budget: Budget,
        progress: Progress | None,
    ) -> None:
        for node_type in (*labels, *splits):
            if node_type not in layout.node_types:
                known = ", ".join(map(repr, layout.node_types))
                raise ValueError(f"no node type {node_type!r} in {layout.root}; known: {known}")
        self.layout = layout
        self.budget = budget
        self.books = {node_type: layout.node_book(node_type) for node_type in layout.node_types}
        self.held_bytes = 0
        """Of memory that the tables hold while they are read, at most."""
        self._labels = {node_type: saved_tensor(Path(path)) for node_type, path in labels.items()}
        self._splits = splits
        self._progress = progress

    def tables(self) -> GraphTables:
        edges: dict[EdgeType, Table] = {kind: self._edges(kind) for kind in self.layout.edge_types}
        return GraphTables(
            edges=edges,
            nodes={kind: self._nodes(kind) for kind in self.layout.node_types},
            weights={kind: ("weight",) for kind, table in edges.items() if "weight" in table.columns},
        )

    def _nodes(self, node_type: NodeType) -> NodeTable:
        book = self.books[node_type]
        features = [each for each in self.layout.features(node_type) if each is not None]
        rows = sum(len(each.ids) for each in features)
        if features and rows != len(book):
            raise FormatError(
                f"{self.layout.root}: the partitions have features of {rows} nodes of type {node_type!r}, "
                f"of the {len(book)} in {book.path.name}"
            )
        advance = tracked(self._progress, f"nodes {node_type}: checking", len(book) + rows)
        check_range(book, self.layout.num_partitions, "partition", advance)
        for each in features:
            check_range(each.ids, len(book), "node id", advance)
        splits = {
            name: chain([TensorTable({"id": saved_tensor(Path(path))}) for path in paths])
            for name, paths in self._splits.get(node_type, {}).items()
        }
        table = self._node_rows(node_type, features)
        return NodeTable(table, splits=splits) if table else NodeTable(count=len(book), splits=splits)

    def _node_rows(self, node_type: NodeType, features: Sequence[FeatureFiles]) -> Table | None:
        labels, count = self._labels.get(node_type), len(self.books[node_type])
        if labels is not None and len(labels) != count:
            raise FormatError(f"{labels.path}: {len(labels)} rows for {count} nodes of type {node_type!r}")
        if not features:
            return None if labels is None else TensorTable({"y": labels})
        table = chain([TensorTable({"id": each.ids, "x": each.rows}) for each in features])
        if labels is None:
            return table
        return LabelledTable(table, labels)

    def _edges(self, edge_type: EdgeType) -> Table:
        features = list(self.layout.features(edge_type))
        if self.layout.cached:
            features = [each for each in features if each is not None]
        parts = list(self.layout.edges(edge_type, features))
        count = sum(len(part["src"]) for part in parts)
        book = self.layout.edge_book(edge_type)
        if book is not None and len(book) != count:
            raise FormatError(f"{book.path}: {len(book)} edges, but the partitions hold {count}")
        if not any(features):
            features = [None] * len(parts)
        advance = tracked(self._progress, f"edges {','.join(edge_type)}: checking", count)
        self.budget.require(EdgeIds.nbytes(count), f"checking the {count:,} edge ids of type {edge_type}")
        seen = EdgeIds(count)
        return chain(
            [
                self._edges_of(part, each, wanted=any(features), seen=seen, advance=advance)
                for part, each in zip(parts, features, strict=True)
            ]
        )

    def _edges_of(
        self,
        edges: Edges,
        features: FeatureFiles | None,
        *,
        wanted: bool,
        seen: EdgeIds,
        advance: Callable[[int], None],
    ) -> Table:
        table, folder, size = TensorTable(edges), edges["src"].path.parent, len(edges["src"])
        if wanted and size and features is None:
            raise FormatError(f"{folder}: no features of its {size} edges, and other partitions have some")
        if "id" not in edges:
            if features is not None:
                raise FormatError(f"{folder}: no eids.pt, so features cannot be matched to edges")
            advance(size)
            return table
        if features is not None and len(features.ids) != size:
            raise FormatError(f"{features.ids.path}: {len(features.ids)} ids for {size} edges")
        in_order = check_edge_ids(edges["id"], features, seen, advance)
        if features is None:
            return table
        if in_order:
            return TensorTable({**edges, "edge_attr": features.rows})
        self.budget.require(_INDEX_BYTES * size, f"the order of the edges of {features.ids.path}")
        self.held_bytes = max(self.held_bytes, _INDEX_BYTES * size)  # Only one table is read at a time.
        return JoinedTable(table, features)
