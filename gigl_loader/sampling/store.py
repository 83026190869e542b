"""Stores of partitions: the seam between a sampler and the owners of nodes.

One contract suite (``tests/contract``) runs against every implementation of ``NeighborStore``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gigl_loader import native
from gigl_loader.arrays import BoolArray, Bytes, Int64Array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.arrays import Float32Array
    from gigl_loader.graph.quantization import Quantized
    from gigl_loader.options import EdgeType, NodeType

NO_BOUND = 2**63 - 1
TREE_SHIFT = 40
"""In requests of a disjoint batch, targets are positions with the number of their tree above so many bits.
``csrc/tree.h`` has it, too."""
POSITION_MASK = (1 << TREE_SHIFT) - 1
MAX_TREES = 1 << 23
SLOT_BITS = 40
"""A partition holds fewer edges of a type than 2 to this power. In a batch, slots of partition p are offset
by ``p << SLOT_BITS``, so a partition need not know the edges of another. ``csrc/stitch.h`` has it, too."""


def check_batch_dependency(value: int, *, labor: bool) -> None:
    """Raise ``ValueError`` unless draws, by LABOR or not, may have this ``batch_dependency``."""
    if value != 1 and not labor:
        raise ValueError("only LABOR has a batch_dependency")
    if not 1 <= value < 2**31:
        raise ValueError(f"batch_dependency must lie in [1, 2**31), got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawRule:
    """How the neighbours of a target are drawn. Its C++ side is in ``csrc/draw_policy.h``."""

    fanout: int
    """-1 takes all neighbours."""
    replace: bool = False
    weight: str | None = None
    """Declared weight column: edges are drawn in proportion to it."""
    labor: bool = False
    """Take each neighbour with the same chance for all targets, each of which gets ``fanout`` on average."""
    time: str | None = None
    """Declared time of the edges or neighbours: neighbours later than the target's tree are not drawn."""
    last: bool = False
    """Take the latest neighbours in place of random ones."""
    window: bool = False
    """Neighbours earlier than the start of the target's tree are not drawn either."""
    monotone: bool = False
    """Neighbours later than the target's bound, the time of the edge that led to it, are not drawn."""
    strictly_earlier: bool = False
    """Neighbours at the very time of the tree, or of the bound, are not drawn either."""
    batch_dependency: int = 1
    """Of LABOR: batches of an epoch for which a node keeps its random number."""

    def __post_init__(self) -> None:
        if self.labor and (self.replace or self.weight is not None or self.time is not None):
            raise ValueError("LABOR has no replacement, no weights and no times")
        check_batch_dependency(self.batch_dependency, labor=self.labor)
        if self.last and (self.replace or self.time is None):
            raise ValueError("the last neighbours are drawn by time, without replacement")
        if self.time is None and (self.window or self.monotone or self.strictly_earlier):
            raise ValueError("windows, and neighbours that get no later, are drawn by time")
        if self.monotone and self.last:
            raise ValueError("the last neighbours are those of the whole tree, not of a bound")

    @property
    def most(self) -> int:
        """Neighbours of one target, at most; -1 where only their number bounds it.

        By LABOR, a target gets more than this with a probability below 1e-50.
        """
        return 8 * (self.fanout + 8) if self.labor and self.fanout >= 0 else self.fanout

    @property
    def native(self) -> native.DrawRule:
        """The rule as kernels take it."""
        return native.DrawRule(
            self.fanout,
            replace=self.replace,
            weighted=self.weight is not None,
            labor=self.labor,
            timed=self.time is not None,
            last=self.last,
            window=self.window,
            monotone=self.monotone,
            strictly_earlier=self.strictly_earlier,
            batch_dependency=self.batch_dependency,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NeighborRequest:
    """One hop of one edge type, for targets of one partition."""

    edge_type: EdgeType
    targets: Int64Array
    """Positions [T]; where draws are ``disjoint``, with their trees."""
    key: int
    """Of the batch: with hop, edge type and node id it addresses every draw. Of rules with a
    ``batch_dependency``, that of the epoch, to which the ``number`` belongs."""
    hop: int
    rule: DrawRule
    with_edge_ids: bool
    with_slots: bool
    max_edges: int = NO_BOUND
    """More are not drawn here. Not sent to a partition elsewhere, which has its own bound."""
    disjoint: bool = False
    """Each tree draws for itself: the number of its tree is in the address of a target's draws, too."""
    tree_times: Int64Array | None = None
    """Of every tree of the batch, by its number, where the rule is one of time: int64."""
    tree_starts: Int64Array | None = None
    """Where the window of every tree begins, by its number, where the rule has a window: int64."""
    bounds: Int64Array | None = None
    """Of the targets, where the rule is monotone: int64 [T]."""
    outward: bool = False
    """In a graph whose lists hold in-edges, request the out-edges of the targets that lie in this partition.
    Targets are any nodes of the edge type's source. All edges are taken: the fanout is -1."""
    number: int = 0
    """Of the batch in its epoch, where the rule has a ``batch_dependency``."""

    def part(self, begin: int, end: int) -> NeighborRequest:
        """Return the request for the targets ``[begin, end)`` of this one."""
        bounds = None if self.bounds is None else self.bounds[begin:end]
        return replace(self, targets=self.targets[begin:end], bounds=bounds)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InducedRequest:
    """All edges of one type that lead to targets of one partition from the nodes of a set."""

    edge_type: EdgeType
    """One of the graph's: not a label set."""
    targets: Int64Array
    """Positions [T]."""
    nodes: Int64Array
    """Positions of nodes of the neighbours' type, ascending, each once [N]."""
    with_edge_ids: bool
    with_slots: bool
    weight: str | None = None
    """Declared weight column: edges of weight 0 are left out."""
    max_edges: int = NO_BOUND
    """More are not returned. Not sent to a partition elsewhere, which has its own bound."""

    def part(self, begin: int, end: int) -> InducedRequest:
        """Return the request for the targets ``[begin, end)`` of this one."""
        return replace(self, targets=self.targets[begin:end])


@dataclass(frozen=True, slots=True, eq=False)
class Neighbors:
    """What was drawn: the neighbours of target i are the next ``counts[i]`` entries."""

    counts: npt.NDArray[np.int32]
    """[T]."""
    positions: npt.NDArray[Any]
    """Of the neighbours [E], int32 or int64."""
    edge_ids: npt.NDArray[Any] | None
    """[E], int32 or int64, where they were requested."""
    slots: Int64Array | None
    """[E], places of the edges in the partition's adjacency order, where they were requested."""
    times: Int64Array | None = None
    """[E], by which they were drawn, where the rule was monotone."""


class Values(NamedTuple):
    """Where the values of a quantised column go."""

    quantized: Quantized
    out: Float32Array
    """float32 [N, elements of a row]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GatherRequest:
    """Rows of some columns of one type, and where they go."""

    kind: NodeType | EdgeType
    columns: tuple[str, ...]
    rows: Int64Array
    """Positions of nodes, or slots of edges [N]."""
    distinct: bool
    """No row is named twice."""
    out: Sequence[Bytes]
    """Per column, uint8 [N, row bytes]: row i of it receives ``rows[i]``."""
    values: Sequence[Values | None] = ()
    """Per column, where the values of its codes go, or none. A ``FeatureSource`` does not write them."""


class FeatureSource(Protocol):
    """Fills columns of frames."""

    def gather(self, wants: Sequence[GatherRequest]) -> None:
        """Write all that is wanted. When this returns or raises, nothing more is written."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeatureRequest:
    """Rows of columns of one partition."""

    kind: NodeType | EdgeType
    columns: tuple[str, ...]
    rows: Int64Array
    """Positions of nodes, or slots of edges within the partition [N]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgeRequest:
    """Request whether edges exist between pairs of nodes whose lists belong to one partition."""

    edge_type: EdgeType
    targets: Int64Array
    """Positions of the nodes whose lists are searched [N]."""
    neighbors: Int64Array
    """Positions of the nodes that are looked for in them [N]."""


@dataclass(frozen=True, slots=True, eq=False)
class EdgeList:
    """Edges of one type. All arrays are int64 [E]."""

    targets: Int64Array
    """Positions of the nodes in whose lists the edges are."""
    neighbors: Int64Array
    edge_ids: Int64Array

    @classmethod
    def joined(cls, lists: Sequence[EdgeList]) -> EdgeList:
        """Return the edges of several lists, by ascending edge id."""
        ids = np.concatenate([each.edge_ids for each in lists])
        order = np.argsort(ids, kind="stable")
        return cls(
            np.concatenate([each.targets for each in lists])[order],
            np.concatenate([each.neighbors for each in lists])[order],
            ids[order],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WireCounts:
    """What a store has sent and received over a network since it was made."""

    bytes_in: int = 0
    bytes_out: int = 0
    calls: int = 0
    retries: int = 0
    placing_ns: int = 0
    """CPU time of copying rows from where they were received to their places: the last step of a gather."""
    damaged: int = 0
    """Attempts whose request or reply did not match its checksum."""
    hedged: int = 0
    """Requests that were sent to a second holder, because the first was slow."""

    def __add__(self, other: WireCounts) -> WireCounts:
        return WireCounts(
            bytes_in=self.bytes_in + other.bytes_in,
            bytes_out=self.bytes_out + other.bytes_out,
            calls=self.calls + other.calls,
            retries=self.retries + other.retries,
            placing_ns=self.placing_ns + other.placing_ns,
            damaged=self.damaged + other.damaged,
            hedged=self.hedged + other.hedged,
        )


class NeighborStore(Protocol):
    """Neighbours, rows and edges of one partition. Thread-safe.

    One that uses a network also has ``wire() -> WireCounts``; where some rows lie on this host,
    ``holds(kind, rows) -> bool [N]`` says which.
    """

    def sample(self, ask: NeighborRequest) -> Neighbors:
        """Draw neighbours: the same for the same request, always and everywhere.

        ``ValueError`` for a type or target that the partition does not have, ``FormatError`` for a
        damaged graph or reply, ``StorageUnavailable`` where the partition's holder does not answer.
        """

    def induced(self, ask: InducedRequest) -> Neighbors:
        """Return the edges to each target from the nodes, in the order of its list.

        Raises what ``sample`` raises.
        """

    def gather(self, ask: FeatureRequest, places: Int64Array, out: Sequence[Bytes]) -> None:
        """Write row ``ask.rows[i]`` of column c to ``out[c][places[i]]``. Raises what ``sample`` raises.

        ``out`` has one uint8 matrix of shape [anything, row bytes] per column; ``places`` differ. When
        this returns or raises, nothing more is written.
        """

    def contains(self, ask: EdgeRequest) -> BoolArray:
        """Return, bool [N], whether each pair is joined by an edge. Raises what ``sample`` raises."""

    def close(self) -> None:
        """Let go of files and connections. Closing twice is fine."""
