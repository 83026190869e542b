"""A storage server among strangers: every request that breaks a rule gets the status that says so, others are
served meanwhile, and memory stays bounded.
"""

from __future__ import annotations

import os
import random
import socket
import struct
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

from gigl_client import Caller, RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.graph.graph import Graph
from gigl_loader.native.draws import DRAW_SPECIFICATION
from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.sampling.khop import KHop
from gigl_loader.sampling.plan import BatchPlan
from gigl_loader.sampling.plans.ablp import ABLPPlan
from gigl_loader.sampling.plans.link import LinkPlan
from gigl_server.local_cluster import LocalCluster
from tests.support.hostile_clients import METHODS, PLAN, HostileClient
from tests.support.leftovers import wait_until
from tests.support.raw_data import Refused
from tests.support.training import FANOUT, OPTIONS, digest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "a-token-for-tests-never-a-secret"
SEEDS = np.arange(10, dtype="<i8").tobytes()
MAX_GROWTH_MB = 250
"""Of the server over all these tests."""


class Store:
    """A server in a process of its own, and a trainer that must not notice anything."""

    def __init__(self, graph: Path, cluster: LocalCluster, stack: ExitStack) -> None:
        (self.control,) = cluster.addresses
        (self.pid,) = cluster.pids
        self.graph = Graph.open(graph).manifest.digest
        self._stack = stack
        self.dataset = stack.enter_context(
            RemoteDistDataset.connect(
                self.control, credentials=Caller(token=TOKEN), transport="network", timeout=30
            )
        )
        view = messages.ClusterView.FromString(self.stranger().say("Cluster", b""))
        self.data = f"127.0.0.1:{view.servers[0].data_port}"
        remote = stack.enter_context(
            DistNeighborLoader(self.dataset, FANOUT, "train", **OPTIONS | {"timeout": 30.0})
        )
        alone = stack.enter_context(
            DistNeighborLoader(DistDataset.open(graph), FANOUT, "train", **OPTIONS | {"num_workers": 0})
        )
        self._loaders = remote, alone
        self._batches, self._alone = map(iter, self._loaders)

    def stranger(self, *, token: str = TOKEN, job: str | None = None) -> HostileClient:
        """Return a caller of a job of its own, or of the one given."""
        data = getattr(self, "data", self.control)
        return self._stack.enter_context(HostileClient(self.control, data, token=token, job=job))

    def check_bystander(self) -> None:
        """The trainer gets the next batches of an epoch that began before all this, or of the one after."""
        expected = [digest(batch) for batch in islice(self._alone, 3)]
        assert [digest(batch) for batch in islice(self._batches, len(expected))] == expected
        if len(expected) < 3:
            self._batches, self._alone = map(iter, self._loaders)

    def check_nothing_is_held(self) -> None:
        """Fail if the server keeps a producer of anybody but the bystander."""
        (load,) = self.dataset.server_stats().values()
        assert load["producers"] == 1

    @property
    def memory_mb(self) -> float:
        return float(psutil.Process(self.pid).memory_info().rss / 1e6)


@pytest.fixture(scope="module")
def whole(graph: Path) -> Iterator[Store]:
    with (
        LocalCluster(graph, servers=1, token=TOKEN, options={"lease": "30"}) as cluster,
        ExitStack() as stack,
    ):
        store = Store(graph, cluster, stack)
        store.check_bystander()
        before = store.memory_mb
        yield store
        assert store.memory_mb - before < MAX_GROWTH_MB
        assert cluster.pids == [store.pid]


@pytest.fixture
def store(whole: Store) -> Iterator[Store]:
    """The server, before and after strangers came."""
    yield whole
    whole.check_bystander()


@pytest.fixture
def stranger(store: Store) -> Iterator[HostileClient]:
    """A caller who has the token, and a job with a producer and nothing else."""
    caller = store.stranger()
    caller.make_producer(store.graph)
    yield caller
    caller.say("DestroyProducer", key="key")


def noise(count: int) -> bytes:
    return random.Random(count).randbytes(count)


# --- the control port


@pytest.mark.parametrize("method", METHODS)
def test_who_shows_no_token_is_told_so_and_nothing_more(store: Store, method: str) -> None:
    caller = store.stranger()
    job = caller.headers[1:]
    for token in ("", "Bearer ", "Bearer wrong-token-of-this-length", TOKEN, f"bearer {TOKEN}x", "x" * 3900):
        shown = [("authorization", token)] if token else []
        assert caller.status(method, b"", headers=[*shown, *job]) == "UNAUTHENTICATED"
    twice = [("authorization", f"Bearer {TOKEN}")] * 2
    assert caller.status(method, b"", headers=[*twice, *job]) == "UNAUTHENTICATED"
    store.check_nothing_is_held()


@pytest.mark.parametrize("method", METHODS)
def test_who_shows_no_job_is_told_so(store: Store, method: str) -> None:
    caller = store.stranger()
    token = caller.headers[:1]
    for job in ([], ["x"], ["0" * 63], ["G" * 64], ["0" * 65], ["0" * 64] * 2):
        shown = [("gigl-job", value) for value in job]
        assert caller.status(method, b"", headers=[*token, *shown]) == "INVALID_ARGUMENT"
    store.check_nothing_is_held()


@pytest.mark.parametrize("method", METHODS)
def test_bytes_that_are_no_message(store: Store, method: str) -> None:
    caller = store.stranger()
    for said in (b"\xff" + noise(300), b"\xff" * 200, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x05\xff\xfe"):
        assert caller.status(method, said) == "INVALID_ARGUMENT"
    store.check_nothing_is_held()


def test_a_message_that_is_cut_off(store: Store) -> None:
    caller = store.stranger()
    whole = messages.CreateProducerRequest(
        key="key", plan=PLAN.to_json(), graph=store.graph, draw_specification=DRAW_SPECIFICATION
    )
    said = whole.SerializeToString()
    for size in range(1, len(said), 7):
        assert caller.status("CreateProducer", said[:size]) in ("INVALID_ARGUMENT", "FAILED_PRECONDITION")
    store.check_nothing_is_held()


def test_a_message_beyond_the_limit(store: Store, stranger: HostileClient) -> None:
    assert stranger.status("Sample", b"\0" * (33 << 20)) == "RESOURCE_EXHAUSTED"
    headers = [*stranger.headers, ("x-much", "y" * (1 << 20))]
    assert stranger.status("Heartbeat", b"", headers=headers) in ("RESOURCE_EXHAUSTED", "INTERNAL", "UNKNOWN")


def test_a_method_that_is_not_there(stranger: HostileClient) -> None:
    for method in ("Steal", "__init__", "../Peer/Describe", "create_producer"):
        assert stranger.status(method, b"") == "UNIMPLEMENTED"
    assert stranger.status("Describe", b"", service="gigl.v1.Nobody") == "UNIMPLEMENTED"


def changed_plan(plan: BatchPlan = PLAN, **changes: Any) -> str:
    import json

    return json.dumps(json.loads(plan.to_json()) | changes)


EDGE = ["node", "to", "node"]
_HOPS = KHop(num_neighbors={("node", "to", "node"): (3, 2)})
LINKS = replace(PLAN, sampler=LinkPlan(edge_type=("node", "to", "node"), hops=_HOPS))
ANCHORS = replace(PLAN, sampler=ABLPPlan(supervision=(("node", "to", "node"),), hops=_HOPS))


@pytest.mark.parametrize(
    "fields",
    [
        {"plan": ""},
        {"plan": "not JSON"},
        {"plan": "[" * 100_000},
        {"plan": "null"},
        {"plan": "{}"},
        {"plan": changed_plan(sampler="os:system")},
        {"plan": changed_plan(seed_type="nobody")},
        {"plan": changed_plan(seed_type=["node"])},
        {"plan": changed_plan(run_seed=2**64)},
        {"plan": changed_plan(run_seed="1")},
        {"plan": changed_plan(replace=2)},
        {"plan": changed_plan(num_neighbors=[[EDGE, [-2]]])},
        {"plan": changed_plan(num_neighbors=[[EDGE, [2.5]]])},
        {"plan": changed_plan(num_neighbors=[[EDGE, [2**40]]])},
        {"plan": changed_plan(num_neighbors=[[EDGE, [1] * 255]])},
        {"plan": changed_plan(num_neighbors=[[["a", "b", "c"], [1]]])},
        {"plan": changed_plan(num_neighbors=[[EDGE, [1]], [EDGE, [2]]])},
        {"plan": changed_plan(num_neighbors=EDGE)},
        {"plan": changed_plan(node_columns={"node": ["../../etc/passwd"]})},
        {"plan": changed_plan(node_columns={"nobody": ["x"]})},
        {"plan": changed_plan(node_columns={"node": "x"})},
        {"plan": changed_plan(edge_columns=[[EDGE, ["nothing"]]])},
        {"plan": changed_plan(padding="x" * (4 << 20))},
        {"plan": changed_plan(LINKS, edge_type=["node", "to", "nobody"])},
        {"plan": changed_plan(LINKS, edge_type=7)},
        {"plan": changed_plan(LINKS, excluded=[["a", "b", "c"]])},
        {"plan": changed_plan(LINKS, negatives={"mode": "binary", "amount": 2**63, "strict": True})},
        {"plan": changed_plan(LINKS, negatives={"mode": "binary", "amount": 1, "strict": "yes"})},
        {
            "plan": changed_plan(
                LINKS, negatives={"mode": "binary", "amount": 1, "strict": True, "src_weight": "AAAA"}
            )
        },
        {"plan": changed_plan(ANCHORS, supervision=[])},
        {"plan": changed_plan(ANCHORS, supervision=[["node", "to#held", "node"]])},
        {"plan": changed_plan(ANCHORS, supervision=[EDGE, EDGE])},
        {"plan": changed_plan(ANCHORS, max_labels=-1)},
        {"plan": changed_plan(ANCHORS, random_negatives=2**24)},
        {"plan": changed_plan(ANCHORS, exclude="all")},
        {"key": ""},
        {"key": "k" * 300},
        {"key": "a\nb"},
        {"graph": ""},
        {"graph": "0" * 64},
    ],
    ids=lambda fields: str(fields)[:60],
)
def test_a_plan_that_breaks_a_rule(store: Store, fields: dict[str, str]) -> None:
    good: dict[str, Any] = {"key": "key", "plan": PLAN.to_json(), "graph": store.graph}
    expected = "FAILED_PRECONDITION" if "graph" in fields else "INVALID_ARGUMENT"
    assert store.stranger().status("CreateProducer", **good | fields) == expected
    store.check_nothing_is_held()


def test_another_plan_for_a_key(store: Store, stranger: HostileClient) -> None:
    stranger.make_producer(store.graph)  # The same may be said again.
    other = changed_plan(run_seed=2, replace=True)
    with pytest.raises(Exception, match=r"(?s)run_seed.*1.*2|replace") as raised:
        stranger.say("CreateProducer", key="key", plan=other, graph=store.graph)
    assert raised.value.code().name == "FAILED_PRECONDITION"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"key": "other"}, "NOT_FOUND"),
        ({"credit": 0}, "INVALID_ARGUMENT"),
        ({"credit": 2**32 - 1}, "INVALID_ARGUMENT"),
        ({"share": 0}, "INVALID_ARGUMENT"),
        ({"share": 1000}, "INVALID_ARGUMENT"),
        ({"name": "n" * 300}, "INVALID_ARGUMENT"),
        ({"name": "a\x1b[2Jb"}, "INVALID_ARGUMENT"),
        ({"ring_slots": 4}, "INVALID_ARGUMENT"),
        ({"ring_slot_bytes": 4096}, "INVALID_ARGUMENT"),
        ({"ring_slots": 4, "ring_slot_bytes": 4095}, "INVALID_ARGUMENT"),
        ({"ring_slots": 2**32 - 1, "ring_slot_bytes": 8192}, "INVALID_ARGUMENT|RESOURCE_EXHAUSTED"),
        ({"ring_slots": 2, "ring_slot_bytes": 2**63}, "INVALID_ARGUMENT|RESOURCE_EXHAUSTED"),
        ({"ring_slots": 16, "ring_slot_bytes": 2**41}, "INVALID_ARGUMENT|RESOURCE_EXHAUSTED"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_channel_that_breaks_a_rule(stranger: HostileClient, fields: dict[str, Any], status: str) -> None:
    good: dict[str, Any] = {"key": "key", "name": "n", "credit": 4, "share": 1}
    assert stranger.status("OpenChannel", **good | fields) in status.split("|")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"channel": b""}, "INVALID_ARGUMENT|NOT_FOUND"),
        ({"channel": noise(16)}, "NOT_FOUND"),
        ({"channel": noise(1000)}, "INVALID_ARGUMENT|NOT_FOUND"),
        ({"inputs": SEEDS[:-1]}, "INVALID_ARGUMENT"),
        ({"inputs": SEEDS[:-8]}, "INVALID_ARGUMENT"),
        ({"index": b""}, "INVALID_ARGUMENT"),
        ({"inputs": b"", "index": b""}, "INVALID_ARGUMENT"),
        ({"inputs": np.full(10, 1000).tobytes()}, "INVALID_ARGUMENT"),
        ({"inputs": np.full(10, -1).tobytes()}, "INVALID_ARGUMENT"),
        ({"inputs": np.full(10, 2**62).tobytes()}, "INVALID_ARGUMENT"),
        ({"inputs": SEEDS * 110_000, "index": SEEDS * 110_000}, "INVALID_ARGUMENT"),
        ({"slot": 1}, "INVALID_ARGUMENT"),
        ({"slot": 2**32 - 1}, "INVALID_ARGUMENT"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_an_ask_that_breaks_a_rule(stranger: HostileClient, fields: dict[str, Any], status: str) -> None:
    good: dict[str, Any] = {
        "channel": stranger.open_channel(),
        "epoch": 0,
        "batch": 0,
        "inputs": SEEDS,
        "index": SEEDS,
    }
    assert stranger.status("Sample", **good | fields) in status.split("|")
    assert stranger.status("Sample", **good) == "OK"


@pytest.mark.parametrize(
    ("inputs", "index"),
    [
        (SEEDS, SEEDS),
        (SEEDS * 3, SEEDS),
        (SEEDS * 2, SEEDS[:-8]),
        (SEEDS + np.full(10, 1000).tobytes(), SEEDS),
        (np.full(10, -1).tobytes() + SEEDS, SEEDS),
        (SEEDS * 2 + b"x", SEEDS),
        (b"", b""),
    ],
    ids=["no destinations", "three ends", "short index", "far destinations", "negative", "odd", "nothing"],
)
def test_links_that_break_a_rule(store: Store, inputs: bytes, index: bytes) -> None:
    caller = store.stranger()
    caller.say("CreateProducer", key="links", plan=LINKS.to_json(), graph=store.graph)
    channel = caller.open_channel("links")
    good = {"channel": channel, "inputs": SEEDS * 2, "index": SEEDS}
    assert caller.status("Sample", **good | {"inputs": inputs, "index": index}) == "INVALID_ARGUMENT"
    assert caller.status("Sample", **good) == "OK"
    caller.say("DestroyProducer", key="links")


def test_the_largest_numbers(stranger: HostileClient) -> None:
    fields: dict[str, Any] = {"channel": stranger.open_channel(), "inputs": SEEDS, "index": SEEDS}
    for name in ("epoch", "batch", "fence"):
        assert stranger.status("Sample", **fields | {name: 2**64 - 1}) == "INVALID_ARGUMENT"
        assert stranger.status("Sample", **fields | {name: 2**63 - 1}) == "OK"


def test_a_slot_that_is_not_in_the_ring(stranger: HostileClient) -> None:
    channel = stranger.open_channel(ring_slots=2, ring_slot_bytes=1 << 20)
    fields = {"channel": channel, "inputs": SEEDS, "index": SEEDS}
    assert stranger.status("Sample", slot=3, **fields) == "INVALID_ARGUMENT"
    assert stranger.status("Sample", slot=2, **fields) == "OK"


def test_more_asks_than_the_credit(store: Store, stranger: HostileClient) -> None:
    channel = stranger.open_channel(credit=2)
    fields = {"channel": channel, "inputs": SEEDS, "index": SEEDS}
    calls = [stranger.begin_sample(batch=number, **fields) for number in range(40)]
    kinds = [call.kind() for call in calls]
    assert kinds.count("frame") >= 2
    assert {*kinds} <= {"frame", "busy"}
    assert stranger.status("Sample", batch=2, **fields) == "OK"


def test_more_channels_and_producers_than_a_job_may_have(store: Store) -> None:
    caller = store.stranger()
    caller.make_producer(store.graph)
    results = [
        caller.status(
            "OpenChannel", key="key", name="n", credit=1, share=1, ring_slots=1, ring_slot_bytes=4096
        )
        for _ in range(1025)
    ]
    assert results == ["OK"] * 1024 + ["RESOURCE_EXHAUSTED"]
    caller.say("DestroyProducer", key="key")
    fields: dict[str, Any] = {"plan": PLAN.to_json(), "graph": store.graph}
    results = [caller.status("CreateProducer", key=f"key {number}", **fields) for number in range(257)]
    assert results == ["OK"] * 256 + ["RESOURCE_EXHAUSTED"]
    for number in range(256):
        caller.say("DestroyProducer", key=f"key {number}")
    store.check_nothing_is_held()


# --- what belongs to another job


def said(caller: HostileClient, **fields: Any) -> messages.SampleReply:
    reply: messages.SampleReply = messages.SampleReply.FromString(caller.say("Sample", **fields))
    return reply


def kept(caller: HostileClient, channel: bytes) -> list[bytes]:
    reply = messages.HeartbeatReply.FromString(caller.say("Heartbeat", channels=[channel]))
    return list(reply.channels)


def test_a_job_sees_and_ends_only_what_is_its_own(store: Store, stranger: HostileClient) -> None:
    channel = stranger.open_channel()
    thief = store.stranger()
    fields = {"channel": channel, "inputs": SEEDS, "index": SEEDS}
    assert thief.status("Sample", **fields) == "NOT_FOUND"
    assert thief.status("OpenChannel", key="key", name="n", credit=1, share=1) == "NOT_FOUND"
    assert thief.status("CloseChannel", channel=channel) == "OK"
    assert thief.status("DestroyProducer", key="key") == "OK"
    assert kept(thief, channel) == []
    assert kept(stranger, channel) == [channel]
    assert stranger.status("Sample", **fields) == "OK"
    text = str(messages.ServerLoad.FromString(thief.say("Load", b"")))
    assert "stranger" not in text
    assert stranger.job not in text


# --- the data port


def test_tickets_that_are_none(store: Store, stranger: HostileClient) -> None:
    tickets = [b"", noise(7), noise(5000), struct.pack("<Q", 2**63), b"\0" * (1 << 20)]
    header = b'{"__metadata__":' + b"[" * 50_000
    tickets.append(struct.pack("<Q", len(header)) + header)
    for ticket in tickets:
        with pytest.raises(Refused) as raised:
            stranger.take(ticket)
        assert "Traceback" not in str(raised.value)


# --- connections that are none


@pytest.mark.parametrize("port", ["control", "data"])
def test_noise_and_silence_on_a_port(store: Store, port: str) -> None:
    host, _, number = getattr(store, port).rpartition(":")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    openings = [
        noise(1000),
        b"GET / HTTP/1.1\r\n\r\n",
        preface + noise(1000),
        preface,
        b"\x16\x03\x01\x02\x00",
        b"",
    ]
    with ExitStack() as stack:
        for opening in openings * 20:
            connection = stack.enter_context(socket.create_connection((host, int(number)), 5))
            try:
                connection.sendall(opening)
            except ConnectionError:
                continue
        store.check_bystander()


def test_who_knocks_at_the_ring_door_without_a_ring(stranger: HostileClient) -> None:
    settings: dict[str, Any] = {
        "key": "key",
        "name": "n",
        "credit": 4,
        "share": 1,
        "ring_slots": 2,
        "ring_slot_bytes": 4096,
    }
    channel = messages.Channel.FromString(stranger.say("OpenChannel", **settings))
    assert channel.ring_door
    for shown in (noise(16), b"", channel.id[:15], noise(100_000)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(10)
            connection.connect("\0" + channel.ring_door)
            try:
                connection.sendall(shown)
                connection.shutdown(socket.SHUT_WR)
                answer, files, _, _ = socket.recv_fds(connection, 100, 4)
            except ConnectionError:
                continue
            for file in files:
                os.close(file)
            assert (answer, files) in ((b"", []), (b"\0", []))


def test_frames_that_nobody_reads_take_bounded_memory_and_leave_none(store: Store) -> None:
    caller = store.stranger()
    caller.make_producer(store.graph)
    seeds = np.arange(1000, dtype="<i8").tobytes()
    before = store.memory_mb
    channels = [caller.open_channel(credit=8) for _ in range(20)]
    calls = [
        caller.begin_sample(channel=channel, inputs=seeds, index=seeds, batch=number)
        for channel in channels
        for number in range(8)
    ]
    assert wait_until(lambda: all(call.done() for call in calls), seconds=60)
    assert store.memory_mb - before < MAX_GROWTH_MB / 2
    for call in calls:
        call.cancel()
    caller.say("DestroyProducer", key="key")

    def nothing_ready() -> bool:
        (load,) = store.dataset.server_stats().values()
        return bool(load["ready_bytes"] < 1 << 20)

    assert wait_until(nothing_ready)
