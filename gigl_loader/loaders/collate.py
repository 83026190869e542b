"""Collation: a PyG batch from the tensors of a frame.

Tensors are put under their names, and not touched but for the edges of bidirectional batches. The names of a
run are worked out once, so that a batch costs some microseconds per array and the expansion of
``edge_index``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import WITH_TORCH_FRAME, torch_frame

from gigl_loader.sampling.khop import reversed_edge_types
from gigl_loader.sampling.request import SEED_TIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Set

    from torch import Tensor

    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.loaders.transfer import FrameTensors
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.frame_schema import FrameArray, FrameSchema, TypeArrays
    from gigl_loader.sampling.plan import BatchPlan, SamplerArguments

logger = logging.getLogger(__name__)


_FIRST_OF_DATA = ("x", "edge_index", "edge_attr", "y", "pos", "time")


class Collator:
    """Makes the batches of one run: ``Data`` for a homogeneous graph, else ``HeteroData``."""

    def __init__(self, schema: GraphSchema, frame: FrameSchema, *, num_hops: int | None = None) -> None:
        """``num_hops`` is needed where the plan has no edge type to tell it."""
        self._seed_type = frame.seed_type
        self._disjoint = frame.disjoint
        self._timed = SEED_TIME in {each.name for each in frame.inputs}
        self._homogeneous = schema.homogeneous
        self._num_hops = frame.num_hops if num_hops is None else num_hops
        message_types = _message_types(schema)
        # A batch of one node and one edge type has its attributes side by side.
        taken = (
            {name for nodes in schema.nodes.values() for name in nodes.columns}
            if schema.homogeneous
            else set()
        )
        self._nodes = [_NodeArrays.of(each, disjoint=frame.disjoint) for each in frame.nodes]
        self._edges = [_EdgeArrays.of(each, message_types, taken=taken) for each in frame.edges]
        merged = (each for each in frame.computed if each.edges)
        self._merged = {each.edges[0]: (each.edges[1], each.name) for each in merged}
        """Edge types in both directions: the reverse type, and the array that says which edges there are."""
        self._edges_by_hop = frame.edges_by_hop

    @classmethod
    def of(cls, schema: GraphSchema, plan: BatchPlan, asked: SamplerArguments) -> Collator:
        """Return the collator of a plan's batches. ``asked``: arguments of the user."""
        # The plan of a graph without edges has no hops, while the user may have passed some.
        fanouts = asked.num_neighbors
        num_hops = None if fanouts is None or isinstance(fanouts, Mapping) else len(fanouts)
        frame = plan.frame(schema)
        for edges in frame.edges:
            planned = plan.columns.edges.get(edges.kind, ()) if isinstance(edges.kind, tuple) else ()
            kept = {each.feature for each in edges.features}
            lost = [name for name in planned if name not in kept]
            if lost:
                logger.warning(
                    "batches lack the columns %s of %s: its reverse edge type has none such",
                    ", ".join(lost),
                    edges.kind,
                )
        return cls(schema, frame, num_hops=num_hops)

    def __call__(self, tensors: FrameTensors) -> Any:
        """Return the batch of one frame (``Data`` or ``HeteroData``)."""
        return self._data(tensors) if self._homogeneous else self._hetero_data(tensors)

    def _data(self, tensors: FrameTensors) -> Data:
        (nodes,) = self._nodes
        attributes = nodes.attributes(tensors)
        if self._edges:
            (edges,) = self._edges
            attributes |= self._edge_attributes(tensors)[edges.name]
            edges_per_hop = tensors.frame.num_sampled_edges[edges.name]
        else:
            attributes["edge_index"] = torch.empty(
                (2, 0), dtype=torch.int64, device=attributes["n_id"].device
            )
            edges_per_hop = []
        nodes_per_hop = tensors.frame.num_sampled_nodes[nodes.name]
        if self._seed_type is not None:
            attributes |= self._seed_attributes(tensors, self._seed_type, nodes_per_hop[0])
        attributes["num_sampled_nodes"] = _padded(nodes_per_hop, self._num_hops + 1)
        if self._edges_by_hop:
            attributes["num_sampled_edges"] = _padded(edges_per_hop, self._num_hops)
        data = Data()
        # In the order of ``Data(**attributes)``, which takes 10 us to set each.
        first = {name: attributes.pop(name) for name in _FIRST_OF_DATA if name in attributes}
        _fill(data.stores[0], first | attributes)
        return data

    def _hetero_data(self, tensors: FrameTensors) -> HeteroData:
        data = HeteroData()
        frame_nodes, frame_edges = tensors.frame.num_sampled_nodes, tensors.frame.num_sampled_edges
        nodes_per_hop = {n.node_type: _padded(frame_nodes[n.name], self._num_hops + 1) for n in self._nodes}
        edges_per_hop = {e.message_type: _padded(frame_edges[e.name], self._num_hops) for e in self._edges}
        # All node types come before any edge type: PyG takes an unknown name for a relation otherwise.
        for nodes in self._nodes:
            counts = nodes_per_hop[nodes.node_type]
            store = data.get_node_store(nodes.node_type)
            _fill(store, {**nodes.attributes(tensors), "num_sampled_nodes": counts})
        attributes = self._edge_attributes(tensors)
        for edges in self._edges:
            of_type = attributes[edges.name]
            if self._edges_by_hop:
                of_type["num_sampled_edges"] = edges_per_hop[edges.message_type]
            _fill(data.get_edge_store(*edges.message_type), of_type)
        if self._seed_type is not None:
            distinct = nodes_per_hop[self._seed_type][0]
            seed_attributes = self._seed_attributes(tensors, self._seed_type, distinct)
            _fill(data.get_node_store(self._seed_type), seed_attributes)
        data.num_sampled_nodes = nodes_per_hop
        if self._edges_by_hop:
            data.num_sampled_edges = edges_per_hop
        return data

    def _edge_attributes(self, tensors: FrameTensors) -> dict[str, dict[str, Any]]:
        """Return the attributes of each edge type, by its encoded name."""
        sampled = {each.name: each.attributes(tensors) for each in self._edges}
        merged = {
            name: _both_directions(sampled[name], sampled[reverse], tensors.tensor(places))
            for name, (reverse, places) in self._merged.items()
        }
        return {each.name: _with_frames((sampled | merged)[each.name], each.columns) for each in self._edges}

    def _seed_attributes(self, tensors: FrameTensors, seed_type: NodeType, distinct: int) -> dict[str, Any]:
        seeds, node_ids = tensors.tensor("seeds"), tensors.of_nodes(seed_type, "n_id")
        return {
            "batch_size": distinct,
            "input_id": tensors.tensor("input_id"),
            **({} if self._disjoint else {"batch": seeds}),
            "seed_index": seed_index(seeds, node_ids[:distinct]),
            **({SEED_TIME: tensors.tensor(SEED_TIME)} if self._timed else {}),
        }


def _fill(store: Any, attributes: Mapping[str, Any]) -> None:
    """Set attributes of a store of PyG that caches nothing yet. Its own ``update`` takes 1 us for each."""
    store._mapping.update(attributes)


def seed_index(seeds: Tensor, distinct: Tensor) -> Tensor:
    """Return the local node of each seed, int64 [B], on the device of its arguments.

    ``seeds``: int64 [B], node ids that may repeat. ``distinct``: int64 [D], the same ids, each once, in the
    order of their first occurrence, as the first nodes of a batch are.
    """
    # Sizes are known to the host, so neither way makes it wait for the device.
    if len(distinct) == len(seeds):
        return torch.arange(len(seeds), device=seeds.device)
    if seeds.device.type == "cpu":
        # Not torch's sort: its threads wait for each other on a busy machine, 34 ms instead of 0.1 ms.
        ids = distinct.numpy()
        places = np.argsort(ids)
        return torch.from_numpy(places[np.searchsorted(ids, seeds.numpy(), sorter=places)])
    ascending, order = distinct.sort()
    return order[torch.searchsorted(ascending, seeds)]


@dataclass(frozen=True, slots=True)
class _NodeArrays:
    """The names of one node type's arrays in a frame."""

    node_type: NodeType
    name: str
    """Encoded node type, as frames have it."""
    node_ids: str
    columns: Mapping[str, FrameArray]
    """By attribute."""
    trees: str | None
    """The numbers of their trees, where these are disjoint."""

    @classmethod
    def of(cls, nodes: TypeArrays, *, disjoint: bool) -> _NodeArrays:
        columns = {each.feature: each for each in nodes.features}
        trees = f"{nodes.prefix}/tree" if disjoint else None
        return cls(str(nodes.kind), nodes.name, f"{nodes.prefix}/n_id", columns, trees)

    def attributes(self, tensors: FrameTensors) -> dict[str, Any]:
        node_ids = tensors.tensor(self.node_ids)
        columns = {name: tensors.tensor(each.name) for name, each in self.columns.items()}
        attributes: dict[str, Any] = _with_frames(columns, self.columns)
        attributes.update(n_id=node_ids, node=node_ids, num_nodes=len(node_ids))
        if self.trees is not None:
            attributes["batch"] = tensors.tensor(self.trees).to(torch.int64)
        return attributes


@dataclass(frozen=True, slots=True)
class _EdgeArrays:
    """The names of one edge type's arrays in a frame."""

    edge_type: EdgeType
    """As in the graph and the frame."""
    message_type: EdgeType
    """As in the batch."""
    name: str
    edge_ids: str | None
    columns: Mapping[str, FrameArray]

    @classmethod
    def of(
        cls, edges: TypeArrays, message_types: Mapping[EdgeType, EdgeType], *, taken: Set[str]
    ) -> _EdgeArrays:
        """A column whose name is ``taken`` gets the prefix ``edge_``."""
        assert not isinstance(edges.kind, str)
        edge_ids = f"{edges.prefix}/e_id" if edges.with_ids else None
        columns = {
            f"edge_{each.feature}" if each.feature in taken else each.feature: each for each in edges.features
        }
        return cls(edges.kind, message_types[edges.kind], edges.name, edge_ids, columns)

    def attributes(self, tensors: FrameTensors) -> dict[str, Any]:
        attributes = {attribute: tensors.tensor(each.name) for attribute, each in self.columns.items()}
        attributes["edge_index"] = tensors.edge_index(self.edge_type)
        if self.edge_ids is not None:
            attributes["e_id"] = attributes["edge"] = tensors.tensor(self.edge_ids)
        return attributes


def _with_frames(attributes: dict[str, Any], columns: Mapping[str, FrameArray]) -> dict[str, Any]:
    """Return attributes with the TensorFrames that some of them are parts of.

    Without ``torch_frame``, and where nothing but the target of a frame is there, they stay as they are.
    """
    frames: dict[str, dict[str, tuple[Any, tuple[tuple[str, int], ...]]]] = {}
    for name, array in columns.items():
        if array.column.frame and WITH_TORCH_FRAME:
            frame, _, kind = name.rpartition(".")
            frames.setdefault(frame, {})[kind] = (attributes[name], array.column.frame)
    for frame, parts in frames.items():
        target, _ = parts.pop("y", (None, ()))
        features, names = {}, {}
        for kind, (values, of_columns) in parts.items():
            stype = torch_frame.stype(kind)
            names[stype] = [name for name, _ in of_columns]
            features[stype] = values
            if stype.use_multi_embedding_tensor:
                ends = [0, *accumulate(width for _, width in of_columns)]
                shape, offset = (len(values), len(of_columns)), torch.tensor(ends, device=values.device)
                features[stype] = torch_frame.data.MultiEmbeddingTensor(*shape, values, offset)
        if features:
            gone = {f"{frame}.{kind}" for kind in (*parts, "y")}
            attributes = {name: value for name, value in attributes.items() if name not in gone}
            attributes[frame] = torch_frame.TensorFrame(features, names, target)
    return attributes


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Types of the same size, for operations that torch has for signed integers alone."""


def _both_directions(own: dict[str, Any], reverse: dict[str, Any], places: Tensor) -> dict[str, Any]:
    """Return the attributes of some of a type's edges and of its reverse's, which are turned round.

    ``places``: int32 [E], in the edges of the type, followed by the edges of its reverse. The host knows all
    sizes, so it does not wait for the device.
    """
    merged = {
        name: _picked(value, reverse[name], places)
        for name, value in own.items()
        if name not in ("edge_index", "edge")
    }
    turned = reverse["edge_index"].flip(0)
    merged["edge_index"] = torch.cat((own["edge_index"], turned), dim=1).index_select(1, places)
    if "e_id" in merged:
        merged["edge"] = merged["e_id"]
    return merged


def _picked(first: Tensor, second: Tensor, places: Tensor) -> Tensor:
    """Return the rows at ``places`` of one tensor followed by another."""
    signed = _SIGNED.get(first.dtype)
    if signed is not None:
        return _picked(first.view(signed), second.view(signed), places).view(first.dtype)
    return torch.cat((first, second)).index_select(0, places)


def _message_types(schema: GraphSchema) -> Mapping[EdgeType, EdgeType]:
    if schema.edge_dir == "in" or schema.homogeneous:
        return {edge_type: edge_type for edge_type in schema.edges}
    return reversed_edge_types(schema.edges)


def _padded(counts: Iterable[int], length: int) -> list[int]:
    # A graph without any edge type has no hops of its own, while the user passed some.
    padded = list(counts)
    return padded + [0] * (length - len(padded))
