"""Batches on a CUDA device are those of the CPU, bit for bit: of every kind of plan, in every mode."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.integration.test_kinds_of_plans import HALVED, HARD, KINDS, OPTIONS, tables_of
from tests.support.clusters import addresses_of, check_same, servers_of
from tests.support.pyg_graphs import heterogeneous, homogeneous, weighted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.device

MODES: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "2 workers": {"num_workers": 2},
    "resident rows": {"num_workers": 2, "feature_memory_device": "4KB"},
    "all rows resident": {"num_workers": 0, "feature_memory_device": "1GB"},
    "rows read by the device": {"num_workers": 2, "feature_memory_device": "4KB+host"},
    "waiting for copies": {"num_workers": 0, "non_blocking_transfers": False},
}
BITS = ["int8", "uint4", "uint2", "uint1"]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


@pytest.fixture(scope="module", params=[False, True], ids=["homogeneous", "heterogeneous"])
def graph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    path = tmp_path_factory.mktemp("graph") / "graph"
    tables = tables_of(weighted(hetero=request.param), hetero=request.param)
    build_graph(tables, path, num_partitions=2)
    return path, request.param


@pytest.fixture(scope="module")
def address(graph: tuple[Path, bool]) -> Iterator[str]:
    with servers_of(graph[0], 2, allow_samplers=(HALVED, HARD)) as servers:
        yield addresses_of(servers)[0]


def batches(dataset: Any, name: str, *, hetero: bool, **options: Any) -> list[Any]:
    """Return the batches of two epochs of a kind of plan, on the CPU."""
    kind = KINDS[name]
    given = OPTIONS | kind.options | options
    with kind.loader(dataset, kind.num_neighbors, kind.input(hetero=hetero), **given) as loader:
        return [copied(batch, loader.device) for _ in range(2) for batch in loader]


def copied(batch: Any, device: torch.device) -> Any:
    """Return the batch on the CPU, after a check that all of it was on ``device``."""
    values = [value for store in batch.stores for value in store.values() if isinstance(value, torch.Tensor)]
    assert {value.device for value in values} == {device}
    return batch.cpu()


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_every_kind_of_plan(graph: tuple[Path, bool], name: str, mode: str) -> None:
    path, hetero = graph
    dataset = DistDataset.open(path)
    expected = batches(dataset, name, hetero=hetero, num_workers=0)
    check_same(batches(dataset, name, hetero=hetero, device="cuda", **MODES[mode]), expected)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("transport", ["ring", "network"])
def test_storage_servers(graph: tuple[Path, bool], address: str, name: str, transport: Any) -> None:
    path, hetero = graph
    expected = batches(DistDataset.open(path), name, hetero=hetero, num_workers=0)
    with RemoteDistDataset.connect(address, transport=transport, timeout=60) as dataset:
        for rows in (dict[str, Any](), {"feature_memory_device": "4KB"}):
            check_same(batches(dataset, name, hetero=hetero, device="cuda", **rows), expected)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("per", ["", ":per-row"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_quantised_columns(bits: str, per: str, dtype: torch.dtype) -> None:
    for data, nodes in ((homogeneous(), "train"), (heterogeneous(), ("user", "train"))):
        quantize = {"x": bits + per, "edge_attr": bits + per}
        dataset = DistDataset.from_pyg(data, quantize=quantize)
        found = []
        for options in (
            {"device": "cpu"},
            {"device": "cuda"},
            {"device": "cuda", "feature_memory_device": "1GB"},
            {"device": "cuda", "feature_memory_device": "1KB+host"},
        ):
            given = OPTIONS | {"num_workers": 0, "dequantize_to": dtype} | options
            with DistNeighborLoader(dataset, [4, 3], nodes, **given) as loader:
                found.append([copied(batch, loader.device) for batch in loader])
        check_same(found[1], found[0])
        check_same(found[2], found[0])
        check_same(found[3], found[0])


def test_an_epoch_goes_on_on_another_device(graph: tuple[Path, bool]) -> None:
    path, hetero = graph
    nodes = ("item", None) if hetero else None
    options = OPTIONS | {"num_workers": 1, "batch_size": 16}
    with DistNeighborLoader(DistDataset.open(path), [4, 3], nodes, **options) as loader:
        expected = list(loader)
    for first, second in (("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")):
        with DistNeighborLoader(
            DistDataset.open(path), [4, 3], nodes, **options | {"device": first}
        ) as loader:
            seen = [batch.cpu() for batch in islice(loader, 2)]
            state = json.loads(json.dumps(loader.state_dict()))
        with DistNeighborLoader(
            DistDataset.open(path), [4, 3], nodes, **options | {"device": second}
        ) as loader:
            loader.load_state_dict(state)
            check_same([*seen, *(batch.cpu() for batch in loader)], expected)


def test_one_batch_by_itself_and_by_request() -> None:
    dataset, ids = DistDataset.from_pyg(homogeneous()), torch.tensor([3, 14, 15])
    options = OPTIONS | {"num_workers": 1}
    with DistNeighborLoader(dataset, [4, 3], **options) as loader:
        expected = loader.sample(ids, epoch=0)
    with DistNeighborLoader(dataset, [4, 3], **options | {"device": "cuda"}) as loader:
        check_same([loader.sample(ids, epoch=0).cpu()], [expected])
    with dataset.sampler([4, 3], seed=5, device="cuda") as sampler:
        check_same([sampler.sample(ids, timeout=60).cpu()], [expected])


@pytest.mark.parametrize("partitions", [0, 1, 2])
def test_the_device_reads_rows_of_every_kind_of_graph(partitions: int, tmp_path: Path) -> None:
    """In memory, in mapped files, and in several partitions, which are copied."""
    data, quantize = homogeneous(), {"x": "int8:per-row"}
    dataset = DistDataset.from_pyg(data, quantize=quantize)
    if partitions:
        build_graph(tables_from_pyg(data, quantize=quantize), tmp_path / "graph", num_partitions=partitions)
        dataset = DistDataset.open(tmp_path / "graph")
    options = OPTIONS | {"num_workers": 1, "batch_size": 16}
    with DistNeighborLoader(dataset, [4, 3], **options) as loader:
        expected = list(loader)
    for memory in ("host", "1KB+host"):
        with DistNeighborLoader(
            dataset, [4, 3], **options | {"device": "cuda", "feature_memory_device": memory}
        ) as loader:
            check_same([copied(batch, loader.device) for batch in loader], expected)
            assert loader.stats()["rows"]["host"] > 0
            assert loader._resident._host["node/node/x"]._is_fused
