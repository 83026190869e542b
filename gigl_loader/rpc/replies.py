"""Replies of the data port: safetensors documents, checked before use.

Rows are never assembled: they are received in chunks of whole rows, which are copied straight to their place.
Both sides know the layout of such a reply beforehand.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gigl_loader.arrays import BoolArray, Bytes, Int64Array
from gigl_loader.errors import FormatError, SamplingError
from gigl_loader.native import copy_rows
from gigl_loader.rpc.request_reader import MAX_HEADER_BYTES, TEXT_ARRAYS, texts_of
from gigl_loader.sampling.store import (
    SLOT_BITS,
    EdgeList,
    FeatureRequest,
    InducedRequest,
    NeighborRequest,
    Neighbors,
)
from gigl_loader.tensors import ArraySpec, Layout, spec_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.rpc.reply_stream import ReplyStream
    from gigl_loader.rpc.requests import EdgeListRequest

CHUNK_BYTES = 2 << 20
"""Rows are received in chunks of about this size. Measured in CPU seconds per GB of rows of 64 bytes, gather
and scatter included, on a busy machine: 1.39 at 128 KiB, 1.27 at 256 KiB, 1.14 at 1 MiB, 1.13 at 2 MiB,
1.16 at 4 MiB."""

MAX_REPLY_BYTES = 4 << 30
"""The caller refuses a larger reply."""

MAX_ROW_BYTES = 256 << 20
"""Bytes of the rows of one request: a service refuses more, because it gathers them before it sends."""

MAX_DRAWN_EDGES = 16 << 20
"""Edges of one request: a service refuses more before it draws. At 4 to 32 bytes, they take 64 to 540 MB."""


def neighbors_document(neighbors: Neighbors) -> list[Bytes]:
    """Return the reply to a ``NeighborRequest`` or an ``InducedRequest`` as the pieces of a document.

    Slots travel as int32 where they fit.
    """
    arrays: dict[str, npt.NDArray[Any]] = {"counts": neighbors.counts, "positions": neighbors.positions}
    if neighbors.edge_ids is not None:
        arrays["edge_ids"] = neighbors.edge_ids
    if neighbors.slots is not None:
        slots = neighbors.slots
        arrays["slots"] = slots.astype(np.int32) if not len(slots) or slots.max() < 2**31 else slots
    if neighbors.times is not None:
        arrays["times"] = neighbors.times
    return document(arrays)


def split_document(positions: npt.NDArray[Any]) -> list[Bytes]:
    """Return the reply to a ``SplitRequest`` as the pieces of a document."""
    return document({"positions": positions})


def row_layout(columns: Mapping[str, int], count: int) -> Layout:
    """Return the layout of the reply to a ``FeatureRequest``. ``columns`` maps names to bytes per row."""
    return Layout.plan({name: ArraySpec("U8", (count, size)) for name, size in columns.items()})


def row_chunks(layout: Layout) -> list[range]:
    """Return the byte ranges in which the reply to a ``FeatureRequest`` is read: header, then whole rows."""
    chunks, begin = [], 0
    for name, spec in layout.specs.items():
        offset, width = layout.offsets[name], spec.shape[1]
        while spec.nbytes and offset + spec.nbytes - begin > CHUNK_BYTES:
            end = offset + (begin + CHUNK_BYTES - offset) // width * width
            if end <= max(begin, offset):  # No whole row fits: end before this column, or take one row.
                end = offset if begin < offset else begin + width
            chunks.append(range(begin, end))
            begin = end
    return [*chunks, range(begin, layout.nbytes)] if begin < layout.nbytes else chunks


def document(arrays: Mapping[str, npt.NDArray[Any]]) -> list[Bytes]:
    """Return a reply of these arrays as the pieces of a document."""
    layout = Layout.plan({name: spec_of(array) for name, array in arrays.items()})
    flat = [np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8) for name in layout.specs]
    return [np.frombuffer(layout.header, np.uint8), *flat]


def assembled(reply: ReplyStream, most: int = MAX_REPLY_BYTES) -> tuple[Layout, Bytes]:
    """Receive a document of at most ``most`` bytes, and return its layout and its bytes."""
    if reply.nbytes > most:
        raise FormatError(f"reply: of {reply.nbytes} bytes; at most {most} are read")
    buffer = np.empty(reply.nbytes, np.uint8)
    reply.read(buffer)
    reply.finish()
    return parsed(buffer)


def bounded(nbytes: int) -> Callable[[ReplyStream], tuple[Layout, Bytes]]:
    """Return ``assembled`` for a document whose arrays have at most ``nbytes``."""
    return partial(assembled, most=min(nbytes + MAX_HEADER_BYTES, MAX_REPLY_BYTES))


def parsed(buffer: Bytes) -> tuple[Layout, Bytes]:
    """Return the layout and the bytes of a document, uint8 [N]. ``FormatError`` unless it has N bytes."""
    layout = Layout.parse(buffer, what="reply", max_header=MAX_HEADER_BYTES)
    if layout.nbytes != len(buffer):
        raise FormatError(f"reply: {len(buffer) - layout.nbytes} bytes follow its end")
    return layout, buffer


def read_neighbors(
    layout: Layout, buffer: Bytes, request: NeighborRequest | InducedRequest, schema: GraphSchema
) -> Neighbors:
    """Return drawn or induced edges. ``FormatError`` unless they can be the response to ``request``.

    Whether induced edges lead from the nodes that were named is checked where they join a batch.
    """
    expected = {
        "counts": True,
        "positions": True,
        "edge_ids": request.with_edge_ids,
        "slots": request.with_slots,
        "times": isinstance(request, NeighborRequest) and request.rule.monotone,
    }
    _check_names(layout, [name for name, flag in expected.items() if flag])
    counts = _array(layout, buffer, "counts", len(request.targets), ("I32",))
    most, neighbor_type = -1, schema.neighbor_type(request.edge_type)
    if isinstance(request, NeighborRequest):
        most = request.rule.most
        neighbor_type = request.edge_type[2] if request.outward else neighbor_type
    _check_range("counts", counts, 0, most + 1 if most >= 0 else 2**31)
    total = int(counts.sum(dtype=np.int64))
    positions = _array(layout, buffer, "positions", total)
    _check_range("positions", positions, 0, schema.nodes[neighbor_type].count)
    edge_ids = _array(layout, buffer, "edge_ids", total) if request.with_edge_ids else None
    times = _array(layout, buffer, "times", total, ("I64",)) if expected["times"] else None
    if not request.with_slots:
        return Neighbors(counts, positions, edge_ids, None, times)
    slots = _array(layout, buffer, "slots", total)
    _check_range("slots", slots, 0, 1 << SLOT_BITS)
    return Neighbors(counts, positions, edge_ids, slots.astype(np.int64, copy=False), times)


def edges_document(edges: EdgeList) -> list[Bytes]:
    """Return the reply to an ``EdgeListRequest`` as the pieces of a document."""
    return document({"targets": edges.targets, "neighbors": edges.neighbors, "edge_ids": edges.edge_ids})


def read_edges(
    layout: Layout, buffer: Bytes, request: EdgeListRequest, schema: GraphSchema, partition: int
) -> EdgeList:
    """Return listed edges. ``FormatError`` unless they can be the response to ``request``."""
    names = ("targets", "neighbors", "edge_ids")
    _check_names(layout, names)
    shape = layout.specs["targets"].shape
    count = shape[0] if len(shape) == 1 else -1
    if not 0 <= count <= request.count:
        raise FormatError(f"reply: {count} edges, where {request.count} were asked for")
    targets, neighbors, edge_ids = (
        _array(layout, buffer, name, count).astype(np.int64, copy=False) for name in names
    )
    bounds = schema.nodes[schema.target_type(request.edge_type)].bounds
    _check_range("targets", targets, bounds[partition], bounds[partition + 1])
    _check_range("neighbors", neighbors, 0, schema.nodes[schema.neighbor_type(request.edge_type)].count)
    return EdgeList(targets, neighbors, edge_ids)


def read_flags(layout: Layout, buffer: Bytes, name: str, count: int) -> BoolArray:
    """Return the one array of a reply, U8 [``count``] of 0 and 1, as bool."""
    _check_names(layout, [name])
    flags = _array(layout, buffer, name, count, ("U8",))
    if len(flags) and flags.max() > 1:
        raise FormatError(f"reply: {name} are 0 or 1, got {flags.max()}")
    return flags.astype(np.bool_)


def read_split(layout: Layout, buffer: Bytes, low: int, high: int) -> Int64Array:
    """Return a split's positions, int64 [N], in a partition that owns ``[low, high)``."""
    return read_integers(layout, buffer, "positions", (low, high))


def read_integers(
    layout: Layout, buffer: Bytes, name: str, span: tuple[int, int], count: int | None = None
) -> Int64Array:
    """Return the one array of a reply, int64 [``count``]: values in ``[span[0], span[1])``."""
    _check_names(layout, [name])
    shape = layout.specs[name].shape
    sent = shape[0] if len(shape) == 1 else -1
    numbers = _array(layout, buffer, name, sent if count is None else count)
    _check_range(name, numbers, *span)
    return numbers.astype(np.int64, copy=False)


def read_bytes(layout: Layout, buffer: Bytes, name: str) -> bytes:
    """Return the one array of a reply, U8 [N], as bytes."""
    _check_names(layout, [name])
    return _array(layout, buffer, name, layout.specs[name].nbytes, ("U8",)).tobytes()


def read_octets(layout: Layout, buffer: Bytes, name: str, count: int) -> Bytes:
    """Return the one array of a reply, U8 [``count``], without a copy."""
    _check_names(layout, [name])
    return _array(layout, buffer, name, count, ("U8",))


def read_texts(layout: Layout, buffer: Bytes, count: int) -> list[str]:
    """Return the ``count`` texts of a reply that has the arrays of ``text_arrays``."""
    _check_names(layout, TEXT_ARRAYS)
    data = _array(layout, buffer, "bytes", layout.specs["bytes"].nbytes, ("U8",))
    return texts_of(data, _array(layout, buffer, "offsets", count + 1, ("I64",)), "reply")


def _check_names(layout: Layout, names: Sequence[str]) -> None:
    if sorted(layout.specs) != sorted(names):
        raise FormatError(f"reply: arrays {sorted(layout.specs)!r:.200}, not {sorted(names)}")


def _array(
    layout: Layout, buffer: Bytes, name: str, count: int, dtypes: tuple[str, ...] = ("I32", "I64")
) -> npt.NDArray[Any]:
    spec = layout.specs[name]
    if spec.dtype not in dtypes or spec.shape != (count,):
        raise FormatError(f"reply: {name!r} is {spec.dtype} {list(spec.shape)}, not {dtypes[-1]} [{count}]")
    array = layout.view(buffer, name)
    return array if array.flags.aligned else array.copy()


def _check_range(name: str, array: npt.NDArray[Any], low: int, high: int) -> None:
    if len(array) and not (low <= int(array.min()) and int(array.max()) < high):
        raise FormatError(f"reply: {name} of {array.min()} to {array.max()} do not lie in [{low}, {high})")


class RowScatter:
    """Copies the rows of a reply to their places, chunk by chunk."""

    def __init__(
        self,
        request: FeatureRequest,
        places: Int64Array,
        out: Sequence[Bytes],
    ) -> None:
        """Row i of the reply goes to row ``places[i]`` (int64 [N]) of ``out``.

        ``out``: for each column uint8 [any, row bytes].
        """
        widths = {name: rows.shape[1] for name, rows in zip(request.columns, out, strict=True)}
        self._layout = row_layout(widths, len(request.rows))
        self._places = places
        self._out = dict(zip(request.columns, out, strict=True))
        self._done = 0
        self.placing_ns = 0
        """CPU time of copying rows."""

    def chunks(self, reply: ReplyStream) -> Iterator[Bytes]:
        """Yield the chunks of a reply, for ``add``, as they come. ``FormatError`` where it is another one."""
        if reply.nbytes != self._layout.nbytes:
            raise FormatError(f"reply: {reply.nbytes} bytes, where the rows take {self._layout.nbytes}")
        yield from reply.pieces([len(part) for part in row_chunks(self._layout)])
        reply.finish()

    def add(self, chunk: Bytes) -> None:
        """Copy the rows of the next chunk, uint8 [N]."""
        if self._done == 0:
            header = self._layout.header
            if chunk[: len(header)].tobytes() != header:
                raise FormatError("reply: its header does not belong to the rows that were asked for")
            self._done, chunk = len(header), chunk[len(header) :]
        if self._done + len(chunk) > self._layout.nbytes:
            raise FormatError(f"reply: more than the {self._layout.nbytes} bytes it was said to have")
        began = time.thread_time_ns()
        for name, first, rows in self._parts(chunk):
            copy_rows(rows, None, self._places[first : first + len(rows)], self._out[name])
        self.placing_ns += time.thread_time_ns() - began
        self._done += len(chunk)

    def _parts(self, chunk: Bytes) -> Iterator[tuple[str, int, Bytes]]:
        """Yield column, index of the first row and rows, uint8 [R, row bytes], of each part of a chunk."""
        begin, end = self._done, self._done + len(chunk)
        for name, spec in self._layout.specs.items():
            offset, width = self._layout.offsets[name], spec.shape[1]
            low, high = max(begin, offset), min(end, offset + spec.nbytes)
            if low >= high:
                continue
            if (low - offset) % width or (high - offset) % width:
                raise FormatError(f"reply: a chunk cuts a row of {name!r}")
            yield name, (low - offset) // width, chunk[low - begin : high - begin].reshape(-1, width)

    def finish(self) -> None:
        """Raise ``FormatError`` unless every row was received."""
        if self._done != self._layout.nbytes:
            raise FormatError(f"reply: it ended after {self._done} of {self._layout.nbytes} bytes")


class Outrun(SamplingError):
    """Another reply was complete first, or the call has ended."""


class RowWriter:
    """Writes the rows of one request to their places. It is called once for each reply, from any thread.

    The first reply is written straight to its places, chunk by chunk. A reply that comes while another is
    being written goes to private memory, and to its places only when it is whole and its checksum is right.
    The first reply that is complete wins. After that, and after ``close``, nothing more is written: a chunk
    of another reply could be damaged, and the memory may belong to the next batch.
    """

    def __init__(
        self,
        request: FeatureRequest,
        places: Int64Array,
        out: Sequence[Bytes],
        *,
        placed: Callable[[int], None],
    ) -> None:
        """Row i of a reply goes to row ``places[i]`` (int64 [N]) of ``out``.

        ``out``: for each column uint8 [any, row bytes]. ``placed`` is called with the CPU time, in
        nanoseconds, of copying the rows of each reply.
        """
        self._request, self._places, self._out = request, places, out
        self._placed = placed
        self._lock = threading.Lock()
        self._has_writer = self._closed = False

    def __call__(self, reply: ReplyStream) -> None:
        """Read a reply. ``Outrun`` if another reply was first."""
        with self._lock:
            self._check_open()
            direct, self._has_writer = not self._has_writer, True
        if direct:
            try:
                self._write(reply)
            finally:
                with self._lock:
                    self._has_writer = False
        else:
            self._receive(reply)

    def close(self) -> None:
        """Write nothing more. Waits for the chunk that is being written, never for a server."""
        with self._lock:
            self._closed = True

    def _write(self, reply: ReplyStream) -> None:
        """Write each chunk to its places as it comes."""
        rows = RowScatter(self._request, self._places, self._out)
        try:
            for chunk in rows.chunks(reply):
                with self._lock:  # Held while memory is copied, so that ``close`` waits for that.
                    self._check_open()
                    rows.add(chunk)
            rows.finish()
            with self._lock:
                self._check_open()
                self._closed = True
        finally:
            self._placed(rows.placing_ns)

    def _receive(self, reply: ReplyStream) -> None:
        """Receive all rows in private memory, and copy them to their places if no other reply was first."""
        count = len(self._request.rows)
        private = [np.empty((count, out.shape[1]), np.uint8) for out in self._out]
        every = np.arange(count, dtype=np.int64)
        rows = RowScatter(self._request, every, private)
        try:
            for chunk in rows.chunks(reply):
                if self._closed:
                    break
                rows.add(chunk)
            with self._lock:
                self._check_open()
                rows.finish()
                for source, out in zip(private, self._out, strict=True):
                    copy_rows(source, every, self._places, out)
                self._closed = True
        finally:
            self._placed(rows.placing_ns)

    def _check_open(self) -> None:
        if self._closed:
            raise Outrun("another server answered first")
