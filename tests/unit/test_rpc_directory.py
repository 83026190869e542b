"""What a service tells about the graph as a whole, asked by callers good and bad."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from gigl_loader.errors import FormatError, SamplingError
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.rpc import graph_requests
from gigl_loader.rpc import remote_store as directory_module
from gigl_loader.rpc.graph_requests import (
    IdsRequest,
    ListRequest,
    LocateRequest,
    ManifestRequest,
    encode_graph_request,
)
from gigl_loader.rpc.remote_store import RemoteDirectory, fetch_manifest
from gigl_loader.rpc.replicas import connection_to
from gigl_loader.tensors import Layout, spec_of
from tests.support.peers import CALLER, TOKEN, served
from tests.support.raw_data import RawCaller, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from gigl_loader.rpc.endpoint import Endpoint

RANDOM = np.random.default_rng(0)
IDS = {
    "identity": np.arange(300),
    "dense": RANDOM.permutation(300),
    "sparse": RANDOM.permutation(10**12 + 7 * np.arange(300)),
}
"""Of the graph with ids of that kind."""


def built(kind: str) -> Graph:
    papers = NodeTable(
        ArrayTable("papers", {"id": IDS[kind]}), splits={"train": ArrayTable("train", {"id": IDS[kind][::3]})}
    )
    cites = ArrayTable("cites", {"src": IDS[kind][:200], "dst": IDS[kind][100:]})
    tables = GraphTables(nodes={"paper": papers}, edges={("paper", "cites", "paper"): cites})
    folder = MemoryFolder()
    build_graph(tables, folder, num_partitions=2, assigner="range" if kind == "identity" else "hash")
    return Graph.open(folder)


class Served(NamedTuple):
    graph: Graph
    endpoint: Endpoint

    @contextmanager
    def asking(self, **changes: Any) -> Iterator[RemoteDirectory]:
        connection = connection_to(self.endpoint, CALLER, timeout_s=10)
        given = {"schema": self.graph.schema, "digest": self.graph.manifest.digest, **changes}
        try:
            yield RemoteDirectory(connection, **given)
        finally:
            connection.close()

    def refusal(self, ticket: bytes) -> Refused:
        with RawCaller(self.endpoint.data_address, token=TOKEN) as caller, pytest.raises(Refused) as raised:
            caller.ask(ticket)
        return raised.value


@pytest.fixture(scope="module")
def services() -> Iterator[dict[str, Served]]:
    with ExitStack() as stack:
        graphs = {kind: built(kind) for kind in IDS}
        yield {kind: Served(graph, stack.enter_context(served(graph))) for kind, graph in graphs.items()}


@pytest.fixture(params=list(IDS))
def service(request: pytest.FixtureRequest, services: dict[str, Served]) -> Served:
    found = services[request.param]
    assert found.graph.schema.nodes["paper"].ids == request.param
    return found


@pytest.fixture
def dense(services: dict[str, Served]) -> Served:
    return services["dense"]


def node_ids(graph: Graph) -> npt.NDArray[Any]:
    ids = graph.node_ids("paper")
    return np.arange(300) if ids is None else ids


def test_the_manifest_comes_as_it_is(service: Served) -> None:
    connection = connection_to(service.endpoint, CALLER, timeout_s=10)
    assert fetch_manifest(connection) == service.graph.manifest.to_bytes()
    connection.close()


@pytest.mark.parametrize("listed", [70, 1 << 20])
def test_nodes_are_those_of_the_graph(service: Served, monkeypatch: pytest.MonkeyPatch, listed: int) -> None:
    monkeypatch.setattr(directory_module, "MAX_LISTED", listed)
    positions = RANDOM.integers(0, 300, 200)
    with service.asking() as nodes:
        ids = nodes.ids("paper", positions)
        assert ids.tolist() == node_ids(service.graph)[positions].tolist()
        assert nodes.locate("paper", ids).tolist() == positions.tolist()
        assert nodes.all_positions("paper").tolist() == service.graph.all_positions("paper").tolist()
        assert len(nodes.ids("paper", positions[:0])) == len(nodes.locate("paper", ids[:0])) == 0
        for part in range(2):
            expected = service.graph.split_part("paper", "train", part).tolist()
            assert nodes.split(part, "paper", "train").tolist() == expected


def test_unknown_nodes_are_named(service: Served) -> None:
    unknown = 10**15 + np.arange(12)
    with service.asking() as nodes:
        listed = ", ".join(map(str, unknown[:10]))
        with pytest.raises(ValueError, match=f"12 unknown node ids of type 'paper': {listed}, ...$"):
            nodes.locate("paper", np.concatenate([node_ids(service.graph), unknown]))
        for wrong in (-1, 300):
            with pytest.raises(ValueError, match=f"{wrong}"):
                nodes.ids("paper", np.array([5, wrong]))


def test_another_graph_or_type_is_refused(dense: Served) -> None:
    with (
        dense.asking(digest="0" * 64) as nodes,
        pytest.raises(SamplingError, match="asked about graph 000000000000, this service has"),
    ):
        nodes.ids("paper", np.arange(3))
    ticket = encode_graph_request(
        ListRequest(node_type="absent", first=0, count=3), dense.graph.manifest.digest
    )
    assert str(dense.refusal(ticket)) == "no node type 'absent'"


def edited(ticket: bytes, entries: dict[str, str | None], **arrays: npt.NDArray[Any]) -> bytes:
    buffer = np.frombuffer(ticket, np.uint8)
    layout = Layout.parse(buffer)
    given = {name: layout.view(buffer, name) for name in layout.specs} | arrays
    metadata = {name: text for name, text in {**layout.metadata, **entries}.items() if text is not None}
    header = Layout.plan({name: spec_of(array) for name, array in given.items()}, metadata).header
    return header + b"".join(array.tobytes() for array in given.values())


def test_inquiries_that_break_a_rule_are_refused(dense: Served) -> None:
    digest = dense.graph.manifest.digest
    some = encode_graph_request(IdsRequest(node_type="paper", positions=np.arange(3)), digest)
    found = encode_graph_request(LocateRequest(node_type="paper", ids=np.arange(3)), digest)
    span = encode_graph_request(ListRequest(node_type="paper", first=0, count=3), digest)
    manifest = encode_graph_request(ManifestRequest(), "")
    malformed = [
        edited(some, {"wire": "99"}),
        edited(some, {"wire": None}),
        edited(some, {"partition": "0"}),
        edited(some, {"node_type": None}),
        edited(some, {}, rows=np.zeros((2, 2), np.int64)),
        edited(some, {}, rows=np.zeros(2, np.float32)),
        edited(some, {}, ids=np.zeros(2, np.int64)),
        edited(found, {}, ids=np.zeros(2, np.uint8)),
        edited(span, {"count": "-1"}),
        edited(span, {"count": "many"}),
        edited(span, {"first": "301"}),
        edited(span, {"first": "9" * 30}),
        edited(span, {"ask": "lists"}),
        edited(manifest, {"path": "/etc/passwd"}),
        some + b"\0",
        some[:-1],
    ]
    assert [dense.refusal(ticket).kind for ticket in malformed] == ["malformed"] * len(malformed)
    assert dense.refusal(edited(some, {}, rows=np.array([-1]))).kind == "invalid"
    assert dense.refusal(edited(some, {"graph": "x"})).kind == "other graph"
    assert dense.refusal(edited(span, {"count": str(graph_requests.MAX_LISTED + 1)})).kind == "too large"
    with dense.asking() as nodes:
        assert len(nodes.ids("paper", np.arange(3))) == 3


def test_a_large_inquiry_is_refused_before_it_is_answered(
    dense: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_requests, "MAX_LISTED", 10)
    for inquiry in (
        IdsRequest(node_type="paper", positions=np.arange(11)),
        LocateRequest(node_type="paper", ids=np.arange(11)),
    ):
        assert dense.refusal(encode_graph_request(inquiry, dense.graph.manifest.digest)).kind == "too large"


def test_a_reply_that_cannot_be_right_is_not_believed(dense: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with dense.asking() as nodes:
        for wrong in (
            np.arange(2),
            np.arange(3) + 10**9,
            np.zeros(3, np.float32),
            np.zeros((3, 1), np.int64),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(Graph, "positions", lambda *_, wrong=wrong: wrong)
                with pytest.raises(FormatError, match="reply: "):
                    nodes.locate("paper", np.arange(3))
