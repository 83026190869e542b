"""A user's own sampler: the same batches in every mode, on servers only where it is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from gigl_client import RemoteDistDataset
from gigl_loader import (
    CustomSamplerOptions,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    SamplingError,
    SharedTensors,
)
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.sampling.costs import BatchBounds, BatchTooLarge
from gigl_loader.sampling.custom import SeedBatch
from gigl_loader.sampling.plan import BatchPlan, SamplerArguments
from tests.support import oracle, user_samplers
from tests.support.clusters import addresses_of, servers_of
from tests.support.command_line import run
from tests.support.plans import seed_request
from tests.support.pyg_graphs import graph_of, homogeneous, same_batch

if TYPE_CHECKING:
    from pathlib import Path

# Forking a process with threads (those of torch) is what somebody who asks for fork gets.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")

MODULE = "tests.support.user_samplers"
HALVED = f"{MODULE}:Halved"
WRONG = f"{MODULE}:Wrong"
OPTIONS: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 5, "device": "cpu", "timeout": 60.0}


def _loader(dataset: Any, nodes: Any = None, sampler: Any = None, **options: Any) -> DistNeighborLoader:
    options.setdefault("multiprocessing_context", "fork")  # Cheap: how workers start is not the point here.
    chosen = CustomSamplerOptions(HALVED, fanout=6, keep=0.7) if sampler is None else sampler
    return DistNeighborLoader(dataset, None, nodes, sampler_options=chosen, **{**OPTIONS, **options})


def test_batches_are_what_the_class_returned() -> None:
    data = homogeneous()
    with _loader(DistDataset.from_pyg(data), num_workers=0) as loader:
        batch = next(loader)
    assert batch.num_sampled_nodes == [batch.batch_size, batch.num_nodes - batch.batch_size]
    assert batch.num_sampled_edges == [batch.edge_index.shape[1]]
    assert (batch.n_id[batch.edge_index] == data.edge_index[:, batch.e_id]).all()
    assert (batch.x == data.x[batch.n_id]).all()
    assert (batch.edge_attr == data.edge_attr[batch.e_id]).all()
    assert (batch.edge_index[1] < batch.batch_size).all()


def test_numbers_of_a_batch_are_those_of_the_written_rules() -> None:
    numbers = SeedBatch(np.array([4, 2]), key=2**63 + 5).uniform(7, 20)
    key = oracle.batch_key(2**63 + 5, 7, [])
    assert numbers.tolist() == [(oracle.philox(key, i, 0xFE << 56)[0] >> 11) / 2**53 for i in range(20)]


# --- mistakes

MISTAKES = {
    "type": "returns a Subgraph, got a dict",
    "unknown": "'tag', which is no type",
    "seeds": "does not begin with the distinct seeds",
    "twice": "has a node of 'node' twice",
    "outside": "outside of 300",
    "dtype": "are float64",
    "neighbor": "neighbors of .* lie outside",
    "length": "differ in length",
    "slot": "outside",
    "raises": "ZeroDivisionError",
}


@pytest.fixture(scope="module")
def dataset() -> DistDataset:
    return DistDataset.from_pyg(homogeneous())


@pytest.mark.some(8)
@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_subgraph_that_breaks_a_rule_fails_its_batch(
    dataset: DistDataset, mistake: str, num_workers: int
) -> None:
    nodes = np.arange(12)
    options = CustomSamplerOptions(WRONG, mistake=mistake)
    with (
        _loader(dataset, list(nodes), options, num_workers=num_workers, shuffle=False) as loader,
        pytest.raises(SamplingError, match=MISTAKES[mistake]) as raised,
    ):
        next(loader)
    if mistake == "raises" and num_workers:
        assert "user_samplers.py" in raised.value.__notes__[0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no name", r"must be package.module:Class"),
        ("a b:C", r"must be package.module:Class"),
        ("tests.nowhere:Halved", "cannot be imported: ModuleNotFoundError"),
        ("tests.support.user_samplers:Absent", "cannot be imported: AttributeError"),
        ("json:JSONDecoder", "it has no method sample"),
        ("json:JSONDecodeError.args", "is no function"),
        ("__main__:Mine", "lies in the script"),
    ],
)
def test_a_class_that_is_not_there_is_refused_at_construction(
    dataset: DistDataset, name: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _loader(dataset, None, CustomSamplerOptions(name))


@pytest.mark.parametrize("name", ["fanot", "graph"])
def test_arguments_that_the_class_does_not_take_are_refused_at_construction(
    dataset: DistDataset, name: str
) -> None:
    options = CustomSamplerOptions(HALVED, **{name: 3})
    message = f"the sampler {HALVED} does not take these arguments: .*'{name}'"
    with pytest.raises(ValueError, match=message):
        _loader(dataset, None, options)


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [float("nan"), object(), (1, 2), {1: 2}, "x" * 70_000, _nested(30_000)])
def test_arguments_that_json_does_not_carry_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="arguments of a custom sampler"):
        CustomSamplerOptions(HALVED, value=value)


def test_arguments_of_other_samplers_are_refused(dataset: DistDataset) -> None:
    options = CustomSamplerOptions(HALVED)
    with pytest.raises(ValueError, match="num_neighbors and weight_attr have no meaning"):
        DistNeighborLoader(dataset, [3], sampler_options=options)
    with pytest.raises(ValueError, match="replace=True has no meaning"):
        DistNeighborLoader(dataset, None, sampler_options=options, replace=True)
    with pytest.raises(ValueError, match="num_neighbors is needed"):
        DistNeighborLoader(dataset, None)


@pytest.mark.parametrize("value", [None, "ppr", CustomSamplerOptions, {"kind": "custom"}])
def test_options_of_no_sampler_are_refused(dataset: DistDataset, value: Any) -> None:
    with pytest.raises(TypeError, match="sampler_options must be options of a kind of sampler"):
        DistNeighborLoader(dataset, [3], sampler_options=value)


def test_a_class_that_draws_too_much_is_bounded() -> None:
    """Before memory is taken for the edges: a server gives a batch a part of its own."""
    graph = graph_of(homogeneous())
    plan = CustomSamplerOptions(HALVED).plan(graph.schema, "node", SamplerArguments())
    bounds = BatchBounds(edges=20, nbytes=1 << 30)
    sampler = BatchPlan(sampler=plan, run_seed=1).open(graph, bounds=bounds)
    with pytest.raises(BatchTooLarge, match="a batch of 50 seeds has more than 20 edges"):
        sampler.sample(seed_request(0, 0, np.arange(50)))


def test_servers_import_only_what_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "graph"
    build_graph(tables_from_pyg(homogeneous()), path)
    refusals = {
        CustomSamplerOptions(HALVED): f"{HALVED} is not allowed here: .* --allow-sampler {HALVED}",
        CustomSamplerOptions(
            WRONG
        ): f"the sampler {WRONG} does not take these arguments: missing .* 'mistake'",
    }
    with (
        servers_of(path, 1, allow_samplers=(WRONG,)) as servers,
        RemoteDistDataset.connect(addresses_of(servers)[0]) as remote,
    ):
        for options, message in refusals.items():
            with pytest.raises(ValueError, match=message):
                next(_loader(remote, None, options))
            with pytest.raises(ValueError, match=message):
                _links(remote, options)
        shared = SharedTensors.create({"left": np.ones(300)})
        with pytest.raises(ValueError, match="shared_tensors lie in the trainer's memory"):
            _links(remote, "triplet", shared_tensors=shared)
    refused = run("serve", str(path), "--listen", "127.0.0.1:0", "--allow-sampler", "tests.nowhere:Mine")
    assert refused.returncode == 2
    assert "allow_sampler: the sampler tests.nowhere:Mine cannot be imported" in refused.stderr
    assert refused.stderr.count("\n") == 1


# --- negatives of links


def _links(dataset: Any, negatives: Any, links: Any = None, **options: Any) -> DistLinkNeighborLoader:
    options.setdefault("multiprocessing_context", "fork")
    return DistLinkNeighborLoader(dataset, [2], links, neg_sampling=negatives, **{**OPTIONS, **options})


def test_a_function_and_a_class_find_the_same_negatives(dataset: DistDataset) -> None:
    options: dict[str, Any] = {"num_workers": 0, "batch_size": 500}
    with _links(dataset, CustomSamplerOptions(f"{MODULE}:Hard", k=2), **options) as loader:
        expected = list(loader)
    for given in (CustomSamplerOptions(f"{MODULE}:hard"), user_samplers.hard):
        with _links(dataset, given, **options) as loader:
            assert all(map(same_batch, loader, expected))
    graph = graph_of(homogeneous())
    neighbors = {(src, dst) for src, dst in homogeneous().edge_index.t().tolist()}
    for batch in expected:
        found = torch.where(batch.dst_neg_index < 0, -1, batch.n_id[batch.dst_neg_index])
        sources = batch.n_id[batch.src_index].tolist()
        for source, row in zip(sources, found.tolist(), strict=True):
            assert all((node, source) in neighbors for node in row[:2] if node >= 0)
            assert 0 <= row[2] < graph.schema.nodes["node"].count


@pytest.mark.parametrize(
    ("mistake", "message"),
    {
        "rows": r"int64 \[16, K\], got int64 \[15, 2\]",
        "one dimension": r"got int64 \[16\]",
        "dtype": "got float64",
        "outside": "outside of 300 nodes",
        "below": "outside of 300 nodes",
        "raises": "ZeroDivisionError",
    }.items(),
)
def test_negatives_that_break_a_rule_fail_their_batch(
    dataset: DistDataset, mistake: str, message: str
) -> None:
    wrong = CustomSamplerOptions(f"{MODULE}:wrong_negatives", mistake=mistake)
    with _links(dataset, wrong, num_workers=0) as loader, pytest.raises(SamplingError, match=message):
        next(loader)


# --- state that trainer and sampling processes share


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_draw_from_one_pool_until_it_is_exhausted(dataset: DistDataset, num_workers: int) -> None:
    """Each epoch of 100 links with 3 negatives draws each of the 300 nodes once, over both workers."""
    shared = SharedTensors.create({"left": torch.ones(300)})
    links = torch.arange(200).reshape(2, 100)
    sampler = CustomSamplerOptions(f"{MODULE}:EachOnce", k=3)
    with _links(dataset, sampler, links, shared_tensors=shared, num_workers=num_workers) as loader:
        for _ in range(2):
            drawn = torch.cat([batch.n_id[batch.dst_neg_index].reshape(-1) for batch in loader])
            assert sorted(drawn.tolist()) == list(range(300))
            assert not shared["left"].any()
        with shared.lock():  # What the trainer writes, the sampling processes see.
            shared["left"][:100] = 1
        drawn = torch.cat([batch.n_id[batch.dst_neg_index].reshape(-1) for batch in loader])
        times = torch.bincount(drawn, minlength=300)
        assert times[:100].min() == 1
        assert times[100:].max() == 1
        assert torch.equal(shared["left"].bool(), times < (torch.arange(300) < 100).int() + 1)


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_samplers_of_nodes_write_to_shared_tensors(dataset: DistDataset, start: str) -> None:
    shared = SharedTensors.create({"times": torch.zeros(300, dtype=torch.int64)})
    options = {"shared_tensors": shared, "num_workers": 2, "multiprocessing_context": start}
    with _loader(dataset, None, CustomSamplerOptions(f"{MODULE}:Counted"), **options) as loader:
        for epoch in range(2):
            assert sum(batch.batch_size for batch in loader) == 300
            assert shared["times"].tolist() == [epoch + 1] * 300


def test_what_is_no_shared_tensors_is_refused(dataset: DistDataset) -> None:
    with pytest.raises(
        TypeError, match=r"shared_tensors must be SharedTensors.create\(\{...\}\), got a dict"
    ):
        _links(dataset, "triplet", shared_tensors={"left": torch.ones(3)})
