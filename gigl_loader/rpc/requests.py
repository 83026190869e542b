"""Requests to the data port, as bytes: safetensors documents, checked before use.

Metadata names the operation and its arguments. One array holds positions relative to the start of the
partition, as int32 where they fit. ``docs/internals/wire.md`` specifies the format.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gigl_loader.arrays import Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.native import draws
from gigl_loader.rpc import graph_requests
from gigl_loader.rpc.graph_requests import Inquiry, narrowed, request_document
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.request_reader import (
    MAX_HEADER_BYTES,
    RequestReader,
    are_names,
    known_name,
)
from gigl_loader.sampling.store import (
    MAX_TREES,
    POSITION_MASK,
    TREE_SHIFT,
    DrawRule,
    EdgeRequest,
    FeatureRequest,
    InducedRequest,
    NeighborRequest,
)
from gigl_loader.tensors import Layout

if TYPE_CHECKING:
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType, NodeType

MAX_REQUEST_BYTES = 64 << 20
"""A larger request is refused. This one holds 16 million positions; callers split larger ones."""

MAX_LISTED_EDGES = 1 << 20
"""Edges of one list: 24 MiB at most. Callers split larger ones."""

MAX_INDUCED_NODES = 4 << 20
"""Nodes of the set of one request for induced edges: 32 MiB at most. A set cannot be cut."""

_UINT64 = 2**64
_HOPS = 254  # The address of a draw has 8 bits for the hop, and two values with another meaning.


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRequest:
    """Request for the positions of a split in one partition."""

    node_type: NodeType
    split: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeListRequest:
    """Request for edges of one partition: ``count`` from index ``first`` in adjacency order."""

    edge_type: EdgeType
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Request for an empty reply."""


PartitionRequest: TypeAlias = (
    NeighborRequest | InducedRequest | EdgeRequest | EdgeListRequest | FeatureRequest | SplitRequest
)
"""Request of a store to one partition."""

Request: TypeAlias = PartitionRequest | Ping
"""Request about one partition. An ``Inquiry`` is about the whole graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Graph and partition of a request."""

    graph: str
    """Digest."""
    partition: int
    wire: int = 0
    """Version agreed upon with the service. 0: the newest of this build."""


def encode(envelope: Envelope, request: PartitionRequest, schema: GraphSchema) -> bytes:
    """Return a request as bytes. ``ValueError`` for an unknown type; the service checks the rest."""
    part = envelope.partition
    if isinstance(request, NeighborRequest):
        known_name(request.edge_type, schema.lists, "edge type")
        first = 0 if request.outward else schema.nodes[schema.target_type(request.edge_type)].bounds[part]
        arguments = {
            "edge_type": _as_json(request.edge_type),
            "key": str(request.key),
            "hop": str(request.hop),
            "fanout": str(request.rule.fanout),
            "draws": str(draws.DRAW_SPECIFICATION),
            "flags": _as_json(_flags(request)),
            **({} if request.rule.weight is None else {"weight": request.rule.weight}),
            **({} if request.rule.time is None else {"time": request.rule.time}),
            **_dependency(request),
        }
        targets = narrowed((request.targets & POSITION_MASK) - first)
        trees = {"trees": narrowed(request.targets >> TREE_SHIFT)} if request.disjoint else {}
        of_time = {name: getattr(request, name) for name in ("tree_times", "tree_starts", "bounds")}
        trees |= {name: times for name, times in of_time.items() if times is not None}
        return _document(envelope, "neighbors", arguments, targets, **trees)
    if isinstance(request, FeatureRequest):
        if isinstance(request.kind, str):
            known_name(request.kind, schema.nodes, "node type")
        first = schema.nodes[request.kind].bounds[part] if isinstance(request.kind, str) else 0
        arguments = {"kind": _as_json(request.kind), "columns": _as_json(tuple(request.columns))}
        return _document(envelope, "rows", arguments, narrowed(request.rows - first))
    if isinstance(request, InducedRequest):
        known_name(request.edge_type, schema.edges, "edge type")
        first = schema.nodes[schema.target_type(request.edge_type)].bounds[part]
        wanted = zip(_COLLECTED, (request.with_edge_ids, request.with_slots), strict=True)
        arguments = {
            "edge_type": _as_json(request.edge_type),
            "flags": _as_json(tuple(name for name, flag in wanted if flag)),
            **({} if request.weight is None else {"weight": request.weight}),
        }
        targets = narrowed(request.targets - first)
        return _document(envelope, "induced", arguments, targets, nodes=narrowed(request.nodes))
    if isinstance(request, EdgeRequest):
        known_name(request.edge_type, schema.lists, "edge type")
        first = schema.nodes[schema.target_type(request.edge_type)].bounds[part]
        arguments = {"edge_type": _as_json(request.edge_type)}
        targets = narrowed(request.targets - first)
        return _document(envelope, "contains", arguments, targets, neighbors=narrowed(request.neighbors))
    if isinstance(request, EdgeListRequest):
        known_name(request.edge_type, schema.lists, "edge type")
        span = {"first": str(request.first), "count": str(request.count)}
        return _document(envelope, "edges", {"edge_type": _as_json(request.edge_type), **span})
    return _document(envelope, "split", {"node_type": request.node_type, "split": request.split})


@lru_cache(1024)
def _as_json(names: str | tuple[str, ...]) -> str:
    return json.dumps(names)


def encode_ping(envelope: Envelope) -> bytes:
    """Return a request for an empty reply, as bytes."""
    return _document(envelope, "ping", {})


def _document(
    envelope: Envelope,
    kind: str,
    arguments: Mapping[str, str],
    rows: npt.NDArray[Any] | None = None,
    **others: npt.NDArray[Any],
) -> bytes:
    who = {"graph": envelope.graph, "partition": str(envelope.partition), "ask": kind}
    arrays = others if rows is None else {"rows": rows, **others}
    return request_document(envelope.wire, {**who, **arguments}, **arrays)


def check_size(nbytes: int) -> None:
    """Raise ``Refusal`` for the size of a request that is too large to be read."""
    if nbytes > MAX_REQUEST_BYTES:
        raise Refusal(
            RefusalKind.TOO_LARGE, f"a request of {nbytes} bytes; at most {MAX_REQUEST_BYTES} are read"
        )


def parse(
    ticket: bytes,
    schema: GraphSchema,
    graph: str,
    partitions: Mapping[int, Callable[[EdgeType], int]],
) -> tuple[int, Request] | tuple[None, Inquiry]:
    """Parse and check a request. Return its partition, ``None`` for an ``Inquiry``, and the request.

    ``partitions`` maps each partition of the service to a function from edge type to number of edges. Raises
    ``Refusal`` for a request that breaks a rule.
    """
    check_size(len(ticket))
    buffer = np.frombuffer(ticket, np.uint8)
    try:
        layout = Layout.parse(buffer, what="request", max_header=MAX_HEADER_BYTES)
        fields = RequestReader(layout, buffer)
        fields.check_version()
        read: tuple[int, Request] | tuple[None, Inquiry]
        if fields.text("ask") in graph_requests.NAMES:
            read = None, graph_requests.read(fields, schema, graph)
        else:
            fields.check_graph(graph)
            partition = fields.partition(partitions)
            reader = _READERS.get(fields.text("ask"), _unknown)
            read = partition, reader(fields, schema, partition, partitions)
        fields.check_all_read()
    except FormatError as error:
        raise Refusal(RefusalKind.MALFORMED, str(error)) from None
    except ValueError as error:
        raise Refusal(RefusalKind.INVALID, str(error)) from None
    return read


_COLLECTED = ("with_edge_ids", "with_slots")
_RULE = ("replace", "labor", "last", "window", "monotone", "strictly_earlier")
_FLAGS = ("with_edge_ids", "with_slots", "outward", "disjoint", *_RULE)


def _flags(request: NeighborRequest) -> tuple[str, ...]:
    return tuple(name for name in _FLAGS if getattr(request.rule if name in _RULE else request, name))


def _dependency(request: NeighborRequest) -> dict[str, str]:
    dependency = request.rule.batch_dependency
    return {} if dependency == 1 else {"batch_dependency": str(dependency), "number": str(request.number)}


def _neighbors(fields: RequestReader, schema: GraphSchema, partition: int, _: object) -> NeighborRequest:
    edge_type = _edge_type(fields.json("edge_type"), schema, schema.lists)
    bounds = schema.nodes[schema.target_type(edge_type)].bounds
    flags = fields.names("flags")
    if not set(flags) <= set(_FLAGS):
        raise FormatError(f"request: flags {list(flags)!r:.200} are not among {list(_FLAGS)}")
    span = (bounds[partition], bounds[partition + 1] - bounds[partition])
    fields.check_draws()
    if "outward" in flags:
        _check_outward(fields, schema, edge_type)
        span = (0, schema.nodes[edge_type[0]].count)
    targets = _in_trees(fields, fields.rows(*span)) if "disjoint" in flags else fields.rows(*span)
    time = _time(fields, schema, edge_type)
    dependent = fields.has("batch_dependency")
    return NeighborRequest(
        edge_type=edge_type,
        targets=targets,
        key=fields.number("key", 0, _UINT64),
        hop=fields.number("hop", 0, _HOPS),
        rule=DrawRule(
            fanout=fields.number("fanout", -1, 2**31),
            weight=_weight(fields, schema, edge_type),
            time=time,
            batch_dependency=fields.number("batch_dependency", 2, 2**31) if dependent else 1,
            **{name: name in flags for name in _RULE},
        ),
        with_edge_ids="with_edge_ids" in flags,
        with_slots="with_slots" in flags,
        disjoint="disjoint" in flags,
        tree_times=None if time is None else _tree_times(fields, "tree_times", targets, flags),
        tree_starts=_tree_times(fields, "tree_starts", targets, flags) if "window" in flags else None,
        bounds=_bounds(fields, targets) if "monotone" in flags else None,
        outward="outward" in flags,
        number=fields.number("number", 0, 2**63) if dependent else 0,
    )


def _in_trees(fields: RequestReader, targets: Int64Array) -> Int64Array:
    trees = fields.positions("trees", MAX_TREES)
    if len(trees) != len(targets):
        raise FormatError(f"request: {len(trees)} trees of {len(targets)} targets")
    return targets | trees << TREE_SHIFT


def _check_outward(fields: RequestReader, schema: GraphSchema, edge_type: EdgeType) -> None:
    if schema.edge_dir != "in" or edge_type in schema.labels:
        raise ValueError("outward asks a graph of in-edges, and this one has out-edges")
    plain = fields.names("flags") == ("outward",) and not fields.has("weight") and not fields.has("time")
    if not plain or fields.number("fanout", -1, 2**31) != -1:
        raise ValueError("outward takes all edges: fanout -1, no other flag, no weight, no time")


def _induced(fields: RequestReader, schema: GraphSchema, partition: int, _: object) -> InducedRequest:
    edge_type = _edge_type(fields.json("edge_type"), schema)
    bounds = schema.nodes[schema.target_type(edge_type)].bounds
    flags = fields.names("flags")
    if not set(flags) <= set(_COLLECTED):
        raise FormatError(f"request: flags {list(flags)!r:.200} are not among {list(_COLLECTED)}")
    nodes = fields.positions("nodes", schema.nodes[schema.neighbor_type(edge_type)].count)
    if len(nodes) > MAX_INDUCED_NODES:
        raise ValueError(f"a set of {len(nodes)} nodes; at most {MAX_INDUCED_NODES} are read")
    if (nodes[1:] <= nodes[:-1]).any():
        raise FormatError("request: nodes do not ascend")
    return InducedRequest(
        edge_type=edge_type,
        targets=fields.rows(bounds[partition], bounds[partition + 1] - bounds[partition]),
        nodes=nodes,
        with_edge_ids="with_edge_ids" in flags,
        with_slots="with_slots" in flags,
        weight=_weight(fields, schema, edge_type),
    )


def _contains(fields: RequestReader, schema: GraphSchema, partition: int, _: object) -> EdgeRequest:
    edge_type = _edge_type(fields.json("edge_type"), schema, schema.lists)
    bounds = schema.nodes[schema.target_type(edge_type)].bounds
    targets = fields.rows(bounds[partition], bounds[partition + 1] - bounds[partition])
    count = schema.nodes[schema.neighbor_type(edge_type)].count
    neighbors = fields.positions("neighbors", count)
    if len(neighbors) != len(targets):
        raise FormatError(f"request: {len(neighbors)} neighbors of {len(targets)} targets")
    return EdgeRequest(edge_type=edge_type, targets=targets, neighbors=neighbors)


def _edges(
    fields: RequestReader,
    schema: GraphSchema,
    partition: int,
    partitions: Mapping[int, Callable[[EdgeType], int]],
) -> EdgeListRequest:
    edge_type = _edge_type(fields.json("edge_type"), schema, schema.lists)
    first = fields.number("first", 0, partitions[partition](edge_type) + 1)
    count = fields.number("count", 0, 2**63)
    if count > MAX_LISTED_EDGES:
        raise Refusal(
            RefusalKind.TOO_LARGE, f"{count} edges in one request; at most {MAX_LISTED_EDGES} are listed"
        )
    return EdgeListRequest(edge_type=edge_type, first=first, count=count)


def _weight(fields: RequestReader, schema: GraphSchema, edge_type: EdgeType) -> str | None:
    if not fields.has("weight"):
        return None
    weight = fields.text("weight")
    known_name(weight, schema.lists[edge_type].weights, "weight column")
    return weight


def _time(fields: RequestReader, schema: GraphSchema, edge_type: EdgeType) -> str | None:
    if not fields.has("time"):
        return None
    time = fields.text("time")
    known_name(time, schema.list_times(edge_type) if edge_type in schema.edges else (), "time")
    return time


def _tree_times(fields: RequestReader, name: str, targets: Int64Array, flags: Collection[str]) -> Int64Array:
    if "disjoint" not in flags:
        raise ValueError("draws in time need disjoint trees")
    times = fields.integers(name)
    if len(targets) and int(targets.max()) >> TREE_SHIFT >= len(times):
        raise FormatError(f"request: {len(times)} {name}, of fewer trees than targets have")
    return times


def _bounds(fields: RequestReader, targets: Int64Array) -> Int64Array:
    bounds = fields.integers("bounds")
    if len(bounds) != len(targets):
        raise FormatError(f"request: {len(bounds)} bounds of {len(targets)} targets")
    return bounds


def _rows(
    fields: RequestReader,
    schema: GraphSchema,
    partition: int,
    partitions: Mapping[int, Callable[[EdgeType], int]],
) -> FeatureRequest:
    kind = fields.json("kind")
    if isinstance(kind, str):
        known_name(kind, schema.nodes, "node type")
        bounds, known = schema.nodes[kind].bounds, schema.nodes[kind].columns
        first, count = bounds[partition], bounds[partition + 1] - bounds[partition]
    else:
        kind = _edge_type(kind, schema)
        first, count, known = 0, partitions[partition](kind), schema.edges[kind].columns
    columns = fields.names("columns")
    for column in columns:
        known_name(column, known, "column")
    return FeatureRequest(kind=kind, columns=columns, rows=fields.rows(first, count))


def _split(fields: RequestReader, schema: GraphSchema, partition: int, _: object) -> SplitRequest:
    node_type, split = fields.text("node_type"), fields.text("split")
    known_name(node_type, schema.nodes, "node type")
    known_name(split, schema.nodes[node_type].splits, "split")
    return SplitRequest(node_type=node_type, split=split)


def _ping(fields: RequestReader, schema: GraphSchema, partition: int, _: object) -> Ping:
    return Ping()


def _unknown(fields: RequestReader, schema: GraphSchema, partition: int, _: object) -> Request:
    raise FormatError(f"request: unknown ask {fields.text('ask')[:100]!r}")


_READERS: Mapping[str, Callable[..., Request]] = {
    "neighbors": _neighbors,
    "induced": _induced,
    "contains": _contains,
    "edges": _edges,
    "rows": _rows,
    "split": _split,
    "ping": _ping,
}


def _edge_type(value: object, schema: GraphSchema, known: Collection[EdgeType] | None = None) -> EdgeType:
    """Return an edge type: one of the graph's, or one of ``known``."""
    names = value if isinstance(value, list) else []
    if not are_names(names) or len(names) != 3:
        raise FormatError("request: an edge type is a list of three names")
    source, relation, destination = names
    edge_type = (source, relation, destination)
    known_name(edge_type, schema.edges if known is None else known, "edge type")
    return edge_type
