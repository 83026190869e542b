"""Input nodes: the forms in which a user may pass them, read as the seeds of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from gigl_loader.sampling.request import SEED, TIME

if TYPE_CHECKING:
    import numpy.typing as npt

    from gigl_loader.arrays import Array, Int64Array
    from gigl_loader.graph.schema import GraphSchema, NodeSchema
    from gigl_loader.options import EdgeType, NodeType


__all__ = ["LoaderInput", "NodeDirectory", "SeedNodes", "read_seed_nodes"]


class NodeDirectory(Protocol):
    """What can be asked of a dataset about its nodes."""

    @property
    def schema(self) -> GraphSchema: ...
    @property
    def num_servers(self) -> int:
        """Storage servers, by whose ranks an input may be given; 0 where there are none."""

    def all_positions(self, node_type: NodeType) -> Int64Array: ...
    def split_positions(self, node_type: NodeType, split: str) -> Int64Array: ...
    def positions(self, node_type: NodeType, node_ids: Int64Array) -> Int64Array: ...
    def node_ids(self, node_type: NodeType, positions: Int64Array) -> Int64Array: ...
    def node_ids_of(self, original_ids: Iterable[str], node_type: NodeType | None = None) -> torch.Tensor: ...


class LoaderInput(Protocol):
    """The input of a loader: what an epoch goes through. A frozen value."""

    @property
    def kind(self) -> NodeType | EdgeType:
        """Type of the entries."""

    @property
    def columns(self) -> Mapping[str, Array]:
        """The columns of a request, [N] each: those that the plan lists."""

    @property
    def places(self) -> Int64Array | None:
        """Where each entry stands in the user's input; ``None`` when that is its index here."""

    def described(self, directory: NodeDirectory) -> dict[str, Any]:
        """Return, as plain values, what tells this input from others. Equal for every partitioning."""

    def with_times(self, times: Int64Array) -> LoaderInput:
        """Return the input with a time for each entry, int64 [N]."""

    def without_ids(self) -> LoaderInput:
        """Return the input without what only ``described`` needs."""


@dataclass(frozen=True, slots=True)
class SeedNodes:
    """The seeds of an epoch, in input order. Not empty."""

    node_type: NodeType
    positions: Int64Array
    """One per seed, int64. A node may occur more than once."""
    places: Int64Array | None = None
    """Where each seed stands in the user's input; ``None`` when that is its index here."""
    ids: Int64Array | None = None
    """Node ids of the positions, where they are known; ``None`` where the dataset has to be asked."""
    times: Int64Array | None = None
    """Of the trees around the seeds, where they are drawn in times that came with the input."""

    def __post_init__(self) -> None:
        if not len(self.positions):
            raise ValueError(f"the input holds no seed of node type {self.node_type!r}")

    @property
    def kind(self) -> NodeType:
        return self.node_type

    @property
    def columns(self) -> dict[str, Array]:
        """The columns of a request, [N] each."""
        return {SEED: self.positions, **({} if self.times is None else {TIME: self.times})}

    def described(self, directory: NodeDirectory) -> dict[str, Any]:
        """Return, as plain values, what tells this input from others."""
        ids = directory.node_ids(self.node_type, self.positions) if self.ids is None else self.ids
        digest = hashlib.blake2b(np.ascontiguousarray(ids, dtype="<i8").data, digest_size=16)
        if self.places is not None:
            digest.update(np.ascontiguousarray(self.places, dtype="<i8").data)
        if self.times is not None:
            digest.update(np.ascontiguousarray(self.times, dtype="<i8").data)
        return {"number of seeds": len(self.positions), "digest of seeds": digest.hexdigest()}

    def with_times(self, times: Int64Array) -> SeedNodes:
        return replace(self, times=times)

    def without_ids(self) -> SeedNodes:
        return replace(self, ids=None)


def read_seed_nodes(directory: NodeDirectory, input_nodes: Any) -> SeedNodes:
    """Return the seeds that ``input_nodes`` stands for.

    A 1-D tensor (or array, or list) of node ids, or of the texts by which tables named the nodes; a boolean
    mask over the nodes ``0 .. N - 1``; the name of a split; ``None`` for all nodes; node ids by the rank of a
    storage server, which come in the order of the ranks; or a pair of a node type and one of these. Splits
    and all nodes come by ascending node id.
    ``ValueError`` and ``TypeError`` name the value and the rule it breaks.
    """
    node_type, nodes = _typed(directory.schema, input_nodes)
    if isinstance(nodes, Mapping):
        nodes = _joined(nodes, directory.num_servers)
    if nodes is None:
        return SeedNodes(node_type, directory.all_positions(node_type))
    if isinstance(nodes, str):
        return SeedNodes(node_type, directory.split_positions(node_type, nodes))
    array = _array(nodes)
    if array.dtype == np.bool_:
        ids = _selected(array, directory.schema.nodes[node_type])
        return SeedNodes(node_type, directory.positions(node_type, ids), places=ids, ids=ids)
    ids = _integers(directory.node_ids_of(array.tolist(), node_type).numpy() if _is_text(array) else array)
    return SeedNodes(node_type, directory.positions(node_type, ids), ids=ids)


def _typed(schema: GraphSchema, input_nodes: Any) -> tuple[NodeType, Any]:
    if not isinstance(input_nodes, tuple):
        return _only_type(schema, input_nodes), input_nodes
    if len(input_nodes) != 2 or not isinstance(input_nodes[0], str):
        raise TypeError(f"input_nodes as a tuple must be (node type, nodes), got {input_nodes!r}")
    node_type, nodes = input_nodes
    if node_type not in schema.nodes:
        raise ValueError(f"unknown node type {node_type!r}; known: {', '.join(schema.nodes)}")
    return node_type, nodes


def _only_type(schema: GraphSchema, nodes: Any) -> NodeType:
    """Return the node type of input that names none: the only one there is, or that has the split."""
    candidates = list(schema.nodes)
    if isinstance(nodes, str) and len(candidates) > 1:
        candidates = [name for name, node in schema.nodes.items() if nodes in node.splits]
        if not candidates:
            known = sorted({split for node in schema.nodes.values() for split in node.splits})
            hint = f"; for all nodes of the type, pass ({nodes!r}, None)" if nodes in schema.nodes else ""
            raise ValueError(f"unknown split {nodes!r}; known: {', '.join(known) or 'none'}{hint}")
    if len(candidates) == 1:
        return candidates[0]
    raise ValueError(
        f"input_nodes must name one of the node types {', '.join(candidates)}: pass (node type, nodes)"
    )


def _joined(by_server: Mapping[Any, Any], num_servers: int) -> Int64Array:
    """Return node ids given by server rank, in the order of the ranks. Some servers may have none."""
    num_servers = max(num_servers, 1)  # A dataset that is no graph store has all ids under 0.
    unknown = [rank for rank in by_server if type(rank) is not int or not 0 <= rank < num_servers]
    if unknown:
        raise ValueError(
            f"input_nodes has {unknown[0]!r} for the rank of a server; there are {num_servers}, from 0"
        )
    given = [by_server[rank] for rank in sorted(by_server)]
    arrays = [_integers(_array(nodes)) for nodes in given if not hasattr(nodes, "__len__") or len(nodes)]
    if not arrays:
        raise ValueError("input_nodes is empty: at least one seed is needed")
    return np.concatenate(arrays)


def _array(nodes: Any) -> npt.NDArray[Any]:
    if isinstance(nodes, torch.Tensor):
        nodes = nodes.detach().cpu()
        if nodes.dtype == torch.bfloat16:
            nodes = nodes.float()
        array: npt.NDArray[Any] = nodes.numpy()
    elif isinstance(nodes, (np.ndarray, list, range)):
        if isinstance(nodes, list) and len({isinstance(node, str) for node in nodes}) > 1:
            raise TypeError("input_nodes has texts and numbers: node ids are one or the other")
        array = np.asarray(nodes)
    else:
        raise TypeError(
            f"input_nodes must be a tensor of node ids, the name of a split or None, got {nodes!r}"
        )
    if array.ndim != 1:
        raise ValueError(f"input_nodes must be 1-D, got shape {array.shape}")
    if not len(array):
        raise ValueError("input_nodes is empty: at least one seed is needed")
    return array


def _is_text(array: npt.NDArray[Any]) -> bool:
    return array.dtype.kind == "U" or (array.dtype.kind == "O" and isinstance(array[0], str))


def _integers(array: npt.NDArray[Any]) -> Int64Array:
    if array.dtype.kind not in "iu":
        raise TypeError(f"node ids must be integers, got {array.dtype} ({array[0]!r}, ...)")
    if array.dtype == np.uint64 and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"node ids must fit 64 signed bits, got {array.max()}")
    return np.ascontiguousarray(array, dtype=np.int64)


def _selected(mask: npt.NDArray[np.bool_], nodes: NodeSchema) -> Int64Array:
    if nodes.ids == "sparse":
        raise ValueError(
            "a boolean mask needs node ids 0 .. N - 1, and the ids of this graph have gaps: pass ids"
        )
    if len(mask) != nodes.count:
        raise ValueError(f"a mask over {nodes.count} nodes is needed, got one of {len(mask)}")
    return np.flatnonzero(mask).astype(np.int64, copy=False)
