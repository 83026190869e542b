"""Threads of the data port: as many as there are calls, and none is lost to an error while it waits."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, cast

import pytest

from gigl_server.ports.data_threads import DataThreads

if TYPE_CHECKING:
    from gigl_loader.native import DataCall

SOON_S = 60.0


class Taken:
    """Calls and errors that threads take one after the other."""

    def __init__(self) -> None:
        self.waiting: queue.Queue[object] = queue.Queue()
        self.ended = False

    def __call__(self, timeout_s: float) -> DataCall | None:
        if self.ended:
            return None
        found = self.waiting.get(timeout=SOON_S)
        if isinstance(found, Exception):
            raise found
        return cast("DataCall | None", found)

    def end(self, threads: DataThreads) -> bool:
        self.ended = True
        for _ in range(threads.running):
            self.waiting.put(None)
        return threads.stop(SOON_S)


@pytest.mark.parametrize("error", [RuntimeError("epoll_wait"), MemoryError()])
def test_an_error_while_waiting_ends_no_thread(error: Exception) -> None:
    taken, seen = Taken(), queue.Queue[object]()
    threads = DataThreads(taken, seen.put, most=4)
    threads.start()
    for given in (error, "call", error, "another"):
        taken.waiting.put(given)
    assert [seen.get(timeout=SOON_S) for _ in range(2)] == ["call", "another"]
    assert taken.end(threads)


def test_there_are_so_many_threads_at_most() -> None:
    taken, gate, begun = Taken(), threading.Event(), threading.Semaphore(0)

    def respond(call: DataCall) -> None:
        begun.release()
        assert gate.wait(SOON_S)

    threads = DataThreads(taken, respond, most=3)
    threads.start()
    for number in range(5):
        taken.waiting.put(number)
    for _ in range(3):
        assert begun.acquire(timeout=SOON_S)
    assert threads.running == 3
    assert not begun.acquire(timeout=0.2)
    gate.set()
    for _ in range(2):
        assert begun.acquire(timeout=SOON_S)
    assert taken.end(threads)


def test_a_thread_that_could_not_be_started_is_started_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else nobody would wait for calls while the only thread works."""
    taken, gate, seen = Taken(), threading.Event(), queue.Queue[object]()

    def respond(call: DataCall) -> None:
        seen.put(call)
        assert gate.wait(SOON_S)

    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = DataThreads(taken, respond, most=4)
    threads.start()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_left)
        taken.waiting.put(1)
        assert seen.get(timeout=SOON_S) == 1
        taken.waiting.put(2)
        for _ in range(3):
            threads.keep_one_waiting()
        assert seen.empty()
    assert caplog.messages == ["the data port has 1 threads and gets no more: can't start new thread"]
    threads.keep_one_waiting()
    assert seen.get(timeout=SOON_S) == 2
    gate.set()
    assert taken.end(threads)
