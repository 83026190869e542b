"""Scheduler of requests, from their arrival to their result."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.tokens import EVERYTHING
from gigl_server.admission import Quota
from gigl_server.counters import Durations
from gigl_server.frames.memory import Holder, buffer_bytes
from gigl_server.sampling.fair_queue import FairQueue
from gigl_server.sampling.time_slices import TICK_S, TimeSlices
from gigl_server.sessions.channel import SKIPPED, ChannelTotals, Result, StopCause

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from gigl_loader.rpc.tokens import Grant
    from gigl_server.admission import Identity, Limits
    from gigl_server.frames.memory import BufferPool, SentFrames
    from gigl_server.sampling.frame_maker import SharedFrames
    from gigl_server.sampling.sampler_pool import EdgeAllowances
    from gigl_server.sessions.channel import Channel, SampleTask

DURATIONS = ("waiting", "sampling")
"""Durations that are counted: of a request until its batch begins, and of the batch."""
KINDS = ("batch", "interactive")
"""Kinds of channels, by ``Channel.interactive``."""
_LOOK_AGAIN_S = 0.02  # Polled: finalizers that free memory must not take locks, and so cannot notify.


class Scheduler:
    """Fair scheduler between the control port, which submits requests, and the sampling threads.

    ``done`` of a request is called once, outside the lock, unless the request was abandoned.
    """

    def __init__(
        self,
        lock: threading.Lock,
        frames: SentFrames,
        memory: BufferPool,
        shared: SharedFrames,
        *,
        limits: Limits,
        scratch: EdgeAllowances,
        clock: Callable[[], float],
        grant_of: Callable[[Identity], Grant] = lambda _: EVERYTHING,
    ) -> None:
        """``lock`` guards the channels. ``grant_of`` returns the quotas of an owner's token."""
        self.totals = ChannelTotals()
        self.durations = {(of, kind): Durations() for of in DURATIONS for kind in KINDS}
        """Of sampled batches. Guarded by the lock."""
        self.last_turn = clock()
        """When a thread last began a batch."""
        self._lock = lock
        self._work = threading.Condition(lock)
        self._work_on_request = threading.Condition(lock)
        self._idle_on_request = 0
        self._begun = threading.Condition(lock)
        self._frames = frames
        self._memory = memory
        self._shared = shared
        self._limits = limits
        self._clock = clock
        self._turns = FairQueue(
            clock, lambda owner: grant_of(owner).share, interactive_share=limits.interactive_share
        )
        self._slices = TimeSlices(self._turns, clock, lambda owner: grant_of(owner).seconds or limits.batch_s)
        self._looks = False
        """A thread looks from time to time whether a request is admitted by now."""
        self._scratch = scratch
        self._shares = FrameShares(frames, memory, grant_of)
        self._requests = Quota("bytes of requests", limits.request_bytes)
        self._refusal: Refusal | None = None
        self._closed = False

    @property
    def request_bytes(self) -> int:
        """Bytes of the requests that have no result yet."""
        return self._requests.held

    @property
    def busy(self) -> int:
        """Number of threads that sample now."""
        return self._slices.busy

    def run_at_once(self, threads: int) -> None:
        """Sample so many batches at once. As many threads as ``places(threads)`` call ``next``.

        Call before the first of them, under the lock.
        """
        self._slices.threads = self._turns.interactive.threads = threads

    def submit(self, task: SampleTask) -> None:
        """Queue a request. A newer fence ends older requests. ``Refusal`` beyond a limit or after the end."""
        ended: list[SampleTask] = []
        try:
            with self._lock:
                self._check_open(task.channel)
                task.channel.last_request = self._clock()
                ended += self._move_fence(task.channel, task.fence)
                if task.fence == task.channel.fence:
                    self._take_room(task)
                    task.channel.queue.append(task)
                    self._turns.enter(task.channel)
                    self._shared.note(task)
                    on_request = task.channel.interactive and self._idle_on_request
                    (self._work_on_request if on_request else self._work).notify()
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
            task.stop(StopCause.STALE)

    def next(self, *, on_request: bool = False) -> SampleTask | None:
        """Wait for the next request, ``on_request`` for an interactive one. ``None`` after ``close``."""
        with self._work:
            while not self._closed:
                task = self._chosen_on_request() if on_request else self._chosen()
                if task is not None:
                    self._scratch.begin(task)
                    self._shared.begin(task)
                    task.channel.running.add(task)
                    self.last_turn = self._clock()
                    self._begun.notify()
                    self._work.notify()  # Another request may be admitted, or has to be looked after.
                    return task
                if on_request:
                    self._work.notify()  # Where there is a request, it takes its turn among others.
                    self._idle_on_request += 1
                    self._work_on_request.wait()
                    self._idle_on_request -= 1
                else:
                    self._wait_for_work()
        return None

    def keep_turns(self) -> None:
        """Set batches aside for other owners, and stop batches that take too long, until ``close``."""
        with self._begun:
            while not self._closed:
                self._begun.wait(TICK_S if self._slices.begun else None)
                self._slices.look(self._admission())
                self._free_places()
                if self._slices.is_full:
                    self._chosen()  # No thread waits for work: only batches that were set aside can go on.
                elif self._turns and self._slices.has_thread:
                    self._work.notify()

    def finish(self, task: SampleTask, made: Result) -> None:
        """Send the result of a request to its caller, or queue the request again to wait for memory."""
        channel = task.channel
        with self._lock:
            channel.running.discard(task)
            self._slices.end(task, made.sampling_s, busy_s=made.busy_s)
            self._shared.end(task)
            again = self._scratch.end(task, too_large=made.too_large)
            if self._is_to_wait(task, made, again=again):
                channel.totals.sampling_s += task.ran_s
                task.begin_anew()
                channel.queue.appendleft(task)
                self._turns.enter(channel)
                return
            self._forget(channel, [task])
            result = self._result(task, made)
            if result.in_slot or result.frame is not None:
                channel.totals.add(result)
                self._count(result, KINDS[channel.interactive])
            else:
                channel.totals.sampling_s += task.ran_s
                self.totals.sampling_s += task.ran_s
        if not task.abandoned:
            task.done(result)

    def end(self, channels: Iterable[Channel], refusal: Refusal) -> None:
        """Close channels that were removed from their jobs, and free what they hold."""
        for channel in channels:
            with self._lock:
                channel.close()
                waiting = self._take_waiting(channel)
            if channel.ring is not None:
                channel.ring.close()
            _settle(waiting, Result(refusal=refusal))

    def refuse(self, channels: Iterable[Channel], refusal: Refusal) -> None:
        """Refuse every request that no thread has begun, and all later requests."""
        with self._lock:
            self._refusal = refusal
            waiting = [task for channel in channels for task in self._take_waiting(channel)]
        _settle(waiting, Result(refusal=refusal))

    def stop(self, reason: str) -> None:
        """Stop all batches that were begun. They are refused with this reason."""
        with self._lock:
            for task in self._slices.begun:
                task.stop(StopCause.SERVER, reason)

    def relieve(self, than: float) -> None:
        """End calls of jobs that hold much memory and do not read, while jobs that hold little wait for it.

        Ends those of frames from before ``than``, oldest first. While other jobs wait, a job is not admitted
        beyond its share (``_admission``), so that its batches are not sampled again at once.
        """
        with self._lock:
            waiting = [channel.queue[0] for channel in self._turns.waiting]
        self._shares.relieve(waiting, than)

    def close(self) -> None:
        """Let the sampling threads end."""
        with self._work:
            self._closed = True
            for task in self._slices.begun:
                task.stop(StopCause.SERVER)
            for waiting in (self._work, self._work_on_request, self._begun):
                waiting.notify_all()

    def wait_until_delivered(self, timeout_s: float) -> bool:
        """Wait until no thread samples and every frame was sent. Return whether that was reached."""
        deadline = time.monotonic() + timeout_s
        while self._slices.begun or self._memory.lent:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_AGAIN_S)
        return True

    def _chosen(self) -> SampleTask | None:
        """Return the next request to begin. Batches that were set aside and are next go on."""
        while self._slices.has_thread:
            task = self._turns.next(self._admission())
            if task is None or self._slices.run(task):
                return task
        return None

    def _chosen_on_request(self) -> SampleTask | None:
        task = self._turns.next_interactive(self._admission()) if self._slices.has_extra_thread else None
        return task if task is None or self._slices.run(task) else None

    def _wait_for_work(self) -> None:
        """Wait until a request comes, a batch ends or is set aside. One thread also looks for free memory."""
        looks = bool(self._turns) and self._slices.has_thread and not self._looks
        awaited, began = self._turns.awaited, self._clock()
        self._looks = self._looks or looks
        self._work.wait(_LOOK_AGAIN_S if looks else None)
        if looks:
            self._looks = False
            if awaited is not None:
                self._turns.charge_wait(awaited, self._clock() - began)

    def _free_places(self) -> None:
        """Stop a batch where a request of an owner with less time waits for its place or its memory."""
        waiting = self._turns.without_batch() if self._slices.is_full else None
        if waiting is not None:
            self._slices.stop_for(waiting, self._slices.aside)
        first = self._scratch.first_waiting
        if first is not None and first.channel.in_round:
            self._slices.stop_for(first, self._scratch.lent)

    def _admission(self) -> Callable[[SampleTask], bool]:
        """Return a function that admits requests for which there is scratch and frame memory."""
        self._shared.give_back(self._memory.lent - self._memory.nbytes // 2)
        has_room = (
            self._shares.admission(lambda: self._turns.waiting, self._slices.begun)
            if self._turns
            else lambda _: True
        )
        return lambda each: (
            self._slices.has_place(each.channel.owner)
            and self._shared.admits(each)
            and (not each.needs_frame_memory or has_room(each))
            and self._scratch.admits(each)
        )

    def _is_to_wait(self, task: SampleTask, made: Result, *, again: bool) -> bool:
        """Return whether a batch is sampled again later. Under the lock.

        It has more edges than its allowance, was stopped for its place, or its frame did not fit its slot and
        there was no other memory.
        """
        if made.in_slot or made.overflows:
            task.channel.overflows = made.overflows
        unfinished = again or made.stopped or (made.overflows and not made.nbytes)
        return unfinished and not task.is_stale() and self._refusal is None

    def _count(self, result: Result, kind: str) -> None:
        self.totals.add(result)
        self.durations["waiting", kind].add(result.waiting_s)
        self.durations["sampling", kind].add(result.sampling_s)

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
        return left

    def _take_room(self, task: SampleTask) -> None:
        """Count the bytes of a request. ``Refusal`` beyond a limit."""
        channel = task.channel
        pending = sum(each.fence == channel.fence for each in channel.running) + len(channel.queue)
        if pending >= channel.credit:
            raise Refusal(RefusalKind.BUSY, f"{channel.credit} batches are asked for already: ask later")
        if task.slot and channel.uses_slot(task.slot):
            # Of a call that lost its connection, perhaps: it may still write to the slot.
            text = f"slot {task.slot} is asked for by another call under way: open another channel"
            raise Refusal(RefusalKind.NOT_FOUND, text)
        if not self._requests.enter(channel.owner, task.nbytes):
            full = self._requests.held + task.nbytes > self._requests.most
            whose = "the server has" if full else f"{channel.owner} has"
            most = "it may hold" if full else "one may have"
            raise Refusal(RefusalKind.BUSY, f"{whose} as many seeds waiting as {most}: ask later")

    def _result(self, task: SampleTask, made: Result) -> Result:
        """Return the complete result, whose frame counts as being sent. Under the lock."""
        if task.channel.closed:
            return Result(refusal=Refusal(RefusalKind.NOT_FOUND, "the channel was closed: open it again"))
        if made.refusal is not None:
            return made
        if task.is_stale():
            return SKIPPED
        if not made.nbytes:
            return SKIPPED if self._refusal is None else Result(refusal=self._refusal)
        sampling_s = max(made.sampling_s - task.aside_s, 0.0)
        frame = made.frame
        if frame is not None:
            frame = self._frames.send(frame, (task.channel.owner, task.channel.job), task.cut)
        return replace(
            made,
            frame=frame,
            sampling_s=sampling_s,
            waiting_s=max(self._clock() - task.came - sampling_s, 0.0),
        )

    def _forget(self, channel: Channel, tasks: Iterable[SampleTask]) -> None:
        """Stop counting the bytes of these requests."""
        self._requests.leave(channel.owner, sum(each.nbytes for each in tasks))

    def _take_waiting(self, channel: Channel) -> list[SampleTask]:
        waiting = channel.empty()
        self._forget(channel, waiting)
        return waiting


def _settle(tasks: Iterable[SampleTask], result: Result) -> None:
    for task in tasks:
        if not task.abandoned:
            task.done(result)


_UNREAD = "a frame was not read, and other jobs wait for its memory"
_MUCH = 2  # Times as much as another job: without this, similar jobs would end each other's calls in turn.


class FrameShares:
    """Admits requests to frame memory, and ends calls of jobs that hold too much and do not read."""

    def __init__(
        self,
        frames: SentFrames,
        memory: BufferPool,
        grant_of: Callable[[Identity], Grant] = lambda _: EVERYTHING,
    ) -> None:
        """``grant_of`` returns the quotas of an owner's token."""
        self._frames = frames
        self._memory = memory
        self._grant_of = grant_of

    def admission(
        self, waiting: Callable[[], Sequence[Channel]], begun: Collection[SampleTask] = ()
    ) -> Callable[[SampleTask], bool]:
        """Return a function that admits requests. ``waiting`` returns all channels that need frame memory.

        Batches that were ``begun`` count with the frames that they are likely to have. Owners whose token has
        a quota of frames get no more while they hold so much together.

        While more than half of the memory is lent, a job gets at most an equal share of its owner's part. The
        part of several owners is such that another one like them would fit: who reads nothing leaves
        memory to who does. A frame that is larger than a part is admitted where that much stays free.
        """
        shared = self._shared(waiting, begun)
        return lambda task: self._has_quota(task, begun) and shared(task)

    def _has_quota(self, task: SampleTask, begun: Collection[SampleTask]) -> bool:
        """Return whether the quota of an owner's token has room for a frame; a first one has."""
        token, most = task.channel.owner.token, self._grant_of(task.channel.owner).frames
        if most is None:
            return True
        held = self._frames.held() + self._expected_bytes(begun)
        used = sum(nbytes for (owner, _), nbytes in held.items() if owner.token == token)
        return not used or used + self._buffer_bytes(task) <= most

    def _shared(
        self, waiting: Callable[[], Sequence[Channel]], begun: Collection[SampleTask]
    ) -> Callable[[SampleTask], bool]:
        """Return a function that admits requests by the shares of owners and jobs."""
        # Jobs get no more memory by frames that they share.
        held, expected = self._frames.held(), self._expected_bytes(begun)
        lent, most = max(self._memory.lent, held.total()), self._memory.nbytes
        if lent + expected.total() < most // 2:
            return lambda _: True
        if lent >= most:
            return lambda _: False
        jobs = held.keys() | expected.keys() | {(each.owner, each.job) for each in waiting()}
        if len(jobs) == 1:
            return lambda _: True
        buffers = max(lent / max(held.total(), 1), 1.0)  # Buffers are larger than the frames in them.
        used = {each: held[each] * buffers + expected[each] for each in jobs}
        jobs_of = Counter(owner for owner, _ in jobs)
        owned = _by_owner(used)
        part = most / (len(jobs_of) + 1 if len(jobs_of) > 1 else 1)

        def fits(task: SampleTask) -> bool:
            mine, more = owned[task.channel.owner], self._buffer_bytes(task)
            return len(jobs_of) == 1 or mine + more <= part or (not mine and lent + more + part <= most)

        def has_room(task: SampleTask) -> bool:
            owner, job = task.channel.owner, task.channel.job
            return used.get((owner, job), 0.0) < part / max(jobs_of[owner], 1) and fits(task)

        return has_room

    def _expected_bytes(self, begun: Collection[SampleTask]) -> Counter[Holder]:
        """Return the likely size of the frames of batches that were begun, by owner and job."""
        expected: Counter[Holder] = Counter()
        for task in begun:
            if task.needs_frame_memory:
                expected[task.channel.owner, task.channel.job] += self._buffer_bytes(task)
        return expected

    def _buffer_bytes(self, task: SampleTask) -> int:
        """Return the memory of a frame of the mean size of its channel's, at first of all that are sent."""
        totals = task.channel.totals
        mean = totals.nbytes // totals.batches if totals.batches else self._frames.mean_bytes()
        return buffer_bytes(mean)

    def relieve(self, waiting: Sequence[SampleTask], than: float) -> None:
        """End calls of jobs that hold much memory, with frames from before ``than``, oldest first, while jobs
        that hold little wait for memory. ``waiting``: the next request of each channel that needs some."""
        channels = [each.channel for each in waiting]
        needy = {(each.owner, each.job) for each in channels}
        while needy and not any(map(self._shared(lambda: channels, ()), waiting)):
            if not self._cut_one(needy, than):
                return

    def _cut_one(self, needy: set[Holder], than: float) -> bool:
        held = self._frames.held()
        owned = _by_owner(held)
        least_owned = min(owned[owner] for owner, _ in needy)

        def has_much(holder: Holder) -> bool:
            owner = holder[0]
            own_jobs = [held[each] for each in needy if each[0] == owner]
            return owned[owner] > _MUCH * least_owned or (
                bool(own_jobs) and held[holder] > _MUCH * min(own_jobs)
            )

        order = sorted(held, key=lambda each: (owned[each[0]], held[each]), reverse=True)
        return any(self._frames.cut_oldest(each, than, _UNREAD) for each in order if has_much(each))


def _by_owner(held: Mapping[Holder, float]) -> dict[Identity, float]:
    owned: dict[Identity, float] = defaultdict(float)
    for (owner, _), nbytes in held.items():
        owned[owner] += nbytes
    return owned
