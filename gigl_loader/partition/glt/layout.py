"""Files of a directory that GLT has partitioned a graph into, and the tables over their tensors."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gigl_loader.arrays import Array, Int64Array, first_true
from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType, NodeType
from gigl_loader.partition.glt.tensors import ByteSource, Rows, saved_tensor, tensor_stream
from gigl_loader.partition.readers import Kind, Table, numbered
from gigl_loader.partition.views import TableView
from gigl_loader.regular_files import open_regular

_MAX_PARTITIONS = 1 << 16
_MAX_TYPES = 10_000
_MAX_NAME = 200
_MAX_META_BYTES = 1 << 20
_INTEGERS = ("I64", "I32", "I16", "I8", "U8")


@dataclass(frozen=True, slots=True, eq=False)
class FeatureFiles:
    """Features of the nodes or edges of one type in one partition."""

    ids: Rows
    rows: Rows


Edges: TypeAlias = "Mapping[str, Rows]"
"""Edges of one type in one partition: ``src`` and ``dst``, and ``id`` and ``weight`` if there are any."""


class GltLayout:
    """The directory: what its META says, and the files of each type."""

    def __init__(self, root: Path) -> None:
        """``FormatError`` names the file and the rule where META is damaged."""
        self.root = root
        meta = _Meta(root / "META")
        self.num_partitions = meta.num_partitions()
        self.homogeneous = meta.is_homogeneous()
        self.node_types: list[NodeType] = [HOMOGENEOUS_NODE] if self.homogeneous else meta.node_types()
        self.edge_types: list[EdgeType] = (
            [HOMOGENEOUS_EDGE] if self.homogeneous else meta.edge_types(self.node_types)
        )
        self.cached = (root / "graph").is_dir()
        """The lists of all partitions are in one place: GLT's ``graph_caching``."""

    def node_book(self, node_type: NodeType) -> Rows:
        """Return the partition of each node, by node id."""
        return _integers(saved_tensor(self._book("node_pb", node_type)))

    def edge_book(self, edge_type: EdgeType) -> Rows | None:
        """Return the partition of each edge, by edge id."""
        path = self._book("edge_pb", edge_type)
        return _integers(saved_tensor(path)) if path.exists() else None

    def edges(self, edge_type: EdgeType, features: Sequence[FeatureFiles | None]) -> Iterator[Edges]:
        """Yield the edges of each partition, whose ``features`` are given.

        All of them at once where they are cached, and have no features.
        """
        if not self.cached:
            for part in range(self.num_partitions):
                yield self._edges_in(self._part(part), edge_type)
            return
        edges, start = self._edges_in(self.root, edge_type), 0
        src = edges["src"]
        counts = [len(each.ids) for each in features if each is not None] or [len(src)]
        if sum(counts) != len(src):
            raise FormatError(
                f"{src.path}: {len(src)} edges, but the partitions have features of {sum(counts)}"
            )
        for count in counts:  # GLT joins the lists in the order of the partitions.
            yield {name: rows.part(start, count) for name, rows in edges.items()}
            start += count

    def _edges_in(self, root: Path, edge_type: EdgeType) -> Edges:
        folder = self._of_type(root / "graph", edge_type)
        edges = {"src": saved_tensor(folder / "rows.pt"), "dst": saved_tensor(folder / "cols.pt")}
        if (path := folder / "eids.pt").exists():
            edges["id"] = saved_tensor(path)
        edges = {name: _integers(rows) for name, rows in edges.items()}
        if (path := folder / "weights.pt").exists():
            edges["weight"] = saved_tensor(path)
        return edges

    def features(self, kind: NodeType | EdgeType) -> Iterator[FeatureFiles | None]:
        """Yield the features in each partition, ``None`` where there are none."""
        group = "node_feat" if isinstance(kind, str) else "edge_feat"
        for part in range(self.num_partitions):
            folder = self._of_type(self._part(part) / group, kind)
            if not (folder / "feats.pkl").exists() and not (folder / "ids.pkl").exists():
                yield None
                continue
            ids, rows = _integers(tensor_stream(folder / "ids.pkl")), tensor_stream(folder / "feats.pkl")
            if len(ids) != len(rows):
                raise FormatError(f"{ids.path}: {len(ids)} ids of the {len(rows)} rows of {rows.path.name}")
            yield FeatureFiles(ids, rows)

    def _part(self, part: int) -> Path:
        return self.root / f"part{part}"

    def _of_type(self, folder: Path, kind: NodeType | EdgeType) -> Path:
        return folder if self.homogeneous else folder / _name(kind)

    def _book(self, book: str, kind: NodeType | EdgeType) -> Path:
        return self.root / (f"{book}.pt" if self.homogeneous else f"{book}/{_name(kind)}.pt")


class _Meta:
    """The pickled dict that describes the directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with open(open_regular(path), "rb") as file:
            data = file.read(_MAX_META_BYTES)
        try:
            found = ByteSource(memoryview(data), max_bytes=_MAX_META_BYTES).load()
        except pickle.UnpicklingError as error:
            raise FormatError(f"{path}: {error}") from None
        if not isinstance(found, dict):
            raise FormatError(f"{path}: no dict, as GLT writes it")
        self._found: Mapping[str, Any] = found

    def num_partitions(self) -> int:
        number = self._found.get("num_parts")
        if type(number) is not int or not 1 <= number <= _MAX_PARTITIONS:
            raise FormatError(f"{self._path}: num_parts is no number in 1..{_MAX_PARTITIONS}")
        return number

    def is_homogeneous(self) -> bool:
        kind = self._found.get("data_cls")
        if kind not in ("homo", "hetero"):
            raise FormatError(f'{self._path}: data_cls is neither "homo" nor "hetero"')
        return bool(kind == "homo")

    def node_types(self) -> list[NodeType]:
        types = self._types("node_types")
        for each in types:
            self._check_name(each)
        return types

    def edge_types(self, node_types: list[NodeType]) -> list[EdgeType]:
        types, known = self._types("edge_types"), set(node_types)
        for each in types:
            if type(each) is not tuple or len(each) != 3:
                raise FormatError(f"{self._path}: an edge type that is not three texts")
            for name in each:
                self._check_name(name)
            for end in (each[0], each[2]):
                if end not in known:
                    raise FormatError(f"{self._path}: edge type {each}: no node type {end!r}")
        return types

    def _types(self, key: str) -> list[Any]:
        types = self._found.get(key)
        if not isinstance(types, list) or not 0 < len(types) <= _MAX_TYPES:
            raise FormatError(f"{self._path}: {key} is no list of 1 to {_MAX_TYPES} types")
        return types

    def _check_name(self, name: Any) -> None:
        """Types are parts of paths: one with a slash would lead elsewhere."""
        named = isinstance(name, str) and 0 < len(name) <= _MAX_NAME
        if not named or name in (".", "..") or {"/", "\0"} & set(name):
            raise FormatError(f"{self._path}: a type that is no name of a file")


def _name(kind: NodeType | EdgeType) -> str:
    return kind if isinstance(kind, str) else "__".join(kind)


def _integers(rows: Rows) -> Rows:
    if rows.column.dtype not in _INTEGERS or rows.column.shape:
        raise FormatError(
            f"{rows.path}: holds {rows.column.dtype} {list(rows.column.shape)} a row, not integers"
        )
    return rows


class TensorTable:
    """Columns of equal length, each of them the rows of a file."""

    def __init__(self, columns: Mapping[str, Rows]) -> None:
        self._columns = dict(columns)
        first, *others = self._columns.values()
        self.name = str(first.path.parent if others else first.path)
        self.num_rows = len(first)
        for rows in others:
            if len(rows) != len(first):
                raise FormatError(f"{rows.path}: {len(rows)} rows, but {len(first)} in {first.path.name}")
        self.columns: dict[str, Kind] = {name: rows.column for name, rows in self._columns.items()}

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        for start in range(0, self.num_rows, rows):
            count = min(rows, self.num_rows - start)
            yield {name: self._columns[name].read(start, count) for name in names}

    def where(self, column: str, row: int) -> str:
        found = self._columns.get(column)
        return f"{self.name if found is None else found.path}, row {row}"


class JoinedTable(TableView):
    """Edges, and their features, which a file holds in another order."""

    def __init__(self, table: Table, features: FeatureFiles) -> None:
        """``table`` has a column ``id``. Every edge has one row of features."""
        super().__init__(table)
        self.columns = {**table.columns, "edge_attr": features.rows.column}
        self._features = features

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        if "edge_attr" not in names:
            yield from self._table.read(names, rows)
            return
        ids, order = self._index()
        kept = [name for name in names if name != "edge_attr"]
        for row, chunk in numbered(self._table, [*{*kept, "id"}], rows):
            wanted = chunk["id"]
            places = np.minimum(np.searchsorted(ids, wanted), max(len(ids) - 1, 0))
            absent = ids[places] != wanted if len(ids) else np.ones(len(wanted), np.bool_)
            if (which := first_true(absent)) is not None:
                raise FormatError(
                    f"{self._features.ids.path}: edge {wanted[which]} of "
                    f"{self._table.where('id', row + which)} has no features"
                )
            found = {name: chunk[name] for name in kept}
            yield {**found, "edge_attr": self._features.rows.take(order[places])}

    def _index(self) -> tuple[Int64Array, Int64Array]:
        """Return the ids of all features, ascending, and the row of each."""
        ids = self._features.ids.read(0, len(self._features.ids)).astype(np.int64, copy=False)
        order = np.argsort(ids, kind="stable")
        return ids[order], order


class LabelledTable(TableView):
    """Nodes with a column ``id``, and the labels of all nodes of the type, by id."""

    def __init__(self, table: Table, labels: Rows) -> None:
        super().__init__(table)
        self.columns = {**table.columns, "y": labels.column}
        self._labels = labels

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        if "y" not in names:
            yield from self._table.read(names, rows)
            return
        kept = [name for name in names if name != "y"]
        for chunk in self._table.read([*{*kept, "id"}], rows):
            yield {**{name: chunk[name] for name in kept}, "y": self._labels.take(chunk["id"])}

    def where(self, column: str, row: int) -> str:
        return f"{self._labels.path}" if column == "y" else self._table.where(column, row)
