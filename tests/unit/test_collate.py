from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader.channel.frame import Frame
from gigl_loader.graph.schema import Column, EdgeSchema, GraphSchema, NodeSchema
from gigl_loader.loaders.collate import Collator, seed_index
from gigl_loader.loaders.transfer import HostTensors, PackedTensors, ReusedMemory
from gigl_loader.options import EdgeType
from gigl_loader.sampling.khop import reversed_edge_types
from gigl_loader.sampling.plan import BatchPlan
from gigl_loader.tensors import ArraySpec, Layout, spec_of
from tests.support.plans import neighbor_plan

NODE, EDGE = "node", ("node", "to", "node")
BF16 = "BF16"


def _frame(
    arrays: dict[str, np.ndarray[Any, Any]], metadata: dict[str, Any], dtypes: dict[str, str] | None = None
) -> Frame:
    specs = {name: spec_of(array) for name, array in arrays.items()}
    for name, dtype in (dtypes or {}).items():
        specs[name] = ArraySpec(dtype, specs[name].shape)
    layout = Layout.plan(specs, {key: json.dumps(value) for key, value in metadata.items()})
    buffer = np.zeros(layout.nbytes, np.uint8)
    buffer[: len(layout.header)] = np.frombuffer(layout.header, np.uint8)
    for name, array in arrays.items():
        layout.view(buffer, name)[...] = array
    return Frame(buffer, layout)


def _node_schema(count: int, **columns: Column) -> NodeSchema:
    return NodeSchema(count=count, bounds=(0, count), columns=columns, splits={})


def _schema(
    *,
    edge_dir: Any = "in",
    homogeneous: bool = True,
    nodes: dict[str, NodeSchema],
    edges: dict[EdgeType, EdgeSchema],
) -> GraphSchema:
    return GraphSchema(edge_dir=edge_dir, homogeneous=homogeneous, nodes=nodes, edges=edges, num_partitions=1)


def _plan(schema: GraphSchema, seed_type: str, *, hops: int = 2, with_edge: bool = True) -> BatchPlan:
    return neighbor_plan(
        seed_type=seed_type,
        num_neighbors=dict.fromkeys(schema.edges, (2,) * hops),
        run_seed=0,
        with_edge=with_edge,
        node_columns={kind: tuple(nodes.columns) for kind, nodes in schema.nodes.items()},
        edge_columns={kind: tuple(edges.columns) for kind, edges in schema.edges.items()},
    )


def _homogeneous() -> tuple[Collator, Frame]:
    """Seeds 30, 10, 30; node 20 is a neighbour of 30, and 10 of 20."""
    schema = _schema(
        nodes={NODE: _node_schema(9, x=Column("F32", (2,)), half=Column(BF16, (2,)))},
        edges={EDGE: EdgeSchema(count=9, wide_indices=False, columns={"edge_attr": Column("F64")})},
    )
    frame = _frame(
        {
            "seeds": np.array([30, 10, 30]),
            "input_id": np.array([2, 0, 1]),
            "node/node/n_id": np.array([30, 10, 20]),
            "node/node/x": np.arange(6, dtype=np.float32).reshape(3, 2),
            "node/node/half": np.full((3, 2), 0x3F80, np.uint16),
            "edge/node+to+node/rows": np.array([2, 1], np.int32),
            "edge/node+to+node/colptr": np.array([0, 1, 1, 2]),
            "edge/node+to+node/e_id": np.array([7, 8]),
            "edge/node+to+node/edge_attr": np.array([0.5, 1.5]),
        },
        {
            "epoch": 0,
            "batch": 0,
            "seed_type": "node",
            "num_sampled_nodes": {"node": [2, 1, 0]},
            "num_sampled_edges": {"node+to+node": [1, 1]},
        },
        {"node/node/half": BF16},
    )
    return Collator(schema, _plan(schema, NODE).frame(schema)), frame


def _tensors(frame: Frame, kind: str) -> HostTensors | PackedTensors:
    return (
        HostTensors(frame, ReusedMemory())
        if kind == "host"
        else PackedTensors(frame, torch.from_numpy(frame.buffer).clone())
    )


@pytest.mark.parametrize("kind", ["host", "packed"])
def test_a_homogeneous_frame_becomes_data_with_every_attribute(kind: str) -> None:
    collate, frame = _homogeneous()
    batch = collate(_tensors(frame, kind))
    assert type(batch) is Data
    assert batch.edge_index.tolist() == [[2, 1], [0, 2]]
    assert batch.edge_index.dtype == torch.int64
    assert batch.n_id.tolist() == batch.node.tolist() == [30, 10, 20]
    assert batch.e_id.tolist() == batch.edge.tolist() == [7, 8]
    assert batch.x.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert batch.half.dtype == torch.bfloat16
    assert batch.half.tolist() == [[1, 1]] * 3
    assert batch.edge_attr.tolist() == [0.5, 1.5]
    assert batch.edge_attr.dtype == torch.float64
    assert batch.batch_size == 2
    assert batch.input_id.tolist() == [2, 0, 1]
    assert batch.batch.tolist() == [30, 10, 30]
    assert batch.seed_index.tolist() == [0, 1, 0]
    assert batch.seed_index.dtype == torch.int64
    assert batch.num_sampled_nodes == [2, 1, 0]
    assert batch.num_sampled_edges == [1, 1]
    assert batch.num_nodes == 3
    assert batch.num_edges == 2
    assert batch.validate()
    made = Data.from_dict(batch.to_dict())
    assert (str(batch), list(batch.to_dict())) == (str(made), list(made.to_dict()))


def test_tensors_of_the_host_alias_the_frame() -> None:
    collate, frame = _homogeneous()
    batch = collate(HostTensors(frame, ReusedMemory()))
    frame.array("node/node/x")[:] = 9
    assert batch.x.eq(9).all()
    assert batch.n_id.data_ptr() == batch.node.data_ptr()


def test_columns_that_are_not_gathered_are_not_in_the_batch() -> None:
    _, frame = _homogeneous()
    schema = _schema(
        nodes={NODE: _node_schema(9)}, edges={EDGE: EdgeSchema(count=9, wide_indices=False, columns={})}
    )
    collate = Collator(schema, _plan(schema, NODE, with_edge=False).frame(schema))
    batch = collate(HostTensors(frame, ReusedMemory()))
    assert "e_id" not in batch
    assert "x" not in batch


def test_a_graph_without_edge_types_has_an_empty_edge_index_and_hops_as_asked() -> None:
    schema = _schema(nodes={NODE: _node_schema(9)}, edges={})
    frame = _frame(
        {"seeds": np.array([3]), "input_id": np.array([0]), "node/node/n_id": np.array([3])},
        {"epoch": 0, "batch": 0, "num_sampled_nodes": {"node": [1]}, "num_sampled_edges": {}},
    )
    batch = Collator(schema, _plan(schema, NODE).frame(schema), num_hops=2)(
        HostTensors(frame, ReusedMemory())
    )
    assert batch.edge_index.shape == (2, 0)
    assert batch.edge_index.dtype == torch.int64
    assert batch.num_sampled_nodes == [1, 0, 0]
    assert batch.num_sampled_edges == [0, 0]


def _hetero(edge_dir: str) -> tuple[Collator, Frame]:
    """One seed, user 5, who bought item 70; no shop was met. Type names need quoting."""
    bought, sells = ("user", "has bought", "item"), ("shop", "sells", "item")
    schema = _schema(
        edge_dir=edge_dir,
        homogeneous=False,
        nodes={
            "user": _node_schema(9, y=Column("I64")),
            "item": _node_schema(9, x=Column("F16", (4,))),
            "shop": _node_schema(9, x=Column("F32", (3,))),
        },
        edges={
            bought: EdgeSchema(count=9, wide_indices=False, columns={}),
            sells: EdgeSchema(count=9, wide_indices=False, columns={"a/b": Column("I32", (2,))}),
        },
    )
    frame = _frame(
        {
            "seeds": np.array([5]),
            "input_id": np.array([0]),
            "node/user/n_id": np.array([5]),
            "node/user/y": np.array([1]),
            "node/item/n_id": np.array([70]),
            "node/item/x": np.ones((1, 4), np.float16),
            "node/shop/n_id": np.empty(0, np.int64),
            "node/shop/x": np.empty((0, 3), np.float32),
            "edge/user+has%20bought+item/rows": np.array([0], np.int32),
            "edge/user+has%20bought+item/colptr": np.array([0, 1]),
            "edge/user+has%20bought+item/e_id": np.array([4]),
            "edge/shop+sells+item/rows": np.empty(0, np.int32),
            "edge/shop+sells+item/colptr": np.array([0]),
            "edge/shop+sells+item/e_id": np.empty(0, np.int64),
            "edge/shop+sells+item/a%2Fb": np.empty((0, 2), np.int32),
        },
        {
            "epoch": 0,
            "batch": 0,
            "seed_type": "user",
            "num_sampled_nodes": {"user": [1, 0], "item": [0, 1], "shop": [0, 0]},
            "num_sampled_edges": {"user+has%20bought+item": [1], "shop+sells+item": [0]},
        },
    )
    return Collator(schema, _plan(schema, "user", hops=1).frame(schema)), frame


@pytest.mark.parametrize("kind", ["host", "packed"])
def test_a_heterogeneous_frame_becomes_hetero_data(kind: str) -> None:
    collate, frame = _hetero("in")
    batch = collate(_tensors(frame, kind))
    assert type(batch) is HeteroData
    assert set(batch.node_types) == {"user", "item", "shop"}
    assert set(batch.edge_types) == {("user", "has bought", "item"), ("shop", "sells", "item")}
    assert batch["user"].batch_size == 1
    assert batch["user"].batch.tolist() == [5]
    assert batch["user"].input_id.tolist() == [0]
    assert batch["user"].seed_index.tolist() == [0]
    assert "seed_index" not in batch["item"]
    assert "batch_size" not in batch["item"]
    assert batch["item"].n_id.tolist() == [70]
    assert batch["item"].x.dtype == torch.float16
    assert batch["shop"].x.shape == (0, 3)
    assert batch["shop"].x.dtype == torch.float32
    assert batch["shop"].num_nodes == 0
    assert batch["shop", "sells", "item"].edge_index.shape == (2, 0)
    assert batch["shop", "sells", "item"]["a/b"].shape == (0, 2)
    assert batch["user", "item"].edge_index.tolist() == [[0], [0]]
    assert batch["user", "item"].e_id.tolist() == [4]
    counts = {"user": [1, 0], "item": [0, 1], "shop": [0, 0]}
    assert batch.num_sampled_nodes == batch.num_sampled_nodes_dict == counts
    assert batch.num_sampled_edges == batch.num_sampled_edges_dict
    assert batch.num_sampled_edges[("user", "has bought", "item")] == [1]
    assert batch.validate()


def test_out_edges_come_under_the_reversed_type() -> None:
    collate, frame = _hetero("out")
    batch = collate(HostTensors(frame, ReusedMemory()))
    assert set(batch.edge_types) == {("item", "rev_has bought", "user"), ("item", "rev_sells", "shop")}
    assert set(batch.num_sampled_edges) == set(batch.edge_types)


def test_reversing_pairs_types_that_the_graph_has_in_both_directions() -> None:
    makes, made = ("a", "makes", "b"), ("b", "rev_makes", "a")
    alone, again = ("a", "cites", "a"), ("a", "rev_rev_makes", "b")
    assert reversed_edge_types([again, made, makes, alone]) == {
        makes: made,
        made: makes,
        alone: ("a", "rev_cites", "a"),
        again: ("b", "rev_rev_rev_makes", "a"),
    }


def test_reversing_never_makes_two_types_one() -> None:
    names = ["r", "rev_r", "rev_rev_r", "rev_rev_rev_r"]
    types = [(a, name, b) for name in names for a in "xy" for b in "xy"]
    assert len(set(reversed_edge_types(types).values())) == len(types)


@pytest.mark.parametrize("seeds", [[5], [5, 5], [9, 2, 9, 7, 2, 9], [-3, 2**62, -3], [3, 2, 1]])
def test_the_seed_index_finds_each_seed_among_the_distinct_ones(seeds: list[int]) -> None:
    distinct = torch.tensor(list(dict.fromkeys(seeds)))
    found = seed_index(torch.tensor(seeds), distinct)
    assert distinct[found].tolist() == seeds
    assert found.dtype == torch.int64


def test_an_edge_column_named_like_one_of_the_nodes_gets_a_prefix() -> None:
    schema = _schema(
        nodes={NODE: _node_schema(9, time=Column("I64"))},
        edges={EDGE: EdgeSchema(count=9, wide_indices=False, columns={"time": Column("F32")})},
    )
    frame = _frame(
        {
            "seeds": np.array([3]),
            "input_id": np.array([0]),
            "node/node/n_id": np.array([3, 4]),
            "node/node/time": np.array([30, 40]),
            "edge/node+to+node/rows": np.array([1], np.int32),
            "edge/node+to+node/colptr": np.array([0, 1]),
            "edge/node+to+node/time": np.array([0.5], np.float32),
        },
        {
            "epoch": 0,
            "batch": 0,
            "num_sampled_nodes": {"node": [1, 1]},
            "num_sampled_edges": {"node+to+node": [1]},
        },
    )
    plan = _plan(schema, NODE, hops=1, with_edge=False)
    batch = Collator(schema, plan.frame(schema))(HostTensors(frame, ReusedMemory()))
    assert batch.time.tolist() == [30, 40]
    assert batch.edge_time.tolist() == [0.5]
