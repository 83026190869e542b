"""What a source says about its servers: in ``stats()``, and when it has waited in vain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gigl_client.book import Book
    from gigl_client.line import Line

__all__ = ["summary", "waiting_text"]

_MOST_NAMED = 8


def summary(lines: Iterable[Line]) -> dict[str, Any]:
    """Return how frames come, in all and by server."""
    return {
        "transport": _one_of(line.transport for line in lines),
        "rows": _one_of(line.rows for line in lines),
        "reconnects": sum(max(line.reconnects, 0) for line in lines),
        "servers": [
            {
                "server": str(line),
                "transport": line.transport,
                "rows": line.rows,
                "batches": line.batches,
                "in_flight": line.load,
                "reconnects": max(line.reconnects, 0),
            }
            for line in lines
        ],
    }


def waiting_text(lines: Iterable[Line], book: Book, timeout: float, now: float) -> str:
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


def _one_of(values: Iterable[str]) -> str:
    """Return the value that all have, but for lines that are not open."""
    found = set(values) - {"none"} or {"none"}
    return found.pop() if len(found) == 1 else "mixed"
