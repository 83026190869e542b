"""Batches that are requested from a second server: what becomes of the first, and of its request."""

from __future__ import annotations

import math
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from gigl_client.channels import Channel
from gigl_client.receiver import Receiver
from gigl_loader.rpc.store_client import StoreClient
from gigl_loader.sampling.frame_writer import Completion
from gigl_server.sampling.frame_maker import FrameMaker
from gigl_server.sampling.scheduler import Scheduler
from tests.support.leftovers import wait_until
from tests.support.remote_sources import SmallCluster, served
from tests.support.sources import NUM_BATCHES, drain, sampled_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gigl_client.in_flight import InFlightRequest
    from gigl_client.source import RemoteSource
    from gigl_loader.rpc.reply_stream import ReplyStream

SOON_S = 60.0
STALLED_S = 1.0


@pytest.fixture(scope="module")
def servers() -> Iterator[SmallCluster]:
    with pytest.MonkeyPatch.context() as patches, served(2, patches) as small:
        yield small


@pytest.fixture
def two(servers: SmallCluster, monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    """Two servers, which count as stalled soon."""
    monkeypatch.setattr("gigl_loader.rpc.calls._STALLED_S", 0.2)
    return servers


@pytest.fixture(scope="module")
def expected() -> list[bytes]:
    return sampled_frames(0)


def opened(two: SmallCluster, transport: str = "network", rows: str = "through") -> RemoteSource:
    source = two.open(transport=transport, rows=rows, prefetch=4)
    source.wait_until_up(SOON_S)
    return source


def used(source: RemoteSource) -> list[int]:
    """Return the batches that each server has delivered."""
    return [each["batches"] for each in source.stats()["servers"]]


class HeldReplies:
    """Replies of the first server, once ``holds``: as where it has stopped in the middle of them."""

    def __init__(self, two: SmallCluster, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.cancelled = 0
        self.holds = False
        self._left = count
        self._lock = threading.Lock()
        server, read = two.cluster.servers[0], Receiver.read

        def held_read(receiver: Receiver, sent: InFlightRequest, reply: ReplyStream) -> Any:
            with self._lock:
                held = self.holds and self._left > 0 and sent.channel.server is server
                self._left -= held
            if held:
                ended = sent.cancellation.wait(SOON_S)
                with self._lock:
                    self.cancelled += ended
            return read(receiver, sent, reply)

        monkeypatch.setattr(Receiver, "read", held_read)


@pytest.mark.parametrize("count", [1, 2])
def test_a_server_whose_frames_are_late_delays_no_other_and_is_used_again(
    two: SmallCluster, expected: list[bytes], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The server had replied before: no other reply would end its being passed over."""
    replies = HeldReplies(two, monkeypatch, count)
    with closing(opened(two)) as source:
        source.start_epoch(0)
        frames = drain(source, 1)
        replies.holds = True
        assert frames + drain(source, NUM_BATCHES - 1) == expected
        assert source.stats()["hedged"] > 0
        assert wait_until(lambda: replies.cancelled > 0, seconds=SOON_S)
        assert not source.stats()["retries"], "a reply ended by its timeout"
        before = used(source)

        def both_are_used() -> bool:
            source.start_epoch(0)
            assert drain(source) == expected
            return all(now > was for now, was in zip(used(source), before, strict=True))

        assert wait_until(both_are_used, seconds=SOON_S)


class LongStep:
    """A step of the only outstanding batch, longer than a server may be silent."""

    def __init__(self, source: RemoteSource) -> None:
        self._source = source
        self._hedged: list[int] = []

    def take(self, tick: Callable[[], None] = lambda: None) -> None:
        """Take the step, and call ``tick`` meanwhile."""
        self._hedged.append(self._source.stats()["hedged"])
        until = time.monotonic() + 2.5 * STALLED_S
        while time.monotonic() < until:
            tick()
            time.sleep(0.05)
        self._hedged.append(self._source.stats()["hedged"])

    def check(self, expected: list[bytes]) -> None:
        """Receive a batch with that step. Fails if it was requested again during the step."""
        self._source.start_epoch(0, NUM_BATCHES - 1)
        assert drain(self._source, 1) == expected[-1:]
        assert len(set(self._hedged)) == 1, self._hedged


def test_a_frame_that_comes_slowly_is_not_requested_from_another_server(
    two: SmallCluster, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the network is the bottleneck, second frames would make it worse."""
    monkeypatch.setattr("gigl_loader.rpc.calls._STALLED_S", STALLED_S)
    with closing(opened(two)) as source:
        step = LongStep(source)

        read = Receiver.read

        def slowly(receiver: Receiver, sent: InFlightRequest, reply: ReplyStream) -> Any:
            step.take(sent.cancellation.hear)
            return read(receiver, sent, reply)

        monkeypatch.setattr(Receiver, "read", slowly)
        step.check(expected)


def test_a_batch_that_lacks_rows_alone_is_not_requested_from_another_server(
    two: SmallCluster, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows come from their owners, whichever server has sampled it."""
    monkeypatch.setattr("gigl_loader.rpc.calls._STALLED_S", STALLED_S)
    monkeypatch.setattr("gigl_client.channels.ChannelConfig.may_defer", lambda *_, **__: True)
    write = Completion.write
    with closing(opened(two, rows="direct")) as source:
        step = LongStep(source)

        def late(*arguments: Any) -> None:
            step.take()
            write(*arguments)

        monkeypatch.setattr(Completion, "write", late)
        step.check(expected)


class SlowServer:
    """Samples nothing while it is held; records what it drops."""

    def __init__(self, two: SmallCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.dropped: list[int] = []
        self.dropped_slots = 0
        self.held: list[int] = []
        self.probes = 0
        make, abandon, probe = FrameMaker.make, Scheduler.abandon, StoreClient.probe

        def made(maker: FrameMaker, task: Any, thread: int) -> Any:
            if maker is two.service(0)._maker and not self.go.is_set():
                self.held.append(task.request.batch)
                while not (self.go.wait(0.01) or task.is_stale()):
                    pass
            return make(maker, task, thread)

        def abandoned(scheduler: Scheduler, task: Any) -> None:
            self.dropped.append(task.request.batch)
            self.dropped_slots += task.slot > 0
            abandon(scheduler, task)

        def probed(client: StoreClient, channel: bytes, timeout_s: float) -> Any:
            self.probes += 1
            return probe(client, channel, timeout_s)

        monkeypatch.setattr(FrameMaker, "make", made)
        monkeypatch.setattr(Scheduler, "abandon", abandoned)
        monkeypatch.setattr(StoreClient, "probe", probed)


def test_the_loser_is_cancelled_and_its_server_drops_the_batch(
    two: SmallCluster, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowServer(two, monkeypatch)
    with closing(opened(two)) as source:
        source.start_epoch(0)
        assert drain(source) == expected
        assert slow.held
        assert wait_until(lambda: set(slow.held) <= set(slow.dropped), seconds=SOON_S)
        assert wait_until(lambda: not two.service(0).load().busy, seconds=SOON_S)
        assert slow.probes
        stats = source.stats()
        assert (stats["retries"], stats["reconnects"]) == (0, 0)
        slow.go.set()
        before = used(source)

        def is_used() -> bool:
            source.start_epoch(0)
            assert drain(source) == expected
            return used(source)[0] > before[0]

        assert wait_until(is_used, seconds=SOON_S)


def test_a_slot_that_the_loser_may_write_to_is_not_used_again(
    two: SmallCluster, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server goes on, and its reply frees the slot."""
    slow = SlowServer(two, monkeypatch)
    with closing(opened(two, "ring")) as source:
        for _ in range(3):
            source.start_epoch(0)
            assert drain(source) == expected
        assert slow.held
        assert not slow.dropped_slots
        assert not slow.probes
        slow.go.set()
        for _ in range(3):
            source.start_epoch(0)
            assert drain(source) == expected
        assert not source.stats()["reconnects"]


def test_a_late_server_is_passed_over_for_longer_each_time() -> None:
    channel = Channel(object(), 4)  # type: ignore[arg-type]
    assert not channel.late
    for sent_s, pause_s in ((3.0, 3.0), (1.0, 6.0), (1.0, 10.0), (20.0, 10.0)):
        channel.is_late(sent_s)
        assert channel.late_until == math.inf
        before = time.monotonic()
        channel.is_alive()
        assert before + pause_s <= channel.late_until <= time.monotonic() + pause_s
        channel.late_until = before  # The pause is over.
    channel.responds()
    assert not channel.late
