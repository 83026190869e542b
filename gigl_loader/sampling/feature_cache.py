"""Cache of feature rows of one rank: memory for the rows of a few windows of batches, filled by readers.

Batches are pure functions of their requests, so a source knows the rows of the next batches before they are
needed. The cache keeps what comes next, and drops rows by their exact next use (Belady 1966): first rows
that no known batch wants, and of them the rows that batches wanted least often.
"""

from __future__ import annotations

import logging
import mmap
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from gigl_loader.arrays import Bytes, Int64Array
from gigl_loader.native import CacheIndex, copy_from_peers, copy_rows
from gigl_loader.sampling.cache_shares import CacheShares, Kind, SlotCost
from gigl_loader.sampling.host_cache import PUBLISHED_BYTES, HostCache, Slots

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.native import PeerSlots
    from gigl_loader.sampling.cached_columns import CachedColumns
    from gigl_loader.sampling.host_cache import HostRanks, SharedSlots
    from gigl_loader.sampling.partitioned import OwnerRows
    from gigl_loader.sampling.store import GatherRequest

logger = logging.getLogger(__name__)

Places: TypeAlias = Mapping[Kind, Int64Array]
"""Places of the rows that a batch wants, by type: see ``sampling/rows.py``."""

_PAGE = mmap.PAGESIZE
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Rows that batches wanted, by origin, since the source was opened."""

    wanted: int = 0
    cache: int = 0
    ranks: int = 0
    """Rows in the caches of other ranks of this host."""
    memory: int = 0
    read: int = 0
    """Rows read from a disk or from their owners."""
    read_bytes: int = 0

    def __add__(self, other: RowCounts) -> RowCounts:
        return RowCounts(
            wanted=self.wanted + other.wanted,
            cache=self.cache + other.cache,
            ranks=self.ranks + other.ranks,
            memory=self.memory + other.memory,
            read=self.read + other.read,
            read_bytes=self.read_bytes + other.read_bytes,
        )


@dataclass(slots=True, eq=False)
class Window:
    """Batches whose rows are in the cache together, and stay until the window is released."""

    numbers: dict[Kind, int]
    """Number of the window in the index of each type."""
    slots: list[dict[Kind, Int64Array]]
    """Slots of the rows of each batch, in the order of its places; -1: none. Its row is copied from the cache
    of another rank, or read for the batch alone."""
    missing: dict[Kind, tuple[Int64Array, Int64Array]]
    """Rows to be read into the cache, ascending, and their slots."""
    written: Mapping[Kind, int]
    """Status of the files, see ``FeatureCache.look``, before any of the rows was read."""
    pressure: float
    """Largest share of the slots of a type that this and earlier windows hold, or would if each of the rows
    of this window had one."""
    counts: RowCounts = field(default_factory=RowCounts)


class FeatureCache:
    """Rows in memory. ``plan``, ``fetch`` and ``release`` are for one thread; ``gather`` is for any."""

    def __init__(
        self, columns: Mapping[Kind, CachedColumns], nbytes: int, *, ranks: HostRanks | None = None
    ) -> None:
        """``nbytes`` bound the rows and the index. Memory is committed when rows are first read.

        ``ranks`` of this host copy rows from each other's caches.
        """
        self._columns = dict(columns)
        self._ranks = ranks
        self._host = None if ranks is None or nbytes == 0 else HostCache(ranks)
        self._nbytes = nbytes
        self._types: dict[Kind, _TypeCache] = {}
        self._shares = CacheShares(
            {
                kind: SlotCost(self._cost(each), each.num_rows)
                for kind, each in self._columns.items()
                if each.cached
            }
        )
        self._read_since = self.look()
        """Status of the files before any row in the slots was read."""
        self._num_open = 0
        """Windows that are planned, and not released."""
        self._is_stale = False
        """No window is planned before the slots are allocated anew."""
        self._lock = threading.Lock()
        self._counts = RowCounts()
        self._closed = False
        with _ADDING:
            _CACHES.add(self)

    @property
    def counts(self) -> RowCounts:
        with self._lock:
            return self._counts

    @property
    def num_slots(self) -> int:
        """Rows that fit, of all types."""
        return sum(each.num_slots for each in self._types.values())

    @property
    def num_peers(self) -> int:
        """Other ranks of this host whose rows are copied."""
        return 0 if self._host is None else self._host.num_peers

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the cache may take at most, once it is allocated."""
        return sum(each.nbytes for each in self._types.values())

    @property
    def unfilled_bytes(self) -> int:
        """Bytes of memory that the cache may still take: none once it is closed."""
        types = self._types
        if self._closed or not types:
            return 0 if self._closed else self._nbytes
        return sum(
            (each.num_slots - each.index.num_used) * self._cost(self._columns[kind])
            for kind, each in types.items()
        )

    def leave(self, nbytes: int) -> None:
        """Take less memory, before the first window is planned."""
        self._nbytes = max(self._nbytes - nbytes, 0)

    def look(self) -> dict[Kind, int]:
        """Return the status of the files of rows: it changes when one is written to. For any thread."""
        self._now = {kind: each.written() for kind, each in self._columns.items()}
        return self._now

    def to_cache(self, places: Places) -> Places:
        """Return the places of a batch whose rows take slots, for the other methods."""
        here = {kind: each.here for kind, each in self._columns.items()}
        return {
            kind: rows if (reader := here.get(kind)) is None else rows[~reader.holds(rows)]
            for kind, rows in places.items()
        }

    def plan(
        self, batches: Sequence[Places], ahead: Sequence[Places], *, partial: bool = False
    ) -> Window | None:
        """Give slots to all rows of a window. ``None``, with nothing changed, where they do not fit now.

        Nor do they while windows are open and the memory is to be shared anew by the types, or files of rows
        were written to: the cache is then emptied first.

        ``ahead`` are the places of later batches, in order. ``partial``: rows that do not fit, and are wanted
        again later than those in the cache, have no slots then. They are read straight into the frame. Rows
        in the cache of another rank of this host take no slots.
        """
        if self._must_allocate([*batches, *ahead]):
            if self._num_open:
                return None
            self._allocate([*batches, *ahead])
        window = Window({}, [{} for _ in batches], {}, self._read_since, 0.0)
        self._num_open += 1
        rows_of = {kind: [places.get(kind, _NONE) for places in batches] for kind in self._types}
        rows_of = {kind: wanted for kind, wanted in rows_of.items() if any(map(len, wanted))}
        # All types first: a type that was planned has given up rows.
        if len(rows_of) > 1 and not (partial or all(self._fits(*each) for each in rows_of.items())):
            self.forget(window)
            return None
        for kind, wanted in rows_of.items():
            cached = self._types[kind]
            after = [places.get(kind, _NONE) for places in ahead]
            planned = cached.index.plan(wanted, after, partial, self._peers(kind))
            if planned is None:  # The only type; or rows that other ranks have just given up.
                self.forget(window)
                return None
            number, slots, missing, missing_slots = planned
            window.numbers[kind] = number
            window.missing[kind] = (missing, missing_slots)
            for each, found in zip(window.slots, slots, strict=True):
                each[kind] = found
            rows, read = sum(int(np.count_nonzero(each >= 0)) for each in slots), len(missing)
            elsewhere = sum(map(len, slots)) - rows
            window.pressure = max(window.pressure, (cached.index.num_pinned + elsewhere) / cached.num_slots)
            window.counts += RowCounts(
                wanted=rows, cache=rows - read, read=read, read_bytes=read * self._columns[kind].nbytes
            )
        self._shares.count(batches)
        return window

    def fetch(self, window: Window) -> None:
        """Read the rows that a window lacks. What a reader raises is raised: then ``forget`` the window."""
        for kind, (rows, slots) in window.missing.items():
            if len(rows):
                self._columns[kind].reader.read(rows, slots, self._types[kind].memory)
        for kind, number in window.numbers.items():
            self._types[kind].index.publish(number)
        self._count(window.counts)

    def release(self, window: Window) -> None:
        """Let rows of a window go where they are in the way."""
        self._num_open -= 1
        for kind, number in window.numbers.items():
            self._types[kind].index.release(number)

    def forget(self, window: Window) -> None:
        """Release a window whose missing rows were not read."""
        self._num_open -= 1
        for kind, number in window.numbers.items():
            self._types[kind].index.forget(number)

    def count(self, places: Places) -> None:
        """Count that a batch wants these rows."""
        for kind, cached in self._types.items():
            if self._columns[kind].counted:
                cached.index.count(places.get(kind, _NONE))

    def gather(self, slots: Mapping[Kind, Int64Array], wants: Sequence[GatherRequest]) -> None:
        """Write what is wanted for a batch: from the cache where it has slots, else from the readers."""
        held: list[tuple[GatherRequest, Int64Array, Int64Array | None]] = []
        lacking: list[tuple[GatherRequest, Int64Array | None]] = []
        for want in wants:
            here = self._columns[want.kind].here if want.columns else None
            which = None  # All rows.
            if here is not None:
                is_here = here.holds(want.rows)
                self._read_here(here, want, np.flatnonzero(is_here))
                which = np.flatnonzero(~is_here)
            found = slots.get(want.kind)
            if found is None:
                lacking.append((want, which))
            elif (cached := found >= 0).all():
                held.append((want, found, which))
            else:
                which = np.arange(len(found)) if which is None else which
                held.append((want, found[cached], which[cached]))
                lacking.append((want, which[~cached]))
        lacking = [each for each in map(self._copy_from_peers, lacking) if each is not None]
        with _meanwhile(partial(self._read, lacking)) if held and lacking else nullcontext():
            for want, found, targets in held:
                for memory, out in zip(self._types[want.kind].memory, want.out, strict=True):
                    copy_rows(memory, found, targets, out)
        if not held:
            self._read(lacking)

    def close(self) -> None:
        """End reads in progress. Closing twice is fine."""
        self._closed = True  # A collection may call this anywhere: it takes no lock.
        if self._host is not None:
            self._host.close()
        for each in self._columns.values():
            each.reader.close()

    def join(self) -> None:
        """Wait until a closed cache has let go of those of other ranks."""
        if self._host is not None:
            self._host.join()

    def _peers(self, kind: Kind) -> tuple[PeerSlots, ...]:
        return () if self._host is None else self._host.peers(kind, self._now[kind])

    def _fits(self, kind: Kind, wanted: list[Int64Array]) -> bool:
        """Whether the rows of a window have slots, of one type."""
        index = self._types[kind].index
        return sum(map(len, wanted)) <= index.num_slots - index.num_pinned or index.fits(
            wanted, self._peers(kind)
        )

    def _copy_from_peers(
        self, wanted: tuple[GatherRequest, Int64Array | None]
    ) -> tuple[GatherRequest, Int64Array | None] | None:
        """Copy the rows of a batch that other ranks of this host have. Return what is left to be read."""
        want, which = wanted
        if not (peers := self._peers(want.kind)) or not want.columns:
            return wanted
        rows = want.rows if which is None else want.rows[which]
        copied = copy_from_peers(peers, rows, which, want.out)
        count = int(np.count_nonzero(copied))
        self._count(RowCounts(wanted=count, ranks=count))
        if count == len(rows):
            return None
        return want, np.flatnonzero(~copied) if which is None else which[~copied]

    def _read(self, wants: Sequence[tuple[GatherRequest, Int64Array | None]]) -> None:
        """Read some of the rows of a batch, or all, straight into its frame."""
        for want, which in wants:
            rows = want.rows if which is None else want.rows[which]
            if want.columns and len(rows):
                columns, count = self._columns[want.kind], len(rows)
                _read(columns.reader.read, rows, which, want.out)
                came = {"read": count, "read_bytes": count * columns.nbytes}
                self._count(RowCounts(wanted=count, **(came if columns.cached else {"memory": count})))

    def _read_here(self, reader: OwnerRows, want: GatherRequest, which: Int64Array) -> None:
        _read(reader.read_here, want.rows[which], which, want.out)
        self._count(RowCounts(wanted=len(which), memory=len(which)))

    def _count(self, counts: RowCounts) -> None:
        with self._lock:
            self._counts += counts

    def _must_allocate(self, known: Sequence[Places]) -> bool:
        """Whether slots are to be allocated before the next window. ``known``: the batches that come next."""
        sizes = {kind: each.num_slots for kind, each in self._types.items()}
        if self.look() != self._read_since or self._shares.differ(sizes, self._nbytes, known):
            self._is_stale = True
        return self._is_stale or not self._types

    def _allocate(self, known: Sequence[Places]) -> None:
        """Share the memory among the types by the bytes that batches want of them. No window is open.

        Other ranks may still copy rows from slots of before: their memory stays theirs until they let go.
        """
        if self._types and self._host is not None and self._ranks is not None:
            self._host.close()
            self._host.join()
            self._host = HostCache(self._ranks)
        self._types, self._read_since = {}, self._now
        sizes = self._shares.sizes(self._nbytes, known)
        shared = self._shared(sizes)
        types = {
            kind: _TypeCache(self._columns[kind], size, shared.get(kind)) for kind, size in sizes.items()
        }
        self._types, self._is_stale = types, False  # All types at once: other threads read them.
        if self._closed and self._host is not None:
            self._host.close()

    def _shared(self, sizes: Mapping[Kind, int]) -> Mapping[Kind, SharedSlots]:
        """Return memory for slots that other ranks of this host can read, if there is any."""
        if self._host is None or not sizes:
            return {}
        columns = self._columns
        slots = {
            kind: Slots(n, columns[kind].row_bytes, columns[kind].signature, written=self._read_since[kind])
            for kind, n in sizes.items()
        }
        try:
            return self._host.allocate(slots)
        except OSError as error:
            logger.warning("ranks of this host do not share rows: %s", error)
            return {}

    def _cost(self, columns: CachedColumns) -> int:
        """Return the bytes of a slot."""
        return columns.nbytes + _INDEX_BYTES + (0 if self._host is None else PUBLISHED_BYTES)


_CACHES: weakref.WeakSet[FeatureCache] = weakref.WeakSet()
_ADDING = threading.Lock()
"""Another thread must not add a cache while the set is read."""


def unfilled_bytes() -> int:
    """Return the bytes by which the open caches of this process may grow: free memory still counts them."""
    with _ADDING:
        return sum(each.unfilled_bytes for each in _CACHES)


def _read(
    read: Callable[[Int64Array, Int64Array, Sequence[Bytes]], None],
    rows: Int64Array,
    where: Int64Array | None,
    out: Sequence[Bytes],
) -> None:
    """Read rows of a batch, in any order, straight into its frame: row i to ``where[i]``, or to i."""
    order = np.argsort(rows)  # Not stable: five times as fast.
    read(rows[order], order if where is None else where[order], out)


@contextmanager
def _meanwhile(job: Callable[[], None]) -> Iterator[None]:
    """Do a job in another thread. The block ends when both have, and raises what the job raises."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            job()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="rows without a slot", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    while errors:  # Taken out: its traceback would hold this frame, and the frame the error.
        raise errors.pop()


_INDEX_BYTES = 22
"""Of a slot in a ``CacheIndex``."""


class _TypeCache:
    """Slots of the rows of one type."""

    def __init__(self, columns: CachedColumns, num_slots: int, shared: SharedSlots | None = None) -> None:
        self.num_slots = num_slots
        counts = columns.counted or columns.counts is not None
        self.index = CacheIndex(
            num_slots, columns.num_rows if counts else 0, None if shared is None else shared.published
        )
        self._index_bytes = _INDEX_BYTES + (0 if shared is None else PUBLISHED_BYTES)
        if columns.counts is not None:
            self.index.preset(columns.counts)
        self.memory = (
            [_reserved(num_slots, each) for each in columns.row_bytes] if shared is None else shared.memory
        )

    @property
    def nbytes(self) -> int:
        return sum(each.size for each in self.memory) + self._index_bytes * self.num_slots


def _reserved(num_slots: int, row_bytes: int) -> Bytes:
    """Return uint8 [num_slots, row_bytes] whose pages are committed when they are first written."""
    size = max(num_slots * row_bytes, 1)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    memory = np.frombuffer(mmap.mmap(-1, -(-size // _PAGE) * _PAGE, flags=flags), np.uint8)
    return memory[: num_slots * row_bytes].reshape(num_slots, row_bytes)
