"""Splits by hash: fractions, ids alone, and the same in memory and on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from gigl_loader import DistDataset
from gigl_loader.splits import split_edges, split_nodes
from tests.support import oracle
from tests.support.command_line import run_here

if TYPE_CHECKING:
    from pathlib import Path

FRACTIONS = [0.8, 0.15, 0.05]


def test_every_node_is_in_one_split_of_about_its_fraction() -> None:
    ids = torch.arange(100_000) * 7 - 5
    splits = split_nodes(ids, FRACTIONS)
    assert list(splits) == ["train", "val", "test"]
    assert torch.cat(list(splits.values())).sort().values.equal(ids)
    for fraction, found in zip(FRACTIONS, splits.values(), strict=True):
        assert abs(len(found) / len(ids) - fraction) < 5 * (fraction * (1 - fraction) / len(ids)) ** 0.5


def test_the_split_of_a_node_depends_on_its_id_alone() -> None:
    whole = split_nodes(torch.arange(1000), FRACTIONS)["val"]
    part = split_nodes(torch.arange(999, 400, -1), FRACTIONS)["val"]
    assert part.tolist() == [node for node in reversed(whole.tolist()) if node > 400]
    assert split_nodes(torch.arange(1000), FRACTIONS, seed=1)["val"].tolist() != whole.tolist()


def test_the_hash_is_the_written_one() -> None:
    edge_index = torch.tensor([[5, 2**40, 7, -1], [9, 3, 7, 0]])
    for undirected in (False, True):
        found = split_edges(edge_index, FRACTIONS, seed=3, undirected=undirected)
        for number, (src, dst) in enumerate(edge_index.t().tolist()):
            ends = sorted((src, dst)) if undirected else (src, dst)
            key = oracle.batch_key(3, 0, [2])
            word, _ = oracle.philox(key, *(end & (2**64 - 1) for end in ends))
            place = (word >> 11) / 2**53
            name = "train" if place < 0.8 else "val" if place < 0.95 else "test"
            assert number in found[name].tolist()
    word, _ = oracle.philox(oracle.batch_key(0, 0, [1]), 12, 0)
    assert (12 in split_nodes(torch.arange(20), [0.5])["train"].tolist()) == (word >> 63 == 0)


def test_parallel_edges_and_reverses_fall_into_one_split() -> None:
    random = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, 30, (2, 5000), generator=random)
    both = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    split_of = torch.full((10_000,), -1)
    for number, edges in enumerate(split_edges(both, FRACTIONS, undirected=True).values()):
        split_of[edges] = number
    assert torch.equal(split_of[:5000], split_of[5000:])
    directed = torch.full((10_000,), -1)
    for number, edges in enumerate(split_edges(both, FRACTIONS).values()):
        directed[edges] = number
    assert not torch.equal(directed[:5000], directed[5000:])
    pairs = [tuple(pair) for pair in both.t().tolist()]
    assert len({(pair, number) for pair, number in zip(pairs, directed.tolist(), strict=True)}) == len(
        set(pairs)
    )


@pytest.mark.parametrize(
    ("fractions", "error", "message"),
    [
        ([0.8, 0.3], ValueError, "add up to 1.1, more than 1"),
        ([0.8, -0.1], ValueError, r"fraction of 'val' must lie in \[0, 1\]"),
        ([float("nan")], ValueError, "fraction of 'train' must lie"),
        ([], ValueError, "1 to 3 numbers"),
        ([0.1] * 4, ValueError, "1 to 3 numbers"),
        ("0.8", TypeError, "fractions are numbers"),
        (["a"], TypeError, "must be a number"),
    ],
)
def test_fractions_that_cannot_be_are_refused(fractions: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        split_nodes(torch.arange(5), fractions)


def test_ids_that_are_none_are_refused() -> None:
    with pytest.raises(TypeError, match="ids must be integers, got float32"):
        split_nodes(torch.rand(5), FRACTIONS)
    with pytest.raises(ValueError, match=r"edge_index must be \[2, E\], got \[5, 2\]"):
        split_edges(torch.zeros(5, 2, dtype=torch.int64), FRACTIONS)
    with pytest.raises(ValueError, match="seed must be a whole number"):
        split_nodes(torch.arange(5), FRACTIONS, seed=-1)


@pytest.mark.parametrize("num_partitions", [1, 3])
def test_the_command_line_makes_the_same_splits(tmp_path: Path, num_partitions: int) -> None:
    random = np.random.default_rng(0)
    ids = random.permutation(500) * 3
    edges = tmp_path / "edges.npy"
    np.save(edges, ids[random.integers(0, 500, (2, 3000))])
    options = ["--split-nodes", "0.6,0.3", "--assigner", "hash", "-p", str(num_partitions)]
    made = run_here("partition", str(tmp_path / "graph"), "--edges", str(edges), *options)
    assert made.returncode == 0, made.stderr
    dataset = DistDataset.open(tmp_path / "graph")
    nodes = dataset.fetch_node_ids()[0]
    expected = split_nodes(nodes, [0.6, 0.3])
    assert list(dataset.splits["node"]) == ["train", "val"]
    for name, found in expected.items():
        assert torch.equal(dataset.fetch_node_ids(name)[0], found)


def test_a_mistyped_option_is_refused_in_one_line(tmp_path: Path) -> None:
    edges = tmp_path / "edges.npy"
    np.save(edges, np.zeros((2, 1), np.int64))
    for option, message in (("0.8;0.1", "write --split-nodes"), ("0.8,0.9", "more than 1")):
        refused = run_here("partition", str(tmp_path / "g"), "--edges", str(edges), "--split-nodes", option)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert message in refused.stderr
