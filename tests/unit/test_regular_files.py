"""Files and replies that are read whole: bounded before they are read, and regular files alone."""

from __future__ import annotations

import os
import socket
import threading
import time
import tracemalloc
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gigl_loader import regular_files
from gigl_loader.cli.app import build_app
from gigl_loader.cli.schema_file import read_schema_file
from gigl_loader.errors import FormatError, GiglError
from gigl_loader.graph.folder import DirectFile, DiskFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.manifest import MANIFEST_NAME, Manifest
from gigl_loader.loaders.embedding_files import EmbeddingFolder
from gigl_loader.loaders.ledger_file import MAX_LINE_BYTES, LedgerFile
from gigl_loader.loaders.replay import Recording
from gigl_loader.options import MAX_MANIFEST_BYTES
from gigl_loader.partition import ArrayTable, GraphTables, build_graph
from gigl_loader.partition.glt.layout import _Meta
from gigl_loader.partition.output import DiskScratch, read_file
from gigl_loader.partition.remote_files import RemotePlace, RemoteSource
from gigl_loader.partition.steps.index import add_indexes
from gigl_loader.regular_files import open_regular, read_whole
from gigl_loader.rpc import replies, server_process
from gigl_loader.rpc.reply_stream import ReplyBuffer, ReplyStream
from gigl_loader.rpc.secret_files import cluster_key_in, pem_in, token_in
from gigl_server.config import read_yaml
from gigl_server.partitions.adoption import write_durable
from gigl_server.partitions.assembly import Assembly, temporary_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HUGE = 3 << 30
SOON_S = 60.0
LITTLE = 48 << 20
"""Memory of a refusal: pieces that were read until it was known."""


def ended(call: Callable[[], object]) -> BaseException | None:
    """Make a call in a thread, which must end. Return what it raised."""
    raised: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)
        else:
            raised.append(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SOON_S)
    assert raised, "it waits"
    return raised[0]


@pytest.fixture(autouse=True)
def _short_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regular_files, "_PIPE_S", 0.1)


def huge(path: Path) -> None:
    """Make a file of 3 GB, which takes no room on the disk."""
    with path.open("wb") as file:
        file.truncate(HUGE)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


KINDS = {"huge": huge, "pipe": pipe, "endless": endless}


def graph_of(path: Path) -> object:
    path.rename(path.with_name(MANIFEST_NAME))
    return Manifest.read(DiskFolder(path.parent))


def embeddings_of(path: Path) -> object:
    folder = path.with_name("embeddings")
    folder.mkdir()
    path.rename(folder / "manifest-00000-of-00001.json")
    return EmbeddingFolder._manifest_of(SimpleNamespace(path=folder), folder / "manifest-00000-of-00001.json")  # type: ignore[arg-type]


def scratch_of(path: Path) -> object:
    return read_file(DiskScratch(path.parent), path.name, most=1 << 20)


READERS: dict[str, Callable[[Path], object]] = {
    "graph.json": graph_of,
    "token": token_in,
    "cluster key": cluster_key_in,
    "certificate": pem_in,
    "options": read_yaml,
    "description of tables": read_schema_file,
    "ledger": Recording.read,
    "ledger to append to": lambda path: LedgerFile(path, timeout_s=1.0),
    "manifest of embeddings": embeddings_of,
    "description of a GLT directory": _Meta,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_small_regular_file_is_refused_without_being_read(
    tmp_path: Path, reader: str, kind: str
) -> None:
    path = tmp_path / "file"
    KINDS[kind](path)
    tracemalloc.start()
    try:
        raised = ended(lambda: READERS[reader](path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(raised, (ValueError, GiglError, OSError)), raised
    assert not isinstance(raised, MemoryError)
    assert peak < (3 * MAX_LINE_BYTES if kind == "huge" and reader.startswith("ledger") else LITTLE)


def test_a_file_of_a_scratch_is_bounded(tmp_path: Path) -> None:
    huge(tmp_path / "file")
    raised = ended(lambda: scratch_of(tmp_path / "file"))
    assert isinstance(raised, FormatError)
    assert "at most 1048576 are read" in str(raised)


# --- the functions


@pytest.mark.parametrize("nbytes", [0, 1, 9, 10])
def test_small_files_come_whole_also_behind_links(tmp_path: Path, nbytes: int) -> None:
    (tmp_path / "file").write_bytes(bytes(range(nbytes)))
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        assert read_whole(tmp_path / name, most=10) == bytes(range(nbytes))
    assert b"Linux" in read_whole("/proc/version", most=1 << 20)  # Its size is said to be 0.


def test_one_byte_too_many_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(11))
    with pytest.raises(FormatError, match=r"file has more than 10 bytes, as many as are read$"):
        read_whole(tmp_path / "file", most=10)


def test_sockets_and_directories_are_no_files(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="No such device or address"):
            open_regular(tmp_path / "socket")
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with suppress(IsADirectoryError):
            read_whole(tmp_path, most=1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_secret_may_come_through_a_pipe(tmp_path: Path) -> None:
    """As ``--token-file <(pass show token)`` of a shell does. Who writes may be slow to begin."""
    secret = "s" * 64
    pipe(tmp_path / "pipe")

    def write() -> None:
        with (tmp_path / "pipe").open("w") as file:
            file.write(secret[:10])
            file.flush()
            file.write(secret[10:])

    regular_files._PIPE_S = SOON_S
    writer = threading.Thread(target=write)
    writer.start()
    assert token_in(tmp_path / "pipe") == secret
    writer.join(SOON_S)


# --- graphs: sources and targets


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    ends = np.arange(50)
    edges = {("node", "to", "node"): ArrayTable("edges", {"src": ends, "dst": ends[::-1], "w": ends / 50.0})}
    build_graph(GraphTables(edges=edges), tmp_path / "graph", num_partitions=2)
    return tmp_path / "graph"


def run(*arguments: Any, code: int = 2) -> str:
    """Run a command, which must end. Return its one line of error."""
    results: list[Any] = []
    assert ended(lambda: results.append(CliRunner().invoke(build_app(), list(map(str, arguments))))) is None
    assert results[0].exit_code == code, results[0].output
    lines: list[str] = results[0].stderr.strip().splitlines()
    assert len(lines) == (1 if code else 0)
    return lines[0] if lines else ""


def test_graph_json_of_3_gb(graph: Path, tmp_path: Path) -> None:
    huge(graph / MANIFEST_NAME)
    tracemalloc.start()
    try:
        for arguments in (("inspect", graph), ("fetch", graph, tmp_path / "copy")):
            assert f"has {HUGE} bytes; at most {MAX_MANIFEST_BYTES} are read" in run(*arguments)
        assert tracemalloc.get_traced_memory()[1] < 3 * LITTLE  # Imports, too.
    finally:
        tracemalloc.stop()
    assert not (tmp_path / "copy").exists()


def test_a_remote_file_that_grows_is_not_read_further(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = RemotePlace(graph.as_uri())
    monkeypatch.setattr(RemotePlace, "size", lambda *_: 10)
    with pytest.raises(FormatError, match="at most 100 are read"):
        place.read(MANIFEST_NAME, most=100)


def part_of(folder: Path) -> Path:
    [found] = folder.glob("part-00001/topology/*")
    return found


@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_a_source_whose_file_is_none(graph: Path, tmp_path: Path, kind: str) -> None:
    part_of(graph).unlink()
    KINDS[kind](part := graph / "part-00001" / "topology" / "node+to+node.safetensors")
    assert "no such file" in run("fetch", graph, tmp_path / "copy", code=1)
    source = RemoteSource(RemotePlace(graph.as_uri()))
    assert isinstance(ended(lambda: source.fetch(str(part.relative_to(graph)), 0, 8)), GiglError)


@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_a_graph_whose_file_is_none_is_not_opened(graph: Path, kind: str) -> None:
    part = part_of(graph)
    part.unlink()
    KINDS[kind](part)
    name = part.relative_to(graph).as_posix()
    folder = DiskFolder(graph)
    for call in (
        lambda: Graph.open(graph),
        lambda: folder.open(name),
        lambda: folder.read(name, 0, 8),
        lambda: DirectFile(part, name),
    ):
        raised = ended(call)
        assert isinstance(raised, FormatError), raised


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """Lend a directory beside the target, in which nothing may change."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_text("mine")
    yield folder
    assert os.listdir(folder) == ["file"]
    assert (folder / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["part-00000", MANIFEST_NAME, temporary_name(MANIFEST_NAME), "other"])
def test_fetch_writes_to_its_target_alone(graph: Path, tmp_path: Path, outside: Path, name: str) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / name).symlink_to(outside if name == "part-00000" else outside / "file")
    assert f"{copy / name} is a link: remove it, or give another directory" in run("fetch", graph, copy)


def test_fetch_to_a_target_with_a_pipe(graph: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    (copy / "part-00000" / "topology").mkdir(parents=True)
    pipe(copy / "part-00000" / "topology" / part_of(graph).name)
    assert "is no regular file: remove it" in run("fetch", graph, copy)


def test_a_link_at_a_temporary_name_is_not_followed(graph: Path, outside: Path) -> None:
    (graph / temporary_name("x")).symlink_to(outside / "file")
    with pytest.raises(OSError, match="symbolic links"):
        write_durable(graph / "x", b"theirs")
    (graph / f".{MANIFEST_NAME}.new").symlink_to(outside / "file")
    with pytest.raises(OSError, match="symbolic links"):
        add_indexes(graph, weights={("node", "to", "node"): ["w"]}, times={})


def test_a_pipe_at_the_name_of_a_file_that_is_pulled(graph: Path) -> None:
    name = part_of(graph).relative_to(graph).as_posix()
    pipe(graph / temporary_name(name))
    raised = ended(lambda: Assembly(DiskFolder(graph), name, Graph.open(graph).manifest.files[name]))
    assert isinstance(raised, FormatError)


# --- replies


def test_a_reply_is_bounded_by_what_was_asked_for() -> None:
    class NoSource:
        def read(self, out: Any) -> None:
            raise AssertionError("none of it is to be read")

        def finish(self) -> bool:
            raise AssertionError

    for nbytes, most in ((HUGE, 1 << 20), (8 << 30, 8 << 30)):
        reply = ReplyStream(NoSource(), nbytes, ReplyBuffer())
        with pytest.raises(FormatError, match=f"of {nbytes} bytes; at most"):
            replies.bounded(most)(reply)


def test_a_line_of_a_child_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "_MAX_LINE_BYTES", 1 << 10)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"x" * (1 << 12))
        parent: Any = SimpleNamespace(_link=ours, _unread=b"", _name="server 1")
        with pytest.raises(GiglError, match="server 1 sent a line of more than 1024 bytes"):
            server_process.ServerProcess._hear(parent, time.monotonic() + SOON_S, "listen")
