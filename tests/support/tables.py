"""Random graphs for tests, and what a builder must make of them, in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from gigl_loader.arrays import Array
from gigl_loader.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType, Graph, NodeType
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable


@dataclass
class PlainEdges:
    """Edges of one type as a list of rows."""

    rows: list[tuple[int, int, int]]
    """(source id, destination id, edge id)"""
    given_ids: bool
    columns: dict[str, Array] = field(default_factory=dict)
    weight: bool = False
    time: bool = False


@dataclass
class PlainGraph:
    """A graph as Python values: the input of a build, and what its result is compared with."""

    nodes: dict[NodeType, list[int]]
    """Node ids in the order of the table."""
    columns: dict[NodeType, dict[str, Array]]
    splits: dict[NodeType, dict[str, list[int]]]
    edges: dict[EdgeType, PlainEdges]
    implied: set[NodeType] = field(default_factory=set)
    """Types without a table."""

    def tables(self) -> GraphTables:
        return GraphTables(
            edges={edge_type: _edge_table(edge_type, edges) for edge_type, edges in self.edges.items()},
            nodes={
                node_type: self._node_table(node_type)
                for node_type in self.nodes
                if node_type not in self.implied
            },
        )

    def _node_table(self, node_type: NodeType) -> NodeTable:
        ids = self.nodes[node_type]
        columns = dict(self.columns[node_type])
        if ids != list(range(len(ids))) or not columns:
            columns["id"] = np.array(ids, dtype=np.int64)
        return NodeTable(
            ArrayTable(f"nodes of {node_type}", columns),
            splits={
                name: ArrayTable(f"split {name}", {"id": np.array(members, dtype=np.int64)})
                for name, members in self.splits[node_type].items()
            },
        )


def _edge_table(edge_type: EdgeType, edges: PlainEdges) -> ArrayTable:
    ends = np.array(edges.rows, dtype=np.int64).reshape(-1, 3)
    arrays: dict[str, Array] = {"src": ends[:, 0], "dst": ends[:, 1], **edges.columns}
    if edges.given_ids:
        arrays["id"] = ends[:, 2]
    if edges.weight:
        arrays["weight"] = weight_of(ends[:, 2])
    if edges.time:
        arrays["time"] = ends[:, 2] * 7 - 3
    return ArrayTable(f"edges {edge_type}", arrays)


def weight_of(edge_ids: Array) -> Array:
    """The column ``weight`` that tests give to edges."""
    return ((edge_ids % 5) / 4).astype(np.float32)


def check_built(graph: Graph, plain: PlainGraph) -> None:
    """Assert that a graph holds exactly what ``plain`` says, in canonical order."""
    graph.verify()
    for node_type, ids in plain.nodes.items():
        _check_nodes(graph, plain, node_type, ids)
    for edge_type, edges in plain.edges.items():
        _check_edges(graph, edge_type, edges)


def _check_nodes(graph: Graph, plain: PlainGraph, node_type: NodeType, ids: list[int]) -> None:
    nodes = graph.schema.nodes[node_type]
    assert nodes.count == len(ids)
    stored = graph.node_ids(node_type)
    by_position = list(range(len(ids))) if stored is None else stored.tolist()
    assert sorted(by_position) == sorted(ids)
    positions = graph.positions(node_type, np.array(ids, dtype=np.int64))
    assert [by_position[position] for position in positions] == ids
    for low, high in zip(nodes.bounds[:-1], nodes.bounds[1:], strict=True):
        assert by_position[low:high] == sorted(by_position[low:high])
    assert [by_position[position] for position in graph.all_positions(node_type)] == sorted(ids)
    for name, rows in plain.columns[node_type].items():
        parts = [graph.node_column(node_type, name, part) for part in range(graph.schema.num_partitions)]
        np.testing.assert_array_equal(np.concatenate(parts)[positions], rows)
        assert parts[0].dtype == rows.dtype
    for name, members in plain.splits[node_type].items():
        found = [by_position[position] for position in graph.split(node_type, name)]
        assert found == sorted(set(members))


def _check_edges(graph: Graph, edge_type: EdgeType, edges: PlainEdges) -> None:
    schema = graph.schema
    ids = [
        _ids_by_position(graph, node_type)
        for node_type in (schema.target_type(edge_type), schema.neighbor_type(edge_type))
    ]
    swap = schema.edge_dir == "out"
    lists: dict[int, list[tuple[int, int, int]]] = {}
    for row, (src, dst, edge_id) in enumerate(edges.rows):
        target, neighbor = (src, dst) if swap else (dst, src)
        lists.setdefault(target, []).append((neighbor, edge_id if edges.given_ids else row, row))
    bounds = schema.nodes[schema.target_type(edge_type)].bounds
    for part in range(schema.num_partitions):
        arrays = graph.topology(edge_type, part)
        columns = {name: graph.edge_column(edge_type, name, part) for name in edges.columns}
        for local, position in enumerate(range(bounds[part], bounds[part + 1])):
            span = slice(arrays["indptr"][local], arrays["indptr"][local + 1])
            expected = sorted(lists.pop(ids[0][position], []))
            assert [ids[1][neighbor] for neighbor in arrays["indices"][span]] == [
                edge[0] for edge in expected
            ]
            assert arrays["edge_ids"][span].tolist() == [edge[1] for edge in expected]
            for name, rows in edges.columns.items():
                np.testing.assert_array_equal(columns[name][span], rows[[edge[2] for edge in expected]])
            given = np.array([edges.rows[edge[2]][2] for edge in expected], dtype=np.int64)
            if edges.weight:
                weights = graph.edge_column(edge_type, "weight", part)
                np.testing.assert_array_equal(weights[span], weight_of(given))
            if edges.time:
                times = graph.edge_column(edge_type, "time", part)
                np.testing.assert_array_equal(times[span], given * 7 - 3)
    assert not lists


def _ids_by_position(graph: Graph, node_type: NodeType) -> list[int]:
    stored = graph.node_ids(node_type)
    return list(range(graph.schema.nodes[node_type].count)) if stored is None else stored.tolist()


def files_of(folder: Path) -> Mapping[str, bytes]:
    """Return name and bytes of every file below a directory."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


_DTYPES = (np.float16, np.float32, np.float64, np.int8, np.uint8, np.int16, np.int32, np.int64, np.bool_)


def _columns(draw: Callable[..., Any], rows: int) -> dict[str, Array]:
    columns = {}
    for name in draw(st.lists(st.sampled_from(["x", "y", "attr", "a b/c"]), max_size=2, unique=True)):
        shape = draw(st.sampled_from([(), (1,), (3,), (2, 2), (0,)]))
        size = rows * int(np.prod(shape))
        values = np.random.default_rng(draw(st.integers(0, 9))).integers(0, 100, size).reshape(rows, *shape)
        columns[name] = values.astype(draw(st.sampled_from(_DTYPES)))
    return columns


def _node_ids(draw: Callable[..., Any]) -> list[int]:
    count = draw(st.integers(0, 12))
    if draw(st.booleans()):
        ids = list(range(count))
    else:
        ids = draw(
            st.lists(
                st.one_of(st.integers(-5, 30), st.integers(-(2**63), 2**63 - 1)),
                min_size=count,
                max_size=count,
                unique=True,
            )
        )
    return draw(st.permutations(ids)) if draw(st.booleans()) else ids


@st.composite
def plain_graphs(draw: Callable[..., Any]) -> PlainGraph:
    """Small graphs: homogeneous or not, any ids, multi-edges, self loops, empty and implied types."""
    homogeneous = draw(st.booleans())
    names = (
        [HOMOGENEOUS_NODE] if homogeneous else draw(st.sampled_from([["a"], ["a", "b"], ["a", "b/+", "ç"]]))
    )
    nodes = {name: _node_ids(draw) for name in names}
    columns = {name: _columns(draw, len(ids)) for name, ids in nodes.items()}
    splits = {name: _splits(draw, ids) for name, ids in nodes.items()}
    kinds = [HOMOGENEOUS_EDGE] if homogeneous else [(s, r, d) for s in names for r in "pq" for d in names]
    chosen = kinds if homogeneous else draw(st.lists(st.sampled_from(kinds), max_size=3, unique=True))
    edges = {kind: _edges(draw, nodes[kind[0]], nodes[kind[2]]) for kind in chosen}
    plain = PlainGraph(nodes, columns, splits, edges)
    if draw(st.booleans()):
        _imply(plain)
    return plain


def _splits(draw: Callable[..., Any], ids: list[int]) -> dict[str, list[int]]:
    if not ids or not draw(st.booleans()):
        return {}
    return {name: draw(st.lists(st.sampled_from(ids), max_size=6)) for name in ("train", "test")}


def _edges(draw: Callable[..., Any], sources: list[int], destinations: list[int]) -> PlainEdges:
    rows = []
    if sources and destinations:
        pair = st.tuples(st.sampled_from(sources), st.sampled_from(destinations))
        pairs = draw(st.lists(pair, max_size=30))
        first = draw(st.sampled_from([0, -7, 2**40]))
        ids = draw(st.permutations(range(first, first + len(pairs))))
        rows = [(src, dst, ids[row]) for row, (src, dst) in enumerate(pairs)]
    return PlainEdges(
        rows,
        draw(st.booleans()),
        _columns(draw, len(rows)),
        weight=draw(st.booleans()),
        time=draw(st.booleans()),
    )


def _imply(plain: PlainGraph) -> None:
    """Drop the node tables of types whose nodes are all mentioned by edges anyway."""
    for node_type in plain.nodes:
        mentioned = {
            row[column]
            for edge_type, edges in plain.edges.items()
            for column, end in ((0, edge_type[0]), (1, edge_type[2]))
            for row in edges.rows
            if end == node_type
        }
        if any(node_type in (edge_type[0], edge_type[2]) for edge_type in plain.edges):
            plain.nodes[node_type] = sorted(mentioned)
            plain.columns[node_type], plain.splits[node_type] = {}, {}
            plain.implied.add(node_type)
