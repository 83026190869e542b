"""Cores that idle while the trainer waits for batches: what ``num_workers`` would use."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from gigl_loader.options import workers_of
from gigl_loader.resources import idle_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

_LOGGER = logging.getLogger(__name__)
_PERIOD_S = 10.0
_LEAST_BATCHES = 20
_MUCH_WAITING = 0.3
"""Share of the time."""


class IdleCores:
    """Looks once, after some seconds of batches, and says where more workers would help."""

    def __init__(
        self,
        name: str,
        *,
        num_workers: int,
        ranks: int,
        clock: Callable[[], float] = time.perf_counter,
        idle: Callable[[], float] = idle_seconds,
    ) -> None:
        """``name``: of the loader. ``ranks``: of this host, which share its cores."""
        self._name, self._num_workers = name, num_workers
        self._more = workers_of("auto", ranks=ranks)
        self._clock, self._idle = clock, idle
        self._batches = 0
        self._is_done = self._more <= num_workers
        self.advice = ""
        """For ``stats``. Empty where there is none."""

    def look(self, seconds_waiting: float) -> None:
        """Look at the trainer after a batch. ``seconds_waiting``: so far, over all batches."""
        if self._is_done:
            return
        self._batches += 1
        if self._batches == 1:  # Workers start before it.
            self._began = self._clock(), seconds_waiting, self._idle()
            return
        began, waited, idle = self._began
        seconds = self._clock() - began
        if self._batches <= _LEAST_BATCHES or seconds < _PERIOD_S:
            return
        self._is_done = True
        share, cores = (seconds_waiting - waited) / seconds, (self._idle() - idle) / seconds
        if share >= _MUCH_WAITING and cores >= 1:
            self.advice = (
                f"waiting {share:.0%} of the time while {cores:.1f} cores idle: num_workers={self._more} "
                f'("auto") would use them, in place of {self._num_workers}'
            )
            _LOGGER.warning("%s: %s", self._name, self.advice)
