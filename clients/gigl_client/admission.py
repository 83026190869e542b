"""So many leaders create producers at the same time, and those after them a while later."""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gigl_loader.group import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.group import RankGroup

__all__ = ["admitted"]

_FREE = "free"


@contextmanager
def admitted(group: RankGroup, key: str, *, limit: int, gap_s: float, timeout_s: float) -> Iterator[None]:
    """Be one of at most ``limit`` holders, over all ranks, of a place under ``key``.

    Who takes over a place begins ``gap_s`` seconds after the one before began, by the clocks of their
    hosts. ``TimeoutError`` names a rank that keeps a place where none becomes free within ``timeout_s``.
    """
    places = [_Place(group, f"{key}/{number}") for number in range(limit)]
    taken: list[_Place] = []

    def take() -> bool:
        taken.extend(place for place in places if not taken and place.take())
        return bool(taken)

    if not wait_for(take, timeout_s):
        raise TimeoutError(
            f"no turn to create a producer within {timeout_s:g} s: rank {places[0].holder} is still creating "
            "its own; raise max_concurrent_producer_inits, or look at that rank"
        )
    place = taken[0]
    try:
        # Never longer than the gap, whatever the clock of another host says.
        time.sleep(min(max(place.last_began + gap_s - time.time(), 0.0), gap_s))
        place.began = time.time()
        yield
    finally:
        place.give_back()


class _Place:
    """What the group's store has under a key: "", "free SINCE" or "RANK TOKEN"."""

    def __init__(self, group: RankGroup, key: str) -> None:
        self._group = group
        self._key = key
        self._me = f"{group.rank} {secrets.token_hex(4)}"
        self._there = ""
        self.last_began = self.began = 0.0

    @property
    def holder(self) -> str:
        return self._there.partition(" ")[0]

    def take(self) -> bool:
        """Try to take it. Return whether it is ours."""
        expected = self._there if self._there.startswith(_FREE) else ""
        there = self._group.replace(self._key, expected, self._me)
        if there == self._me and expected:
            self.last_began = float(expected.partition(" ")[2])
        self._there = there
        return there == self._me

    def give_back(self) -> None:
        self._group.replace(self._key, self._me, f"{_FREE} {self.began or self.last_began:.6f}")
