"""Directory of node ids at a service. Every service knows ids and positions of all nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.rpc.graph_requests import (
    MAX_LISTED,
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
from gigl_loader.rpc.remote_store import fetch_edges
from gigl_loader.rpc.replies import (
    assembled,
    read_bytes,
    read_integers,
    read_octets,
    read_split,
    read_texts,
)
from gigl_loader.rpc.requests import Envelope, SplitRequest, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.arrays import Bytes, Int64Array
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.rpc.connection import Connection
    from gigl_loader.rpc.graph_requests import Inquiry
    from gigl_loader.rpc.replicas import ReplicaConnection
    from gigl_loader.sampling.store import EdgeList


__all__ = ["Directory", "fetch_file", "fetch_manifest"]

_ANY = (-(2**63), 2**63)


def fetch_manifest(connection: Connection | ReplicaConnection) -> bytes:
    """Return the service's ``graph.json``, which ``Manifest.parse`` reads and checks."""
    layout, buffer = connection.call(
        encode_graph_request(ManifestRequest(), "", wire=connection.wire_version), assembled
    )
    return read_bytes(layout, buffer, "manifest")


def fetch_file(connection: Connection, path: str, first: int, count: int, *, digest: str) -> Bytes:
    """Return bytes of a file of the graph, uint8 [count], as they lie at the service: they are not verified.

    At most ``MAX_FILE_BYTES``. ``ValueError`` for a file that is not there, ``SamplingError`` for one that
    cannot be read.
    """
    inquiry = FileRequest(path=path, first=first, count=count)
    request = encode_graph_request(inquiry, digest, wire=connection.wire_version)
    layout, buffer = connection.call(request, assembled)
    return read_octets(layout, buffer, "bytes", count)


class Directory:
    """Node ids by position, and positions by node id. Thread-safe.

    Raises what ``Connection.call`` raises: ``StorageUnavailable`` after its timeout, ``SamplingError`` where
    the service has another graph. Large requests are split into parts of 1 Mi nodes.
    """

    def __init__(
        self, connection: Connection | ReplicaConnection, *, schema: GraphSchema, digest: str
    ) -> None:
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
        return _joined(parts)

    def locate(self, node_type: NodeType, ids: Int64Array) -> Int64Array:
        """Return the positions of node ids, int64 [N]. ``ValueError`` lists the first ten unknown ids."""
        if self._are_equal(node_type):
            return self._known(node_type, ids, "node ids")
        span = (0, self._schema.nodes[node_type].count)
        parts = []
        for at in range(0, len(ids), MAX_LISTED):
            request = LocateRequest(node_type=node_type, ids=ids[at : at + MAX_LISTED])
            parts.append(self._integers(request, "positions", len(request.ids), span))
        return _joined(parts)

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
        return _joined(parts)

    def split(self, partition: int, node_type: NodeType, name: str) -> Int64Array:
        """Return the positions of a split, int64 [N], ascending, in a partition that the service holds."""
        bounds = self._schema.nodes[node_type].bounds
        request = encode(
            self._envelope(partition),
            SplitRequest(node_type=node_type, split=name),
            self._schema,
        )
        layout, buffer = self._connection.call(request, assembled)
        return read_split(layout, buffer, bounds[partition], bounds[partition + 1])

    def edges(self, partition: int, edge_type: EdgeType) -> EdgeList:
        """Return all edges of a type in a partition that the service holds, by ascending edge id."""
        return fetch_edges(self._connection, self._envelope(partition), edge_type, self._schema)

    def texts(self, node_type: NodeType, node_ids: Int64Array) -> list[str]:
        """Return the texts of known node ids, int64 [N], of a type that has text ids."""
        texts: list[str] = []
        for at in range(0, len(node_ids), MAX_TEXTS):
            request = TextsRequest(node_type=node_type, ids=node_ids[at : at + MAX_TEXTS])
            layout, buffer = self._connection.call(self._encoded(request), assembled)
            texts += read_texts(layout, buffer, len(request.ids))
        return texts

    def find_texts(self, node_type: NodeType, texts: Sequence[str]) -> Int64Array:
        """Return the node ids of texts, int64 [N], -1 for unknown ones, of a type that has text ids."""
        span = (-1, self._schema.nodes[node_type].count)
        parts = []
        for at in range(0, len(texts), MAX_TEXTS):
            request = FindTextsRequest(node_type=node_type, texts=list(texts[at : at + MAX_TEXTS]))
            parts.append(self._integers(request, "ids", len(request.texts), span))
        return _joined(parts)

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
        layout, buffer = self._connection.call(self._encoded(request), assembled)
        return read_integers(layout, buffer, name, span, count)


def _joined(parts: list[Int64Array]) -> Int64Array:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
