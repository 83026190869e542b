"""Neighbor store over the network: one partition, on the host that holds it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gigl_loader.errors import SamplingError
from gigl_loader.rpc.connection import Connection
from gigl_loader.rpc.refusals import TooLarge
from gigl_loader.rpc.replies import assembled, read_edges, read_flags, read_neighbors, read_split
from gigl_loader.rpc.requests import (
    MAX_INDUCED_NODES,
    MAX_LISTED_EDGES,
    EdgeListRequest,
    Envelope,
    SplitRequest,
    encode,
)
from gigl_loader.rpc.row_reader import RowReader
from gigl_loader.sampling.store import EdgeList, InducedRequest, Neighbors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from gigl_loader.arrays import BoolArray, Bytes, Int64Array
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType
    from gigl_loader.rpc.credentials import Caller
    from gigl_loader.rpc.endpoint import Endpoint
    from gigl_loader.rpc.replicas import ReplicaConnection, Replicas
    from gigl_loader.rpc.requests import PartitionRequest
    from gigl_loader.sampling.store import (
        EdgeRequest,
        FeatureRequest,
        NeighborRequest,
        WireCounts,
    )

__all__ = ["RemoteStore", "fetch_edges", "replicated_stores"]

_ATTEMPT_S = 30.0
_MAX_ROWS = 4 << 20
"""Positions of one request: 32 MiB, half of what a service reads."""

_MAX_BYTES = 128 << 20
"""Bytes of the rows of one request: each attempt has 30 s, so that 4 MB/s is enough."""


class RemoteStore:
    """A ``NeighborStore`` over the network. Thread-safe."""

    def __init__(
        self,
        endpoint: Endpoint,
        partition: int,
        caller: Caller,
        *,
        schema: GraphSchema,
        digest: str,
        timeout_s: float,
        attempt_s: float = _ATTEMPT_S,
    ) -> None:
        """Connects at the first request. ``digest`` is that of the graph; the peer must have the same graph.

        A request is retried for ``timeout_s`` in total, then raises ``StorageUnavailable``; each attempt
        has ``attempt_s``. Errors that a retry cannot resolve are raised at once: ``SamplingError`` for a
        wrong token or another graph, ``ValueError`` for a request that breaks a rule, ``FormatError`` for
        a reply that breaks one.
        """
        if partition not in endpoint.partitions:
            raise ValueError(f"{endpoint} holds partitions {list(endpoint.partitions)}, not {partition}")
        connection = Connection(endpoint, caller, timeout_s=timeout_s, attempt_s=attempt_s)
        self._use(connection, partition, schema, digest)

    @classmethod
    def replicated(cls, connection: ReplicaConnection, *, schema: GraphSchema, digest: str) -> RemoteStore:
        """Return a store over the holders of one partition. Closing it closes ``connection``."""
        if connection.partition is None:
            raise ValueError("a store has one partition, and this connection leads to any server")
        store = cls.__new__(cls)
        store._use(connection, connection.partition, schema, digest)
        return store

    def _use(
        self, connection: Connection | ReplicaConnection, partition: int, schema: GraphSchema, digest: str
    ) -> None:
        self._connection, self._partition, self._schema, self._digest = connection, partition, schema, digest

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
        layout, buffer = self._connection.call(self._encoded(request), assembled)
        return read_split(layout, buffer, bounds[partition], bounds[partition + 1])

    def edges(self, edge_type: EdgeType) -> EdgeList:
        """Return all edges of a type that this partition holds, by ascending edge id."""
        return fetch_edges(self._connection, self._envelope(), edge_type, self._schema)

    def _sample_in_pieces(self, request: NeighborRequest | InducedRequest, most: int) -> Neighbors:
        """Send requests for at most so many targets, one after the other."""
        targets = request.targets
        pieces = [request]
        if len(targets) > most:
            starts = range(0, len(targets), most)
            pieces = [replace(request, targets=targets[at : at + most]) for at in starts]
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
        parts = (request.targets[:half], request.targets[half:])
        return [result for part in parts for result in self._sample_in_parts(replace(request, targets=part))]

    def _sample(self, request: NeighborRequest | InducedRequest) -> Neighbors:
        layout, buffer = self._connection.call(self._encoded(request), assembled)
        return read_neighbors(layout, buffer, request, self._schema)

    def _contains(self, request: EdgeRequest) -> BoolArray:
        layout, buffer = self._connection.call(self._encoded(request), assembled)
        return read_flags(layout, buffer, "found", len(request.targets))

    def _gather(self, request: FeatureRequest, places: Int64Array, out: Sequence[Bytes]) -> None:
        connection = self._connection
        rows = RowReader(request, places, out, placed=lambda ns: connection.count(placing_ns=ns))
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
    return {
        part: RemoteStore.replicated(replicas.connection(part), schema=schema, digest=digest)
        for part in partitions
    }


def fetch_edges(
    connection: Connection | ReplicaConnection, envelope: Envelope, edge_type: EdgeType, schema: GraphSchema
) -> EdgeList:
    """Return all edges of a type in one partition, by ascending edge id, a list after the other."""
    lists: list[EdgeList] = []
    first = 0
    while True:
        request = EdgeListRequest(edge_type=edge_type, first=first, count=MAX_LISTED_EDGES)
        layout, buffer = connection.call(encode(envelope, request, schema), assembled)
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
    )


def _joined(arrays: Sequence[npt.NDArray[Any] | None]) -> npt.NDArray[Any] | None:
    present = [array for array in arrays if array is not None]
    return np.concatenate(present) if present else None
