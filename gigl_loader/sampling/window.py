"""Source of batches whose features are fetched in windows, ahead of their use.

It stands around a source of frames with deferred features (skeletons). The trainer's thread takes skeletons
from that source well ahead of the batches that it hands out; the *fetch* thread gives the rows of a window of
them slots in a cache and reads the missing ones, each once, in ascending order; the *completion* thread
writes the frames. Batches and their order are those of the source within.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from typing import TYPE_CHECKING, Any

from gigl_loader.channel.frame import Frame
from gigl_loader.channel.ring import private_slots
from gigl_loader.errors import FormatError, SamplingError, StorageUnavailable, WorkerDied
from gigl_loader.graph.schema import type_name
from gigl_loader.sampling.cached_columns import cached_columns, columns_with_bytes
from gigl_loader.sampling.feature_cache import FeatureCache, RowCounts
from gigl_loader.sampling.frame_writer import Completion
from gigl_loader.sampling.host_cache import HostRanks
from gigl_loader.sampling.partitioned import OwnerRows
from gigl_loader.sampling.resident import ResidentRows, ResidentSource
from gigl_loader.sampling.row_cache import reference_counts
from gigl_loader.sampling.rows import DiskRows, MappedRows
from gigl_loader.sampling.store import WireCounts
from gigl_loader.sampling.window_threads import FRAMES_AHEAD, Skeleton, WindowThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gigl_loader.arrays import Bytes
    from gigl_loader.graph.graph import Graph
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.sampling.cache_shares import Kind
    from gigl_loader.sampling.frame_schema import FrameSchema, TypeArrays
    from gigl_loader.sampling.partitioned import PartitionedStore
    from gigl_loader.sampling.resident import DeviceMemory
    from gigl_loader.sampling.rows import RowReader
    from gigl_loader.sampling.source import BatchSource, SourceRequest
    from gigl_loader.tracing import BatchSpans

logger = logging.getLogger(__name__)

FRAMES_IN_USE = 3
"""Whole frames besides: one is being written, the trainer has one and takes another."""
_FRAMES_AT_LEAST = 2
"""Whole frames where none is written ahead: the trainer has one, and another is written for it."""
_FRAME_SLOTS = 8
_MAX_SKELETONS = 256
_MAX_PLACES = (1 << 31) - 1
_READY_S = 1.0
"""Wait for another skeleton, at most, while a frame lies ready."""
_SKELETON_SHARE = 8
"""Of the memory for features, one part in so many is for skeletons: the look-ahead."""


class WindowedSource:
    """Batches whose features are fetched a window at a time. See the module."""

    def __init__(
        self,
        inner: BatchSource,
        completion: Completion,
        cache: FeatureCache,
        *,
        window: int | None = None,
        channel_bytes: int = 4 << 30,
        skeleton_bytes: int = 1 << 30,
        batch_bytes: int | None = None,
        timeout_s: float = 300.0,
        origin: str = "disk",
        wire: Callable[[], WireCounts] = WireCounts,
        resident: ResidentRows | None = None,
        spans: BatchSpans | None = None,
    ) -> None:
        """``inner`` delivers frames with deferred features, and is closed with this source.

        ``window`` batches are fetched together at most, by default as many as fit. Whole frames take about
        ``channel_bytes``. Skeletons take ``skeleton_bytes`` at most.
        Where whole frames need more than ``batch_bytes``, there are fewer of them, and the cache is smaller.
        ``origin`` is where the readers of the cache read: ``"disk"`` or ``"wire"``.
        ``wire`` returns their traffic, where that of ``inner`` does not contain it.
        Frames leave out rows that are ``resident`` on the device.
        """
        self._inner = inner
        self._pid = os.getpid()
        self._origin = origin
        self._wire = wire
        self._to_take = 0
        self._to_give = 0
        self._stalled = False
        self._skeleton_size = 0
        self._batch_bytes = batch_bytes
        self._bytes = self._batches = 0
        self._seconds_waiting = self._rows_waited_s = 0.0
        self._pipeline = WindowThreads(
            completion,
            cache,
            private_slots(channel_bytes, _FRAME_SLOTS),
            window=window,
            skeleton_bytes=skeleton_bytes,
            timeout_s=timeout_s,
            resident=resident,
            spans=spans,
        )
        self._end = weakref.finalize(self, _end, self._pipeline, inner, self._pid)

    @property
    def num_batches(self) -> int:
        return self._inner.num_batches

    def start_epoch(self, epoch: int, first_batch: int = 0, origin: int = 0) -> None:
        self._check_usable()
        self._inner.start_epoch(epoch, first_batch, origin)
        self._pipeline.start_epoch(epoch)
        self._stalled = False
        self._to_take = self._to_give = self.num_batches - first_batch

    def wait_until_up(self, timeout: float) -> None:
        self._inner.wait_until_up(timeout)

    def receive(self, timeout: float) -> Frame:
        self._check_usable()
        if not self._to_give:
            raise ValueError(f"all {self.num_batches} batches of the epoch were received: start an epoch")
        began = time.monotonic()
        try:
            result = self._next(began + timeout, timeout)
        finally:
            self._seconds_waiting += time.monotonic() - began
        if isinstance(result, Exception):
            if not isinstance(result, (StorageUnavailable, WorkerDied)):
                self._to_give -= 1
            self._stalled = False
            try:
                raise result
            finally:
                del result
        self._to_give -= 1
        self._batches += 1
        self._bytes += result.nbytes
        return result

    def close(self) -> None:
        if self._end.detach() is not None:
            _end(self._pipeline, self._inner, self._pid)

    def stats(self) -> dict[str, Any]:
        pipeline = self._pipeline
        inner = self._inner.stats()
        wire = self._wire()
        cpu_s = (sum(pipeline.cpu_ns.values()) + wire.placing_ns) / 1e9
        return {
            **inner,
            "batches": self._batches,
            "bytes": self._bytes,
            "seconds_waiting": self._seconds_waiting,
            "cpu_gathering": inner["cpu_gathering"] + cpu_s,
            "wire_bytes_in": inner["wire_bytes_in"] + wire.bytes_in,
            "wire_bytes_out": inner["wire_bytes_out"] + wire.bytes_out,
            "peer_calls": inner["peer_calls"] + wire.calls,
            "oversize": inner["oversize"] + pipeline.fresh,
            "rows": self._rows(pipeline.cache.counts),
            **self._memory(inner),
        }

    def _memory(self, stats: dict[str, Any]) -> dict[str, Any]:
        """Return where features are read from, as the source within tells, and the ranks that share rows."""
        peers, told = self._pipeline.cache.num_peers, stats.get("feature_memory")
        if not peers or told is None:
            return {}
        others = f"shared with {peers} other rank{'s' if peers > 1 else ''} of this host"
        return {"feature_memory": {**told, "decision": f"{told['decision'].removesuffix(')')}, {others})"}}

    def _rows(self, counts: RowCounts) -> dict[str, Any]:
        resident = self._pipeline.resident
        return {
            "wanted": counts.wanted + self._pipeline.resident_rows + self._pipeline.read_by_device,
            "device": self._pipeline.resident_rows,
            "host": self._pipeline.read_by_device,
            "device_bytes": 0 if resident is None else resident.nbytes,
            "cache": counts.cache,
            "ranks": counts.ranks,
            "memory": counts.memory,
            "disk": 0,
            "wire": 0,
            self._origin: counts.read,
            "bytes": counts.read_bytes,
            "seconds_waiting": self._rows_waited_s,
            "window": self._pipeline.window,
            "slots": self._pipeline.cache.num_slots,
            "peers": self._pipeline.cache.num_peers,
            "seconds_reading": self._pipeline.read_s,
        }

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise ValueError(f"the batches belong to process {self._pid}: build a loader in this process")
        if not self._end.alive:
            raise ValueError("the source is closed")

    def _next(self, deadline: float, timeout: float) -> Frame | Exception:
        """Return the next frame or failure. Takes skeletons meanwhile: two at most once it is there."""
        pipeline, taken = self._pipeline, 0
        while True:
            with pipeline.changed:
                if pipeline.broken is not None:
                    raise RuntimeError("a thread that fetches features ended") from pipeline.broken
                wants_more = self._wants_more()
                pipeline.complete = self._stalled or not self._to_take
                pipeline.wanted = not pipeline.ready
                pipeline.changed.notify_all()
                if pipeline.ready and (taken >= 2 or not wants_more):
                    return pipeline.take_ready()
                if not wants_more:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise self._late(timeout)
                    began = time.monotonic()
                    pipeline.changed.wait(left)
                    self._rows_waited_s += time.monotonic() - began
                    continue
            left = max(deadline - time.monotonic(), 0)
            try:
                self._take(min(left, _READY_S) if pipeline.ready else left)
            except TimeoutError:
                with pipeline.changed:
                    if pipeline.ready:
                        return pipeline.take_ready()
                raise
            taken += 1
            if self._stalled:  # As late as the deadline, maybe: the threads pass on what failed.
                deadline = max(deadline, time.monotonic() + _READY_S)

    def _wants_more(self) -> bool:
        """Whether to take another skeleton: two windows and the look-ahead are not there yet."""
        if self._stalled or not self._to_take:
            return False
        pipeline = self._pipeline
        fit = pipeline.skeleton_bytes // max(self._skeleton_size, 1)
        return pipeline.held < max(min(fit, _MAX_SKELETONS), 2 * pipeline.window, FRAMES_AHEAD)

    def _take(self, timeout: float) -> None:
        """Take the next skeleton, or the failure of a batch."""
        pipeline = self._pipeline
        item: Skeleton | Exception
        try:
            frame = self._inner.receive(timeout)
        except (StorageUnavailable, WorkerDied) as error:
            self._stalled = True  # Nothing was consumed: tell when the batches before it are handed out.
            item = error
        except (SamplingError, FormatError) as error:
            self._to_take -= 1
            item = error
        else:
            self._to_take -= 1
            # Copied, so that its slot is free: many skeletons are kept.
            skeleton = Frame(frame.buffer[: frame.nbytes].copy(), frame.layout, frame.served_by)
            if not self._skeleton_size and self._batch_bytes is not None:
                self._make_room(pipeline.completion.layout(skeleton).nbytes, self._batch_bytes)
            self._skeleton_size = max(self._skeleton_size, skeleton.nbytes)
            places = pipeline.completion.places(skeleton)
            split = {} if pipeline.resident is None else pipeline.resident.split(places)
            carried = {kind: each.carried for kind, each in split.items()}
            item = Skeleton(skeleton, pipeline.cache.to_cache({**places, **carried}), split)
        with pipeline.changed:
            pipeline.waiting.append(item)
            pipeline.changed.notify_all()

    def _make_room(self, frame_bytes: int, batch_bytes: int) -> None:
        """Leave room for frames, now that the size of one is known. Called before any window."""
        pipeline = self._pipeline
        count = FRAMES_AHEAD + FRAMES_IN_USE
        while frame_bytes * count > batch_bytes and pipeline.frames_ahead:
            pipeline.frames_ahead -= 1
            count = pipeline.frames_ahead + FRAMES_IN_USE if pipeline.frames_ahead else _FRAMES_AT_LEAST
        pipeline.cache.leave(max(frame_bytes * count - batch_bytes, 0))

    def _late(self, timeout: float) -> Exception:
        """Return the error of a wait in vain. Rows are read on: nothing was consumed."""
        pipeline = self._pipeline
        doing = f"reading rows of {pipeline.window} batches" if pipeline.under_way else "writing frames"
        late = f"no batch within {timeout:g} s: {doing} ({self._origin}), {pipeline.held} batches are sampled"
        return StorageUnavailable(f"{pipeline.fault}; {late}") if pipeline.fault else TimeoutError(late)


def local_source(open_inner: Callable[[], BatchSource], graph: Graph, request: SourceRequest) -> BatchSource:
    """Return a source whose features are read from ``graph``, as ``request.memory`` says, or by the device.

    ``open_inner`` returns a source of frames with deferred features. A source of a single batch has no cache:
    no row of it would be wanted again.
    """
    readers, degrees = _readers_here(graph, request), _degrees(graph, request)
    frame = request.plan.frame(graph.schema)
    resident = _resident_rows(graph.schema, request, readers, degrees) if request.has_device_memory else None
    if resident is not None and resident.holds_all and resident.fill():
        return ResidentSource(open_inner(), resident, frame)
    return _windows(
        open_inner(),
        graph.schema,
        request,
        readers,
        origin="disk",
        degrees=degrees,
        resident=resident,
        graph_digest=graph.manifest.digest,
    )


def host_windows(
    inner: BatchSource, graph: Graph, request: SourceRequest, store: PartitionedStore
) -> WindowedSource:
    """Return a source whose features are read from this host, which holds ``graph``, and from other hosts.

    ``inner`` delivers frames with deferred features. ``store`` is used by this source only, and closed with
    it. Rows that it holds on this host take no memory of the cache.
    """
    columns = columns_with_bytes(graph.schema, request.plan.columns)
    readers = {kind: OwnerRows(store, kind, names) for kind, names in columns}
    return _windows(
        inner,
        graph.schema,
        request,
        readers,
        here=readers,
        origin="wire",
        degrees=_degrees(graph, request),
        wire=store.wire,
        graph_digest=graph.manifest.digest,
    )


def owner_windows(
    inner: BatchSource,
    schema: GraphSchema,
    request: SourceRequest,
    store: PartitionedStore,
    *,
    graph_digest: str,
) -> WindowedSource:
    """Return a source whose features are read from their owners: hosts or storage servers.

    ``inner`` delivers frames with deferred features. ``store`` is closed with the source. No edges lie on
    this host: ``cache_policy="degree"`` is ``"none"``.
    """
    columns = columns_with_bytes(schema, request.plan.columns)
    readers = {kind: OwnerRows(store, kind, names) for kind, names in columns}
    return _windows(inner, schema, request, readers, origin="wire", graph_digest=graph_digest)


def _degrees(graph: Graph, request: SourceRequest) -> dict[Kind, Bytes]:
    """Return how often edges of this host refer to nodes of the types to be ranked, where the policy asks."""
    assert request.memory is not None
    if request.features.cache_policy != "degree":
        return {}
    columns = columns_with_bytes(graph.schema, request.plan.columns)
    ranked = [kind for kind, _ in columns if request.has_device_memory or kind in request.memory.cached]
    return {kind: reference_counts(graph, kind) for kind in ranked if isinstance(kind, str)}


def _windows(
    inner: BatchSource,
    schema: GraphSchema,
    request: SourceRequest,
    readers: Mapping[Kind, RowReader],
    *,
    origin: str,
    graph_digest: str,
    here: Mapping[Kind, OwnerRows] | None = None,
    degrees: Mapping[Kind, Bytes] | None = None,
    resident: ResidentRows | None = None,
    wire: Callable[[], WireCounts] = WireCounts,
) -> WindowedSource:
    plan, memory = request.plan, request.memory
    assert memory is not None
    nbytes = memory.share if request.schedule.num_batches > 1 else 0
    skeleton_bytes = nbytes // _SKELETON_SHARE
    cached = cached_columns(
        schema,
        plan.columns,
        readers,
        mapped=readers.keys() - memory.cached,
        here=here,
        policy=request.features.cache_policy,
        degrees=degrees,
    )
    if resident is None and request.has_device_memory:
        resident = _resident_rows(schema, request, readers, degrees)
    return WindowedSource(
        inner,
        Completion(schema, plan, values=request.values),
        FeatureCache(cached, nbytes - skeleton_bytes, ranks=_ranks_of(request, graph_digest)),
        window=request.features.window if memory.cached else 1,
        channel_bytes=request.workers.frame_bytes(ranks=request.topology.local_world_size),
        skeleton_bytes=skeleton_bytes,
        batch_bytes=memory.batch_bytes,
        timeout_s=2 * request.timeout_s,  # The trainer's own wait ends before, and says why.
        origin=origin,
        wire=wire,
        resident=resident,
        spans=request.spans,
    )


def _read_by_device(
    request: SourceRequest, frame: FrameSchema, readers: Mapping[Kind, RowReader]
) -> list[Kind]:
    """Return the types whose rows the device reads from the host's memory, where that was asked for."""
    if not request.features.device_reads_host:
        return []
    assert request.device is not None
    found, reasons = [], dict[str, list[str]]()
    for arrays in (*frame.nodes, *frame.edges):
        if (reader := readers.get(arrays.kind)) is None:
            continue
        reason = _why_not_read(request.device, arrays, reader)
        if reason is None:
            found.append(arrays.kind)
        else:
            reasons.setdefault(reason, []).append(type_name(arrays.kind))
    for reason, kinds in reasons.items():
        logger.warning(
            "feature_memory_device: batches bring the rows of %s, the device does not read them: %s",
            ", ".join(kinds),
            reason,
        )
    return found


def _why_not_read(device: DeviceMemory, arrays: TypeArrays, reader: RowReader) -> str | None:
    """Have the device read the rows of a type. Return why it does not, or ``None``."""
    if not isinstance(reader, MappedRows):
        return "they do not lie in the memory of this host"
    maps = reader.maps()
    parts = next(iter(maps.values()))
    if not isinstance(arrays.kind, str) and len(parts) > 1:
        return f"edges lie in {len(parts)} partitions"
    if (count := sum(map(len, parts))) > _MAX_PLACES:
        return f"{count} rows are more than 32-bit places name"
    return device.read_host(
        {each.name: maps[each.feature] for each in arrays.features if each.column.row_bytes}
    )


def _readers_here(graph: Graph, request: SourceRequest) -> dict[Kind, RowReader]:
    memory = request.memory
    assert memory is not None
    return {
        kind: (DiskRows if kind in memory.cached else MappedRows)(graph, kind, names)
        for kind, names in columns_with_bytes(graph.schema, request.plan.columns)
    }


def _resident_rows(
    schema: GraphSchema,
    request: SourceRequest,
    readers: Mapping[Kind, RowReader],
    degrees: Mapping[Kind, Bytes] | None = None,
) -> ResidentRows:
    assert request.device is not None
    return ResidentRows(
        request.device,
        request.plan.frame(schema),
        readers,
        {kind: nodes.count for kind, nodes in schema.nodes.items()},
        nbytes=request.features.device_bytes or 0,
        degrees=degrees or None,
        read_by_device=_read_by_device(request, request.plan.frame(schema), readers),
    )


def _ranks_of(request: SourceRequest, graph_digest: str) -> HostRanks | None:
    """Return the ranks of this host that share rows; ``None`` for one rank, and for a loader of one rank."""
    place = request.topology
    can_share = hasattr(os, "memfd_create")  # Linux.
    if request.group is None or request.alone or place.local_world_size == 1 or not can_share:
        return None
    return HostRanks(
        group=request.group.within(place.local_rank, place.local_world_size),
        host_index=place.host_index,
        loader=request.name,
        graph=graph_digest,
    )


def _end(pipeline: WindowThreads, inner: BatchSource, pid: int) -> None:
    """End the threads and the source within. In a forked child, both are the parent's: do nothing."""
    if os.getpid() == pid:
        pipeline.close()
        try:
            inner.close()
        finally:
            pipeline.join()
            if pipeline.resident is not None:
                pipeline.resident.close()  # No thread writes to the device any more.
