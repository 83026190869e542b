"""Producers of a client: created by the first rank to come, kept by heartbeats."""

from __future__ import annotations

import itertools
import logging
import queue
import re
import threading
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from gigl_client.cluster import Heartbeats
from gigl_client.producers import ProducerCreator, admitted
from gigl_loader.errors import StorageUnavailable
from gigl_loader.group import RankGroup
from gigl_loader.options import StoreOptions
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.rpc.refusals import Busy
from tests.support.leftovers import wait_until
from tests.support.thread_ranks import run_ranks


class _Client:
    """A server that counts what it is asked, and fails as told."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.plans: dict[str, str] = {}
        self.calls: list[str] = []
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()
        self.never = threading.Event()

    def create_producer(self, key: str, plan: str, graph: str, timeout_s: float) -> bool:
        assert timeout_s > 0
        assert graph == "digest"
        with self.lock:
            self.calls.append(key)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            failure = self.failures.pop(0) if self.failures else None
        self.never.wait(0.01)  # So that others would come, if they may.
        with self.lock:
            self.at_once -= 1
            if failure is not None:
                raise failure
            created = key not in self.plans
            if self.plans.setdefault(key, plan) != plan:
                raise ValueError(f"storage server 0: producer {key!r} has another plan")
        return created

    def destroy_producer(self, key: str, timeout_s: float) -> None:
        self.plans.pop(key, None)


def _cluster(*clients: _Client, replicas: bool = False) -> Any:
    servers = [
        SimpleNamespace(rank=rank, client=client, endpoint=_endpoint(rank, (0,) if replicas else (rank,)))
        for rank, client in enumerate(clients)
    ]
    return SimpleNamespace(servers=servers, graph_digest="digest", job="0123456789" * 6 + "abcd")


def _endpoint(rank: int, partitions: tuple[int, ...]) -> Endpoint:
    return Endpoint(
        host_index=rank,
        host="host",
        control_port=10 + rank,
        data_port=20 + rank,
        partitions=partitions,
        what="server",
    )


def _request(group: RankGroup | None, *, name: str = "train", plan: str = "plan", **options: Any) -> Any:
    fields: dict[str, Any] = {
        "name": name,
        "plan": SimpleNamespace(to_json=lambda: plan),
        "group": group,
        "alone": group is None,
        "timeout_s": 20.0,
        "start_gap_s": None,
    }
    store = StoreOptions(**{key: options.pop(key) for key in list(options) if key not in fields})
    return SimpleNamespace(**(fields | options), store=store)


def test_one_rank_creates_on_every_server_and_all_get_the_key() -> None:
    clients = [_Client() for _ in range(3)]

    def program(group: RankGroup) -> str:
        return ProducerCreator(_cluster(*clients)).produce(_request(group))

    assert run_ranks(4, program) == ["train#1"] * 4
    assert [client.calls for client in clients] == [["train#1"]] * 3


def test_ranks_build_loaders_in_any_order() -> None:
    client = _Client()

    def program(group: RankGroup) -> list[str]:
        leaders = ProducerCreator(_cluster(client))
        names = ["train", "val", "test"]
        names = names[group.rank :] + names[: group.rank]
        return sorted(leaders.produce(_request(group, name=name)) for name in names)

    assert run_ranks(3, program) == [["test#1", "train#1", "val#1"]] * 3
    assert sorted(client.calls) == ["test#1", "train#1", "val#1"]


def test_a_loader_that_is_built_again_has_a_producer_of_its_own() -> None:
    client = _Client()

    def program(group: RankGroup) -> list[str]:
        leaders = ProducerCreator(_cluster(client))
        return [leaders.produce(_request(group, plan=f"plan {turn}")) for turn in range(2)]

    assert run_ranks(2, program) == [["train#1", "train#2"]] * 2


def test_loaders_of_one_worker_key_share_a_producer_and_unequal_ones_are_refused() -> None:
    leaders = ProducerCreator(_cluster(_Client()))
    assert leaders.produce(_request(None, worker_key="shared")) == "shared"
    assert leaders.produce(_request(None, worker_key="shared", name="other")) == "shared"
    with pytest.raises(ValueError, match="has another plan"):
        leaders.produce(_request(None, worker_key="shared", plan="another"))
    assert leaders.produce(_request(None)) != leaders.produce(_request(None))


def test_a_rank_that_stands_alone_waits_for_nobody() -> None:
    store = HashStore()
    client = _Client()
    keys = {
        ProducerCreator(_cluster(client)).produce(_request(RankGroup(store, rank, 4), alone=True))
        for rank in range(2)
    }
    assert keys == {"train#1 of rank 0", "train#1 of rank 1"}


def test_a_failure_of_one_server_is_every_ranks_and_leaves_nothing() -> None:
    clients = [_Client(), _Client(ValueError("storage server 1: plan refused")), _Client()]

    def program(group: RankGroup) -> str:
        return ProducerCreator(_cluster(*clients)).produce(_request(group))

    outcomes = run_ranks(3, program)
    assert all(isinstance(outcome, ValueError) for outcome in outcomes)
    texts = sorted(map(str, outcomes))
    assert texts[-1] == "storage server 1: plan refused"
    assert texts[0] == texts[1]
    assert texts[0].startswith("rank ")
    assert texts[0].endswith(": storage server 1: plan refused")
    assert all(client.plans == {} for client in clients)


def test_followers_hear_of_a_failure_before_it_is_undone() -> None:
    """That may take longer than they wait."""
    told = threading.Event()

    class Slow(_Client):
        def destroy_producer(self, key: str, timeout_s: float) -> None:
            assert told.wait(20)
            super().destroy_producer(key, timeout_s)

    slow = Slow()
    clients = [slow, _Client(ValueError("storage server 1: no"))]

    def program(group: RankGroup) -> None:
        try:
            ProducerCreator(_cluster(*clients)).produce(_request(group))
        finally:
            told.set()  # By the follower: the leader is at it.

    assert [type(outcome) for outcome in run_ranks(2, program)] == [ValueError] * 2
    assert slow.plans == {}


def test_what_was_there_before_stays_after_a_failure() -> None:
    first, second = _Client(), _Client()
    leaders = ProducerCreator(_cluster(first, second))
    leaders.produce(_request(None, worker_key="shared"))
    second.failures.append(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        leaders.produce(_request(None, worker_key="shared"))
    assert list(first.plans) == ["shared"]


def test_a_server_that_is_away_or_busy_is_asked_again() -> None:
    client = _Client(StorageUnavailable("away"), Busy("too many"))
    assert ProducerCreator(_cluster(client)).produce(_request(None)) == "train#1"
    assert len(client.calls) == 3


def test_a_server_that_stays_away_is_told_within_the_time() -> None:
    client = _Client(*[StorageUnavailable("storage server 0: away")] * 100)
    with pytest.raises(StorageUnavailable, match="storage server 0: away"):
        ProducerCreator(_cluster(client)).produce(_request(None, timeout_s=0.2))


def test_a_replica_that_is_away_is_not_waited_for() -> None:
    away, here = _Client(), _Client()
    away.failures = [StorageUnavailable("server 0: away")] * 1_000
    cluster = _cluster(away, here, replicas=True)
    began = time.monotonic()
    assert ProducerCreator(cluster).produce(_request(None)) == "train#1"
    assert time.monotonic() - began < 10
    assert here.calls == ["train#1"]


def test_what_one_server_refuses_is_told_though_another_is_away() -> None:
    away = _Client(*[StorageUnavailable("storage server 0: away")] * 100)
    began = time.monotonic()
    with pytest.raises(ValueError, match="storage server 1: no"):
        ProducerCreator(_cluster(away, _Client(ValueError("storage server 1: no")))).produce(_request(None))
    assert time.monotonic() - began < 10


def test_long_names_make_keys_that_servers_take() -> None:
    leaders = ProducerCreator(_cluster(_Client()))
    keys = [leaders.produce(_request(None, name="n" * 300 + end)) for end in ("a", "b")]
    assert all(len(key) < 256 for key in keys)
    assert keys[0].partition("#")[0] != keys[1].partition("#")[0]


def test_a_leader_that_says_nothing_is_named() -> None:
    store = HashStore()
    group = RankGroup(store, 1, 3)
    group.first("producer/01234567/train#1/1/leader", "2")
    with pytest.raises(TimeoutError, match=r"^rank 2 did not create the producer of train .* within 0\.05 s"):
        ProducerCreator(_cluster(_Client())).produce(_request(group, timeout_s=0.05))


def test_so_many_leaders_create_at_the_same_time() -> None:
    client = _Client()

    def program(group: RankGroup) -> None:
        ProducerCreator(_cluster(client)).produce(
            _request(group, name=f"loader {group.rank}", max_producer_inits=2, start_gap_s=0.0)
        )

    assert run_ranks(6, program) == [None] * 6
    assert len(client.calls) == 6
    assert client.most_at_once <= 2


def test_ranks_log_whom_they_lead_or_wait_for_batch_stagger_and_times(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clients = [_Client() for _ in range(20)]

    def program(group: RankGroup) -> None:
        leaders = ProducerCreator(_cluster(*clients))
        leaders.produce(_request(group, max_producer_inits=2))
        leaders.produce(_request(group, alone=True))

    with caplog.at_level(logging.INFO, logger="gigl_client.producers"):
        run_ranks(2, program)
    seconds = r"\d+\.\d\d s"
    created = (
        r"dispatched to 20 servers in \d+\.\d{3} s; created on "
        rf"(server \d+ at host:\d+ in {seconds}, ){{16}}\.\.\. \(20 servers\)"
    )
    expected = [
        rf"producer train#1 of rank 0: of this rank alone; {created}",
        rf"producer train#1 of rank 1: of this rank alone; {created}",
        # A rank that comes after the line is not in it.
        rf"producer train#1: rank ([01]) led (ranks 0, 1|rank \1); "
        rf"batch 1 \(place 1 of 2\), stagger {seconds}; {created}",
        r"producer train#1: rank [01] leads, and creates it on 20 servers",
        rf"producer train#1: rank [01] uses that of its leader, rank [01], after {seconds}",
        r"producer train#1: rank [01] waits for its leader, rank [01]",
    ]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(expected)
    for pattern in expected:
        assert sum(bool(re.fullmatch(pattern, line)) for line in lines) == 1, (pattern, lines)


def test_a_leader_names_the_ranks_of_its_worker_key_and_no_others(caplog: pytest.LogCaptureFixture) -> None:
    joined = threading.Barrier(4)

    class Waiting(_Client):
        def create_producer(self, key: str, plan: str, graph: str, timeout_s: float) -> bool:
            joined.wait(20)  # The two followers have joined.
            return super().create_producer(key, plan, graph, timeout_s)

    class Tells(RankGroup):
        def collect(self, key: str, **options: Any) -> list[str]:
            joined.wait(20)
            return super().collect(key, **options)

    def program(group: RankGroup) -> None:
        telling = Tells(group._store, group.rank, group.world_size)
        key = f"host {group.rank // 2}"
        ProducerCreator(_cluster(Waiting())).produce(_request(telling, worker_key=key))

    with caplog.at_level(logging.INFO, logger="gigl_client.producers"):
        assert run_ranks(4, program) == [None] * 4
    led = [record.getMessage().split(";")[0] for record in caplog.records if " led " in record.getMessage()]
    assert [re.sub(r"rank \d led", "rank N led", line) for line in sorted(led)] == [
        "producer host 0: rank N led ranks 0, 1",
        "producer host 1: rank N led ranks 2, 3",
    ]


def test_those_after_them_begin_a_gap_later() -> None:
    store = HashStore()
    began = []
    for rank in range(3):
        with admitted(RankGroup(store, rank, 3), "turns", limit=1, gap_s=0.05, timeout_s=5):
            began.append(time.monotonic())
    gaps = [later - earlier for earlier, later in itertools.pairwise(began)]
    assert min(gaps) > 0.04


def test_a_gap_that_ends_too_late_is_refused_at_once_and_the_turn_passes_on() -> None:
    store = HashStore()
    with admitted(RankGroup(store, 0, 3), "turns", limit=1, gap_s=0, timeout_s=5):
        pass
    late = admitted(RankGroup(store, 1, 3), "turns", limit=1, gap_s=600, timeout_s=30)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="lower process_start_gap_seconds, or raise timeout"), late:
        pass
    assert time.monotonic() - began < 20
    with admitted(RankGroup(store, 2, 3), "turns", limit=1, gap_s=0, timeout_s=5):
        pass


def test_a_leader_that_keeps_its_turn_is_named() -> None:
    store = HashStore()
    with admitted(RankGroup(store, 1, 2), "turns", limit=1, gap_s=0, timeout_s=5):
        late = admitted(RankGroup(store, 0, 2), "turns", limit=1, gap_s=0, timeout_s=0.05)
        with pytest.raises(TimeoutError, match=r"within 0\.05 s: rank 1 is still creating"), late:
            pass


# --- Heartbeats: often enough, to every server, and no longer than they are wanted


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gigl-heartbeat"]


def _end(beats: Heartbeats) -> None:
    beats.stop()
    assert wait_until(lambda: not _threads())


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
    assert wait_until(lambda: min(counts[number] for number in others) >= 3)
    assert len(_threads()) == 8
    beats.stop()
    hung.set()
    assert wait_until(lambda: not _threads())


def test_each_server_hears_of_the_channels_that_are_kept_there_and_of_no_others() -> None:
    heard: list[queue.SimpleQueue[list[bytes]]] = [queue.SimpleQueue() for _ in range(2)]
    beats = Heartbeats([lambda channels, _, each=each: each.put(channels) for each in heard])  # type: ignore[misc]
    beats.keep(0, b"a", 0.03)
    beats.keep(0, b"b", 0.03)
    assert wait_until(lambda: sorted(heard[0].get(timeout=10)) == [b"a", b"b"])
    beats.drop(0, b"a")
    beats.drop(1, b"c")
    assert wait_until(lambda: heard[0].get(timeout=10) == [b"b"])
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
