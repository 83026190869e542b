"""Shares of the frame memory: first among owners, then among the jobs of an owner."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from gigl_loader.rpc.grants import EVERYTHING
from gigl_server.frames.buffer_pool import buffer_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from gigl_loader.rpc.grants import Grant
    from gigl_server.frames.buffer_pool import BufferPool
    from gigl_server.frames.store import FrameStore
    from gigl_server.identity import Identity
    from gigl_server.sessions.channel import Channel, SampleTask

__all__ = ["FrameShares"]

_Holder = tuple["Identity", bytes]
"""Owner and job."""

_MUCH = 2  # Times as much as another job: without this, similar jobs would drop each other's frames in turn.


class FrameShares:
    """Admits requests to frame memory, and drops ready frames of jobs that hold too much."""

    def __init__(
        self,
        frames: FrameStore,
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
        part of several owners is such that another one like them would fit: who fetches nothing leaves
        memory to who does. A frame that is larger than a part is admitted where that much stays free.
        """
        shared = self._shared(waiting, begun)
        return lambda task: self._has_quota(task.channel.owner) and shared(task)

    def _has_quota(self, owner: Identity) -> bool:
        """Return whether the owners of a token hold less than its quota of frames."""
        most = self._grant_of(owner).frames
        if most is None:
            return True
        held = self._frames.held_by_owner()
        return sum(nbytes for (each, _), nbytes in held.items() if each.token == owner.token) < most

    def _shared(
        self, waiting: Callable[[], Sequence[Channel]], begun: Collection[SampleTask]
    ) -> Callable[[SampleTask], bool]:
        """Return a function that admits requests by the shares of owners and jobs."""
        lent, most = self._memory.lent, self._memory.nbytes
        expected = self._expected_bytes(begun)
        if lent + expected.total() < most // 2:
            return lambda _: True
        if lent >= most:
            return lambda _: False
        held = self._frames.held_by_owner()
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

    def _expected_bytes(self, begun: Collection[SampleTask]) -> Counter[_Holder]:
        """Return the likely size of the frames of batches that were begun, by owner and job."""
        expected: Counter[_Holder] = Counter()
        for task in begun:
            if task.needs_frame_memory:
                expected[task.channel.owner, task.channel.job] += self._buffer_bytes(task)
        return expected

    def _buffer_bytes(self, task: SampleTask) -> int:
        """Return the memory of a frame of the mean size of its channel's, at first of all ready frames."""
        totals, ready = task.channel.totals, self._frames
        if totals.batches:
            return buffer_bytes(totals.nbytes // totals.batches)
        return buffer_bytes(ready.nbytes // max(len(ready), 1))

    def relieve(self, waiting: Sequence[SampleTask], than: float) -> None:
        """Drop frames from before ``than``, oldest first, of jobs that hold much memory, while those that
        hold little wait for memory. ``waiting``: the next request of each channel that needs some."""
        channels = [each.channel for each in waiting]
        needy = {(each.owner, each.job) for each in channels}
        while needy and not any(map(self._shared(lambda: channels, ()), waiting)):
            if not self._drop_one(needy, than):
                return

    def _drop_one(self, needy: set[_Holder], than: float) -> bool:
        held = self._frames.held_by_owner()
        owned = _by_owner(held)
        least_owned = min(owned[owner] for owner, _ in needy)

        def has_much(holder: _Holder) -> bool:
            owner = holder[0]
            own_jobs = [held[each] for each in needy if each[0] == owner]
            return owned[owner] > _MUCH * least_owned or (
                bool(own_jobs) and held[holder] > _MUCH * min(own_jobs)
            )

        order = sorted(held, key=lambda each: (owned[each[0]], held[each]), reverse=True)
        return any(self._frames.drop_one(job, than) for owner, job in order if has_much((owner, job)))


def _by_owner(held: Mapping[_Holder, float]) -> dict[Identity, float]:
    owned: dict[Identity, float] = defaultdict(float)
    for (owner, _), nbytes in held.items():
        owned[owner] += nbytes
    return owned
