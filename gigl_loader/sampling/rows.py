"""Readers of feature rows: the seam between a batch and the place where its features lie.

A row is named by its *place*: the position of a node, or the slot of an edge as a partitioned store numbers
it (``sampling/store.py``). Which reader serves a type never changes a batch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gigl_loader.errors import FormatError
from gigl_loader.graph.folder import DiskFolder
from gigl_loader.graph.manifest import edges_path, nodes_path
from gigl_loader.native import DiskReader, copy_rows
from gigl_loader.sampling.disk_speed import break_even_gap
from gigl_loader.sampling.store import SLOT_BITS
from gigl_loader.tensors import as_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gigl_loader.arrays import Bytes, Int64Array
    from gigl_loader.graph.graph import Graph
    from gigl_loader.options import EdgeType, NodeType


_MAX_LOOKS = 64
"""Files whose status is looked at for a window of batches. A look takes 1 to 2 us."""


class RowReader(Protocol):
    """Reads the feature rows of one node or edge type, all of its columns. Thread-safe."""

    def read(self, rows: Int64Array, targets: Int64Array, out: Sequence[Bytes]) -> None:
        """Write row ``rows[i]`` of column c to ``out[c][targets[i]]``.

        ``rows`` ascends; a row may come several times. ``targets`` differ. ``out`` has one uint8 matrix of
        shape [anything, row bytes] per column. When this returns or raises, nothing more is written.

        Raises ``FormatError`` for a damaged file, ``OSError`` for one that cannot be read, and
        ``StorageUnavailable`` where an owner does not answer.
        """

    def close(self) -> None:
        """End reads in progress, and let go of files. Closing twice is fine.

        Does not wait for a disk that hangs: a read that it holds up keeps its files and memory until it ends.
        """


class MappedRows:
    """Rows in the maps of partitions that lie on this host."""

    def __init__(self, graph: Graph, kind: NodeType | EdgeType, columns: Sequence[str]) -> None:
        self._ranges = _Ranges(graph, kind)
        column = graph.node_column if isinstance(kind, str) else graph.edge_column
        row_bytes = [_row_bytes(graph, kind, name) for name in columns]
        self._columns = tuple(columns)
        self._rows = {
            part: [
                as_rows(column(kind, name, part), size)  # type: ignore[arg-type]
                for name, size in zip(columns, row_bytes, strict=True)
            ]
            for part in self._ranges.parts
        }

    def read(self, rows: Int64Array, targets: Int64Array, out: Sequence[Bytes]) -> None:
        for part, first, where in self._ranges.split(rows):
            for column, matrix in zip(self._rows[part], out, strict=True):
                copy_rows(column, rows[where], targets[where], matrix, first=first)

    def maps(self) -> dict[str, list[Bytes]]:
        """Return the rows of each column by partition, uint8 [R, row bytes], in the order of partitions."""
        return {
            name: [self._rows[part][number] for part in self._ranges.parts]
            for number, name in enumerate(self._columns)
        }

    def close(self) -> None:
        """Do nothing: the maps are the graph's."""


class DiskRows:
    """Rows in the files of partitions that lie on this host, past the page cache, many reads at a time.

    Rows that follow each other closely come with one read. Reads take about 16 MB of memory, whatever the
    number of rows.
    """

    def __init__(
        self,
        graph: Graph,
        kind: NodeType | EdgeType,
        columns: Sequence[str],
        *,
        depth: int = 64,
        gap: int | None = None,
        engine: str = "",
    ) -> None:
        """``depth`` reads are in flight at once.

        Bytes between rows up to ``gap`` are read with them; ``None`` measures in 0.1 s what a read costs
        beside them. ``engine`` forces ``"io_uring"`` or ``"threads"``: the second serves where the system
        refuses the first.

        Raises ``ValueError`` for a graph in memory, ``FormatError`` where a file is not that which the graph
        mapped, and ``OSError`` where it cannot be opened.
        """
        folder = graph.folder
        if not isinstance(folder, DiskFolder):
            raise ValueError("a graph in memory has no files to read from")
        self._ranges = _Ranges(graph, kind)
        path = nodes_path if isinstance(kind, str) else edges_path
        documents = {part: graph.document(path(part, kind)) for part in self._ranges.parts if columns}  # type: ignore[arg-type]
        for document in documents.values():
            if folder.status(document.name) != document.status:
                raise FormatError(f"{document.name}: it was replaced or written to after it was opened")
        graph.verifier.without_maps(document.name for document in documents.values())
        paths = {part: str(folder.path / document.name) for part, document in documents.items()}
        if gap is None:
            gap = break_even_gap(max(paths.values(), key=os.path.getsize, default=None), depth)
        self._reader = DiskReader(depth, gap, engine)
        self._files = [*paths.values()]
        self._statuses = [_status(path) for path in self._files]
        self._next_look = 0
        self._stored: dict[int, list[tuple[int, int, int]]] = {}
        """Of each partition and column: number of the file, byte of row 0, number of rows."""
        try:
            for part, document in documents.items():
                file = self._reader.open(paths[part])
                self._stored[part] = [
                    (file, document.layout.offsets[name], document.specs[name].shape[0]) for name in columns
                ]
        except BaseException:
            self._reader.close()
            raise

    def written(self) -> int:
        """Return a number that changes when one of the files is written to. Equal on all ranks of a host.

        Looks at 64 files at most, others by turns.
        """
        for _ in range(min(_MAX_LOOKS, len(self._files))):
            at = self._next_look = (self._next_look + 1) % len(self._files)
            self._statuses[at] = _status(self._files[at])  # Threads may look at one file twice.
        return hash(tuple(self._statuses)) & (1 << 63) - 1

    def read(self, rows: Int64Array, targets: Int64Array, out: Sequence[Bytes]) -> None:
        jobs = [
            (*stored, rows[where] - first, targets[where], matrix)
            for part, first, where in self._ranges.split(rows)
            for stored, matrix in zip(self._stored.get(part, ()), out, strict=True)
        ]
        try:
            self._reader.read(jobs)
        except EOFError as error:
            raise FormatError(str(error)) from None

    def close(self) -> None:
        self._reader.close()


class _Ranges:
    """Places of the rows of each partition: a range each, since slots have the partition above their bits."""

    def __init__(self, graph: Graph, kind: NodeType | EdgeType) -> None:
        self.parts = graph.parts
        edge_bounds = np.arange(graph.schema.num_partitions + 1, dtype=np.int64) << SLOT_BITS
        self._bounds = graph.bounds(kind) if isinstance(kind, str) else edge_bounds

    def split(self, rows: Int64Array) -> Iterator[tuple[int, int, slice]]:
        """Yield the partitions of ``rows``, which ascend: number, place of its first row, and which are its.

        ``ValueError`` for rows of a partition that is not read here.
        """
        ends = np.searchsorted(rows, self._bounds)
        if len(rows) and (ends[0] != 0 or ends[-1] != len(rows)):
            raise ValueError(f"rows lie outside the places [0, {self._bounds[-1]})")
        for part in np.flatnonzero(np.diff(ends)).tolist():
            if part not in self.parts:
                raise ValueError(f"partition {part} is not among those that are read: {self.parts}")
            yield part, int(self._bounds[part]), slice(int(ends[part]), int(ends[part + 1]))


def _status(path: str) -> tuple[int, ...]:
    """Return what changes with the bytes of a file. Its time of modification alone can be set back."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _row_bytes(graph: Graph, kind: NodeType | EdgeType, name: str) -> int:
    schema = graph.schema
    columns = schema.nodes[kind].columns if isinstance(kind, str) else schema.edges[kind].columns
    return columns[name].row_bytes
