"""Store of all partitions of a graph: routes requests to the owners of nodes, on this host and elsewhere."""

from __future__ import annotations

import copy
from concurrent.futures import Future, wait
from contextlib import nullcontext
from contextvars import copy_context
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from typing_extensions import Self

from gigl_loader.arrays import BoolArray, Bytes, Int64Array
from gigl_loader.native import StopFlag, copy_rows, current_stop_flag, relabel, split_by_owner
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.store import (
    SLOT_BITS,
    EdgeRequest,
    FeatureRequest,
    InducedRequest,
    NeighborRequest,
    Neighbors,
    WireCounts,
)
from gigl_loader.threads import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gigl_loader.graph.graph import Graph
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.store import GatherRequest, NeighborStore

_MAX_THREADS = 64
_MAX_AT_ONCE = 4  # Edge types of one hop for which one peer gets requests at the same time.
_PIECE_BYTES = 16 << 20
"""Rows of one request of a window. Others are gathered at their owner while these cross the network."""
_FEW = 4096
"""Local targets of one hop that are drawn in less time (0.1 ms) than another thread takes to begin a call."""


class FrontierRequest(NamedTuple):
    """One request for targets of all partitions."""

    targets: Sequence[Int64Array]
    """Positions by partition; where draws are ``disjoint``, with their trees."""
    request: Callable[..., NeighborRequest | InducedRequest]
    """Makes the request to one partition of its ``targets``, and of their ``bounds`` where there are some."""
    bounds: Sequence[Int64Array] | None = None
    """Of the targets, where draws are monotone."""


class PartitionedStore:
    """Sends requests to the owners of nodes, all at once: to remote owners from a pool of threads.

    Where this host has little or nothing to do, the caller's thread makes one of the remote calls itself.

    Any number of samplers may use it at once. Every wait ends, as every call to a store has a deadline.
    """

    def __init__(
        self,
        schema: GraphSchema,
        *,
        local: Mapping[int, NeighborStore],
        remote: Mapping[int, NeighborStore],
        lists: Mapping[int, NeighborStore] | None = None,
        concurrency: int = 1,
    ) -> None:
        """``local`` and ``remote`` hold one store for every partition between them.

        ``lists`` has stores on this host for remote partitions, which draw their neighbours.
        ``concurrency`` is the number of samplers that send requests at the same time.
        """
        if sorted([*local, *remote]) != list(range(schema.num_partitions)):
            raise ValueError(
                f"every partition of {schema.num_partitions} needs one store, got local {sorted(local)} "
                f"and remote {sorted(remote)}"
            )
        self._stores: dict[int, NeighborStore] = {**local, **remote}
        self._local = frozenset(local)
        self._lists: dict[int, NeighborStore] = {**self._stores, **(lists or {})}
        self._lists_here = self._local.union(lists or ())
        self._owner = schema.target_type
        """Type of the nodes whose owners hold the lists of an edge type."""
        self._bounds = _bounds(schema)
        wanted = len(remote) * concurrency * min(max(len(schema.edges), 1), _MAX_AT_ONCE)
        threads = min(wanted, _MAX_THREADS)  # Further calls queue, and none of them waits for another.
        self._closed = False
        self._pool = ThreadPool(threads, thread_name_prefix="ask") if remote else None

    @classmethod
    def whole(cls, graph: Graph) -> PartitionedStore:
        """Return the store of a graph that lies wholly on this host."""
        stores = {part: LocalStore(graph, part) for part in range(graph.schema.num_partitions)}
        return cls(graph.schema, local=stores, remote={})

    def with_part(self, schema: GraphSchema, store: NeighborStore) -> PartitionedStore:
        """Return a store with one more partition, on this host. It needs this one, which owns the threads."""
        part = len(self._stores)
        extended = copy.copy(self)
        extended._stores = {**self._stores, part: store}
        extended._local = self._local | {part}
        extended._lists = {**self._lists, part: store}
        extended._lists_here = self._lists_here | {part}
        extended._bounds = _bounds(schema)
        return extended

    @property
    def remote(self) -> dict[int, NeighborStore]:
        """The stores of partitions elsewhere."""
        return {part: store for part, store in self._stores.items() if part not in self._local}

    @property
    def only_features_are_remote(self) -> bool:
        """Whether all adjacency lies on this host, and some features elsewhere."""
        return bool(self.remote) and len(self._lists_here) == len(self._stores)

    def bounds(self, node_type: NodeType) -> Int64Array:
        """Return int64 [P + 1]: partition p owns the positions ``[bounds[p], bounds[p + 1])``."""
        return self._bounds[node_type]

    def sample(self, asks: Sequence[FrontierRequest]) -> list[list[Neighbors]]:
        """Return, for every request, the neighbours by partition. Raises what the stores raise."""
        answers: list[list[Neighbors]] = []
        self._check_open()
        here = sum(len(ask.targets[part]) for ask in asks for part in self._lists_here)
        with _Round(self._pool, one_call_here=here <= _FEW) as work:
            for ask in asks:
                answers.append([_NOBODY] * len(self._stores))
                for part, targets in enumerate(ask.targets):
                    if len(targets):
                        bounds = {} if ask.bounds is None else {"bounds": ask.bounds[part]}
                        share, store = ask.request(targets=targets, **bounds), self._lists[part]
                        job = partial(_sample, store, share, answers[-1], part)
                        work.add(job, here=part in self._lists_here)
        return answers

    def contains(self, edge_type: EdgeType, targets: Int64Array, neighbors: Int64Array) -> BoolArray:
        """Return, bool [N], whether the list of ``targets[i]`` has ``neighbors[i]`` (positions, int64 [N]).

        One request for each partition that owns some of the targets, all at once.
        """
        found = np.zeros(len(targets), np.bool_)
        with _Round(self._pool) as work:
            for part, (owned, places) in enumerate(
                split_by_owner(targets, self._bounds[self._owner(edge_type)])
            ):
                if len(owned):
                    request = EdgeRequest(edge_type=edge_type, targets=owned, neighbors=neighbors[places])
                    job = partial(_contains, self._lists[part], request, places, found)
                    work.add(job, here=part in self._lists_here)
        return found

    def gather(self, wants: Sequence[GatherRequest]) -> None:
        """Write all requested rows. When this returns or raises, nothing more is written."""
        self._check_open()
        with _Round(self._pool, one_call_here=not self._local) as work:
            for want in wants:
                if want.columns:
                    shares = split_by_owner(want.rows, self._bounds[want.kind])
                    for part, (rows, places) in enumerate(shares):
                        if len(rows):
                            self._gather(work, part, want, rows, places)

    def read(
        self,
        kind: NodeType | EdgeType,
        columns: tuple[str, ...],
        rows: Int64Array,
        targets: Int64Array,
        out: Sequence[Bytes],
        *,
        here: bool = False,
    ) -> None:
        """Write row ``rows[i]`` of column c to ``out[c][targets[i]]``, as ``RowReader.read`` does.

        Each owner gets one request, or several at the same time where one would take more than 16 MiB.
        ``here``: this host ``holds`` all of the rows, so that they wait for no request to an owner.
        """
        self._check_open()
        width = sum(matrix.shape[1] for matrix in out)
        if not width or not len(rows):
            return
        first = np.diff(rows, prepend=rows[0] - 1) != 0
        unique, places = (rows, targets) if first.all() else (rows[first], targets[first])
        step = max(_PIECE_BYTES // width, 1)
        bounds = self._bounds[kind]
        if unique[0] < bounds[0] or unique[-1] >= bounds[-1]:
            raise ValueError(f"rows lie outside the places [0, {bounds[-1]})")
        ends = np.searchsorted(unique, bounds)
        pieces = [
            (at - begin, part, slice(at, min(at + step, end)))
            for part, (begin, end) in enumerate(pairwise(ends.tolist()))
            for at in range(begin, end, step)
        ]
        with _Round(self._pool, one_call_here=not self._local) as work:
            for _, part, piece in sorted(pieces, key=lambda each: each[:2]):  # All owners begin at once.
                offset = 0 if isinstance(kind, str) else part << SLOT_BITS
                request = FeatureRequest(kind=kind, columns=columns, rows=unique[piece] - offset)
                job = partial(self._stores[part].gather, request, places[piece], out)
                work.add(job, here=here or part in self._local)
        if unique is not rows:
            copies = targets[np.flatnonzero(first)[np.cumsum(first) - 1]][~first]
            for matrix in out:
                matrix[targets[~first]] = matrix[copies]

    def holds(self, kind: NodeType | EdgeType, rows: Int64Array) -> BoolArray:
        """Return which rows lie on this host, bool [N]: in its partitions or in its cache of other rows."""
        found = np.zeros(len(rows), np.bool_)
        for part, (owned, places) in enumerate(split_by_owner(rows, self._bounds[kind])):
            store = self._stores[part]
            if part in self._local:
                found[places] = True
            elif hasattr(store, "holds"):
                found[places] = store.holds(kind, owned)
        return found

    def _check_open(self) -> None:
        if self._closed and self._pool is not None:
            raise RuntimeError("the store was closed: no owner is asked after its shutdown")

    def _gather(
        self, work: _Round, part: int, want: GatherRequest, rows: Int64Array, places: Int64Array
    ) -> None:
        here = part in self._local
        if not isinstance(want.kind, str):
            rows -= part << SLOT_BITS
        fetch = _gather if want.distinct or here else _gather_once
        work.add(partial(fetch, self._stores[part], want, rows, places), here=here)

    def wire(self) -> WireCounts:
        """Return what all stores sent and received so far."""
        counts = (store.wire() for store in self._stores.values() if hasattr(store, "wire"))
        return sum(counts, WireCounts())

    def close(self) -> None:
        """Close all stores, which ends what they are asked, then the threads. Closing twice is fine."""
        self._closed = True
        for store in self._stores.values():
            store.close()
        if self._pool is not None:
            self._pool.shutdown()


class OwnerRows:
    """A ``RowReader`` of one type, whose rows are read from their owners: hosts or storage servers."""

    def __init__(self, store: PartitionedStore, kind: NodeType | EdgeType, columns: Sequence[str]) -> None:
        """Closing a reader closes ``store``, which readers of other types may share."""
        self._store, self._kind, self._columns = store, kind, tuple(columns)

    def read(self, rows: Int64Array, targets: Int64Array, out: Sequence[Bytes]) -> None:
        self._store.read(self._kind, self._columns, rows, targets, out)

    def holds(self, rows: Int64Array) -> BoolArray:
        """Return which rows lie on this host, bool [N]."""
        return self._store.holds(self._kind, rows)

    def read_here(self, rows: Int64Array, targets: Int64Array, out: Sequence[Bytes]) -> None:
        """Read rows that this host ``holds``, as ``read`` does."""
        self._store.read(self._kind, self._columns, rows, targets, out, here=True)

    def close(self) -> None:
        self._store.close()


def _bounds(schema: GraphSchema) -> dict[NodeType | EdgeType, Int64Array]:
    """Return by type, int64 [P + 1], where the positions of each partition begin, or its slots."""
    slots = np.arange(schema.num_partitions + 1, dtype=np.int64) << SLOT_BITS
    return {
        **{node_type: np.array(nodes.bounds, np.int64) for node_type, nodes in schema.nodes.items()},
        **dict.fromkeys(schema.edges, slots),
    }


_NOBODY = Neighbors(
    np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int32), *[np.empty(0, np.int64)] * 2
)
"""Neighbours from a partition that owns no target."""


class _Round:
    """One round of store calls. Remote calls start in the pool; local calls run here, once all are added.

    Waits for all of them, also after an error: a late call would write into another batch's memory. All of
    them work under the stop flag and in the context (``contextvars``) of this thread.
    """

    def __init__(self, pool: ThreadPool | None, *, one_call_here: bool = False) -> None:
        """``one_call_here``: the last remote job runs in this thread, after the local jobs."""
        self._pool = pool
        self._flag = current_stop_flag()
        self._most_held = 1 if one_call_here else 0
        self._held: list[Callable[[], None]] = []
        self._away: list[Future[None]] = []
        self._here: list[Callable[[], None]] = []

    def add(self, job: Callable[[], None], *, here: bool) -> None:
        if here or self._pool is None:
            self._here.append(job)
            return
        self._held.append(job)
        if len(self._held) > self._most_held:
            self._away.append(self._pool.submit(copy_context().run, _under, self._flag, self._held.pop(0)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Run what is left, unless something was raised; wait for all; then raise the first error."""
        try:
            if kind is None:
                for job in (*self._here, *self._held):
                    job()
        finally:
            wait(self._away)
        if kind is None:
            while self._away:  # Taken out: an error would hold this frame, and the frame the error.
                self._away.pop(0).result()


def _under(flag: StopFlag | None, job: Callable[[], None]) -> None:
    with flag or nullcontext():
        job()


def _sample(
    store: NeighborStore, ask: NeighborRequest | InducedRequest, answers: list[Neighbors], part: int
) -> None:
    answers[part] = store.induced(ask) if isinstance(ask, InducedRequest) else store.sample(ask)


def _contains(store: NeighborStore, request: EdgeRequest, places: Int64Array, found: BoolArray) -> None:
    found[places] = store.contains(request)


def _gather(store: NeighborStore, want: GatherRequest, rows: Int64Array, places: Int64Array) -> None:
    store.gather(FeatureRequest(kind=want.kind, columns=want.columns, rows=rows), places, want.out)


def _gather_once(store: NeighborStore, want: GatherRequest, rows: Int64Array, places: Int64Array) -> None:
    """Fetch each row once, though several places want it."""
    unique, which = relabel(rows[:0], rows)
    if len(unique) == len(rows):
        return _gather(store, want, rows, places)
    fetched: list[Bytes] = [np.empty((len(unique), out.shape[1]), np.uint8) for out in want.out]
    ask = FeatureRequest(kind=want.kind, columns=want.columns, rows=unique)
    store.gather(ask, np.arange(len(unique), dtype=np.int64), fetched)
    for source, out in zip(fetched, want.out, strict=True):
        copy_rows(source, which.astype(np.int64, copy=False), places, out)
    return None
