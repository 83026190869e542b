"""Rows of nodes that stay in the memory of the trainer's device, and the frames that leave them out.

The rows are settled once for a source: all rows where they fit, else those that the first batches wanted most
often (a census), or with ``cache_policy="degree"`` those of the nodes that most edges lead to. They never
change afterwards, so frames may be loaded in any order, and dropped. Once the rows lie on the device, a frame
carries the rows of its other nodes alone, and two arrays that put the rows of a column together: see
``channel/frame.py``. Of types whose rows the device reads from the host's memory, a frame carries none.

Where all rows fit, they are read onto the device before the first batch. Where the device has or reads every
row of batches, frames are used as they were sampled, with the position of each node in place of its rows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from gigl_loader.channel.frame import CARRIED_AT, RESIDENT
from gigl_loader.errors import GiglError, StorageUnavailable
from gigl_loader.native import count_rows, split_by_cache
from gigl_loader.sampling.row_cache import Candidates, set_bits, worthiest
from gigl_loader.tensors import ArraySpec, Layout

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy.typing as npt

    from gigl_loader.arrays import Bytes, Int64Array
    from gigl_loader.channel.frame import Frame
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.frame_schema import FrameSchema, TypeArrays
    from gigl_loader.sampling.rows import RowReader
    from gigl_loader.sampling.source import BatchSource
    from gigl_loader.sampling.store import GatherRequest

logger = logging.getLogger(__name__)

_CENSUS_BATCHES = 64
_CENSUS_ROWS = 1 << 22
"""The census ends with so many batches, or rows of a type: 32 MB of places, sorted in 0.4 s."""
_BLOCK_BYTES = 32 << 20
_PLACE_BYTES = 4
"""Memory of the device for the place of a node, where it finds places of rows by itself."""
_FILLING_STEPS = 32
"""Rows are read in so many steps at most, between windows."""


class DeviceMemory(Protocol):
    """Memory of a device for rows. Used by one thread, until frames refer to the rows."""

    def allocate(self, sizes: Mapping[str, tuple[int, int]]) -> None:
        """Have room for rows of columns: number and bytes of a row, by name of the column in frames."""

    def read_host(self, columns: Mapping[str, Sequence[Bytes]]) -> str | None:
        """Have the device read rows out of this host's memory: of all of these columns, or of none.

        ``columns``: all rows of each, by partition, uint8 [R, row bytes], by name of the column in frames.
        Return why the device does not read them, or ``None``.
        """

    def locate(self, prefix: str, positions: Int64Array, count: int) -> None:
        """Say which rows of a type lie on the device, of ``count``: those of ``positions``, in their order.

        ``prefix`` is what the names of its columns begin with. Until then, all are read from the host.
        """

    def num_found(self) -> int:
        """Return how many rows of batches were on the device, of types that ``locate`` named."""

    def write(self, column: str, first: int, rows: Bytes) -> None:
        """Write rows, uint8 [N, row bytes], from row ``first`` on. They are there when this returns."""

    def clear(self) -> None:
        """Let the memory go."""


@dataclass(frozen=True, slots=True, eq=False)
class SplitRows:
    """Rows of one node type in one batch, by where they are."""

    slots: npt.NDArray[np.int32]
    """Number of each row among the resident rows of its type [N]; 0 for rows that the frame carries, and -1 -
    its position for one that the device reads from the host's memory."""
    carried: Int64Array
    """Positions of nodes whose rows the frame carries [C]."""
    carried_at: npt.NDArray[np.int32]
    """Their rows in the batch [C]."""

    num_read: int = 0
    """Rows that the device reads from the host's memory."""

    @property
    def num_resident(self) -> int:
        return len(self.slots) - len(self.carried) - self.num_read

    def read_by_device(self) -> SplitRows:
        """Return these rows where the device reads those that the frame would carry."""
        self.slots[self.carried_at] = -1 - self.carried
        return SplitRows(self.slots, self.carried[:0], self.carried_at[:0], len(self.carried))


Split = Mapping["NodeType | EdgeType", SplitRows]


class ResidentRows:
    """The resident rows of a source.

    ``split`` is for the thread that receives skeletons, ``advance`` for the one that fetches rows. What one
    leaves to the other is settled by then.
    """

    def __init__(
        self,
        memory: DeviceMemory,
        frame: FrameSchema,
        readers: Mapping[NodeType | EdgeType, RowReader],
        num_nodes: Mapping[NodeType, int],
        *,
        nbytes: int,
        degrees: Mapping[NodeType | EdgeType, Bytes] | None = None,
        read_by_device: Collection[NodeType | EdgeType] = (),
    ) -> None:
        """``frame`` is that of whole batches. Rows take at most ``nbytes`` of ``memory``.

        ``degrees``: ``reference_counts`` of each node type, in place of the census. ``read_by_device``: types
        whose other rows the device reads from the host's memory, so that frames carry none.
        """
        self._memory = memory
        self._readers = readers
        self._arrays = {str(each.kind): each for each in frame.nodes if _filled(each)}
        self._row_bytes = {kind: sum(_filled(each).values()) for kind, each in self._arrays.items()}
        self._num_nodes = {kind: num_nodes[kind] for kind in self._arrays}
        self._nbytes = nbytes
        self._seen: list[Mapping[NodeType | EdgeType, Int64Array]] = []
        self._filling: Iterator[None] | None = None
        self._sets: dict[NodeType | EdgeType, _Set] = {}
        """Of the types with rows on the device; empty until all rows are there."""
        self._ended = not self._arrays or not nbytes
        self._closed = False
        self._read_by_device = frozenset(read_by_device)
        self._edges = {each.kind: each for each in frame.edges if each.kind in self._read_by_device}
        self._is_all = self._fits(nbytes)
        """The rows of all nodes fit on the device."""
        self._reads_nodes = self._read_by_device >= self._arrays.keys()
        edges = [each.kind for each in frame.edges if _filled(each)]
        self.holds_all = (self._is_all or self._reads_nodes) and self._read_by_device.issuperset(edges)
        """The device has, or reads, all rows of batches."""
        if self.holds_all and not self._is_all:
            self._nbytes -= _PLACE_BYTES * sum(self._num_nodes.values())
            self._ended |= self._nbytes <= 0
        if self._is_all:
            self._keep({kind: np.arange(count) for kind, count in self._num_nodes.items()})
        elif degrees is not None and not self._ended:
            self._keep(worthiest([*self._by_degree(degrees)], self._row_bytes, self._nbytes))

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that lie on the device."""
        return sum(len(each.nodes) * self._row_bytes[str(kind)] for kind, each in self._sets.items())

    @property
    def has_all_nodes(self) -> bool:
        """Whether the rows of all nodes lie on the device."""
        return self._is_all and bool(self._sets)

    def fill(self) -> bool:
        """Read all rows onto the device where they fit. Return whether it has or reads them."""
        while self._is_all and not (self._sets or self._ended):
            self.advance()
        return bool(self._sets) or self._reads_nodes

    def see(self, places: Mapping[NodeType | EdgeType, Int64Array]) -> None:
        """Count the rows of a batch, until the rows that stay on the device are settled."""
        if not (self._sets or self._ended or self._filling is not None or self._census_is_done):
            self._seen.append({kind: places[kind].copy() for kind in self._arrays if kind in places})

    @property
    def num_found(self) -> int:
        """Rows of batches that were on the device, of those by position."""
        return self._memory.num_found()

    def split(self, places: Mapping[NodeType | EdgeType, Int64Array]) -> Split:
        """Return the rows of a batch, of each type of which some are on the device.

        Before the rows are settled, the census counts them.
        """
        self.see(places)
        split = {kind: each.split(places[kind]) for kind, each in self._sets.items() if kind in places}
        for kind in self._read_by_device.intersection(places):
            split[kind] = split.get(kind, _all_carried(places[kind])).read_by_device()
        return split

    def advance(self) -> None:
        """Settle the rows once the census is done, and read some of them onto the device.

        After rows that cannot be read, batches bring all of theirs as before. An owner that does not answer
        is tried again by the next call.
        """
        if self._ended:
            return
        try:
            if self._filling is None and self._census_is_done:
                self._keep(worthiest([*self._by_census()], self._row_bytes, self._nbytes))
            if self._filling is not None:
                next(self._filling, None)
        except (GiglError, OSError, RuntimeError) as error:  # RuntimeError: of CUDA.
            if self._closed:
                return
            self._ended = True
            self._memory.allocate({})  # The host's rows are still read.
            logger.warning("no features stay on the device, batches bring all of theirs: %s", error)

    def close(self) -> None:
        """End reading, and let the memory of the device go. Called again where another thread was reading."""
        self._ended = self._closed = True
        self._memory.clear()

    def layout(self, whole: Layout, split: Split) -> Layout:
        """Return the layout of the frame that carries the rows of ``split`` that are not resident."""
        if not split:
            return whole
        specs = dict(whole.specs)
        for kind, rows in split.items():
            arrays = self._of(kind)
            for name in _filled(arrays):
                specs[name] = replace(specs[name], shape=(len(rows.carried), *specs[name].shape[1:]))
            specs[f"{arrays.prefix}/{RESIDENT}"] = ArraySpec("I32", rows.slots.shape)
            specs[f"{arrays.prefix}/{CARRIED_AT}"] = ArraySpec("I32", rows.carried_at.shape)
        return Layout.plan(specs, whole.metadata)

    def write(self, split: Split, layout: Layout, buffer: Bytes) -> None:
        """Write the arrays that put the rows of a column together."""
        for kind, rows in split.items():
            prefix = self._of(kind).prefix
            layout.view(buffer, f"{prefix}/{RESIDENT}")[:] = rows.slots
            layout.view(buffer, f"{prefix}/{CARRIED_AT}")[:] = rows.carried_at

    def _of(self, kind: NodeType | EdgeType) -> TypeArrays:
        return self._arrays[kind] if isinstance(kind, str) else self._edges[kind]

    def _fits(self, nbytes: int) -> bool:
        return sum(size * self._num_nodes[kind] for kind, size in self._row_bytes.items()) <= nbytes

    @property
    def _census_is_done(self) -> bool:
        seen = self._seen
        most = max(
            (sum(len(each[kind]) for each in seen if kind in each) for kind in self._arrays), default=0
        )
        return len(seen) >= _CENSUS_BATCHES or most >= _CENSUS_ROWS

    def _by_census(self) -> Iterator[Candidates]:
        for kind, size in self._row_bytes.items():
            places = [each[kind] for each in self._seen if kind in each]
            nodes, counts = np.unique(np.concatenate([*places, np.empty(0, np.int64)]), return_counts=True)
            yield Candidates(kind, nodes, counts / size)

    def _by_degree(self, degrees: Mapping[NodeType | EdgeType, Bytes]) -> Iterator[Candidates]:
        for kind, size in self._row_bytes.items():
            nodes = np.flatnonzero(degrees[kind])
            yield Candidates(kind, nodes, np.exp2(degrees[kind][nodes] / 16.0) / size)

    def _keep(self, nodes: Mapping[NodeType, Int64Array]) -> None:
        """Settle the rows: those of ``nodes``, positions by type, ascending."""
        chosen = {kind: each for kind, each in nodes.items() if len(each)}
        self._ended = not chosen
        self._filling = self._filled_with(chosen)
        self._seen = []  # Only now: until then, ``split`` takes the census for done.

    def _filled_with(self, chosen: Mapping[NodeType, Int64Array]) -> Iterator[None]:
        """Read the rows of ``chosen`` onto the device, some for each item."""
        self._memory.allocate(
            {
                name: (len(nodes), size)
                for kind, nodes in chosen.items()
                for name, size in _filled(self._arrays[kind]).items()
            }
        )
        blocks = [
            (kind, rows)
            for kind, nodes in chosen.items()
            for rows in _blocks(len(nodes), max(_BLOCK_BYTES // self._row_bytes[kind], 1))
        ]
        at_once = math.ceil(len(blocks) / _FILLING_STEPS)
        for number, (kind, rows) in enumerate(blocks):
            if number and number % at_once == 0:
                yield
            while not self._fill(kind, chosen[kind][rows], rows.start):
                yield
        if self.holds_all and not self._is_all:
            for kind, nodes in chosen.items():
                self._memory.locate(self._arrays[kind].prefix, nodes, self._num_nodes[kind])
        self._sets = {kind: _Set.of(nodes, self._num_nodes[kind]) for kind, nodes in chosen.items()}
        logger.info("%d MB of features lie on the device", self.nbytes >> 20)

    def _fill(self, kind: NodeType, nodes: Int64Array, first: int) -> bool:
        """Read rows onto the device, and return whether their owners answered."""
        columns = _filled(self._arrays[kind])
        memory = [np.empty((len(nodes), row_bytes), np.uint8) for row_bytes in columns.values()]
        try:
            self._readers[kind].read(nodes, np.arange(len(nodes)), memory)
        except StorageUnavailable:
            return False
        for name, rows in zip(columns, memory, strict=True):
            self._memory.write(name, first, rows)
        return True


class ResidentSource:
    """Batches whose rows the device has or reads, around a source of frames with deferred features."""

    def __init__(self, inner: BatchSource, resident: ResidentRows, frame: FrameSchema) -> None:
        """``resident`` holds all rows, and is closed with this source. ``frame``: of whole batches."""
        self._inner = inner
        self._resident = resident
        deferred = frame.with_deferred_features()
        self._nodes = {str(each.kind): each.deferred.name for each in deferred.nodes if each.deferred}
        self._edges = [each.deferred.name for each in deferred.edges if each.deferred]
        self._rows = self._edge_rows = 0

    @property
    def num_batches(self) -> int:
        return self._inner.num_batches

    def start_epoch(self, epoch: int, first_batch: int = 0, origin: int = 0) -> None:
        self._inner.start_epoch(epoch, first_batch, origin)

    def wait_until_up(self, timeout: float) -> None:
        self._inner.wait_until_up(timeout)

    def receive(self, timeout: float) -> Frame:
        frame = self._inner.receive(timeout)
        frame.by_position = True
        self._resident.see({kind: frame.array(name) for kind, name in self._nodes.items()})
        self._resident.advance()
        specs = frame.layout.specs
        self._rows += sum(specs[name].shape[0] for name in self._nodes.values())
        self._edge_rows += sum(specs[name].shape[0] for name in self._edges)
        return frame

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            self._resident.close()

    def stats(self) -> dict[str, Any]:
        resident, wanted = self._resident, self._rows + self._edge_rows
        found = self._rows if resident.has_all_nodes else resident.num_found
        rows = dict.fromkeys(("cache", "ranks", "memory", "disk", "wire", "bytes"), 0)
        rows |= {"wanted": wanted, "device": found, "host": wanted - found, "device_bytes": resident.nbytes}
        return {**self._inner.stats(), "rows": {**rows, "seconds_waiting": 0.0}}


def carried_only(wants: Sequence[GatherRequest], split: Split) -> list[GatherRequest]:
    """Return what is to be gathered into a frame without the resident rows."""
    return [replace(want, rows=split[want.kind].carried) if want.kind in split else want for want in wants]


def _filled(arrays: TypeArrays) -> dict[str, int]:
    """Return the columns whose rows have bytes: bytes of a row by name in frames."""
    return {each.name: each.column.row_bytes for each in arrays.features if each.column.row_bytes}


def _blocks(count: int, size: int) -> Iterator[slice]:
    yield from (slice(begin, min(begin + size, count)) for begin in range(0, count, size))


def _all_carried(places: Int64Array) -> SplitRows:
    count = len(places)
    return SplitRows(np.zeros(count, np.int32), places, np.arange(count, dtype=np.int32))


class _Set(NamedTuple):
    """Nodes of one type, and their numbers among each other."""

    nodes: Int64Array
    num_nodes: int
    """Of the type."""
    bits: npt.NDArray[np.uint64]
    ranks: npt.NDArray[np.int32]

    @classmethod
    def of(cls, nodes: Int64Array, num_nodes: int) -> _Set:
        words = -(-num_nodes // 64)
        found = cls(nodes, num_nodes, np.zeros(words, np.uint64), np.zeros(words, np.int32))
        set_bits(found.bits, nodes)
        count_rows(found.bits, found.ranks)
        return found

    def split(self, places: Int64Array) -> SplitRows:
        at = np.arange(len(places))
        resident, resident_at, carried, carried_at = split_by_cache(
            self.bits, self.ranks, self.num_nodes, places, at
        )
        slots = np.zeros(len(places), np.int32)
        slots[resident_at] = resident
        return SplitRows(slots, carried, carried_at.astype(np.int32))
