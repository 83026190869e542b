"""Batches in flight of a remote source: requested, ready, or to be requested again."""

from __future__ import annotations

import math
import threading
import time
from typing import Any, cast

import numpy as np

from gigl_client.channel_pool import ChannelPool
from gigl_client.channels import ChannelConfig
from gigl_client.in_flight import BatchWait, InFlight, InFlightRequest
from gigl_loader.channel.frame import Frame
from gigl_loader.sampling.request import BatchRequest


class _Channel:
    def __init__(self) -> None:
        self.load = self.batches = 0
        self.allowance = 1


def _channel() -> Any:
    return _Channel()


def _ask(in_flight: InFlight, channel: Any, opened: object = None, now: float = 0.0) -> InFlightRequest:
    """Request the next batch, and have a server sample it."""
    batch = in_flight.next(now)
    assert batch is not None
    ask = _sent(in_flight, channel, batch, opened, now)
    in_flight.replied(ask)
    return ask


def _sent(
    in_flight: InFlight, channel: Any, batch: int, opened: object = None, now: float = 0.0
) -> InFlightRequest:
    request = BatchRequest(in_flight.epoch, batch, np.empty(0, np.int64), {})
    ask = InFlightRequest(
        request=request,
        fence=in_flight.fence,
        channel=channel,
        opened=cast("Any", opened),
        slot=None,
        since=now,
    )
    in_flight.add(ask)
    return ask


def _frame() -> Frame:
    return cast("Frame", object())


def _started(num_batches: int = 4, *, in_order: bool = True) -> InFlight:
    in_flight = InFlight(num_batches, in_order=in_order)
    in_flight.start(0, 0)
    return in_flight


def test_batches_are_asked_for_in_order_and_once() -> None:
    in_flight, channel = _started(3), _channel()
    assert [_ask(in_flight, channel).request.batch for _ in range(3)] == [0, 1, 2]
    assert in_flight.next(0.0) is None
    assert channel.load == 3


def test_the_first_batch_of_an_epoch_is_sampled_alone() -> None:
    in_flight, channel = InFlight(4, in_order=True), _channel()
    for epoch in range(2):
        in_flight.start(epoch, 0)
        first = in_flight.next(0.0)
        assert first == 0
        sent = _sent(in_flight, channel, first)
        assert (in_flight.next(0.0), in_flight.has_first) == (None, False)
        assert in_flight.replied(sent)
        assert (in_flight.next(0.0), in_flight.has_first) == (1, False)
        in_flight.land(sent, _frame(), 0.0)
        assert in_flight.has_first


def test_a_first_batch_that_must_be_retried_holds_up_no_other() -> None:
    in_flight, channel = _started(), _channel()
    in_flight.put_back(_sent(in_flight, channel, 0), OSError("gone"), 0.0)
    assert (in_flight.next(0.0), in_flight.has_first) == (1, True)


def test_a_reply_to_an_epoch_that_was_left_begins_none() -> None:
    in_flight, channel = _started(), _channel()
    old = _sent(in_flight, channel, 0)
    in_flight.start(1, 0)
    _sent(in_flight, channel, 0)
    assert not in_flight.replied(old)
    assert in_flight.next(0.0) is None


def test_out_of_order_nothing_waits_for_the_first_batch() -> None:
    in_flight, channel = _started(in_order=False), _channel()
    _sent(in_flight, channel, 0)
    assert (in_flight.next(0.0), in_flight.has_first) == (1, True)


def test_each_received_batch_allows_its_channel_one_more() -> None:
    in_flight, channel = _started(), _channel()
    sent = _sent(in_flight, channel, 0)
    assert channel.allowance == 1
    in_flight.land(sent, _frame(), 0.0)
    assert channel.allowance == 2


def test_batches_are_taken_in_order_whenever_they_come() -> None:
    in_flight, channel = _started(3), _channel()
    asks = [_ask(in_flight, channel) for _ in range(3)]
    frames = [_frame() for _ in range(3)]
    for number in (2, 0):
        in_flight.land(asks[number], frames[number], 0.0)
    assert in_flight.take() is frames[0]
    assert in_flight.take() is None
    in_flight.land(asks[1], frames[1], 0.0)
    assert [in_flight.take(), in_flight.take()] == frames[1:]
    assert (in_flight.remaining, channel.load, channel.batches) == (0, 0, 3)


def test_out_of_order_they_are_taken_as_they_come() -> None:
    in_flight, channel = _started(3, in_order=False), _channel()
    asks = [_ask(in_flight, channel) for _ in range(3)]
    in_flight.land(asks[2], _frame(), 0.0)
    assert in_flight.take() is not None
    assert in_flight.take() is None
    assert in_flight.remaining == 2


def test_a_batch_that_failed_to_come_is_asked_for_again_after_a_pause_that_doubles() -> None:
    in_flight, channel, now, pauses = _started(), _channel(), 100.0, []
    for _ in range(7):
        ask = _ask(in_flight, channel, now=now)
        assert ask.request.batch == 0
        in_flight.put_back(ask, OSError("gone"), now)
        pauses.append(in_flight.next_retry() - now)
        assert in_flight.next(now) == 1  # Others need not wait for it.
        now = in_flight.next_retry()
        assert in_flight.next(now) == 0
        assert in_flight.next_retry() == float("inf"), "it waits for a server now, not for a time"
    for pause, whole in zip(pauses, (0.05, 0.1, 0.2, 0.4, 0.5, 0.5, 0.5), strict=True):
        assert 0.7 * whole < pause < 1.01 * whole
    assert in_flight.delaying_retry() is not None
    in_flight.land(_ask(in_flight, channel, now=now), _frame(), now)
    in_flight.take()
    assert in_flight.delaying_retry() is None
    assert channel.load == 0


def test_a_backoff_that_ends_before_the_wait_begins_ends_the_wait() -> None:
    in_flight, changed = _started(), threading.Condition()
    ask = _ask(in_flight, _channel())
    in_flight.put_back(ask, OSError("gone"), time.monotonic())
    assert in_flight.next(time.monotonic()) == 1
    time.sleep(max(in_flight.next_retry() - time.monotonic(), 0) + 0.01)
    config = ChannelConfig(key="k", name="n", plan="{}", graph="")
    wait = BatchWait(
        ChannelPool([], config, changed, defers=False, heartbeats=cast("Any", None)),
        in_flight,
        changed,
        check_at=lambda: math.inf,
    )
    began = time.monotonic()
    with changed:
        wait.wait(began + 60.0, 60.0)
    assert time.monotonic() - began < 30.0
    assert in_flight.next(time.monotonic()) == 0


def test_the_same_request_is_asked_again() -> None:
    in_flight, channel = _started(), _channel()
    ask = _ask(in_flight, channel)
    in_flight.put_back(ask, None, 0.0)
    assert in_flight.next(0.0) == 0
    assert in_flight.known_request(0) is ask.request


def test_all_that_a_lost_channel_was_asked_for_comes_back() -> None:
    in_flight, channels, opened = _started(), [_channel(), _channel()], [object(), object()]
    asks = [_ask(in_flight, channels[number % 2], opened[number % 2]) for number in range(4)]
    assert in_flight.put_back_all(cast("Any", opened[0]), 0.0) == 2
    assert [each.load for each in channels] == [0, 2]
    assert [in_flight.is_current(ask) for ask in asks] == [False, True, False, True]
    again = [_ask(in_flight, channels[1], opened[1]).request.batch for _ in range(2)]
    assert again == [0, 2]
    assert not in_flight.is_current(asks[0])


def test_nothing_of_an_epoch_that_was_left_is_current() -> None:
    in_flight, channel = _started(), _channel()
    ask, late = _ask(in_flight, channel), _ask(in_flight, channel)
    in_flight.land(late, _frame(), 0.0)
    in_flight.start(0, 0)
    assert not in_flight.is_current(ask)
    assert in_flight.take() is None
    assert in_flight.next(0.0) == 0
    assert in_flight.fence == 2


def test_a_request_that_cannot_be_made_fails_its_batch_only() -> None:
    in_flight, channel = _started(2), _channel()
    in_flight.fail(0, ValueError("no weights"))
    in_flight.land(_ask(in_flight, channel), _frame(), 0.0)
    first, second = in_flight.take(), in_flight.take()
    assert first is not None
    assert second is not None
    assert isinstance(first, ValueError)
    assert (in_flight.remaining, channel.load, channel.batches) == (0, 0, 1)


def test_a_late_batch_is_requested_from_a_second_server_and_the_loser_returned() -> None:
    in_flight, channels = _started(), [_channel(), _channel()]
    first = _ask(in_flight, channels[0], now=100.0)
    _ask(in_flight, channels[0], now=100.0)
    assert in_flight.late_at() == 101.0
    assert in_flight.late(100.9) is None
    assert in_flight.late_at() == 101.0
    assert in_flight.late(101.0) is first
    assert in_flight.late_at() == float("inf"), "no other server could take it"
    second = _sent(in_flight, channels[1], 0, now=101.0)
    assert in_flight.late_at() == 102.0, "a third server is asked where this one stalls, too"
    assert in_flight.oldest_awaited() is first
    assert in_flight.land(second, _frame(), 101.5) == [first]
    assert not in_flight.is_current(first)
    assert [each.load for each in channels] == [1, 1]
    assert in_flight.take() is not None
    assert [each.load for each in channels] == [1, 0]


def test_a_batch_whose_first_server_fails_is_left_to_the_second() -> None:
    in_flight, channels = _started(), [_channel(), _channel()]
    first = _ask(in_flight, channels[0], now=100.0)
    second = _sent(in_flight, channels[1], 0, now=101.0)
    in_flight.put_back(first, OSError("gone"), 101.5)
    assert in_flight.next(101.5) == 1
    assert in_flight.oldest_awaited() is second
    assert in_flight.late_at() == 102.0, "a third server is asked where this one stalls, too"


def test_a_stopped_book_wants_nothing() -> None:
    in_flight = _started()
    in_flight.stop()
    assert (in_flight.next(0.0), in_flight.remaining) == (None, 0)
