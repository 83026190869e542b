"""Threads that open channels, again and again until it works: a server may be away for a while."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from gigl_client.line import bare, close_channel, may_pass, open_channel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gigl_client.cluster import Server
    from gigl_client.line import Opened
    from gigl_client.terms import Terms

__all__ = ["Opening", "at_once"]

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


class Opening:
    """One server's channel in the making. The thread ends with the outcome."""

    def __init__(
        self,
        server: Server,
        terms: Terms,
        *,
        num_servers: int,
        has_columns: bool,
        before: Opened | None,
        closed: threading.Event,
        tried: Callable[[Exception], None],
        done: Callable[[Opened | Exception], bool],
    ) -> None:
        """``before`` is the channel that was lost: it is closed, in case that the server still has it.

        ``tried`` hears why an attempt failed. ``done`` hears the end: a channel, or what no other attempt
        can mend, or the last of those that failed in ``terms.timeout_s``; it returns whether it has use
        for the channel.
        """
        self._server = server
        self._terms = terms
        self._num_servers = num_servers
        self._has_columns = has_columns
        self._before = before
        self._closed = closed
        self._tried = tried
        self._done = done

    def start(self) -> None:
        rank = self._server.endpoint.host_index
        threading.Thread(target=self._run, name=f"open channel at {rank}", daemon=True).start()

    def _run(self) -> None:
        if self._before is not None:  # First: a server that drains waits until what it had ready is gone.
            close_channel(self._server, self._before.id)
        outcome = self._attempts()
        wanted = self._done(outcome)
        if not isinstance(outcome, Exception) and not wanted:
            close_channel(self._server, outcome.id)

    def _attempts(self) -> Opened | Exception:
        give_up = time.monotonic() + self._terms.timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return open_channel(
                    self._server,
                    self._terms,
                    num_servers=self._num_servers,
                    has_columns=self._has_columns,
                )
            except Exception as error:
                failure = bare(error)
                if not may_pass(failure) or time.monotonic() > give_up:
                    return failure
                self._tried(failure)
                if self._closed.wait(pause_s):
                    return failure
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def at_once(jobs: Sequence[Callable[[], None]], *, seconds: float) -> None:
    """Do these things at the same time, in threads, and wait for their end so long at most."""
    threads = [threading.Thread(target=job, name="close", daemon=True) for job in jobs]
    deadline = time.monotonic() + seconds
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:  # At the end of the interpreter, none can be started: leases end what is left.
        return
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
