"""Values of quantised columns that whoever writes a frame writes beside the codes."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistLinkNeighborLoader, DistNeighborLoader
from gigl_loader.channel.frame import VALUES
from gigl_loader.graph.quantization import Quantized
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.clusters import addresses_of, servers_of
from tests.support.pyg_graphs import heterogeneous, homogeneous, same_batch
from tests.unit.test_ledger import batches_of, made

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gigl_server.server import StorageServer

BUYS = ("user", "buys", "item")
OPTIONS: dict[str, Any] = {
    "batch_size": 40,
    "shuffle": True,
    "seed": 3,
    "device": "cpu",
    "timeout": 20,
    "name": "loader",
}
FORKED: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
MODES: dict[str, dict[str, Any]] = {
    "workers": FORKED,
    "disk": {**FORKED, "feature_memory": 2_000},
    "disk, inline": {"num_workers": 0, "feature_memory": 2_000},
    "store": {},
}
"""Modes in which another process or thread writes frames."""

# Forking a process with threads (those of torch) is what somebody who asks for fork gets.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("graphs")
    tables = {
        "homogeneous": tables_from_pyg(homogeneous(), quantize={"x": "int8", "edge_attr": "uint4:per-row"}),
        "heterogeneous": tables_from_pyg(
            heterogeneous(), quantize={"user": {"x": "uint4"}, BUYS: {"edge_attr": "int8"}}
        ),
    }
    for kind, of_kind in tables.items():
        build_graph(of_kind, folder / kind, num_partitions=2)
    return {kind: folder / kind for kind in tables}


@pytest.fixture(scope="module")
def servers(graphs: dict[str, Path]) -> Iterator[list[StorageServer]]:
    with servers_of(graphs["homogeneous"], 2) as running:
        yield running


@pytest.fixture
def trainer_decodes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets an entry whenever the trainer's thread dequantises."""
    decode, found, trainer = Quantized.decode, list[str](), threading.get_ident()

    def watched(self: Quantized, packed: Any, out: Any) -> None:
        if threading.get_ident() == trainer:
            found.append(self.how.kind)
        decode(self, packed, out)

    monkeypatch.setattr(Quantized, "decode", watched)
    return found


def loader_of(dataset: Any, **options: Any) -> DistNeighborLoader:
    nodes = None if dataset.schema.homogeneous else ("item", None)
    return DistNeighborLoader(dataset, [4, 3], nodes, **{**OPTIONS, **options})


def inline(path: Path, **options: Any) -> list[Any]:
    with loader_of(DistDataset.open(path), num_workers=0, **options) as loader:
        return list(loader)


def opened(stack: ExitStack, mode: str, graph: Path, servers: list[StorageServer], **options: Any) -> Any:
    """Return a loader over the graph in a mode."""
    if mode == "store":
        dataset: Any = stack.enter_context(
            RemoteDistDataset.connect(addresses_of(servers), timeout=20, rows="direct", transport="network")
        )
    else:
        dataset = DistDataset.open(graph)
    return stack.enter_context(loader_of(dataset, **MODES[mode], **options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", MODES)
def test_the_trainers_thread_takes_views_of_the_same_values(
    mode: str,
    dtype: torch.dtype,
    graphs: dict[str, Path],
    servers: list[StorageServer],
    trainer_decodes: list[str],
) -> None:
    expected = inline(graphs["homogeneous"], dequantize_to=dtype)
    assert trainer_decodes
    trainer_decodes.clear()
    with ExitStack() as stack:
        loader = opened(stack, mode, graphs["homogeneous"], servers, dequantize_to=dtype)
        batches = list(loader)
        assert (loader.stats()["rows"]["disk"] > 0) == mode.startswith("disk")
    assert not trainer_decodes
    assert [each.x.dtype for each in batches] == [dtype] * len(expected)
    assert all(map(same_batch, batches, expected))
    assert sorted(batches[0].keys()) == sorted(expected[0].keys())


def test_each_type_of_a_heterogeneous_graph_has_its_values(
    graphs: dict[str, Path], trainer_decodes: list[str]
) -> None:
    expected = inline(graphs["heterogeneous"])
    trainer_decodes.clear()
    with loader_of(DistDataset.open(graphs["heterogeneous"]), **FORKED) as loader:
        assert all(map(same_batch, loader, expected))
    assert not trainer_decodes


@pytest.mark.parametrize("mode", MODES)
def test_a_ledger_that_begins_later_has_the_digests_of_codes(
    mode: str, graphs: dict[str, Path], servers: list[StorageServer], tmp_path: Path
) -> None:
    with loader_of(DistDataset.open(graphs["homogeneous"]), num_workers=0) as loader:
        loader.ledger(tmp_path / "codes.jsonl")
        list(loader)
        digests = loader.state_dict()["digests"]
    with ExitStack() as stack:
        loader = opened(stack, mode, graphs["homogeneous"], servers)
        batches = iter(loader)
        next(batches)
        loader.ledger(tmp_path / "values.jsonl")
        list(batches)
        assert loader.state_dict()["digests"] == digests
    lines = batches_of(tmp_path / "values.jsonl")
    assert made(lines) == made(batches_of(tmp_path / "codes.jsonl"))[1:]
    assert {"node/node/x", "counts"} < lines[0]["arrays"].keys()
    assert not any(name.endswith(VALUES) for name in lines[0]["arrays"])


def test_a_state_goes_on_with_workers_or_without(graphs: dict[str, Path]) -> None:
    expected = inline(graphs["homogeneous"])
    dataset = DistDataset.open(graphs["homogeneous"])
    with loader_of(dataset, **FORKED) as loader:
        seen = list(islice(loader, 3))
        state = loader.state_dict()
        alone = loader.sample(torch.arange(7), epoch=0)
    for options in (FORKED, {"num_workers": 0}):
        with loader_of(dataset, **options) as loader:
            loader.load_state_dict(state)
            batches = [*seen, *loader]
            assert len(batches) == len(expected)
            assert all(map(same_batch, batches, expected))
            assert same_batch(loader.sample(torch.arange(7), epoch=0), alone)


def test_batches_without_an_edge_have_no_values_of_edges() -> None:
    data = homogeneous()
    data.edge_index, data.edge_attr = data.edge_index[:, :1], data.edge_attr[:1]
    dataset = DistDataset.from_pyg(data, quantize={"x": "int8", "edge_attr": "uint4"})
    seeds = torch.arange(290, 300)
    batches = []
    for options in ({"num_workers": 0}, FORKED):
        with DistNeighborLoader(dataset, [2], seeds, **OPTIONS, **options) as loader:
            batches.append(next(iter(loader)))
    assert batches[0].edge_attr.shape == (0, 3)
    assert same_batch(*batches)


def test_links_and_chosen_columns_have_values(graphs: dict[str, Path], trainer_decodes: list[str]) -> None:
    dataset = DistDataset.open(graphs["homogeneous"])
    options: dict[str, Any] = {**OPTIONS, "edge_columns": []}
    with DistLinkNeighborLoader(dataset, [3], num_workers=0, **options) as loader:
        expected = next(iter(loader))
    trainer_decodes.clear()
    with DistLinkNeighborLoader(dataset, [3], **FORKED, **options) as loader:
        batch = next(iter(loader))
    assert same_batch(batch, expected)
    assert "edge_attr" not in batch
    assert not trainer_decodes


def test_frames_for_a_device_that_dequantises_have_codes_alone(graphs: dict[str, Path]) -> None:
    dataset = DistDataset.open(graphs["homogeneous"])
    with loader_of(dataset, num_workers=0) as loader:
        assert loader._source_request().values
        loader._set(device=torch.device("cuda", 0))
        assert not loader._source_request().values
    with loader_of(dataset, num_workers=0, feature_memory_device="1MB") as loader:
        assert not loader._source_request().values
