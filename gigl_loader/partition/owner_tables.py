"""Assigner that reads the owner of each node from tables."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from gigl_loader.arrays import Int64Array, first_true
from gigl_loader.errors import FormatError
from gigl_loader.graph.ids import Directory, TextIds
from gigl_loader.graph.manifest import text_ids_path
from gigl_loader.graph.schema import NodeType
from gigl_loader.partition.assigners import Owners
from gigl_loader.partition.job import Job
from gigl_loader.partition.readers import TEXT, Table, numbered, stamp_of
from gigl_loader.partition.sources import ColumnOptions, open_table
from gigl_loader.partition.steps.ids import NumberedTable, as_ids, find_all, node_ids_of, require_integers
from gigl_loader.partition.table import GraphTables

_UNKNOWN = -1
_TEXT_BYTES = 128


class TableAssigner:
    """Assigns every node to the partition that a table names.

    A table has the columns ``id`` (as the graph's tables name its nodes, integers or texts) and ``part``, a
    partition from 0 on; rows are in any order. Without ``id``, row i is of the node with id i. Every node of
    the type occurs once. Partitions may be of any size, also empty.
    """

    name: str = "table"

    def __init__(self, tables: Table | Mapping[NodeType, Table]) -> None:
        """``tables`` are by node type, or that of the only type of a graph."""
        self._tables = tables

    @property
    def stamp(self) -> str:
        """Changes with the tables."""
        tables = self._tables if isinstance(self._tables, Mapping) else {"": self._tables}
        found = [(kind, each.name, each.num_rows, stamp_of(each)) for kind, each in sorted(tables.items())]
        return hashlib.sha256(repr(found).encode()).hexdigest()

    def plan(self, job: Job, tables: GraphTables) -> Owners:
        """Read all tables. ``FormatError`` names the node that is unknown, missing, repeated or misplaced."""
        by_type = self._by_type(tables.node_types)
        owners = {}
        for node_type, table in by_type.items():
            ids = node_ids_of(job, tables, node_type)
            job.budget.require(4 * ids.count, f"the owners of the {ids.count:,} nodes of type {node_type!r}")
            reading = _Reading(job, node_type, table, Directory(ids.count, ids.ascending))
            owners[node_type] = reading.run()
            job.hold(owners[node_type].nbytes, f"the owners of the {ids.count:,} nodes of type {node_type!r}")
        return Owners(self.name, owners)

    def _by_type(self, node_types: tuple[NodeType, ...]) -> Mapping[NodeType, Table]:
        known = ", ".join(map(repr, node_types))
        if not isinstance(self._tables, Mapping):
            if len(node_types) > 1:
                raise ValueError(
                    f"owners: name the node type of each table, such as TYPE=FILE; types: {known}"
                )
            return {node_types[0]: self._tables}
        for node_type in self._tables:
            if node_type not in node_types:
                raise ValueError(f"owners: no node type {node_type!r}; known: {known}")
        for node_type in node_types:
            if node_type not in self._tables:
                raise ValueError(f"owners: no table names those of node type {node_type!r}")
        return self._tables


def owners_from_files(
    files: str | os.PathLike[str] | Mapping[NodeType, str | os.PathLike[str]],
    *,
    options: ColumnOptions | None = None,
) -> TableAssigner:
    """Return an assigner by files (see ``open_table``), those of each node type or of the only one.

    A sole ``.npy`` file has the partition of each node, by ascending id. The columns may also be called
    ``node_id``, and ``partition`` or ``owner``.
    """

    def read(each: str | os.PathLike[str]) -> Table:
        return open_table(os.fspath(each), role="owners", options=options)

    if not isinstance(files, Mapping):
        return TableAssigner(read(files))
    return TableAssigner({node_type: read(each) for node_type, each in files.items()})


class _Reading:
    """Reads the owners of one type."""

    def __init__(self, job: Job, node_type: NodeType, table: Table, nodes: Directory) -> None:
        self._job = job
        self._node_type = node_type
        self._table = table
        self._nodes = nodes
        self._texts = _texts_of(job, node_type)
        self._named = "id" in table.columns
        require_integers(table, "part")
        self._check_ids()
        self._owners = np.full(nodes.count, _UNKNOWN, np.int32)

    def run(self) -> npt.NDArray[np.uint16]:
        """Return the partition of each node, by ascending id, [N]."""
        advance = self._job.track(f"nodes {self._node_type}: owners", self._table.num_rows)
        names = ["id", "part"] if self._named else ["part"]
        for row, chunk in numbered(self._table, names, self._job.budget.chunk_rows(_TEXT_BYTES)):
            size = len(chunk["part"])
            ids = chunk.get("id", np.arange(row, row + size))
            name = "id" if self._named else "part"
            ranks = find_all(
                self._nodes, ids, node_type=self._node_type, table=self._table, name=name, first_row=row
            )
            parts = as_ids(self._table, "part", chunk["part"], row)
            self._check_parts(parts, ranks, row)
            self._refuse_repeated(ranks, row)
            self._owners[ranks] = parts
            advance(size)
        self._require_all()
        return self._owners.astype(np.uint16)

    def _check_ids(self) -> None:
        """Read texts as numbers. ``FormatError`` unless the table names nodes as the graph's tables do."""
        if self._named and self._texts is None:
            require_integers(self._table, "id")
        elif self._texts is not None and self._table.columns.get("id") != TEXT:
            what = "holds no texts" if self._named else "is missing"
            raise FormatError(
                f"{self._table.name}, column 'id': {what}; nodes of type {self._node_type!r} have texts for "
                "ids"
            )
        elif self._texts is not None:
            self._table = NumberedTable(self._table, {"id": self._texts}, {"id": self._node_type})

    def _check_parts(self, parts: Int64Array, ranks: Int64Array, row: int) -> None:
        if (at := first_true((parts < 0) | (parts >= self._job.num_partitions))) is not None:
            raise FormatError(
                f"{self._table.where('part', row + at)}: node id {self._id_of(ranks[at])} in partition "
                f"{parts[at]}; partitions: 0 to {self._job.num_partitions - 1}"
            )

    def _refuse_repeated(self, ranks: Int64Array, row: int) -> None:
        seen = self._owners[ranks] != _UNKNOWN
        order = np.argsort(ranks, kind="stable")
        seen[order[1:][ranks[order[1:]] == ranks[order[:-1]]]] = True
        if (at := first_true(seen)) is not None:
            raise FormatError(
                f"{self._where(row + at)}: node id {self._id_of(ranks[at])} occurs a second time"
            )

    def _require_all(self) -> None:
        missing = np.flatnonzero(self._owners == _UNKNOWN)
        if len(missing):
            more = f", nor of {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise FormatError(
                f"{self._table.name}: no owner of node id {self._id_of(missing[0])} "
                f"of type {self._node_type!r}{more}"
            )

    def _where(self, row: int) -> str:
        return self._table.where("id" if self._named else "part", row)

    def _id_of(self, rank: np.int64) -> str:
        """Return the id of a node as the tables write it."""
        if self._texts is not None:
            return repr(self._texts.texts(np.array([rank]))[0])
        return str(self._nodes.node_ids(np.array([rank]))[0])


def _texts_of(job: Job, node_type: NodeType) -> TextIds | None:
    """Return the texts of a type's ids, where it has such. They are in the graph already."""
    name = text_ids_path(node_type)
    if name not in job.files:
        return None
    document = job.opened(name)
    return TextIds(name, {key: document.array(key) for key in document.specs})
