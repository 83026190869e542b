"""Frames of single requests, which belong to no epoch."""

from __future__ import annotations

import os
import threading
import time
import weakref
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gigl_loader.errors import SamplingError
from gigl_loader.loaders.stream import close_source
from gigl_loader.options import FeatureOptions, StoreOptions
from gigl_loader.resources import naming_process_limit
from gigl_loader.sampling.schedule import OneBatch
from gigl_loader.tracing import BatchSpans

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.channel.frame import Frame
    from gigl_loader.sampling.request import BatchRequest
    from gigl_loader.sampling.source import BatchSource, SourceRequest


class SingleBatches:
    """Frames of requests that belong to no epoch, one at a time. The first opens the source. Thread-safe."""

    def __init__(self, open_source: Callable[[SourceRequest], BatchSource], like: SourceRequest) -> None:
        """``like``: the request of a loader for its epochs."""
        self._schedule = OneBatch(run_seed=like.schedule.run_seed)
        self.spans = BatchSpans.found(like.name, of_calls=True)
        request = replace(
            like,
            spans=self.spans,
            schedule=self._schedule,
            num_workers=0,
            store=StoreOptions(),
            features=FeatureOptions(),
            group=None,
            alone=True,
            start_gap_s=None,
        )
        self._open_source = partial(open_source, request)
        self._option = "concurrency" if like.interactive else f"num_workers={like.num_workers}"
        self._timeout_s = like.timeout_s
        self._forget()

    def _forget(self) -> None:
        """Begin without a source: a forked child shares memory, and perhaps a held lock, with its parent."""
        self._pid = os.getpid()
        self._in_use = threading.Lock()
        self._source: BatchSource | None = None

    @property
    def is_open(self) -> bool:
        return self._source is not None

    def open(self) -> None:
        """Open the source, unless it is open."""
        if self._pid != os.getpid():
            self._forget()
        with self._in_use, naming_process_limit(self._option):
            self._opened()

    def receive(self, request: BatchRequest, timeout_s: float | None = None) -> Frame:
        """Return the frame of a request. Its arrays stay valid for as long as anyone keeps one of them.

        ``timeout_s``: by default that of the loader. After an error that is not of the batch or of a host,
        the next request opens another source.
        """
        if self._pid != os.getpid():
            self._forget()
        with self._in_use, naming_process_limit(self._option):
            source, end = self._opened()
            self._schedule.asked = request
            began = time.perf_counter()
            if self.spans is not None:
                self.spans.begin(request.epoch, request.batch, began)
            try:
                source.start_epoch(request.epoch)
                frame = source.receive(self._timeout_s if timeout_s is None else timeout_s)
            except Exception as error:
                if self.spans is not None:
                    self.spans.end(request.epoch, request.batch, error)
                if not isinstance(error, (SamplingError, TimeoutError)):
                    self._source = None
                    end()
                raise
            if self.spans is not None:
                frame.span = self.spans.take(frame.epoch, frame.batch, began)
            return frame

    def interrupt(self) -> threading.Thread | None:
        """Close the source while a thread waits for it, whose ``receive`` then raises.

        Return the thread that closes it; ``None`` where no source is open.
        """
        if self._source is None:
            return None
        self._source, end = None, self._end
        thread = threading.Thread(target=end, name="close", daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """Close the source; a later request opens another. Closing twice is fine."""
        if self._pid != os.getpid():
            return  # The source is the parent's, and one of its threads may have held the lock.
        with self._in_use:
            if self._source is not None:
                self._source = None
                self._end()

    def _opened(self) -> tuple[BatchSource, Callable[[], Any]]:
        """Return the source, and what closes it. The lock is held."""
        source = self._source
        if source is None:
            source = self._open_source()
            self._end = weakref.finalize(self, close_source, source, self._pid)
            self._source = source  # Last: ``interrupt`` does not take the lock.
        return source, self._end
