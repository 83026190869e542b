"""Damage of files that are in use: told by the next batch, and by the process that dies of it."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.errors import FormatError, WorkerDied
from gigl_loader.graph import Graph
from gigl_loader.graph import folder as folder_module
from gigl_loader.graph import verifier as verifier_module
from gigl_loader.graph.manifest import Document
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.sampling.rows import DiskRows
from tests.support.graph_files import in_page_cache
from tests.support.leftovers import wait_until
from tests.support.training import digest

if TYPE_CHECKING:
    from collections.abc import Callable

NODES, EDGES = 600, 4000
TOPOLOGY = "part-00000/topology/node+to+node.safetensors"
FEATURES = "part-00001/nodes/node.safetensors"
SPLITS = "part-00001/splits/node.safetensors"
IDS = "ids/node.safetensors"
OPTIONS: dict[str, Any] = {"batch_size": 64, "seed": 3, "shuffle": True}


def tables() -> GraphTables:
    random = np.random.default_rng(0)
    ids = random.permutation(NODES) * 7 - 100
    nodes = ArrayTable(
        "nodes",
        {
            "id": ids,
            "x": random.random((NODES, 40), dtype=np.float32),
            "y": random.integers(0, 9, NODES),
            "split": np.where(np.arange(NODES) % 2, "train", "test"),
        },
    )
    edges = ArrayTable(
        "edges",
        {
            "src": ids[random.integers(0, NODES, EDGES)],
            "dst": ids[random.integers(0, NODES, EDGES)],
            "edge_attr": random.random(EDGES, dtype=np.float32),
        },
    )
    return GraphTables(edges={("node", "to", "node"): edges}, nodes={"node": NodeTable(nodes)})


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graphs") / "graph"
    build_graph(tables(), path, num_partitions=2)
    return path


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "graph"))


def flip(file: Path, bit: int) -> None:
    """Flip a bit in place, as a disk or memory would: maps of the file see it."""
    with file.open("r+b") as opened:
        opened.seek(bit // 8)
        (byte,) = opened.read(1)
        opened.seek(bit // 8)
        opened.write(bytes([byte ^ 1 << bit % 8]))


def epoch(path: Path, **options: Any) -> list[int]:
    verify = options.pop("verify", "lazy")
    with ExitStack() as stack:
        dataset = stack.enter_context(DistDataset.open(path, verify=verify))
        loader = stack.enter_context(
            DistNeighborLoader(dataset, [4, 3], "train", **OPTIONS, num_workers=options.pop("num_workers", 0))
        )
        return [digest(batch) for batch in loader]


def test_random_flips_are_noticed_or_change_no_batch(built: Path, tmp_path: Path) -> None:
    """By opening and one epoch, as anyone has it. A flip in ``graph.json`` may also mean the same."""
    expected = epoch(built)
    random = np.random.default_rng(5)
    files = sorted(file.relative_to(built) for file in built.rglob("*") if file.is_file())
    noticed = harmless = 0
    path = Path(shutil.copytree(built, tmp_path / "flipped"))
    for file in files:
        data = (built / file).read_bytes()
        for bit in random.integers(0, 8 * len(data), 120 // len(files) + 1).tolist():
            flip(path / file, bit)
            try:
                batches = epoch(path)
            except FormatError:
                noticed += 1
            else:
                assert batches == expected, (file, bit)
                harmless += 1
            (path / file).write_bytes(data)
    assert noticed + harmless >= 120
    assert harmless <= 2
    assert epoch(path) == expected


@pytest.mark.parametrize(
    "edit",
    [
        lambda document: document["schema"].update(edge_dir="out"),
        lambda document: document["schema"]["nodes"][0].update(count=599),
        lambda document: document["schema"]["nodes"][0]["bounds"].__setitem__(1, 299),
        lambda document: document["schema"]["nodes"][0]["columns"]["x"].update(dtype="I32"),
        lambda document: document["schema"]["nodes"][0]["columns"].update(x={"dtype": "F64", "shape": [20]}),
        lambda document: document["schema"]["nodes"][0]["splits"].update(train=299),
        lambda document: document["build"].update(assigner="hash"),
        lambda document: document["files"][FEATURES].update(blocks="AAAAAA=="),
        lambda document: document["files"].pop(FEATURES),
        lambda document: document.update(more=1),
    ],
)
def test_edits_of_the_manifest_are_noticed(copy: Path, edit: Callable[[Any], Any]) -> None:
    document = json.loads((copy / "graph.json").read_text())
    edit(document)
    (copy / "graph.json").write_text(json.dumps(document))
    with pytest.raises(FormatError, match="do not match their digest"):
        DistDataset.open(copy)


@pytest.mark.parametrize("name", [TOPOLOGY, FEATURES, SPLITS, IDS])
def test_full_reads_everything_at_once_and_none_nothing(copy: Path, name: str) -> None:
    flip(copy / name, 4 * (copy / name).stat().st_size)
    Graph.open(copy, verify="none")
    Graph.open(copy)
    with pytest.raises(FormatError, match="do not match their checksum"):
        Graph.open(copy, verify="full")
    with pytest.raises(ValueError, match="verify must be one of 'full', 'lazy', 'none', got 'all'"):
        Graph.open(copy, verify="all")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "use"),
    [
        (TOPOLOGY, lambda graph: graph.topology(("node", "to", "node"), 0)),
        (SPLITS, lambda graph: graph.split("node", "train")),
        (IDS, lambda graph: graph.positions("node", np.array([-100]))),
        (IDS, lambda graph: graph.node_ids("node")),
        (IDS, lambda graph: graph.all_positions("node")),
    ],
)
def test_files_are_verified_before_their_first_use(
    copy: Path, name: str, use: Callable[[Graph], Any]
) -> None:
    flip(copy / name, 4 * (copy / name).stat().st_size)
    graph = Graph.open(copy)
    for _ in range(2):
        with pytest.raises(FormatError, match=f"{name.split('+', maxsplit=1)[0]}.*do not match"):
            use(graph)


@pytest.mark.parametrize("maps", [True, False])
def test_large_features_are_verified_in_the_background(
    copy: Path, maps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifier_module, "_SMALL_BYTES", 0)
    flip(copy / FEATURES, 8 * (copy / FEATURES).stat().st_size - 9)
    graph = Graph.open(copy)
    graph.verifier.without_maps([] if maps else [FEATURES])

    def found() -> bool:
        try:
            graph.verifier.check()
        except FormatError as error:
            return FEATURES in str(error)
        return False

    assert wait_until(found)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with 60 MB of features: opening reads 8 MB of a file ahead."""
    path = tmp_path_factory.mktemp("graphs") / "wide"
    x = np.random.default_rng(0).random((30_000, 500), dtype=np.float32)
    edges = ArrayTable("edges", {"src": np.arange(30_000), "dst": np.arange(30_000)[::-1].copy()})
    nodes = NodeTable(ArrayTable("nodes", {"id": np.arange(30_000), "x": x}))
    build_graph(GraphTables(edges={("node", "to", "node"): edges}, nodes={"node": nodes}), path)
    return path


@pytest.mark.parametrize("mode", ["maps", "disk", "full", "inspected"])
@pytest.mark.parametrize("direct", [True, False])
def test_features_beyond_memory_are_verified_past_the_page_cache(
    wide: Path, mode: str, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not direct:  # A file system that has no direct reads.
        monkeypatch.setattr(folder_module, "_DIRECT", 0)
    features, topology = wide / "part-00000/nodes/node.safetensors", wide / TOPOLOGY
    for file in (features, topology):
        with file.open("r+b") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if in_page_cache(features):
        pytest.skip("the page cache keeps files of this file system")
    if mode in ("full", "inspected"):
        monkeypatch.setattr(verifier_module, "memory_bytes", lambda: 20 << 20)
    graph = Graph.open(wide, verify="none" if mode == "inspected" else "lazy")
    if mode == "disk":
        DiskRows(graph, "node", ["x"]).close()
    graph.verify() if mode == "inspected" else graph.verifier.finish()
    assert in_page_cache(topology) > 0.9
    assert (in_page_cache(features) > 0.9) == (mode == "maps")
    assert mode == "maps" or in_page_cache(features) < 0.3


def is_advised_random(file: Path) -> bool:
    """Whether the kernel has that advice for the map of a file."""
    entries = Path("/proc/self/smaps").read_text().split("VmFlags:")
    flags = [after.split("\n")[0] for before, after in pairwise(entries) if str(file) in before]
    assert flags, file
    return all("rr" in each.split() for each in flags)


@pytest.mark.parametrize(
    ("memory", "share", "advised"),
    [
        (1 << 30, 0.5, set()),
        (100_000, 0.5, {"nodes"}),
        (100_000, 0.1, {"nodes", "edges"}),
        (60_000, 0.5, {"nodes", "topology"}),
    ],
)
def test_maps_beyond_memory_are_advised_random(
    copy: Path, memory: int, share: float, advised: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 165 KB, features of edges have 16, and adjacency lists 37."""
    monkeypatch.setattr(verifier_module, "memory_bytes", lambda: memory)
    monkeypatch.setattr(verifier_module, "_SMALL_SHARE", share)
    graph = Graph.open(copy)
    found = {file for file in copy.rglob("part-*/*/*") if is_advised_random(file)}
    assert {file.parent.name for file in found} == advised, graph


def failing_reads(fault: str, *, beyond: int) -> Callable[[int, list[memoryview], int], int]:
    """Return ``os.preadv`` as it is on a disk that reads no more than so many bytes."""
    read = os.preadv

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        if len(buffers[0]) > beyond:
            raise OSError(getattr(errno, fault), os.strerror(getattr(errno, fault)))
        return read(fd, buffers, offset)

    return preadv


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("flip", r"bytes 0 to \d+ do not match their checksum"),
        ("cut", r"it ends at byte 40000, before byte \d+"),
        ("EIO", r"bytes 0 to \d+ cannot be read: Input/output error"),
        ("EACCES", "cannot be read: Permission denied"),
        ("replaced", ""),
        ("removed", ""),
    ],
)
def test_faults_of_files_without_maps_are_named(
    copy: Path, fault: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = Graph.open(copy)
    graph.verifier.without_maps([FEATURES])
    if fault == "flip":
        flip(copy / FEATURES, 80_000)
    elif fault == "cut":
        os.truncate(copy / FEATURES, 40_000)
    elif fault in ("EIO", "EACCES"):
        monkeypatch.setattr(os, "preadv", failing_reads(fault, beyond=4096 if fault == "EIO" else 0))
    elif fault == "replaced":  # The map is of the old file.
        (copy / "new").write_bytes(b"something else")
        (copy / "new").replace(copy / FEATURES)
    else:
        (copy / FEATURES).unlink()
    if not text:
        graph.verifier.finish()
        return
    for _ in range(2):
        with pytest.raises(FormatError, match=f"{FEATURES}: {text}"):
            graph.verifier.finish()


def test_a_scrubber_finds_damage_that_comes_later(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier_module, "_LOOK_EVERY_S", 1e9)  # Damage of a disk changes no time of a file.
    graph = Graph.open(copy)
    graph.verifier.check()
    graph.verifier.scrub(bytes_per_second=100e6, every_s=0.05)
    flip(copy / FEATURES, 8 * (copy / FEATURES).stat().st_size - 9)

    def found() -> bool:
        try:
            graph.verifier.check()
        except FormatError as error:
            return FEATURES in str(error)
        return False

    assert wait_until(found)


def test_a_scrubber_rests_between_two_passes(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[str] = []
    verify = Document.verify

    def counted(document: Document, *arguments: Any) -> None:
        passes.append(document.name)
        verify(document, *arguments)

    graph = Graph.open(copy)
    graph.verifier.finish()
    monkeypatch.setattr(Document, "verify", counted)
    graph.verifier.scrub(bytes_per_second=1e12)
    num_files = len(list(copy.rglob("*.safetensors")))
    assert wait_until(lambda: len(passes) >= num_files)
    time.sleep(0.5)  # A pass takes milliseconds.
    assert len(passes) == num_files


def train(loader: DistNeighborLoader, *, seconds: float) -> None:
    """Go through the input for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        list(loader)


@pytest.mark.some(1)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_mapped_file_that_is_overwritten_is_noticed(copy: Path, num_workers: int) -> None:
    with (
        DistDataset.open(copy) as dataset,
        DistNeighborLoader(dataset, [4, 3], "train", **OPTIONS, num_workers=num_workers) as loader,
    ):
        assert len(list(loader)) > 2
        size = (copy / FEATURES).stat().st_size
        with (copy / FEATURES).open("r+b") as file:
            file.seek(size // 2)
            file.write(b"other")
        with pytest.raises(FormatError, match=f"{FEATURES}: bytes .* do not match their checksum"):
            train(loader, seconds=20)


def test_a_file_that_is_touched_or_replaced_is_none_of_ours(
    copy: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(verifier_module, "_LOOK_EVERY_S", 0.0)
    graph = Graph.open(copy)
    graph.verifier.check()
    os.utime(copy / FEATURES)
    graph.verifier.check()
    assert f"{FEATURES} was written to while it was mapped" in caplog.text
    (copy / "new").write_bytes(b"something else")
    (copy / "new").replace(copy / FEATURES)
    (copy / TOPOLOGY).unlink()
    for _ in range(3):
        graph.verifier.check()


def test_a_file_that_is_cut_is_named_before_it_is_read(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier_module, "_LOOK_EVERY_S", 0.0)
    graph = Graph.open(copy)
    graph.verifier.check()
    os.truncate(copy / FEATURES, 10_000)
    with pytest.raises(FormatError, match=f"{FEATURES}: cut from .* to 10000 bytes while it was mapped"):
        graph.verifier.check()


def test_a_process_may_end_while_files_are_read(built: Path) -> None:
    program = (
        "import sys; from gigl_loader.graph import Graph; graph = Graph.open(sys.argv[1]); "
        "[graph.verifier.scrub(1e12) for _ in range(8)]"
    )
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", program, str(built)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")


READ_CUT = """
import os, sys, signal, faulthandler
from gigl_loader.graph import Graph
before = sys.argv[2]
if before == "faulthandler":
    faulthandler.enable()
graph = Graph.open(sys.argv[1])
if before == "after":
    faulthandler.enable()
graph.verifier.check()
column = graph.node_column("node", "x", 1)
os.truncate(sys.argv[1] + "/part-00001/nodes/node.safetensors", 100)
print("reading", flush=True)
if before == "kill":
    os.kill(os.getpid(), signal.SIGBUS)
column.sum()
"""


@pytest.mark.parametrize("before", ["nothing", "faulthandler", "after", "kill"])
def test_a_process_that_reads_a_cut_file_names_it_at_last(copy: Path, before: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READ_CUT, str(copy), before],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "reading\n"
    assert done.returncode == -signal.SIGBUS, done.stderr
    line = (
        f"gigl-loader: bus error: {copy / FEATURES} was cut, or cannot be read any more, while it was mapped"
    )
    assert (line in done.stderr) == (before != "kill")
    assert ("Fatal Python error: Bus error" in done.stderr) == (before in ("faulthandler", "after"))


def test_a_worker_that_dies_of_a_cut_file_names_it(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier_module, "_LOOK_EVERY_S", 1e9)
    with (
        DistDataset.open(copy) as dataset,
        DistNeighborLoader(
            dataset, [4, 3], "train", **OPTIONS, num_workers=1, max_worker_restarts=0
        ) as loader,
    ):
        list(loader)
        os.truncate(copy / FEATURES, 100)
        with pytest.raises(WorkerDied, match="SIGBUS") as raised:
            list(loader)
    notes = "\n".join(raised.value.__notes__)
    assert f"{copy / FEATURES} was cut" in notes


def test_a_scrubber_ends_with_its_graph(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier_module, "_LOOK_EVERY_S", 0.05)
    graph = Graph.open(copy)
    verifier: Any = graph.verifier
    verifier.scrub(1e12)
    threads = verifier._state.threads
    time.sleep(0.5)  # It looks at the files between two passes.
    del graph, verifier
    gc.collect()
    assert wait_until(lambda: not any(thread.is_alive() for thread in threads))
