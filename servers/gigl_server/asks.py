"""Asks from their arrival to their outcome."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from gigl_server.channels import SKIPPED, Outcome, Tally
from gigl_server.frame_shares import FrameShares
from gigl_server.maker import Made
from gigl_server.quotas import has_quota
from gigl_server.refusal import Refusal, Status
from gigl_server.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gigl_server.channels import Channel, Errand
    from gigl_server.frame_memory import FrameMemory
    from gigl_server.frames import FrameShelf
    from gigl_server.identity import Identity
    from gigl_server.limits import Limits
    from gigl_server.scratch import Scratch

__all__ = ["Asks"]

_LOOK_AGAIN_S = 0.02  # Memory comes back without a word: its finalizers must not take locks.


class Asks:
    """Takes asks from the control port and gives them to sampling threads, in fair turns.

    ``done`` of an ask is called once, outside the lock, unless the ask was abandoned.
    """

    def __init__(
        self,
        lock: threading.Lock,
        frames: FrameShelf,
        memory: FrameMemory,
        *,
        limits: Limits,
        scratch: Scratch,
        clock: Callable[[], float],
    ) -> None:
        """``lock`` is that of the channels."""
        self.totals = Tally()
        self.busy = 0
        """Sampling threads at work."""
        self.last_turn = clock()
        """When the last batch was begun."""
        self._lock = lock
        self._work = threading.Condition(lock)
        self._frames = frames
        self._memory = memory
        self._limits = limits
        self._clock = clock
        self._turns = Turns(clock)
        self._scratch = scratch
        self._shares = FrameShares(frames, memory)
        self._nbytes: Counter[Identity] = Counter()
        self._refusal: Refusal | None = None
        self._closed = False

    def submit(self, errand: Errand) -> None:
        """Queue an ask; a newer fence ends older ones. ``Refusal`` beyond a limit or after the end."""
        ended: list[Errand] = []
        try:
            with self._lock:
                self._check_open(errand.channel)
                errand.channel.last_ask = self._clock()
                ended += self._move_fence(errand.channel, errand.fence)
                if errand.fence == errand.channel.fence:
                    self._check_room(errand)
                    self._nbytes[errand.channel.owner] += errand.nbytes
                    errand.channel.queue.append(errand)
                    self._turns.enter(errand.channel)
                    self._work.notify()
                else:
                    ended.append(errand)
        finally:  # That the new ask is refused must not lose the outcomes of those before it.
            _settle(ended, SKIPPED)

    def abandon(self, errand: Errand) -> None:
        """Nobody waits for the outcome any more: do no work for it that was not begun."""
        with self._lock:
            errand.abandoned = True
            if errand in errand.channel.queue:
                errand.channel.queue.remove(errand)
                self._forget(errand.channel, [errand])
        if errand.handle:
            self._frames.drop(errand.handle)

    def next(self) -> Errand | None:
        """Wait for the next ask to work on. ``None`` after ``close``."""
        with self._work:
            while not self._closed:
                errand = self._turns.next(self._admission())
                if errand is not None:
                    self._scratch.begin(errand)
                    errand.channel.running.add(errand)
                    self.busy += 1
                    self.last_turn = self._clock()
                    return errand
                awaited, began = self._turns.awaited, self._clock()
                self._work.wait(_LOOK_AGAIN_S if self._turns else None)
                if awaited is not None:
                    self._turns.charge_wait(awaited, self._clock() - began)
        return None

    def finish(self, errand: Errand, made: Made | Refusal) -> None:
        """Tell the trainer what was made, or why nothing was; or queue it again, to wait for memory."""
        channel = errand.channel
        with self._lock:
            channel.running.discard(errand)
            self.busy -= 1
            self._turns.settle(errand, 0.0 if isinstance(made, Refusal) else made.sampling_s)
            again = self._scratch.end(errand, too_large=isinstance(made, Made) and made.too_large)
            if self._is_to_wait(errand, made, again=again):
                channel.queue.appendleft(errand)
                self._turns.enter(channel)
                return
            self._forget(channel, [errand])
            outcome = self._outcome(errand, made)
            if outcome.in_slot or outcome.handle:
                channel.tally.add(outcome)
                self.totals.add(outcome)
        if not errand.abandoned:
            errand.done(outcome)

    def end(self, channels: Iterable[Channel], refusal: Refusal) -> None:
        """Close channels that were taken out of their jobs, and free what they hold."""
        for channel in channels:
            with self._lock:
                channel.closed = True
                waiting = self._take_waiting(channel)
            self._frames.drop_channel(channel.id)
            if channel.ring is not None:
                channel.ring.close()
            _settle(waiting, Outcome(refusal=refusal))

    def refuse(self, channels: Iterable[Channel], refusal: Refusal) -> None:
        """Refuse every ask that nobody began, and all that come from now on."""
        with self._lock:
            self._refusal = refusal
            waiting = [errand for channel in channels for errand in self._take_waiting(channel)]
        _settle(waiting, Outcome(refusal=refusal))

    def relieve(self, than: float) -> None:
        """Where memory is full and a job waits that has little of it, drop frames of one that has much.

        Those that it did not fetch since ``than``, oldest first. A job is not admitted beyond its share while
        others wait (``_admission``), so that what is dropped does not come back at once.
        """
        with self._lock:
            waiting = self._turns.waiting
        self._shares.relieve(waiting, than)

    def close(self) -> None:
        """Let the sampling threads leave."""
        with self._work:
            self._closed = True
            self._work.notify_all()

    def wait_until_delivered(self, timeout_s: float) -> bool:
        """Wait until nothing is worked on and every frame was sent. Return whether that is so."""
        deadline = time.monotonic() + timeout_s
        while self.busy or self._memory.lent:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_AGAIN_S)
        return True

    def _admission(self) -> Callable[[Errand], bool]:
        """Return which asks may be worked on: as many as there is scratch and frame memory for."""
        has_room = self._shares.admission(lambda: self._turns.waiting) if self._turns else lambda _: True
        return lambda each: (not each.needs_frame_memory or has_room(each)) and self._scratch.admits(each)

    def _is_to_wait(self, errand: Errand, made: Made | Refusal, *, again: bool) -> bool:
        """Whether a batch waits for memory: it has more edges than there was scratch for, or its frame did
        not fit its slot, and there was no other memory. Under the lock."""
        if isinstance(made, Refusal):
            return False
        if again:
            return not errand.is_stale() and self._refusal is None
        if made.in_slot or made.overflows:
            errand.channel.overflows = made.overflows
        return made.overflows and not made.nbytes and not errand.is_stale() and self._refusal is None

    def _check_open(self, channel: Channel) -> None:
        if self._refusal is not None:
            raise self._refusal
        if channel.closed:
            raise Refusal(Status.NOT_FOUND, "the channel was closed: open it again")

    def _move_fence(self, channel: Channel, fence: int) -> list[Errand]:
        if fence <= channel.fence:
            return []
        left = channel.raise_fence(fence)
        self._forget(channel, left)
        self._frames.drop_channel(channel.id, before_fence=fence)
        return left

    def _check_room(self, errand: Errand) -> None:
        channel = errand.channel
        wanted = sum(each.fence == channel.fence for each in channel.running) + len(channel.queue)
        if wanted + self._frames.held_by(channel.id) >= channel.credit:
            raise Refusal(
                Status.BEYOND_LIMIT,
                f"{channel.credit} batches are asked for and not fetched: fetch some first",
            )
        if errand.slot and channel.uses_slot(errand.slot):
            raise Refusal(Status.INVALID, f"slot {errand.slot} is asked for by another call under way")
        own, used = self._nbytes[channel.owner], self._nbytes.total()
        if used + errand.nbytes > self._limits.ask_bytes:
            raise Refusal(
                Status.BEYOND_LIMIT, "the server has as many seeds waiting as it may hold: ask later"
            )
        if not has_quota(channel.owner, own=own, used=used, limit=self._limits.ask_bytes, more=errand.nbytes):
            raise Refusal(
                Status.BEYOND_LIMIT, f"{channel.owner} has as many seeds waiting as one may have: ask later"
            )

    def _outcome(self, errand: Errand, made: Made | Refusal) -> Outcome:
        """Return what became of an ask, and let its frame be fetched. Under the lock."""
        if errand.channel.closed:
            return Outcome(refusal=Refusal(Status.NOT_FOUND, "the channel was closed: open it again"))
        if isinstance(made, Refusal):
            return Outcome(refusal=made)
        if errand.is_stale():
            return SKIPPED
        if not made.nbytes:
            return SKIPPED if self._refusal is None else Outcome(refusal=self._refusal)
        if made.memory is not None:
            errand.handle = self._frames.put(
                made.memory,
                job=errand.channel.job,
                owner=errand.channel.owner,
                channel=errand.channel.id,
                fence=errand.fence,
            )
        return Outcome(
            in_slot=made.in_slot,
            handle=errand.handle,
            failure=made.failure,
            nbytes=made.nbytes,
            unavailable=made.unavailable,
            sampling_s=made.sampling_s,
            waiting_s=max(self._clock() - errand.came - made.sampling_s, 0.0),
        )

    def _forget(self, channel: Channel, errands: Iterable[Errand]) -> None:
        """Their seeds count no more."""
        self._nbytes[channel.owner] -= sum(each.nbytes for each in errands)
        if not self._nbytes[channel.owner]:
            del self._nbytes[channel.owner]

    def _take_waiting(self, channel: Channel) -> list[Errand]:
        waiting = channel.empty()
        self._forget(channel, waiting)
        return waiting


def _settle(errands: Iterable[Errand], outcome: Outcome) -> None:
    for errand in errands:
        if not errand.abandoned:
            errand.done(outcome)
