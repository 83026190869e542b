"""The service in this process, asked over the network by callers good and bad."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gigl_loader.errors import FormatError, SamplingError, StorageUnavailable
from gigl_loader.rpc import requests
from gigl_loader.rpc.control import ControlClient
from gigl_loader.rpc.credentials import Caller, Credentials
from gigl_loader.rpc.peer import check_peer, peer_stats
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.requests import Envelope, SplitRequest, encode, encode_ping
from gigl_loader.rpc.tokens import authorization
from gigl_loader.rpc.versions import BuildVersions
from gigl_loader.sampling.store import DrawRule, FeatureRequest, InducedRequest, NeighborRequest
from gigl_server.admission import DATA_PORT
from gigl_server.peer_server import build_server
from gigl_server.ports import data as data_port
from gigl_server.ports.queries import Queries
from tests.support.certificates import Authority
from tests.support.leftovers import wait_until
from tests.support.peers import CALLER, TOKEN, remote_store, served
from tests.support.ports import free_port
from tests.support.raw_data import RawCaller, Refused
from tests.support.sources import small_graph
from tests.support.stalled import StalledCaller

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.graph.graph import Graph
    from gigl_loader.rpc.endpoint import Endpoint
    from gigl_loader.rpc.remote_store import RemoteStore

EDGE = ("node", "to", "node")
STRANGER = Caller(token="another-token-of-some-length")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return small_graph()


@pytest.fixture(scope="module")
def endpoint(graph: Graph) -> Iterator[Endpoint]:
    with served(graph) as found:
        yield found


@pytest.fixture(scope="module")
def tls() -> Credentials:
    return Credentials.ephemeral(["127.0.0.1"], token=TOKEN)


@pytest.fixture(scope="module")
def tls_endpoint(graph: Graph, tls: Credentials) -> Iterator[Endpoint]:
    with served(graph, tls) as found:
        yield found


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def ask(**changes: Any) -> NeighborRequest:
    given: dict[str, Any] = {"targets": np.arange(50), "rule": DrawRule(fanout=3), **changes}
    return NeighborRequest(edge_type=EDGE, key=5, hop=0, with_edge_ids=True, with_slots=True, **given)


def works(graph: Graph, endpoint: Endpoint) -> bool:
    """Return whether a plain request is answered."""
    store = remote_store(graph, endpoint)
    try:
        return len(store.sample(ask()).counts) == 50
    finally:
        store.close()


def refusal(endpoint: Endpoint, ticket: bytes, *, headers: dict[str, str] | None = None) -> str:
    """Ask the data port without any of our client's code, and return the kind of its refusal."""
    given = {"authorization": authorization(TOKEN)} if headers is None else headers
    text = "".join(f"{name}: {value}\n" for name, value in given.items())
    with RawCaller(endpoint.data_address) as caller:
        return caller.kind(ticket, text.encode())


# --- hostile requests: the right answer, and the service goes on


@pytest.mark.parametrize(
    ("ticket", "kind"),
    [
        (b"", "malformed"),
        (b"\xff" * 1000, "malformed"),
        (np.random.default_rng(0).bytes(100_000), "malformed"),
        (b"\x10" + b"\0" * 7 + b"[" * 16, "malformed"),
    ],
    ids=["nothing", "ones", "noise", "nesting"],
)
def test_garbage_is_refused(graph: Graph, endpoint: Endpoint, ticket: bytes, kind: str) -> None:
    assert refusal(endpoint, ticket) == kind
    assert works(graph, endpoint)


def test_an_oversized_request_is_refused(
    graph: Graph, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MAX_REQUEST_BYTES", 1 << 20)
    assert refusal(endpoint, b"x" * (2 << 20)) == "too large"
    assert works(graph, endpoint)


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": ""}, {"authorization": TOKEN}, {"authorization": authorization(TOKEN[:-1])}],
    ids=["none", "empty", "no scheme", "cut"],
)
def test_who_has_no_token_is_refused(graph: Graph, endpoint: Endpoint, headers: dict[str, str]) -> None:
    ping = encode_ping(Envelope(graph=graph.manifest.digest, partition=0))
    assert refusal(endpoint, ping, headers=headers) == "unauthenticated"
    assert works(graph, endpoint)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"caller": STRANGER},
            SamplingError,
            "wrong token: all hosts must use the same",
        ),
        ({"digest": "0" * 64}, SamplingError, "asked about graph 000000000000, this service has"),
    ],
)
def test_what_asking_again_cannot_mend_is_raised_at_once(
    graph: Graph, endpoint: Endpoint, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    store = remote_store(graph, endpoint, **changes)
    with pytest.raises(error, match=rf"^host 0 at {endpoint.control_address}: {message}") as raised:
        store.sample(ask())
    assert type(raised.value) is error
    assert store.wire().calls == 1
    store.close()
    assert works(graph, endpoint)


@pytest.mark.slow
def test_a_failure_of_the_service_is_told_without_its_innards(
    graph: Graph, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = remote_store(graph, endpoint)
    with monkeypatch.context() as patch:
        patch.setattr("gigl_server.ports.queries.neighbors_document", lambda _: 1 / 0)
        with pytest.raises(SamplingError, match=r"failed to answer; its log says why$"):
            store.sample(ask())
    assert "ZeroDivisionError" in caplog.text
    assert len(store.sample(ask()).counts) == 50
    store.close()


def _swallow(store: RemoteStore) -> None:
    with suppress(SamplingError, FormatError):
        store.sample(ask())


def test_more_calls_than_allowed_are_asked_again(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_port, "_MAX_TURNS", 1)
    monkeypatch.setattr(data_port, "_WAIT_FOR_A_TURN_S", 0.01)
    entered, leave = threading.Event(), threading.Event()

    def dawdle(*_: object) -> NoReturn:
        entered.set()
        leave.wait(60)
        raise Refusal(RefusalKind.FAILED, "too late")

    with served(graph) as endpoint:
        slow, quick = remote_store(graph, endpoint), remote_store(graph, endpoint)
        with monkeypatch.context() as patch:
            patch.setattr(Queries, "respond", dawdle)
            holder = threading.Thread(target=_swallow, args=(slow,))
            holder.start()
            assert entered.wait(60)
        assert refusal(endpoint, b"garbage") == "busy"  # Not even parsed.
        asker = threading.Thread(target=quick.sample, args=(ask(),))
        asker.start()
        assert wait_until(lambda: quick.wire().retries >= 2, seconds=60)
        leave.set()
        holder.join(60)
        asker.join(60)
        assert not asker.is_alive()
        slow.close()
        quick.close()


def test_a_caller_that_leaves_in_mid_stream_is_not_counted_any_more(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_port, "DATA_PORT", replace(DATA_PORT, calls=2))
    with served(graph) as endpoint:
        store = remote_store(graph, endpoint)
        rows = FeatureRequest(kind="node", columns=("x",), rows=np.zeros(500_000, np.int64))  # 32 MB
        ticket = encode(Envelope(graph=graph.manifest.digest, partition=0), rows, graph.schema)
        for _ in range(3):
            with StalledCaller(endpoint.data_address, TOKEN) as leaving:
                assert wait_until(lambda caller=leaving: caller.ask(ticket))
        assert len(store.sample(ask()).counts) == 50
        store.close()


def test_large_asks_take_turns_and_all_are_answered(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigl_server.ports.queries._LEAST_BYTES", 0)
    monkeypatch.setattr(
        "gigl_server.ports.queries._SENT_BYTES", 8_000
    )  # The edges of one ask, for one caller.
    with served(graph) as endpoint, ThreadPoolExecutor(8) as threads:
        store = remote_store(graph, endpoint)
        found = list(threads.map(lambda _: store.sample(ask()), range(40)))
        assert all(np.array_equal(each.positions, found[0].positions) for each in found)
        store.close()


# --- more than one reply may hold


@pytest.mark.parametrize("fanout", [1 << 20, 2**31 - 1])
def test_more_edges_than_a_reply_may_have_are_refused_before_they_are_drawn(
    graph: Graph, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, fanout: int
) -> None:
    monkeypatch.setattr("gigl_loader.sampling.local_store.draw_hop", lambda *_, **__: 1 / 0)
    many = ask(rule=DrawRule(fanout=fanout, replace=True))
    ticket = requests.encode(Envelope(graph=graph.manifest.digest, partition=0), many, graph.schema)
    told = f"^{fanout * 50} edges of 50 nodes; at most 16777216 are drawn at once$"
    with (
        RawCaller(endpoint.data_address, token=TOKEN) as caller,
        pytest.raises(Refused, match=told) as raised,
    ):
        caller.ask(ticket)
    assert raised.value.kind == "too large"


@pytest.mark.parametrize("fanout", [-1, 3])
@pytest.mark.parametrize("replacing", [False, True])
def test_an_ask_that_is_too_large_is_answered_in_parts(
    graph: Graph, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, fanout: int, replacing: bool
) -> None:
    store = remote_store(graph, endpoint)
    given = ask(rule=DrawRule(fanout=fanout, replace=replacing))
    whole = store.sample(given)
    assert store.wire().calls == 1
    monkeypatch.setattr("gigl_server.ports.queries.MAX_DRAWN_EDGES", len(whole.positions))
    store.sample(given)
    assert store.wire().calls == 2  # Exactly as many as allowed.
    monkeypatch.setattr("gigl_server.ports.queries.MAX_DRAWN_EDGES", 40)
    cut = store.sample(given)
    assert store.wire().calls > 6
    for name in ("counts", "positions", "edge_ids", "slots"):
        assert np.array_equal(getattr(cut, name), getattr(whole, name))
    monkeypatch.setattr("gigl_server.ports.queries.MAX_DRAWN_EDGES", 2)
    with pytest.raises(SamplingError, match=r"\d+ edges of 1 nodes; .* of one node: set a fanout$"):
        store.sample(given)
    store.close()


def test_induced_edges_come_in_parts_where_a_reply_cannot_hold_them_and_rows_once(
    graph: Graph, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = remote_store(graph, endpoint)
    drawn = ask()
    nodes = np.arange(graph.schema.nodes[graph.schema.neighbor_type(drawn.edge_type)].count)
    given = InducedRequest(
        edge_type=drawn.edge_type,
        targets=np.unique(drawn.targets),
        nodes=nodes,
        with_edge_ids=True,
        with_slots=True,
    )
    whole = store.induced(given)
    assert store.wire().calls == 1
    monkeypatch.setattr("gigl_server.ports.queries.MAX_DRAWN_EDGES", 40)
    cut = store.induced(given)
    assert store.wire().calls > 6
    for name in ("counts", "positions", "edge_ids", "slots"):
        assert np.array_equal(getattr(cut, name), getattr(whole, name))
    monkeypatch.setattr("gigl_server.ports.queries.MAX_DRAWN_EDGES", 2)
    with pytest.raises(SamplingError, match=r"of one node: ask for fewer nodes$"):
        store.induced(given)
    repeated = replace(given, targets=np.resize(given.targets, 100 * len(given.targets)))
    with pytest.raises(ValueError, match="comes twice"):
        store.induced(repeated)
    monkeypatch.setattr("gigl_loader.rpc.remote_store.MAX_INDUCED_NODES", 3)
    with pytest.raises(SamplingError, match="partitions elsewhere take at most 3"):
        store.induced(given)
    store.close()


def test_rows_are_asked_for_by_bytes(
    graph: Graph, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gigl_loader.rpc.remote_store._MAX_BYTES", 720)
    store = remote_store(graph, endpoint)
    rows = FeatureRequest(kind="node", columns=("x", "y"), rows=np.arange(25))
    out = [np.zeros((25, 64), np.uint8), np.zeros((25, 8), np.uint8)]
    store.gather(rows, np.arange(25), out)
    assert store.wire().calls == 3  # 10 rows of 72 bytes at a time.
    assert (out[0].view(np.float32) == graph.node_column("node", "x", 0)[:25]).all()
    monkeypatch.setattr("gigl_loader.rpc.remote_store._MAX_BYTES", 1)
    store.gather(rows, np.arange(25), out)
    assert store.wire().calls == 3 + 25
    store.close()


# --- splits


def test_splits_come_from_who_holds_them() -> None:
    from tests.support.stores import store_graphs

    graph = store_graphs()[0].graph
    named = [(name, split) for name, nodes in graph.schema.nodes.items() for split in nodes.splits]
    with served(graph) as endpoint:
        for part in endpoint.partitions:
            with closing(remote_store(graph, endpoint, part)) as store:
                for node_type, split in named:
                    found = store.split(SplitRequest(node_type=node_type, split=split))
                    assert found.tolist() == graph.split_part(node_type, split, part).tolist()
                absent = SplitRequest(node_type=next(iter(graph.schema.nodes)), split="absent")
                with pytest.raises(ValueError, match="no split 'absent'"):
                    store.split(absent)


# --- control


def test_a_peer_tells_what_it_is_and_how_it_does(graph: Graph, endpoint: Endpoint) -> None:
    before = peer_stats(endpoint, CALLER, timeout_s=10)
    found = check_peer(endpoint, CALLER, digest=graph.manifest.digest, timeout_s=10)
    assert list(found.partitions) == [0]
    assert found.graph == graph.manifest.digest
    assert found.data_port == endpoint.data_port
    assert works(graph, endpoint)
    after = peer_stats(endpoint, CALLER, timeout_s=10)
    assert after.calls == before.calls + 2
    assert after.bytes_in > before.bytes_in
    assert after.bytes_out > before.bytes_out + 50 * 4
    assert after.cpu_s > before.cpu_s
    assert after.sampling_s > before.sampling_s


def test_health_is_told_to_anyone(endpoint: Endpoint) -> None:
    with grpc.insecure_channel(endpoint.control_address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "gigl.v1.Peer"):
            reply = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_control_calls_need_the_token(endpoint: Endpoint) -> None:
    for call in ("describe", "stats"):
        with ControlClient.connected(endpoint, STRANGER) as client:
            with pytest.raises(grpc.RpcError) as raised:
                getattr(client, call)(10)
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_an_oversized_control_call_is_refused(graph: Graph, endpoint: Endpoint) -> None:
    with grpc.insecure_channel(endpoint.control_address) as channel:
        call = channel.unary_unary("/gigl.v1.Peer/Describe")
        with pytest.raises(grpc.RpcError) as raised:
            call(b"x" * (1 << 20), timeout=10, metadata=(("authorization", authorization(TOKEN)),))
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    check_peer(endpoint, CALLER, digest=graph.manifest.digest, timeout_s=10)


# --- TLS


def test_everything_works_over_tls(graph: Graph, tls_endpoint: Endpoint) -> None:
    assert works(graph, tls_endpoint)
    check_peer(tls_endpoint, CALLER, digest=graph.manifest.digest, timeout_s=10)


def test_a_caller_without_tls_is_told(graph: Graph, tls_endpoint: Endpoint) -> None:
    plain = replace(tls_endpoint, certificate="")
    with pytest.raises(ValueError, match=r"^host 0 at .*: it uses TLS, and is asked without"):
        check_peer(plain, CALLER, digest=graph.manifest.digest, timeout_s=2)
    store = remote_store(graph, plain, timeout_s=0.5)
    with pytest.raises(StorageUnavailable):
        store.sample(ask())
    store.close()
    assert works(graph, tls_endpoint)


def test_a_service_without_tls_is_told(graph: Graph, endpoint: Endpoint, tls: Credentials) -> None:
    with pytest.raises(ValueError, match="does not use TLS"):
        check_peer(
            replace(endpoint, certificate=tls.trusted), CALLER, digest=graph.manifest.digest, timeout_s=5
        )


def test_another_certificate_is_not_trusted(graph: Graph, tls_endpoint: Endpoint) -> None:
    other = replace(tls_endpoint, certificate=Credentials.ephemeral(["127.0.0.1"]).trusted)
    with pytest.raises(ValueError, match=r"is not trusted here \(self.signed certificate\): name the"):
        check_peer(other, CALLER, digest=graph.manifest.digest, timeout_s=5)
    elsewhere = Credentials.ephemeral(["10.9.8.7"], token=TOKEN)
    with served(graph, elsewhere) as found, pytest.raises(ValueError, match="its certificate is not good"):
        check_peer(found, CALLER, digest=graph.manifest.digest, timeout_s=5)


def test_a_certificate_of_an_authority_is_trusted_through_it(graph: Graph) -> None:
    authority = Authority()
    certificate, key = authority.sign()
    credentials = Credentials(token=TOKEN, certificate=certificate, key=key, authority=authority.pem)
    with served(graph, credentials) as found:
        assert found.certificate == authority.pem.decode()
        assert works(graph, found)
        check_peer(found, CALLER, digest=graph.manifest.digest, timeout_s=10)


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_ipv6(graph: Graph) -> None:
    credentials = Credentials.ephemeral(["::1"], token=TOKEN)
    with build_server(graph, [0], "[::1]:0", credentials) as server:
        assert server.endpoint.host == "::1"
        assert works(graph, server.endpoint)
        check_peer(server.endpoint, CALLER, digest=graph.manifest.digest, timeout_s=10)


# --- check_peer


def test_check_peer_says_what_to_mend(
    graph: Graph, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = graph.manifest.digest
    with pytest.raises(ValueError, match="wrong token: all hosts must use the same one"):
        check_peer(endpoint, STRANGER, digest=digest, timeout_s=5)
    with pytest.raises(ValueError, match="has another graph"):
        check_peer(endpoint, CALLER, digest="0" * 64, timeout_s=5)
    with pytest.raises(ValueError, match=r"holds partitions \[0\], not \[0, 1\]"):
        check_peer(replace(endpoint, partitions=(0, 1)), CALLER, digest=digest, timeout_s=5)
    with pytest.raises(StorageUnavailable, match=r"the name 'nowhere\.invalid' is not known here"):
        check_peer(replace(endpoint, host="nowhere.invalid"), CALLER, digest=digest, timeout_s=5)
    own = BuildVersions.own()
    for other in (replace(own, wire=99, oldest_wire=99), replace(own, draws=99)):
        monkeypatch.setattr(BuildVersions, "of", lambda _, other=other: other)
        with pytest.raises(ValueError, match=r"99; here it is .*install the same version") as told:
            check_peer(endpoint, CALLER, digest=digest, timeout_s=5)
        assert "\n" not in str(told.value)
    monkeypatch.setattr(BuildVersions, "of", lambda _: replace(own, wire=99))
    check_peer(endpoint, CALLER, digest=digest, timeout_s=5)  # Its requests have the older version.


def test_check_peer_knocks_at_both_ports(graph: Graph, endpoint: Endpoint) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        closed = unheard.getsockname()[1]
        for name, where in (
            ("control_port", f"{endpoint.host}:{closed}"),
            ("data_port", rf"\(port {closed}\)"),
        ):
            wrong = replace(endpoint, **{name: closed})
            with pytest.raises(StorageUnavailable, match=rf"{where}: nothing listens there"):
                check_peer(wrong, CALLER, digest=graph.manifest.digest, timeout_s=5)


def test_check_peer_suspects_a_firewall_where_nothing_answers(graph: Graph, endpoint: Endpoint) -> None:
    with socket.socket() as deaf, socket.socket() as filler:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)  # One connection waits in its queue; the kernel drops what further ones send.
        filler.connect(deaf.getsockname())
        silent = replace(endpoint, control_port=deaf.getsockname()[1])
        with pytest.raises(StorageUnavailable, match="is there a firewall"):
            check_peer(silent, CALLER, digest=graph.manifest.digest, timeout_s=0.3)


def test_check_peer_keeps_its_time_where_a_name_has_several_addresses(
    graph: Graph, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as deaf, socket.socket() as filler:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        filler.connect(deaf.getsockname())
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", deaf.getsockname())] * 20
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        began = time.monotonic()
        with pytest.raises(StorageUnavailable, match=r"no answer to a connection in 0\.\d s"):
            check_peer(endpoint, CALLER, digest=graph.manifest.digest, timeout_s=0.9)
        assert time.monotonic() - began < 10  # Of 20 addresses with 0.9 s each.


# --- where it listens


@pytest.mark.parametrize(
    ("listen", "error", "message"),
    [
        ("nonsense", ValueError, "write HOST:PORT"),
        ("0.0.0.0:0", ValueError, "say which one others shall use"),
        ("203.0.113.7:0", ValueError, "needs TLS"),
        ("nowhere.invalid:0", ValueError, "needs TLS"),
    ],
)
def test_an_address_that_cannot_be_right(
    graph: Graph, listen: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build_server(graph, [0], listen, Credentials(token=TOKEN))


def test_an_address_where_nobody_can_listen(graph: Graph, endpoint: Endpoint, tls: Credentials) -> None:
    taken = f"127.0.0.1:{endpoint.control_port}"
    with pytest.raises(
        OSError, match=f"^cannot listen on {taken}: Address already in use; choose another port"
    ):
        build_server(graph, [0], taken, tls, port_wait_s=0.05)
    with pytest.raises(OSError, match=r"^cannot listen on 127.*: Address already in use"):
        build_server(graph, [0], "127.0.0.1:0", tls, data_port=endpoint.data_port, port_wait_s=0.05)
    with pytest.raises(
        OSError, match=r"^cannot listen on 203\.0\.113\.7:0: .*; give an address of this host"
    ):
        build_server(graph, [0], "203.0.113.7:0", tls)
    with pytest.raises(
        OSError, match=r"^cannot listen on nowhere\.invalid:0: .*; give an address of this host"
    ):
        build_server(graph, [0], "nowhere.invalid:0", tls)


def test_the_port_after_control_is_for_data(graph: Graph) -> None:
    port = free_port(count=2)
    with build_server(graph, [0], f"127.0.0.1:{port}", Credentials(token=TOKEN)) as server:
        assert (server.endpoint.control_port, server.endpoint.data_port) == (port, port + 1)


def test_others_come_where_they_are_told_to(graph: Graph) -> None:
    insecure = Credentials.plaintext(token=TOKEN, insecure=True)
    with build_server(graph, [0], "0.0.0.0:0", insecure, advertise="127.0.0.1", host_index=3) as server:
        assert (server.endpoint.host, server.endpoint.host_index) == ("127.0.0.1", 3)
        assert works(graph, server.endpoint)


@pytest.mark.usefixtures("no_leftovers")
def test_a_closed_server_leaves_its_ports(graph: Graph) -> None:
    with served(graph) as endpoint:
        assert works(graph, endpoint)
    for port in (endpoint.control_port, endpoint.data_port):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
