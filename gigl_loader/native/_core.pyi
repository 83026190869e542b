"""The native kernels. Arrays are NumPy, C-contiguous, and never kept unless a class says so.

Every function checks dtypes and lengths (``TypeError``/``ValueError``), then releases the GIL.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]

def philox(key: int, low: int, high: int) -> tuple[int, int]:
    """Return the two 64-bit words of Philox2x64-10 for a 64-bit key and a 128-bit counter."""

def batch_key(run_seed: int, epoch: int, seeds: Int64Array) -> int:
    """Return the 64-bit key of every draw of a batch. ``seeds`` are node ids, in order."""

def permutation(run_seed: int, epoch: int, out: Int64Array) -> None:
    """Fill ``out`` with a shuffle of ``0 .. len(out) - 1`` that depends only on seed and epoch."""

def uniforms(key: int, out: npt.NDArray[np.float64]) -> None:
    """Fill ``out`` with numbers in [0, 1): number i is a function of key and i alone."""

def philox_words(
    key: int,
    low: Int64Array,
    high: Int64Array,
    first: npt.NDArray[np.uint64],
    second: npt.NDArray[np.uint64],
) -> None:
    """Write the words of ``philox(key, low[i], high[i])`` to ``first[i]`` and ``second[i]``. All [N]."""

def draw_distinct(key: int, low: int, place: int, below: int, out: Int64Array) -> None:
    """Fill ``out`` (int64 [N]) with distinct numbers below ``below``, which is more than N.

    They are drawn by Floyd's algorithm, as neighbours are: draw j is word ``j % 2`` of
    ``philox(key, low, place | j // 2)``.
    """

def relabel(first: Int64Array, values: Int64Array) -> tuple[Int64Array, npt.NDArray[np.int32]]:
    """Return the distinct entries of ``first`` and ``values``, in the order in which they are first seen, and
    the place of each of ``values`` among them (int32). A negative value is no entry: its place is -1.
    """

def most_visited(
    owners: npt.NDArray[np.int32], num_owners: int, visits: Int64Array, ids: Int64Array | None, most: int
) -> tuple[npt.NDArray[np.int32], Int64Array, npt.NDArray[np.float32]]:
    """Return the nodes that the walks of each owner visit most, at most ``most`` for each.

    ``owners``: of each walk, int32 [W]. ``visits``: positions, int64 [W * S], -1 for none. Returns owner
    (int32), position (int64) and share of the owner's visits (float32), all [E]: by owner, most visited
    first, ties by ascending node id (``ids``: by position; ``None`` where they are equal).
    """

def sort_lists(counts: Int64Array, ids: Int64Array | None, positions: Int64Array) -> None:
    """Sort each list by ascending node id, in place. List i is the next ``counts[i]`` of ``positions``."""

def crc32c(data: npt.NDArray[np.uint8], crc: int = 0) -> int:
    """Return the CRC-32C of the bytes that ``crc`` was computed of, followed by ``data`` (uint8 [N])."""

def crc32c_strands(data: npt.NDArray[np.uint8], crc: int = 0) -> int:
    """Return what ``crc32c`` returns, by CRC instructions alone."""

def crc32c_portable(data: npt.NDArray[np.uint8], crc: int = 0) -> int:
    """Return what ``crc32c`` returns, by tables: what processors without the instructions do."""

def copy_crc32c(data: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8], crc: int = 0) -> int:
    """Copy ``data`` to ``out`` (both uint8 [N], not overlapping), and return what ``crc32c`` returns."""

def crc32c_blocks(data: npt.NDArray[np.uint8], block_bytes: int, sums: npt.NDArray[np.uint32]) -> None:
    """Write the CRC-32C of each block of ``data`` (uint8 [N]) to ``sums`` (uint32 [blocks]).

    Blocks have ``block_bytes``, the last one what is left.
    """

def crc32c_combine(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC-32C of two strings of bytes in a row, of which the second has ``second_bytes``."""

def map_file(fd: int, nbytes: int, begin: int = 0, prot: int = 1) -> npt.NDArray[np.uint8]:
    """Map bytes of a file, shared: uint8 [nbytes], which can be written with ``prot`` of ``PROT_WRITE``.

    ``begin`` is a multiple of the page size. The map lives as long as an array of it, and keeps no
    descriptor. Reading behind the end of the file raises SIGBUS. ``OSError`` as mmap raises it.
    """

def use_huge_pages(fd: int, begin: int, nbytes: int) -> bool:
    """Move bytes of a file in memory, all of them written, into huge pages, as far as whole ones fit.

    Takes 1 s a GB. Return whether the kernel did: Linux can from 6.1 on.
    """

def advise_random(data: npt.NDArray[np.uint8]) -> None:
    """Have a fault in a map read one page: by default, it reads as far ahead as the device is set to."""

def watch_mapping(data: npt.NDArray[np.uint8], name: str) -> int:
    """Name the file that is mapped at ``data``, for ``install_bus_error_handler``. Return a key."""

def forget_mapping(key: int) -> None:
    """Forget a mapping that ends. Each key is good once."""

def install_bus_error_handler() -> None:
    """Have a process that reads a mapped file which was cut name it on stderr before SIGBUS ends it.

    The handler hands on to the one that was there. Calling it again puts it first again, if another was
    installed since.
    """

def build_adjacency(
    targets: Int64Array,
    neighbor_ids: Int64Array,
    edge_ids: Int64Array,
    indptr: Int64Array,
    order: Int64Array,
) -> None:
    """Group edges by target, each group sorted by (neighbour's node id, edge id).

    Edge ``order[i]`` is the i-th of the result; group t is ``order[indptr[t]:indptr[t + 1]]``.
    ``targets`` must lie in ``[0, len(indptr) - 1)``, else ``ValueError``.
    """

class ReadOrder(Enum):
    """Order in which a copy reads rows: it changes neither bytes nor errors."""

    GIVEN = ...
    ASCENDING = ...
    """By the page on which a row begins: fewer cache misses in the translation of addresses."""
    MEASURED = ...
    """Of large copies, whichever took less CPU time for columns and rows of this size; else ``GIVEN``."""

class OrderMeasurements:
    """CPU time of copies of one magnitude, by order. Thread-safe."""

    def __init__(self) -> None: ...
    def next(self) -> ReadOrder:
        """Return the order of the next copy: the faster one, and from time to time the other."""

    def add(self, order: ReadOrder, ns_per_row: float) -> None: ...

def gather(
    columns: Sequence[Sequence[npt.NDArray[Any]]],
    bounds: Int64Array,
    positions: Int64Array,
    out: Sequence[npt.NDArray[Any]],
    *,
    order: ReadOrder = ReadOrder.MEASURED,
) -> None:
    """Copy row ``positions[i]`` of each column to ``out[c][i]``.

    Columns are cut into parts: part p holds the rows ``[bounds[p], bounds[p + 1])``. All arrays are
    ``uint8`` of shape ``[rows, row bytes]``. ``ValueError`` for a position outside the bounds.
    """

def copy_rows(
    source: npt.NDArray[np.uint8],
    rows: Int64Array | None,
    places: Int64Array | None,
    out: npt.NDArray[np.uint8],
    *,
    first: int = 0,
    order: ReadOrder = ReadOrder.MEASURED,
) -> None:
    """Copy row ``rows[i] - first`` of ``source`` to row ``places[i]`` of ``out``: gather and scatter in one.

    ``None`` stands for ``0, 1, ...`` (of ``source``, of ``out``). Places must differ. ``ValueError``
    for a row or place outside.
    """

def copy_rows_crc(
    source: npt.NDArray[np.uint8],
    rows: Int64Array | None,
    places: Int64Array | None,
    out: npt.NDArray[np.uint8],
    crc: int,
    *,
    first: int = 0,
) -> int:
    """Do what ``copy_rows`` does, and return ``crc`` continued with the rows, in the order of ``rows``.

    Cheaper than ``crc32c`` over the rows before or after: they are in the caches.
    """

def find_buckets(cuts: Int64Array, positions: npt.NDArray[np.int32] | Int64Array) -> npt.NDArray[np.uint32]:
    """Return the bucket of each position, uint32 [N]: bucket b begins at ``cuts[b]``, which ascend.

    Positions below ``cuts[0]`` are in bucket 0. ``ValueError`` without a cut, or for cuts that fall.
    """

def order_by_bucket(buckets: npt.NDArray[np.uint32], num_buckets: int) -> tuple[Int64Array, Int64Array]:
    """Return the rows of bucket 0, then of bucket 1 ..., each in order, int64 [N], and where each begins.

    The latter is int64 [num_buckets + 1]. ``ValueError`` for a bucket that is not below ``num_buckets``.
    """

def split_by_owner(values: Int64Array, bounds: Int64Array) -> list[tuple[Int64Array, Int64Array]]:
    """Return, for every partition, the values that it owns and their indices, in order.

    Partition p owns ``[bounds[p], bounds[p + 1])``. ``ValueError`` for a value outside all.
    """

def draw_hop(
    adjacency: Adjacency,
    node_ids: Int64Array | None,
    num_neighbors: int,
    targets: Int64Array,
    *,
    key: int,
    address: int,
    hop: int,
    rule: DrawRule,
    with_edge_ids: bool,
    with_slots: bool,
    max_edges: int = ...,
    disjoint: bool = False,
    neighbor_ids: Int64Array | None = None,
    tree_times: Int64Array | None = None,
    tree_starts: Int64Array | None = None,
    bounds: Int64Array | None = None,
    number: int = 0,
) -> tuple[
    npt.NDArray[np.int32], npt.NDArray[Any], npt.NDArray[Any] | None, Int64Array | None, Int64Array | None
]:
    """Draw the neighbours of ``targets`` (positions) at one hop, as the fused sampler would.

    With ``disjoint``, targets are positions with their trees (``sampling.store.TREE_SHIFT``).
    Returns counts [T]; positions [E] and edge ids [E], each as wide as the adjacency has them; slots
    [E], counted through all parts; of a monotone rule, which needs the ``bounds`` of the targets [T], the
    times of the edges [E]. Timed rules need ``tree_times``, those with a window also ``tree_starts``, by
    number of the tree. ``node_ids`` maps positions of targets to node ids, ``None`` for
    the identity; neighbours are below ``num_neighbors``, and LABOR needs their ``neighbor_ids``, with a
    ``batch_dependency`` also the ``number`` of the batch, and the key of its epoch.
    ``ValueError`` for a target outside the adjacency, ``RuntimeError`` for damaged lists,
    ``BatchTooLarge`` for more than ``max_edges`` neighbours, before they are drawn.
    """

def find_edges(
    adjacency: Adjacency,
    neighbor_ids: Int64Array | None,
    num_neighbors: int,
    targets: Int64Array,
    neighbors: Int64Array,
    found: npt.NDArray[np.uint8],
) -> None:
    """Write to ``found[i]`` (uint8 [N]) whether the list of ``targets[i]`` has ``neighbors[i]`` (positions).

    ``neighbor_ids`` maps positions of neighbours to node ids, ``None`` for the identity. ``ValueError`` for
    positions outside, ``RuntimeError`` for damaged lists.
    """

def induced_edges(
    adjacency: Adjacency,
    neighbor_ids: Int64Array | None,
    num_neighbors: int,
    targets: Int64Array,
    nodes: Int64Array,
    *,
    weighted: bool,
    with_edge_ids: bool,
    with_slots: bool,
    max_edges: int = ...,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any], npt.NDArray[Any] | None, Int64Array | None]:
    """Return all edges that lead to ``targets`` from ``nodes`` (positions, int64), as ``draw_hop`` does.

    The edges of a target are in the order of its list. ``weighted``: without those of weight 0. A list
    costs its length, or some searches for each of the nodes where that is less. ``ValueError`` for
    positions outside, ``RuntimeError`` for damaged lists, ``BatchTooLarge`` for more than ``max_edges``.
    """

def dequantize(
    packed: npt.NDArray[np.uint8],
    bits: int,
    scales: npt.NDArray[np.float64] | None,
    zero_points: npt.NDArray[np.float64] | None,
    out: npt.NDArray[np.float32],
) -> None:
    """Write ``zero_point + code * scale`` for each code of ``packed`` rows to ``out`` [N, E].

    Codes have 8, 4, 2 or 1 bits, the first in the lowest bits of a byte; rows fill whole bytes. Scales and
    zero points are [E], float32 converted to float64, or ``None`` where each row begins with its own: 8
    bytes, two float32. Values are computed in float64 and rounded, so that they are equal everywhere.
    """

def expand_edges(rows: npt.NDArray[np.int32], colptr: Int64Array, out: Int64Array) -> None:
    """Write compact edges as an ``edge_index``: ``out`` is ``[2, E]``, row 0 = rows, row 1 = targets.

    ``ValueError`` unless ``colptr`` rises from 0 to E.
    """

class DiskReader:
    """Reads rows of columns in files, with many reads in flight and past the page cache. Thread-safe.

    ``depth`` reads are in flight at once, of at most 256 KiB; rows with up to ``gap`` bytes between them come
    with one. ``engine``: ``"io_uring"``, ``"threads"``, or ``""`` for the first that this system allows;
    ``RuntimeError`` where it refuses the one that is named. Reads of several threads take turns.
    """

    def __init__(self, depth: int = 64, gap: int = 24576, engine: str = "") -> None: ...
    def open(self, path: str) -> int:
        """Open a file and return its number. ``OSError`` names the path."""
    def is_direct(self, file: int) -> bool:
        """Whether reads of a file go past the page cache, which some file systems refuse."""
    def read(
        self, jobs: Sequence[tuple[int, int, int, Int64Array, Int64Array, npt.NDArray[np.uint8]]]
    ) -> None:
        """Read rows of columns: jobs of (file, offset of row 0, number of rows, rows, targets, out).

        Row ``rows[i]`` is written to ``out[targets[i]]``; ``out`` is uint8 [anything, row bytes]. Rows
        ascend, and may come several times; targets differ. All bounds are checked before anything is read.
        When this returns or raises, nothing more is written. ``OSError`` names file and byte; ``EOFError``: a
        file ends too early; ``OSError`` of ``ECANCELED``: the reader was closed.
        """
    def close(self) -> None:
        """End a read in progress, and close the files. Closing twice is fine.

        Does not wait: where a disk hangs, the read in progress closes its files once it is over.
        """
    @property
    def counts(self) -> dict[str, Any]:
        """``reads``, ``bytes`` with gaps, ``rows``, and ``seconds`` in which a read was in progress."""
    @property
    def engine(self) -> str: ...

def count_rows(bits: npt.NDArray[np.uint64], ranks: npt.NDArray[np.int32]) -> int:
    """Fill ``ranks`` with the number of set bits before each word of ``bits``, and return that of all."""

def split_by_cache(
    bits: npt.NDArray[np.uint64],
    ranks: npt.NDArray[np.int32],
    num_rows: int,
    rows: Int64Array,
    places: Int64Array,
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Split requests for rows by a set of rows: bit ``r`` of ``bits`` says whether row r is in it.

    Returns, in order: of those in the set, the number in the set and the place; of the others, the row
    and the place. ``ranks`` are those of ``count_rows``. ``ValueError`` for a row outside
    ``[0, num_rows)``.
    """

_Published: TypeAlias = tuple[npt.NDArray[np.uint32], Int64Array, npt.NDArray[np.uint32], Int64Array]

class CacheIndex:
    """Numbers the rows of one type with the slots of a cache, whose replacement knows the next batches.

    Of the rows that no pinned window needs, those are evicted whose next use is farthest (Belady 1966); of
    equal ones those with the lower count, then those planned least recently, then those in lower slots. Takes
    22 bytes a slot, and one for each row that is counted. One thread at a time. See ``csrc/cache_index.h``.
    """

    def __init__(
        self,
        num_slots: int,
        num_rows: int = 0,
        published: tuple[npt.NDArray[np.uint32], Int64Array, npt.NDArray[np.uint32], Int64Array]
        | None = None,
    ) -> None:
        """With ``num_rows``, each row below has a count of 0 to 255, and no other row is taken.

        ``published`` is memory of zeros, which other ranks of the host read as ``PeerSlots``: table, heads,
        marks and clock.
        """
    def plan(
        self,
        batches: Sequence[Int64Array],
        ahead: Sequence[Int64Array] = ...,
        partial: bool = False,
        peers: Sequence[PeerSlots] = ...,
    ) -> tuple[int, list[Int64Array], Int64Array, Int64Array] | None:
        """Plan the next window, whose rows stay in the cache until it and all earlier windows have ended.

        ``batches`` are the rows of its batches, in order; ``ahead`` those of later batches, as far as they
        are known. Each is int64 [N], and may have a row several times.

        Returns the number of the window, the slot of each row of each batch, and the rows that are missing
        (ascending, distinct) with their slots (ascending). The caller reads the missing rows of a window
        before it uses this window or a later one. Returns ``None``, and changes nothing, where the missing
        rows exceed the free slots and those of rows that no pinned window needs. ``partial`` gives slots to
        some of them then: those whose next use comes before that of rows in the cache, or, of equal ones,
        with a higher count. Others are not missing, and their slot is -1. Nor are rows missing that ``peers``
        have, or are about to read.

        ``ValueError`` for a negative row, or one of ``num_rows`` or more.
        """
    def fits(self, batches: Sequence[Int64Array], peers: Sequence[PeerSlots] = ...) -> bool:
        """Return whether ``plan`` has slots for all rows of a window. Nothing changes."""
    def publish(self, window: int) -> None:
        """Let other ranks copy the rows that were missing. ``ValueError`` where the window is not pinned."""
    def release(self, window: int) -> None:
        """End a window. ``ValueError`` where it is not pinned."""
    def forget(self, window: int) -> None:
        """End a window whose missing rows could not be read, and with it all later ones that are pinned.

        Rows that were missing in these windows leave the cache. Later windows end because they may count on
        rows of this one: plan their batches again. ``ValueError`` where the window is not pinned.
        """
    def count(self, rows: Int64Array) -> None:
        """Add 1 to the count of each row, int64 [N]; a row may come several times.

        A count ends at 255. All are halved when they exceed 32 a row on average.
        """
    def preset(self, counts: npt.NDArray[np.uint8]) -> None:
        """Set the count of every row, uint8 [num_rows]. Only their order matters."""
    @property
    def num_slots(self) -> int: ...
    @property
    def num_used(self) -> int:
        """Slots that have a row."""
    @property
    def num_pinned(self) -> int:
        """Slots that cannot be evicted."""
    @property
    def hits(self) -> int:
        """Rows of batches, repeated ones too, that needed no read."""
    @property
    def evicted(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Memory in bytes."""

class PeerSlots:
    """Rows of one type in the cache of another rank, whose process may change them at any time.

    Arrays that were made for as many slots; whatever they hold, nothing outside of them is read. See
    ``csrc/shared_slots.h``.
    """

    def __init__(
        self,
        table: npt.NDArray[np.uint32],
        heads: Int64Array,
        marks: npt.NDArray[np.uint32],
        clock: Int64Array,
        columns: Sequence[npt.NDArray[np.uint8]],
        first: bool,
    ) -> None:
        """Take uint32 [``slot_table_size``], int64 [slots, 2], uint32 [slots], int64 [1].

        ``columns`` are uint8 [slots, row bytes] each. Only ``marks`` are written. ``first``: whether the rank
        comes before this one; half of the rows that both have are kept by either.
        """

def copy_from_peers(
    peers: Sequence[PeerSlots],
    rows: Int64Array,
    places: Int64Array | None,
    out: Sequence[npt.NDArray[np.uint8]],
) -> npt.NDArray[np.bool_]:
    """Copy row ``rows[i]`` of each column to row ``places[i]`` of ``out``, from the first peer that has it.

    Returns which rows were copied, bool [N]; the others' places may hold anything. ``None`` stands for places
    ``0, 1, ...``. ``ValueError``, with nothing copied, for a place outside.
    """

def slot_table_size(num_slots: int) -> int:
    """Return the size of the table of ``PeerSlots``."""

def lease_slot(lent: npt.NDArray[np.uint8], flags: npt.NDArray[np.uint8], slot: int) -> object:
    """Set ``lent`` at ``slot``. When the result ends, it and ``flags`` become 0 there.

    Both uint8, of one length. No Python code runs then. In a forked child, the end does nothing.
    """

class DrawRule:
    """How the neighbours of a target are drawn. A fanout of -1 takes all, 0 none."""

    def __init__(
        self,
        fanout: int,
        *,
        replace: bool = False,
        weighted: bool = False,
        labor: bool = False,
        timed: bool = False,
        last: bool = False,
        window: bool = False,
        monotone: bool = False,
        strictly_earlier: bool = False,
        batch_dependency: int = 1,
    ) -> None: ...
    @property
    def fanout(self) -> int: ...
    @property
    def replace(self) -> bool: ...
    @property
    def weighted(self) -> bool:
        """In proportion to the weights that the adjacency has."""
    @property
    def labor(self) -> bool:
        """Each neighbour with the same chance for all targets."""
    @property
    def timed(self) -> bool:
        """Only neighbours that are not later than the tree of the target, by the times of the adjacency."""
    @property
    def last(self) -> bool:
        """Of those, the latest."""
    @property
    def window(self) -> bool:
        """Only neighbours that are not earlier than the start of the target's tree."""
    @property
    def monotone(self) -> bool:
        """Only neighbours that are not later than the bound of the target."""
    @property
    def strictly_earlier(self) -> bool:
        """No neighbour at the very time of the tree, or of the bound."""
    @property
    def batch_dependency(self) -> int:
        """Of LABOR: batches for which a node keeps its random number."""

class Adjacency:
    """One edge type, all the partitions on this host. Keeps the arrays it is given alive.

    Part p covers the target positions ``[bounds[p], bounds[p + 1])`` with ``indptr`` (int64, one more
    than its targets), ``indices`` and ``edge_ids`` (both int32 or int64; the same dtypes in all parts).
    ``bounds[0]`` need not be 0. For weighted draws, ``weight_sums`` has the running sums of the whole-number
    weights of each list (one entry per edge), ``weight_counts`` how many weights of each list are above 0.
    For draws by time, ``times`` and ``time_slots`` (int32 or int64) have the lists by ascending time, as
    times and as places in ``indices``, and ``time_sums`` the running sums of weights in that order.
    ``on_disk``: the arrays are maps that memory does not keep. Lists are read ahead of their draws.
    """

    def __init__(
        self,
        bounds: Int64Array,
        indptr: Sequence[Int64Array],
        indices: Sequence[npt.NDArray[Any]],
        edge_ids: Sequence[npt.NDArray[Any]],
        weight_sums: Sequence[Int64Array] = (),
        weight_counts: Sequence[Int64Array] = (),
        *,
        times: Sequence[Int64Array] = (),
        time_slots: Sequence[npt.NDArray[Any]] = (),
        time_sums: Sequence[Int64Array] = (),
        on_disk: bool = False,
    ) -> None: ...
    @property
    def num_edges(self) -> int: ...

class BatchTooLarge(Exception):
    """A batch has more edges than it may. No memory was taken for those beyond."""

class Batch:
    """What can be read of a batch, however it was sampled. Results stay until the next one begins."""

    @property
    def scratch_bytes(self) -> int:
        """Memory that is kept for the next batch."""
    def seed_locals(self) -> Int64Array:
        """Return the local index of each seed, int64 [S], group after group, in the order given."""
    def exclude(self, edge_type: int, targets: Int64Array, neighbors: Int64Array) -> None:
        """Remove every sampled edge from local node ``neighbors[i]`` to ``targets[i]``; nodes stay."""
    def both_directions(self, edge_type: int, reverse_type: int) -> npt.NDArray[np.int32]:
        """Return the edges of a type, and those of another the other way round, as one list, int32 [L].

        Values are places in the edges of the first type, followed by those of the second, by (target,
        neighbour): of each such pair, the first place. Excluded pairs of the first type stay out.
        ``ValueError`` for types of other ends, ``BatchTooLarge`` where the batch has no room for the added
        edges.
        """
    def nodes_per_hop(self, node_type: int) -> list[int]:
        """Number of new nodes: seeds first, then each hop."""
    def edges_per_hop(self, edge_type: int) -> list[int]:
        """Number of edges of each hop."""
    def num_targets(self, edge_type: int) -> int:
        """Number of expanded nodes of the edge type's target type: ``len(colptr) - 1``."""
    def write_positions(self, node_type: int, out: Int64Array) -> None: ...
    def write_node_ids(self, node_type: int, out: Int64Array) -> None: ...
    def write_trees(self, node_type: int, out: npt.NDArray[np.int32]) -> None:
        """Write the tree of each node. 0 where trees are not disjoint."""
    def write_rows(self, edge_type: int, out: npt.NDArray[np.int32]) -> None: ...
    def write_colptr(self, edge_type: int, out: Int64Array) -> None: ...
    def write_edge_ids(self, edge_type: int, out: Int64Array) -> None: ...
    def write_slots(self, edge_type: int, out: Int64Array) -> None:
        """Places of the sampled edges in adjacency order, counted through all parts.

        In a ``BatchBuilder``, those of partition p are offset by ``p << 40``.
        """

class NeighborSampler(Batch):
    """Fused k-hop sampling over all edge types, with scratch memory reused from batch to batch.

    Edge type e leads from neighbours of node type ``neighbor_types[e]`` to targets of node type
    ``target_types[e]``; its draws are addressed by ``addresses[e]`` (24 bits) and follow ``rules[e]``, one
    per hop. ``node_ids[t]`` maps positions of type t to node ids, ``None`` for the identity. Not
    thread-safe: one per thread. With ``disjoint``, seeds are positions with their trees, up to 2**23 of them.
    With ``induced``, a batch has all edges among its nodes in place of those that were drawn.
    """

    def __init__(
        self,
        *,
        adjacencies: Sequence[Adjacency],
        target_types: Sequence[int],
        neighbor_types: Sequence[int],
        addresses: Sequence[int],
        rules: Sequence[Sequence[DrawRule]],
        node_ids: Sequence[Int64Array | None],
        num_nodes: Sequence[int],
        with_edge_ids: bool,
        with_slots: bool,
        disjoint: bool = False,
        induced: bool = False,
    ) -> None: ...
    def sample(
        self,
        seeds: Sequence[tuple[int, Int64Array]],
        key: int,
        *,
        max_edges: int = ...,
        tree_times: Int64Array | None = None,
        tree_starts: Int64Array | None = None,
        number: int = 0,
    ) -> None:
        """Sample around these positions by node type (duplicates collapse). Results stay until the next call.

        ``BatchTooLarge`` for more than ``max_edges`` edges over all hops and types. The expanded nodes,
        each once per edge type, are bounded by ``max_edges`` and another 2**20. Rules with a
        ``batch_dependency`` need the ``number`` of the batch, and the key of its epoch.
        """

class BatchBuilder(Batch):
    """A batch that is put together from the answers of partitions.

    ``begin``; then, for every hop: ``split`` the frontier of each target type, ``append`` or ``skip``
    every edge type in ascending order, ``end_hop``. Nodes get the numbers that ``NeighborSampler`` gives
    them. ``bounds[t]`` are those of the partitions in node type t. Not thread-safe: one per thread.
    """

    def __init__(
        self,
        *,
        target_types: Sequence[int],
        neighbor_types: Sequence[int],
        node_ids: Sequence[Int64Array | None],
        num_nodes: Sequence[int],
        bounds: Sequence[Int64Array],
        with_edge_ids: bool,
        with_slots: bool,
        disjoint: bool = False,
        induced: bool = False,
    ) -> None: ...
    def begin(
        self,
        seeds: Sequence[tuple[int, Int64Array]],
        *,
        max_edges: int = ...,
        tree_times: Int64Array | None = None,
    ) -> None:
        """Start over with these positions as seeds, given by node type (duplicates collapse).

        With ``tree_times``, draws are monotone: every node gets a bound.
        """
    @property
    def room(self) -> int:
        """Edges that the batch may still take."""
    def split(self, node_type: int) -> list[Int64Array]:
        """Return the targets of the coming hop (positions) by partition."""
    def split_bounds(self, node_type: int) -> list[Int64Array]:
        """Return the bounds of the targets that ``split`` has returned."""
    def append(
        self,
        edge_type: int,
        answers: Sequence[
            tuple[npt.NDArray[np.int32], npt.NDArray[Any], npt.NDArray[Any] | None, Int64Array | None]
        ],
        times: Sequence[Int64Array] = (),
        strictly_earlier: bool = False,
    ) -> None:
        """Add what the partitions answered for their share: counts, positions, edge ids, slots.

        ``times``: of the edges of each answer, where the rule was monotone; ``strictly_earlier`` as in it.
        ``RuntimeError`` for an answer that cannot be one, ``BatchTooLarge`` beyond ``max_edges``; the
        batch must then be begun again.
        """
    def skip(self, edge_type: int) -> None:
        """Add no edge of this type at this hop."""
    def end_hop(self) -> None:
        """Make what the hop added the frontier of the next one."""
    def begin_induced(self) -> None:
        """Forget the drawn edges, and make all nodes the frontier of a hop that adds no node."""

class PPRRule:
    """How far personalised PageRank is pushed, along which edges, and what is kept: see ``csrc/ppr.h``."""

    def __init__(
        self,
        *,
        alpha: float,
        eps: float,
        max_nodes: int,
        top_up: bool,
        max_neighbors: int,
        max_rounds: int,
        weighted: bool,
        states: Sequence[tuple[int, bool]],
        edges: Sequence[tuple[int, int, int]],
        starts: Sequence[Sequence[int]],
        shares: Sequence[int],
    ) -> None:
        """``states``: node type, and whether its nodes are kept. ``edges``: state, next state and edge type.

        ``starts``: by channel and node type, the state of a seed, or -1. ``shares``: by channel, of
        ``max_nodes``.
        """

class PPRBatch(Batch):
    """The distinct seeds of a batch, then the nodes that they keep. It has no edge types."""

    def neighbors(
        self, seed_type: int, node_type: int
    ) -> tuple[
        npt.NDArray[np.int32],
        npt.NDArray[np.int32],
        list[npt.NDArray[np.float32]],
        list[npt.NDArray[np.int32]],
    ]:
        """Return the neighbours of a type, by seed and descending score: local seeds and local nodes [N], and
        of each channel scores and hops [N]."""

class PPRSampler(PPRBatch):
    """Pushes over a graph that lies wholly here. Edge types have numbers. Not thread-safe: one per thread."""

    def __init__(
        self,
        *,
        adjacencies: Sequence[Adjacency],
        addresses: Sequence[int],
        node_ids: Sequence[Int64Array | None],
        num_nodes: Sequence[int],
        rule: PPRRule,
    ) -> None: ...
    def sample(
        self,
        seeds: Sequence[tuple[int, Int64Array]],
        *,
        excluded: Sequence[tuple[int, Int64Array, Int64Array]] = ...,
        max_edges: int = ...,
    ) -> None:
        """Push from these node types and positions (duplicates collapse). Results stay until the next call.

        ``excluded``: edge type, positions of targets and of the neighbours to which they pass nothing.
        ``BatchTooLarge`` where all pushes together pass more than ``max_edges`` edges, ``RuntimeError`` for
        damaged lists.
        """

class PPRBuilder(PPRBatch):
    """Pushes over lists that lie elsewhere: ``begin``, then ``advance`` until it returns nothing.

    Every entry that ``advance`` returns is to be answered by ``append``, in one or several parts. Batches are
    those of ``PPRSampler``. Not thread-safe: one per thread.
    """

    def __init__(
        self, *, node_ids: Sequence[Int64Array | None], num_nodes: Sequence[int], rule: PPRRule
    ) -> None: ...
    def begin(
        self,
        seeds: Sequence[tuple[int, Int64Array]],
        *,
        excluded: Sequence[tuple[int, Int64Array, Int64Array]] = ...,
        max_edges: int = ...,
    ) -> None:
        """Start over. Arguments are those of ``PPRSampler.sample``."""
    @property
    def room(self) -> int:
        """Edges that the batch may still take."""
    def advance(self) -> list[tuple[int, int, Int64Array]]:
        """Push as far as known lists lead, and return whose lists are needed then.

        Each entry is a state, a fanout and positions: up to so many neighbours of each, over every edge type
        of the state, drawn without replacement.
        """
    def append(
        self,
        state: int,
        fanout: int,
        positions: Int64Array,
        answers: Sequence[tuple[npt.NDArray[np.int32], npt.NDArray[Any], npt.NDArray[np.float64] | None]],
    ) -> None:
        """Add the answer for these positions: counts, neighbours and weights of every edge type, in order.

        Without weights, every neighbour has the weight 1. ``RuntimeError`` for an answer that cannot be one,
        ``ValueError`` for what was not asked, ``BatchTooLarge`` beyond ``max_edges``; the batch must then be
        begun again.
        """

class GreedyPlacement:
    """Linear deterministic greedy partitioning of a stream of nodes. See ``csrc/greedy_placement.h``.

    Nodes of a kind are balanced among themselves: the whole stream has ``counts`` of each (int64 [K]), of
    which a partition takes at most ``capacities`` and has at least ``floors`` in the end.
    """

    def __init__(
        self, counts: Int64Array, capacities: Int64Array, floors: Int64Array, num_partitions: int
    ) -> None: ...
    def place(
        self,
        kinds: npt.NDArray[np.uint16],
        targets: npt.NDArray[np.signedinteger[Any]],
        neighbors: npt.NDArray[np.signedinteger[Any]],
        more: Int64Array,
    ) -> None:
        """Place the next N nodes, which are of these ``kinds`` (uint16 [N]).

        Edge e joins node ``targets[e]``, counted from the first of these, with node ``neighbors[e]`` of the
        stream, which comes before it: int32 or int64 [E]. ``more``, int64 [P] or empty, counts further
        neighbours of the first node by their partition.
        """
    @property
    def owners(self) -> npt.NDArray[np.uint16]:
        """The partition of each node that was placed, uint16 [N], in the order of the stream. Read-only."""

class TextIndex:
    """Texts numbered from 0, in the order in which they are first seen. See ``csrc/text_index.h``."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
    def add(self, texts: list[str]) -> Int64Array:
        """Return the number of each text, int64 [N]. Texts that are new get the next numbers, in order."""
    def sort(self) -> Int64Array:
        """Number the texts by their UTF-8 bytes, ascending. Return the new number of each old one."""
    def arrays(self) -> tuple[npt.NDArray[np.uint8], Int64Array, npt.NDArray[np.int32]]:
        """Return copies of the bytes (uint8), offsets (int64 [N + 1]) and hash slots (int32)."""

def find_texts(
    bytes: npt.NDArray[np.uint8], offsets: Int64Array, slots: npt.NDArray[np.int32], texts: list[str]
) -> Int64Array:
    """Return the number of each text, int64 [N], -1 for unknown ones, by the arrays of a ``TextIndex``.

    ``RuntimeError`` where damaged arrays contradict each other.
    """

def texts_at(bytes: npt.NDArray[np.uint8], offsets: Int64Array, numbers: Int64Array) -> list[str]:
    """Return the texts of these numbers (int64 [N]).

    ``RuntimeError`` for a number that no text has, and where the offsets leave the bytes.
    ``UnicodeDecodeError`` for bytes that are not UTF-8.
    """

class TlsUnusable(ValueError):
    """This machine has no OpenSSL, or a PEM cannot be used."""

class Stopped(Exception):
    """The stop flag of this thread was set, or its time is over. The text is the reason."""

class StopFlag:
    """Flag that stops a piece of work, such as a batch, in native code and at ``check_stop``. Thread-safe.

    As a context manager, it is the flag of the calling thread inside; several threads may work under one
    flag. Kernels look at it after some milliseconds of work at most, and raise ``Stopped``.
    """

    def __init__(self, seconds: float | None = None) -> None:
        """``seconds`` bounds the work: wall-clock time from when the flag is first entered."""
    def stop(self, reason: str) -> None:
        """Stop the work. The first reason stays."""
    def pause(self) -> None:
        """Have threads under this flag wait at their next look, until ``resume`` or ``stop``."""
    def resume(self) -> None:
        """Let paused threads go on."""
    @property
    def parked(self) -> bool:
        """Whether a thread waits because of ``pause``."""
    @property
    def reason(self) -> str:
        """Why the work is to stop. Empty while it may go on."""
    @property
    def timed_out(self) -> bool:
        """Whether the work was stopped because ``seconds`` had passed."""
    def __enter__(self) -> StopFlag: ...
    def __exit__(self, *error: object) -> None: ...

def check_stop() -> None:
    """Raise ``Stopped`` if the flag of the calling thread is set. Does nothing in a thread without one."""

def current_stop_flag() -> StopFlag | None:
    """Return the flag of the calling thread."""

class StreamError(Exception):
    """A connection of the data port failed. It is of no further use."""

class StreamClosed(StreamError):
    """The other side closed the connection."""

class StreamTimedOut(StreamError):
    """A deadline passed, or no byte came or went for too long."""

class StreamCancelled(StreamError):
    """Another thread cancelled the connection."""

class TlsContext:
    """Certificates, key and rules of one side of TLS. See ``csrc/tls.h``. ``TlsUnusable`` for bad PEM."""

    @staticmethod
    def server(chain: bytes, key: bytes, client_roots: bytes = b"") -> TlsContext:
        """Return the context of a server. With ``client_roots``, callers must show a certificate."""
    @staticmethod
    def client(roots: bytes, chain: bytes = b"", key: bytes = b"") -> TlsContext:
        """Return the context of a caller that trusts ``roots``, and shows ``chain`` if it is not empty."""

class DataClient:
    """Connection to a data port. One call at a time; any thread may cancel. See ``csrc/data_client.h``."""

    def __init__(self, host: str, port: int, tls: TlsContext | None = None, name: str = "") -> None:
        """``name`` is what the certificate must name, if that is not ``host``."""
    def connect(self, timeout_s: float) -> None:
        """Connect, once. Raises ``StreamError``."""
    def call(
        self, header: bytes, body: bytes, timeout_s: float, sample: bool = False
    ) -> tuple[int, int, int]:
        """Send a request, with ``sample`` one for a batch.

        Return 0 or 1 (refused), the size of the payload, and the membership's version.
        The whole call, with its ``read`` and ``finish``, has ``timeout_s``. Raises ``StreamError``.
        """
    def expect_within(self, seconds: float) -> None:
        """End the call where no byte comes for so long. Until then, silence may last as long as the call."""
    def read(self, out: npt.NDArray[np.uint8]) -> None:
        """Fill ``out``, uint8 [N], with the next bytes of the payload. ``ValueError`` beyond its end."""
    def finish(self) -> bool:
        """Read what follows the payload. Return whether the checksum matches, which TLS makes sure of."""
    def cancel(self) -> None:
        """End the call under way, and all later ones, with ``StreamCancelled``."""
    def is_stale(self) -> bool:
        """Return whether the other side has closed this idle connection."""
    @property
    def left(self) -> int:
        """Bytes of the payload that were not read yet."""
    @property
    def reusable(self) -> bool:
        """Whether a further call can be made."""

class DataCall:
    """A request whose head has come. Any thread may reply, once. See ``csrc/data_call.h``."""

    @property
    def version(self) -> int: ...
    @property
    def unread(self) -> bool:
        """Whether the caller ignores the checksum of the reply."""
    @property
    def asks_batch(self) -> bool:
        """Whether the body is a ``SampleRequest``."""
    @property
    def id(self) -> int:
        """Number that tells this call from others of the server, while it waits."""
    @property
    def body_bytes(self) -> int: ...
    @property
    def header(self) -> bytes:
        """Header text, at most 4 KiB."""
    @property
    def address(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def certificate(self) -> bytes:
        """Certificate that the caller showed (DER); empty without one."""
    def read_body(self, total_s: float, stall_s: float) -> bytes | None:
        """Receive the body. ``None`` where it does not match its checksum. Raises ``StreamError``."""
    def reply(
        self,
        chunks: Sequence[npt.NDArray[np.uint8]],
        total_s: float,
        stall_s: float,
        crc: int | None = None,
        membership: int = 0,
    ) -> None:
        """Send a reply of these chunks. Without their ``crc`` it is computed while they are sent."""
    def refuse(self, record: bytes, total_s: float, closes: bool = False) -> None:
        """Send a refusal. The connection ends where the body was not read, or ``closes``."""
    def wait(self) -> None:
        """Let the call wait without a thread, once its body was read.

        Then come ``post`` or ``post_refusal``, or ``DataServer.take_gone`` returns its ``id``.
        """
    def post(self, chunks: Sequence[npt.NDArray[np.uint8]], seconds: float, membership: int = 0) -> None:
        """Send a reply of these chunks without waiting, and keep them until they were sent.

        The connection ends where the caller reads nothing for ``seconds``, or is slower than 256 KiB/s beside
        them. Does nothing where the caller is gone.
        """
    def cut_reply(self, reason: str) -> bool:
        """End the connection of a posted reply that its caller does not read. The server tells ``reason``.

        ``False``: nothing was done, as the reply was sent, or a part of it is being sent just now.
        """
    def post_refusal(self, record: bytes, seconds: float) -> None:
        """Send a refusal without waiting. Does nothing where the caller is gone."""
    @property
    def gone(self) -> bool:
        """Whether the caller has closed its side of the connection, or the connection was reset."""
    def cancel(self) -> bool:
        """End transfers of this call with ``StreamCancelled``. ``False``: it had ended, nothing was done."""

class DataServer:
    """Listening side of a data port. See ``csrc/data_server.h``. ``OSError`` where it cannot listen."""

    def __init__(
        self,
        host: str,
        port: int,
        tls: TlsContext | None = None,
        strangers: int = 256,
        per_address: int = 4096,
        stranger_s: float = 15.0,
        idle_s: float = 300.0,
        tokens: Sequence[bytes] = (),
        refusal: bytes = b"",
    ) -> None:
        """``tokens`` are the accepted values of ``authorization``; without one, every caller is accepted.

        A stranger that shows none of them gets the record ``refusal``, and no call comes of it.
        """
    @property
    def port(self) -> int: ...
    def accept(self, tokens: Sequence[bytes], refusal: bytes) -> None:
        """Accept other tokens of strangers from now on. Connections that have shown one stay."""
    def renew(self, tls: TlsContext | None) -> None:
        """Use another context for new connections."""
    def next(self, timeout_s: float) -> DataCall | None:
        """Wait for a call, and meanwhile send on what was posted.

        ``None`` after the time, once the server was stopped, and when the caller of a waiting call is gone.
        """
    def take_gone(self) -> list[int]:
        """Return the waiting calls (``DataCall.id``) whose callers are gone, each once."""
    def sweep(self) -> list[tuple[str, int, str, bool, int]]:
        """End connections whose time is over, and return what was ended since the last call.

        Each entry is an address, the port of the first connection, the reason, whether connections were
        refused for their token, and their number.
        """
    def stop(self) -> None:
        """Stop listening, and end resting connections and all waits. Calls under way go on."""
    def cut_all(self) -> int:
        """Cancel the calls under way, and return their number."""
    @property
    def num_connections(self) -> int: ...
    @property
    def num_strangers(self) -> int:
        """Connections that have shown no token."""
    @property
    def num_networks(self) -> int:
        """Addresses (IPv6: /64) that have connections."""
