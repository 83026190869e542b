"""Decision where the features of a loader's batches are read from. It changes no batch.

========  =================================================================================================
reader    rows lie
========  =================================================================================================
memory    in mapped files, all of them, or in a graph that was built in memory
disk      in files of this host, in front of which there is a cache
owners    on other hosts or storage servers, in front of which there is a cache
========  =================================================================================================
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from gigl_loader.graph.folder import DiskFolder
from gigl_loader.options import size_text
from gigl_loader.resources import FreeMemory, free_memory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from gigl_loader.graph.graph import Graph
    from gigl_loader.graph.schema import Column, GraphSchema
    from gigl_loader.options import EdgeType, FeatureOptions, NodeType
    from gigl_loader.sampling.frame_schema import FrameSchema

logger = logging.getLogger(__name__)

Reader: TypeAlias = Literal["memory", "disk", "owners"]
Where: TypeAlias = Literal["memory", "files", "elsewhere"]
"""Place of a graph: built in memory, in files of this host, or not wholly on this host."""

_BESIDE_MAPS, _BESIDE_CACHE = 1 / 8, 1 / 4
"""Of the memory that a graph leaves: for frames in flight, the trainer, and other loaders. Maps give way to
them, a cache does not."""
_WORKER_BYTES = 150 << 20
"""Memory of a sampling process: 50 MB with small batches, 220 MB with 420,000 edges."""
_LEAST_CACHE = 64 << 20
"""Of a rank: rows of a batch or two. As much is taken for features however little is free."""
_SMALL = 1 / 16
"""Of the memory for features: types that fit in it together are mapped."""


class ColumnSize(NamedTuple):
    """Size of the columns of one type together."""

    rows: int
    row_bytes: int

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes


ColumnSizes: TypeAlias = "Mapping[NodeType | EdgeType, ColumnSize]"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeMemory:
    """Reader of the rows of one type."""

    kind: NodeType | EdgeType
    size: ColumnSize
    reader: Reader
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureMemory:
    """Readers by type, for the columns of a loader's batches, and the cache in front of them."""

    types: tuple[TypeMemory, ...]
    """Types of which batches carry columns."""
    cache_bytes: int = 0
    """Memory for rows that are not mapped, of all ranks of the host."""
    ranks: int = 1
    """On this host, each with a cache of its own."""
    batch_bytes: int | None = None
    """What is left for frames of one rank: where they need more, the cache gets less. ``None``: its size was
    given."""

    @property
    def share(self) -> int:
        """Bytes of the cache of one rank."""
        return self.cache_bytes // self.ranks

    @property
    def cached(self) -> frozenset[NodeType | EdgeType]:
        """Types whose rows are read through the cache. Columns of other types are mapped."""
        return frozenset(each.kind for each in self.types if each.reader != "memory")

    @property
    def mapped_bytes(self) -> int:
        """Bytes of the columns that are mapped."""
        return sum(each.size.nbytes for each in self.types if each.reader == "memory")

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons of the decision, each once."""
        return tuple(dict.fromkeys(each.reason for each in self.types))

    def to_json(self) -> dict[str, Any]:
        """Return plain values, for ``stats()`` and ``--json``."""
        return {
            "decision": str(self),
            "mapped_bytes": self.mapped_bytes,
            "cache_bytes": self.cache_bytes,
            "types": [
                {
                    "type": each.kind if isinstance(each.kind, str) else list(each.kind),
                    "bytes": each.size.nbytes,
                    "reader": each.reader,
                    "reason": each.reason,
                }
                for each in self.types
            ],
        }

    def __str__(self) -> str:
        """Return one clause, such as ``features from disk (cache of 1.2 GB)``."""
        readers = sorted({each.reader for each in self.types if each.reader != "memory"})
        if not readers:
            return "features in memory" if self.types else "no features"
        return f"features from {' and '.join(readers)} (cache of {size_text(self.share)})"


def decide(
    sizes: ColumnSizes,
    options: FeatureOptions,
    *,
    where: Where,
    free: FreeMemory,
    structure_bytes: int = 0,
    ranks: int = 1,
    num_workers: int = 0,
    taken: int = 0,
) -> FeatureMemory:
    """Return where features of these sizes are read from.

    ``structure_bytes`` is the size of what every batch reads besides features, ``num_workers`` the sampling
    processes of a rank that are yet to start, and ``taken`` what caches of other loaders of this host may
    grow by. ``ValueError`` where memory leaves no room for a cache, with what to set.
    """
    sizes = {kind: size for kind, size in sizes.items() if size.nbytes}
    if where == "memory":
        return _decided(sizes, sizes, "memory", ["the graph was built in memory"])
    total, least = sum(size.nbytes for size in sizes.values()), ranks * _LEAST_CACHE
    spare = None
    if options.memory_bytes is not None:
        budget, origin = options.memory_bytes, "feature_memory"
    else:
        left = free.nbytes - taken - num_workers * ranks * _WORKER_BYTES
        budget = int((left - structure_bytes) * (1 - _BESIDE_MAPS))
        others = ", batches and caches of other loaders" if taken else " and batches"
        origin = f"what graph{others} leave of {size_text(free.nbytes)}, {free.source}"
        if total > budget:
            if left < least < total:
                cache = f"{size_text(total)} of features, and no room for a cache of {size_text(least)}"
                raise ValueError(
                    f"{cache} in {origin}: raise the limit, lower num_workers, or set feature_memory to what "
                    "features may take"
                )
            budget = max(int((left - structure_bytes) * (1 - _BESIDE_CACHE)), least)
        spare = left - structure_bytes - budget
    room = f"{size_text(budget)}: {origin}"
    if where == "elsewhere":
        reason = f"rows of other hosts are kept in {room}"
        return _decided(
            sizes, (), "owners", ["", reason], cache_bytes=min(budget, ranks * total), ranks=ranks
        )
    if total <= budget:
        return _decided(sizes, sizes, "memory", [f"all features fit in {room}"])
    small = _small(sizes, int(budget * _SMALL))
    reasons = [f"small beside {room}", f"{size_text(total)} of features do not fit in {room}"]
    budget -= sum(sizes[kind].nbytes for kind in small)
    found = _decided(sizes, small, "disk", reasons, cache_bytes=budget, ranks=ranks)
    return found if spare is None else replace(found, batch_bytes=max(spare, 0) // ranks)


def _decided(
    sizes: ColumnSizes,
    mapped: Collection[NodeType | EdgeType],
    reader: Reader,
    reasons: Sequence[str],
    *,
    cache_bytes: int = 0,
    ranks: int = 1,
) -> FeatureMemory:
    """``reasons``: of the types that are mapped, and of those that ``reader`` reads."""
    types = [
        TypeMemory(kind=kind, size=size, reader="memory", reason=reasons[0])
        if kind in mapped
        else TypeMemory(kind=kind, size=size, reader=reader, reason=reasons[1])
        for kind, size in sizes.items()
    ]
    row = max((sizes[kind].row_bytes for kind in sizes if kind not in mapped), default=0)
    if cache_bytes // ranks < row:
        raise ValueError(
            f"feature_memory is too small: {cache_bytes} bytes are left for caches, and each of {ranks} "
            f"ranks needs at least one row, {row} bytes"
        )
    return FeatureMemory(types=tuple(types), cache_bytes=cache_bytes, ranks=ranks)


def decide_here(
    graph: Graph,
    frame: FrameSchema,
    options: FeatureOptions,
    *,
    loader: str,
    ranks: int = 1,
    num_workers: int = 0,
    taken: int = 0,
) -> FeatureMemory:
    """Return where the features of ``frame`` are read from, on this machine as it is now.

    ``ranks`` and ``num_workers``: see :func:`decide`. ``taken``: what caches of other loaders of this process
    may grow by; each other rank is assumed to need as much. The decision is logged under the name of the
    ``loader``.
    """
    found = decide(
        sizes_in(frame, graph.schema),
        options,
        where=place_of(graph),
        free=free_memory(),
        structure_bytes=graph.structure_bytes,
        ranks=ranks,
        num_workers=num_workers,
        taken=taken * ranks,
    )
    logger.info("%s: %s", loader, "; ".join([str(found), *found.reasons]))
    return found


def place_of(graph: Graph) -> Where:
    """Return where a graph lies, as seen from this host."""
    if not graph.is_whole:
        return "elsewhere"
    return "files" if isinstance(graph.folder, DiskFolder) else "memory"


def sizes_in(frame: FrameSchema, schema: GraphSchema) -> ColumnSizes:
    """Return the sizes of the columns that the frames of a plan carry, by type."""
    carried = [*frame.nodes, *frame.edges]
    columns = {each.kind: [array.column for array in each.features] for each in carried if each.features}
    return {kind: _size(schema, kind, of_kind) for kind, of_kind in columns.items()}


def sizes_of(schema: GraphSchema) -> ColumnSizes:
    """Return the sizes of all columns of a graph, by type."""
    return {kind: _size(schema, kind, columns.values()) for kind, columns in schema.columns.items()}


def _size(schema: GraphSchema, kind: NodeType | EdgeType, columns: Iterable[Column]) -> ColumnSize:
    rows = schema.nodes[kind].count if isinstance(kind, str) else schema.edges[kind].count
    return ColumnSize(rows, sum(column.row_bytes for column in columns))


def _small(sizes: ColumnSizes, most: int) -> list[NodeType | EdgeType]:
    """Return the smallest types, as many as have at most ``most`` bytes together."""
    small = []
    for kind in sorted(sizes, key=lambda kind: sizes[kind].nbytes):
        most -= sizes[kind].nbytes
        if most < 0:
            break
        small.append(kind)
    return small
