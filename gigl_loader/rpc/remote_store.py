"""Neighbor store and directory of node ids over the network."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gigl_loader.errors import SamplingError
from gigl_loader.options import MAX_MANIFEST_BYTES
from gigl_loader.rpc.graph_requests import (
    MAX_LISTED,
    MAX_TEXT_BYTES,
    MAX_TEXTS,
    FileRequest,
    FindTextsRequest,
    IdsRequest,
    ListRequest,
    LocateRequest,
    ManifestRequest,
    TextsRequest,
    encode_graph_request,
)
from gigl_loader.rpc.refusals import TooLarge
from gigl_loader.rpc.replies import (
    MAX_DRAWN_EDGES,
    RowWriter,
    bounded,
    read_bytes,
    read_edges,
    read_flags,
    read_integers,
    read_neighbors,
    read_octets,
    read_split,
    read_texts,
)
from gigl_loader.rpc.requests import (
    MAX_INDUCED_NODES,
    MAX_LISTED_EDGES,
    EdgeListRequest,
    Envelope,
    SplitRequest,
    encode,
)
from gigl_loader.sampling.store import EdgeList, InducedRequest, NeighborRequest, Neighbors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from gigl_loader.arrays import BoolArray, Bytes, Int64Array
    from gigl_loader.graph.schema import EdgeType, GraphSchema, NodeType
    from gigl_loader.rpc.credentials import Caller
    from gigl_loader.rpc.graph_requests import Inquiry
    from gigl_loader.rpc.replicas import ReplicaConnection, Replicas
    from gigl_loader.rpc.requests import PartitionRequest
    from gigl_loader.sampling.store import EdgeRequest, FeatureRequest, WireCounts

_WIDTH = 8
"""Bytes of the widest integer in a reply."""
_EDGE_ARRAYS = 4
"""Arrays of a reply that have an entry for each edge, at most."""
_MAX_ROWS = 4 << 20
"""Positions of one request: 32 MiB, half of what a service reads."""

_MAX_BYTES = 128 << 20
"""Bytes of the rows of one request: each attempt has 30 s, so that 4 MB/s is enough."""


class RemoteStore:
    """A ``NeighborStore`` over the network. Thread-safe."""

    def __init__(self, connection: ReplicaConnection, *, schema: GraphSchema, digest: str) -> None:
        """Return a store over the holders of one partition. Closing it closes ``connection``.

        ``digest`` is that of the graph; the holders must have the same graph. Requests raise as
        ``ReplicaConnection.call`` does, and ``FormatError`` for a reply that breaks a rule.
        """
        if connection.partition is None:
            raise ValueError("a store has one partition, and this connection leads to any server")
        self._connection, self._partition = connection, connection.partition
        self._schema, self._digest = schema, digest

    def sample(self, request: NeighborRequest) -> Neighbors:
        """Draw neighbours at the service. Draws are addressed, so a local draw gives the same result."""
        return self._sample_in_pieces(request, _MAX_ROWS)

    def induced(self, request: InducedRequest) -> Neighbors:
        """Return the edges to each target from the nodes of a set, which travels whole with every request.

        ``SamplingError`` for a set of more than ``MAX_INDUCED_NODES``.
        """
        if len(request.nodes) > MAX_INDUCED_NODES:
            raise SamplingError(
                f"an induced batch of {len(request.nodes):,} nodes of one type; partitions elsewhere take at "
                f"most {MAX_INDUCED_NODES:,}: ask for fewer seeds a batch or smaller num_neighbors"
            )
        return self._sample_in_pieces(request, _MAX_ROWS // 2)

    def gather(self, request: FeatureRequest, places: Int64Array, out: Sequence[Bytes]) -> None:
        """Write row ``request.rows[i]`` of column c to ``out[c][places[i]]``, straight from received chunks.

        ``places``: int64 [N]. ``out``: for each column uint8 [any, row bytes].
        """
        width = sum(matrix.shape[1] for matrix in out)
        step = min(_MAX_ROWS, max(_MAX_BYTES // max(width, 1), 1))
        if len(request.rows) <= step:
            self._gather(request, places, out)
            return
        for at in range(0, len(request.rows), step):
            piece = slice(at, at + step)
            self._gather(replace(request, rows=request.rows[piece]), places[piece], out)

    def contains(self, request: EdgeRequest) -> BoolArray:
        """Return, bool [N], whether each pair is joined by an edge."""
        found = [
            self._contains(
                replace(
                    request,
                    targets=request.targets[at : at + _MAX_ROWS],
                    neighbors=request.neighbors[at : at + _MAX_ROWS],
                )
            )
            for at in range(0, len(request.targets), _MAX_ROWS)
        ]
        return np.concatenate(found) if found else np.empty(0, np.bool_)

    def wire(self) -> WireCounts:
        """Return bytes, calls and retries since the store was made."""
        return self._connection.counts()

    def renew(self, caller: Caller) -> None:
        """Use the token and certificate of ``caller`` from the next call on."""
        self._connection.renew(caller)

    def close(self) -> None:
        """Cancel calls under way, start no further attempt, and disconnect. Closing twice is fine."""
        self._connection.close()

    def split(self, request: SplitRequest) -> Int64Array:
        """Return the positions of a split in this partition, int64 [N], ascending."""
        bounds = self._schema.nodes[request.node_type].bounds
        partition = self._partition
        low, high = bounds[partition], bounds[partition + 1]
        layout, buffer = self._connection.call(self._encoded(request), bounded(_WIDTH * (high - low)))
        return read_split(layout, buffer, low, high)

    def edges(self, edge_type: EdgeType) -> EdgeList:
        """Return all edges of a type that this partition holds, by ascending edge id."""
        return fetch_edges(self._connection, self._envelope(), edge_type, self._schema)

    def _sample_in_pieces(self, request: NeighborRequest | InducedRequest, most: int) -> Neighbors:
        """Send requests for at most ``most`` targets each, one after the other."""
        count = len(request.targets)
        pieces = [request]
        if count > most:
            pieces = [request.part(at, at + most) for at in range(0, count, most)]
        results = [result for piece in pieces for result in self._sample_in_parts(piece)]
        return results[0] if len(results) == 1 else _one_after_the_other(results)

    def _sample_in_parts(self, request: NeighborRequest | InducedRequest) -> list[Neighbors]:
        """Send a request, or its halves where the service, which knows the degrees, refuses its size."""
        try:
            return [self._sample(request)]
        except TooLarge as error:
            if len(request.targets) <= 1:
                remedy = "ask for fewer nodes" if isinstance(request, InducedRequest) else "set a fanout"
                raise SamplingError(f"{error}; no reply holds those of one node: {remedy}") from None
        half = len(request.targets) // 2
        parts = (request.part(0, half), request.part(half, len(request.targets)))
        return [result for part in parts for result in self._sample_in_parts(part)]

    def _sample(self, request: NeighborRequest | InducedRequest) -> Neighbors:
        edges = MAX_DRAWN_EDGES
        if isinstance(request, NeighborRequest) and request.rule.most >= 0:
            edges = min(request.rule.most * len(request.targets), edges)
        reader = bounded(_EDGE_ARRAYS * _WIDTH * edges + _WIDTH * len(request.targets))
        layout, buffer = self._connection.call(self._encoded(request), reader)
        return read_neighbors(layout, buffer, request, self._schema)

    def _contains(self, request: EdgeRequest) -> BoolArray:
        layout, buffer = self._connection.call(self._encoded(request), bounded(len(request.targets)))
        return read_flags(layout, buffer, "found", len(request.targets))

    def _gather(self, request: FeatureRequest, places: Int64Array, out: Sequence[Bytes]) -> None:
        connection = self._connection
        rows = RowWriter(request, places, out, placed=lambda ns: connection.count(placing_ns=ns))
        try:
            connection.call(self._encoded(request), rows)
        finally:
            rows.close()  # An attempt that was left behind writes nothing more.

    def _encoded(self, request: PartitionRequest) -> bytes:
        return encode(self._envelope(), request, self._schema)

    def _envelope(self) -> Envelope:
        """Return the head of a request, in the version that the holders agreed upon by now."""
        wire = self._connection.wire_version
        return Envelope(graph=self._digest, partition=self._partition, wire=wire)


def replicated_stores(
    replicas: Replicas, partitions: Iterable[int], *, schema: GraphSchema, digest: str
) -> dict[int, RemoteStore]:
    """Return a store over the holders of each of ``partitions``, by partition."""
    return {part: RemoteStore(replicas.connection(part), schema=schema, digest=digest) for part in partitions}


def fetch_edges(
    connection: ReplicaConnection, envelope: Envelope, edge_type: EdgeType, schema: GraphSchema
) -> EdgeList:
    """Return all edges of a type in one partition, by ascending edge id. Fetches list after list."""
    lists: list[EdgeList] = []
    first = 0
    while True:
        request = EdgeListRequest(edge_type=edge_type, first=first, count=MAX_LISTED_EDGES)
        reader = bounded(_EDGE_ARRAYS * _WIDTH * request.count)
        layout, buffer = connection.call(encode(envelope, request, schema), reader)
        lists.append(read_edges(layout, buffer, request, schema, envelope.partition))
        received = len(lists[-1].edge_ids)
        first += received
        if received < MAX_LISTED_EDGES:
            return EdgeList.joined(lists)


def _one_after_the_other(results: Sequence[Neighbors]) -> Neighbors:
    return Neighbors(
        np.concatenate([each.counts for each in results]),
        np.concatenate([each.positions for each in results]),
        _joined([each.edge_ids for each in results]),
        _joined([each.slots for each in results]),
        _joined([each.times for each in results]),
    )


def _joined(arrays: Sequence[npt.NDArray[Any] | None]) -> npt.NDArray[Any] | None:
    present = [array for array in arrays if array is not None]
    return np.concatenate(present) if present else None


_ANY = (-(2**63), 2**63)


def fetch_manifest(connection: ReplicaConnection) -> bytes:
    """Return the service's ``graph.json``, which ``Manifest.parse`` reads and checks."""
    request = encode_graph_request(ManifestRequest(), "", wire=connection.wire_version)
    layout, buffer = connection.call(request, bounded(MAX_MANIFEST_BYTES))
    return read_bytes(layout, buffer, "manifest")


def fetch_file(connection: ReplicaConnection, path: str, first: int, count: int, *, digest: str) -> Bytes:
    """Return bytes of a file of the graph, uint8 [count], as they lie at the service: they are not verified.

    At most ``MAX_FILE_BYTES``. ``ValueError`` for a file that is not there, ``SamplingError`` for one that
    cannot be read.
    """
    inquiry = FileRequest(path=path, first=first, count=count)
    request = encode_graph_request(inquiry, digest, wire=connection.wire_version)
    layout, buffer = connection.call(request, bounded(count))
    return read_octets(layout, buffer, "bytes", count)


class RemoteDirectory:
    """Node ids by position, and positions by node id. Thread-safe.

    Raises as ``ReplicaConnection.call``: ``StorageUnavailable`` after its timeout, ``SamplingError`` where
    the service has another graph. Large requests are split into parts of 1 Mi nodes.
    """

    def __init__(self, connection: ReplicaConnection, *, schema: GraphSchema, digest: str) -> None:
        """``schema`` and ``digest`` are those of the manifest."""
        self._connection = connection
        self._schema = schema
        self._digest = digest

    def ids(self, node_type: NodeType, positions: Int64Array) -> Int64Array:
        """Return the node ids at ``positions``, int64 [N]. ``ValueError`` for positions that no node has."""
        if self._are_equal(node_type):
            return self._known(node_type, positions, "positions of nodes")
        parts = []
        for at in range(0, len(positions), MAX_LISTED):
            request = IdsRequest(node_type=node_type, positions=positions[at : at + MAX_LISTED])
            parts.append(self._integers(request, "ids", len(request.positions), _ANY))
        return _joined_ids(parts)

    def locate(self, node_type: NodeType, ids: Int64Array) -> Int64Array:
        """Return the positions of node ids, int64 [N]. ``ValueError`` lists the first ten unknown ids."""
        if self._are_equal(node_type):
            return self._known(node_type, ids, "node ids")
        span = (0, self._schema.nodes[node_type].count)
        parts = []
        for at in range(0, len(ids), MAX_LISTED):
            request = LocateRequest(node_type=node_type, ids=ids[at : at + MAX_LISTED])
            parts.append(self._integers(request, "positions", len(request.ids), span))
        return _joined_ids(parts)

    def all_positions(self, node_type: NodeType) -> Int64Array:
        """Return every position of a type, int64 [N], by ascending node id."""
        count = self._schema.nodes[node_type].count
        if self._are_equal(node_type):
            return np.arange(count)
        parts = []
        for at in range(0, count, MAX_LISTED):
            size = min(MAX_LISTED, count - at)
            request = ListRequest(node_type=node_type, first=at, count=size)
            parts.append(self._integers(request, "positions", size, (0, count)))
        return _joined_ids(parts)

    def split(self, partition: int, node_type: NodeType, name: str) -> Int64Array:
        """Return the positions of a split, int64 [N], ascending, in a partition that the service holds."""
        bounds = self._schema.nodes[node_type].bounds
        request = encode(
            self._envelope(partition),
            SplitRequest(node_type=node_type, split=name),
            self._schema,
        )
        low, high = bounds[partition], bounds[partition + 1]
        layout, buffer = self._connection.call(request, bounded(_WIDTH * (high - low)))
        return read_split(layout, buffer, low, high)

    def edges(self, partition: int, edge_type: EdgeType) -> EdgeList:
        """Return all edges of a type in a partition that the service holds, by ascending edge id."""
        return fetch_edges(self._connection, self._envelope(partition), edge_type, self._schema)

    def texts(self, node_type: NodeType, node_ids: Int64Array) -> list[str]:
        """Return the texts of known node ids, int64 [N], of a type that has text ids."""
        texts: list[str] = []
        for at in range(0, len(node_ids), MAX_TEXTS):
            request = TextsRequest(node_type=node_type, ids=node_ids[at : at + MAX_TEXTS])
            reader = bounded((MAX_TEXT_BYTES + _WIDTH) * (len(request.ids) + 1))
            layout, buffer = self._connection.call(self._encoded(request), reader)
            texts += read_texts(layout, buffer, len(request.ids))
        return texts

    def find_texts(self, node_type: NodeType, texts: Sequence[str]) -> Int64Array:
        """Return the node ids of texts, int64 [N], -1 for unknown ones, of a type that has text ids."""
        span = (-1, self._schema.nodes[node_type].count)
        parts = []
        for at in range(0, len(texts), MAX_TEXTS):
            request = FindTextsRequest(node_type=node_type, texts=list(texts[at : at + MAX_TEXTS]))
            parts.append(self._integers(request, "ids", len(request.texts), span))
        return _joined_ids(parts)

    def _are_equal(self, node_type: NodeType) -> bool:
        """Return whether node ids are positions, so that no request is needed."""
        return self._schema.nodes[node_type].ids == "identity"

    def _known(self, node_type: NodeType, numbers: Int64Array, what: str) -> Int64Array:
        unknown = numbers[(numbers < 0) | (numbers >= self._schema.nodes[node_type].count)]
        if len(unknown):
            listed = ", ".join(map(str, unknown[:10].tolist())) + (", ..." if len(unknown) > 10 else "")
            raise ValueError(f"{len(unknown)} unknown {what} of type {node_type!r}: {listed}")
        return numbers.astype(np.int64)

    def _encoded(self, request: Inquiry) -> bytes:
        return encode_graph_request(request, self._digest, wire=self._connection.wire_version)

    def _envelope(self, partition: int) -> Envelope:
        return Envelope(graph=self._digest, partition=partition, wire=self._connection.wire_version)

    def _integers(self, request: Inquiry, name: str, count: int, span: tuple[int, int]) -> Int64Array:
        layout, buffer = self._connection.call(self._encoded(request), bounded(_WIDTH * count))
        return read_integers(layout, buffer, name, span, count)


def _joined_ids(parts: list[Int64Array]) -> Int64Array:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
