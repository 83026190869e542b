"""Model of a cluster's calls: how many there are, and of how many bytes, by phase, port and method.

Pure arithmetic. S servers hold P partitions, P / S each; R ranks have L loaders each, and channels with K
servers; N is the number of batches. What does not follow from the protocol (the fixed part of a message, the
size of an entry of a list) is in ``Constants``, which ``cluster_simulation.py`` measures. Expected numbers
assume that nodes are dealt out evenly to partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Key = tuple[str, str]
"""Port (``"control"`` or ``"data"``) and method."""

PARTNERS = 16
"""Servers of a rank at least (``gigl_client.discovery``)."""
WATCHED = 8
"""Servers that a server watches (``gigl_server.cluster.peers``)."""
WATCH_S = 5.0
"""From the end of a look at other servers to the next one, and between probes of a server's own ports."""
BEATS_PER_LEASE = 3
MAX_IN_FLIGHT = 64
"""Of a loader, at all servers together (``gigl_client.channels``)."""
_CHANNEL_ID_BYTES = 18  # 16 bytes in a protobuf field.
_INDEX_BYTES = 8
_POSITION_BYTES = 4  # On the wire, for fewer than 2^31 nodes in a partition.
_SPLIT_BYTES = 8  # Positions of a split are stored as int64.
_COUNT_BYTES = 4
_NODE_ID_BYTES = 8


class Amount(NamedTuple):
    """Calls, and the bytes of their messages as the server counts them."""

    calls: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0

    def __add__(self, other: Amount) -> Amount:  # type: ignore[override]
        return Amount(*(mine + more for mine, more in zip(self, other, strict=True)))

    def __sub__(self, other: Amount) -> Amount:
        return Amount(*(mine - less for mine, less in zip(self, other, strict=True)))

    @property
    def nbytes(self) -> float:
        return self.bytes_in + self.bytes_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Size of a mean batch."""

    seeds: int
    nodes_per_hop: Sequence[float]
    """New nodes of each hop, seeds first."""
    edges_per_hop: Sequence[float]
    row_bytes: int
    """Features and labels of a node."""
    edge_id_bytes: int = 0
    """0 where a loader collects no edge ids."""

    @property
    def nodes(self) -> float:
        return sum(self.nodes_per_hop)

    @property
    def edges(self) -> float:
        return sum(self.edges_per_hop)

    @property
    def targets_per_hop(self) -> Sequence[float]:
        """Nodes whose neighbours are drawn in each hop."""
        return self.nodes_per_hop[:-1]

    @property
    def frame_bytes(self) -> float:
        """Bytes of a complete frame, without its header."""
        return self._lists + self.nodes * (_NODE_ID_BYTES + self.row_bytes)

    @property
    def deferred_frame_bytes(self) -> float:
        """Bytes of a frame with positions in place of rows."""
        return self._lists + self.nodes * (_NODE_ID_BYTES + 8)

    @property
    def _lists(self) -> float:
        targets = sum(self.targets_per_hop)
        return self.edges * (4 + self.edge_id_bytes) + 8 * targets + self.seeds * (_INDEX_BYTES + 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster and the job that it serves."""

    servers: int
    ranks: int
    partitions: int
    loaders: int = 1
    """Of each rank."""
    batches: int = 0
    """Of all ranks and loaders together."""
    prefetch: int = 4
    lease_s: float = 60.0
    split_nodes: int = 0
    """Nodes of the split that loaders take their seeds from."""

    def __post_init__(self) -> None:
        if min(self.servers, self.ranks, self.loaders) < 1:
            raise ValueError(
                "servers, ranks and loaders must be positive, "
                f"got {self.servers}, {self.ranks}, {self.loaders}"
            )
        if self.partitions % self.servers or self.partitions < self.servers:
            raise ValueError(
                f"{self.partitions} partitions cannot be dealt out evenly to {self.servers} servers"
            )

    @property
    def own_partitions(self) -> int:
        """Partitions of one server."""
        return self.partitions // self.servers

    @property
    def servers_per_rank(self) -> int:
        """Servers that a rank has channels with."""
        return min(self.servers, max(PARTNERS, -(-PARTNERS * self.servers // self.ranks)))

    @property
    def defers_rows(self) -> bool:
        """Trainers fetch rows from their owners: so it is with several servers over a network."""
        return self.servers > 1

    @property
    def beat_s(self) -> float:
        """Between two heartbeats of a rank to a server."""
        return self.lease_s / BEATS_PER_LEASE


class Line(NamedTuple):
    """Calls of one method in one phase, and what their messages hold beside a fixed part, in sum."""

    key: Key
    calls: float
    varying_in: float = 0.0
    varying_out: float = 0.0
    order: str = ""
    """Growth of the calls, in words."""

    def amount(self, constants: Constants) -> Amount:
        """Return calls and bytes: the fixed part of each message and the varying parts."""
        fixed_in, fixed_out = constants.fixed.get(self.key, (0.0, 0.0))
        return Amount(
            self.calls,
            self.calls * fixed_in + self.varying_in,
            self.calls * fixed_out + self.varying_out,
        )


@dataclass(slots=True)
class Constants:
    """Measured constants."""

    fixed: dict[Key, tuple[float, float]] = field(default_factory=dict)
    """By port and method: bytes of a request and of a reply, beside what varies."""
    member_bytes: float = 0.0
    """Of a server in the reply to ``Cluster``."""
    partition_bytes: float = 0.0
    """Of a partition in ``graph.json``."""


def expected_owners(nodes: float, owners: int, of: int) -> float:
    """Return how many of ``owners`` partitions, out of ``of``, hold one of so many nodes at least."""
    if of == 1:
        return float(owners if nodes > 0 else 0)
    return owners * (1.0 - (1.0 - 1.0 / of) ** nodes)


def calls_at_join(c: Cluster, k: Constants) -> list[Line]:
    """Servers find and check each other. They repeat it once a second until all have come."""
    pairs = c.servers * (c.servers - 1)
    return [
        Line(("control", "Describe"), pairs, order="S (S - 1)"),
        Line(("data", "ping"), pairs, order="S (S - 1)"),
        Line(
            ("control", "Cluster by servers"),
            2 * pairs,
            varying_out=2 * pairs * k.member_bytes * c.servers,
            order="S (S - 1), at least",
        ),
    ]


def calls_at_connect(c: Cluster, k: Constants) -> list[Line]:
    """Each rank calls the server that it was given, its servers on both ports, and one for the schema."""
    views = c.ranks * (1 + c.servers_per_rank)
    return [
        Line(
            ("control", "Cluster"), views, varying_out=views * k.member_bytes * c.servers, order="R (K + 1)"
        ),
        Line(("data", "ping"), c.ranks * c.servers_per_rank, order="R K"),
        Line(
            ("data", "manifest"), c.ranks, varying_out=c.ranks * k.partition_bytes * c.partitions, order="R"
        ),
    ]


def calls_at_open(c: Cluster, k: Constants) -> list[Line]:
    """Ranks read the split; one of them creates the producers; each opens its channels."""
    reads = c.ranks * c.loaders
    split = reads * c.split_nodes
    return [
        Line(("data", "split"), reads * c.partitions, varying_out=split * _SPLIT_BYTES, order="R L P"),
        Line(
            ("data", "ids"),
            reads,
            varying_in=split * _POSITION_BYTES,
            varying_out=split * _NODE_ID_BYTES,
            order="R L",
        ),
        Line(("control", "CreateProducer"), c.servers * c.loaders, order="S L"),
        Line(("control", "OpenChannel"), c.ranks * c.servers_per_rank * c.loaders, order="R K L"),
    ]


def calls_of_batches(c: Cluster, batch: Batch, k: Constants) -> list[Line]:
    """A request per batch, with its frame; the lists of each hop from their owners; rows from theirs."""
    away = c.partitions - c.own_partitions
    share = away / c.partitions
    n = c.batches
    asked = n * sum(expected_owners(targets, away, c.partitions) for targets in batch.targets_per_hop)
    targets, edges = (n * share * sum(each) for each in (batch.targets_per_hop, batch.edges_per_hop))
    frame = batch.deferred_frame_bytes if c.defers_rows else batch.frame_bytes
    lines = [
        Line(
            ("data", "sample"),
            n,
            varying_in=n * batch.seeds * (8 + _INDEX_BYTES),
            varying_out=n * frame,
            order="N",
        ),
    ]
    if away:
        lines.append(
            Line(
                ("data", "neighbors"),
                asked,
                varying_in=targets * _POSITION_BYTES,
                varying_out=targets * _COUNT_BYTES + edges * (_POSITION_BYTES + batch.edge_id_bytes),
                order="N hops (P - P/S)",
            )
        )
    if c.defers_rows:
        lines.append(
            Line(
                ("data", "rows"),
                n * expected_owners(batch.nodes, c.partitions, c.partitions),
                varying_in=n * batch.nodes * _POSITION_BYTES,
                varying_out=n * batch.nodes * batch.row_bytes,
                order="N P",
            )
        )
    return lines


def calls_by_time(c: Cluster, seconds: float, k: Constants, *, open_s: float | None = None) -> list[Line]:
    """Heartbeats of ranks, looks of servers at each other, and probes of their own ports.

    ``open_s``: seconds of them in which channels were open.
    """
    beats = c.ranks * c.servers_per_rank * (seconds if open_s is None else open_s) / c.beat_s
    looks = c.servers * min(c.servers - 1, WATCHED) * seconds / WATCH_S
    ids = beats * c.loaders * _CHANNEL_ID_BYTES
    return [
        Line(("control", "Heartbeat"), beats, varying_in=ids, varying_out=ids, order="R K"),
        Line(
            ("control", "Cluster by servers"),
            looks,
            varying_out=looks * k.member_bytes * c.servers,
            order=f"S min(S - 1, {WATCHED})",
        ),
        Line(("data", "ping"), c.servers * seconds / WATCH_S, order="S"),
    ]


def calls_at_close(c: Cluster, k: Constants) -> list[Line]:
    """Each rank closes its channels. A producer goes with the last of them."""
    return [Line(("control", "CloseChannel"), c.ranks * c.servers_per_rank * c.loaders, order="R K L")]


def in_flight_per_rank(c: Cluster) -> int:
    """Return the batches that one loader has requested and not consumed."""
    return min(c.prefetch * c.servers_per_rank, MAX_IN_FLIGHT)


def connections_per_server(c: Cluster) -> Mapping[str, float]:
    """Return the lasting connections to one server by kind, with all loaders at work."""
    away = c.partitions - c.own_partitions
    return {
        "control, from ranks": c.ranks * c.servers_per_rank / c.servers,
        "data, frames and queries of ranks": c.ranks,
        "data, rows of loaders": c.ranks * c.loaders * c.own_partitions if c.defers_rows else 0,
        "data, other servers": away,
    }
