"""Tables over the tensors of a partitioned directory of GLT."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.arrays import Array, Int64Array
from gigl_loader.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gigl_loader.partition.glt.layout import FeatureFiles
    from gigl_loader.partition.glt.tensors import Rows
    from gigl_loader.partition.table import Kind, Table

__all__ = ["JoinedTable", "LabelledTable", "TensorTable"]


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
        with ExitStack() as files:
            opened = {name: files.enter_context(self._columns[name].open()) for name in names}
            for start in range(0, self.num_rows, rows):
                count = min(rows, self.num_rows - start)
                yield {name: self._columns[name].read(opened[name], start, count) for name in names}

    def where(self, column: str, row: int) -> str:
        found = self._columns.get(column)
        return f"{self.name if found is None else found.path}, row {row}"


class JoinedTable:
    """Edges, and their features, which a file holds in another order."""

    def __init__(self, table: Table, features: FeatureFiles) -> None:
        """``table`` has a column ``id``. Every edge has one row of features."""
        self.name = table.name
        self.num_rows = table.num_rows
        self.columns: dict[str, Kind] = {**table.columns, "edge_attr": features.rows.column}
        self._table = table
        self._features = features

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        if "edge_attr" not in names:
            yield from self._table.read(names, rows)
            return
        ids, order = self._index()
        kept = [name for name in names if name != "edge_attr"]
        row = 0
        with self._features.rows.open() as file:
            for chunk in self._table.read([*{*kept, "id"}], rows):
                wanted = chunk["id"]
                places = np.minimum(np.searchsorted(ids, wanted), max(len(ids) - 1, 0))
                missing = np.flatnonzero(ids[places] != wanted) if len(ids) else np.arange(len(wanted))
                if len(missing):
                    which = int(missing[0])
                    raise FormatError(
                        f"{self._features.ids.path}: edge {wanted[which]} of "
                        f"{self._table.where('id', row + which)} has no features"
                    )
                found = {name: chunk[name] for name in kept}
                yield {**found, "edge_attr": self._features.rows.take(file, order[places])}
                row += len(wanted)

    def where(self, column: str, row: int) -> str:
        return self._table.where(column, row)

    def _index(self) -> tuple[Int64Array, Int64Array]:
        """Return the ids of all features, ascending, and the row of each."""
        with self._features.ids.open() as file:
            ids = self._features.ids.read(file, 0, len(self._features.ids)).astype(np.int64, copy=False)
        order = np.argsort(ids, kind="stable")
        return ids[order], order


class LabelledTable:
    """Nodes with a column ``id``, and the labels of all nodes of the type, by id."""

    def __init__(self, table: Table, labels: Rows) -> None:
        self.name = table.name
        self.num_rows = table.num_rows
        self.columns: dict[str, Kind] = {**table.columns, "y": labels.column}
        self._table = table
        self._labels = labels

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        if "y" not in names:
            yield from self._table.read(names, rows)
            return
        with self._labels.open() as file:
            labels = self._labels.read(file, 0, len(self._labels))
        kept = [name for name in names if name != "y"]
        for chunk in self._table.read([*{*kept, "id"}], rows):
            yield {**{name: chunk[name] for name in kept}, "y": labels[chunk["id"]]}

    def where(self, column: str, row: int) -> str:
        return f"{self._labels.path}" if column == "y" else self._table.where(column, row)
