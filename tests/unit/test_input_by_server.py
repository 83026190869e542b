"""Input nodes by the rank of the storage server that holds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gigl_loader import DistDataset
from gigl_loader.loaders.inputs import read_seed_nodes
from tests.support.pyg_graphs import graph_of, heterogeneous, homogeneous


class _Stored(DistDataset):
    @property
    def num_servers(self) -> int:
        return 3


HOMO = _Stored(graph_of(homogeneous()))
HETERO = _Stored(graph_of(heterogeneous()))


def test_they_come_in_the_order_of_the_servers() -> None:
    given = {2: torch.tensor([5, 4]), 0: np.array([9], np.int32), 1: torch.tensor([])}
    seeds = read_seed_nodes(HOMO, given)
    assert HOMO.node_ids("node", seeds.positions).tolist() == [9, 5, 4]
    assert seeds.places is None


def test_with_a_node_type() -> None:
    seeds = read_seed_nodes(HETERO, ("item", {1: [3, 3]}))
    assert seeds.node_type == "item"
    assert HETERO.node_ids("item", seeds.positions).tolist() == [3, 3]


@pytest.mark.parametrize(
    ("nodes", "error", "rule"),
    [
        (
            {3: torch.tensor([1])},
            ValueError,
            "input_nodes has 3 for the rank of a server; there are 3, from 0",
        ),
        ({-1: torch.tensor([1])}, ValueError, "input_nodes has -1 for the rank"),
        ({"0": torch.tensor([1])}, ValueError, "input_nodes has '0' for the rank"),
        ({True: torch.tensor([1])}, ValueError, "input_nodes has True for the rank"),
        ({}, ValueError, "input_nodes is empty"),
        ({0: torch.tensor([])}, ValueError, "input_nodes is empty"),
        ({0: torch.tensor([1.5])}, TypeError, "node ids must be integers"),
        ({0: torch.tensor([[1]])}, ValueError, "must be 1-D"),
        ({0: "train"}, TypeError, "must be a tensor of node ids"),
        ({0: None}, TypeError, "must be a tensor of node ids"),
        ({0: torch.tensor([1, 300])}, ValueError, "1 unknown node ids of type 'node': 300"),
    ],
)
def test_bad_ones_are_refused(nodes: Any, error: type[Exception], rule: str) -> None:
    with pytest.raises(error, match=rule):
        read_seed_nodes(HOMO, nodes)
