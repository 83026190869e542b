"""Bombs of queries of texts against a data port with two tokens: the largest lists of the longest texts."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_loader.graph import ids as ids_module
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.options import MAX_TEXT_ID
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.rpc import request_reader as wire_texts
from gigl_loader.rpc.credentials import Caller, Credentials
from gigl_loader.rpc.graph_requests import MAX_TEXTS, FindTextsRequest, TextsRequest, encode_graph_request
from gigl_loader.rpc.remote_store import RemoteDirectory
from gigl_loader.rpc.replicas import connection_to
from gigl_loader.rpc.tokens import Token
from gigl_server.peer_server import PeerServer, build_server
from gigl_server.ports.data import DataPort
from tests.support.leftovers import wait_until
from tests.support.made import record_made
from tests.support.peers import TOKEN
from tests.support.raw_data import connected_socket, header_of, request_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

HOSTILE, CALLERS = "the-token-of-another-team-in-this-cluster", 8
CREDENTIALS = Credentials(token=TOKEN, other_tokens=(Token(name="hostile", secret=HOSTILE),))
SOON_S = 60.0
TOGETHER = 256
"""Texts of one native call, which keeps the threads of other calls waiting."""
STEP_S = 0.2
TEXTS = [f"{number:04}" + "\U0001f600" * (MAX_TEXT_ID - 4) for number in range(MAX_TEXTS)]


@pytest.fixture(scope="module")
def graph() -> Graph:
    names = np.array(TEXTS, dtype=object)
    edges = ArrayTable("edges", {"src": names[:2], "dst": names[1:3]})
    tables = GraphTables(
        edges={("node", "to", "node"): edges}, nodes={"node": NodeTable(ArrayTable("nodes", {"id": names}))}
    )
    folder = MemoryFolder()
    build_graph(tables, folder, num_partitions=1)
    return Graph.open(folder)


@pytest.fixture(scope="module")
def requests(graph: Graph) -> dict[str, bytes]:
    """The largest requests."""
    numbers = np.arange(MAX_TEXTS)
    asked: dict[str, FindTextsRequest | TextsRequest] = {
        "find": FindTextsRequest(node_type="node", texts=TEXTS),
        "texts": TextsRequest(node_type="node", ids=numbers),
    }
    return {
        name: request_bytes(encode_graph_request(request, graph.manifest.digest), header_of(HOSTILE))
        for name, request in asked.items()
    }


@pytest.fixture
def ports() -> Iterator[list[DataPort]]:
    """The data ports that were opened since the beginning of the test."""
    with pytest.MonkeyPatch.context() as patch:
        yield record_made(patch, DataPort)


@pytest.fixture
def server(graph: Graph, ports: list[DataPort]) -> Iterator[PeerServer]:
    with build_server(graph, [0], "127.0.0.1:0", CREDENTIALS) as server:
        yield server


@pytest.fixture
def honest(graph: Graph, server: PeerServer) -> Iterator[RemoteDirectory]:
    connection = connection_to(server.endpoint, Caller(token=TOKEN), timeout_s=SOON_S)
    yield RemoteDirectory(connection, schema=graph.schema, digest=graph.manifest.digest)
    connection.close()


def works(honest: RemoteDirectory, number: int) -> None:
    assert honest.texts("node", np.array([number])) == [TEXTS[number]]
    assert honest.find_texts("node", [TEXTS[number], "unknown"]).tolist() == [number, -1]


def is_idle(port: DataPort) -> bool:
    """Return whether no reply is being made or sent."""
    return not (port._turns.lent or port._calls.lent)


@pytest.mark.slow
def test_bombs_of_texts_hold_up_no_other_caller_and_end_with_theirs(
    server: PeerServer, ports: list[DataPort], honest: RemoteDirectory, requests: dict[str, bytes]
) -> None:
    [port] = ports
    ending = Event()

    def flood(request: bytes) -> int:
        """Ask, and leave a moment later, again and again."""
        asked = 0
        while not ending.is_set():
            with suppress(OSError), connected_socket(server.endpoint.data_address, request):
                asked += 1
                ending.wait(0.01 * (asked % 10))
        return asked

    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(CALLERS))
        stack.callback(ending.set)
        floods = [threads.submit(flood, each) for each in requests.values() for _ in range(CALLERS // 2)]
        assert wait_until(lambda: port._turns.lent > 0, seconds=SOON_S)
        for number in range(20):
            works(honest, number)
        ending.set()
        assert all(each.result(SOON_S) for each in floods)
    assert wait_until(lambda: is_idle(port), seconds=SOON_S)


@pytest.mark.parametrize(
    ("module", "function", "name"),
    [(wire_texts, "texts_at", "find"), (ids_module, "find_texts", "find"), (ids_module, "texts_at", "texts")],
    ids=["parse", "find", "texts"],
)
def test_texts_of_a_slow_disk_are_not_read_for_a_caller_that_is_gone(
    server: PeerServer,
    ports: list[DataPort],
    honest: RemoteDirectory,
    requests: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    *,
    module: ModuleType,
    function: str,
    name: str,
) -> None:
    """And they keep other callers waiting for 256 texts at most."""
    native, sizes = getattr(module, function), list[int]()

    def slow(*given: Any) -> Any:
        if len(given[-1]) >= TOGETHER:
            sizes.append(len(given[-1]))
            time.sleep(STEP_S)
        return native(*given)

    monkeypatch.setattr(module, function, slow)
    with connected_socket(server.endpoint.data_address, requests[name]):
        assert wait_until(lambda: bool(sizes), seconds=SOON_S)
        works(honest, 7)
        assert not is_idle(ports[0])
    assert wait_until(lambda: is_idle(ports[0]), seconds=SOON_S)
    assert set(sizes) == {TOGETHER}
    assert len(sizes) < MAX_TEXTS // TOGETHER
