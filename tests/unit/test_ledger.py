"""Ledgers of runs: a sealed line for each batch, over resumes, ranks and modes."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import resource
import zlib
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from blake3 import blake3

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader, FormatError
from gigl_loader.loaders.ledger import FrameDigests, packed, unpacked
from gigl_loader.loaders.ledger_file import BEGIN, LedgerFile, read_lines
from gigl_loader.loaders.replay import Recording
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.sampling import resident
from gigl_loader.sampling.request import InputColumn
from gigl_loader.topology import Topology
from tests.support.clusters import addresses_of, servers_of
from tests.support.pyg_graphs import homogeneous
from tests.support.thread_ranks import run_ranks

if TYPE_CHECKING:
    from pathlib import Path

    from gigl_loader.group import RankGroup

pytestmark = pytest.mark.usefixtures("no_leftovers")

DATASET = DistDataset.from_pyg(homogeneous())
OPTIONS: dict[str, Any] = {"batch_size": 32, "shuffle": True, "seed": 5, "device": "cpu", "timeout": 20}


def loader_of(dataset: Any = DATASET, **options: Any) -> DistNeighborLoader:
    given = {"num_workers": 0, "name": "train", **OPTIONS, **options}
    return DistNeighborLoader(dataset, [4, 3], given.pop("input_nodes", "train"), **given)


def lines_of(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        return [line.record(str(path)) for line in read_lines(file, str(path))]


def batches_of(path: Path) -> list[dict[str, Any]]:
    return [line for line in lines_of(path) if line["kind"] == "batch"]


def made(lines: list[dict[str, Any]]) -> list[Any]:
    """Return what each line says of its batch, whoever served it."""
    return [(line["epoch"], line["batch"], line["request"], line["frame"]) for line in lines]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledger") / "graph"
    build_graph(tables_from_pyg(homogeneous()), path, num_partitions=2, assigner="hash")
    return path


def test_a_line_for_every_batch_sealed_as_documented(tmp_path: Path) -> None:
    with loader_of() as loader:
        ledger = loader.ledger(tmp_path / "run.jsonl")
        count = sum(1 for _ in range(2) for _ in loader)
        state, head = loader.state_dict(), ledger.head
    chain = BEGIN
    texts = (tmp_path / "run.jsonl").read_bytes().splitlines()
    for number, text in enumerate(texts, 1):
        record = json.loads(text)
        body = text.replace(f', "chain": "{record["chain"]}"'.encode(), b"")
        chain = hashlib.sha256(chain.encode() + body).hexdigest()
        assert (record["line"], record["chain"]) == (number, chain)
    assert chain == head
    lines = lines_of(tmp_path / "run.jsonl")
    batches = [line for line in lines if line["kind"] == "batch"]
    assert [(line["epoch"], line["batch"]) for line in batches] == [
        (epoch, batch) for epoch in range(2) for batch in range(count // 2)
    ]
    assert {line["served_by"] for line in batches} == {"trainer"}
    assert len({line["frame"] for line in batches}) == count
    assert state["digests"] == {
        "run": lines[0]["run"],
        "plan": state["digests"]["plan"],
        "graph": DATASET.graph_digest,
    }


def test_the_digest_of_an_array_is_that_of_its_values(tmp_path: Path) -> None:
    with loader_of() as loader:
        loader.ledger(tmp_path / "run.jsonl")
        first = next(loader)
    [line] = batches_of(tmp_path / "run.jsonl")
    x = first.x.numpy()
    pieces = blake3(x.tobytes()).digest()
    expected = hashlib.sha256(f"F32 {list(x.shape)}".encode() + pieces).hexdigest()[:32]
    assert line["arrays"]["node/node/x"] == expected
    everything = json.dumps(line["arrays"], sort_keys=True).encode()
    assert line["frame"] == hashlib.sha256(everything).hexdigest()[:32]


@pytest.mark.parametrize(
    "options", [{"num_workers": 2}, {"num_workers": 1, "feature_memory": "2KB"}], ids=str
)
def test_workers_and_windows_give_the_same_lines(
    options: dict[str, Any], graph: Path, tmp_path: Path
) -> None:
    lines = []
    for name, dataset, given in (("a", DATASET, {}), ("b", DistDataset.open(graph), options)):
        with loader_of(dataset, **given) as loader:
            loader.ledger(tmp_path / name)
            list(loader)
        lines.append(batches_of(tmp_path / name))
    assert made(lines[0]) == made(lines[1])
    assert {line["served_by"] for line in lines[1]} <= {"worker 0", "worker 1"}


def test_storage_servers_give_the_same_lines_and_are_named(graph: Path, tmp_path: Path) -> None:
    with loader_of() as loader:
        loader.ledger(tmp_path / "here")
        list(loader)
    with ExitStack() as stack:
        addresses = addresses_of(stack.enter_context(servers_of(graph, 2)))
        dataset = stack.enter_context(RemoteDistDataset.connect(addresses, timeout=20))
        loader = stack.enter_context(loader_of(dataset, num_workers=1))
        loader.ledger(tmp_path / "store")
        list(loader)
    lines = batches_of(tmp_path / "store")
    assert made(lines) == made(batches_of(tmp_path / "here"))
    assert {line["served_by"].rpartition(" ")[2] for line in lines} <= set(addresses)


def test_rows_on_the_device_change_no_line(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "_CENSUS_BATCHES", 2)
    lines = []
    for name, given in (
        ("a", {}),
        ("b", {"feature_memory_device": "1GB"}),
        ("c", {"feature_memory_device": 9000}),
    ):
        with loader_of(DistDataset.open(graph), edge_columns=[], **given) as loader:
            loader.ledger(tmp_path / name)
            for _ in range(3):
                list(loader)
            on_device = loader.stats()["rows"]["device"]
        lines.append(made(batches_of(tmp_path / name)))
    assert on_device > 0
    assert lines[0] == lines[1] == lines[2]


def test_a_transform_that_writes_into_a_batch_changes_no_digest(tmp_path: Path) -> None:
    def zeroed(batch: Any) -> Any:
        batch.x.zero_()
        return batch

    for name, transform in (("a", None), ("b", zeroed)):
        with loader_of(transform=transform) as loader:
            loader.ledger(tmp_path / name)
            list(loader)
    assert made(batches_of(tmp_path / "a")) == made(batches_of(tmp_path / "b"))


def test_large_frames_are_hashed_in_pieces(tmp_path: Path) -> None:
    data = homogeneous()
    data.x = torch.randn(300, 9000)
    with loader_of(DistDataset.from_pyg(data), batch_size=150) as loader:
        loader.ledger(tmp_path / "run.jsonl")
        x = next(loader).x.numpy().tobytes()
    assert len(x) > 1 << 23
    pieces = b"".join(blake3(x[i : i + (1 << 22)]).digest() for i in range(0, len(x), 1 << 22))
    shape = [len(x) // 36000, 9000]
    expected = hashlib.sha256(f"F32 {shape}".encode() + pieces).hexdigest()[:32]
    assert batches_of(tmp_path / "run.jsonl")[0]["arrays"]["node/node/x"] == expected


def test_a_resumed_run_goes_on_with_its_ledger(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with loader_of() as loader:
        loader.ledger(tmp_path / "undisturbed")
        list(loader)
    with loader_of() as loader:
        loader.ledger(path)
        list(islice(loader, 2))
        state = loader.state_dict()
        next(loader)  # After the state was taken: it comes again.
    with loader_of(seed=None) as loader:
        loader.load_state_dict(state)
        loader.ledger(path)
        list(loader)
    lines = lines_of(path)
    assert [line["kind"] for line in lines if line["kind"] != "batch"] == ["run", "input", "resumed"]
    batches = made([line for line in lines if line["kind"] == "batch"])
    assert batches[2] == batches[3]
    assert batches[:2] + batches[3:] == made(batches_of(tmp_path / "undisturbed"))


def test_a_ledger_of_another_run_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with loader_of() as loader:
        loader.ledger(path)
        next(loader)
    before = path.read_bytes()
    for options, words in (
        ({"seed": 6}, "run_seed is 6 here, 5 there"),
        ({"batch_size": 8}, "batch_size is 8 here, 32 there"),
        ({"input_nodes": "val"}, "digest of seeds"),
        ({"seed": None}, "run_seed is .* load the state of that run before"),
    ):
        with loader_of(**options) as loader, pytest.raises(ValueError, match=words):
            loader.ledger(path)
    assert path.read_bytes() == before


def test_a_state_of_another_seed_ends_the_ledger_before_its_first_batch(tmp_path: Path) -> None:
    with loader_of(seed=7) as loader:
        state = loader.state_dict()
    with loader_of(seed=None) as loader:
        loader.ledger(tmp_path / "run.jsonl")
        loader.load_state_dict(state)
        for _ in range(2):
            with pytest.raises(ValueError, match="run_seed is 7 here"):
                next(loader)
    assert not batches_of(tmp_path / "run.jsonl")


def test_an_incomplete_line_is_cut_off_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "run.jsonl"
    with loader_of() as loader:
        loader.ledger(path)
        list(islice(loader, 2))
    whole = path.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    path.write_bytes(whole[:-10])
    assert Recording.read(path).incomplete_bytes == len(last) - 10
    with loader_of() as loader:
        loader.ledger(path)
    assert lines_of(path)[-1]["dropped_bytes"] == len(last) - 10
    assert path.read_bytes().startswith(whole[: -len(last)])
    assert "an incomplete line" in caplog.text


@pytest.mark.some(7)
@pytest.mark.parametrize("place", range(21))
def test_a_flipped_bit_is_found_and_its_line_is_named(place: int, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    file = LedgerFile(path, timeout_s=1)
    for number in range(6):
        file.append({"kind": "batch", "epoch": 0, "batch": number, "frame": "ab" * 16})
    file.close()
    whole = bytearray(path.read_bytes())
    at = min(len(whole) * place // 20 + place % 7, len(whole) - 1)
    number = whole[:at].count(b"\n") + 1
    whole[at] ^= 1 << place % 8
    path.write_bytes(whole)
    with pytest.raises(FormatError, match=f"line {number}: " + ("|is no ledger" if number == 1 else "")):
        lines_of(path)
    with pytest.raises(FormatError):
        LedgerFile(path, timeout_s=1)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda lines: lines[:2] + lines[3:],
            "line 3: it says that it is line 4: lines were removed or moved",
        ),
        (lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]], "line 3: it says that it is line 4"),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], "line 3: it says that it is line 2"),
        (lambda lines: lines[1:], "line 1: it says that it is line 2"),
    ],
    ids=["removed", "swapped", "repeated", "first removed"],
)
def test_a_line_removed_or_moved_is_named(change: Any, words: str, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    file = LedgerFile(path, timeout_s=1)
    for number in range(6):
        file.append({"kind": "batch", "batch": number})
    file.close()
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(FormatError, match=words):
        lines_of(path)


def test_lines_cut_off_the_end_are_missed_where_the_head_was_noted(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with loader_of() as loader:
        ledger = loader.ledger(path)
        list(islice(loader, 3))
        head = ledger.head
        list(loader)
    assert Recording.read(path, head=head).head_line == 5
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))
    assert Recording.read(path).lines == 4
    with pytest.raises(FormatError, match="no line has the head"):
        Recording.read(path, head=head)


@pytest.mark.parametrize("contents", [b"hello\n", b"hello", b"\x00" * 5000, b'{"line": 2}\n', b"[]\n"])
def test_a_file_that_is_no_ledger_is_refused_and_stays(contents: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(contents)
    with loader_of() as loader, pytest.raises(FormatError, match=r"model.pt is no ledger"):
        loader.ledger(path)
    assert path.read_bytes() == contents


def test_paths_that_cannot_be_a_ledger(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with loader_of() as loader:
        with pytest.raises(ValueError, match="no regular file"):
            loader.ledger(tmp_path / "pipe")
        with pytest.raises(IsADirectoryError):
            loader.ledger(tmp_path)
        with pytest.raises(FileNotFoundError):
            loader.ledger(tmp_path / "missing" / "run.jsonl")
        assert len(list(loader)) == len(loader)


def test_two_runs_cannot_write_one_file(tmp_path: Path) -> None:
    with loader_of() as loader, loader_of(timeout=0.2) as other:
        loader.ledger(tmp_path / "run.jsonl")
        with pytest.raises(
            TimeoutError, match=r"another process has written the ledger .* a file of its own"
        ):
            other.ledger(tmp_path / "run.jsonl")
        loader.ledger(tmp_path / "run.jsonl").close()  # Its own file: no wait.
        other.ledger(tmp_path / "run.jsonl")


def test_a_full_disk_fails_the_batch_and_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with loader_of() as loader:
        loader.ledger(path)
        next(loader)
        size, limits = path.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, limits[1]))
        try:
            with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
                next(loader)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.stat().st_size == size
        assert loader.state_dict()["batches"] == 1  # The batch that has no line was not given.
        next(loader)
    assert [line["batch"] for line in batches_of(path)] == [0, 2]


def test_closing_it_ends_the_lines_and_not_the_epoch(tmp_path: Path) -> None:
    with loader_of() as loader:
        ledger = loader.ledger(tmp_path / "run.jsonl")
        next(loader)
        ledger.close()
        ledger.close()
        next(loader)
        assert loader.sample([1, 2]).num_nodes
    assert len(batches_of(tmp_path / "run.jsonl")) == 1


def test_seeds_drawn_by_weight_and_masks_are_told_by_their_places(tmp_path: Path) -> None:
    mask = torch.arange(300) % 3 == 0
    weights = torch.arange(300).float()
    with loader_of(input_nodes=mask, shuffle=False, seed_weights=weights) as loader:
        loader.ledger(tmp_path / "run.jsonl")
        batches = list(loader)
    lines = lines_of(tmp_path / "run.jsonl")
    assert [line["column"] for line in lines if line["kind"] == "input"] == ["seed", "places"]
    told = [line["places"] for line in lines if line["kind"] == "batch"]
    assert told == [batch.input_id.tolist() for batch in batches]


def test_each_rank_has_a_file_and_changing_ranks_go_on_in_them(tmp_path: Path) -> None:
    path, seeds = tmp_path / "run.jsonl", torch.arange(290)
    options = {"input_nodes": seeds, "batch_size": 16, "even_batches": False}
    with loader_of(**options) as loader:
        loader.ledger(tmp_path / "alone")
        list(loader)

    def part(state: Any, steps: int | None) -> Any:
        def program(group: RankGroup) -> Any:
            with loader_of(**options) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                loader.ledger(path)
                list(islice(loader, steps))
                return loader.state_dict()

        return program

    state = None
    for ranks, steps in ((2, 2), (3, 3), (1, None)):
        states = run_ranks(ranks, part(state, steps))
        assert all(isinstance(each, dict) for each in states), states
        assert all(each == states[0] for each in states)
        state = states[0]
    files = [path, tmp_path / "run.rank1.jsonl", tmp_path / "run.rank2.jsonl"]
    assert sorted(tmp_path.glob("run*")) == sorted(files)
    found = sorted(each for file in files for each in made(batches_of(file)))
    assert found == made(batches_of(tmp_path / "alone"))
    assert [sum(line["kind"] == "resumed" for line in lines_of(each)) for each in files] == [2, 1, 0]


def test_a_loader_that_takes_another_rank_goes_on_in_the_file_of_that_rank(tmp_path: Path) -> None:
    with loader_of(sharding="batches") as loader:
        loader.reshard(Topology(rank=1, world_size=2))
        loader.ledger(tmp_path / "run.jsonl")
        next(loader)
        loader.reshard(Topology())
        list(loader)
    assert [line["batch"] for line in batches_of(tmp_path / "run.rank1.jsonl")] == [1]
    assert [line["batch"] for line in batches_of(tmp_path / "run.jsonl")] == list(range(2, len(loader)))


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (InputColumn("seed"), np.arange(10**6)),
        (InputColumn("seed"), np.array([-(2**63), 2**63 - 1, 0, -1])),
        (InputColumn("given", width=3), np.arange(30).reshape(10, 3)),
        (InputColumn("share", "F32"), np.linspace(0, 1, 7, dtype=np.float32)),
        (InputColumn("flag", "BOOL"), np.array([True, False])),
        (InputColumn("seed"), np.empty(0, np.int64)),
    ],
    ids=str,
)
def test_columns_of_the_input_come_back(column: InputColumn, values: Any) -> None:
    pieces = list(packed(values))
    back = unpacked(pieces, column, len(values), "it")
    assert back.dtype == values.dtype
    assert np.array_equal(back, values)
    assert sum(len(text) for _, text in pieces) < values.nbytes // 50 + 200
    if len(values):
        for wrong, count in ((pieces[1:], len(values)), (pieces, len(values) - 1), (pieces, len(values) + 1)):
            with pytest.raises(FormatError, match="it: "):
                unpacked(wrong, column, count, "it")


def test_a_bomb_of_zeros_is_refused_before_it_is_unpacked() -> None:
    text = base64.b64encode(zlib.compress(bytes(1 << 24))).decode()
    with pytest.raises(FormatError, match="more values than entries"):
        unpacked([(0, text)], InputColumn("seed"), 2**40, "it")


def test_without_a_ledger_nothing_of_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("a batch without a ledger has no digest")

    monkeypatch.setattr(FrameDigests, "__call__", fail)
    with loader_of() as loader:
        assert len(list(loader)) == len(loader)
