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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from gigl_loader.graph.folder import DiskFolder
from gigl_loader.options import size_text
from gigl_loader.resources import FreeMemory, free_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gigl_loader.graph.graph import Graph
    from gigl_loader.graph.schema import Column, GraphSchema
    from gigl_loader.options import EdgeType, FeatureOptions, NodeType
    from gigl_loader.sampling.frame_schema import FrameSchema
    from gigl_loader.sampling.source import SourceRequest

Reader: TypeAlias = Literal["memory", "disk", "owners"]
Where: TypeAlias = Literal["memory", "files", "elsewhere"]
"""Place of a graph: built in memory, in files of this host, or not wholly on this host."""

_BATCHES = 1 / 4
"""Of the memory that a graph leaves: for frames in flight, the trainer, and other loaders."""
_WORKER_BYTES = 100 << 20
"""Memory of a sampling process that has no torch."""
_LEAST_CACHE = 64 << 20
"""Of a rank: rows of a batch or two."""
_SMALL = 1 / 16
"""Of the memory for features: types that fit in it together are mapped."""
_PARTS = 16
"""Of an equal share of the caches, a type has one at least: rows of small types are wanted more often."""


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
    """Reader of the rows of one type, and the memory for it."""

    kind: NodeType | EdgeType
    size: ColumnSize
    reader: Reader
    nbytes: int
    """Memory of the host: of the columns, or of the caches of all ranks."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureMemory:
    """Readers by type, for the columns of a loader's batches."""

    types: tuple[TypeMemory, ...]
    """Types of which batches carry columns."""
    ranks: int = 1
    """On this host, each with caches of its own."""

    @property
    def share(self) -> dict[NodeType | EdgeType, int]:
        """Bytes of the cache of one rank, by type. Types that are mapped have none."""
        return {each.kind: each.nbytes // self.ranks for each in self.types if each.reader != "memory"}

    def to_json(self) -> list[dict[str, Any]]:
        """Return a mapping for each type, for ``stats()`` and ``--json``."""
        return [
            {
                "type": each.kind if isinstance(each.kind, str) else list(each.kind),
                "reader": each.reader,
                "columns_bytes": each.size.nbytes,
                "memory_bytes": each.nbytes,
                "reason": each.reason,
            }
            for each in self.types
        ]

    def __str__(self) -> str:
        """Return one clause, such as ``features from disk (cache of 1.2 GB)``."""
        cached = sum(self.share.values())
        readers = sorted({each.reader for each in self.types if each.reader != "memory"})
        if not readers:
            return "features in memory" if self.types else "no features"
        return f"features from {' and '.join(readers)} (cache of {size_text(cached)})"


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
        reason = "the graph was built in memory"
        return FeatureMemory(types=tuple(_mapped(sizes, sizes, reason)), ranks=ranks)
    total = sum(size.nbytes for size in sizes.values())
    if options.memory_bytes is not None:
        budget, origin = options.memory_bytes, "feature_memory"
    else:
        left = free.nbytes - taken - num_workers * ranks * _WORKER_BYTES
        budget = int((left - structure_bytes) * (1 - _BATCHES))
        origin = f"what graph and batches leave of {size_text(free.nbytes)}, {free.source}"
        if total > budget:
            budget = _at_least(budget, left, min(ranks * _LEAST_CACHE, total), total, origin)
    room = f"{size_text(budget)}: {origin}"
    if where == "files" and total <= budget:
        return FeatureMemory(types=tuple(_mapped(sizes, sizes, f"all fit in {room}")), ranks=ranks)
    small = _small(sizes, int(budget * _SMALL)) if where == "files" else []
    mapped = list(_mapped(sizes, small, f"small beside {room}"))
    budget -= sum(each.nbytes for each in mapped)
    reader: Reader = "disk" if where == "files" else "owners"
    rest = {kind: size for kind, size in sizes.items() if kind not in small}
    total = sum(size.nbytes for size in rest.values())
    lies = f"{size_text(total)} do not fit in" if where == "files" else "rows of other hosts, kept in"
    cached = [
        TypeMemory(kind=kind, size=rest[kind], reader=reader, nbytes=nbytes, reason=f"{lies} {room}")
        for kind, nbytes in _divided(budget, rest, ranks).items()
    ]
    order = {kind: place for place, kind in enumerate(sizes)}
    types = sorted([*mapped, *cached], key=lambda each: order[each.kind])
    return FeatureMemory(types=tuple(types), ranks=ranks)


def decide_here(graph: Graph, request: SourceRequest, *, taken: int = 0) -> FeatureMemory:
    """Return where the features of a request's batches are read from, on this machine as it is now."""
    assert request.features is not None
    return decide(
        sizes_in(request.plan.frame(graph.schema), graph.schema),
        request.features,
        where=place_of(graph),
        free=free_memory(),
        structure_bytes=graph.structure_bytes,
        ranks=request.topology.local_world_size,
        num_workers=request.num_workers,
        taken=taken,
    )


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


def _at_least(budget: int, left: int, least: int, total: int, origin: str) -> int:
    """Return the memory for features that do not fit: ``least`` where it is there, in place of less."""
    if left < least:
        raise ValueError(
            f"{size_text(total)} of features, and no room for a cache of {size_text(least)} in {origin}: "
            "raise the limit, lower num_workers, or set feature_memory to what features may take"
        )
    return max(budget, least)


def _small(sizes: ColumnSizes, most: int) -> list[NodeType | EdgeType]:
    """Return the smallest types, as many as have at most ``most`` bytes together."""
    small = []
    for kind in sorted(sizes, key=lambda kind: sizes[kind].nbytes):
        most -= sizes[kind].nbytes
        if most < 0:
            break
        small.append(kind)
    return small


def _divided(budget: int, sizes: ColumnSizes, ranks: int) -> dict[NodeType | EdgeType, int]:
    """Return the bytes of the caches of each type: in proportion to its columns, and a part at least."""
    total, caches = sum(size.nbytes for size in sizes.values()), dict[Any, int]()
    for kind in sorted(sizes, key=lambda kind: sizes[kind].nbytes):
        size = sizes[kind]
        part = budget // (_PARTS * (len(sizes) - len(caches)))
        caches[kind] = min(max(budget * size.nbytes // total, part), ranks * size.nbytes)
        if caches[kind] // ranks < size.row_bytes:
            raise ValueError(
                f"feature_memory is too small: {budget} bytes are left for caches, and each of {ranks} ranks "
                f"needs at least one row of {kind!r}, {size.row_bytes} bytes"
            )
        budget, total = budget - caches[kind], total - size.nbytes
    return caches


def _mapped(sizes: ColumnSizes, kinds: Iterable[NodeType | EdgeType], reason: str) -> Iterator[TypeMemory]:
    for kind in kinds:
        size = sizes[kind]
        yield TypeMemory(kind=kind, size=size, reader="memory", nbytes=size.nbytes, reason=reason)
