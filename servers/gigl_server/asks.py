"""Asks from their arrival to their outcome."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from gigl_server.channels import SKIPPED, Outcome, Tally
from gigl_server.refusal import Refusal, Status
from gigl_server.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gigl_server.channels import Channel, Errand
    from gigl_server.frame_memory import FrameMemory
    from gigl_server.frames import FrameShelf
    from gigl_server.limits import Limits
    from gigl_server.maker import Made

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
        limits: Limits,
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
        self._turns = Turns()
        self._nbytes = 0
        self._closed = False

    def submit(self, errand: Errand) -> None:
        """Queue an ask; a newer fence ends older ones. ``Refusal`` beyond a limit or after the end."""
        channel = errand.channel
        with self._lock:
            if channel.closed:
                raise Refusal(Status.NOT_FOUND, "the channel was closed: open it again")
            channel.last_ask = self._clock()
            left = self._move_fence(channel, errand.fence)
            wanted = errand.fence == channel.fence
            if wanted:
                self._check_room(errand)
                self._nbytes += errand.nbytes
                channel.queue.append(errand)
                self._turns.enter(channel)
                self._work.notify()
        _settle([*left, *([] if wanted else [errand])], SKIPPED)

    def abandon(self, errand: Errand) -> None:
        """Nobody waits for the outcome any more: do no work for it that was not begun."""
        with self._lock:
            errand.abandoned = True
            if errand in errand.channel.queue:
                errand.channel.queue.remove(errand)
                self._nbytes -= errand.nbytes
        if errand.handle:
            self._frames.drop(errand.handle)

    def next(self) -> Errand | None:
        """Wait for the next ask to work on. ``None`` after ``close``."""
        with self._work:
            while not self._closed:
                full = bool(self._turns) and self._memory.full
                errand = self._turns.next(lambda each: not (full and each.needs_frame_memory))  # noqa: B023
                if errand is not None:
                    errand.channel.running.add(errand)
                    self.busy += 1
                    self.last_turn = self._clock()
                    return errand
                self._work.wait(_LOOK_AGAIN_S if full else None)
        return None

    def finish(self, errand: Errand, made: Made | Refusal) -> None:
        """Tell the trainer what was made, or why nothing was."""
        channel = errand.channel
        with self._lock:
            channel.running.discard(errand)
            self._nbytes -= errand.nbytes
            self.busy -= 1
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

    def refuse_waiting(self, channels: Iterable[Channel], refusal: Refusal) -> None:
        """Refuse every ask that nobody began."""
        for channel in list(channels):
            with self._lock:
                waiting = self._take_waiting(channel)
            _settle(waiting, Outcome(refusal=refusal))

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

    def _move_fence(self, channel: Channel, fence: int) -> list[Errand]:
        if fence <= channel.fence:
            return []
        left = channel.raise_fence(fence)
        self._nbytes -= sum(each.nbytes for each in left)
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
        if self._nbytes + errand.nbytes > self._limits.ask_bytes:
            raise Refusal(
                Status.BEYOND_LIMIT, "the server has as many seeds waiting as it may hold: ask later"
            )

    def _outcome(self, errand: Errand, made: Made | Refusal) -> Outcome:
        """Return what became of an ask, and let its frame be fetched. Under the lock."""
        if errand.channel.closed:
            return Outcome(refusal=Refusal(Status.NOT_FOUND, "the channel was closed: open it again"))
        if isinstance(made, Refusal):
            return Outcome(refusal=made)
        if errand.is_stale() or not made.nbytes:
            return SKIPPED
        if made.memory is not None:
            errand.handle = self._frames.put(
                made.memory,
                made.nbytes,
                job=errand.channel.job,
                channel=errand.channel.id,
                fence=errand.fence,
                now=self._clock(),
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

    def _take_waiting(self, channel: Channel) -> list[Errand]:
        waiting = channel.empty()
        self._nbytes -= sum(each.nbytes for each in waiting)
        return waiting


def _settle(errands: Iterable[Errand], outcome: Outcome) -> None:
    for errand in errands:
        if not errand.abandoned:
            errand.done(outcome)
