"""How long a batch is waited for, and what is said when it does not come."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gigl_client.line import may_pass
from gigl_loader.errors import SamplingError, StorageUnavailable

if TYPE_CHECKING:
    import threading

    from gigl_client.book import Book, Trouble
    from gigl_client.line import Line
    from gigl_client.lines import Lines

__all__ = ["Patience"]

_MOST_NAMED = 8
_LONGEST_WAIT_S = 3600.0  # At a time: locks take no endless ones.


class Patience:
    """Waits for what servers do. Used under the lock of the exchange."""

    def __init__(self, lines: Lines, book: Book, changed: threading.Condition, *, timeout_s: float) -> None:
        """A server that does not answer, or a batch that cannot be had, is tried for ``timeout_s``."""
        self._lines = lines
        self._book = book
        self._changed = changed
        self._timeout_s = timeout_s
        self._calm = 0.0
        self._received = -1

    def wait(self, deadline: float, timeout: float) -> None:
        """Wait until something changes or a batch may be asked for again.

        ``StorageUnavailable`` where a server or the owner of nodes was tried for long enough, or another
        attempt cannot mend it; ``ValueError`` for a mistake of the caller's; ``TimeoutError`` at
        ``deadline``, which is ``timeout`` s after the wait began. All of them may be followed by another
        wait.
        """
        now = time.monotonic()
        if self._book.taken != self._received:  # Something came: patience begins anew.
            self._received, self._calm = self._book.taken, now
        self._check_lines(now, began=deadline - timeout)
        trouble = self._book.trouble()
        give_up = float("inf") if trouble is None else max(trouble[1].since, self._calm) + self._timeout_s
        if trouble is not None and now >= give_up:
            self._calm = now
            raise _unavailable(self._book.epoch, *trouble, now)
        if now >= deadline:
            raise self._timed_out(now, timeout, trouble)
        until = min(deadline, give_up, self._book.next_retry(now))
        self._changed.wait(min(max(until - now, 0.001), _LONGEST_WAIT_S))

    def _check_lines(self, now: float, *, began: float) -> None:
        """Raise what ended the attempts to open a channel. The next wait begins them again.

        So does this one where they began before it: that they failed was told already, or concerned nobody.
        """
        for line in self._down():
            error = line.failure
            if error is not None and not line.opening:
                if may_pass(error) and line.tries_since < began:
                    self._lines.open_all()
                    return
                line.failure = None
                raise _not_reached(line, error, now) if may_pass(error) else _refused(line, error)

    def _timed_out(self, now: float, timeout: float, trouble: tuple[int, Trouble] | None) -> Exception:
        for line in self._down():
            if line.failure is not None and (trouble is None or line.down_since < trouble[1].since):
                return _not_reached(line, line.failure, now)
        if trouble is not None:  # For longer than any server is away.
            return _unavailable(self._book.epoch, *trouble, now)
        return TimeoutError(_waiting_text(self._lines, self._book, timeout, now))

    def _down(self) -> list[Line]:
        """Return the servers that are away, longest first: others may only be waiting for it."""
        return sorted((line for line in self._lines if line.opened is None), key=lambda line: line.down_since)


def _refused(line: Line, error: Exception) -> Exception:
    """Return what to raise for what another attempt cannot mend.

    Never a plain ``SamplingError``: it says that a batch was consumed.
    """
    if isinstance(error, SamplingError):
        return StorageUnavailable(_named(line, error))
    return error


def _not_reached(line: Line, error: Exception, now: float) -> StorageUnavailable:
    seconds = now - line.down_since
    return StorageUnavailable(f"{_named(line, error)} (away for {seconds:.1f} s)")


def _named(line: Line, error: Exception) -> str:
    text = str(error)
    return text if str(line) in text else f"{line}: {text}"


def _unavailable(epoch: int, batch: int, trouble: Trouble, now: float) -> StorageUnavailable:
    seconds = now - trouble.since
    return StorageUnavailable(
        f"batch {batch} of epoch {epoch}: {trouble.error} (asked for it for {seconds:.1f} s)"
    )


def _waiting_text(lines: Lines, book: Book, timeout: float, now: float) -> str:
    """Return a line that tells what is waited for, and what each server is asked for since when."""
    wanted = f"no batch within {timeout:g} s ({book.wanted} of epoch {book.epoch})"
    if book.epoch < 0:
        wanted = f"the storage servers were not ready within {timeout:g} s"
    return "; ".join([wanted, *(f"{line} {_state(line, book, now)}" for line in lines)])


def _state(line: Line, book: Book, now: float) -> str:
    if line.opened is None:
        return f"is away for {now - line.down_since:.1f} s"
    asks = sorted((ask for ask in book.asked.values() if ask.line is line), key=lambda ask: ask.request.batch)
    if not asks:
        return "is asked for nothing"
    named = ", ".join(f"{ask.request.batch} ({now - ask.since:.1f} s)" for ask in asks[:_MOST_NAMED])
    more = f" and {len(asks) - _MOST_NAMED} others" if len(asks) > _MOST_NAMED else ""
    return f"is asked for batches {named}{more}"
