"""Heartbeats: often enough, to every server, and no longer than they are wanted."""

from __future__ import annotations

import queue
import threading
from functools import partial

from gigl_client.cluster import Heartbeats
from gigl_loader.errors import StorageUnavailable
from tests.support.leftovers import wait_until


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gigl-heartbeat"]


def _end(beats: Heartbeats) -> None:
    beats.stop()
    assert wait_until(lambda: not _threads(), seconds=10)


def test_nothing_beats_before_a_lease_is_known() -> None:
    beats = Heartbeats([lambda _, __: None])
    assert _threads() == []
    beats.stop()
    beats.keep(0, b"a", 0.01)
    assert _threads() == []


def test_every_server_is_called_again_and_again_though_one_fails_or_hangs() -> None:
    hung = threading.Event()
    counts = [0] * 20

    def beat(number: int, channels: list[bytes], seconds: float) -> None:
        assert channels == [b"a%d" % number]
        assert seconds <= 0.02 / 2, "three of a thread in one interval"
        counts[number] += 1
        if number == 1:
            raise StorageUnavailable("gone")
        if number == 2:
            hung.wait(30)

    beats = Heartbeats([partial(beat, number) for number in range(20)])
    for number in range(20):
        beats.keep(number, b"a%d" % number, 0.06)
    # Servers 2, 10 and 18 share the thread that hangs.
    others = [number for number in range(20) if number % 8 != 2]
    assert wait_until(lambda: min(counts[number] for number in others) >= 3, seconds=10)
    assert len(_threads()) == 8
    beats.stop()
    hung.set()
    assert wait_until(lambda: not _threads(), seconds=10)


def test_each_server_hears_of_the_channels_that_are_kept_there_and_of_no_others() -> None:
    heard: list[queue.SimpleQueue[list[bytes]]] = [queue.SimpleQueue() for _ in range(2)]
    beats = Heartbeats([lambda channels, _, each=each: each.put(channels) for each in heard])  # type: ignore[misc]
    beats.keep(0, b"a", 0.03)
    beats.keep(0, b"b", 0.03)
    assert wait_until(lambda: sorted(heard[0].get(timeout=10)) == [b"a", b"b"], seconds=10)
    beats.drop(0, b"a")
    beats.drop(1, b"c")
    assert wait_until(lambda: heard[0].get(timeout=10) == [b"b"], seconds=10)
    beats.keep(1, b"c", 300)
    assert heard[1].get(timeout=10) == [b"c"]
    _end(beats)


def test_a_shorter_lease_counts_at_once_and_a_longer_one_after_it_does_not() -> None:
    called: queue.SimpleQueue[None] = queue.SimpleQueue()
    beats = Heartbeats([lambda _, __: called.put(None)])
    beats.keep(0, b"a", 3000)
    assert called.empty()
    beats.keep(0, b"a", 0.03)
    called.get(timeout=10)
    beats.keep(0, b"a", 3000)
    for _ in range(3):
        called.get(timeout=10)
    _end(beats)
