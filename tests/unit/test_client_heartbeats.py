"""Heartbeats: often enough, to every server, and no longer than they are wanted."""

from __future__ import annotations

import threading
from functools import partial

from gigl_client.heartbeats import Heartbeats
from gigl_loader.errors import StorageUnavailable
from tests.support.leftovers import wait_until


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gigl-heartbeat"]


def test_nothing_beats_before_a_lease_is_known() -> None:
    beats = Heartbeats([lambda _: None])
    assert _threads() == []
    beats.stop()
    beats.keep(0.01)
    assert _threads() == []


def test_every_server_is_called_again_and_again_though_one_fails_or_hangs() -> None:
    hung = threading.Event()
    counts = [0] * 20

    def beat(number: int, seconds: float) -> None:
        assert seconds <= 5
        counts[number] += 1
        if number == 1:
            raise StorageUnavailable("gone")
        if number == 2:
            hung.wait(30)

    beats = Heartbeats([partial(beat, number) for number in range(20)])
    beats.keep(0.06)
    # Servers 2, 10 and 18 share the thread that hangs.
    others = [number for number in range(20) if number % 8 != 2]
    assert wait_until(lambda: min(counts[number] for number in others) >= 3, seconds=10)
    assert len(_threads()) == 8
    beats.stop()
    hung.set()
    assert wait_until(lambda: not _threads(), seconds=10)


def test_a_shorter_lease_counts_at_once() -> None:
    called = threading.Event()
    beats = Heartbeats([lambda _: called.set()])
    beats.keep(300)
    assert beats.interval_s == 100
    assert not called.is_set()
    beats.keep(0.03)
    assert called.wait(10)
    beats.keep(300)
    assert beats.interval_s == 0.01
    beats.stop()
    assert wait_until(lambda: not _threads(), seconds=10)
