"""Rows that the device reads from the host's memory: no batch changes, whatever fails."""

from __future__ import annotations

import gc
import json
import logging
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.loaders.device_rows import ResidentTransfer
from gigl_loader.options import FeatureOptions
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.sampling import resident
from tests.support.clusters import addresses_of, check_same, servers_of
from tests.support.pyg_graphs import homogeneous
from tests.support.triton_kernels import forget_kernels, interpreted
from tests.unit.test_resident import KINDS, loader_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WARNING = "batches bring the rows of"


@pytest.fixture(autouse=True)
def short_census(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "_CENSUS_BATCHES", 3)


@pytest.fixture
def kernels() -> Iterator[None]:
    with interpreted():
        yield


def batches_of(kind: str = "homogeneous", path: Path | None = None, **options: Any) -> tuple[list[Any], Any]:
    """Return the batches of two epochs, and what ``stats`` tells of their rows."""
    options = {"batch_size": 30, **options}
    with loader_of(kind, path, **options) as loader:
        found = [*loader, *loader]
        return found, loader.stats()


@pytest.mark.usefixtures("kernels")
@pytest.mark.some(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_where_the_device_reads_all_rows_batches_bring_positions(kind: str, num_workers: int) -> None:
    expected, whole = batches_of(kind, edge_columns=[])
    options: dict[str, Any] = {"edge_columns": [], "feature_memory_device": "host", "batch_size": 30}
    with loader_of(kind, num_workers=num_workers, **options) as loader:
        found, source = [*loader, *loader], loader._frames.source
        rows = loader.stats()["rows"]
    assert isinstance(source, resident.ResidentSource)
    check_same(found, expected)
    assert rows["wanted"] == rows["host"] == whole["rows"]["wanted"]


@pytest.mark.usefixtures("kernels")
@pytest.mark.some(3)
@pytest.mark.parametrize("kind", KINDS)
def test_no_batch_changes(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    expected, whole = batches_of(kind)
    sizes = []
    for memory in ("host", "3KB+host", "1GB + host"):
        found, stats = batches_of(kind, feature_memory_device=memory)
        check_same(found, expected)
        rows = stats["rows"]
        assert rows["wanted"] == rows["device"] + rows["host"] == whole["rows"]["wanted"]
        assert (rows["device"] > 0) is (memory != "host")
        assert 0 <= rows["device_bytes"] <= (3000 if "KB" in memory else 1 << 30)
        assert rows["host"] > 0
        sizes.append(stats["bytes"])
    # Frames carry no row in any case, and so are equally large.
    assert len(set(sizes)) == 1
    assert sizes[0] < whole["bytes"]
    assert WARNING not in caplog.text


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", ["quantised", "dtypes"])
def test_rows_of_mapped_files_and_of_several_partitions(kind: str, num_workers: int, tmp_path: Path) -> None:
    path = tmp_path / "graph"
    expected, _ = batches_of(kind, path)
    found, stats = batches_of(kind, path, feature_memory_device="2KB+host", num_workers=num_workers)
    check_same(found, expected)
    assert stats["rows"]["host"] > 0


@pytest.mark.usefixtures("kernels")
def test_values_of_every_quantisation_are_read_by_one_kernel(caplog: pytest.LogCaptureFixture) -> None:
    for quantize in ("int8", "int8:per-row", "uint2"):
        dataset = DistDataset.from_pyg(homogeneous(), quantize={"x": quantize})
        found = []
        for memory in (None, "1KB+host"):
            options: dict[str, Any] = {"feature_memory_device": memory, "dequantize_to": torch.bfloat16}
            with DistNeighborLoader(
                dataset, [4, 3], "train", batch_size=16, seed=2, num_workers=0, device="cpu", **options
            ) as loader:
                found.append([*loader, *loader])
                if memory is not None:
                    host = loader._resident._host
                    assert host["node/node/x"]._is_fused
        check_same(found[1], found[0])
    assert "read as codes" not in caplog.text


@pytest.mark.usefixtures("kernels")
def test_a_place_in_the_epoch_single_batches_and_ledgers(tmp_path: Path) -> None:
    with loader_of("homogeneous") as plain:
        plain.ledger(tmp_path / "plain")
        expected, single = list(plain), plain.sample([3, 5], epoch=0)
    with loader_of("homogeneous", feature_memory_device="1KB+host") as loader:
        loader.ledger(tmp_path / "host")
        batches = iter(loader)
        seen = [next(batches) for _ in range(4)]
        check_same([loader.sample([3, 5], epoch=0)], [single])
        state = loader.state_dict()
    with loader_of("homogeneous", feature_memory_device="host") as loader:
        loader.load_state_dict(state)
        seen += loader
    check_same(seen, expected)
    frames = [
        [
            line["frame"]
            for line in map(json.loads, (tmp_path / name).read_text().splitlines())
            if "frame" in line
        ]
        for name in ("plain", "host")
    ]
    assert frames[1] == frames[0][: len(frames[1])] != []


@pytest.mark.usefixtures("kernels")
def test_memory_is_let_go_with_the_loader() -> None:
    loader = loader_of("homogeneous", feature_memory_device="1KB+host")
    list(loader)
    transfer = loader._resident
    assert isinstance(transfer, ResidentTransfer)
    assert transfer._host
    loader.shutdown()
    assert not transfer._host
    assert not transfer._tables


# --- What fails


def check_fallback(caplog: pytest.LogCaptureFixture, reason: str, memory: str = "1KB+host") -> None:
    """Fail unless batches are the same, and one warning of the loader tells ``reason``."""
    expected, _ = batches_of("homogeneous")
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        found, stats = batches_of("homogeneous", feature_memory_device=memory)
    check_same(found, expected)
    assert stats["rows"]["host"] == 0
    (record,) = caplog.records
    assert f"{WARNING} node, node+to+node" in record.getMessage()
    assert reason in record.getMessage()


def test_a_cpu_reads_nothing_itself(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("triton")
    forget_kernels()
    check_fallback(caplog, "the device is the CPU")
    check_fallback(caplog, "the device is the CPU", "host")


def test_without_triton_batches_bring_their_rows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    forget_kernels()
    check_fallback(caplog, "ModuleNotFoundError")


@pytest.mark.usefixtures("kernels")
def test_memory_that_cannot_be_page_locked_is_copied_and_else_comes_with_batches(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from gigl_loader.device import host_rows, page_locks

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("CUDA cannot page-lock 3 MB (error 1)")

    monkeypatch.setattr(page_locks.PageLocked, "map_of", refuse)
    expected, _ = batches_of("homogeneous")
    found, stats = batches_of("homogeneous", feature_memory_device="host")
    check_same(found, expected)
    assert stats["rows"]["host"] > 0
    monkeypatch.setattr(host_rows, "locked_copy", refuse)
    check_fallback(caplog, "CUDA cannot page-lock 3 MB (error 1)")


@pytest.mark.usefixtures("kernels")
def test_rows_that_differ_come_with_batches(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from gigl_loader.device import row_kernels

    gather = row_kernels.gather_rows
    monkeypatch.setattr(row_kernels, "gather_rows", lambda *inputs: gather(*inputs) + 1)
    check_fallback(caplog, "the device reads other rows than the CPU")


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("fault", ["differs", "raises"])
def test_values_that_differ_are_computed_from_codes(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from gigl_loader.device import row_kernels

    dequantize = row_kernels.dequantize_rows

    def wrong(*inputs: Any, **sizes: Any) -> Any:
        if fault == "raises":
            raise RuntimeError("no compiler\nand more")
        return dequantize(*inputs, **sizes) + 1

    expected, _ = batches_of("quantised")
    monkeypatch.setattr(row_kernels, "dequantize_rows", wrong)
    found, stats = batches_of("quantised", feature_memory_device="host")
    check_same(found, expected)
    assert stats["rows"]["host"] > 0
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    reason = "RuntimeError: no compiler" if fault == "raises" else "its values differ"
    assert told == [
        f"{name} is read as codes, not dequantised by the same kernel: {reason}"
        for name in ("node/node/x", "edge/node+to+node/edge_attr")
    ]


@pytest.mark.usefixtures("kernels")
def test_a_device_without_memory_still_reads_the_hosts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    allocate = ResidentTransfer.allocate

    def fail(self: ResidentTransfer, sizes: Any) -> None:
        if sizes:
            raise RuntimeError("CUDA out of memory")
        allocate(self, sizes)

    expected, _ = batches_of("homogeneous")
    monkeypatch.setattr(ResidentTransfer, "allocate", fail)
    found, stats = batches_of("homogeneous", feature_memory_device="1GB+host")
    check_same(found, expected)
    assert stats["rows"]["device"] == 0 < stats["rows"]["host"]
    assert "CUDA out of memory" in caplog.text


@pytest.mark.usefixtures("kernels")
def test_rows_of_storage_servers_come_with_batches(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph")
    options: dict[str, Any] = {"batch_size": 32, "seed": 2, "device": "cpu"}
    with DistNeighborLoader(DistDataset.open(tmp_path / "graph"), [4, 3], **options) as plain:
        expected = list(plain)
    with (
        servers_of(tmp_path / "graph", 1) as servers,
        RemoteDistDataset.connect(addresses_of(servers), timeout=60) as dataset,
        DistNeighborLoader(dataset, [4, 3], **options, feature_memory_device="2KB+host") as loader,
    ):
        check_same(list(loader), expected)
        assert loader.stats()["rows"]["device"] > 0
    assert "they do not lie in the memory of this host" in caplog.text


# --- Page-locked memory


class Runtime:
    """A stand-in for CUDA's runtime: what is registered, and with which flags."""

    def __init__(self) -> None:
        self.registered: dict[int, tuple[int, int]] = {}
        self.log: list[str] = []
        self.refuses = False

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        if self.refuses or address in self.registered:
            return 712
        self.registered[address] = (size, flags)
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        del self.registered[address]
        self.log.append("unregister")
        return 0


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: runtime.log.append("synchronize"))
    monkeypatch.setattr(torch, "ones", lambda *_, **__: None)
    return runtime


def test_a_map_is_registered_once_and_as_long_as_it_is_read(runtime: Runtime) -> None:
    from gigl_loader.device.page_locks import PageLocked

    cuda = torch.device("cuda:0")
    dataset = DistDataset.from_pyg(homogeneous())
    columns = [dataset._graph.node_column("node", name, 0) for name in ("x", "y")]
    first, second = (PageLocked.map_of(each, cuda) for each in columns)
    assert first is second
    ((address, (size, flags)),) = runtime.registered.items()
    assert address % 4096 == 0
    assert all(address <= each.ctypes.data < address + size for each in columns)
    assert flags == 1 | 2 | 8  # Portable, mapped, read-only.
    del first
    gc.collect()
    assert runtime.registered
    del second
    gc.collect()
    assert runtime.registered == {}
    assert runtime.log == ["synchronize", "unregister"]


def test_a_copy_is_registered_for_writing_and_given_back(runtime: Runtime) -> None:
    from gigl_loader.device.page_locks import locked_copy

    parts = [np.arange(12, dtype=np.uint8).reshape(4, 3), np.arange(6, dtype=np.uint8).reshape(2, 3)]
    lock, rows = locked_copy(parts, torch.device("cuda:0"))
    assert np.array_equal(rows, np.concatenate(parts))
    assert [flags for _, flags in runtime.registered.values()] == [1 | 2]
    del lock, rows
    gc.collect()
    assert runtime.registered == {}


def test_a_refusal_is_an_error_that_says_how_much(runtime: Runtime) -> None:
    from gigl_loader.device.page_locks import locked_copy

    runtime.refuses = True
    with pytest.raises(OSError, match=r"CUDA cannot page-lock 3 MB \(error 712\)"):
        locked_copy([np.zeros((1000, 3000), np.uint8)], torch.device("cuda:0"))


# --- The option


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, (None, False)),
        ("2GB", (2 << 30, False)),
        (4096, (4096, False)),
        ("host", (0, True)),
        ("2GB+host", (2 << 30, True)),
        ("64K + host", (64 << 10, True)),
    ],
)
def test_the_option_names_both_memories(given: Any, expected: Any) -> None:
    options = FeatureOptions.read("auto", given, "auto", "census")
    assert (options.device_bytes, options.device_reads_host) == expected


@pytest.mark.parametrize("given", ["2GB+hosts", "host+2GB", "+host", "2GB host", "hosts", "2GB+host+host"])
def test_other_spellings_are_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r'feature_memory_device must be a size such as "4GB"'):
        FeatureOptions.read("auto", given, "auto", "census")
