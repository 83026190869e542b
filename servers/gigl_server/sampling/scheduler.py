"""Scheduler of requests, from their arrival to their result."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from gigl_loader.rpc.grants import EVERYTHING
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_server.quotas import has_quota
from gigl_server.sampling.fair_queue import FairQueue
from gigl_server.sampling.frame_maker import MadeFrame
from gigl_server.sampling.frame_shares import FrameShares
from gigl_server.sessions.channel import SKIPPED, ChannelTotals, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gigl_loader.arrays import Bytes
    from gigl_loader.rpc.grants import Grant
    from gigl_server.frames.buffer_pool import BufferPool
    from gigl_server.frames.store import FrameStore
    from gigl_server.identity import Identity
    from gigl_server.limits import Limits
    from gigl_server.sampling.scratch import Scratch
    from gigl_server.sessions.channel import Channel, SampleTask

__all__ = ["Scheduler"]

_LOOK_AGAIN_S = 0.02  # Polled: finalizers that free memory must not take locks, and so cannot notify.


class Scheduler:
    """Fair scheduler between the control port, which submits requests, and the sampling threads.

    ``done`` of a request is called once, outside the lock, unless the request was abandoned.
    """

    def __init__(
        self,
        lock: threading.Lock,
        frames: FrameStore,
        memory: BufferPool,
        *,
        limits: Limits,
        scratch: Scratch,
        clock: Callable[[], float],
        grant_of: Callable[[Identity], Grant] = lambda _: EVERYTHING,
    ) -> None:
        """``lock`` guards the channels. ``grant_of`` returns the quotas of an owner's token."""
        self.totals = ChannelTotals()
        self.busy = 0
        """Number of threads that sample now."""
        self.last_turn = clock()
        """When a thread last began a batch."""
        self._lock = lock
        self._work = threading.Condition(lock)
        self._frames = frames
        self._memory = memory
        self._limits = limits
        self._clock = clock
        self._turns = FairQueue(clock, lambda owner: grant_of(owner).share)
        self._scratch = scratch
        self._shares = FrameShares(frames, memory, grant_of)
        self._nbytes: Counter[Identity] = Counter()
        self._refusal: Refusal | None = None
        self._closed = False

    @property
    def request_bytes(self) -> int:
        """Bytes of the requests that have no result yet."""
        with self._lock:
            return self._nbytes.total()

    def submit(self, task: SampleTask) -> None:
        """Queue a request. A newer fence ends older requests. ``Refusal`` beyond a limit or after the end."""
        ended: list[SampleTask] = []
        try:
            with self._lock:
                self._check_open(task.channel)
                task.channel.last_request = self._clock()
                ended += self._move_fence(task.channel, task.fence)
                if task.fence == task.channel.fence:
                    self._check_room(task)
                    self._nbytes[task.channel.owner] += task.nbytes
                    task.channel.queue.append(task)
                    self._turns.enter(task.channel)
                    self._work.notify()
                else:
                    ended.append(task)
        finally:  # Also when the new request is refused: older ones must get their result.
            _settle(ended, SKIPPED)

    def abandon(self, task: SampleTask) -> None:
        """Drop a request whose caller is gone. It is not sampled if no thread has begun it."""
        with self._lock:
            task.abandoned = True
            if task in task.channel.queue:
                task.channel.queue.remove(task)
                self._forget(task.channel, [task])
        if task.handle:
            self._frames.drop(task.handle)

    def next(self) -> SampleTask | None:
        """Wait for the next request to sample. ``None`` after ``close``."""
        with self._work:
            while not self._closed:
                task = self._turns.next(self._admission())
                if task is not None:
                    self._scratch.begin(task)
                    task.channel.running.add(task)
                    self.busy += 1
                    self.last_turn = self._clock()
                    return task
                awaited, began = self._turns.awaited, self._clock()
                self._work.wait(_LOOK_AGAIN_S if self._turns else None)
                if awaited is not None:
                    self._turns.charge_wait(awaited, self._clock() - began)
        return None

    def finish(self, task: SampleTask, made: MadeFrame | Refusal) -> None:
        """Send the result of a request to its caller, or queue the request again to wait for memory."""
        channel = task.channel
        with self._lock:
            channel.running.discard(task)
            self.busy -= 1
            self._turns.settle(task, 0.0 if isinstance(made, Refusal) else made.sampling_s)
            again = self._scratch.end(task, too_large=isinstance(made, MadeFrame) and made.too_large)
            if self._is_to_wait(task, made, again=again):
                channel.queue.appendleft(task)
                self._turns.enter(channel)
                return
            self._forget(channel, [task])
            result = self._result(task, made)
            if result.in_slot or result.handle or result.frame is not None:
                channel.totals.add(result)
                self.totals.add(result)
        if not task.abandoned:
            task.done(result)

    def end(self, channels: Iterable[Channel], refusal: Refusal) -> None:
        """Close channels that were removed from their jobs, and free what they hold."""
        for channel in channels:
            with self._lock:
                channel.closed = True
                waiting = self._take_waiting(channel)
            self._frames.drop_channel(channel.id)
            if channel.ring is not None:
                channel.ring.close()
            _settle(waiting, Result(refusal=refusal))

    def refuse(self, channels: Iterable[Channel], refusal: Refusal) -> None:
        """Refuse every request that no thread has begun, and all later requests."""
        with self._lock:
            self._refusal = refusal
            waiting = [task for channel in channels for task in self._take_waiting(channel)]
        _settle(waiting, Result(refusal=refusal))

    def relieve(self, than: float) -> None:
        """Drop ready frames of jobs that hold much memory, while jobs that hold little wait for memory.

        Drops frames from before ``than``, oldest first. While other jobs wait, a job is not admitted beyond
        its share (``_admission``), so that dropped batches are not sampled again at once.
        """
        with self._lock:
            waiting = self._turns.waiting
        self._shares.relieve(waiting, than)

    def close(self) -> None:
        """Let the sampling threads end."""
        with self._work:
            self._closed = True
            self._work.notify_all()

    def wait_until_delivered(self, timeout_s: float) -> bool:
        """Wait until no thread samples and every frame was sent. Return whether that was reached."""
        deadline = time.monotonic() + timeout_s
        while self.busy or self._memory.lent:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_AGAIN_S)
        return True

    def _admission(self) -> Callable[[SampleTask], bool]:
        """Return a function that admits requests for which there is scratch and frame memory."""
        has_room = self._shares.admission(lambda: self._turns.waiting) if self._turns else lambda _: True
        return lambda each: (not each.needs_frame_memory or has_room(each)) and self._scratch.admits(each)

    def _is_to_wait(self, task: SampleTask, made: MadeFrame | Refusal, *, again: bool) -> bool:
        """Return whether a batch waits for memory. Under the lock.

        It has more edges than its allowance, or its frame did not fit its slot and there was no other memory.
        """
        if isinstance(made, Refusal):
            return False
        if again:
            return not task.is_stale() and self._refusal is None
        if made.in_slot or made.overflows:
            task.channel.overflows = made.overflows
        return made.overflows and not made.nbytes and not task.is_stale() and self._refusal is None

    def _check_open(self, channel: Channel) -> None:
        if self._refusal is not None:
            raise self._refusal
        if channel.closed:
            raise Refusal(RefusalKind.NOT_FOUND, "the channel was closed: open it again")

    def _move_fence(self, channel: Channel, fence: int) -> list[SampleTask]:
        if fence <= channel.fence:
            return []
        left = channel.raise_fence(fence)
        self._forget(channel, left)
        self._frames.drop_channel(channel.id, before_fence=fence)
        return left

    def _check_room(self, task: SampleTask) -> None:
        channel = task.channel
        pending = sum(each.fence == channel.fence for each in channel.running) + len(channel.queue)
        if pending + self._frames.held_by(channel.id) >= channel.credit:
            raise Refusal(
                RefusalKind.BUSY,
                f"{channel.credit} batches are asked for and not fetched: fetch some first",
            )
        if task.slot and channel.uses_slot(task.slot):
            raise Refusal(RefusalKind.INVALID, f"slot {task.slot} is asked for by another call under way")
        own, used = self._nbytes[channel.owner], self._nbytes.total()
        if used + task.nbytes > self._limits.request_bytes:
            raise Refusal(RefusalKind.BUSY, "the server has as many seeds waiting as it may hold: ask later")
        if not has_quota(
            channel.owner, own=own, used=used, limit=self._limits.request_bytes, more=task.nbytes
        ):
            raise Refusal(
                RefusalKind.BUSY, f"{channel.owner} has as many seeds waiting as one may have: ask later"
            )

    def _result(self, task: SampleTask, made: MadeFrame | Refusal) -> Result:
        """Return the result of a request, and make its frame available for fetching. Under the lock."""
        if task.channel.closed:
            return Result(refusal=Refusal(RefusalKind.NOT_FOUND, "the channel was closed: open it again"))
        if isinstance(made, Refusal):
            return Result(refusal=made)
        if task.is_stale():
            return SKIPPED
        if not made.nbytes:
            return SKIPPED if self._refusal is None else Result(refusal=self._refusal)
        frame = self._sent_with_reply(task, made)
        if made.memory is not None and frame is None:
            task.handle = self._frames.put(
                made.memory,
                job=task.channel.job,
                owner=task.channel.owner,
                channel=task.channel.id,
                fence=task.fence,
            )
        return Result(
            in_slot=made.in_slot,
            handle=task.handle,
            frame=frame,
            failure=made.failure,
            nbytes=made.nbytes,
            unavailable=made.unavailable,
            sampling_s=made.sampling_s,
            waiting_s=max(self._clock() - task.came - made.sampling_s, 0.0),
        )

    def _sent_with_reply(self, task: SampleTask, made: MadeFrame) -> Bytes | None:
        """Return the frame, now in transit, where the reply may hold it. ``None``: it must be fetched."""
        if made.memory is None or made.nbytes > task.inline_bytes:
            return None
        return self._frames.send(made.memory, job=task.channel.job, owner=task.channel.owner)

    def _forget(self, channel: Channel, tasks: Iterable[SampleTask]) -> None:
        """Stop counting the bytes of these requests."""
        self._nbytes[channel.owner] -= sum(each.nbytes for each in tasks)
        if not self._nbytes[channel.owner]:
            del self._nbytes[channel.owner]

    def _take_waiting(self, channel: Channel) -> list[SampleTask]:
        waiting = channel.empty()
        self._forget(channel, waiting)
        return waiting


def _settle(tasks: Iterable[SampleTask], result: Result) -> None:
    for task in tasks:
        if not task.abandoned:
            task.done(result)
