"""The frames of one source, for epochs that each keep their own place."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from gigl_loader.errors import SamplingError, StorageUnavailable, WorkerDied
from gigl_loader.loaders.input_times import without_past
from gigl_loader.resources import idle_seconds, naming_process_limit
from gigl_loader.sampling.khop import KHop
from gigl_loader.sampling.request import SEEDS_WITHOUT_PAST

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from gigl_loader.channel.frame import Frame
    from gigl_loader.graph.schema import EdgeType, GraphSchema
    from gigl_loader.loaders.dataset import Dataset
    from gigl_loader.loaders.transfer import FrameTensors, Transfer
    from gigl_loader.sampling.frame_schema import FrameSchema
    from gigl_loader.sampling.plan import BatchPlan, SamplerArguments
    from gigl_loader.sampling.schedule import Progress
    from gigl_loader.sampling.source import BatchSource, SourceRequest

_LOGGER = logging.getLogger(__name__)
_ORIGINS = ("device", "host", "cache", "ranks", "memory", "disk", "wire")
"""Of rows."""
_STEPS = ("copying", "collating", "transforming")
_STEP_SPANS = ("gigl.copy", "gigl.collate", "gigl.transform")


class BatchPipeline:
    """Brings frames to the device, collates them and applies the user's transform."""

    def __init__(self, transfer: Transfer, transform: Callable[[Any], Any] | None) -> None:
        self.transfer = transfer
        self._transform = transform
        self.seconds = dict.fromkeys(_STEPS, 0.0)
        """Spent in each step."""
        self.batches = 0
        """Batches made."""
        self.counted: Counter[str] = Counter()
        """Sums of the counters of their frames."""

    def make(
        self,
        frame: Frame,
        collate: Callable[[FrameTensors], Any],
        recording: AbstractContextManager[None] | None = None,
    ) -> Any:
        """Return the batch of a frame. Ends the span of the batch, where it has one.

        ``recording`` is entered before the frame is touched, and left when its batch is made.
        """
        if frame.span is None:
            with recording or nullcontext():
                return self._made(frame, collate)[0]
        with frame.span.ending() as span:
            with recording or nullcontext():
                batch, times = self._made(frame, collate)
            steps = _STEP_SPANS[: 3 if self._transform is not None else 2]
            for step, (began, ended) in zip(steps, itertools.pairwise(times), strict=False):
                span.record(step, began, ended)
            return batch

    def _made(self, frame: Frame, collate: Callable[[FrameTensors], Any]) -> tuple[Any, list[float]]:
        """Return the batch of a frame, and when each step began, and the last one ended."""
        times = [time.perf_counter()]
        tensors = self.transfer.load(frame)
        times.append(time.perf_counter())
        batch = collate(tensors)
        times.append(time.perf_counter())
        if self._transform is not None:
            batch = self._transform(batch)
        times.append(time.perf_counter())
        for step, (begin, end) in zip(_STEPS, itertools.pairwise(times), strict=True):
            self.seconds[step] += end - begin
        self.batches += 1
        self.counted.update(frame.counters)
        return batch, times

    def stats(self) -> dict[str, Any]:
        """Return the counters of batches, and seconds by step."""
        seconds = {f"seconds_{step}": value for step, value in self.seconds.items()}
        return {"batches": self.batches, **seconds, SEEDS_WITHOUT_PAST: self.counted[SEEDS_WITHOUT_PAST]}


class RowCounter:
    """Rows of features in the frames of a plan, where no source counts them."""

    def __init__(self, frame: FrameSchema, origin: Literal["memory", "wire"] | None) -> None:
        """``origin`` of all rows. ``None``: not known."""
        self._types = [
            (each.arrays[0].name, sum(array.column.row_bytes for array in each.features))
            for each in (*frame.nodes, *frame.edges)
            if each.features
        ]
        self._origin = origin
        self._rows = self._bytes = 0

    @classmethod
    def of(cls, dataset: Dataset, frame: FrameSchema) -> RowCounter:
        """Return the counter of a loader: rows lie on this host, on servers, or on several hosts."""
        if getattr(dataset, "_is_on_this_host", False):
            return cls(frame, "memory")
        return cls(frame, "wire" if dataset.num_servers else None)

    def add(self, frame: Frame) -> None:
        """Count the rows of a frame. It costs two additions a type."""
        for name, row_bytes in self._types:
            count = frame.layout.specs[name].shape[0]
            self._rows += count
            self._bytes += count * row_bytes

    def read(self) -> dict[str, Any]:
        """Return rows wanted, rows by origin, bytes of rows that were in no cache, and seconds of waiting."""
        rows = {origin: self._rows if origin == self._origin else 0 for origin in _ORIGINS}
        return {"wanted": self._rows, **rows, "bytes": self._bytes, "seconds_waiting": 0.0}


_FEW = 4
"""Seeds. So many without a neighbour, and no other before them, are hardly isolated nodes among others."""
_MAX_TYPES = 5


class SeedWatch:
    """Counts the seeds of batches that have no edge, and warns once where no batch has one."""

    def __init__(self, name: str, plan: BatchPlan, arguments: SamplerArguments, schema: GraphSchema) -> None:
        """``name``: of the loader. Looks at batches that are drawn hop by hop."""
        hops = plan.sampler if isinstance(plan.sampler, KHop) else getattr(plan.sampler, "hops", None)
        edges = plan.frame(schema).edges if isinstance(hops, KHop) else ()
        fanouts = hops.num_neighbors if isinstance(hops, KHop) else {}
        asked = [each for each in edges if any(fanouts[cast("EdgeType", each.kind)])]
        self._name, self._arguments, self._schema = name, arguments, schema
        self._types = [each.kind for each in asked]
        self._excludes = bool(
            getattr(plan.sampler, "excluded", ()) or getattr(plan.sampler, "exclude", False)
        )
        self._is_timed = arguments.time_attr is not None  # The sampler then counts what has no past.
        self._rows = [] if self._is_timed else [f"{each.prefix}/rows" for each in asked]
        self._seeds = self._without = 0
        self._has_warned = False

    def look(self, frame: Frame) -> None:
        """Look at a batch that was delivered. It costs an addition for each edge type."""
        if self._rows:
            specs = frame.layout.specs
            num_seeds = specs["input_id"].shape[0]
            self._seeds += num_seeds
            self._without += 0 if any(specs[name].shape[0] for name in self._rows) else num_seeds
            if self._without >= _FEW:
                self._warn()
        elif self._is_timed and not self._has_warned and frame.counters.get(SEEDS_WITHOUT_PAST):
            self._has_warned = True
            _LOGGER.warning("%s: %s", self._name, without_past(self._arguments, self._schema))

    def end_epoch(self) -> None:
        """Judge also a few seeds, where there are no more."""
        if self._without:
            self._warn()

    def stats(self) -> dict[str, Any]:
        """Return the counter."""
        return {"seeds_without_neighbours": self._without}

    def _warn(self) -> None:
        """Warn, once, where no seed that was delivered has a neighbour."""
        if self._has_warned or self._without < self._seeds:
            return
        self._has_warned = True
        more = ", ..." if len(self._types) > _MAX_TYPES else ""
        towards = "from" if self._schema.edge_dir == "out" else "to"
        besides = ", besides excluded targets," if self._excludes else ""
        _LOGGER.warning(
            "%s: no edge leads %s a seed, of %d so far%s by the edge types that num_neighbors asks for "
            "(%s%s): messages flow from source to destination; where edges stand for both directions, add "
            "reverses to the graph (T.ToUndirected(), gigl-loader partition --undirected or --reverse). "
            "stats()['seeds_without_neighbours'] counts the seeds of batches without an edge",
            *(self._name, towards, self._seeds, besides),
            *(", ".join(map(str, self._types[:_MAX_TYPES])), more),
        )


_PERIOD_S = 10.0
_LEAST_BATCHES = 20
_MUCH_WAITING = 0.3
"""Share of the time."""


class IdleCores:
    """Looks once, after some seconds of batches, and says where more workers would help."""

    def __init__(
        self,
        name: str,
        *,
        num_workers: int,
        most: int,
        clock: Callable[[], float] = time.perf_counter,
        idle: Callable[[], float] = idle_seconds,
    ) -> None:
        """``name``: of the loader. ``most``: workers that this host has cores for, 0 for a graph store."""
        self._name, self._num_workers, self._most = name, num_workers, most
        self._clock, self._idle = clock, idle
        self._batches = 0
        self._is_done = most <= num_workers
        self.advice = ""
        """For ``stats``. Empty where there is none."""

    def look(self, seconds_waiting: float) -> None:
        """Look at the trainer after a batch. ``seconds_waiting``: so far, over all batches."""
        if self._is_done:
            return
        self._batches += 1
        if self._batches == 1:  # Workers start before it.
            self._began = self._clock(), seconds_waiting, self._idle()
            return
        began, waited, idle = self._began
        seconds = self._clock() - began
        if self._batches <= _LEAST_BATCHES or seconds < _PERIOD_S:
            return
        self._is_done = True
        share, cores = (seconds_waiting - waited) / seconds, (self._idle() - idle) / seconds
        if share >= _MUCH_WAITING and cores >= 1:
            self.advice = (
                f"waiting {share:.0%} of the time while {cores:.1f} cores idle: num_workers={self._most} "
                f'("auto") would use them, in place of {self._num_workers}'
            )
            _LOGGER.warning("%s: %s", self._name, self.advice)


class EpochIterator(Iterator[Any]):
    """One epoch of a loader, at its own place."""

    def __init__(self, next_batch: Callable[[], Any]) -> None:
        self._next_batch = next_batch

    def __next__(self) -> Any:
        return self._next_batch()


class FrameStream:
    """Frames of a source, for iterators that are each in an epoch of their own, at their own place.

    A source samples ahead in one epoch; turning to another drops what it has ahead.
    """

    def __init__(
        self,
        open_source: Callable[[SourceRequest], BatchSource],
        request: SourceRequest,
        *,
        idle_s: float | None = None,
    ) -> None:
        """The source is closed with the stream, and when the stream is collected.

        With ``idle_s`` it is also closed when no batch was requested for so many seconds, and opened again
        by the next request.
        """
        self._open_source = partial(open_source, request)
        self._option = f"num_workers={request.num_workers}"
        self._idle_s = idle_s
        self.spans = request.spans
        self._in_use = threading.Lock()
        """Held by the thread that uses the source, and by the one that closes it for being idle."""
        self.seconds_waiting = 0.0
        """For frames, in ``receive``."""
        self.is_open = True
        self._progress: Progress | None = None
        self._to_come = 0
        """Batches that the source has yet to deliver of its epoch, as it was started."""
        self._open()

    def close(self) -> None:
        """Close the source. Closing twice is fine."""
        self.is_open = False
        self._close()
        if self.spans is not None:
            self.spans.leave()

    def stats(self) -> dict[str, Any]:
        """Return the counters of the latest source, also when it is closed, and seconds of waiting for it."""
        return {**self.source.stats(), "seconds_waiting": self.seconds_waiting}

    def turn_to(self, progress: Progress) -> None:
        """Let the source sample ahead in this epoch, from the first batch that was not given."""
        with self._in_use, naming_process_limit(self._option):
            self._turn_to(progress)

    def _turn_to(self, progress: Progress) -> None:
        self._last_used = time.monotonic()
        if self.is_open and not self._close.alive:
            self._open()
        if self._progress is not progress:
            self._progress = None  # If this is interrupted, the source is in an unknown epoch.
            if self.spans is not None:
                self.spans.leave()
            self.source.start_epoch(progress.epoch, progress.first, progress.origin)
            self._progress = progress
            self._to_come = self.source.num_batches - progress.first

    def lose_place(self) -> None:
        """Start the epoch again at the first batch not given: the last one received may be lost."""
        self._progress = None

    def receive(self, progress: Progress, timeout: float) -> Frame | None:
        """Return the next frame of an epoch that the user was not given; ``None`` at its end.

        ``SamplingError`` for a batch that failed: the next call goes on after it. But after
        ``StorageUnavailable``, and whatever is no ``SamplingError``, the next call requests the same batch
        again.
        """
        began = time.perf_counter()
        try:
            with self._in_use:
                frame = self._receive(progress, timeout)
        except (BlockingIOError, RuntimeError) as error:
            with naming_process_limit(self._option):
                raise error
        finally:
            self._last_used = time.monotonic()
            waited = time.perf_counter() - began
            self.seconds_waiting += waited
        if frame is not None and self.spans is not None:
            frame.span = self.spans.take(frame.epoch, frame.batch, began)
        if frame is not None:
            _LOGGER.debug("batch %d of epoch %d after %.1f ms", frame.batch, progress.epoch, 1e3 * waited)
        return frame

    def _receive(self, progress: Progress, timeout: float) -> Frame | None:
        self._turn_to(progress)
        try:
            while self._to_come:
                frame = self.source.receive(timeout)
                self._to_come -= 1
                if progress.lacks(frame.batch):
                    return frame
        except (WorkerDied, TimeoutError):
            raise  # Nothing was consumed.
        except StorageUnavailable:
            # Batches ahead of this one need the same host: all are requested again.
            self.lose_place()
            raise
        except SamplingError:
            self._to_come -= 1
            raise
        except BaseException:
            self.lose_place()
            raise
        return None

    def _open(self) -> None:
        with naming_process_limit(self._option):
            self.source = source = self._open_source()
        ended = threading.Event()
        self._close = weakref.finalize(self, close_source, source, os.getpid(), ended)
        self._progress = None
        self._last_used = time.monotonic()
        if self._idle_s is not None:
            thread = threading.Thread(
                target=_close_when_idle, args=(weakref.ref(self), ended), name="idle loader", daemon=True
            )
            with naming_process_limit(self._option):
                thread.start()

    def _seconds_to_idle(self) -> float:
        """Return how long the source must still be unused to be idle; 0 once it was closed for that."""
        assert self._idle_s is not None
        left = self._last_used + self._idle_s - time.monotonic()
        if left > 0:
            return left
        if not self._in_use.acquire(blocking=False):
            return self._idle_s
        try:
            if self._last_used + self._idle_s > time.monotonic():
                return self._idle_s
            self._close()
        finally:
            self._in_use.release()
        _LOGGER.info("idle for %g s: what makes batches was ended until the next is asked for", self._idle_s)
        return 0


def _close_when_idle(stream_ref: weakref.ref[FrameStream], ended: threading.Event) -> None:
    """Close the source of a stream once it is idle. Ends with the source."""
    left = 0.0
    while not ended.wait(left):
        # No reference is kept while waiting: it would keep the stream, and with it the source.
        stream = stream_ref()
        if stream is None:
            return
        left = stream._seconds_to_idle()
        del stream


def close_source(source: BatchSource, owner: int, ended: threading.Event | None = None) -> None:
    """Close a source in the process that opened it, ``owner``, and set ``ended``."""
    if ended is not None:
        ended.set()
    # A forked child that exits runs the finalizers it inherited: the processes are not its to end.
    if os.getpid() == owner:
        source.close()
