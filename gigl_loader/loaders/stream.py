"""The frames of one source, for epochs that each keep their own place."""

from __future__ import annotations

import logging
import os
import time
import weakref
from typing import TYPE_CHECKING

from gigl_loader.errors import SamplingError, StorageUnavailable, WorkerDied

if TYPE_CHECKING:
    from gigl_loader.channel.frame import Frame
    from gigl_loader.loaders.progress import Progress
    from gigl_loader.sampling.source import BatchSource

__all__ = ["FrameStream"]

_LOGGER = logging.getLogger(__name__)


class FrameStream:
    """Turns a source to whichever epoch is asked for, at the place it has reached.

    A source samples ahead in one epoch; turning to another drops what it has ahead.
    """

    def __init__(self, source: BatchSource) -> None:
        """The source is closed with the stream, and when nobody has the stream any more."""
        self._source = source
        self._close = weakref.finalize(self, _close_source, source, os.getpid())
        self.seconds_waiting = 0.0
        """For frames, in ``receive``."""
        self._progress: Progress | None = None
        self._to_come = 0
        """Batches that the source has yet to deliver of its epoch, as it was started."""

    @property
    def is_open(self) -> bool:
        return self._close.alive

    def close(self) -> None:
        """Close the source. Closing twice is fine."""
        self._close()

    def turn_to(self, progress: Progress) -> None:
        """Let the source sample ahead in this epoch, from the first batch that was not given."""
        if self._progress is not progress:
            self._progress = None  # If this is interrupted, the source is in nobody's epoch.
            self._source.start_epoch(progress.epoch, progress.first)
            self._progress = progress
            self._to_come = self._source.num_batches - progress.first

    def lose_place(self) -> None:
        """Whatever was received last may not have been given: start again where the epoch stands."""
        self._progress = None

    def receive(self, progress: Progress, timeout: float) -> Frame | None:
        """Return the next frame of an epoch that the user was not given; ``None`` at its end.

        ``SamplingError`` for a batch that failed: the next call goes on after it. But after
        ``StorageUnavailable``, and whatever is no ``SamplingError``, the next call asks for the same batch
        again.
        """
        began = time.perf_counter()
        try:
            frame = self._receive(progress, timeout)
        finally:
            waited = time.perf_counter() - began
            self.seconds_waiting += waited
        if frame is not None:
            _LOGGER.debug("batch %d of epoch %d after %.1f ms", frame.batch, progress.epoch, 1e3 * waited)
        return frame

    def _receive(self, progress: Progress, timeout: float) -> Frame | None:
        self.turn_to(progress)
        try:
            while self._to_come:
                frame = self._source.receive(timeout)
                self._to_come -= 1
                if progress.lacks(frame.batch):
                    return frame
        except (WorkerDied, TimeoutError):
            raise  # Nothing was consumed.
        except StorageUnavailable:
            # Batches ahead of this one were asked of the same host: all are asked for again.
            self.lose_place()
            raise
        except SamplingError:
            self._to_come -= 1
            raise
        except BaseException:
            self.lose_place()
            raise
        return None


def _close_source(source: BatchSource, owner: int) -> None:
    # A forked child that exits runs the finalizers it inherited: the processes are not its to end.
    if os.getpid() == owner:
        source.close()
