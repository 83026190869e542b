"""A graph in memory is built once for the ranks of a host, and travels to processes that are spawned."""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.errors import FormatError
from tests.support.clusters import check_same
from tests.support.pyg_graphs import heterogeneous, homogeneous
from tests.support.thread_ranks import run_ranks

if TYPE_CHECKING:
    from gigl_loader.group import RankGroup


def inode(dataset: Any) -> int:
    """Return what tells the memory file of a dataset from that of another."""
    (fd,) = dataset._graph.pass_fds
    return os.fstat(fd).st_ino


@pytest.mark.parametrize("hosts", [None, ["a", "a", "b", "b"]])
@pytest.mark.parametrize("data", [homogeneous(), heterogeneous()])
def test_ranks_of_a_host_share_the_memory_of_one_graph(data: Any, hosts: list[str] | None) -> None:
    found: list[Any] = run_ranks(
        4, lambda group: DistDataset.from_pyg(data.clone(), num_partitions=2), hosts=hosts
    )
    files = [inode(dataset) for dataset in found]
    assert files[0] == files[1]
    assert files[2] == files[3]
    assert (files[0] == files[2]) == (hosts is None)
    assert len({dataset.graph_digest for dataset in found}) == 1


def test_only_the_first_rank_of_a_host_needs_the_object() -> None:
    expected = DistDataset.from_pyg(homogeneous())
    found: list[Any] = run_ranks(3, lambda group: DistDataset.from_pyg(None if group.rank else homogeneous()))
    assert {dataset.graph_digest for dataset in found} == {expected.graph_digest}


def test_the_memory_outlives_the_rank_that_built_it() -> None:
    found: list[Any] = run_ranks(2, lambda group: DistDataset.from_pyg(homogeneous()))
    options: dict[str, Any] = {"seed": 1, "batch_size": 50, "num_workers": 0}
    expected = list(DistNeighborLoader(DistDataset.from_pyg(homogeneous()), [3], "train", **options))
    del found[0]
    check_same(list(DistNeighborLoader(found[0], [3], "train", **options)), expected)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda rank: {"data": homogeneous(seed=rank)}, "rank 0 and ranks 1, 2 build graphs from different"),
        (lambda rank: {"data": homogeneous(), "num_partitions": 1 + rank % 2}, "rank 0 and rank 1 build"),
        (
            lambda rank: {"data": homogeneous() if rank else None},
            "rank 0, the first of its host, has no data",
        ),
    ],
)
def test_ranks_that_differ_are_named_on_all(program: Any, message: str) -> None:
    for error in run_ranks(3, lambda group: DistDataset.from_pyg(**program(group.rank), timeout=20)):
        assert isinstance(error, ValueError)
        assert message in str(error)


def test_a_failure_of_the_rank_that_builds_reaches_all() -> None:
    data = Data(x=torch.randn(3, 2), edge_index=torch.tensor([[0, 1], [1, 5]]))
    own, *others = run_ranks(3, lambda group: DistDataset.from_pyg(data, timeout=20))
    assert isinstance(own, ValueError)
    assert isinstance(own, FormatError)
    for error in others:
        assert isinstance(error, ValueError)
        assert isinstance(error, FormatError)
        assert str(error) == f"rank 0: {own}"


def test_a_rank_that_does_not_come_is_named() -> None:
    def program(group: RankGroup) -> Any:
        return None if group.rank == 1 else DistDataset.from_pyg(homogeneous(), timeout=0.3)

    first, _, third = run_ranks(3, program)
    for error in (first, third):
        assert isinstance(error, TimeoutError)
        assert "rank 1 did not" in str(error)


def test_a_rank_may_build_for_itself() -> None:
    def program(group: RankGroup) -> Any:
        return None if group.rank else DistDataset.from_pyg(homogeneous(), shared=False)

    assert isinstance(run_ranks(2, program)[0], DistDataset)


def test_memory_that_cannot_be_seen_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigl_loader.hosts.host_memory.os.getpid", lambda: 2**22 + 5)
    for error in run_ranks(2, lambda group: DistDataset.from_pyg(homogeneous(), timeout=20)):
        assert "cannot be mapped here (No such file or directory)" in str(error)
        assert "shared=False" in str(error)


def _digest_of(dataset: DistDataset, results: Any) -> None:
    with DistNeighborLoader(dataset, [3], "train", seed=1, batch_size=50, num_workers=0) as loader:
        results.put((dataset.graph_digest, [batch.n_id.tolist() for batch in loader]))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_graph_in_memory_travels_to_a_process_that_is_started(method: str) -> None:
    dataset = DistDataset.from_pyg(homogeneous())
    context: Any = multiprocessing.get_context(method)
    results = context.SimpleQueue()
    process = context.Process(target=_digest_of, args=(dataset, results))
    process.start()
    digest, nodes = results.get()
    process.join(60)
    assert process.exitcode == 0
    assert digest == dataset.graph_digest
    with DistNeighborLoader(dataset, [3], "train", seed=1, batch_size=50, num_workers=0) as loader:
        assert nodes == [batch.n_id.tolist() for batch in loader]
