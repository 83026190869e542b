"""Channels of a remote source: what they request, their buffers, and turns of batches."""

from __future__ import annotations

import gc
import threading
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from gigl_client.channels import ChannelConfig, PrivateBuffers, RingBuffers, is_this_host
from gigl_client.receiver import COMPLETING, Turns
from gigl_loader.channel import ring
from gigl_loader.channel.ring import slot_bytes_of
from gigl_loader.errors import FormatError
from gigl_loader.memfile import create_memory
from gigl_loader.rpc.calls import Cancellation, Cancelled
from tests.support.leftovers import wait_until

if TYPE_CHECKING:
    from gigl_client.in_flight import InFlightRequest

PAGE = 4096


def _config(**options: Any) -> ChannelConfig:
    return ChannelConfig(**{"key": "k", "name": "n", "plan": "{}", "graph": "0", **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transport": "pigeon"}, "auto, ring, network"),
        ({"rows": "both"}, "auto, direct, through"),
        ({"prefetch": -1}, "prefetch_size must not be negative, got -1"),
        ({"share": 0}, "at least 1, got 0"),
        ({"timeout_s": 0}, "must be positive"),
    ],
)
def test_nonsense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _config(**options)


def test_credit_covers_an_epoch_that_was_left_and_has_an_end() -> None:
    assert (_config(prefetch=4).credit, _config(prefetch=100).credit) == (16, 64)
    assert [_config(prefetch=each).first_window for each in (0, 1, 4, 100)] == [1, 1, 4, 64]
    assert [_config(prefetch=each).largest_window for each in (0, 1, 4, 100)] == [1, 1, 4, 64]
    adapts = [_config(prefetch=each, most=32) for each in (1, 4, 40)]
    assert [(each.first_window, each.largest_window) for each in adapts] == [(1, 32), (4, 32), (40, 40)]
    assert [each.credit for each in adapts] == [64, 64, 64]


@pytest.mark.parametrize(
    ("rows", "ring", "whole", "columns", "expected"),
    [
        ("auto", False, False, True, True),
        ("auto", True, False, True, False),
        ("auto", False, True, True, False),
        ("auto", False, False, False, False),
        ("direct", True, True, True, True),
        ("direct", False, False, False, False),
        ("through", False, False, True, False),
    ],
)
def test_rows_come_from_owners_where_they_would_travel_twice(
    rows: str, ring: bool, whole: bool, columns: bool, expected: bool
) -> None:
    config = _config(rows=rows)
    found = config.defers_features(ring=ring, defers=config.may_defer(whole=whole, has_columns=columns))
    assert found is expected


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1", True), ("localhost", True), ("192.0.2.7", False), ("no.such.invalid", False)],
)
def test_this_host_is_known_by_what_can_be_bound(host: str, here: bool) -> None:
    assert is_this_host(host) is here
    assert _config().tries_ring(host) is here
    assert _config(transport="ring").tries_ring(host)
    assert not _config(transport="network").tries_ring(host)


def test_slots_are_whole_pages() -> None:
    assert [slot_bytes_of(each, 4) for each in (1, 4 * PAGE, 7 * PAGE, 8 * PAGE)] == [
        PAGE,
        PAGE,
        PAGE,
        2 * PAGE,
    ]


def test_private_memory_is_used_again_and_what_finds_no_slot_is_counted() -> None:
    buffers = PrivateBuffers(2 * PAGE, 2)
    kept = [buffers.lend(PAGE) for _ in range(3)]
    addresses = [each.ctypes.data for each in kept[:2]]
    assert (buffers.crowded_out, buffers.oversize) == (1, 0)
    del kept[0]
    gc.collect()
    assert buffers.lend(10).ctypes.data == addresses[0]
    assert buffers.lend(1000 * PAGE).ctypes.data == addresses[0]  # Only what is touched is memory.
    assert (buffers.crowded_out, buffers.oversize) == (1, 0)


def test_what_is_larger_than_a_slot_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "address_bytes", lambda nbytes: nbytes)  # As under a limit of address space.
    buffers = PrivateBuffers(2 * PAGE, 2)
    assert len(buffers.lend(PAGE + 1)) == PAGE + 1
    assert (buffers.crowded_out, buffers.oversize) == (0, 1)


def test_a_ring_lends_the_slot_that_was_written_to() -> None:
    ring = RingBuffers(create_memory("test", 2 * PAGE), slots=2, slot_bytes=PAGE)
    first, second = ring.take(), ring.take()
    assert (first, second, ring.take()) == (0, 1, None)
    ring.view(1, 3)[:] = np.arange(3)
    lent = ring.lend(1, 3)
    ring.give(0)
    assert ring.take() == 0
    assert lent.tolist() == [0, 1, 2]
    del lent
    gc.collect()
    assert ring.take() == 1


@pytest.mark.parametrize("nbytes", [0, PAGE + 1, 2**60])
def test_a_size_that_is_not_of_a_slot_is_refused(nbytes: int) -> None:
    ring = RingBuffers(create_memory("test", 2 * PAGE), slots=2, slot_bytes=PAGE)
    with pytest.raises(FormatError, match="in a slot of 4096"):
        ring.lend(0, nbytes)


# --- Turns of frames that get the rows of owners


def sent_of(batch: int, cancellation: Cancellation | None = None) -> InFlightRequest:
    request = SimpleNamespace(batch=batch)
    found = SimpleNamespace(fence=0, request=request, cancellation=cancellation or Cancellation())
    return cast("InFlightRequest", found)


def test_lower_batches_have_their_turn_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigl_client.receiver._STUCK_S", 60.0)
    turns, order = Turns(), list[int]()

    def complete(batch: int) -> None:
        with turns.take(sent_of(batch)):
            order.append(batch)
            assert wait_until(lambda: len(order) + len(turns._waiting) == 3)

    threads = [threading.Thread(target=complete, args=(batch,)) for batch in (9, 7, 8)]
    with turns.take(sent_of(0)), ExitStack() as held:
        for _ in range(COMPLETING - 1):
            held.enter_context(turns.take(sent_of(1)))
        for thread in threads:
            thread.start()
        assert wait_until(lambda: len(turns._waiting) == 3)
        held.close()  # One place, while the first turn is held.
        for thread in threads:
            thread.join(20)
    assert order == [7, 8, 9]


def test_turns_that_take_long_leave_others_theirs() -> None:
    turns = Turns()
    with ExitStack() as stuck:
        for batch in range(COMPLETING):
            stuck.enter_context(turns.take(sent_of(batch)))
        with turns.take(sent_of(COMPLETING)):
            assert len(turns._since) == COMPLETING + 1


def test_a_turn_of_a_batch_that_is_not_needed_is_not_waited_for() -> None:
    turns, cancellation = Turns(), Cancellation()
    cancellation.cancel()
    with ExitStack() as held:
        for batch in range(COMPLETING):
            held.enter_context(turns.take(sent_of(batch)))
        with pytest.raises(Cancelled), turns.take(sent_of(9, cancellation)):
            pass
    with turns.take(sent_of(3)):
        pass
