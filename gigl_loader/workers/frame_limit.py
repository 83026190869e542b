"""Number of batches that workers may hold, so that all frames fit in the memory that they may take."""

from __future__ import annotations

import logging

_LOGGER = logging.getLogger(__name__)
_LEAST_FRAMES = 2
"""Of a worker: one is used while one is sampled."""
_ENOUGH_FRAMES = 4
"""Of a worker: with so many, it seldom waits for the trainer."""
_FIRST_FRAME_BYTES = 256 << 20
"""Room for each of the first frames, whose size is not known."""


class FrameLimit:
    """Frames that each worker may hold: requested, finished or kept by the trainer.

    They follow from the largest frame so far, as the frames of a run differ by a few per cent. Where memory
    is short, each worker holds fewer, and at last fewer workers get requests. Two frames are always allowed.
    """

    def __init__(self, nbytes: int, *, workers: int, most: int, is_given: bool) -> None:
        """``nbytes``: memory for the frames of all ``workers``. ``most``: frames of one, with memory enough.

        ``is_given``: the user set ``nbytes``. Else it is a part of the memory that is free.
        """
        self._nbytes = nbytes
        self._workers = workers
        self._most = most
        self._is_given = is_given
        self._largest = 0
        self._has_warned = False
        self._fit(_FIRST_FRAME_BYTES)

    def of(self, worker: int) -> int:
        """Return how many frames a worker may hold, 0 where it gets no requests."""
        return self._frames if worker < self._active else 0

    def note(self, nbytes: int) -> None:
        """Note the size of a frame. Warns, once, where memory for frames is what limits the loader."""
        if nbytes <= self._largest:
            return
        self._largest = nbytes
        self._fit(nbytes)
        if self._frames < min(_ENOUGH_FRAMES, self._most) and not self._has_warned:
            self._has_warned = True
            self._warn()

    def _fit(self, frame_bytes: int) -> None:
        fitting = self._nbytes // frame_bytes
        self._active = min(self._workers, max(fitting // _LEAST_FRAMES, 1))
        self._frames = min(max(fitting // self._active, _LEAST_FRAMES), self._most)

    def _warn(self) -> None:
        needed = self._largest * min(_ENOUGH_FRAMES, self._most) * self._workers
        _LOGGER.warning(
            "%.0f MB hold few batches of %.0f MB (%s): %d of %d workers are used, with %d batches each: "
            "channel_size='%dMB' is enough for all, or lower num_workers",
            *(self._nbytes / 1e6, self._largest / 1e6),
            "channel_size"
            if self._is_given
            else "half of the memory that is free, over the ranks of the host",
            *(self._active, self._workers, self._frames, -(-needed // 1_000_000)),
        )
