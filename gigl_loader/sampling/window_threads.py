"""Threads of a windowed source: one fetches the rows of windows, one writes frames.

The trainer's thread puts skeletons into ``waiting`` and takes frames from ``ready``. All state is guarded by
the condition ``changed``; no thread holds it while it reads rows or writes a frame.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gigl_loader.channel.frame import Failure, Frame
from gigl_loader.errors import StorageUnavailable, add_note, strip_traceback
from gigl_loader.retry import FOREVER, attempts, retried
from gigl_loader.sampling.resident import carried_only

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gigl_loader.arrays import Bytes
    from gigl_loader.channel.ring import SlotPool
    from gigl_loader.sampling.feature_cache import FeatureCache, Places, Window
    from gigl_loader.sampling.frame_writer import Completion
    from gigl_loader.sampling.resident import ResidentRows, Split
    from gigl_loader.sampling.store import GatherRequest
    from gigl_loader.tracing import BatchSpans

_MAX_WINDOW = 64
FRAMES_AHEAD = 2
"""Whole frames that lie ready: one is copied to the device while the next is written."""
_LOW_PRESSURE = 0.6
"""Below this share of slots in use, a window of twice as many batches fits beside another. 0.4 gives 0.8
times the batches a second (62 % of a graph in memory)."""
_SHARED_WINDOWS = 2
"""Windows in flight where rows are copied from other ranks: such rows take no slots, which else bound them.
As many as fit let 0.45 of the rows cross the network (windows of 4, 2 ranks, 20 % of a graph); two, 0.31."""
_TRIES = 3
"""Of a frame whose rows are in files that are written to while it reads them."""
_JOIN_S = 5.0


@dataclass(slots=True, eq=False)
class Skeleton:
    """A batch whose features are not there yet."""

    frame: Frame
    places: Places
    """Of the rows that the frame carries."""
    split: Split
    """Rows of types of which some are on the device."""
    window: _OpenWindow | None = None
    number: int = 0
    """Of the batch in its window."""


@dataclass(slots=True, eq=False)
class _OpenWindow:
    """A window whose rows are in the cache, until its last frame is written."""

    planned: Window
    left: int
    """Frames that are not written yet."""


class WindowThreads:
    """The two threads, and what they share with the trainer's.

    They do not refer to the source, which can therefore be collected.
    """

    def __init__(
        self,
        completion: Completion,
        cache: FeatureCache,
        slots: SlotPool,
        *,
        window: int | None,
        skeleton_bytes: int,
        timeout_s: float,
        resident: ResidentRows | None = None,
        spans: BatchSpans | None = None,
    ) -> None:
        self.resident = resident
        self._spans = spans
        self.resident_rows = self.read_by_device = 0
        """Rows of batches that were on the device, and that it reads from the host's memory."""
        self.completion = completion
        self.cache = cache
        self.slots = slots
        self.most = min(window or _MAX_WINDOW, _MAX_WINDOW)
        self.window = 1
        """Batches of the next window, at most."""
        self.frames_ahead = FRAMES_AHEAD
        """0: a frame is written when the trainer waits for it."""
        self.wanted = False
        """The trainer waits for a frame."""
        self.skeleton_bytes = skeleton_bytes
        self.timeout_s = timeout_s
        self.changed = threading.Condition()
        self.epoch = 0
        self.generation = 0
        """Of the epoch under way: what belongs to an earlier one is dropped."""
        self.complete = False
        """No skeleton will come before a batch is handed out."""
        self.waiting: deque[Skeleton | Exception] = deque()
        """Skeletons in no window yet, and failures of batches, in their order."""
        self.fetched: deque[Skeleton | Exception] = deque()
        self.told = True
        """The trainer took the last failure after which its batch is tried again: frames may be written."""
        self.told_at = 0.0
        """When it took that failure: owners have the timeout again from then."""
        self.refused = False
        """An owner of rows did not answer: no window is begun until the trainer was told."""
        self.ready: deque[Frame | Exception] = deque()
        self._made_of: deque[Skeleton | Exception] = deque()
        """Of each of ``ready``."""
        self._made_since = cache.look()
        """Status of the files of rows before those of ``ready`` were read."""
        self.under_way = 0
        """Batches that a thread works at."""
        self.open: list[_OpenWindow] = []
        self.closed = False
        self.fault: str = ""
        """Why rows that are read now did not come so far."""
        self.broken: BaseException | None = None
        """A thread ended by a defect."""
        self.fresh = 0
        """Frames in memory of their own: no slot was free."""
        self.cpu_ns = {"fetch": 0, "completion": 0}
        self.read_s = 0.0
        self.threads = [
            threading.Thread(target=self._run, args=(work, name), name=f"{name} features", daemon=True)
            for name, work in (("fetch", self._fetch_windows), ("completion", self._complete_frames))
        ]
        for thread in self.threads:
            thread.start()

    def start_epoch(self, epoch: int) -> None:
        with self.changed:
            self.generation += 1
            self.epoch = epoch
            self.complete = self.refused = self.wanted = False
            self.told = True
            self.waiting.clear()
            self.fetched.clear()
            self.ready.clear()
            self._made_of.clear()
            for window in self.open:
                window.left = 0
            self.changed.notify_all()

    @property
    def held(self) -> int:
        """Batches that were taken from the source within, and not handed out."""
        return len(self.waiting) + len(self.fetched) + len(self.ready) + self.under_way

    def take_ready(self) -> Frame | Exception:
        """Take the next frame or failure. Called with the lock, where there is one."""
        self.wanted = False
        self.changed.notify_all()
        ready = self.ready.popleft()
        self._made_of.popleft()
        if isinstance(ready, StorageUnavailable):
            self.refused, self.told, self.told_at = False, True, time.monotonic()
            if self.fetched and isinstance(self.fetched[-1], StorageUnavailable):
                self.fetched.pop()  # The other thread asked the same owner: its batches wait to be fetched.
        return ready

    def close(self) -> None:
        with self.changed:
            self.closed = True
            # A failure refers to the frames that raised it, and these to this object.
            for each in (self.waiting, self.fetched, self.ready, self._made_of):
                each.clear()
            self.changed.notify_all()
        if self.resident is not None:
            self.resident.close()
        self.cache.close()

    def join(self) -> None:
        """Wait until the threads end. One whose disk hangs keeps what it reads into, and outlives this."""
        deadline = time.monotonic() + _JOIN_S
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0))
        self.cache.join()

    def _run(self, work: Callable[[], None], name: str) -> None:
        try:
            work()
        except BaseException as error:
            with self.changed:
                self.broken = self.broken or error
                self.changed.notify_all()

    # The fetch thread

    def _fetch_windows(self) -> None:
        while (taken := self._take_window()) is not None:
            generation, items, ahead = taken
            if self.resident is not None:
                self.resident.advance()
            results, left = self._fetched(generation, items, ahead)
            with self.changed:
                self.cpu_ns["fetch"] = time.thread_time_ns()
                self.under_way -= len(items)
                if generation == self.generation and not self.closed:
                    self.fetched.extend(results)
                    self.waiting.extendleft(reversed(left))
                    self.refused = bool(results) and isinstance(results[-1], StorageUnavailable)
                self.changed.notify_all()

    def _take_window(self) -> tuple[int, list[Skeleton | Exception], list[Skeleton]] | None:
        """Wait for the skeletons of a window. ``None``: the source was closed."""
        with self.changed:
            while not self.closed and not self._is_due():
                self.changed.wait()
            if self.closed:
                return None
            taken = [self.waiting.popleft() for _ in range(min(self.window, len(self.waiting)))]
            self.under_way += len(taken)
            ahead = [each for each in self.waiting if isinstance(each, Skeleton)]
            return self.generation, taken, ahead

    def _is_due(self) -> bool:
        """Whether to begin a window: it is full, or nobody has anything to do before it."""
        if not self.waiting or self.refused:
            return False
        if len(self.fetched) + len(self.ready) < max(self.frames_ahead, 1):
            return True
        if self.cache.num_peers and sum(each.left > 0 for each in self.open) >= _SHARED_WINDOWS:
            return False
        return self.complete or len(self.waiting) >= self.window

    def _fetched(
        self, generation: int, items: Sequence[Skeleton | Exception], ahead: Sequence[Skeleton]
    ) -> tuple[list[Skeleton | Exception], list[Skeleton | Exception]]:
        """Have the rows of a window in the cache; where that fails, the rows of each batch alone.

        Return the batches that can be completed, or have failed, and after an owner that did not answer the
        batches that remain to be fetched.
        """
        skeletons = deque(each for each in items if isinstance(each, Skeleton))
        failed: dict[int, Exception] = {}
        for each in skeletons:
            self.cache.count(each.places)
        size = self.window
        while skeletons and generation == self.generation and not self.closed:
            batches = list(skeletons)[:size]
            planned = self._planned(batches, [*list(skeletons)[size:], *ahead])
            first = items.index(batches[0])
            if planned is None and first:  # Batches before hold slots until they are completed.
                return [failed.get(id(each), each) for each in items[:first]], [*items[first:]]
            if planned is None:
                size = self._make_room(generation, len(batches))
                continue
            began = time.monotonic()
            error = self._error_of(generation, partial(self.cache.fetch, planned))
            self.read_s += time.monotonic() - began
            if error is None:
                self._begun(generation, planned, batches)
            else:
                self.cache.forget(planned)
                if len(batches) > 1 and not isinstance(error, StorageUnavailable):
                    size = 1  # Find the batch that fails.
                    continue
                failure = self._failure(error, batches[0])
                if isinstance(error, StorageUnavailable):
                    return [*(failed.get(id(each), each) for each in items[:first]), failure], [
                        *items[first:]
                    ]
                failed[id(batches[0])] = failure
            for _ in batches:
                skeletons.popleft()
        return [failed.get(id(each), each) for each in items], []

    def _planned(self, batches: Sequence[Skeleton], after: Sequence[Skeleton]) -> Window | None:
        """Release the windows that are done, and plan the next one; ``None`` where it does not fit.

        A batch has no slots for some of its rows where one before it leaves too few, but waits for two.
        """
        with self.changed:
            done = [each for each in self.open if not each.left]
            self.open = [each for each in self.open if each.left]
            in_part = len(batches) == 1 and len(self.open) <= 1
        for ended in done:
            self.cache.release(ended.planned)
        return self.cache.plan(
            [each.places for each in batches], [each.places for each in after], partial=in_part
        )

    def _make_room(self, generation: int, batches: int) -> int:
        """Wait until an earlier window is done; without one, make windows smaller. Return their size."""
        with self.changed:
            if not self.open:
                self.window = self.most = max(batches // 2, 1)
                return self.window
            while all(each.left for each in self.open) and generation == self.generation and not self.closed:
                self.changed.wait()
        return batches

    def _begun(self, generation: int, planned: Window, batches: Sequence[Skeleton]) -> None:
        """Open a window whose rows are in the cache, and size the next one."""
        window = _OpenWindow(planned, len(batches))
        for number, each in enumerate(batches):
            each.window, each.number = window, number
        with self.changed:
            if generation != self.generation:
                window.left = 0
            self.open.append(window)
            if len(batches) == self.window and planned.pressure < _LOW_PRESSURE:
                self.window = min(2 * self.window, self.most)

    def _error_of(self, generation: int, read: Callable[[], None]) -> Exception | None:
        """Return what a read raises, its traceback as a note: frames would keep this object alive.

        An owner that does not answer is tried again until the timeout.
        """
        began = time.monotonic()

        def wait(pause: float) -> bool:  # The deadline moves: ``told_at`` does.
            late = time.monotonic() + pause - max(began, self.told_at) > self.timeout_s
            if late or generation != self.generation or self.closed:
                return True
            time.sleep(pause)
            return False

        def note(error: Exception) -> None:
            self.fault = str(error)

        try:
            retried(read, StorageUnavailable, attempts(FOREVER, wait=wait), failed=note)
        except Exception as error:
            return _with_note(error)
        self.fault = ""
        return None

    def _failure(self, error: Exception, skeleton: Skeleton) -> Exception:
        """Return the ``SamplingError`` of a batch whose features cannot be had."""
        record = Failure.of(error, epoch=self.epoch, batch=skeleton.frame.batch, worker=None)
        failure = record.error()
        failure.__cause__ = error
        return failure

    # The completion thread

    def _complete_frames(self) -> None:
        while (taken := self._take_fetched()) is not None:
            generation, item = taken
            if self._take_back(item):
                continue
            result = item if isinstance(item, Exception) else self._completed(generation, item)
            with self.changed:
                self.cpu_ns["completion"] = time.thread_time_ns()
                self.under_way -= 1
                if generation == self.generation and not self.closed:
                    self.ready.append(result)
                    self._made_of.append(item)
                    self.told = not isinstance(result, StorageUnavailable)
                if not self.told and isinstance(item, Skeleton):
                    self.fetched.appendleft(item)
                elif isinstance(item, Skeleton) and item.window is not None and item.window.left:
                    item.window.left -= 1
                self.changed.notify_all()
            del item, result, taken

    def _take_fetched(self) -> tuple[int, Skeleton | Exception] | None:
        with self.changed:
            while not self.closed and not (
                self.fetched and self.told and len(self.ready) < max(self.frames_ahead, self.wanted)
            ):
                self.changed.wait()
            if self.closed:
                return None
            self.under_way += 1
            return self.generation, self.fetched.popleft()

    def _take_back(self, item: Skeleton | Exception) -> bool:
        """Write frames again that nobody has taken, where files of rows were written to meanwhile."""
        now = self.cache.look()
        if now == self._made_since:
            return False
        with self.changed:
            self._made_since = now
            if not self.ready or not self.told:
                return False
            self.fetched.extendleft(reversed([*self._made_of, item]))
            self.ready.clear()
            self._made_of.clear()
            self.under_way -= 1
        return True

    def _completed(self, generation: int, skeleton: Skeleton) -> Frame | Exception:
        layout, split = self.completion.layout(skeleton.frame), skeleton.split
        if self.resident is not None:
            layout = self.resident.layout(layout, split)
        buffer = self._memory(layout.nbytes)
        assert skeleton.window is not None
        planned = skeleton.window.planned
        began = time.perf_counter()
        for _ in range(_TRIES):
            now = self.cache.look()
            # Slots have rows of before files were written to: all are read again, for this frame alone.
            slots = planned.slots[skeleton.number] if planned.written == now else {}
            source = _FromCache(self.cache, slots, split)
            write = partial(self.completion.write, skeleton.frame, layout, buffer, source)
            error = self._error_of(generation, write)
            if error is not None or self.cache.look() == now:
                break
        if self._spans is not None and generation == self.generation:
            span = self._spans.begin(skeleton.frame.epoch, skeleton.frame.batch)
            span.record("gigl.gather", began, time.perf_counter())
        if error is not None:
            return self._failure(error, skeleton)
        if self.resident is not None:
            self.resident.write(split, layout, buffer)
            self.resident_rows += sum(each.num_resident for each in split.values())
            self.read_by_device += sum(each.num_read for each in split.values())
        return Frame(buffer, layout, skeleton.frame.served_by)

    def _memory(self, nbytes: int) -> Bytes:
        slot = self.slots.take(nbytes)
        if slot is None:
            self.fresh += 1
            return np.empty(nbytes, np.uint8)
        return self.slots.lend(slot, nbytes)


@dataclass(frozen=True, slots=True)
class _FromCache:
    """Features of one batch, as a ``FeatureSource``."""

    cache: FeatureCache
    slots: Any
    split: Split

    def gather(self, wants: Sequence[GatherRequest]) -> None:
        self.cache.gather(self.slots, carried_only(wants, self.split))


def _with_note(error: Exception) -> Exception:
    """Return an error with its traceback as a note."""
    add_note(error, "".join(traceback.format_exception(error)))
    return strip_traceback(error)
