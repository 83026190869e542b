"""Deadlines of calls: each attempt has what is left. Time passes only when a scripted peer lets it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from gigl_client import channels, cluster, discovery, producers
from gigl_client.channels import ChannelConfig, close_channel, open_channel
from gigl_client.discovery import Found
from gigl_loader import retry
from gigl_loader.errors import StorageUnavailable
from gigl_loader.graph.manifest import Manifest
from gigl_loader.group import RankGroup
from gigl_loader.hosts.peers import Peers
from gigl_loader.retry import Deadline
from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc import peer as rpc_peer
from gigl_loader.rpc import store_client
from gigl_loader.rpc.checksums import CHECKSUM_HEADER, checksum_text
from gigl_loader.rpc.control import REFUSAL_HEADER, refusal_mark
from gigl_loader.rpc.credentials import Caller
from gigl_loader.rpc.endpoint import Address, Endpoint
from gigl_loader.rpc.peer import check_peer
from gigl_loader.rpc.refusals import Damaged, RefusalKind, Unknown
from gigl_loader.rpc.server_proof import CHALLENGE, NONCE, PROOF, header_value, view_proof
from gigl_loader.rpc.store_client import StoreClient
from gigl_loader.rpc.versions import BuildVersions
from gigl_server.cluster.discovery import Discovery
from gigl_server.cluster.peers import PeerClient
from tests.support.store_control import response_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WHOLE_S, EACH_S = 60.0, 10.0
"""Time of a call, and time that passes at the peer during each attempt."""
SLACK_S = 0.2
"""gRPC rounds deadlines on the wire up, to 0.1 s in this range."""
KEY = "k" * 64
TOKENS = [f"token-{number}-0123456789" for number in range(6)]
Script = list["Callable[[Any], Any]"]


class Clock:
    """Stands for the module ``time`` where deadlines are made."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(retry, "time", found)
    monkeypatch.setattr(store_client, "_CERTAIN_S", 0.01)
    return found


class SlowPeer(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A control port that follows a script. Each attempt takes ``EACH_S`` of the clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.script: Script = []
        self.left: list[float] = []
        """Time until the deadline of each attempt, as it came over the wire."""
        self.address = ""

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint.of_address(Address.parse(self.address), what="storage server")

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._answer)

    def _answer(self, request: bytes, context: Any) -> bytes:
        self.left.append(context.time_remaining())
        self._clock.now += EACH_S
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return bytes(answer(context))

    def check(self, *, attempts: int, whole_s: float = WHOLE_S) -> None:
        """Check that each attempt had what the attempts before it have left."""
        assert len(self.left) == attempts
        for number, left_s in enumerate(self.left):
            assert left_s <= whole_s - number * EACH_S + SLACK_S, self.left


@pytest.fixture
def peer(clock: Clock) -> Iterator[SlowPeer]:
    found = SlowPeer(clock)
    server = grpc.server(ThreadPoolExecutor(2), handlers=(found,))
    found.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield found
    server.stop(None)


def refused(kind: RefusalKind) -> Callable[[Any], bytes]:
    def answer(context: Any) -> bytes:
        context.set_trailing_metadata(((REFUSAL_HEADER, refusal_mark(kind, "no")),))
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "no")
        raise AssertionError

    return answer


def unmarked(context: Any) -> bytes:
    context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such call")
    raise AssertionError


def damaged(context: Any) -> bytes:
    context.set_trailing_metadata(((CHECKSUM_HEADER, "ffffffff"),))
    return b""


def whole(message: Any, *trailers: tuple[str, str]) -> Callable[[Any], bytes]:
    def answer(context: Any) -> bytes:
        data = bytes(message.SerializeToString(deterministic=True))
        context.set_trailing_metadata(((CHECKSUM_HEADER, checksum_text(data)), *trailers))
        return data

    return answer


def proven(context: Any) -> bytes:
    """Answer with a view and the proof of the cluster key."""
    reply = messages.ClusterView()
    proof = view_proof(KEY, header_value(context.invocation_metadata(), NONCE), reply)
    return whole(reply, (CHALLENGE, "c" * 64), (PROOF, proof))(context)


# --- calls of the control port


def test_what_is_left_is_never_negative_nor_more_than_asked_for(clock: Clock) -> None:
    deadline = Deadline.after(5)
    assert (deadline.left_s(), deadline.left_s(2)) == (5, 2)
    clock.now += 4
    assert (deadline.left_s(), deadline.left_s(2)) == (1, 1)
    clock.now += 4
    assert (deadline.left_s(), deadline.left_s(2)) == (0, 0)


def test_a_call_that_is_damaged_again_and_again(peer: SlowPeer) -> None:
    peer.script = [damaged]
    with closing(StoreClient(peer.endpoint, Caller())) as client, pytest.raises(Damaged):
        client.load(WHOLE_S)
    peer.check(attempts=3)


@pytest.mark.parametrize("call", ["load", "cluster"])
def test_a_call_that_tries_every_token(peer: SlowPeer, call: str) -> None:
    peer.script = [refused(RefusalKind.UNAUTHENTICATED)]
    caller = Caller(token=TOKENS[0], other_tokens=tuple(TOKENS[1:]))
    with closing(StoreClient(peer.endpoint, caller)) as client, pytest.raises(Exception, match="no"):
        getattr(client, call)(WHOLE_S)
    peer.check(attempts=6)


def test_a_view_that_is_checked_by_a_second_call(peer: SlowPeer) -> None:
    peer.script = [unmarked]
    with (
        closing(StoreClient(peer.endpoint, Caller())) as client,
        pytest.raises(ValueError, match="control port"),
    ):
        client.cluster(WHOLE_S)
    peer.check(attempts=2)


def test_a_refusal_that_there_is_no_time_to_check_is_not_for_good(peer: SlowPeer) -> None:
    peer.script = [unmarked]
    with closing(StoreClient(peer.endpoint, Caller())) as client, pytest.raises(StorageUnavailable):
        client.cluster(EACH_S)
    peer.check(attempts=1, whole_s=EACH_S)


def test_an_adoption_by_the_key_of_the_cluster(peer: SlowPeer) -> None:
    peer.script = [proven, whole(messages.AdoptReply(step="held"))]
    with closing(StoreClient(peer.endpoint, Caller())) as client:
        assert client.adopt(0, WHOLE_S, begin=True, cluster_key=KEY).step == "held"
    peer.check(attempts=2)


@pytest.mark.parametrize("key", ["", KEY])
def test_a_server_that_announces_itself(peer: SlowPeer, key: str) -> None:
    peer.script = [proven if key else whole(messages.ClusterView())]
    own = replace(peer.endpoint, host="10.0.0.1")
    client = PeerClient(own, Caller(), graph="g", cluster_key=key)
    with pytest.raises(StorageUnavailable, match="it is starting"):
        client.query(peer.address, WHOLE_S)
    peer.check(attempts=2)


def test_the_handshake_with_a_peer(clock: Clock, peer: SlowPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    pings = Asked(clock, ConnectionError("enough was seen"))
    monkeypatch.setattr(rpc_peer, "tcp_probe", lambda *_: None)
    monkeypatch.setattr(rpc_peer, "connection_to", pings)
    own = BuildVersions.own()
    described = messages.Description(graph="g", wire_version=own.wire, draw_specification=own.draws)
    described.partitions.append(0)
    peer.script = [whole(described)]
    endpoint = replace(peer.endpoint, partitions=(0,))
    with pytest.raises(ConnectionError):
        check_peer(endpoint, Caller(), digest="g", timeout_s=WHOLE_S)
    peer.check(attempts=1)
    assert pings.given == [WHOLE_S - EACH_S]


# --- several calls of one operation


class Asked:
    """Notes the time that each call has, and lets ``EACH_S`` pass."""

    def __init__(self, clock: Clock, *outcomes: Any) -> None:
        self._clock, self._outcomes = clock, list(outcomes)
        self.given: list[float] = []

    def __call__(self, *_: Any, timeout_s: float, **__: Any) -> Any:
        self.given.append(timeout_s)
        self._clock.now += EACH_S
        outcome = self._outcomes.pop(0) if self._outcomes else None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def ring(self, *given: Any, contact: object) -> Any:
        return self(timeout_s=given[-1])

    def positional(self, *given: Any) -> Any:
        return self(timeout_s=given[-1])


def test_connecting_takes_one_timeout_in_all(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = Endpoint.of_address(Address("h", 1), what="storage server")
    found = Found(endpoints=(endpoint,), graph="g", membership=1)
    find, replicas = Asked(clock, found), Asked(clock, SimpleNamespace(connection=str, close=lambda: None))
    monkeypatch.setattr(cluster, "find_servers", find)
    monkeypatch.setattr(cluster, "Replicas", replicas)
    manifest = SimpleNamespace(digest="g", schema=SimpleNamespace(num_partitions=0))
    monkeypatch.setattr(cluster, "fetch_manifest", lambda _: b"")
    monkeypatch.setattr(Manifest, "parse", lambda *_, **__: manifest)
    patience: list[float] = []

    def current(*, patience_s: float = 0.0) -> None:
        patience.append(patience_s)
        if patience_s:
            raise ConnectionError("enough was seen")

    monkeypatch.setattr(RankGroup, "current", current)
    with pytest.raises(ConnectionError):
        cluster.connect_cluster("h:1", Caller(), timeout_s=WHOLE_S)
    assert (find.given, replicas.given) == ([WHOLE_S], [WHOLE_S - EACH_S])
    assert patience == [0.0, WHOLE_S - 2 * EACH_S]


class Search:
    """A search for servers whose attempts fail. Each takes ``EACH_S``, or what is left."""

    def __init__(self, clock: Clock, deadline: Deadline) -> None:
        self._clock, self._deadline = clock, deadline

    def attempt(self) -> Any:
        self._clock.now += self._deadline.left_s(EACH_S)
        raise StorageUnavailable("the last reason")


@pytest.mark.parametrize("whole_s", [EACH_S / 2, WHOLE_S])
def test_servers_are_searched_within_the_timeout(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, whole_s: float
) -> None:
    monkeypatch.setattr(discovery, "_Search", lambda _, __, deadline, *___: Search(clock, deadline))
    began = clock.now
    with pytest.raises(StorageUnavailable, match=f"within {whole_s:g} s: the last reason"):
        discovery.find_servers([Address("h", 1)], Caller(), timeout_s=whole_s)
    assert clock.now - began <= whole_s


def test_addresses_are_checked_within_the_timeout(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be many, and after the deadline each has no time, not a little."""
    asked = Asked(clock, *(StorageUnavailable("silent") for _ in range(9)))
    monkeypatch.setattr(StoreClient, "cluster", lambda self, timeout_s: asked(timeout_s=timeout_s))
    addresses = [Address("h", number) for number in range(1, 10)]
    search = discovery._Search(addresses, Caller(insecure=True), Deadline.after(EACH_S), 0, 1)
    view = response_of(Endpoint.of_address(Address("k", 1), what="storage server"), graph="g").view
    search._check_addresses(view)
    assert asked.given == [2.0] + [0.0] * 8


def test_a_producer_is_created_within_the_timeout(clock: Clock) -> None:
    creates = Asked(clock, *(StorageUnavailable("away") for _ in range(9)))
    server: Any = SimpleNamespace(
        endpoint="server", client=SimpleNamespace(create_producer=creates.positional)
    )
    whole: Any = SimpleNamespace(servers=(server,), graph_digest="g")
    creation = producers._Creation(whole, "k", "{}", Deadline.after(2.5 * EACH_S))
    creation._given_up = SimpleNamespace(wait=clock.sleep, is_set=bool)  # type: ignore[assignment]
    with pytest.raises(StorageUnavailable, match="away"):
        creation._create_on(server)
    assert creates.given[:2] == [EACH_S, EACH_S]
    assert all(given <= EACH_S / 2 for given in creates.given[2:])


def channel_config(**changes: Any) -> ChannelConfig:
    return ChannelConfig(key="k", name="n", plan="{}", graph="g", timeout_s=4 * WHOLE_S, **changes)


def test_the_calls_that_open_a_channel_share_one_attempt(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "_ATTEMPT_S", WHOLE_S)
    reply = SimpleNamespace(id=b"i", lease_s=1.0, ring_door="")
    opens, creates = Asked(clock, Unknown("no"), reply), Asked(clock)
    client = SimpleNamespace(open_channel=opens, create_producer=creates.positional)
    server: Any = SimpleNamespace(endpoint=SimpleNamespace(host="h"), client=client)
    open_channel(server, channel_config(transport="network"), defers=False)
    assert opens.given == [WHOLE_S, WHOLE_S - 2 * EACH_S]
    assert creates.given == [WHOLE_S - EACH_S]


def test_a_ring_that_is_not_to_be_had_leaves_time_for_the_network(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "_ATTEMPT_S", WHOLE_S)
    ring = SimpleNamespace(id=b"i", lease_s=1.0, ring_door="door")
    opens, receives = Asked(clock, ring, ring), Asked(clock, StorageUnavailable("silent"))
    monkeypatch.setattr(channels, "receive_ring", receives.ring)
    closes = Asked(clock)
    client = SimpleNamespace(open_channel=opens, close_channel=closes.positional)
    server: Any = SimpleNamespace(endpoint=SimpleNamespace(host="127.0.0.1"), client=client)
    assert open_channel(server, channel_config(), defers=False).ring is None
    assert opens.given == [WHOLE_S / 2, WHOLE_S - 3 * EACH_S]
    assert receives.given == [WHOLE_S / 2 - EACH_S]


def test_a_channel_is_closed_within_one_timeout(clock: Clock) -> None:
    closes = Asked(clock, StorageUnavailable("idle"))
    server: Any = SimpleNamespace(client=SimpleNamespace(close_channel=closes.positional))
    close_channel(server, b"i")
    assert closes.given == [1.0, 0.0]


def test_the_counters_of_all_hosts(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(clock, messages.Statistics(), messages.Statistics())
    monkeypatch.setattr(rpc_peer, "peer_stats", asked)
    endpoints = tuple(
        Endpoint(host_index=host, host="h", control_port=1, data_port=2, partitions=()) for host in range(2)
    )
    assert len(Peers(endpoints=endpoints, host_index=0, token="").stats(timeout_s=WHOLE_S)) == 2
    assert asked.given == [WHOLE_S, WHOLE_S - EACH_S]


def test_a_server_that_is_met_is_queried_and_checked_within_one_attempt(clock: Clock) -> None:
    own = Endpoint(
        host_index=0, host="a", control_port=1, data_port=2, partitions=(0,), what="storage server"
    )
    other = replace(own, host="b", partitions=(1,))
    query, check = Asked(clock, response_of(other, graph="g")), Asked(clock)
    discovery = Discovery(
        own, graph="g", num_partitions=2, peers=[], query=query.positional, check=check.positional
    )
    discovery._meet("b:1", WHOLE_S)
    assert (query.given, check.given) == ([WHOLE_S], [WHOLE_S - EACH_S])
