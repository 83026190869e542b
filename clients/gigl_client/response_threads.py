"""Threads that settle responses: a few that fetch frames, more where those are stuck, one for failures."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gigl_client.receiver import Scratch
from gigl_client.response_queue import ResponseQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_client.in_flight import InFlightRequest

    Responses = ResponseQueue["Response"]

__all__ = ["FETCHERS", "Response", "ResponseThreads"]

FETCHERS = 2
"""Number of threads of a source that fetch frames and their deferred features."""

_MAX_MORE_FETCHERS = 16
"""Threads that are started when all others wait for a server that is late."""
_STUCK_S = 0.5


@dataclass(frozen=True, slots=True)
class Response:
    """A request whose call has ended."""

    sent: InFlightRequest
    call: Any
    is_probe: bool = False
    """The call asked whether the server responds, after that of ``sent`` was cancelled."""
    is_check: bool = False
    """The call asked whether the server has the request ``sent``, about which it was silent."""

    @property
    def brings_frame(self) -> bool:
        return not (
            self.is_probe or self.is_check or self.call.cancelled() or self.call.exception() is not None
        )


class ResponseThreads:
    """Daemon threads that settle responses. Thread-safe."""

    def __init__(self, settle: Callable[[Response, Scratch], None], *, name: str) -> None:
        """``settle`` is called for each response, with memory of the thread. It must not raise."""
        self._settle = settle
        self._name = name
        self._lock = threading.Lock()
        # Two queues, so that a lost server is noticed even while every fetching thread waits for a frame.
        self._frames: Responses = ResponseQueue()
        self._failures: Responses = ResponseQueue()
        self._fetching: dict[int, float] = {}
        """Threads that fetch a frame now, and since when."""
        self._threads: list[threading.Thread] = []
        self._num_fetchers, self._most_fetchers = 0, FETCHERS + _MAX_MORE_FETCHERS
        self._ended = False
        self.cpu_s = 0.0
        """CPU time of the threads."""
        for _ in range(FETCHERS):
            self._start_fetcher()
        self._start(self._failures, f"settle for {name}")

    def put(self, response: Response) -> None:
        """Have a thread settle a response. Does not wait: it is called on threads of gRPC."""
        sent, queue = response.sent, self._frames if response.brings_frame else self._failures
        queue.put(response, fence=sent.fence, batch=sent.request.batch)

    def stuck_at(self) -> float:
        """Return when another thread is to fetch (monotonic): all have been fetching for so long.

        Infinity while one of them is free.
        """
        with self._lock:
            if len(self._fetching) < self._num_fetchers or not self._may_start():
                return float("inf")
            return min(self._fetching.values()) + _STUCK_S

    def keep_a_fetcher(self, now: float) -> None:
        """Start another thread where none is free, and one has fetched for so long that it may be stuck.

        Else frames of servers that answer would wait for a server that has stopped in mid-reply.
        """
        if now >= self.stuck_at():
            with self._lock:
                try:
                    if self._may_start():
                        self._start_fetcher()
                except RuntimeError:  # The system has no thread to give.
                    self._most_fetchers = self._num_fetchers

    def end(self) -> None:
        """Have each thread end after its response."""
        with self._lock:
            self._ended = True
            # It refers to what refers to these threads: all buffers would wait for the garbage collection.
            self._settle = _ignored
            for _ in range(self._num_fetchers):
                self._frames.end()
            self._failures.end()

    def join(self, seconds: float) -> None:
        """Wait for the threads to end, at most so long. The calling thread is not waited for."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0))

    def _may_start(self) -> bool:
        return self._num_fetchers < self._most_fetchers and not self._ended

    def _start_fetcher(self) -> None:
        self._start(self._frames, f"fetch {self._num_fetchers} of {self._name}")
        self._num_fetchers += 1

    def _start(self, responses: Responses, name: str) -> None:
        thread = threading.Thread(target=self._work, args=(responses,), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _work(self, responses: Responses) -> None:
        scratch, me = Scratch(), threading.get_ident()
        while (response := responses.get()) is not None:
            began = time.thread_time()
            if responses is self._frames:
                now = time.monotonic()
                with self._lock:
                    self._fetching[me] = now
                self.keep_a_fetcher(now)
            self._settle(response, scratch)
            del response
            with self._lock:
                self._fetching.pop(me, None)
                self.cpu_s += time.thread_time() - began


def _ignored(response: Response, scratch: Scratch) -> None:
    """Do nothing."""
