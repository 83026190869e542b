"""Anchors with all of their labels, fetched from datasets of every kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.clusters import addresses_of, servers_of
from tests.support.pyg_graphs import heterogeneous, homogeneous

if TYPE_CHECKING:
    from pathlib import Path

BUYS, CLICKS = ("user", "buys", "item"), ("user", "clicks", "item")
POSITIVE = torch.tensor([[3, 3, 9, 3, 3], [7, 2, 1, 7, 80]])  # A pair comes twice.
NEGATIVE = torch.tensor([[9, 3], [4, 5]])


def pairs_of(edges: torch.Tensor, anchors: list[int]) -> list[list[int]]:
    """Return those of the pairs that lead from ``anchors``, ascending."""
    return sorted(pair for pair in edges.t().tolist() if pair[0] in anchors)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize(("parts", "assigner"), [(1, "range"), (3, "hash")])
def test_labels_are_a_label_set_or_the_edges(edge_dir: Any, parts: int, assigner: Any) -> None:
    data = heterogeneous()
    dataset = DistDataset.from_pyg(
        data,
        labels={CLICKS: (POSITIVE, NEGATIVE)},
        edge_dir=edge_dir,
        num_partitions=parts,
        assigner=assigner,
    )
    [clicks] = dataset.fetch_ablp_input(None, "user", CLICKS).values()
    assert clicks.anchors.tolist() == list(range(data["user"].num_nodes))
    assert clicks.positive.t().tolist() == sorted(POSITIVE.t().tolist())
    assert clicks.negative is not None
    assert clicks.negative.t().tolist() == sorted(NEGATIVE.t().tolist())

    [buys] = dataset.fetch_ablp_input("train", supervision_edge_type=BUYS).values()
    train = dataset.fetch_node_ids("train", "user")[0].tolist()
    assert buys.anchors.tolist() == train
    assert buys.positive.t().tolist() == pairs_of(data[BUYS].edge_index, train)
    assert buys.negative is None


def test_servers_give_the_same_by_server_and_share(tmp_path: Path) -> None:
    data = homogeneous()
    build_graph(tables_from_pyg(data), tmp_path / "graph", num_partitions=3, assigner="hash")
    [whole] = DistDataset.open(tmp_path / "graph").fetch_ablp_input().values()
    assert whole.positive.t().tolist() == sorted(data.edge_index.t().tolist())
    with (
        servers_of(tmp_path / "graph", 3) as servers,
        RemoteDistDataset.connect(addresses_of(servers)[0], timeout=60) as dataset,
    ):
        found = dataset.fetch_ablp_input()
        assert list(found) == [0, 1, 2]
        assert {server: each.anchors.tolist() for server, each in found.items()} == {
            server: ids.tolist() for server, ids in dataset.fetch_node_ids().items()
        }
        positive = torch.cat([each.positive for each in found.values()], dim=1)
        assert sorted(positive.t().tolist()) == whole.positive.t().tolist()

        shares = [dataset.fetch_ablp_input(rank=rank, world_size=2, balance="seeds") for rank in range(2)]
        joined = [torch.cat([share[server].positive for share in shares], dim=1) for server in range(3)]
        assert [each.tolist() for each in joined] == [each.positive.tolist() for each in found.values()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "item", BUYS), "leads from 'user', not from anchors of type 'item'"),
        (("train", "user", ("item", "buys", "user")), "unknown supervision type"),
        (("train", "user", None), "supervision_edge_type must be one of"),
        (("dev", "user", BUYS), "no split 'dev'"),
    ],
)
def test_mistakes_are_named(arguments: Any, message: str) -> None:
    dataset = DistDataset.from_pyg(heterogeneous())
    with pytest.raises(ValueError, match=message):
        dataset.fetch_ablp_input(*arguments)
