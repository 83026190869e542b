"""Input of a loader, in the forms in which users pass it: nodes, links, their times and weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import torch
from typing_extensions import Self

from gigl_loader.arrays import Int64Array, digest_of_integers, plain_values, tensor_of
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE
from gigl_loader.loaders.migration import links_of, nodes_of
from gigl_loader.options import is_edge_type, known_edge_type
from gigl_loader.sampling.plans.link import GIVEN
from gigl_loader.sampling.request import SEED, SEED_TYPE, TIME, TIME_START
from gigl_loader.sampling.schedule import WEIGHT, SeedDraw
from gigl_loader.shared import SharedTensors

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy.typing as npt

    from gigl_loader.arrays import Array, Values
    from gigl_loader.graph.schema import EdgeType, GraphSchema, NodeSchema, NodeType
    from gigl_loader.loaders.dataset import LinkDirectory, NodeDirectory
    from gigl_loader.loaders.placement import Placement


class LoaderInput(Protocol):
    """The input of a loader: the entries of an epoch. A frozen value."""

    @property
    def kind(self) -> NodeType | EdgeType | frozenset[NodeType]:
        """Type of the entries, or types, where they are nodes of several."""

    @property
    def what(self) -> str:
        """One entry of it, in messages."""

    @property
    def columns(self) -> Mapping[str, Array]:
        """The columns that the plan lists, [N] each, by name."""

    @property
    def places(self) -> Int64Array | None:
        """Where each entry stands in the user's input; ``None`` when that is its index here."""

    def described(self, directory: NodeDirectory) -> dict[str, Any]:
        """Return size and digest of the input as plain values. Equal for every partitioning."""

    def with_times(self, times: Mapping[str, Int64Array]) -> Self:
        """Return the input with columns of times, int64 [N] each, by name."""

    def without_ids(self) -> LoaderInput:
        """Return the input without what only ``described`` needs."""


def num_entries(given: LoaderInput) -> int:
    """Return the number of entries of an input."""
    return len(next(iter(given.columns.values())))


@dataclass(frozen=True, slots=True)
class SeedNodes:
    """The seeds of an epoch, in input order."""

    node_type: NodeType
    positions: Int64Array
    """One per seed, int64. A node may occur more than once."""
    places: Int64Array | None = None
    """Where each seed stands in the user's input; ``None`` when that is its index here."""
    ids: Int64Array | None = None
    """Node ids of the positions, where they are known; ``None`` where the dataset has to be asked."""
    times: Mapping[str, Int64Array] = field(default_factory=dict)
    """Columns of the trees around the seeds, where they are drawn in times that came with the input."""
    split: str | None = None
    """Name of the split that they are, in messages."""

    @property
    def kind(self) -> NodeType:
        return self.node_type

    @property
    def what(self) -> str:
        return f"seed of node type {self.node_type!r}{_in_split(self.split)}"

    @property
    def columns(self) -> dict[str, Array]:
        """The columns of a request, [N] each."""
        return {SEED: self.positions, **self.times}

    def described(self, directory: NodeDirectory) -> dict[str, Any]:
        """Return size and digest of the input as plain values."""
        ids = directory.node_ids(self.node_type, self.positions) if self.ids is None else self.ids
        arrays = (ids, self.places, *self.times.values())
        return {"number of seeds": len(ids), "digest of seeds": digest_of_integers(*arrays)}

    def with_times(self, times: Mapping[str, Int64Array]) -> Self:
        return replace(self, times=times)

    def without_ids(self) -> SeedNodes:
        return replace(self, ids=None)


def _in_split(split: str | None) -> str:
    return "" if split is None else f" in split {split!r}"


def read_seed_nodes(
    directory: NodeDirectory, input_nodes: Any, *, node_type: NodeType | None = None
) -> SeedNodes:
    """Return the seeds that ``input_nodes`` stands for.

    A 1-D tensor (or array, list, or column of pandas, Polars or Arrow) of node ids, or of the texts by which
    tables named the nodes; a boolean
    mask over the nodes ``0 .. N - 1``; the name of a split; ``None`` for all nodes; node ids by the rank of a
    storage server, which come in the order of the ranks; a pair of a node type and one of these; or a node
    type alone for all of its nodes. Splits and all nodes come by ascending node id. ``node_type`` is that of
    an input that names none. A mapping of one node type to nodes is the pair of both.
    ``ValueError`` and ``TypeError`` name the value and the rule it breaks.
    """
    by_type = nodes_by_type(input_nodes)
    if by_type is not None:
        if len(by_type) > 1:
            raise ValueError(
                f"these seeds are of one node type, and input_nodes has {', '.join(map(repr, by_type))}: "
                "pass (node type, nodes)"
            )
        [input_nodes] = by_type.items()
    node_type, nodes = _typed_nodes(directory.schema, input_nodes, node_type)
    if isinstance(nodes, Mapping):
        nodes = _joined(nodes, directory.num_servers)
    if nodes is None:
        return SeedNodes(node_type, directory.all_positions(node_type))
    if isinstance(nodes, str):
        return SeedNodes(node_type, directory.split_positions(node_type, nodes), split=nodes)
    array = _array(nodes)
    if array.dtype == np.bool_:
        ids = _selected(array, directory.schema.nodes[node_type])
        return SeedNodes(node_type, directory.positions(node_type, ids), places=ids, ids=ids)
    ids = _integers(directory.node_ids_of(array.tolist(), node_type).numpy() if _is_text(array) else array)
    return SeedNodes(node_type, directory.positions(node_type, ids), ids=ids)


def nodes_by_type(input_nodes: Any) -> dict[NodeType, Any] | None:
    """Return an input that maps node types to nodes; ``None`` for one of another form, also by server rank.

    ``TypeError`` for a mapping of both.
    """
    if not isinstance(input_nodes, Mapping) or not any(isinstance(key, str) for key in input_nodes):
        return None
    if not all(isinstance(key, str) for key in input_nodes):
        raise TypeError(
            "input_nodes maps node types to nodes, or ranks of servers to node ids, not both: "
            f"{[*input_nodes]}"
        )
    return dict(input_nodes)


def _typed_nodes(schema: GraphSchema, input_nodes: Any, default: NodeType | None) -> tuple[NodeType, Any]:
    with_split = {split: kind for kind, nodes in schema.nodes.items() for split in nodes.splits}
    input_nodes = _without_no_type(nodes_of(input_nodes))
    if isinstance(input_nodes, str) and input_nodes in schema.nodes:
        if input_nodes in with_split:
            raise ValueError(
                f"input_nodes {input_nodes!r} is a node type and a split: pass ({input_nodes!r}, None) for "
                f"the type's nodes, or ({with_split[input_nodes]!r}, {input_nodes!r}) for the split"
            )
        return input_nodes, None
    if not isinstance(input_nodes, tuple) or _are_integers(input_nodes):
        _check_no_path("input_nodes", input_nodes, with_split)
        return default or _only_type(schema, input_nodes), input_nodes
    if len(input_nodes) != 2 or not isinstance(input_nodes[0], str):
        raise TypeError(f"input_nodes as a tuple must be (node type, nodes), got {input_nodes!r}")
    node_type, nodes = input_nodes
    if node_type not in schema.nodes:
        raise ValueError(f"unknown node type {node_type!r}; known: {', '.join(schema.nodes)}")
    _check_no_path("input_nodes", nodes, with_split)
    return node_type, nodes


def _are_integers(values: tuple[Any, ...]) -> bool:
    return len(values) > 0 and all(isinstance(each, Integral) for each in values)


def _without_no_type(value: Any) -> Any:
    """Return the input of ``(None, input)``, which says in PyG's distributed loaders that it has no type."""
    return value[1] if isinstance(value, tuple) and len(value) == 2 and value[0] is None else value


def _check_no_path(name: str, value: Any, splits: Collection[str]) -> None:
    """Raise ``ValueError`` where the path of a file was passed in place of what it holds."""
    is_text = isinstance(value, str) and value not in splits
    if isinstance(value, os.PathLike) or (is_text and (os.sep in value or os.path.splitext(value)[1])):
        path = str(value)
        raise ValueError(
            f"{name} is the path of a file, {path!r}: read it and pass what it holds, such as "
            f"torch.load({path!r}) or torch.from_numpy(numpy.load({path!r}))"
        )


def _only_type(schema: GraphSchema, nodes: Any) -> NodeType:
    """Return the node type of input that names none: the only one there is, or that has the split."""
    candidates = list(schema.nodes)
    if isinstance(nodes, str) and len(candidates) > 1:
        candidates = [name for name, node in schema.nodes.items() if nodes in node.splits]
        if not candidates:
            known = sorted({split for node in schema.nodes.values() for split in node.splits})
            raise ValueError(
                f"unknown split {nodes!r}; known: {', '.join(known) or 'none'}; node types: "
                f"{', '.join(schema.nodes)}"
            )
    if len(candidates) == 1:
        return candidates[0]
    raise ValueError(
        f"input_nodes must name one of the node types {', '.join(candidates)}: pass (node type, nodes)"
    )


def _joined(by_server: Mapping[Any, Any], num_servers: int) -> Int64Array:
    """Return node ids, or anchors, given by server rank, in the order of the ranks. Servers may have none."""
    num_servers = max(num_servers, 1)  # A dataset that is no graph store has all ids under 0.
    unknown = [rank for rank in by_server if type(rank) is not int or not 0 <= rank < num_servers]
    if unknown:
        raise ValueError(
            f"input_nodes has {unknown[0]!r} for the rank of a server; there are {num_servers}, from 0"
        )
    given = [getattr(by_server[rank], "anchors", by_server[rank]) for rank in sorted(by_server)]
    return np.concatenate([np.empty(0, np.int64), *(_integers(_array(nodes)) for nodes in given)])


def _array(nodes: Any) -> npt.NDArray[Any]:
    nodes = plain_values("input_nodes", nodes)
    if isinstance(nodes, torch.Tensor):
        nodes = nodes.detach().cpu()
        if nodes.dtype == torch.bfloat16:
            nodes = nodes.float()
        array: npt.NDArray[Any] = nodes.numpy()
    elif isinstance(nodes, (np.ndarray, list, range, tuple)):
        if isinstance(nodes, list) and len({isinstance(node, str) for node in nodes}) > 1:
            raise TypeError("input_nodes has texts and numbers: node ids are one or the other")
        array = np.asarray(nodes)
    else:
        raise TypeError(
            f"input_nodes must be a tensor of node ids, the name of a split or None, got {nodes!r}"
        )
    if array.ndim != 1:
        raise ValueError(f"input_nodes must be 1-D, got shape {array.shape}")
    # Of nothing, torch and NumPy make floats.
    return array if len(array) else np.empty(0, np.int64)


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


InputLinks: TypeAlias = (
    "Values | EdgeType | tuple[str, str] | tuple[EdgeType, Values | None] | tuple[Values, Values] | None"
)


@dataclass(frozen=True, slots=True)
class SeedLinks:
    """The links of an epoch, in input order."""

    edge_type: EdgeType
    src: Int64Array
    """Positions of the sources, int64 [M]. A link may occur more than once."""
    dst: Int64Array
    ids: Int64Array | None = None
    """Node ids of sources and destinations, int64 [2, M], where they are known."""
    places: Int64Array | None = None
    """Always ``None``: links stand in the user's input as they do here."""
    times: Mapping[str, Int64Array] = field(default_factory=dict)
    """Columns of the trees around the links, where they are drawn in time."""
    split: str | None = None
    """Name of the split that they are, in messages."""
    negatives: Int64Array | None = None
    """Positions of the destinations of negatives, int64 [M, K], -1 for none, where they are given."""
    negative_ids: Int64Array | None = None
    """The same as node ids, where they are known."""

    @property
    def kind(self) -> EdgeType:
        return self.edge_type

    @property
    def what(self) -> str:
        return f"link of type {self.edge_type}{_in_split(self.split)}"

    @property
    def columns(self) -> dict[str, Array]:
        """The columns of a request, [M] each."""
        negatives = {} if self.negatives is None else {GIVEN: self.negatives}
        return {"src": self.src, "dst": self.dst, **self.times, **negatives}

    def described(self, directory: NodeDirectory) -> dict[str, Any]:
        """Return size and digest of the input as plain values."""
        src, dst = (
            self.ids
            if self.ids is not None
            else (
                directory.node_ids(self.edge_type[0], self.src),
                directory.node_ids(self.edge_type[2], self.dst),
            )
        )
        digest = digest_of_integers(src, dst, *self.times.values(), self.negative_ids)
        return {"number of links": len(src), "digest of links": digest}

    def with_times(self, times: Mapping[str, Int64Array]) -> Self:
        return replace(self, times=times)

    def without_ids(self) -> SeedLinks:
        return replace(self, ids=None, negative_ids=None)


def read_seed_links(directory: LinkDirectory, edge_label_index: Any) -> SeedLinks:
    """Return the links that ``edge_label_index`` stands for.

    Node ids or texts, [2, M]; the name of a split of edges; ``None`` for all edges of the only edge type; an
    edge type, or its two ends, for all of its edges; or a pair of an edge type (for links, of any type
    between two node types) and one of these. Edges come by ascending edge id. ``ValueError`` and
    ``TypeError`` name the value and the rule it breaks.
    """
    edge_type, links = _typed_links(directory.schema, edge_label_index)
    edges = directory.schema.edges.get(edge_type)
    _check_no_path("edge_label_index", links, edges.splits.fractions if edges and edges.splits else ())
    if links is None or isinstance(links, str):
        known_edge_type(directory.schema.edges, edge_type, "edge_label_index")
        return SeedLinks(edge_type, *directory.all_edges(edge_type, links), split=links)
    ends = (edge_type[0], edge_type[2])
    ids = _pairs(_without_texts(directory, ends, _plain_rows(links)))
    src = _located(directory, ends[0], ids[0], "sources")
    return SeedLinks(edge_type, src, _located(directory, ends[1], ids[1], "destinations"), ids=ids)


def _plain_rows(links: Any) -> Any:
    """Return links, or their two rows, in plain form. ``TypeError`` for a table, whose rows are links."""
    if hasattr(links, "columns"):
        raise TypeError(
            "edge_label_index is a table: pass the columns of its ends, (table['src'], table['dst'])"
        )
    links = plain_values("edge_label_index", links)
    if isinstance(links, (list, tuple)):
        return [plain_values("edge_label_index", row) for row in links]
    return links


def _without_texts(directory: NodeDirectory, ends: tuple[NodeType, NodeType], links: Any) -> Any:
    """Return links as node ids, where they are texts, by which tables named the nodes."""
    if not isinstance(links, (list, tuple, np.ndarray)) or len(links) != 2 or not all(map(_is_texts, links)):
        return links
    rows = zip(ends, links, strict=True)
    return tuple(directory.node_ids_of(list(map(str, texts)), node_type) for node_type, texts in rows)


def _is_texts(row: Any) -> bool:
    return isinstance(row, (list, tuple, np.ndarray)) and len(row) > 0 and isinstance(row[0], str)


def _located(directory: NodeDirectory, node_type: str, ids: Int64Array, name: str) -> Int64Array:
    try:
        return directory.positions(node_type, ids)
    except ValueError as error:
        raise ValueError(f"edge_label_index, {name} of links: {error}") from None


def _typed_links(schema: GraphSchema, value: Any) -> tuple[EdgeType, Any]:
    value = _without_no_type(links_of(value))
    if is_edge_type(value):
        return known_edge_type(schema.edges, value, "edge_label_index"), None
    if isinstance(value, tuple) and len(value) == 2 and is_edge_type(value[0]):
        return link_type(schema, value[0], "edge_label_index"), value[1]
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        raise TypeError(f"edge_label_index as a tuple must be (edge type, links), got {value[0]!r} as type")
    known = [HOMOGENEOUS_EDGE] if schema.homogeneous else list(schema.edges)
    if len(known) == 1:
        return known[0], value
    listed = ", ".join(map(str, known)) or "none"
    raise ValueError(f"edge_label_index must name one of the edge types {listed}: pass (edge type, links)")


def link_type(schema: GraphSchema, value: Any, what: str) -> EdgeType:
    """Return the type of links that a user named: any between node types, an edge type of the graph or not.

    Node types that no edge type joins have links ``"to"``, as in PyG. An edge type turned round is refused.
    """
    if is_edge_type(value) and len(value) == 2 and not {value, value[::-1]} & {e[::2] for e in schema.edges}:
        value = (value[0], "to", value[1])
    joins_nodes = is_edge_type(value) and len(value) == 3 and {value[0], value[2]} <= schema.nodes.keys()
    is_new = joins_nodes and value[::-1] not in schema.edges
    return known_edge_type({*schema.edges, value} if is_new else schema.edges, value, what)


def _pairs(links: Any) -> Int64Array:
    if isinstance(links, np.ndarray) or (isinstance(links, (list, tuple)) and len(links) == 2):
        links = tensor_of("edge_label_index", links)
    if not isinstance(links, torch.Tensor):
        raise TypeError(
            "edge_label_index must be a tensor of node ids [2, M], an edge type, a pair of both, or None, "
            f"got {links!r:.200}"
        )
    if links.numel() and (links.is_floating_point() or links.is_complex() or links.dtype == torch.bool):
        raise TypeError(f"edge_label_index must hold integer node ids, got {links.dtype}")
    if links.ndim != 2 or links.shape[0] != 2:
        hint = ": transpose it" if links.ndim == 2 and links.shape[1] == 2 else ""
        raise ValueError(f"edge_label_index must be [2, M], got {list(links.shape)}{hint}")
    return np.ascontiguousarray(links.detach().cpu().to(torch.int64).numpy())


def read_seed_weights(
    value: Any, seeds: LoaderInput, schema: GraphSchema, *, shuffle: bool
) -> SharedTensors | None:
    """Return shared tensors whose ``weight`` holds one float32 or float64 for each entry of the input.

    ``None`` for ``None``. Weights alone are copied, and stay as they are. ``TypeError`` and
    ``ValueError`` name the rule that is broken.
    """
    if value is None or not num_entries(seeds):
        return None
    if SEED not in seeds.columns:
        raise ValueError("seed_weights draws input nodes, and the input of this loader is links")
    if SEED_TYPE in seeds.columns:
        raise ValueError(
            "seed_weights draws input nodes of one type, and the input of this loader has several: build a "
            "loader for each"
        )
    if shuffle:
        raise ValueError("shuffle=True has no meaning beside seed_weights: seeds are drawn anew each time")
    weights = plain_values("seed_weights", value)
    if isinstance(weights, (torch.Tensor, np.ndarray, list, tuple)):
        value = SharedTensors.create({WEIGHT: tensor_of("seed_weights", weights)})
    if not isinstance(value, SharedTensors):
        raise TypeError(
            "seed_weights must be a tensor, or SharedTensors.create({'weight': ...}) for weights that "
            f"change while batches are made, got a {type(value).__name__}"
        )
    if WEIGHT not in value:
        raise ValueError(
            f"seed_weights needs a tensor named '{WEIGHT}'; it has: {', '.join(value) or 'none'}"
        )
    weight = value[WEIGHT]
    if weight.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"seed weights must be float32 or float64, got {weight.dtype}")
    # Seeds have places only where the input was a mask over all nodes.
    count = len(seeds.columns[SEED]) if seeds.places is None else schema.nodes[str(seeds.kind)].count
    if weight.shape != (count,):
        raise ValueError(
            f"seed_weights needs one weight for each entry of the input, shape ({count},), "
            f"got {tuple(weight.shape)}"
        )
    return value


def seed_draw(
    weights: SharedTensors | None, seeds: LoaderInput, placement: Placement, run_seed: int
) -> SeedDraw | None:
    """Return how seeds are drawn; ``None`` without weights."""
    if weights is None:
        return None
    return SeedDraw.of(
        weights,
        seeds.columns[SEED],
        places=seeds.places,
        times={name: seeds.columns[name] for name in (TIME, TIME_START) if name in seeds.columns},
        run_seed=run_seed,
        rank=placement.topology.rank,
        world_size=placement.shard.world_size,
        # Half: so that the batch fails with the name of the lock's holder before the loader gives up.
        timeout_s=placement.options.timeout_s / 2,
    )
