"""Every bad argument is refused at construction, naming value and rule, before any process starts."""

from __future__ import annotations

import inspect
import logging
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NumNeighbors

from gigl_loader import BaseDistLoader, DistDataset, DistNeighborLoader, KHopNeighborSamplerOptions
from gigl_loader.loaders.arguments import LoaderOptions
from gigl_loader.loaders.transfer import target_device
from gigl_loader.options import byte_count, workers_of
from gigl_loader.sampling.khop import read_num_neighbors
from tests.support.pyg_graphs import graph_of, heterogeneous, homogeneous, same_batch


class _NoSource(DistDataset):
    """A dataset that must not be asked for a source."""

    def open_source(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a source was opened before the arguments were checked")


@pytest.fixture(scope="module")
def homo() -> _NoSource:
    return _NoSource(graph_of(homogeneous()))


@pytest.fixture(scope="module")
def hetero() -> _NoSource:
    return _NoSource(graph_of(heterogeneous()))


LONG_OUT = torch.arange(290, 320)

BAD_INPUTS: list[tuple[Any, type[Exception], str]] = [
    (torch.tensor([1, 300, -1]), ValueError, r"2 unknown node ids of type 'node': 300, -1"),
    (LONG_OUT, ValueError, r"20 unknown .*: 300, 301, 302, 303, 304, 305, 306, 307, 308, 309, \.\.\."),
    (torch.tensor([1.0, 2.0]), TypeError, r"node ids must be integers, got float32 .*1\.0"),
    (torch.tensor([1.0]).bfloat16(), TypeError, "node ids must be integers"),
    (torch.tensor([1j]), TypeError, "node ids must be integers, got complex64"),
    (["a"], TypeError, "node ids must be integers"),
    (torch.ones(299, dtype=torch.bool), ValueError, "a mask over 300 nodes is needed, got one of 299"),
    (torch.tensor(3), ValueError, r"must be 1-D, got shape \(\)"),
    (torch.zeros(2, 2, dtype=torch.int64), ValueError, r"must be 1-D, got shape \(2, 2\)"),
    (np.array([2**63], dtype=np.uint64), ValueError, "must fit 64 signed bits, got 9223372036854775808"),
    ("training", ValueError, r"no split 'training'; known: 'test', 'train', 'val'"),
    (
        "seeds.pt",
        ValueError,
        r"^input_nodes is the path of a file, 'seeds.pt': read it .* torch.load\('seeds",
    ),
    (Path("seeds"), ValueError, "^input_nodes is the path of a file, 'seeds'"),
    (("node", "a/seeds"), ValueError, "^input_nodes is the path of a file, 'a/seeds'"),
    (3, TypeError, "must be a tensor of node ids, the name of a split or None, got 3"),
    ({1: torch.tensor([1])}, ValueError, "has 1 for the rank of a server; there are 1, from 0"),
    (("nodes", torch.tensor([1])), ValueError, "unknown node type 'nodes'; known: node"),
    (("node", torch.tensor([1]), 3), TypeError, r"must be \(node type, nodes\)"),
    ((torch.tensor([1]), "node"), TypeError, r"must be \(node type, nodes\)"),
    (("node", {"0": torch.tensor([1])}), ValueError, "has '0' for the rank of a server"),
]


@pytest.mark.parametrize(("nodes", "error", "rule"), BAD_INPUTS, ids=range(len(BAD_INPUTS)))
def test_bad_input_nodes(homo: DistDataset, nodes: Any, error: type[Exception], rule: str) -> None:
    with pytest.raises(error, match=rule):
        DistNeighborLoader(homo, [2], nodes)


BAD_HETERO_INPUTS: list[tuple[Any, str]] = [
    (None, "must name one of the node types item, tag, user"),
    (torch.tensor([1]), "must name one of the node types item, tag, user"),
    ("training", "unknown split 'training'; known: train; node types: item, tag, user"),
    (("item", "train"), "no split 'train'; known: none"),
    (("shop", None), "unknown node type 'shop'; known: item, tag, user"),
    (("tag", torch.tensor([7])), "1 unknown node ids of type 'tag': 7"),
]


@pytest.mark.parametrize(("nodes", "rule"), BAD_HETERO_INPUTS, ids=range(len(BAD_HETERO_INPUTS)))
def test_bad_input_nodes_of_a_hetero_graph(hetero: DistDataset, nodes: Any, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        DistNeighborLoader(hetero, [2], nodes)


def test_a_mask_over_node_ids_with_gaps_is_refused() -> None:
    from gigl_loader.loaders.inputs import read_seed_nodes

    dataset = DistDataset.from_pyg(Data(num_nodes=3, edge_index=torch.tensor([[0], [1]])))
    nodes = dataset.schema.nodes["node"]
    object.__setattr__(nodes, "ids", "sparse")
    with pytest.raises(ValueError, match=r"mask needs node ids 0 \.\. N - 1"):
        read_seed_nodes(dataset, torch.tensor([True, False, True]))


BAD_OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
    ({"batch_size": 2.0}, TypeError, r"batch_size must be a whole number, got 2\.0"),
    ({"batch_size": True}, TypeError, "batch_size must be a whole number, got True"),
    ({"batch_size": None}, TypeError, "batch_size must be a whole number, got None"),
    ({"shuffle": "yes"}, TypeError, "shuffle must be True or False, got 'yes'"),
    ({"drop_last": 2}, TypeError, "drop_last must be True or False, got 2"),
    ({"drop_last": 1.0}, TypeError, r"drop_last must be True or False, got 1\.0"),
    ({"drop_last": None}, TypeError, "drop_last must be True or False, got None"),
    ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
    ({"seed": 2**64}, ValueError, r"seed must be below 2\*\*64"),
    ({"seed": 0.5}, TypeError, r"seed must be a whole number, got 0\.5"),
    ({"num_workers": -1}, ValueError, "num_workers must be at least 0, got -1"),
    ({"num_workers": "2"}, TypeError, "num_workers must be a whole number, got '2'"),
    ({"worker_concurrency": 0}, ValueError, "worker_concurrency must be at least 1, got 0"),
    ({"worker_concurrency": 0, "num_workers": 0}, ValueError, "worker_concurrency must be at least 1"),
    ({"channel_size": "4 lightyears"}, ValueError, 'channel_size must be a size such as "4GB"'),
    ({"channel_size": "0GB"}, ValueError, "channel_size must be a size"),
    ({"channel_size": 0}, ValueError, "channel_size must be at least 1, got 0"),
    ({"channel_size": 1.5}, TypeError, r"channel_size must be a whole number, got 1\.5"),
    ({"channel_size": "64KB"}, ValueError, "channel_size must be at least 1 MiB a worker"),
    ({"feature_memory": "lots"}, ValueError, 'feature_memory, if not "auto", must be a size such as "4GB"'),
    ({"feature_memory": 0}, ValueError, 'feature_memory, if not "auto", must be at least 1, got 0'),
    ({"feature_memory": None}, TypeError, 'feature_memory, if not "auto", must be a whole number, got None'),
    ({"feature_memory_device": "auto"}, ValueError, "feature_memory_device must be a size such as"),
    ({"feature_memory_device": 0}, ValueError, "feature_memory_device must be at least 1, got 0"),
    ({"window": 0}, ValueError, 'window, if not "auto", must be at least 1, got 0'),
    ({"window": "all"}, TypeError, "window, if not \"auto\", must be a whole number, got 'all'"),
    ({"cache_policy": "lru"}, ValueError, "must be one of 'census', 'degree', 'none', got 'lru'"),
    ({"cache_policy": None}, ValueError, "cache_policy must be one of 'census', 'degree', 'none', got None"),
    ({"prefetch_size": 4}, ValueError, "prefetch_size=4 is for a graph store; .* worker_concurrency"),
    ({"prefetch_size": 0}, ValueError, "prefetch_size must be at least 1, got 0"),
    ({"prefetch_size": 65}, ValueError, "prefetch_size must be at most 64, got 65"),
    ({"worker_key": "shared"}, ValueError, "worker_key='shared' is for a graph store"),
    ({"worker_key": ""}, ValueError, "worker_key must be a text of 1 to 200 characters, got ''"),
    ({"max_concurrent_producer_inits": 2}, ValueError, "max_concurrent_producer_inits=2 is for a graph"),
    ({"max_concurrent_producer_inits": 0}, ValueError, "max_concurrent_producer_inits must be at least 1"),
    ({"device": "gpu"}, ValueError, "device 'gpu' is not a device"),
    ({"device": 1.5}, ValueError, r"device 1\.5 is not a device"),
    ({"device": "meta"}, ValueError, "device must be a cpu or cuda device, got 'meta'"),
    ({"device": "cpu", "pin_memory_device": "cuda:0"}, ValueError, "pin_memory_device='cuda:0' differ"),
    ({"device": "cuda:99"}, ValueError, "device 'cuda:99' does not exist"),
    ({"non_blocking_transfers": None}, TypeError, "non_blocking_transfers must be True or False, got None"),
    (
        {"process_start_gap_seconds": -1},
        ValueError,
        "process_start_gap_seconds must be finite and",
    ),
    ({"process_start_gap_seconds": "1"}, TypeError, "process_start_gap_seconds must be a number of seconds"),
    (
        {"multiprocessing_context": "thread"},
        ValueError,
        "one of spawn, forkserver, fork, got 'thread'",
    ),
    ({"multiprocessing_context": 3}, ValueError, "must be one of spawn, forkserver, fork, got 3"),
    ({"timeout": -1}, ValueError, "timeout must be finite and positive, got -1"),
    ({"timeout": float("inf")}, ValueError, "timeout must be finite and positive, got inf"),
    ({"timeout": True}, TypeError, "timeout must be a number of seconds, got True"),
    ({"transform": "normalise"}, TypeError, "transform must be callable, got 'normalise'"),
    ({"in_order": "0"}, TypeError, "in_order must be True or False, got '0'"),
    ({"max_worker_restarts": -1}, ValueError, "max_worker_restarts must be at least 0, got -1"),
    ({"name": ""}, ValueError, "name must be a text that is not empty"),
    ({"replace": "no"}, TypeError, "replace must be True or False"),
    ({"with_edge": 3}, TypeError, "with_edge must be True or False"),
]


@pytest.mark.parametrize(("options", "error", "rule"), BAD_OPTIONS, ids=lambda value: str(value)[:40])
def test_bad_options(homo: DistDataset, options: dict[str, Any], error: type[Exception], rule: str) -> None:
    with pytest.raises(error, match=rule):
        DistNeighborLoader(homo, [2], "train", **options)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("bathc_size", "did you mean batch_size?"),
        ("frobnicate", "it has dataset, num_neighbors, input_nodes, replace, .*, name"),
        ("data", "the first argument is dataset"),
        ("collate_fn", "use transform="),
        ("worker_init_fn", "sampling processes run no code of the script"),
        ("generator", "pass seed="),
        ("prefetch_factor", "use worker_concurrency="),
        ("sampler", "pass the seeds as input_nodes"),
        ("directed", "use subgraph_type='induced'"),
        ("local_process_rank", ".*found from the process group"),
        ("with_weight", "use weight_attr=, the name of the column"),
        ("edge_dir", ".*dataset.edge_dir"),
        ("random_seed", "use seed="),
        ("worker_options", "use num_workers="),
        ("neighbor_sampler", "use sampler_options=CustomSamplerOptions"),
        ("num_samples", "use num_neighbors="),
        ("concurrency", "use worker_concurrency="),
        ("current_ctx", ".*found from the process group"),
        ("master_addr", "hosts are found from the process group"),
        ("rpc_timeout", "use timeout="),
        ("async_sampling", "use worker_concurrency=1"),
    ],
)
def test_arguments_that_do_not_exist_are_refused_with_what_to_use(
    homo: DistDataset, name: str, remedy: str
) -> None:
    with pytest.raises(TypeError, match=rf"^DistNeighborLoader\(\) has no argument '{name}': {remedy}"):
        DistNeighborLoader(homo, [2], "train", **cast("Any", {name: 3}))


RPC = {
    "master_addr": "store0",
    "master_port": 1,
    "num_rpc_threads": None,
    "rpc_timeout": 180,
    "worker_devices": [],
}
WORKER_OPTIONS: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "CollocatedDistSamplingWorkerOptions",
        {"num_workers": 1, "worker_concurrency": 1, "use_all2all": False},
        "num_workers=0, timeout=180",
        "worker_devices .*, master_addr .*, master_port .*, num_rpc_threads .*, use_all2all ",
    ),
    (
        "MpDistSamplingWorkerOptions",
        {"num_workers": 2, "worker_concurrency": 4, "channel_size": "128MB", "pin_memory": True},
        "num_workers=2, worker_concurrency=4, channel_size='128MB', timeout=180",
        "worker_devices .*, pin_memory ",
    ),
    (
        "RemoteDistSamplingWorkerOptions",
        {"num_workers": 2, "buffer_size": "1GB", "prefetch_size": 3, "worker_key": None, "server_rank": 0},
        "num_workers=2, channel_size='1GB', prefetch_size=3, timeout=180",
        r"worker_devices .*, server_rank \(RemoteDistDataset.connect\(address\)",
    ),
]
"""Name and fields of options of GLT, what replaces fields, and the fields that nothing replaces."""


@pytest.mark.parametrize(
    ("name", "fields", "passed", "left"), WORKER_OPTIONS, ids=lambda value: str(value)[:2]
)
def test_what_replaces_the_fields_of_options_of_workers_is_told(
    homo: DistDataset, name: str, fields: dict[str, Any], passed: str, left: str
) -> None:
    options = type(name, (), {})()
    vars(options).update({**RPC, **fields})
    rule = rf"no argument 'worker_options': for {name}, pass {passed}; leave out {left}"
    with pytest.raises(TypeError, match=rule):
        DistNeighborLoader(homo, [2], "train", **cast("Any", {"worker_options": options}))


def test_the_class_that_was_called_is_named(homo: DistDataset) -> None:
    class MyLoader(DistNeighborLoader):
        pass

    with pytest.raises(TypeError, match=r"^MyLoader\(\) has no argument 'generator'"):
        MyLoader(homo, [2], **cast("Any", {"generator": 3}))


def test_arguments_of_other_libraries_that_change_nothing_are_accepted() -> None:
    dataset = DistDataset.from_pyg(homogeneous())
    others: Any = {
        "persistent_workers": True,
        "pin_memory": True,
        "is_sorted": True,
        "filter_per_worker": True,
        "generator": None,
        "collate_fn": None,
        "prefetch_factor": 2,
        "shuffle": None,
        "timeout": 0,
        "multiprocessing_context": None,
        "pin_memory_device": "",
        "disjoint": False,
        "time_attr": None,
        "input_time": None,
        "temporal_strategy": "uniform",
        "temporal_comparison": "<=",
        "directed": True,
        "subgraph_type": "directional",
        "collect_features": True,
        "with_weight": False,
        "strategy": "random",
        "worker_options": None,
        "neg_sampling_ratio": 0.0,
        "async_sampling": True,
        "rpc_worker_names": None,
    }
    options: dict[str, Any] = {"num_workers": 0, "seed": 1, "batch_size": 50}
    with (
        DistNeighborLoader(dataset, [2], **options, **others) as given,
        DistNeighborLoader(dataset, [2], **options) as plain,
    ):
        assert all(map(same_batch, given, plain))


TWO_HOPS = {
    ("user", "follows", "user"): [2, 2],
    ("user", "buys", "item"): [2, 2],
    ("item", "rev_buys", "user"): [2, 2],
    ("item", "has", "tag"): [2, 0],
    ("tag", "on", "item"): [-1, 2],
    ("tag", "near", "tag"): [1, 1],
}

BAD_FANOUTS: list[tuple[Any, type[Exception], str]] = [
    ([], ValueError, r"num_neighbors needs at least one hop: \[0\] has the seeds alone"),
    ([2, -2], ValueError, "num_neighbors at hop 1 must be at least -1, got -2"),
    ([2, 1 << 31], ValueError, r"num_neighbors must be below 2\*\*31, got 2147483648"),
    ([2.0], TypeError, r"num_neighbors at hop 0 must be a whole number, got 2\.0"),
    ([True], TypeError, "num_neighbors at hop 0 must be a whole number, got True"),
    (5, TypeError, "num_neighbors must be a list of whole numbers, one per hop, got 5"),
    ("55", TypeError, "num_neighbors must be a list"),
    ({**TWO_HOPS, ("user", "hates", "tag"): [1, 1]}, ValueError, r"unknown edge type .*'hates'"),
    ({("user", "tag"): [1, 1]}, ValueError, r"unknown edge type \('user', 'tag'\); known: "),
    ({**TWO_HOPS, ("tag", "item"): [1, 1]}, ValueError, "num_neighbors names an edge type twice"),
    ({}, ValueError, "num_neighbors is empty"),
    (NumNeighbors({}, default=[1, -2]), ValueError, "the default of num_neighbors at hop 1 .* got -2"),
    (
        {**TWO_HOPS, ("tag", "near", "tag"): [1]},
        ValueError,
        r"hops must be the same across all edge types, got \[1, 2\]",
    ),
    ({**TWO_HOPS, ("tag", "near", "tag"): [1, -9]}, ValueError, r"'near', 'tag'\) at hop 1 .* got -9"),
]


@pytest.mark.parametrize(("fanouts", "error", "rule"), BAD_FANOUTS, ids=range(len(BAD_FANOUTS)))
def test_bad_num_neighbors(hetero: DistDataset, fanouts: Any, error: type[Exception], rule: str) -> None:
    with pytest.raises(error, match=rule):
        DistNeighborLoader(hetero, fanouts, ("item", None))


@pytest.mark.parametrize("fanouts", [(2, 1), np.array([2, 1]), torch.tensor([2, 1])], ids=repr)
def test_fanouts_may_be_any_sequence(hetero: DistDataset, fanouts: Any) -> None:
    assert set(read_num_neighbors(hetero.schema, fanouts).values()) == {(2, 1)}


def test_fork_after_cuda_was_initialised_is_refused(
    homo: DistDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(ValueError, match=r"fork.* after CUDA was initialised .* use 'spawn'"):
        DistNeighborLoader(homo, [2], "train", multiprocessing_context="fork")


@pytest.mark.parametrize("wrong", ["graph/", homogeneous(), None], ids=lambda value: type(value).__name__)
def test_what_is_no_dataset_is_refused_with_what_to_do(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"pass DistDataset\.open\(path\) or .*, not a (str|Data|NoneType)$"):
        DistNeighborLoader(wrong, [2])


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GB", 4 << 30),
        ("4 gb", 4 << 30),
        ("1.5MiB", 3 << 19),
        ("64K", 64 << 10),
        ("100", 100),
        (7, 7),
        ("2tb", 2 << 40),
    ],
)
def test_sizes_are_read_with_units(text: str | int, size: int) -> None:
    assert byte_count("channel_size", text) == size


@pytest.mark.parametrize("size", [1 << 63, "8388608TB"])
def test_sizes_beyond_any_memory_are_refused(size: str | int) -> None:
    assert byte_count("channel_size", (1 << 63) - 1) == (1 << 63) - 1
    with pytest.raises(ValueError, match=r"channel_size must be less than 2\*\*63 bytes, got .*8"):
        byte_count("channel_size", size)


def test_a_cpu_has_one_name() -> None:
    assert target_device("cpu:0", None, local_rank=0) == torch.device("cpu")
    assert target_device(None, "cpu", local_rank=0) == torch.device("cpu")


def test_the_local_cuda_device_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert target_device(None, None, local_rank=3) == torch.device("cuda:1")
    assert target_device("cuda:1", None, local_rank=0) == torch.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert target_device(None, None, local_rank=3) == torch.device("cpu")


def test_a_random_seed_is_logged_and_told(caplog: pytest.LogCaptureFixture) -> None:
    dataset = DistDataset.from_pyg(homogeneous())
    with caplog.at_level(logging.INFO, logger="gigl_loader"):
        first, second = (DistNeighborLoader(dataset, [2], "train", num_workers=0) for _ in range(2))
    assert f"random run seed {first.seed}" in caplog.text
    assert first.seed != second.seed
    assert first.name != second.name
    assert first.name.startswith("DistNeighborLoader-")


def test_the_signature_shows_every_argument_and_default() -> None:
    shown = inspect.signature(DistNeighborLoader).parameters
    defaults = {name: parameter.default for name, parameter in shown.items()}
    assert list(defaults)[:3] == ["dataset", "num_neighbors", "input_nodes"]
    assert defaults["num_neighbors"] is inspect.Parameter.empty
    del defaults["dataset"], defaults["num_neighbors"]
    assert defaults == {
        "input_nodes": None,
        "batch_size": 1,
        "shuffle": False,
        "drop_last": False,
        "seed": None,
        "num_workers": 1,
        "worker_concurrency": 4,
        "channel_size": None,
        "feature_memory": "auto",
        "feature_memory_device": None,
        "window": "auto",
        "cache_policy": "census",
        "prefetch_size": None,
        "worker_key": None,
        "max_concurrent_producer_inits": None,
        "seed_weights": None,
        "shared_tensors": None,
        "node_columns": None,
        "edge_columns": None,
        "sharding": None,
        "even_batches": True,
        "device": None,
        "pin_memory_device": None,
        "non_blocking_transfers": True,
        "dequantize_to": torch.float32,
        "process_start_gap_seconds": None,
        "multiprocessing_context": "spawn",
        "timeout": 300.0,
        "replace": False,
        "with_edge": None,
        "weight_attr": None,
        "disjoint": False,
        "time_attr": None,
        "input_time": None,
        "input_time_start": None,
        "time_window": None,
        "temporal_strategy": "uniform",
        "temporal_comparison": "<=",
        "subgraph_type": "directional",
        "sampler_options": KHopNeighborSamplerOptions(),
        "transform": None,
        "in_order": True,
        "max_worker_restarts": 2,
        "name": None,
    }


def test_the_options_of_a_subclass_are_those_of_the_base() -> None:
    base = inspect.signature(BaseDistLoader).parameters
    keywords = {name for name, parameter in base.items() if parameter.kind is parameter.KEYWORD_ONLY}
    assert set(LoaderOptions.__annotations__) == keywords


def test_a_subclass_shows_what_it_takes() -> None:
    class Narrow(DistNeighborLoader):
        def __init__(self, dataset: Any, **options: Any) -> None:
            super().__init__(dataset, [2], **options)

    class Closed(DistNeighborLoader):
        def __init__(self, dataset: Any) -> None:
            super().__init__(dataset, [2])

    class Same(DistNeighborLoader):
        pass

    assert set(inspect.signature(Narrow).parameters) >= {"dataset", "replace", "batch_size"}
    assert "num_neighbors" not in inspect.signature(Narrow).parameters
    assert list(inspect.signature(Closed).parameters) == ["dataset"]
    assert inspect.signature(Same) == inspect.signature(DistNeighborLoader)


@pytest.mark.parametrize("hook", ["seed_nodes", "sampling_plan", "collate"])
def test_a_subclass_that_supplies_nothing_is_told_what_is_missing(hook: str) -> None:
    class Bare(BaseDistLoader):
        pass

    with pytest.raises(NotImplementedError, match="Bare does not say"):
        getattr(Bare, hook)(
            Bare.__new__(Bare), *[None] * (len(inspect.signature(getattr(Bare, hook)).parameters) - 1)
        )


@pytest.mark.parametrize(
    ("cores", "ranks", "workers"), [(16, 1, 15), (16, 4, 3), (2, 1, 1), (1, 8, 1), (256, 1, 64)]
)
def test_workers_by_themselves_are_the_cores_of_a_rank_less_one(
    monkeypatch: pytest.MonkeyPatch, cores: int, ranks: int, workers: int
) -> None:
    monkeypatch.setattr("gigl_loader.options.usable_cores", lambda: cores)
    assert workers_of("auto", ranks=ranks) == workers
    assert workers_of(3, ranks=ranks) == 3


def test_a_loader_finds_its_workers_and_the_memory_of_their_frames() -> None:
    dataset = DistDataset.from_pyg(homogeneous())
    with DistNeighborLoader(dataset, [2], num_workers="auto", device="cpu", batch_size=4) as loader:
        assert loader.num_workers == workers_of("auto", ranks=1)
        assert len(list(loader)) == len(loader)
        assert (loader.stats()["oversize"], loader.stats()["advice"]) == (0, "")
