"""Features that are read from a disk ahead of their batches, and what goes wrong on the way."""

from __future__ import annotations

import os
import re
import shutil
import signal
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.errors import FormatError, SamplingError
from gigl_loader.graph import verifier as verifier_module
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from tests.support.failing_disk import failing_disk

NODES, WIDTH, BATCHES = 600, 1024, 150
ROW_BYTES = 4 * WIDTH
FEATURES = "part-00000/nodes/node.safetensors"
MEMORY: dict[str, Any] = {}
DISK: dict[str, Any] = {"feature_memory": 100 * ROW_BYTES, "window": 3}
UNCACHED: dict[str, Any] = {"feature_memory": 2 * ROW_BYTES}


def made(path: Path, *, num_partitions: int = 1, edge_features: bool = False) -> Path:
    """A graph with 2.4 MB of features of nodes. Ids are positions."""
    random = np.random.default_rng(0)
    x = random.random((NODES, WIDTH), dtype=np.float32)
    nodes: dict[str, np.ndarray] = {"id": np.arange(NODES), "x": x}
    edges: dict[str, np.ndarray] = {each: random.integers(0, NODES, 4 * NODES) for each in ("src", "dst")}
    if edge_features:
        edges["edge_attr"] = random.random((4 * NODES, 50), dtype=np.float32)
    tables = GraphTables(
        edges={("node", "to", "node"): ArrayTable("edges", edges)},
        nodes={"node": NodeTable(ArrayTable("nodes", nodes))},
    )
    build_graph(tables, path, num_partitions=num_partitions)
    return path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("graphs") / "graph")


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "graph"))


@pytest.fixture(scope="module")
def expected(built: Path) -> list[int]:
    """The batches of two epochs, read from memory."""
    with DistDataset.open(built) as dataset, loader_of(dataset) as loader:
        return digests([*loader, *loader])


def loader_of(dataset: DistDataset, **options: Any) -> DistNeighborLoader:
    run = {"batch_size": 4, "shuffle": True, "seed": 3, "num_workers": 0, "timeout": 20}
    return DistNeighborLoader(dataset, [2], **{**run, **options})


def digest(batch: Any) -> int:
    names = [name for name in ("n_id", "x", "edge_index", "edge_attr") if name in batch]
    return zlib.crc32(b"".join(batch[name].numpy().tobytes() for name in names))


def digests(batches: Any) -> list[int]:
    return [digest(batch) for batch in batches]


@pytest.fixture(scope="module")
def parted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graphs") / "parted"
    return made(path, num_partitions=3, edge_features=True)


@pytest.mark.some(1)
@pytest.mark.parametrize("reader", [DISK, UNCACHED], ids=["disk", "uncached"])
def test_a_loader_resumes_from_every_place_in_a_window(parted: Path, reader: dict[str, Any]) -> None:
    """Some rests are read from memory: a state fits every reader."""
    with DistDataset.open(parted) as dataset, loader_of(dataset, **reader) as loader:
        expected = digests(loader_of(dataset))
        iterator = iter(loader)
        for seen in range(12):
            with loader_of(dataset, **(reader if seen % 4 else MEMORY)) as resumed:
                resumed.load_state_dict(loader.state_dict())
                count = None if seen % 5 == 0 else 4
                assert digests(islice(resumed, count)) == expected[seen:][:count]
            assert digest(next(iterator)) == expected[seen]
        assert loader.stats()["rows"]["disk"] > 0


def test_a_worker_that_is_killed_within_a_window_goes_unnoticed(built: Path, expected: list[int]) -> None:
    with DistDataset.open(built) as dataset, loader_of(dataset, **DISK, num_workers=2) as loader:
        for epoch in (expected[:BATCHES], expected[BATCHES:]):
            iterator = iter(loader)
            seen = digests(islice(iterator, 7))
            os.kill(loader.stats()["workers"][0]["pid"], signal.SIGKILL)
            assert seen + digests(iterator) == epoch
        assert loader.stats()["restarts"] == 2


@pytest.mark.slow
def test_a_worker_that_is_stopped_within_a_window_is_replaced(built: Path, expected: list[int]) -> None:
    with DistDataset.open(built) as dataset, loader_of(dataset, **DISK, num_workers=1) as loader:
        iterator = iter(loader)
        seen = digests(islice(iterator, 5))
        psutil.Process(loader.stats()["workers"][0]["pid"]).suspend()
        assert seen + digests(iterator) == expected[:BATCHES]
        assert loader.stats()["restarts"] == 1


@pytest.mark.parametrize("verify", ["lazy", "none"])
def test_a_file_that_is_cut_within_a_window_is_named(
    copy: Path, expected: list[int], verify: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the batch that wants rows behind its end, or before it by the verifier, which looks each second."""
    monkeypatch.setattr(verifier_module, "_LOOK_EVERY_S", 0.0)
    with DistDataset.open(copy, verify=verify) as dataset, loader_of(dataset, **DISK) as loader:
        iterator = iter(loader)
        seen = digests(islice(iterator, 2))
        os.truncate(copy / FEATURES, NODES // 2 * ROW_BYTES)
        with pytest.raises((SamplingError, FormatError), match=FEATURES) as raised:
            seen.extend(digest(batch) for batch in iterator)
        behind = rf"epoch 0, batch {len(seen)}: FormatError: .*: it ends before byte \d+"
        cut = r"cut from \d+ to \d+ bytes while it was mapped"
        assert re.search(behind if verify == "none" else f"{behind}|{cut}", str(raised.value))
        assert seen == expected[: len(seen)]


def test_a_damaged_block_is_named(copy: Path) -> None:
    with (copy / FEATURES).open("r+b") as file:
        file.seek(1_500_000)
        file.write(b"other")
    with DistDataset.open(copy) as dataset, loader_of(dataset, **DISK) as loader:
        for _ in range(2):
            with pytest.raises(
                FormatError, match=f"{FEATURES}: bytes 1048576 to 2097151 do not match their checksum"
            ):
                next(iter(loader))


@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_a_file_that_is_replaced_in_use_stays_readable(
    copy: Path, expected: list[int], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a map does. A loader that is opened later, on the old graph, refuses another file."""
    monkeypatch.setattr(verifier_module, "_LOOK_EVERY_S", 0.0)
    with DistDataset.open(copy) as dataset, loader_of(dataset, **DISK) as loader:
        iterator = iter(loader)
        seen = digests(islice(iterator, 2))
        (copy / "new").write_bytes(b"something else")
        (copy / "new").replace(copy / FEATURES)
        if change == "removed":
            (copy / FEATURES).unlink()
        assert seen + digests(iterator) == expected[:BATCHES]
        with pytest.raises((FormatError, FileNotFoundError), match=f"{FEATURES}"):
            list(loader_of(dataset, **DISK))


def test_a_full_disk_is_none_of_our_business(expected: list[int], tmp_path: Path) -> None:
    with failing_disk(tmp_path) as disk:
        graph = made(disk.path / "graph")
        disk.fill()
        with DistDataset.open(graph) as dataset, loader_of(dataset, **DISK) as loader:
            assert digests(loader) == expected[:BATCHES]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_disk_that_fails_is_named_by_the_batches_that_want_its_rows(
    expected: list[int], tmp_path: Path, num_workers: int
) -> None:
    """The loader goes on with the batches that want none, and with all once the disk is repaired."""
    with failing_disk(tmp_path) as disk:
        graph = made(disk.path / "graph")
        with (
            DistDataset.open(graph, verify="none") as dataset,
            loader_of(dataset, **DISK, num_workers=num_workers) as loader,
        ):
            nodes = [batch.n_id for batch in loader_of(dataset)]
            whole = disk.fail(graph / FEATURES, 0.96)
            first_bad = disk.first_bad(graph / FEATURES) // ROW_BYTES + 1
            iterator = iter(loader)
            outcomes = [outcome_of(iterator) for _ in range(BATCHES)]
            for number, outcome in enumerate(outcomes):
                if isinstance(outcome, str):
                    where = f"epoch 0, batch {number}: OSError: .*Input/output error at byte .*{FEATURES}"
                    assert re.search(where, outcome), outcome
                else:
                    assert outcome == expected[number]
                    assert int(nodes[number].max()) < first_bad
            assert 20 < sum(isinstance(outcome, int) for outcome in outcomes) < 140
            disk.repair(whole)
            assert digests(loader) == expected[BATCHES:]


def outcome_of(iterator: Iterator[Any]) -> int | str:
    """Return the digest of the next batch, or the text of its failure."""
    try:
        return digest(next(iterator))
    except SamplingError as error:
        return str(error)
