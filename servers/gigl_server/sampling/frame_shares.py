"""Shares of the frame memory: first among owners, then among the jobs of an owner."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gigl_loader.rpc.grants import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

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

        Batches that were ``begun`` count with the mean size of their channel's frames.

        Owners whose token has a quota of frames get no more while they hold so much together.

        While more than half of the memory is lent, an owner gets at most an equal share among the owners that
        need some, and a job an equal share of its owner's.
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
        lent = self._memory.lent
        expected = self._expected_bytes(begun)
        if lent + expected.total() < self._memory.nbytes // 2:
            return lambda _: True
        if lent >= self._memory.nbytes:
            return lambda _: False
        held = self._frames.held_by_owner()
        held.update(expected)
        jobs = held.keys() | {(each.owner, each.job) for each in waiting()}
        jobs_of = Counter(owner for owner, _ in jobs)
        owned = _by_owner(held)
        part = self._memory.nbytes / max(len(jobs_of), 1)

        def has_room(task: SampleTask) -> bool:
            owner, job = task.channel.owner, task.channel.job
            return owned[owner] < part and held[owner, job] < part / max(jobs_of[owner], 1)

        return has_room

    def _expected_bytes(self, begun: Collection[SampleTask]) -> Counter[_Holder]:
        """Return the likely size of the frames of batches that were begun, by owner and job.

        That is the mean of their channel, at first of all ready frames.
        """
        usual = self._frames.nbytes // max(len(self._frames), 1)
        expected: Counter[_Holder] = Counter()
        for task in begun:
            if task.needs_frame_memory:
                channel = task.channel
                mean = channel.totals.nbytes // max(channel.totals.batches, 1)
                expected[channel.owner, channel.job] += mean or usual
        return expected

    def relieve(self, waiting: Iterable[Channel], than: float) -> None:
        """Drop frames from before ``than``, oldest first, of jobs that hold much memory, while jobs that
        hold little wait for memory."""
        needy = {(each.owner, each.job) for each in waiting}
        while needy and self._memory.full and self._drop_one(needy, than):
            pass

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


def _by_owner(held: Counter[_Holder]) -> Counter[Identity]:
    owned: Counter[Identity] = Counter()
    for (owner, _), nbytes in held.items():
        owned[owner] += nbytes
    return owned
