"""Rows that stay on the device: batches do not change, frames shrink, and memory is bounded and let go."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from gigl_loader import DistDataset, DistLinkNeighborLoader, DistNeighborLoader
from gigl_loader.channel.frame import Frame
from gigl_loader.errors import StorageUnavailable
from gigl_loader.graph.folder import DiskFolder
from gigl_loader.loaders.device_rows import ResidentTransfer
from gigl_loader.loaders.transfer import HostTransfer, SynchronousTransfer
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.sampling import resident
from gigl_loader.sampling.rows import MappedRows
from gigl_loader.tensors import ArraySpec, Layout
from tests.support.pyg_graphs import heterogeneous, homogeneous, same_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_geometric.data import Data, HeteroData

    from gigl_loader.arrays import Bytes, Int64Array

DEVICES = ["cpu", "packed"]
"""``packed``: frames are copied, and values dequantised by torch, as on a CUDA device."""
KINDS = ["homogeneous", "heterogeneous", "quantised", "disjoint", "links", "dtypes"]


@pytest.fixture(autouse=True)
def short_census(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "_CENSUS_BATCHES", 3)


@pytest.fixture
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "packed":
        packed = SynchronousTransfer(torch.device("cpu"))
        monkeypatch.setattr("gigl_loader.loaders.base.transfer_to", lambda *_, **__: packed)
        return "cpu"
    return str(request.param)


def data_of(kind: str) -> Data | HeteroData:
    if kind == "heterogeneous":
        return heterogeneous()
    data = homogeneous()
    if kind == "dtypes":
        count = data.num_nodes
        data.flag = torch.arange(count) % 3 == 0
        data.half = data.x[:, :3].to(torch.bfloat16)
        data.byte = torch.arange(count, dtype=torch.uint8)
        data.none = torch.empty(count, 0)
        data.cube = data.x.view(count, 2, 3)
    return data


def loader_of(
    kind: str, path: Path | None = None, **options: Any
) -> DistNeighborLoader | DistLinkNeighborLoader:
    """A loader over a graph in memory, or in two partitions at ``path``."""
    data = data_of(kind)
    quantize = {"x": "int8", "edge_attr": "uint2:per-row"} if kind == "quantised" else None
    if path is None:
        dataset = DistDataset.from_pyg(data, quantize=quantize)
    else:
        if not path.exists():
            build_graph(tables_from_pyg(data, quantize=quantize), DiskFolder(path), num_partitions=2)
        dataset = DistDataset.open(path)
    given: dict[str, Any] = {"batch_size": 16, "seed": 2, "num_workers": 0, "shuffle": True, "device": "cpu"}
    given |= options
    if kind == "links":
        links = data.edge_index[:, ::12]
        return DistLinkNeighborLoader(dataset, [4, 3], links, neg_sampling="binary", **given)
    nodes = ("item", None) if kind == "heterogeneous" else "train"
    return DistNeighborLoader(dataset, [4, 3], nodes, disjoint=kind == "disjoint", **given)


@pytest.mark.some(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", DEVICES, indirect=True)
def test_no_batch_changes(kind: str, device: str) -> None:
    check_batches(kind, device)


@pytest.mark.device
@pytest.mark.parametrize("kind", KINDS)
def test_no_batch_changes_on_cuda(kind: str) -> None:
    check_batches(kind, "cuda")


def check_batches(kind: str, device: str) -> None:
    """Fail unless batches are the same with any number of rows on the device."""
    with loader_of(kind, device=device) as plain:
        expected = [*plain, *plain, *plain]
        whole = plain.stats()
    carried = []
    for nbytes, policy in ((1, "census"), (3000, "census"), (3000, "degree"), (1 << 30, "none")):
        with loader_of(kind, device=device, feature_memory_device=nbytes, cache_policy=policy) as loader:
            batches = [*loader, *loader, *loader]
            stats = loader.stats()
        assert len(batches) == len(expected)
        assert all(map(same_batch, batches, expected))
        rows = stats["rows"]
        assert rows["device_bytes"] <= nbytes
        assert rows["wanted"] == rows["device"] + rows["memory"] == whole["rows"]["wanted"]
        carried.append((rows["device"], stats["bytes"]))
    rows_on_device, copied = zip(*carried, strict=True)
    assert rows_on_device[0] == 0 < min(rows_on_device[1:3]) < rows_on_device[3]
    assert copied[0] == whole["bytes"] > max(copied[1:3]) > copied[3]


@pytest.mark.some(2)
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", ["homogeneous", "quantised", "dtypes"])
def test_rows_of_a_disk(tmp_path: Path, kind: str, num_workers: int) -> None:
    path = tmp_path / "graph"
    with loader_of(kind, path) as plain:
        expected = [*plain, *plain]
    options = {"feature_memory": "18KB", "window": 3, "num_workers": num_workers}
    with loader_of(kind, path, feature_memory_device="3KB", **options) as loader:
        assert all(map(same_batch, [*loader, *loader], expected))
        rows = loader.stats()["rows"]
        with loader_of(kind, path, **options) as without:
            list(without), list(without)
            others = without.stats()["rows"]
    assert min(rows["device"], rows["cache"]) > 0
    assert rows["wanted"] == sum(rows[name] for name in ("device", "cache", "memory", "disk"))
    assert rows["disk"] < others["disk"]


@pytest.mark.some(4)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["homogeneous", "heterogeneous", "quantised", "disjoint", "links", "dtypes"])
@pytest.mark.parametrize("device", DEVICES, indirect=True)
def test_where_all_rows_are_on_the_device_batches_bring_positions(
    kind: str, device: str, num_workers: int
) -> None:
    options: dict[str, Any] = {"edge_columns": [], "device": device, "num_workers": num_workers}
    with loader_of(kind, **options) as plain:
        single, expected, whole = plain.collate_fn([0, 3]), [*plain, *plain], plain.stats()
    with loader_of(kind, feature_memory_device="1GB", **options) as loader:
        batches = iter(loader)
        first = [next(batches), next(batches)]
        state = loader.state_dict()
        assert same_batch(loader.collate_fn([0, 3]), single)
        rest = [*batches, *loader]
        rows, nbytes = loader.stats()["rows"], loader.stats()["bytes"]
        source: Any = loader._frames.source
        assert isinstance(source, resident.ResidentSource)
    assert all(map(same_batch, [*first, *rest], expected))
    assert len([*first, *rest]) == len(expected)
    assert rows["wanted"] == rows["device"] == whole["rows"]["wanted"]
    assert kind == "quantised" or nbytes < whole["bytes"]
    with loader_of(kind, feature_memory_device="1GB", **options) as loader:
        loader.load_state_dict(state)
        assert all(map(same_batch, loader, expected[2:]))


def test_a_column_may_have_the_name_of_positions() -> None:
    data = data_of("homogeneous")
    data.position = torch.arange(data.num_nodes).flip(0)
    given: dict[str, Any] = {
        "batch_size": 16,
        "seed": 2,
        "num_workers": 0,
        "device": "cpu",
        "edge_columns": [],
    }
    dataset = DistDataset.from_pyg(data)
    with DistNeighborLoader(dataset, [4, 3], **given) as plain:
        expected, single = list(plain), plain.sample([3, 5], epoch=0)
    with DistNeighborLoader(dataset, [4, 3], **given, feature_memory_device="1GB") as loader:
        assert all(map(same_batch, loader, expected))
        assert same_batch(loader.sample([3, 5], epoch=0), single)
        assert loader.stats()["rows"]["device"]


def test_a_place_in_the_epoch_and_single_batches() -> None:
    with loader_of("homogeneous") as plain:
        expected, single = list(plain), plain.sample([3, 5], epoch=0)
    with loader_of("homogeneous", feature_memory_device="4KB", num_workers=2) as loader:
        batches = iter(loader)
        seen = [next(batches) for _ in range(6)]
        assert same_batch(loader.sample([3, 5], epoch=0), single)
        state = loader.state_dict()
        next(batches)
        for _, again in zip(range(4), loader, strict=False):  # The next epoch, and left.
            assert again.num_nodes
    with loader_of("homogeneous", feature_memory_device="1KB") as loader:
        loader.load_state_dict(state)
        seen += loader
    assert len(seen) == len(expected)
    assert all(map(same_batch, seen, expected))


@pytest.mark.parametrize(
    ("error", "given_up"),
    [(OSError(5, "Input/output error"), True), (StorageUnavailable("no answer"), False)],
    ids=["lost", "late"],
)
def test_rows_that_cannot_be_read_change_no_batch(
    error: Exception, given_up: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read, failures = MappedRows.read, [error]

    def fail_once(self: MappedRows, rows: Int64Array, targets: Int64Array, out: Sequence[Bytes]) -> None:
        if len(rows) == 300 and failures:
            raise failures.pop()
        read(self, rows, targets, out)

    with loader_of("homogeneous") as plain:
        expected = list(plain)
    monkeypatch.setattr(MappedRows, "read", fail_once)
    with (
        caplog.at_level(logging.WARNING),
        loader_of("homogeneous", feature_memory_device="1GB") as loader,
    ):
        assert all(map(same_batch, loader, expected))
        assert (loader.stats()["rows"]["device"] == 0) is given_up
    assert not failures
    assert ("no features stay on the device" in caplog.text) is given_up


def test_names_of_types_are_no_rows_on_the_device() -> None:
    layout = Layout.plan({"merged/a+b+resident": ArraySpec("I32", (0,))}, {"epoch": "0", "batch": "0"})
    frame = Frame(np.empty(layout.nbytes, np.uint8), layout)
    transfer = ResidentTransfer(HostTransfer(), torch.device("cpu"), {})
    assert transfer.load(frame).tensor("merged/a+b+resident").shape == (0,)


def test_memory_is_let_go_with_the_loader_and_no_frame_is_completed_without_it() -> None:
    loader = loader_of("homogeneous", feature_memory_device="1GB")
    list(loader)
    transfer, tables = loader._resident, loader._resident._tables
    assert isinstance(transfer, ResidentTransfer)
    assert sum(each.nbytes for each in tables.values()) == loader.stats()["rows"]["device_bytes"] == 300 * 32
    frames = loader._frames
    next(iter(loader))
    frame = frames.source.receive(20)
    loader.shutdown()
    assert not transfer._tables
    with pytest.raises(RuntimeError, match="shut down"):
        transfer.load(frame)
