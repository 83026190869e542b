"""Tables of PyG objects hold what the objects hold."""

from __future__ import annotations

import json
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.errors import FormatError
from gigl_loader.graph import HOMOGENEOUS_EDGE, Column, Graph, GraphSchema, MemoryFolder
from gigl_loader.loaders import collate
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.pyg_graphs import heterogeneous, homogeneous


def _built(data: Any, **options: Any) -> Graph:
    folder = MemoryFolder()
    build_graph(tables_from_pyg(data, **options), folder)
    graph = Graph.open(folder)
    graph.verify()
    return graph


def _edges(graph: Graph, edge_type: tuple[str, str, str]) -> list[tuple[int, int, int]]:
    """Return (edge id, source, destination) of a graph of one partition, by edge id."""
    arrays = graph.topology(edge_type, 0)
    targets = np.repeat(np.arange(len(arrays["indptr"]) - 1), np.diff(arrays["indptr"]))
    rows = zip(arrays["edge_ids"].tolist(), arrays["indices"].tolist(), targets.tolist(), strict=True)
    return sorted(rows)


def test_a_homogeneous_graph_keeps_everything() -> None:
    data = homogeneous()
    graph = _built(data)
    assert graph.schema.homogeneous
    assert graph.schema.nodes["node"].columns == {"x": Column("F32", (6,)), "y": Column("I64")}
    np.testing.assert_array_equal(graph.node_column("node", "x", 0), data.x)
    np.testing.assert_array_equal(graph.node_column("node", "y", 0), data.y)
    for split in ("train", "val", "test"):
        np.testing.assert_array_equal(graph.split("node", split), data[f"{split}_mask"].nonzero()[:, 0])
    expected = [(number, *ends) for number, ends in enumerate(data.edge_index.t().tolist())]
    assert _edges(graph, HOMOGENEOUS_EDGE) == expected
    ids = graph.topology(HOMOGENEOUS_EDGE, 0)["edge_ids"]
    attributes = graph.edge_column(HOMOGENEOUS_EDGE, "edge_attr", 0)
    np.testing.assert_array_equal(attributes, data.edge_attr.numpy()[ids])


def test_a_heterogeneous_graph_keeps_everything() -> None:
    data = heterogeneous()
    graph = _built(data)
    assert not graph.schema.homogeneous
    assert set(graph.schema.nodes) == set(data.node_types)
    assert set(graph.schema.edges) == set(data.edge_types)
    for node_type in data.node_types:
        assert graph.schema.nodes[node_type].count == data[node_type].num_nodes
    for edge_type in data.edge_types:
        ends = data[edge_type].edge_index.t().tolist()
        assert _edges(graph, edge_type) == [(number, *pair) for number, pair in enumerate(ends)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "uint8", "bool", "int16"])
def test_columns_keep_their_dtype(dtype: str) -> None:
    values = torch.tensor([[0, 1], [1, 0]]).to(getattr(torch, dtype))
    graph = _built(Data(x=values, edge_index=torch.tensor([[0], [1]])))
    stored = graph.node_column("node", "x", 0)
    if dtype == "bfloat16":
        assert graph.schema.nodes["node"].columns["x"].dtype == "BF16"
        restored = torch.from_numpy(stored.view(np.int16).copy()).view(torch.bfloat16)
    else:
        restored = torch.from_numpy(stored.copy())
    assert torch.equal(restored, values)


def test_attributes_of_nodes_and_edges_are_told_apart() -> None:
    data = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]))  # as many edges as nodes
    data.edge_kind = torch.arange(3)
    data.flavour = torch.arange(3)
    data.whole = torch.ones(5)
    data.title = "a graph"
    data.number = 3
    graph = _built(data)
    assert set(graph.schema.nodes["node"].columns) == {"x", "flavour"}
    assert set(graph.schema.edges[HOMOGENEOUS_EDGE].columns) == {"edge_kind"}


def test_the_number_of_nodes_comes_from_what_there_is() -> None:
    index = torch.tensor([[0, 1], [1, 3]])

    def count(**fields: Any) -> int:
        return _built(Data(edge_index=index, **fields)).schema.nodes["node"].count

    assert count(num_nodes=9) == 9
    assert count(x=torch.ones(7, 2)) == 7
    assert count(train_mask=torch.ones(6, dtype=torch.bool)) == 6
    assert count(y=torch.arange(5)) == 5
    assert count(y=torch.tensor([1])) == 4  # one label of the whole graph
    assert count() == 4
    assert _built(Data(x=torch.ones(2, 2))).schema.edges == {}


def test_a_node_type_that_only_edges_mention_counts_them() -> None:
    data = HeteroData()
    data["a"].x = torch.ones(2, 1)
    data["a", "r", "b"].edge_index = torch.tensor([[0, 1], [4, 2]])
    assert _built(data).schema.nodes["b"].count == 5


def test_weights_and_times_are_columns() -> None:
    data = homogeneous(20, 50)
    data.edge_weight = torch.rand(50)
    data.edge_time = torch.arange(50)
    graph = _built(data)
    edge_ids = graph.topology(HOMOGENEOUS_EDGE, 0)["edge_ids"]
    for name in ("edge_weight", "edge_time"):
        stored = graph.edge_column(HOMOGENEOUS_EDGE, name, 0)
        np.testing.assert_array_equal(stored, data[name].numpy()[edge_ids])


def test_weight_and_time_of_an_edge_type_are_columns_of_its_batches() -> None:
    data = HeteroData()
    data["a"].x = torch.ones(30, 1)
    data["a", "r", "a"].edge_index = torch.randint(30, (2, 80))
    data["a", "r", "a"].weight = torch.rand(80, dtype=torch.float64) - 0.5
    data["a", "r", "a"].time = torch.arange(80)
    for batch in DistNeighborLoader(
        DistDataset.from_pyg(data), [-1], ("a", None), batch_size=10, num_workers=0
    ):
        edges = batch["a", "r", "a"]
        assert len(edges.e_id)
        assert torch.equal(edges.weight, data["a", "r", "a"].weight[edges.e_id])
        assert torch.equal(edges.time, edges.e_id)


def test_columns_named_like_a_role_keep_clear_of_it() -> None:
    data = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0, 1], [1, 0]]))
    data.id = torch.tensor([7, 8])
    data.edge_src = torch.tensor([7, 8])
    graph = _built(data)
    assert set(graph.schema.nodes["node"].columns) == {"x", "node_id"}
    assert graph.schema.nodes["node"].ids == "identity"


def test_what_cannot_be_taken_is_refused() -> None:
    with pytest.raises(FormatError, match=r"edge_index is float32 \[2, 1\]"):
        tables_from_pyg(Data(edge_index=torch.ones(2, 1)))
    with pytest.raises(FormatError, match=r"edge_index: a sparse tensor"):
        tables_from_pyg(Data(edge_index=torch.eye(2).to_sparse()))
    with pytest.raises(FormatError, match=r"node type 'node', x: arrays of dtype complex64 cannot be stored"):
        tables_from_pyg(Data(x=torch.ones(2, 1) * 1j, edge_index=torch.tensor([[0], [1]])))
    with pytest.raises(TypeError, match="got tuple: read the stores into one, or build"):
        tables_from_pyg((object(), object()))
    with pytest.raises(FormatError, match="column 'dst', row 0: unknown node id 5"):
        _built(Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [5]])))


def test_errors_of_an_object_name_no_options_of_the_command_line() -> None:
    with pytest.raises(FormatError, match=r"row 0: unknown node id 5 of type 'node'$"):
        DistDataset.from_pyg(Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [5]])))


def test_tensors_that_require_gradients_or_are_not_contiguous_are_fine() -> None:
    values = torch.rand(4, 3, requires_grad=True)
    index = torch.tensor([[0, 1], [1, 2], [2, 3]]).t()
    graph = _built(Data(x=values, edge_index=index))
    np.testing.assert_array_equal(graph.node_column("node", "x", 0), values.detach())
    assert _edges(graph, HOMOGENEOUS_EDGE) == [(0, 0, 1), (1, 1, 2), (2, 2, 3)]


def test_attributes_that_are_left_out_are_named(caplog: pytest.LogCaptureFixture) -> None:
    data = Data(x=torch.zeros(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]), edge_attr=torch.zeros(2))
    tables_from_pyg(data)
    assert not caplog.records
    data.name, data.num_classes, data.prototypes = "three", 7, torch.zeros(5, 2)
    tables_from_pyg(data)
    assert [record.message for record in caplog.records] == [
        "left out of the graph, as they have no row of one size per node or edge: name, num_classes, "
        "prototypes; batches do not have them"
    ]
    caplog.clear()
    hetero = HeteroData()
    hetero.licence = "free"
    hetero["user"].x, hetero["item"].num_nodes = torch.zeros(3, 2), 4
    hetero["user"].motto = "onwards"
    hetero["user", "buys", "item"].edge_index = torch.tensor([[0], [1]])
    tables_from_pyg(hetero)
    assert "per node or edge: licence, motto;" in caplog.text


def test_what_every_batch_has_of_its_own_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """As PyG's loaders write over ``batch``, and batches have the same ``n_id`` and ``e_id``."""
    parts = [Data(x=torch.rand(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]])) for _ in range(3)]
    data = Batch.from_data_list(parts)
    data.n_id, data.e_id = torch.arange(9), torch.arange(6)
    tables = tables_from_pyg(data)
    assert "left out of the graph, as every batch has its own: batch, e_id, n_id" in caplog.messages
    assert tables.nodes["node"].rows is not None
    assert set(tables.nodes["node"].rows.columns) == {"x"}
    assert set(tables.edges[HOMOGENEOUS_EDGE].columns) == {"src", "dst"}
    with DistNeighborLoader(DistDataset.from_pyg(data), [2], batch_size=4, num_workers=0) as loader:
        assert all(torch.equal(batch.x, data.x[batch.n_id]) for batch in loader)
    for name in ("n_id", "e_id", "seed_index", "node"):
        other = Data(x=torch.rand(3, 2), edge_index=torch.tensor([[0, 1, 2], [1, 2, 2]]))
        other[name] = torch.tensor([7, 8, 9])
        with pytest.raises(FormatError, match=f"every batch has a '{name}' of its own: give that of the obj"):
            DistDataset.from_pyg(other)
    hetero = HeteroData()
    hetero["a"].x, hetero["a"].n_id = torch.zeros(3, 2), torch.tensor([3, 4, 5])
    hetero["a", "to", "a"].edge_index = torch.tensor([[0], [1]])
    hetero["a", "to", "a"].batch = torch.tensor([4])
    with pytest.raises(FormatError, match="node type 'a': every batch has a 'n_id' of its own"):
        tables_from_pyg(hetero)
    hetero["a"].n_id -= 3
    assert set(tables_from_pyg(hetero).edges["a", "to", "a"].columns) == {"src", "dst", "batch"}


def test_batches_have_types_by_name_and_numbers_of_64_bits() -> None:
    """Whatever order the types have in the object, and whatever integers its edges."""
    data = HeteroData()
    for node_type in ("paper", "author"):
        data[node_type].x = torch.rand(4, 2)
    for edge_type in (("paper", "rev_writes", "author"), ("author", "writes", "paper")):
        data[edge_type].edge_index = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)
    dataset = DistDataset.from_pyg(data)
    with DistNeighborLoader(dataset, [2], "paper", batch_size=4, num_workers=0) as loader:
        batch = next(loader)
    assert data.node_types != batch.node_types == dataset.node_types == ["author", "paper"]
    assert dataset.metadata() == batch.metadata() == (sorted(data.node_types), sorted(data.edge_types))
    assert batch["author", "paper"].edge_index.dtype == batch["paper"].n_id.dtype == torch.int64


def test_arguments_say_of_which_side_a_column_is(caplog: pytest.LogCaptureFixture) -> None:
    """With as many edges as nodes, a column may be of either."""
    ring = torch.arange(9)
    data = Data(edge_index=torch.stack([ring, (ring + 1) % 9]), num_nodes=9, w=torch.rand(9), t=ring, x=ring)
    of_nodes = tables_from_pyg(data, weight_attr={HOMOGENEOUS_EDGE: "w"}, time_attr={"node": "t"})
    assert not caplog.records
    bare = tables_from_pyg(data, weight_attr="w", time_attr="t")
    assert "t is taken for a time of nodes: pass time_attr={('node', 'to', 'node'): 't'}" in caplog.text
    of_edges = tables_from_pyg(data, weight_attr="w", time_attr={HOMOGENEOUS_EDGE: "t"})
    for tables in (of_nodes, bare):
        assert (tables.weights, tables.times) == ({HOMOGENEOUS_EDGE: ("w",)}, {"node": ("t",)})
    assert of_edges.times == {HOMOGENEOUS_EDGE: ("t",)}
    rows = of_edges.nodes["node"].rows
    assert rows is not None
    assert set(rows.columns) == {"x"}
    assert set(of_edges.edges[HOMOGENEOUS_EDGE].columns) == {"src", "dst", "w", "t"}


class _Stype(Enum):
    numerical, embedding, multicategorical = "numerical", "embedding", "multicategorical"

    @property
    def use_multi_embedding_tensor(self) -> bool:
        return self is _Stype.embedding


def _tensor_frame(count: int, **feat_dict: Any) -> Any:
    """Return what ``from_pyg`` reads of a ``TensorFrame``."""
    names = {_Stype[kind]: [f"{kind} {i}" for i in range(2)] for kind in feat_dict}
    feats = {_Stype[kind]: tensor for kind, tensor in feat_dict.items()}
    return _Sized(count, feat_dict=feats, col_names_dict=names, y=torch.arange(count) * 3)


class _Sized(SimpleNamespace):
    def __init__(self, count: int, **fields: Any) -> None:
        super().__init__(**fields)
        self.count = count

    def __len__(self) -> int:
        return self.count


@pytest.mark.parametrize("installed", [False, True])
def test_a_tensor_frame_becomes_columns_and_a_frame_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, installed: bool
) -> None:
    """``test_tensor_frames.py`` does it with the package itself, which takes seconds to import."""
    values, offset = torch.rand(9, 5), torch.tensor([0, 2, 5])
    frame = _tensor_frame(
        9,
        numerical=torch.rand(9, 2),
        embedding=SimpleNamespace(values=values, offset=offset),
        multicategorical=SimpleNamespace(values=torch.arange(30), offset=torch.arange(19)),
    )
    data = HeteroData()
    data["user"].tf, data["item"].num_nodes = frame, 4
    data["user", "buys", "item"].edge_index = torch.tensor([[0, 4], [1, 1]])
    package = SimpleNamespace(
        stype=_Stype,
        TensorFrame=lambda *parts: parts,
        data=SimpleNamespace(MultiEmbeddingTensor=lambda *parts: parts),
    )
    monkeypatch.setattr(collate, "torch_frame", package)
    monkeypatch.setattr(collate, "WITH_TORCH_FRAME", installed)
    dataset = DistDataset.from_pyg(data, num_partitions=2)
    assert "per node or edge: tf.multicategorical;" in caplog.text
    schema = GraphSchema.from_json(json.loads(json.dumps(dataset.schema.to_json())))
    assert schema == dataset.schema
    with DistNeighborLoader(
        dataset, [2], ("item", None), batch_size=4, num_workers=0, device="cpu"
    ) as loader:
        [batch] = loader
    users = batch["user"]
    assert len(users.n_id) == 2
    if not installed:
        assert torch.equal(users["tf.embedding"], values[users.n_id])
        return
    feats, names, y = users.tf
    assert names == {kind: frame.col_names_dict[kind] for kind in (_Stype.embedding, _Stype.numerical)}
    assert torch.equal(feats[_Stype.numerical], frame.feat_dict[_Stype.numerical][users.n_id])
    rows, columns, found, found_offset = feats[_Stype.embedding]
    assert (rows, columns) == (2, 2)
    assert torch.equal(found, values[users.n_id])
    assert torch.equal(found_offset, offset)
    assert torch.equal(y, frame.y[users.n_id])
    assert "tf.numerical" not in users


def test_a_mask_of_several_columns_is_told_to_be_no_split(caplog: pytest.LogCaptureFixture) -> None:
    data = Data(
        edge_index=torch.zeros(2, 1, dtype=torch.int64), num_nodes=4, train_mask=torch.ones(4, 10) > 0
    )
    tables_from_pyg(data)
    assert "train_mask has 10 columns and is no split" in caplog.text


def test_a_dataset_of_pyg_is_told_to_be_indexed() -> None:
    class Planetoid:
        num_classes = 7

    with pytest.raises(TypeError, match=r"got Planetoid: pass its graph, dataset\[0\]"):
        tables_from_pyg(Planetoid())
