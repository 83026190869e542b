"""A remote source when servers are slow, busy, forgetful or gone."""

from __future__ import annotations

import gc
import itertools
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gigl_client.channels import RingBuffers
from gigl_client.in_flight import InFlightRequest
from gigl_client.receiver import Receiver
from gigl_client.source import RemoteSource
from gigl_loader.channel.ring import slot_of
from gigl_loader.errors import FormatError, SamplingError, StorageUnavailable
from gigl_loader.native import StreamClosed
from gigl_loader.rpc.connection import Connection
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.sampling.request import SEED
from gigl_loader.sampling.schedule import Schedule
from gigl_server.sampling.frame_maker import FrameMaker
from gigl_server.sampling.scheduler import Scheduler
from gigl_server.sampling.service import SamplingService
from tests.support.leftovers import wait_until
from tests.support.remote_sources import SmallCluster, served
from tests.support.sources import NUM_BATCHES, PLAN, bytes_of, drain, sampled_frames, small_schedule


@pytest.fixture(scope="module")
def clusters() -> Iterator[dict[int, SmallCluster]]:
    with pytest.MonkeyPatch.context() as patches, served(1, patches) as one, served(2, patches) as two:
        yield {1: one, 2: two}


@pytest.fixture
def one(clusters: dict[int, SmallCluster]) -> Iterator[SmallCluster]:
    yield from _fresh(clusters[1])


@pytest.fixture
def two(clusters: dict[int, SmallCluster]) -> Iterator[SmallCluster]:
    yield from _fresh(clusters[2])


def _fresh(small: SmallCluster) -> Iterator[SmallCluster]:
    small.sampled.clear()
    yield small
    small.gate.set()


@pytest.fixture(scope="module")
def expected() -> list[bytes]:
    return sampled_frames(0)


class Calls:
    """Requests for batches that sources of this process sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[InFlightRequest] = []

        message = InFlightRequest.message

        def recorded(sent: InFlightRequest) -> bytes:
            self.sent.append(sent)
            return message(sent)

        monkeypatch.setattr(InFlightRequest, "message", recorded)

    @property
    def under_way(self) -> list[int]:
        return sorted(sent.request.batch for sent in self.sent if not sent.replied)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


class Slots:
    """Slots of rings that sources of this process took, and those that came back without a frame."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken = self.given = 0
        take, give = RingBuffers.take, RingBuffers.give

        def taking(ring: RingBuffers) -> int | None:
            slot = take(ring)
            self.taken += slot is not None
            return slot

        def giving(ring: RingBuffers, slot: int) -> None:
            give(ring, slot)
            self.given += 1

        monkeypatch.setattr(RingBuffers, "take", taking)
        monkeypatch.setattr(RingBuffers, "give", giving)

    @property
    def all_are_back(self) -> bool:
        given = self.given  # First: more may be taken meanwhile.
        return given == self.taken


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> Slots:
    return Slots(monkeypatch)


KINDS = [("ring", "auto"), ("network", "through"), ("network", "direct")]


@pytest.mark.parametrize("prefetch", [1, 3])
def test_prefetching_begins_with_the_epoch_and_has_a_bound(
    two: SmallCluster, expected: list[bytes], calls: Calls, prefetch: int
) -> None:
    with closing(two.open(prefetch=prefetch)) as source:
        source.wait_until_up(20)
        two.gate.clear()
        source.start_epoch(0)
        assert calls.under_way == [0]  # Alone: the trainer waits for it.
        two.gate.set()
        assert wait_until(lambda: len(calls.sent) == 2 * prefetch and not calls.under_way)
        # Frames that nobody received are in flight, too.
        assert not wait_until(lambda: len(calls.sent) > 2 * prefetch, seconds=0.2)
        assert len(two.sampled) == 2 * prefetch
        assert drain(source) == expected


@pytest.mark.parametrize("transport", ["ring", "network"])
def test_more_batches_are_in_flight_while_the_trainer_waits_for_a_server_with_free_threads(
    expected: list[bytes], monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    make = FrameMaker._made

    def slow(maker: FrameMaker, task: Any) -> Any:
        time.sleep(0.02)
        return make(maker, task)

    monkeypatch.setattr(FrameMaker, "_made", slow)
    with (
        served(1, monkeypatch, workers=8) as small,
        closing(small.open(prefetch=1, most=8, transport=transport)) as source,
    ):

        def window() -> int:
            source.start_epoch(0)
            assert drain(source) == expected
            (server,) = source.stats()["servers"]
            return int(server["window"])

        assert wait_until(lambda: window() >= 6, seconds=60)
        assert source.stats()["oversize"] == 0


def test_both_servers_get_their_share(two: SmallCluster) -> None:
    with closing(two.open()) as source:
        source.wait_until_up(20)
        source.start_epoch(0)
        drain(source)
        shares = [each["batches"] for each in source.stats()["servers"]]
    assert sum(shares) == NUM_BATCHES
    assert min(shares) >= 2


def test_without_prefetching_a_batch_is_asked_for_when_it_is_needed(
    two: SmallCluster, expected: list[bytes], calls: Calls
) -> None:
    with closing(two.open(prefetch=0)) as source:
        source.wait_until_up(20)
        source.start_epoch(0)
        assert not calls.sent
        for number in range(3):
            assert bytes_of(source.receive(20)) == expected[number]
            assert [each.batch for each in two.sampled] == list(range(number + 1))


def test_out_of_order_every_batch_comes_once(two: SmallCluster, expected: list[bytes]) -> None:
    with closing(two.open(in_order=False)) as source:
        for _ in range(2):
            source.start_epoch(0)
            assert sorted(drain(source)) == sorted(expected)


def test_a_wait_in_vain_names_servers_and_what_each_is_asked_for(
    two: SmallCluster, expected: list[bytes]
) -> None:
    two.gate.clear()
    with closing(two.open(prefetch=2)) as source:
        source.wait_until_up(20)
        source.start_epoch(0)
        with pytest.raises(
            TimeoutError,
            match=r"no batch within 0.05 s \(batch 0 of epoch 0\); "
            r"storage server 0 at 127\.\S+ is asked for batches 0 \(\d+\.\d s\); "
            r"storage server 1 at 127\.\S+ is asked for nothing",
        ):
            source.receive(0.05)
        two.gate.set()
        assert drain(source) == expected


@pytest.mark.parametrize(("transport", "rows"), KINDS)
def test_a_server_that_is_started_again_goes_on_where_it_was(
    two: SmallCluster, expected: list[bytes], transport: str, rows: str
) -> None:
    with closing(two.open(transport=transport, rows=rows)) as source:
        source.start_epoch(0)
        frames = drain(source, 3)
        two.stop(1)
        two.start(1)
        assert frames + drain(source, NUM_BATCHES - 3) == expected
        source.start_epoch(0)
        assert drain(source) == expected
        source.wait_until_up(20)
        stats = source.stats()
    assert (stats["reconnects"], stats["batches"]) == (1, 2 * NUM_BATCHES)


def test_a_server_that_stays_away_is_named_and_waited_for_again(
    one: SmallCluster, expected: list[bytes]
) -> None:
    with closing(one.open(timeout_s=0.5)) as source:
        source.start_epoch(0)
        frames = drain(source, 2)
        one.stop(0)
        with pytest.raises(StorageUnavailable, match=r"storage server 0 at 127.*\(away for \d"):
            _receive_all(source, frames)
        with pytest.raises(StorageUnavailable, match=r"storage server 0 at 127.*\(away for \d"):
            source.receive(5)
        with pytest.raises(StorageUnavailable, match=r"^storage server 0 at 127") as raised:
            source.receive(0.1)
        [away] = re.findall(
            r": nothing listens there: did its service end\? \(away for ([0-9.]+) s\)$", str(raised.value)
        )
        assert float(away) >= 1  # As long as all waits together, not only the last.
        one.start(0)
        assert wait_until(lambda: _is_up(source))
        assert frames + drain(source, NUM_BATCHES - len(frames)) == expected
        assert source.stats()["reconnects"] == 1


def _receive_all(source: RemoteSource, frames: list[bytes]) -> None:
    while True:
        frames.append(bytes_of(source.receive(5)))


def _is_up(source: RemoteSource) -> bool:
    with suppress(StorageUnavailable):
        source.wait_until_up(1)
        return True
    return False


def _close_channels(service: SamplingService) -> None:
    """Close every channel, each with its producer."""
    for channel in service.load().channels:
        service.destroy_producer(channel.job, channel.key)


def test_a_channel_that_is_not_known_any_more_is_opened_again_at_once(
    two: SmallCluster, expected: list[bytes]
) -> None:
    with closing(two.open()) as source:
        source.start_epoch(0)
        frames = drain(source, 3)
        for server in (0, 1):
            _close_channels(two.service(server))
        assert frames + drain(source, NUM_BATCHES - 3) == expected
        assert source.stats()["reconnects"] == 2


def test_batches_whose_owners_did_not_answer_are_asked_for_again(
    one: SmallCluster, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter([True, True, False])
    failing = _Failing(lambda batch: batch == 4 and next(left, False), StorageUnavailable("host 1 is away"))
    monkeypatch.setattr(one, "faults", failing)
    with closing(one.open()) as source:
        source.start_epoch(0)
        assert drain(source) == expected
        assert source.stats()["retries"] == 2


def test_owners_that_stay_away_are_named_and_nothing_is_lost(
    one: SmallCluster, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = _Failing(lambda batch: batch >= 4, StorageUnavailable("host 1 is away"))
    monkeypatch.setattr(one, "faults", failing)
    with closing(one.open(timeout_s=0.3)) as source:
        source.start_epoch(0)
        frames = drain(source, 4)
        for _ in range(2):
            with pytest.raises(
                StorageUnavailable,
                match=r"batch 4 of epoch 0: storage server 0 at 127\S+ host 1 is away \(asked for it for",
            ):
                source.receive(5)
        monkeypatch.setattr(one, "faults", None)
        while len(frames) < NUM_BATCHES:
            with suppress(StorageUnavailable):  # What was asked for before may fail still.
                frames.append(bytes_of(source.receive(20)))
        assert frames == expected


def test_replies_that_break_off_are_requested_again_over_the_same_channel(
    one: SmallCluster, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, read = itertools.count(), Receiver.read

    def broken(*arguments: Any) -> Any:
        if next(failures) < 16:  # As behind a line that is cut.
            raise StreamClosed("the other side closed the connection")
        return read(*arguments)

    monkeypatch.setattr(Receiver, "read", broken)
    with closing(one.open(transport="network")) as source:
        source.start_epoch(0)
        assert drain(source) == expected
        assert (source.stats()["retries"], source.stats()["reconnects"]) == (16, 0)
    assert wait_until(lambda: len(one.service(0).frames) == 0)


def test_a_data_port_that_stays_away_is_told_and_nothing_is_lost(
    one: SmallCluster, expected: list[bytes]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise StreamClosed("no way there")

    with closing(one.open(transport="network", timeout_s=0.5)) as source:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Receiver, "read", fail)
            source.start_epoch(0)
            with pytest.raises(
                StorageUnavailable, match=r"batch 0 of epoch 0: .* no way there \(asked for it"
            ):
                source.receive(5)
        frames: list[bytes] = []
        while len(frames) < NUM_BATCHES:
            with suppress(StorageUnavailable):  # What was asked for before may fail still.
                frames.append(bytes_of(source.receive(20)))
    assert frames == expected


def test_a_slot_is_not_used_again_while_its_server_may_write_to_it(
    one: SmallCluster, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    sample, broken = Connection.sample, threading.Event()

    def break_first(connection: Connection, request: bytes, *arguments: Any, **options: Any) -> Any:
        if broken.is_set():
            return sample(connection, request, *arguments, **options)
        broken.set()

        def wait() -> None:
            with suppress(SamplingError):
                sample(connection, request, *arguments, **options)

        threading.Thread(target=wait).start()  # The request goes on at the server, which waits at the gate.
        raise StorageUnavailable("the connection broke")

    one.gate.clear()
    monkeypatch.setattr(Connection, "sample", break_first)
    with closing(one.open(transport="ring")) as source:
        source.start_epoch(0)
        assert wait_until(lambda: source.stats()["retries"] > 0 and source.stats()["reconnects"] > 0)
        one.gate.set()
        assert drain(source) == expected


def test_a_busy_server_is_asked_again(
    one: SmallCluster, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, calls = one.service(0).submit, []

    def busy(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) in (1, 2, 6):
            raise Refusal(RefusalKind.BUSY, "too much to do")
        return submit(*arguments)

    monkeypatch.setattr(one.service(0), "submit", busy)
    with closing(one.open()) as source:
        source.start_epoch(0)
        assert drain(source) == expected
        assert (source.stats()["retries"], source.stats()["reconnects"]) == (3, 0)


def test_bytes_that_are_no_frame_fail_their_batch_only(
    one: SmallCluster, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = Scheduler.finish

    def damaged(asks: Scheduler, task: Any, outcome: Any) -> None:
        if task.request.batch == 2 and task.channel.ring is not None:
            task.channel.ring.slot(task.slot)[:100] = 255
        finish(asks, task, outcome)

    monkeypatch.setattr(Scheduler, "finish", damaged)
    with closing(one.open(transport="ring")) as source:
        source.start_epoch(0)
        assert drain(source, 2) == expected[:2]
        with pytest.raises(FormatError, match="frame"):
            source.receive(20)
        assert drain(source, NUM_BATCHES - 3) == expected[3:]


@pytest.mark.parametrize("kind", [RefusalKind.INVALID, RefusalKind.BUSY])
def test_asks_that_are_refused_use_no_slot_up(
    one: SmallCluster,
    expected: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
    slots: Slots,
    kind: RefusalKind,
) -> None:
    def refuse(*_: Any) -> Any:
        asked.append(None)
        raise Refusal(kind, "no")

    asked: list[None] = []
    with closing(one.open(transport="ring", prefetch=2)) as source:
        source.wait_until_up(20)
        with monkeypatch.context() as patches:
            patches.setattr(one.service(0), "submit", refuse)
            for epoch in range(12):
                source.start_epoch(epoch)
                assert wait_until(lambda: slots.all_are_back)
        assert len(asked) > 10, "there are ten slots"
        source.start_epoch(0)
        assert drain(source) == expected
        stats = source.stats()
    assert (stats["transport"], stats["wire_bytes_in"]) == ("ring", 0)


def test_a_size_that_is_not_of_a_slot_uses_no_slot_up(
    one: SmallCluster, expected: list[bytes], slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(one.open(transport="ring", prefetch=2)) as source:
        source.wait_until_up(20)
        with monkeypatch.context() as patches:
            patches.setattr(RingBuffers, "view", _no_size)
            patches.setattr(RingBuffers, "lend", _no_size)
            for _ in range(6):
                source.start_epoch(0)
                for _ in range(2):
                    with pytest.raises(FormatError, match="no size"):
                        source.receive(20)
            assert wait_until(lambda: slots.all_are_back)
        source.start_epoch(0)
        assert drain(source) == expected
        assert source.stats()["wire_bytes_in"] == 0


def _no_size(*_: Any) -> None:
    raise FormatError("no size")


def test_a_channel_that_is_lost_is_noticed_while_frames_are_read(
    one: SmallCluster, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What failed does not wait for replies that come slowly."""
    reading, sample, read_all = threading.Semaphore(0), threading.Event(), threading.Event()
    make, read, received, at_once = FrameMaker.make, Receiver.read, 3, 2

    def held_up(receiver: Receiver, sent: Any, reply: Any) -> Any:
        if sent.request.batch >= received:
            reading.release()
            assert read_all.wait(30)
        return read(receiver, sent, reply)

    def made(maker: FrameMaker, task: Any, thread: int) -> Any:
        assert task.request.batch < received + at_once or sample.wait(30)
        return make(maker, task, thread)

    monkeypatch.setattr(Receiver, "read", held_up)
    monkeypatch.setattr(FrameMaker, "make", made)
    with closing(one.open(transport="network", prefetch=at_once + 1)) as source:
        source.start_epoch(0)
        frames = drain(source, received)
        try:
            assert all(reading.acquire(timeout=20) for _ in range(at_once))
            _close_channels(one.service(0))
            sample.set()
            assert wait_until(lambda: source.stats()["reconnects"] == 1)
        finally:
            sample.set()
            read_all.set()
        assert frames + drain(source, NUM_BATCHES - received) == expected


def test_calls_under_way_end_with_the_source(two: SmallCluster, calls: Calls) -> None:
    """They would keep the memory that they were to fill."""
    two.gate.clear()
    source = two.open()
    source.wait_until_up(20)
    source.start_epoch(0)
    assert calls.under_way
    source.close()
    assert wait_until(lambda: not calls.under_way)


def test_without_a_thread_to_be_had_a_channel_is_opened_by_the_next_call(
    one: SmallCluster, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name.startswith("open channel"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patches:
        patches.setattr(threading.Thread, "start", fail)
        source = one.open()
    with closing(source):
        source.start_epoch(0)
        assert drain(source) == expected


def test_a_ring_can_be_insisted_on(one: SmallCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one.service(0), "ring_door", "")
    with closing(one.open(transport="ring")) as source:
        for _ in range(2):
            with pytest.raises(SamplingError, match=r'hands out no rings: set transport="network"'):
                source.wait_until_up(20)


def test_what_nobody_hands_out_is_not_needed(
    one: SmallCluster,
    expected: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = one.service(0)
    for place, most, why in (
        ("", 1 << 40, "hands out no rings"),
        ("gigl-there-is-no-such-door", 1 << 40, "no ring socket"),
        (service.ring_door, 4096, "this server has 4096 left for rings"),
    ):
        monkeypatch.setattr(service, "ring_door", place)
        monkeypatch.setattr(service, "limits", replace(service.limits, ring_bytes=most))
        caplog.clear()
        with closing(one.open()) as source:
            source.start_epoch(0)
            assert drain(source) == expected
            assert source.stats()["transport"] == "network"
        assert not service.load().channels
        (record,) = [each for each in caplog.records if each.name == "gigl_client.channels"]
        assert "batches come over the network, not by a ring" in record.message
        assert why in record.message


@pytest.mark.parametrize(
    ("servers", "transport", "rows", "found"),
    [
        (1, "auto", "auto", ("ring", "through")),
        (1, "network", "auto", ("network", "through")),
        (2, "network", "auto", ("network", "direct")),
        (2, "auto", "auto", ("ring", "through")),
        (2, "ring", "direct", ("ring", "direct")),
    ],
)
def test_stats_tell_how_frames_come(  # noqa: PLR0917
    clusters: dict[int, SmallCluster],
    expected: list[bytes],
    servers: int,
    transport: str,
    rows: str,
    found: tuple[str, str],
) -> None:
    with closing(clusters[servers].open(transport=transport, rows=rows)) as source:
        source.start_epoch(0)
        assert drain(source) == expected
        stats = source.stats()
    assert (stats["transport"], stats["rows_come"]) == found
    assert [each["server"].split(" at ")[0] for each in stats["servers"]] == [
        f"storage server {rank}" for rank in range(servers)
    ]
    over_wire = found != ("ring", "through")
    assert (stats["wire_bytes_in"] > 0) is over_wire
    assert stats["wire_bytes_out"] > 0
    assert stats["peer_calls"] >= NUM_BATCHES


def test_another_plan_of_the_same_key_is_refused(one: SmallCluster) -> None:
    with closing(one.open(key="shared")) as first:
        first.wait_until_up(20)
        with (
            closing(one.open(key="shared", plan=replace(PLAN, run_seed=8))) as other,
            pytest.raises(ValueError, match="run_seed"),
        ):
            other.wait_until_up(20)


@pytest.mark.parametrize(("transport", "rows"), KINDS)
def test_frames_arrive_in_the_same_memory_again(one: SmallCluster, transport: str, rows: str) -> None:
    """In slots, which are page-locked on the way to CUDA."""
    with closing(one.open(transport=transport, rows=rows, prefetch=2)) as source:
        addresses = set()
        for _ in range(3):
            source.start_epoch(0)
            for _ in range(NUM_BATCHES):
                frame = source.receive(20)
                assert slot_of(frame.buffer) is not None
                addresses.add(frame.buffer.ctypes.data)
                del frame
        assert len(addresses) <= 2 + 8
        assert source.stats()["copied_out"] == source.stats()["oversize"] == 0


def test_nothing_runs_on_when_a_source_is_closed_or_forgotten(two: SmallCluster) -> None:
    before = _threads()
    for close in (True, False):
        source = two.open(rows="direct")
        source.start_epoch(0)
        source.receive(20)
        if close:
            source.close()
        del source
        gc.collect()
        assert wait_until(lambda: _threads() <= before), _threads()
        for server in (0, 1):
            service = two.service(server)
            assert wait_until(lambda found=service: not found.load().channels)


def _threads() -> set[threading.Thread]:
    names = ("fetch", "settle", "open channel", "close", "ask")  # Servers have some of the last kind, too.
    return {each for each in threading.enumerate() if each.name.startswith(names)}


def test_a_source_that_was_never_up_can_be_closed(one: SmallCluster) -> None:
    one.stop(0)
    source = one.open()
    with pytest.raises(StorageUnavailable, match=r"storage server 0 at 127\S+ .*away for"):
        source.wait_until_up(0.2)
    source.close()
    one.start(0)


def test_a_forked_child_cannot_use_it(one: SmallCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(one.open()) as source:
        source.wait_until_up(20)
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: 1)
            with pytest.raises(ValueError, match="belong to process"):
                source.start_epoch(0)


def test_seeds_that_cannot_be_drawn_fail_their_batch(one: SmallCluster) -> None:
    class NoDraw:
        def __len__(self) -> int:
            return 1

        def request(self, asked: Any, *_: Any) -> Any:
            if asked.batch == 1:
                raise ValueError("seed weights are all zero")
            return asked

    schedule = small_schedule()
    schedule.draw = NoDraw()  # type: ignore[assignment]
    with closing(one.open(schedule=schedule)) as source:
        source.start_epoch(0)
        source.receive(20)
        with pytest.raises(SamplingError, match=r"epoch 0, batch 1: ValueError: seed weights are all zero"):
            source.receive(20)
        assert len(drain(source, NUM_BATCHES - 2)) == NUM_BATCHES - 2


def test_an_empty_epoch_needs_nobody(one: SmallCluster) -> None:
    schedule = Schedule(
        {SEED: np.empty(0, np.int64)}, batch_size=4, shuffle=False, drop_last=False, run_seed=1
    )
    with closing(one.open(schedule=schedule)) as source:
        assert source.num_batches == 0
        source.start_epoch(0)
        with pytest.raises(ValueError, match="all 0 batches"):
            source.receive(20)


class _Failing:
    """Stands for a fault plan: raises an error for some batches."""

    def __init__(self, where: Any, error: Exception) -> None:
        self.where = where
        self.error = error
        self.at_batch = self

    def __eq__(self, batch: object) -> bool:
        return bool(self.where(batch))

    __hash__ = None  # type: ignore[assignment]

    def commit(self) -> None:
        raise self.error
