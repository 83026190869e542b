"""Graphs of PyG objects with an ``adj_t`` in place of an ``edge_index``, and with sparse attributes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import ToSparseTensor

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.partition import tables_from_pyg
from tests.support.pyg_graphs import heterogeneous

pytestmark = pytest.mark.filterwarnings(
    "ignore:Sparse invariant checks are implicitly disabled", "ignore:Sparse CSR tensor support is in beta"
)


class SparseTensor:
    """A tensor of ``torch_sparse``, as far as ``from_pyg`` knows it: entries by row, then by column."""

    def __init__(self, row: torch.Tensor, col: torch.Tensor, value: Any, size: tuple[int, int]) -> None:
        order = (row * size[1] + col).argsort(stable=True)
        self._entries = row[order], col[order], None if value is None else value[order]
        self._size = size

    def coo(self) -> Any:
        return self._entries

    def size(self, dim: int) -> int:
        return self._size[dim]

    def detach(self) -> SparseTensor:
        return self


def _data() -> Data:
    """A graph with parallel edges and a node at the end that has none."""
    edges = torch.tensor([[0, 1, 2, 3, 0, 0], [1, 1, 0, 2, 1, 3]])
    return Data(num_nodes=6, edge_index=edges, edge_weight=torch.arange(6.0) + 2, t=torch.arange(6) * 10)


def _edges(dataset: DistDataset) -> list[tuple[int, int, float, int]]:
    """Return source, target, weight and t of the edges, by edge id."""
    with DistNeighborLoader(dataset, [-1], num_workers=0, batch_size=99, device="cpu") as loader:
        batch = next(loader)
    source, target = batch.n_id[batch.edge_index]
    order = batch.e_id.argsort()
    columns = (source, target, batch.edge_weight, batch.t)
    return list(zip(*(column[order].tolist() for column in columns), strict=True))


EDGES = sorted(
    zip(*_data().edge_index.tolist(), _data().edge_weight.tolist(), _data().t.tolist(), strict=True)
)


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo], ids=str)
def test_an_adjacency_alone_is_converted(layout: torch.layout) -> None:
    data = _data()
    data.edge_index, data.edge_weight, data.t = (
        each[..., [0, 1, 2, 3, 5]] for each in (data.edge_index, data.edge_weight, data.t)
    )  # Torch adds up parallel edges.
    given = ToSparseTensor(layout=layout)(data.clone())
    assert "edge_index" not in given
    with DistDataset.from_pyg(given, weight_attr="edge_weight") as dataset:
        assert dataset.num_nodes == 6
        found = _edges(dataset)
    assert sorted(found) == [edge for edge in EDGES if edge[3] != 40]
    assert [edge[:2] for edge in found] == sorted((edge[:2] for edge in found), key=lambda ends: ends[::-1])
    assert "adj_t" in given
    assert "edge_index" not in given  # The object is that of the user.


@pytest.mark.parametrize("layout", [torch.sparse_csc, torch.sparse_coo, "torch_sparse"], ids=str)
def test_adjacencies_of_other_makes(layout: Any) -> None:
    """Parallel edges stay, and other attributes are in the order of PyG, that of ``adj_t.csr()``."""
    data = _data()
    (source, target), values = data.edge_index, data.edge_weight
    size = (6, 6)
    adjacency: Any
    if layout == "torch_sparse":
        adjacency = SparseTensor(target, source, values, size)
    else:
        adjacency = torch.sparse_coo_tensor(torch.stack([target, source]), values, size)
        if layout == torch.sparse_csc:
            adjacency = torch.sparse_csc_tensor(
                torch.tensor([0, 3, 4, 5, 6, 6, 6]),
                target[[0, 4, 5, 1, 2, 3]],
                values[[0, 4, 5, 1, 2, 3]],
                size,
            )
    order = (target * 6 + source).argsort(stable=True)
    given = Data(num_nodes=6, adj_t=adjacency, t=data.t[order])
    with DistDataset.from_pyg(given) as dataset:
        assert sorted(_edges(dataset)) == EDGES


def _coo(entries: Any, values: Any, size: tuple[int, ...]) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor(entries), torch.tensor(values), size)


def test_values_of_several_numbers_and_none(caplog: pytest.LogCaptureFixture) -> None:
    alone = Data(num_nodes=4, edge_index=torch.tensor([[0, 1], [1, 2]]))
    with DistDataset.from_pyg(ToSparseTensor()(alone)) as dataset:
        assert list(dataset.schema.edges["node", "to", "node"].columns) == []
        assert (dataset.num_nodes, dataset.num_edges) == (4, 2)
    wide = Data(adj_t=_coo([[0, 1], [1, 2]], [[1.0, 2.0], [3.0, 4.0]], (3, 3, 2)))
    with DistDataset.from_pyg(wide) as dataset:
        assert dataset.num_nodes == 3
        assert dataset.schema.edges["node", "to", "node"].columns["edge_attr"].shape == (2,)
    both = _data()
    del both.edge_index, both.t
    both.adj_t = _coo([[0], [1]], [3.0], (6, 6))
    both.edge_weight = torch.tensor([7.0])
    assert "values of adj_t, as there is an edge_weight beside it" not in caplog.text
    with DistDataset.from_pyg(both) as dataset:
        assert "edge_weight" in dataset.schema.edges["node", "to", "node"].columns
    assert "values of adj_t, as there is an edge_weight beside it" in caplog.text


def _pairs(table: Any) -> list[tuple[int, int]]:
    parts = table.read(["src", "dst"], 1 << 20)
    return [pair for part in parts for pair in zip(part["src"].tolist(), part["dst"].tolist(), strict=True)]


def test_adjacencies_of_a_heterogeneous_graph() -> None:
    data = heterogeneous()
    given = ToSparseTensor()(data.clone())
    plain, found = tables_from_pyg(data), tables_from_pyg(given)
    for edge_type in data.edge_types:
        ends = [_pairs(each.edges[edge_type]) for each in (plain, found)]
        assert sorted(set(ends[0])) == sorted(ends[1])  # Torch adds up parallel edges.
    alone = HeteroData()
    alone["a", "to", "b"].adj_t = _coo([[0], [1]], [1.0], (4, 7))
    with DistDataset.from_pyg(alone) as dataset:
        assert {kind: each.count for kind, each in dataset.schema.nodes.items()} == {"a": 7, "b": 4}


def test_an_adjacency_that_is_dense_or_missing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'to', 'node'\): adj_t is no sparse tensor, and there is no"):
        DistDataset.from_pyg(Data(num_nodes=2, adj_t=torch.eye(2)))
    data = HeteroData()
    data["a"].num_nodes = data["b"].num_nodes = 2
    data["a", "to", "b"].t = torch.arange(3)
    with pytest.raises(ValueError, match=r"'to', 'b'\): no edge_index, and no adj_t$"):
        DistDataset.from_pyg(data)


SPARSE: dict[str, Any] = {
    "COO": lambda: torch.eye(4).to_sparse(),
    "CSR": lambda: torch.eye(4).to_sparse_csr(),
    "torch_sparse": lambda: SparseTensor(torch.arange(4), torch.arange(4), None, (4, 4)),
}


@pytest.mark.parametrize("make", SPARSE.values(), ids=SPARSE)
def test_sparse_attributes_are_named_and_left_out(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    data = Data(x=make(), y=make(), z=torch.rand(4), edge_index=torch.tensor([[0, 1], [1, 0]]))
    data.edge_y = torch.rand(2, 2).to_sparse()
    with DistDataset.from_pyg(data) as dataset:
        assert dataset.num_nodes == 4
        assert list(dataset.schema.nodes["node"].columns) == ["z"]
        assert list(dataset.schema.edges["node", "to", "node"].columns) == []
    assert [record.message for record in caplog.records if "left out" in record.message] == [
        "left out of the graph, as they are sparse: edge_y, x, y; batches do not have them: make them dense "
        "(to_dense()) where they are needed"
    ]
