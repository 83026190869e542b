"""An event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

__all__ = ["LoopThread"]

_JOIN_S = 5.0
_MOMENT_S = 1.0

Result = TypeVar("Result")


class LoopThread:
    """Runs what others give it, until it is closed."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_handle)
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result], timeout_s: float) -> Result:
        """Run a coroutine there and return its result. ``TimeoutError`` if it takes too long."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except NotYet:  # Of Python 3.10, which has a class of its own for this.
            future.cancel()
            raise TimeoutError(f"the event loop did not do it within {timeout_s:g} s") from None

    def post(self, call: Callable[[], object]) -> None:
        """Have a function called there soon. Does nothing once the loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def close(self) -> None:
        """Let what runs there come to its end, or cancel it, and end the thread. Closing twice is fine."""
        if self._loop.is_closed():
            return
        with suppress(TimeoutError):
            self.run(_wind_up(), _JOIN_S)
        self.post(self._loop.stop)
        self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            self._loop.close()


async def _wind_up() -> None:
    """Wait a moment for other tasks, which calls that were ended may have left a step short of their end."""
    for _ in range(2):
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if not others:
            return
        _, pending = await asyncio.wait(others, timeout=_MOMENT_S)
        for task in pending:
            task.cancel()


def _handle(loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
    """Report what went wrong, but for a race between gRPC's loops: all read one socket, one of them wins."""
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(dict(context))
