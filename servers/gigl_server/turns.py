"""Whose ask is worked on next."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_server.channels import Channel, Errand

__all__ = ["Turns"]


class Turns:
    """Rounds over the channels that have asks: ``share`` turns for each, one batch a turn.

    So a channel waits for the others' shares at most, however many asks they have: a job with more channels
    has more turns. Not thread-safe.
    """

    def __init__(self) -> None:
        self._round: deque[Channel] = deque()
        self._used = 0
        """Turns that the first channel has had in this round."""

    def __len__(self) -> int:
        return len(self._round)

    @property
    def jobs_in_need(self) -> set[bytes]:
        """Jobs whose next ask needs frame memory."""
        return {each.job for each in self._round if each.queue and each.queue[0].needs_frame_memory}

    def enter(self, channel: Channel) -> None:
        """Let a channel with asks take part: after those that do already."""
        if not channel.in_round:
            channel.in_round = True
            self._round.append(channel)

    def next(self, admits: Callable[[Errand], bool]) -> Errand | None:
        """Take the next ask off its channel. Channels whose ask is not admitted now are passed over."""
        for _ in range(len(self._round)):
            channel = self._round[0]
            if channel.queue and admits(channel.queue[0]):
                errand = channel.queue.popleft()
                self._used += 1
                if self._used >= channel.share or not channel.queue:
                    self._pass_on(stays=bool(channel.queue))
                return errand
            self._pass_on(stays=bool(channel.queue))
        return None

    def _pass_on(self, *, stays: bool) -> None:
        channel = self._round.popleft()
        self._used = 0
        channel.in_round = stays
        if stays:
            self._round.append(channel)
