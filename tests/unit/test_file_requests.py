"""Requests for bytes of a graph's files: what is sent, and what no path and no span gets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_loader.errors import FormatError
from gigl_loader.graph.folder import DiskFolder, MemoryFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.rpc.checksums import Crc32c
from gigl_loader.rpc.graph_requests import MAX_FILE_BYTES, FileRequest, encode_graph_request
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.tensors import Layout
from gigl_server.admission import LOCAL
from gigl_server.counters import Counters
from gigl_server.ports.queries import Queries
from tests.support.store_graph import write_graph

if TYPE_CHECKING:
    from collections.abc import Iterator

MINE = "part-00000/nodes/node.safetensors"
OTHERS = "part-00001/nodes/node.safetensors"


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return Graph.open(write_graph(tmp_path / "graph"), parts=[0])


@pytest.fixture
def queries(graph: Graph) -> Iterator[Queries]:
    found = Queries(graph, graph.parts, Counters())
    yield found
    found.close()


def ask(
    queries: Queries, graph: Graph, path: str, *, first: int = 0, count: int = 1, digest: str = ""
) -> bytes:
    ticket = encode_graph_request(
        FileRequest(path=path, first=first, count=count), digest or graph.manifest.digest
    )
    reply = queries.respond(ticket, LOCAL, Crc32c())
    reply.loan.release()
    buffer = np.concatenate(reply.chunks)
    layout = Layout.parse(buffer, what="reply")
    return layout.view(buffer, "bytes").tobytes()


def refusal(queries: Queries, graph: Graph, path: str, **span: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        ask(queries, graph, path, **span)
    assert queries.sending.lent == 0
    return caught.value


def test_bytes_of_a_file_are_sent(queries: Queries, graph: Graph, tmp_path: Path) -> None:
    data = (tmp_path / "graph" / MINE).read_bytes()
    assert ask(queries, graph, MINE, count=len(data)) == data
    assert ask(queries, graph, MINE, first=7, count=40) == data[7:47]
    assert ask(queries, graph, MINE, first=len(data) - 1) == data[-1:]


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "graph.json",
        "/etc/passwd",
        "../secret",
        "part-00000/../part-00000/nodes/node.safetensors",
        "./part-00000/nodes/node.safetensors",
        "part-00000//nodes/node.safetensors",
        "part-00000/nodes",
        "part-00000/nodes/node.safetensors/",
        "part-00000/nodes/node.safetensors\0",
        "part-00000/extra.safetensors",
        "PART-00000/nodes/node.safetensors",
        OTHERS,
    ],
)
def test_no_other_path_is_read(queries: Queries, graph: Graph, tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "graph/part-00000/extra.safetensors").write_bytes(b"extra")
    absolute = str(tmp_path / "graph" / MINE)
    for each in (path, absolute):
        found = refusal(queries, graph, each)
        assert found.kind is RefusalKind.INVALID
        assert "no file" in found.message


def test_a_link_in_place_of_a_file_is_not_followed(queries: Queries, graph: Graph, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(1 << 16))
    file = tmp_path / "graph" / MINE
    file.unlink()
    file.symlink_to(secret)
    found = refusal(queries, graph, MINE)
    assert found.kind is RefusalKind.FAILED
    assert "cannot be read" in found.message


def test_neither_a_pipe_nor_a_missing_file_holds_the_server_up(
    queries: Queries, graph: Graph, tmp_path: Path
) -> None:
    file = tmp_path / "graph" / MINE
    file.unlink()
    assert "No such file" in refusal(queries, graph, MINE).message
    os.mkfifo(file)
    assert "not a regular file" in refusal(queries, graph, MINE).message


@pytest.mark.parametrize(("first", "count"), [(0, 10**9), (10**9, 1), (2**62, 1), (0, 1 << 22)])
def test_bytes_beyond_the_end_are_refused(queries: Queries, graph: Graph, first: int, count: int) -> None:
    found = refusal(queries, graph, MINE, first=first, count=count)
    assert found.kind in (RefusalKind.INVALID, RefusalKind.TOO_LARGE)


@pytest.mark.parametrize("count", [MAX_FILE_BYTES + 1, 2**62])
def test_more_than_a_piece_is_refused_before_it_is_read(queries: Queries, graph: Graph, count: int) -> None:
    assert refusal(queries, graph, MINE, count=count).kind is RefusalKind.TOO_LARGE


@pytest.mark.parametrize(("first", "count"), [(-1, 1), (0, 0), (0, -5), (2**63, 1)])
def test_a_span_that_is_none_is_refused(queries: Queries, graph: Graph, first: int, count: int) -> None:
    assert refusal(queries, graph, MINE, first=first, count=count).kind is RefusalKind.MALFORMED


def test_another_graph_is_refused(queries: Queries, graph: Graph) -> None:
    with pytest.raises(Refusal) as caught:
        ask(queries, graph, MINE, digest="0" * 64)
    assert caught.value.kind is RefusalKind.OTHER_GRAPH


def test_a_file_that_was_truncated_is_refused(queries: Queries, graph: Graph, tmp_path: Path) -> None:
    os.truncate(tmp_path / "graph" / MINE, 100)
    assert ask(queries, graph, MINE, count=100)
    assert "it ends before byte 101" in refusal(queries, graph, MINE, first=100).message


def test_files_of_a_withdrawn_partition_are_sent(graph: Graph, tmp_path: Path) -> None:
    """Another server may need the sound blocks of a file that is damaged here."""
    queries = Queries(graph, graph.parts, Counters())
    queries.hold(graph.holding([]), withdrawn=[0])
    assert ask(queries, graph, MINE, count=5) == (tmp_path / "graph" / MINE).read_bytes()[:5]
    queries.close()


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_a_folder_reads_what_is_there_and_says_what_is_not(tmp_path: Path, kind: str) -> None:
    folder = DiskFolder(tmp_path) if kind == "disk" else MemoryFolder()
    sink = folder.create("file", 5)
    sink.write(0, b"abcde")
    sink.close()
    assert folder.read("file", 1, 3).tobytes() == b"bcd"
    with pytest.raises(FormatError, match="file: it ends before byte 6"):
        folder.read("file", 3, 3)
    with pytest.raises(FormatError, match="none: cannot be read"):
        folder.read("none", 0, 1)
