"""Admission of leaders: limits how many create producers concurrently; later ones start after a delay."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gigl_loader.group import RankLock, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.group import RankGroup

__all__ = ["admitted"]


@contextmanager
def admitted(group: RankGroup, key: str, *, limit: int, gap_s: float, timeout_s: float) -> Iterator[None]:
    """Be one of at most ``limit`` holders, over all ranks, of a place under ``key``.

    Who takes over a place begins ``gap_s`` seconds after the one before began, by the clocks of their
    hosts. ``TimeoutError`` where no place becomes free within ``timeout_s``, with a rank that keeps one,
    and where it became free too late for the gap.
    """
    deadline = time.monotonic() + timeout_s
    places = [RankLock(group, f"{key}/{number}") for number in range(limit)]
    taken: list[RankLock] = []

    def take() -> bool:
        for place in places:
            if place.take():
                taken.append(place)
                return True
        return False

    if not wait_for(take, timeout_s):
        raise TimeoutError(
            f"no turn to create a producer within {timeout_s:g} s: rank {places[0].holder} is still creating "
            "its own; raise max_concurrent_producer_inits, or look at that rank"
        )
    (place,) = taken
    last_began = began = float(place.note or 0)
    try:
        _wait_for_gap(last_began, gap_s, deadline, timeout_s)
        began = time.time()
        yield
    finally:
        place.give_back(f"{began:.6f}")


def _wait_for_gap(last_began: float, gap_s: float, deadline: float, timeout_s: float) -> None:
    # Never longer than the gap, whatever the clock of another host says.
    pause = min(max(last_began + gap_s - time.time(), 0.0), gap_s)
    if pause >= max(deadline - time.monotonic(), 0.0) and pause:
        raise TimeoutError(
            f"no turn to create a producer within {timeout_s:g} s: the next is {pause:.1f} s from now; lower "
            "process_start_gap_seconds, or raise timeout"
        )
    time.sleep(pause)
