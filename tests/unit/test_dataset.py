from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader import DistDataset, DistNeighborLoader, FormatError
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.pyg_graphs import heterogeneous, homogeneous

if TYPE_CHECKING:
    from pathlib import Path


def test_a_pyg_graph_keeps_its_sizes_columns_and_splits() -> None:
    data = homogeneous()
    dataset = DistDataset.from_pyg(data)
    assert dataset.node_types == ["node"]
    assert dataset.edge_types == [("node", "to", "node")]
    assert dataset.edge_dir == "in"
    assert (dataset.num_nodes, dataset.num_edges) == (data.num_nodes, data.num_edges)
    nodes = dataset.schema.nodes["node"]
    assert set(nodes.columns) == {"x", "y"}
    assert set(dataset.schema.edges["node", "to", "node"].columns) == {"edge_attr"}
    assert nodes.splits == {split: int(data[f"{split}_mask"].sum()) for split in ("train", "val", "test")}
    for split in ("train", "val", "test"):
        positions = dataset.split_positions("node", split)
        expected = data[f"{split}_mask"].nonzero().flatten()
        assert dataset.node_ids("node", positions).tolist() == expected.tolist()


def test_a_hetero_graph_keeps_its_types() -> None:
    data = heterogeneous()
    dataset = DistDataset.from_pyg(data)
    assert set(dataset.node_types) == set(data.node_types)
    assert set(dataset.edge_types) == set(data.edge_types)
    assert not dataset.schema.homogeneous
    assert dataset.num_nodes == data.num_nodes
    assert dataset.num_edges == data.num_edges


def test_pyg_gigl_and_glt_find_their_names() -> None:
    data, hetero = homogeneous(), heterogeneous()
    data.edge_attr = data.edge_attr.to(torch.bfloat16)
    one, many = DistDataset.from_pyg(data, quantize={"x": "int8"}), DistDataset.from_pyg(hetero)
    for split in ("train", "val", "test"):
        expected = data[f"{split}_mask"].nonzero().flatten()
        assert torch.equal(getattr(one, f"{split}_node_ids"), expected)
    assert torch.equal(many.train_node_ids["user"], hetero["user"].train_mask.nonzero().flatten())
    assert (len(many.train_node_ids), many.val_node_ids) == (1, None)
    assert (one.get_node_types(), one.get_edge_types()) == (None, None)
    assert (many.get_node_types(), many.get_edge_types()) == (many.node_types, many.edge_types)
    assert (one.node_feature_info, one.edge_feature_info) == ((6, torch.float32), (3, torch.bfloat16))
    assert many.node_feature_info == {"item": (5, torch.float32), "user": (4, torch.float32)}
    assert many.edge_feature_info == {("user", "buys", "item"): (2, torch.float32)}
    assert (one.num_features, one.num_classes) == (data.num_features, 4)
    assert many.num_features == hetero.num_features
    assert many.num_classes == {"item": 3, "tag": 0, "user": 0}
    with pytest.raises(TypeError, match="got 1: pass rank= and world_size= by name"):
        one.fetch_node_ids(1, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (None, 0),
        (torch.tensor([[2], [-1], [0]]), 3),
        (torch.tensor([0.5, 2.0, 0.5]), 2),
        (torch.tensor([4, 0, 1], dtype=torch.uint16), 5),
        (torch.zeros(3, 7), 7),
    ],
    ids=str,
)
def test_classes_are_counted_as_pyg_counts_them(y: torch.Tensor | None, expected: int) -> None:
    dataset = DistDataset.from_pyg(Data(y=y, edge_index=torch.tensor([[0], [1]]), num_nodes=3))
    assert dataset.num_classes == expected
    assert (dataset.num_features, dataset.node_feature_info, dataset.train_node_ids) == (0, None, None)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_metadata_is_that_of_batches(edge_dir: Literal["in", "out"]) -> None:
    dataset = DistDataset.from_pyg(heterogeneous(), edge_dir=edge_dir)
    with DistNeighborLoader(dataset, [2], ("item", None), num_workers=0) as loader:
        found = next(iter(loader)).metadata()
    assert [set(each) for each in dataset.metadata()] == [set(each) for each in found]


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_a_directory_opens_as_the_graph_that_was_built(
    tmp_path: Path, edge_dir: Literal["in", "out"]
) -> None:
    build_graph(tables_from_pyg(heterogeneous()), tmp_path / "graph", num_partitions=2, edge_dir=edge_dir)
    dataset = DistDataset.open(tmp_path / "graph")
    assert dataset.edge_dir == edge_dir
    assert dataset.schema.num_partitions == 2
    assert DistDataset.open(str(tmp_path / "graph")).schema == dataset.schema


@pytest.mark.parametrize("assigner", ["range", "hash"])
def test_positions_and_node_ids_undo_each_other(assigner: Literal["range", "hash"]) -> None:
    dataset = DistDataset.from_pyg(homogeneous(), num_partitions=3, assigner=assigner)
    ids = np.array([7, 299, 0, 7])
    assert dataset.node_ids("node", dataset.positions("node", ids)).tolist() == ids.tolist()
    assert dataset.node_ids("node", dataset.all_positions("node")).tolist() == list(range(300))


DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(40,), (40, 3), (40, 2, 2)], ids=str)
def test_columns_of_every_dtype_come_back_as_they_went_in(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = (torch.arange(int(np.prod(shape))) % 2 * 3).reshape(shape).to(dtype)
    data = Data(x=x, edge_index=torch.tensor([[1, 2], [0, 1]]), edge_attr=x[:2].clone(), num_nodes=40)
    loader = DistNeighborLoader(DistDataset.from_pyg(data), [-1, -1], torch.tensor([0]), num_workers=0)
    (batch,) = loader
    assert batch.x.dtype == dtype
    assert torch.equal(batch.x, x[batch.n_id])
    assert batch.edge_attr.dtype == dtype
    assert torch.equal(batch.edge_attr, x[batch.e_id])


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    nothing: Any = None
    with pytest.raises(TypeError, match="path must be that of a graph directory, got None"):
        DistDataset.open(nothing)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        DistDataset.open(tmp_path / "nowhere")


def test_a_directory_that_is_no_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises((FormatError, FileNotFoundError), match=r"graph\.json"):
        DistDataset.open(tmp_path)


def test_a_dataset_on_disk_is_pickled_as_its_path(tmp_path: Path) -> None:
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph")
    dataset = DistDataset.open(tmp_path / "graph")
    assert pickle.loads(pickle.dumps(dataset)).schema == dataset.schema


def test_a_dataset_in_memory_says_why_it_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match=r"in memory cannot be pickled, .* DistDataset\.open"):
        pickle.dumps(DistDataset.from_pyg(homogeneous()))


def test_the_text_of_a_dataset_tells_its_sizes() -> None:
    assert repr(DistDataset.from_pyg(homogeneous())) == (
        "DistDataset(300 nodes of 1 types, 2,400 edges of 1 types, edge_dir='in')"
    )


@pytest.mark.parametrize("empty", [Data(num_nodes=4), Data(num_nodes=4, edge_index=torch.empty(2, 0).long())])
def test_a_graph_without_edges_and_features_is_a_graph(empty: Any) -> None:
    dataset = DistDataset.from_pyg(empty)
    assert (dataset.num_nodes, dataset.num_edges) == (4, 0)


def test_a_hetero_graph_without_edges_is_a_graph() -> None:
    data = HeteroData()
    data["a"].num_nodes = 3
    data["b"].x = torch.zeros(2, 2)
    dataset = DistDataset.from_pyg(data)
    assert dataset.node_types == ["a", "b"]
    assert dataset.edge_types == []


def test_what_is_no_pyg_object_is_refused() -> None:
    with pytest.raises(TypeError, match="Data or HeteroData of torch_geometric, got int"):
        DistDataset.from_pyg(3)
