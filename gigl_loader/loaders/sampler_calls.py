"""Calls of a sampler: their deadlines, and the threads that serve them one after the other."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from gigl_loader.resources import naming_process_limit

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.channel.frame import Frame
    from gigl_loader.loaders.single_batches import SingleBatches
    from gigl_loader.sampling.request import BatchRequest

logger = logging.getLogger(__name__)

_GRACE_S = 0.1
"""Beyond the deadline of a call, for the error of its source, which names the host that is late."""


_EXIT_S = 1.0
"""Time for the threads of all samplers at the end of the script."""
_OPEN: weakref.WeakSet[Turns] = weakref.WeakSet()


class SamplerCall:
    """A call of a sampler: its request, its deadline, and the result that its caller waits for."""

    def __init__(
        self, request: Callable[[], BatchRequest], make: Callable[[Frame], Any], *, timeout_s: float
    ) -> None:
        self._request = request
        self._make = make
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._future: Future[Any] = Future()
        self._context = copy_context()  # Its span of OpenTelemetry is that of the caller.
        self._waits_for = "its turn"
        self._lock = threading.Lock()
        self._batches: SingleBatches | None = None
        """Those that serve the call, while they do."""

    def wait(self) -> Any:
        """Return the result, or raise the error, at the latest at the deadline."""
        try:
            with suppress(FutureTimeoutError):
                self._future.exception(self._remaining_s() + _GRACE_S)
            return self._result()
        finally:
            self.leave("the call was given up")

    async def wait_async(self) -> Any:
        """Return the result, or raise the error, at the latest at the deadline."""
        future = asyncio.wrap_future(self._future)
        try:
            await asyncio.wait([future], timeout=self._remaining_s() + _GRACE_S)
            return self._result()
        finally:
            self.leave("the call was given up")
            future.cancel()  # Of an error that has come, asyncio would else log that nobody has seen it.

    def serve(self, batches: SingleBatches) -> None:
        """Make the result, unless the call has ended. Raises nothing."""
        with self._lock:
            if self._future.done():
                return
            self._batches = batches
        try:
            settle = partial(self._future.set_result, self._context.run(self._made, batches))
        except BaseException as error:
            settle = partial(self._future.set_exception, error)
        with self._lock:
            self._batches = None
            if not self._future.done():
                settle()

    def leave(self, reason: str) -> threading.Thread | None:
        """End the call with ``RuntimeError(reason)``, and the wait for its source. Once ended, it stays so.

        Return the thread that closes the source, if there is one.
        """
        with self._lock:
            if self._future.done():
                return None
            self._future.set_exception(RuntimeError(reason))
            return None if self._batches is None else self._batches.interrupt()

    @property
    def has_ended(self) -> bool:
        return self._future.done()

    def _made(self, batches: SingleBatches) -> Any:
        self._go_on("the positions of its seeds")
        request = self._request()
        self._go_on("a source to open")
        batches.open()
        self._go_on("its batch")
        timeout_s = round(self._remaining_s(), 2)  # The source may name it in an error.
        return self._make(batches.receive(request, timeout_s))

    def _go_on(self, waits_for: str) -> None:
        if self._future.done() or not self._remaining_s():
            raise self._late()
        self._waits_for = waits_for

    def _result(self) -> Any:
        if not self._future.done():
            raise self._late()
        return self._future.result()

    def _late(self) -> TimeoutError:
        return TimeoutError(f"no batch within {self._timeout_s:g} s: the call waits for {self._waits_for}")

    def _remaining_s(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)


class Turns:
    """Calls that wait, and the threads that serve them, each with a source. Keeps no sampler alive.

    The threads are daemons: one that waits for a server which is away must not keep a script from ending.
    """

    def __init__(self, open_batches: Callable[[], SingleBatches], *, limit: int, name: str) -> None:
        self.owner = os.getpid()
        """Process that has the threads: a forked child has none of them."""
        self._open_batches = open_batches
        self._limit = limit
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[SamplerCall] = deque()
        self._served: set[SamplerCall] = set()
        self._threads: list[threading.Thread] = []
        self._sources: list[SingleBatches] = []
        self._idle = 0
        """Threads that wait for a call."""
        self._closed = False
        _OPEN.add(self)

    @property
    def num_sources(self) -> int:
        with self._changed:
            return sum(batches.is_open for batches in self._sources)

    def put(self, call: SamplerCall) -> None:
        """Queue a call, and start a thread where none is idle and ``limit`` allows it."""
        with self._changed:
            if self._closed:
                raise RuntimeError(f"{self._name} was closed")
            while self._waiting and self._waiting[0].has_ended:  # Else an outage would pile them up.
                self._waiting.popleft()
            if self._idle <= len(self._waiting) and len(self._threads) < self._limit:
                self._start_thread()
            self._waiting.append(call)
            self._changed.notify()

    def _start_thread(self) -> None:
        """Start a thread that serves calls. ``OSError`` where none can be started and there is no other."""
        batches = self._open_batches()
        thread = threading.Thread(target=_serve, args=(self, batches), name=self._name, daemon=True)
        try:
            with naming_process_limit(f"concurrency={self._limit}"):
                thread.start()
        except OSError as error:
            if not self._threads:
                raise
            logger.warning("%s: %d threads serve its calls: %s", self._name, len(self._threads), error)
            self._limit = len(self._threads)
            return
        self._threads.append(thread)
        self._sources.append(batches)

    def take(self) -> SamplerCall | None:
        """Wait for the next call. ``None`` once closed."""
        with self._changed:
            self._idle += 1
            while not self._waiting and not self._closed:
                self._changed.wait()
            self._idle -= 1
            if self._closed:
                return None
            call = self._waiting.popleft()
            self._served.add(call)
            return call

    def served(self, call: SamplerCall) -> None:
        with self._changed:
            self._served.discard(call)

    def close(self, *, wait_s: float) -> None:
        """Fail all calls, end the threads and close their sources. Wait ``wait_s`` seconds for them."""
        with self._changed:
            self._closed = True
            calls = [*self._waiting, *self._served]
            self._waiting.clear()
            self._changed.notify_all()
        ends = [call.leave(f"{self._name} was closed") for call in calls]
        deadline = time.monotonic() + wait_s
        for thread in (*self._threads, *ends):
            if thread is not None and thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0))


def _serve(turns: Turns, batches: SingleBatches) -> None:
    while (call := turns.take()) is not None:
        call.serve(batches)
        turns.served(call)
        del call  # It has the batch.
    batches.close()


def close_turns(turns: Turns, owner: int) -> None:
    """Close without a wait, where a sampler was collected."""
    if os.getpid() == owner:
        turns.close(wait_s=0)


@atexit.register
def _close_all() -> None:
    """Close all turns, and wait for their threads: one that the script's end cuts off keeps its source."""
    deadline = time.monotonic() + _EXIT_S
    for turns in [each for each in _OPEN if each.owner == os.getpid()]:
        turns.close(wait_s=max(deadline - time.monotonic(), 0.0))
