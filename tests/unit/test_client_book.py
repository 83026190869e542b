"""The book of a remote source: which batches are asked for, ready, or to be asked for again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from gigl_client.book import Ask, Book
from gigl_loader.channel.frame import Frame
from gigl_loader.sampling.schedule import BatchRequest


def _line() -> Any:
    return SimpleNamespace(load=0, batches=0)


def _ask(book: Book, line: Any, opened: object = None, now: float = 0.0) -> Ask:
    batch = book.next(now)
    assert batch is not None
    request = BatchRequest(book.epoch, batch, np.empty(0, np.int64), np.empty(0, np.int64))
    ask = Ask(request=request, fence=book.fence, line=line, opened=cast("Any", opened), slot=None, since=now)
    book.ask(ask)
    return ask


def _frame() -> Frame:
    return cast("Frame", object())


def _started(num_batches: int = 4, *, in_order: bool = True) -> Book:
    book = Book(num_batches, in_order=in_order)
    book.start(0, 0)
    return book


def test_batches_are_asked_for_in_order_and_once() -> None:
    book, line = _started(3), _line()
    assert [_ask(book, line).request.batch for _ in range(3)] == [0, 1, 2]
    assert book.next(0.0) is None
    assert line.load == 3


def test_batches_are_taken_in_order_whenever_they_come() -> None:
    book, line = _started(3), _line()
    asks = [_ask(book, line) for _ in range(3)]
    frames = [_frame() for _ in range(3)]
    for number in (2, 0):
        book.land(asks[number], frames[number])
    assert [ready.frame for ready in (book.take(),) if ready] == [frames[0]]
    assert book.take() is None
    book.land(asks[1], frames[1])
    assert [ready.frame for ready in (book.take(), book.take()) if ready] == frames[1:]
    assert (book.remaining, line.load, line.batches) == (0, 0, 3)


def test_out_of_order_they_are_taken_as_they_come() -> None:
    book, line = _started(3, in_order=False), _line()
    asks = [_ask(book, line) for _ in range(3)]
    book.land(asks[2], _frame())
    assert book.take() is not None
    assert book.take() is None
    assert book.remaining == 2


def test_a_batch_that_failed_to_come_is_asked_for_again_after_a_pause_that_doubles() -> None:
    book, line, now, pauses = _started(), _line(), 100.0, []
    for _ in range(7):
        ask = _ask(book, line, now=now)
        assert ask.request.batch == 0
        book.put_back(ask, OSError("gone"), now)
        pauses.append(book.next_retry(now) - now)
        assert book.next(now) == 1  # Others need not wait for it.
        now = book.next_retry(now)
        assert book.next_retry(now) == float("inf"), "it waits for a server now, not for a time"
    for pause, whole in zip(pauses, (0.05, 0.1, 0.2, 0.4, 0.5, 0.5, 0.5), strict=True):
        assert 0.7 * whole < pause < 1.01 * whole
    assert book.trouble() is not None
    book.land(_ask(book, line, now=now), _frame())
    book.take()
    assert book.trouble() is None
    assert line.load == 0


def test_the_same_request_is_asked_again() -> None:
    book, line = _started(), _line()
    ask = _ask(book, line)
    book.put_back(ask, None, 0.0)
    assert book.next(0.0) == 0
    assert book.known_request(0) is ask.request


def test_all_that_a_lost_channel_was_asked_for_comes_back() -> None:
    book, lines, channels = _started(), [_line(), _line()], [object(), object()]
    asks = [_ask(book, lines[number % 2], channels[number % 2]) for number in range(4)]
    assert book.put_back_all(cast("Any", channels[0]), 0.0) == 2
    assert [each.load for each in lines] == [0, 2]
    assert [book.is_current(ask) for ask in asks] == [False, True, False, True]
    again = [_ask(book, lines[1], channels[1]).request.batch for _ in range(2)]
    assert again == [0, 2]
    assert not book.is_current(asks[0])


def test_nothing_of_an_epoch_that_was_left_is_current() -> None:
    book, line = _started(), _line()
    ask, late = _ask(book, line), _ask(book, line)
    book.land(late, _frame())
    book.start(0, 0)
    assert not book.is_current(ask)
    assert book.take() is None
    assert book.next(0.0) == 0
    assert book.fence == 2


def test_a_request_that_cannot_be_made_fails_its_batch_only() -> None:
    book, line = _started(2), _line()
    book.fail(0, ValueError("no weights"))
    book.land(_ask(book, line), _frame())
    first, second = book.take(), book.take()
    assert first is not None
    assert second is not None
    assert isinstance(first.frame, ValueError)
    assert (book.remaining, line.load, line.batches) == (0, 0, 1)


def test_a_stopped_book_wants_nothing() -> None:
    book = _started()
    book.stop()
    assert (book.next(0.0), book.remaining) == (None, 0)
