"""Pulls of files: whole or not at all, from sound pieces of wherever they lie."""

from __future__ import annotations

import dataclasses
import os
import resource
import shutil
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_loader.errors import FormatError, StorageUnavailable
from gigl_loader.graph.checksums import ArrayRecord
from gigl_loader.graph.folder import DiskFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.local_partitions import open_partitions
from gigl_loader.graph.manifest import Manifest, check_files, files_of, files_of_part, part_of
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_server.partitions import assembly, pull
from gigl_server.partitions.assembly import Assembly, PullStopped, temporary_name
from gigl_server.partitions.pull import PullProgress, pull_files, unsound_files
from tests.support.pulled import FolderSource, flip, is_same

if TYPE_CHECKING:
    from collections.abc import Sequence

MB = 1 << 20
NODES = 40_000
FEATURES = "part-00001/nodes/node.safetensors"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of two partitions; the features of each have 10 blocks."""
    path = tmp_path_factory.mktemp("pull") / "graph"
    random = np.random.default_rng(0)
    nodes = ArrayTable("nodes", {"id": np.arange(NODES) * 3, "x": random.random((NODES, 128), np.float32)})
    edges = ArrayTable(
        "edges", dict(zip(("src", "dst"), 3 * random.integers(0, NODES, (2, 999)), strict=True))
    )
    build_graph(
        GraphTables(edges={("node", "to", "node"): edges}, nodes={"node": NodeTable(nodes)}),
        path,
        num_partitions=2,
    )
    return path


@pytest.fixture
def empty(built: Path, tmp_path: Path) -> Path:
    """The graph without partition 1."""
    path = Path(shutil.copytree(built, tmp_path / "graph"))
    shutil.rmtree(path / "part-00001")
    return path


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "MAX_FILE_BYTES", MB)


def manifest_of(path: Path) -> Manifest:
    return Manifest.read(DiskFolder(path))


def do_pull(
    path: Path, sources: Sequence[FolderSource], names: Sequence[str] | None = None, **more: Any
) -> int:
    manifest = manifest_of(path)
    return pull_files(
        DiskFolder(path),
        manifest,
        files_of_part(manifest.schema, 1) if names is None else names,
        sources,
        **{"progress": PullProgress("test"), "stop": threading.Event(), **more},
    )


def hidden(path: Path) -> list[str]:
    return [file.name for file in path.rglob(".*.pull")]


def test_a_partition_is_pulled_whole(built: Path, empty: Path) -> None:
    progress = PullProgress("test")
    fetched = do_pull(empty, [FolderSource(built)], progress=progress)
    assert is_same(empty, built)
    assert fetched == progress.done == progress.total > 9 * MB
    Graph.open(empty).verify()


def test_wrong_pieces_are_asked_of_another_source(
    built: Path, empty: Path, caplog: pytest.LogCaptureFixture
) -> None:
    liar = FolderSource(built, name="liar", wrong=lambda name, first: first % (2 * MB) == 0)
    honest = FolderSource(built, name="honest")
    do_pull(empty, [liar, honest])
    assert is_same(empty, built)
    assert all(first % (2 * MB) == 0 for _, first, _ in honest.asked)
    assert f"{FEATURES} is damaged at liar, too" in caplog.text


def test_a_piece_that_is_wrong_everywhere_is_told(built: Path, empty: Path) -> None:
    sources = [FolderSource(built, name=name, wrong=lambda _, first: first == 2 * MB) for name in "ab"]
    what = f"{FEATURES}: bytes {2 * MB} to {3 * MB - 1} do not match their checksum at a, b"
    with pytest.raises(FormatError, match=what):
        do_pull(empty, sources)
    assert [
        each for each in (empty / "part-00001").rglob("*") if each.is_file() and each.name[0] != "."
    ] == []


def test_sources_that_fail_are_told(built: Path, empty: Path) -> None:
    with pytest.raises(StorageUnavailable, match="a does not answer; b does not answer"):
        do_pull(empty, [FolderSource(built, name=name, fails_after=0) for name in "ab"])


def test_an_interrupted_pull_leaves_no_true_name_and_is_continued(built: Path, empty: Path) -> None:
    with pytest.raises(StorageUnavailable):
        do_pull(empty, [FolderSource(built, fails_after=7)])
    assert hidden(empty)
    with pytest.raises(ValueError, match=r"partitions 1 do not lie at .*: of 2, it has 0"):
        open_partitions(empty, [1])
    assert open_partitions(empty, None).parts == (0,)
    source = FolderSource(built)
    do_pull(empty, [source])
    assert is_same(empty, built)
    whole = FolderSource(built)
    shutil.rmtree(empty / "part-00001")
    do_pull(empty, [whole])
    assert len(source.asked) <= len(whole.asked) - 3


def test_damage_of_what_an_interrupted_pull_left_is_pulled_again(built: Path, empty: Path) -> None:
    with pytest.raises(StorageUnavailable):
        do_pull(empty, [FolderSource(built, fails_after=9)], names=[FEATURES])
    flip(empty / temporary_name(FEATURES), 100)
    do_pull(empty, [source := FolderSource(built)])
    assert (FEATURES, 0, MB) in source.asked
    assert is_same(empty, built)


def test_only_damaged_pieces_are_fetched(built: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(built, tmp_path / "damaged"))
    flip(path / FEATURES, 3 * MB + 5)
    flip(path / FEATURES, -1)
    assert unsound_files(
        DiskFolder(path),
        manifest_of(path),
        files_of(manifest_of(path).schema, [1]),
        PullProgress("test"),
        threading.Event(),
    ) == [FEATURES]
    source = FolderSource(built)
    do_pull(path, [source], names=[FEATURES])
    assert [first // MB for _, first, _ in sorted(source.asked)] == [3, 9]
    assert is_same(path, built)


@pytest.mark.parametrize("harm", ["cut", "grown", "gone", "header"])
def test_files_of_other_sizes_are_mended(built: Path, tmp_path: Path, harm: str) -> None:
    path = Path(shutil.copytree(built, tmp_path / "damaged"))
    file = path / FEATURES
    if harm == "gone":
        file.unlink()
    elif harm == "header":
        flip(file, 3)
    else:
        os.truncate(file, file.stat().st_size + (MB if harm == "grown" else -MB))
    do_pull(path, [FolderSource(built)], names=[FEATURES])
    assert is_same(path, built)


def test_no_room_is_found_before_a_byte_is_pulled(
    built: Path, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "_SPARE_BYTES", 1 << 60)
    source = FolderSource(built)
    with pytest.raises(OSError, match=r"no room at .*: 10\.\d MB are needed"):
        do_pull(empty, [source])
    assert source.asked == []


def test_a_full_disk_leaves_nothing(built: Path, empty: Path) -> None:
    """A limit on the size of files stands for the disk: writing fails in the middle of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5 * MB, before[1]))
    try:
        with pytest.raises(OSError, match=f"{FEATURES} cannot be written: File too large"):
            do_pull(empty, [FolderSource(built)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert [each for each in (empty / "part-00001").rglob("*") if each.is_file()] == []


def test_two_pulls_of_one_file_do_not_meet(built: Path, empty: Path) -> None:
    record = manifest_of(built).files[FEATURES]
    first = Assembly(DiskFolder(empty), FEATURES, record)
    with pytest.raises(OSError, match=f"{FEATURES} is being pulled by another process"):
        do_pull(empty, [FolderSource(built)])
    first.close()
    do_pull(empty, [FolderSource(built)])
    assert is_same(empty, built)


def test_a_pull_stops_when_told(built: Path, empty: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(PullStopped):
        do_pull(empty, [FolderSource(built)], stop=stop)


def test_files_of_version_1_are_verified_as_a_whole(built: Path, empty: Path) -> None:
    """They have no checksums of blocks: a source whose file is wrong is passed over."""
    import zlib

    data = (built / FEATURES).read_bytes()
    size = int.from_bytes(data[:8], "little") + 8
    record = ArrayRecord(len(data), zlib.crc32(data[:size]), {"x": zlib.crc32(data[size:])})
    manifest = manifest_of(empty)
    old = dataclasses.replace(manifest, files={**manifest.files, FEATURES: record})
    liar = FolderSource(built, name="liar", wrong=lambda _, first: first == 4 * MB)
    arguments: dict[str, Any] = {"progress": PullProgress("test"), "stop": threading.Event()}
    with pytest.raises(StorageUnavailable, match=r"no source gives a sound .*: liar: "):
        pull_files(DiskFolder(empty), old, [FEATURES], [liar], **arguments)
    assert not (empty / FEATURES).exists()
    pull_files(DiskFolder(empty), old, [FEATURES], [liar, FolderSource(built)], **arguments)
    assert (empty / FEATURES).read_bytes() == data


def test_a_manifest_that_lists_a_file_elsewhere_is_refused(built: Path) -> None:
    manifest = manifest_of(built)
    record = manifest.files[FEATURES]
    wrong = dataclasses.replace(manifest, files={**manifest.files, "../../etc/cron.d/x": record})
    with pytest.raises(FormatError, match="is no file of this schema"):
        check_files(wrong)


@pytest.mark.parametrize(
    ("name", "part"),
    [("part-00001/x/y", 1), ("part-123456/x", 123456), ("ids/node.safetensors", None), ("part-1/x", None)],
)
def test_a_file_tells_its_partition(name: str, part: int | None) -> None:
    assert part_of(name) == part
