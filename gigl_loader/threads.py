"""Threads where the system may give none: RLIMIT_NPROC, or ``pids.max`` of a control group."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from gigl_loader.resources import process_limit

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")


def start_thread(thread: threading.Thread) -> threading.Thread:
    """Start a thread that its owner cannot do without, and return it. ``OSError`` names the limits."""
    try:
        thread.start()
    except RuntimeError:
        raise process_limit(thread=thread.name) from None
    return thread


class _NoThread(Exception):
    """The pool has no thread, and the system gives none."""


class ThreadPool(ThreadPoolExecutor):
    """``ThreadPoolExecutor`` that works with the threads that the system gives.

    Where no further thread can be started, jobs wait for those that there are; without any, ``submit`` runs
    its job. A ``ThreadPoolExecutor`` raises ``RuntimeError``, and may run the job later all the same.
    """

    def start_first(self) -> None:
        """Start a thread, which lives until ``shutdown``. ``OSError`` names the limits."""
        self.submit(int)
        if not self._threads:
            raise process_limit(thread=str(self._thread_name_prefix))

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        try:
            return super().submit(fn, *args, **kwargs)
        except _NoThread:
            done: Future[R] = Future()
            try:
                done.set_result(fn(*args, **kwargs))
            except BaseException as error:
                done.set_exception(error)
            return done

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                self._work_queue.get_nowait()  # The job that was added just now, under the pool's lock.
                raise _NoThread from None
