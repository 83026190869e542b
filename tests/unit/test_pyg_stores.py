"""PyG's stores of a dataset are those of the PyG object that the graph was built from."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import pickle
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, EdgeAttr, FeatureStore, GraphStore, TensorAttr
from torch_geometric.data.graph_store import EdgeLayout
from torch_geometric.data.remote_backend_utils import num_nodes
from torch_geometric.loader import NeighborLoader
from torch_geometric.sampler import HeteroSamplerOutput, NeighborSampler, SamplerOutput

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.partition.array_table import ArrayTable
from gigl_loader.partition.table import GraphTables, NodeTable
from tests.support.clusters import addresses_of, servers_of
from tests.support.pyg_datasets import Built
from tests.support.pyg_graphs import homogeneous
from tests.support.sparse_ids import sparse_ids

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


# Features


def test_all_rows_are_those_of_the_object(built: Built) -> None:
    assert isinstance(built.features, FeatureStore)
    for kind, name in built.node_columns:
        expected = built.store(kind)[name]
        found = built.features.get_tensor(built.group(kind), name, None)
        assert found.dtype == expected.dtype
        assert torch.equal(found[built.ranks(kind)], expected)
        assert built.features.get_tensor_size(built.group(kind), name) == tuple(expected.shape)


INDICES: list[Any] = [
    slice(3, 60, 7),
    slice(None, -50),
    slice(5, 5),
    torch.tensor([5, 3, 5, -1]),
    torch.tensor([7, 0], dtype=torch.int32),
    torch.empty(0, dtype=torch.int64),
    [6, 1],
    range(4, 9),
    5,
    -2,
    torch.tensor(3),
]


def test_an_index_selects_what_it_selects_of_a_tensor(built: Built) -> None:
    for (kind, name), index in itertools.product(built.node_columns, INDICES):
        whole = torch.empty_like(built.store(kind)[name])
        whole[built.ranks(kind)] = built.store(kind)[name]
        expected = whole[list(index) if isinstance(index, range) else index]
        found = built.features.get_tensor(built.group(kind), name, index)
        assert torch.equal(found, expected)
        assert built.features.get_tensor_size(built.group(kind), name, index) == tuple(expected.shape)


def test_a_mask_selects_rows(built: Built) -> None:
    kind, name = built.node_columns[0]
    whole = built.features.get_tensor(built.group(kind), name, None)
    mask = torch.arange(len(whole)) % 3 == 0
    assert torch.equal(built.features[built.group(kind), name, mask], whole[mask])
    with pytest.raises(IndexError, match=f"a mask over {len(whole)} rows is needed, got one of 2"):
        built.features.get_tensor(built.group(kind), name, torch.tensor([True, False]))


def test_views_of_pyg_work(built: Built) -> None:
    kind, name = built.node_columns[0]
    view = built.features.view(group_name=built.group(kind))
    whole = built.features.get_tensor(built.group(kind), name, None)
    assert torch.equal(view[name][torch.tensor([1, 2])], whole[1:3])
    assert torch.equal(view[name](), whole)


def test_node_ids_are_an_attribute(built: Built) -> None:
    types = built.data.node_types if built.hetero else ["node"]
    for kind in types:
        ranks = built.ranks(kind)
        found = built.features.get_tensor(built.group(kind), "n_id", None)
        count = built.store(kind).num_nodes
        expected = torch.from_numpy(sparse_ids(count)) if built.sparse else torch.arange(count)
        assert torch.equal(found[ranks], expected)
        assert built.features.get_tensor_size(built.group(kind), "n_id") == (count,)


def test_edge_attributes_come_by_edge_id(built: Built) -> None:
    with_columns = [kind for kind in built.edge_types if "edge_attr" in built.store(kind)]
    assert with_columns
    for kind in with_columns:
        expected = built.store(kind).edge_attr
        assert torch.equal(built.features.get_tensor(kind, "edge_attr", None), expected)
        index = torch.tensor([3, 600, 3])
        assert torch.equal(built.features[kind, "edge_attr", index], expected[index])
        assert built.features.get_tensor_size(kind, "edge_attr") == tuple(expected.shape)


def test_many_attributes_at_once(built: Built) -> None:
    index = torch.tensor([1, 6, 2])
    attrs = [TensorAttr(built.group(kind), name, index) for kind, name in built.node_columns]
    attrs.append(TensorAttr(built.group(built.node_columns[0][0]), "n_id", index))
    found = built.features.multi_get_tensor(attrs)
    for tensor, attr in zip(found, attrs, strict=True):
        assert torch.equal(tensor, built.features.get_tensor(attr))


def test_every_attribute_is_listed_once(built: Built) -> None:
    listed = [(attr.group_name, attr.attr_name) for attr in built.features.get_all_tensor_attrs()]
    wanted = {(built.group(kind), name) for kind, name in built.node_columns}
    if built.hetero:
        wanted |= {(kind, "edge_attr") for kind in built.edge_types if "edge_attr" in built.store(kind)}
        wanted.add(("tag", "n_id"))  # It has no column.
    if built.sparse:
        types = built.data.node_types if built.hetero else [None]
        wanted |= {(kind, "n_id") for kind in types}
    assert sorted(listed, key=str) == sorted(wanted, key=str)
    assert len(built.features) == len(wanted)


# Edges


def test_edges_are_those_of_the_object(built: Built) -> None:
    assert isinstance(built.graph, GraphStore)
    for kind in built.edge_types:
        row, col = built.graph.get_edge_index(kind if built.hetero else None, "coo")
        assert torch.equal(torch.stack([row, col]), built.edge_index(kind))


def test_edges_come_in_every_layout(built: Built) -> None:
    for kind in built.edge_types:
        known = Data(edge_index=built.edge_index(kind))
        edge_type = kind if built.hetero else None
        sizes = built.store(kind).size() if built.hetero else (built.data.num_nodes,) * 2
        row, col = known.edge_index
        by_col, by_row = torch.argsort(col, stable=True), torch.argsort(row, stable=True)
        csc = built.graph.get_edge_index(edge_type=edge_type, layout="csc")
        assert torch.equal(csc[0], row[by_col])
        assert torch.equal(csc[1].diff(), torch.bincount(col, minlength=sizes[1]))
        csr = built.graph.get_edge_index(edge_type=edge_type, layout="csr")
        assert torch.equal(csr[1], col[by_row])
        assert torch.equal(csr[0].diff(), torch.bincount(row, minlength=sizes[0]))
        found = built.graph.get_edge_index(EdgeAttr(edge_type, EdgeLayout.COO, is_sorted=True))
        assert torch.equal(torch.stack(found), known.edge_index[:, by_col])


def test_pyg_converts_layouts_as_of_the_object(built: Built) -> None:
    for layout in ("coo", "csr", "csc"):
        found = getattr(built.graph, layout)()
        if not built.hetero:
            found = tuple({HOMOGENEOUS_EDGE: part} for part in found)
        for kind in built.edge_types:
            perm = found[2][kind]
            edges = built.edge_index(kind)
            if layout != "coo":
                assert perm is not None
                edges = edges[:, perm]
            plain = {"coo": (0, 1), "csr": (1,), "csc": (0,)}[layout]
            for row in plain:
                assert torch.equal(found[row][kind], edges[row])


def test_attributes_of_edges_tell_sizes(built: Built) -> None:
    attrs = built.graph.get_all_edge_attrs()
    assert len(attrs) == len(built.edge_types) == len(built.graph)
    assert {attr.layout for attr in attrs} == {EdgeLayout.COO}
    if built.hetero:
        assert {attr.edge_type: attr.size for attr in attrs} == {
            kind: built.store(kind).size() for kind in built.edge_types
        }
        assert num_nodes(built.features, built.graph, "user") == 120
    else:
        assert attrs[0].edge_type is None
        assert attrs[0].size == (300, 300)


# PyG's own loader and sampler


def neighbor_loader(*arguments: Any, **options: Any) -> NeighborLoader:
    with pytest.warns(UserWarning, match="without a 'pyg-lib'"):
        return NeighborLoader(*arguments, **options)


def take_all(self: NeighborSampler, seed: Any, seed_time: Any = None) -> Any:
    """Sample all neighbours of one hop in plain Python, as PyG's kernels, which may not be installed."""
    if not isinstance(seed, dict):
        node, row, col, edge = _one_hop({None: seed.tolist()}, [(None, self.colptr, self.row)])
        return SamplerOutput(torch.tensor(node[None]), row[None], col[None], edge[None])
    lists = [
        (self.to_edge_type[name], self.colptr_dict[name], self.row_dict[name]) for name in self.colptr_dict
    ]
    seeds = {kind: nodes.tolist() for kind, nodes in seed.items()}
    node, row, col, edge = _one_hop(seeds, lists)
    return HeteroSamplerOutput({kind: torch.tensor(nodes) for kind, nodes in node.items()}, row, col, edge)


def _one_hop(seeds: dict[Any, list[int]], lists: list[Any]) -> Any:
    node = {kind: list(nodes) for kind, nodes in seeds.items()}
    row: dict[Any, Any] = {}
    col: dict[Any, Any] = {}
    edge: dict[Any, Any] = {}
    for edge_type, colptr, rows in lists:
        source, target = (None, None) if edge_type is None else (edge_type[0], edge_type[2])
        if target not in seeds:
            continue
        found = [
            (int(rows[at]), place, at)
            for place, seed in enumerate(seeds[target])
            for at in range(int(colptr[seed]), int(colptr[seed + 1]))
        ]
        known = node.setdefault(source, [])
        for neighbor, _, _ in found:
            if neighbor not in known:
                known.append(neighbor)
        row[edge_type] = torch.tensor([known.index(neighbor) for neighbor, _, _ in found], dtype=torch.int64)
        col[edge_type] = torch.tensor([place for _, place, _ in found], dtype=torch.int64)
        edge[edge_type] = torch.tensor([at for _, _, at in found], dtype=torch.int64)
    return node, row, col, edge


def test_pygs_neighbor_loader_gives_the_rows_of_the_graph(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NeighborSampler, "_sample", take_all)
    nodes = torch.arange(0, 60, 3)
    data = (built.features, built.graph)
    loader = neighbor_loader(data, [-1], ("user", nodes) if built.hetero else nodes, batch_size=8)
    batches = list(loader)
    assert len(batches) == 3
    edges_seen = 0
    for batch in batches:
        for kind, name in built.node_columns:
            store = batch[kind] if built.hetero else batch
            whole = built.features.get_tensor(built.group(kind), name, None)
            ids = torch.from_numpy(np.sort(sparse_ids(len(whole)))) if built.sparse else None
            if "n_id" in store:
                index = store.n_id if ids is None else torch.searchsorted(ids, store.n_id)
                assert torch.equal(store[name], whole[index])
        for kind in built.edge_types:
            store = batch[kind] if built.hetero else batch
            if "e_id" not in store:
                continue
            ends = built.edge_index(kind)[:, store.e_id]
            for place, node_type in enumerate((kind[0], kind[2])):
                local = store.edge_index[place]
                node_ids = (batch[node_type] if built.hetero else batch).n_id[local]
                of_index = built.features.get_tensor(built.group(node_type), "n_id", None)
                assert torch.equal(node_ids, of_index[ends[place]])
            edges_seen += len(store.e_id)
    assert edges_seen > 20


# What is refused, closed, and shared with other processes


def test_stores_are_read_only(built: Built) -> None:
    kind, name = built.node_columns[0]
    attr = TensorAttr(built.group(kind), name, None)
    edge_attr = built.graph.get_all_edge_attrs()[0]
    changes: list[Callable[[], Any]] = [
        lambda: built.features.put_tensor(torch.zeros(2), attr),
        lambda: built.features.remove_tensor(attr),
        lambda: built.features.update_tensor(torch.zeros(2), attr),
        lambda: built.graph.put_edge_index((torch.zeros(1), torch.zeros(1)), edge_attr),
        lambda: built.graph.remove_edge_index(edge_attr),
    ]
    for change in changes:
        with pytest.raises(TypeError, match="read-only"):
            change()


def test_unknown_attributes_and_rows_are_told(built: Built) -> None:
    kind, name = built.node_columns[0]
    group = built.group(kind)
    with pytest.raises(KeyError, match="has no attribute 'z'; known: 'x'"):
        built.features.get_tensor(group, "z", None)
    with pytest.raises(KeyError, match="no node or edge type 'nobody'"):
        built.features.get_tensor("nobody", "x", None)
    assert built.features.get_tensor_size(group, "z") is None
    count = built.store(kind).num_nodes
    for wrong in (count, -count - 1):
        with pytest.raises(IndexError, match=f"row {wrong} of {count}"):
            built.features.get_tensor(group, name, torch.tensor([0, wrong]))
    for index in (torch.tensor([0.5]), torch.zeros(2, 2, dtype=torch.int64), "x"):
        with pytest.raises(TypeError, match="an index must be"):
            built.features.get_tensor(group, name, index)
    with pytest.raises(KeyError, match="not found"):
        built.graph.get_edge_index(("a", "b", "c"), "coo")


def test_every_dtype_arrives_as_it_is() -> None:
    columns = {
        "b": torch.arange(12) % 2 == 0,
        "h": torch.randn(12, 3).to(torch.bfloat16),
        "f": torch.randn(12, 2, 2, dtype=torch.float64),
        "u": torch.arange(12, dtype=torch.uint8),
        "e": torch.empty(12, 0),
    }
    data = Data(edge_index=torch.zeros(2, 1, dtype=torch.int64), num_nodes=12, **columns)
    features, _ = DistDataset.from_pyg(data, num_partitions=2).as_pyg()
    for name, expected in columns.items():
        found = features.get_tensor(None, name, torch.arange(12))
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
        assert features.get_tensor(None, name, torch.empty(0, dtype=torch.int64)).shape == (
            0,
            *expected.shape[1:],
        )


def test_a_graph_without_edges_or_columns_works() -> None:
    features, graph = DistDataset.from_pyg(Data(num_nodes=4)).as_pyg()
    [attr] = features.get_all_tensor_attrs()
    assert features.get_tensor(attr.group_name, attr.attr_name, None).tolist() == [0, 1, 2, 3]
    row, colptr, _ = graph.csc()
    assert row.tolist() == []
    assert colptr.tolist() == [0] * 5


def test_edges_are_numbered_in_the_order_of_their_ids() -> None:
    edges = {"src": np.array([0, 1]), "dst": np.array([1, 0]), "id": np.array([7, 5]), "w": np.arange(2.0)}
    built_of = GraphTables(
        edges={HOMOGENEOUS_EDGE: ArrayTable("edges", edges)}, nodes={"node": NodeTable(count=2)}
    )
    folder = MemoryFolder()
    build_graph(built_of, folder)
    features, graph = DistDataset(Graph.open(folder)).as_pyg()
    assert features.get_tensor(HOMOGENEOUS_EDGE, "w", None).tolist() == [1, 0]
    assert features.get_tensor(HOMOGENEOUS_EDGE, "w", 1).tolist() == 0
    assert features.get_tensor(HOMOGENEOUS_EDGE, "e_id", None).tolist() == [5, 7]
    assert torch.stack(graph.get_edge_index(None, "coo")).tolist() == [[1, 0], [0, 1]]


def test_a_closed_dataset_says_so(tmp_path: Path) -> None:
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph", num_partitions=2)
    with servers_of(tmp_path / "graph", 2) as servers:
        remote = RemoteDistDataset.connect(addresses_of(servers), timeout=30)
        for dataset in (DistDataset.open(tmp_path / "graph"), remote):
            features, graph = dataset.as_pyg()
            features.get_tensor(None, "x", 0)
            dataset.close()
            for fetch in (
                lambda features=features: features.get_tensor(None, "x", 0),
                lambda graph=graph: graph.get_edge_index(None, "coo"),
                dataset.as_pyg,
            ):
                with pytest.raises(ValueError, match="the dataset was closed"):
                    fetch()


@pytest.mark.usefixtures("no_leftovers")
def test_connections_end_with_the_store(tmp_path: Path) -> None:
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph", num_partitions=2)
    with servers_of(tmp_path / "graph", 2) as servers:
        dataset = RemoteDistDataset.connect(addresses_of(servers), timeout=30)
        features, _ = dataset.as_pyg()
        expected = features.get_tensor(None, "x", slice(4))
        store = features._store
        assert store is not None
        closed = weakref.ref(store)
        features.close()
        features.close()
        assert torch.equal(features.get_tensor(None, "x", slice(4)), expected)
        del store, features, _
        gc.collect()
        assert closed() is None
        assert not dataset._stores
        dataset.close()


def _rows_in_child(features: Any, graph: Any, results: Any) -> None:
    try:
        found = features.get_tensor(None, "x", slice(3)).tolist()
        results.put((found, len(graph.get_edge_index(None, "coo")[0])))
    except Exception as error:
        results.put((type(error).__name__, str(error)))


def _result_of_child(method: Any, features: Any, graph: Any) -> Any:
    context = multiprocessing.get_context(method)
    results = context.SimpleQueue()
    child = context.Process(target=_rows_in_child, args=(features, graph, results))
    child.start()
    found = results.get()
    child.join(30)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_of_the_host_can_use_the_stores(method: str) -> None:
    data = homogeneous()
    features, graph = DistDataset.from_pyg(data, num_partitions=2).as_pyg()
    features.get_tensor(None, "x", slice(3))
    found, count = _result_of_child(method, features, graph)
    assert torch.equal(torch.tensor(found), data.x[:3])
    assert count == data.num_edges


def test_other_processes_are_refused_where_there_are_connections(tmp_path: Path) -> None:
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph")
    with (
        servers_of(tmp_path / "graph", 1) as servers,
        RemoteDistDataset.connect(addresses_of(servers), timeout=30) as dataset,
    ):
        features, graph = dataset.as_pyg()
        features.get_tensor(None, "x", 0)
        for store in (features, graph):
            with pytest.raises(TypeError, match="pass num_workers=0"):
                pickle.dumps(store)
        kind, message = _result_of_child("fork", features, graph)
        assert kind == "RuntimeError"
        assert f"process {os.getpid()} do not survive a fork" in message
        assert "pass num_workers=0" in message
        assert features.get_tensor(None, "x", slice(2)).shape == (2, 6)
