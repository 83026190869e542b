"""Negative links: drawn by addressed randomness, as ranks of nodes by ascending node id.

Draw ``r`` of negative ``j`` takes the two Philox words of the counter ``(j, NEGATIVES | r)`` under the key of
the batch: the first for the source, the second for the destination. ``docs/internals/randomness.md`` has
the rules.
"""

from __future__ import annotations

import base64
import binascii
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from gigl_loader.graph.schema import held_out_list
from gigl_loader.graph.type_columns import TypeColumns, column_of
from gigl_loader.native import check_stop, philox_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.arrays import BoolArray, Float64Array, Int64Array
    from gigl_loader.graph.graph import Graph
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.partitioned import PartitionedStore

MAX_DRAWS = 100
"""Draws of a strict negative, after which the last one is kept."""

MAX_AMOUNT = 1 << 20
"""Negatives per link."""

_Words: TypeAlias = "np.ndarray[Any, np.dtype[np.uint64]]"

_MAX_TOGETHER = 1 << 16
"""Negatives that are drawn together, in some 10 ms. Between two draws the stop flag of the batch is read."""

_NEGATIVES = 0xFF << 56
"""In the address of a draw, where the draws of neighbours have edge type and hop."""


@dataclass(frozen=True, eq=False)
class NodeWeights:
    """Weights by which nodes are drawn: float32 [N], by ascending node id, not negative."""

    values: np.ndarray[Any, np.dtype[np.float32]]

    def __post_init__(self) -> None:
        values = self.values
        wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
        if len(wrong):
            raise ValueError(
                f"weights must be finite and not negative: weight {wrong[0]} is {values[wrong[0]]:g}"
            )
        if not values.any():
            raise ValueError("the weights are all zero: no node can be drawn")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeWeights) and np.array_equal(self.values, other.values)

    def __hash__(self) -> int:
        return hash(self.values.tobytes())

    @cached_property
    def sums(self) -> Float64Array:
        """Running sums, one after the other, float64 [N]."""
        return np.cumsum(self.values, dtype=np.float64)

    def ranks(self, words: np.ndarray[Any, np.dtype[np.uint64]]) -> Int64Array:
        """Return the ranks that random words (uint64 [N]) draw."""
        return _by_sums(words, self.sums, self.sums[-1])

    def to_json(self) -> str:
        """Return the weights as base64 of their little-endian bytes."""
        return base64.b64encode(self.values.astype("<f4").tobytes()).decode()

    @classmethod
    def from_json(cls, value: object, *, count: int, what: str) -> NodeWeights:
        """Read weights of ``count`` nodes from outside. ``ValueError`` names the rule that is broken."""
        try:
            data = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
        except binascii.Error:
            data = b""
        if not count or len(data) != 4 * count:
            raise ValueError(f"{what} is not the base64 text of {count} float32 weights")
        return cls(np.frombuffer(data, "<f4"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Negatives:
    """Which negatives a batch of links has. A frozen value, checked at birth."""

    mode: Literal["binary", "triplet"]
    """Binary negatives are pairs of drawn nodes; a negative of a triplet has the source of its link."""
    amount: float = 1.0
    """Per link. A batch of M links has ``ceil(M * amount)``; negative j belongs to link ``j % M``."""
    strict: bool = False
    """A negative is no edge of the type, if one is found within ``MAX_DRAWS`` draws."""
    src_weight: NodeWeights | None = None
    dst_weight: NodeWeights | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("binary", "triplet"):
            raise ValueError(f"the mode of negatives is 'binary' or 'triplet', got {self.mode!r}")
        if not 0 < self.amount <= MAX_AMOUNT:
            raise ValueError(f"amount of negatives must lie in (0, {MAX_AMOUNT}], got {self.amount}")
        if self.mode == "triplet" and self.amount != math.ceil(self.amount):
            raise ValueError(f"amount must be a whole number for triplets, got {self.amount}")
        if self.mode == "triplet" and self.src_weight is not None:
            raise ValueError("src_weight has no meaning for triplets, whose negatives keep their source")

    def count(self, num_links: int) -> int:
        """Return the number of negatives of a batch."""
        return math.ceil(self.amount * num_links)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        weights = {"src_weight": self.src_weight, "dst_weight": self.dst_weight}
        return {
            "mode": self.mode,
            "amount": self.amount,
            "strict": self.strict,
            **{name: weight.to_json() for name, weight in weights.items() if weight is not None},
        }

    @classmethod
    def from_json(cls, value: object, schema: GraphSchema, edge_type: EdgeType) -> Negatives:
        """Read the fields of a plan from outside. ``ValueError`` names the rule that is broken."""
        fields = dict(value) if isinstance(value, dict) else {}
        mode, amount, strict = (fields.pop(name, None) for name in ("mode", "amount", "strict"))
        if mode not in ("binary", "triplet") or type(amount) not in (int, float) or type(strict) is not bool:
            raise ValueError("negatives are an object of mode, amount and strict")
        if strict and edge_type not in schema.edges:
            raise ValueError(f"strict negatives of links {edge_type}, which are no edge type")
        weights = {
            name: NodeWeights.from_json(fields.pop(name), count=schema.nodes[node_type].count, what=name)
            for name, node_type in (("src_weight", edge_type[0]), ("dst_weight", edge_type[2]))
            if name in fields
        }
        if fields:
            raise ValueError(f"unknown field {min(fields, key=str)!r:.100} of negatives")
        return cls(mode=mode, amount=float(amount), strict=strict, **weights)


class DrawnNegatives(NamedTuple):
    """The negatives of a batch."""

    src: Int64Array
    """Positions [J]: of triplets, the sources of their links."""
    dst: Int64Array
    not_strict: int
    """Number of strict negatives that are edges nevertheless."""
    too_late: int
    """How many have an end that is not early enough for their link."""


class NegativeDrawer:
    """Draws the negatives of batches of links of one edge type. A function of key and links alone."""

    def __init__(
        self,
        graph: Graph,
        store: PartitionedStore | None,
        edge_type: EdgeType,
        negatives: Negatives,
        *,
        time_attr: TypeColumns = None,
        strictly_earlier: bool = False,
    ) -> None:
        """``store`` says which edges exist. It is needed where negatives are strict.

        Nodes of types that have the time ``time_attr`` are drawn among nodes not later than the link, or
        ``strictly_earlier``.
        """
        self._graph = graph
        self._store = store
        self._edge_type = edge_type
        self._negatives = negatives
        self._inward = graph.schema.edge_dir == "in"
        held_out = held_out_list(edge_type)
        self._held_out = held_out if held_out in graph.schema.labels else None
        weights = (negatives.src_weight, negatives.dst_weight)
        self._ends = [
            _End(graph, node_type, weight, time_attr, strictly_earlier=strictly_earlier)
            for node_type, weight in zip((edge_type[0], edge_type[2]), weights, strict=True)
        ]

    def draw(self, key: int, src: Int64Array, times: Int64Array | None = None) -> DrawnNegatives:
        """Return the negatives of a batch.

        ``src``: positions of the links' sources, int64 [M]. ``times``: of the links, int64 [M], where
        negatives are drawn in time.
        """
        count = self._negatives.count(len(src))
        blocks = [
            self._draw_block(key, np.arange(first, min(first + _MAX_TOGETHER, count)), src, times)
            for first in range(0, max(count, 1), _MAX_TOGETHER)
        ]
        if len(blocks) == 1:
            return blocks[0]
        return DrawnNegatives(
            np.concatenate([each.src for each in blocks]),
            np.concatenate([each.dst for each in blocks]),
            sum(each.not_strict for each in blocks),
            sum(each.too_late for each in blocks),
        )

    def _draw_block(
        self, key: int, numbers: Int64Array, src: Int64Array, times: Int64Array | None
    ) -> DrawnNegatives:
        """Return the negatives with these numbers, which follow each other."""
        owners = numbers % max(len(src), 1)
        early = [end.early(None if times is None else times[owners]) for end in self._ends]
        neg_src, neg_dst = self._draw(key, numbers, src[owners], early, draw=0)
        pending = self._edges_among(np.arange(len(numbers)), neg_src, neg_dst)
        for draw in range(1, MAX_DRAWS):
            if not len(pending):
                break
            check_stop()
            some = [None if each is None else each[pending] for each in early]
            found = self._draw(key, numbers[pending], src[owners[pending]], some, draw=draw)
            neg_src[pending], neg_dst[pending] = found
            pending = self._edges_among(pending, neg_src, neg_dst)
        drawn_ends = early if self._negatives.mode == "binary" else early[1:]
        late = [each == 0 for each in drawn_ends if each is not None]
        return DrawnNegatives(neg_src, neg_dst, len(pending), int(np.any(late, axis=0).sum()) if late else 0)

    def _draw(
        self,
        key: int,
        numbers: Int64Array,
        src: Int64Array,
        early: Sequence[Int64Array | None],
        *,
        draw: int,
    ) -> tuple[Int64Array, Int64Array]:
        """Make one draw of the negatives with these numbers, given the sources of their links."""
        first, second = np.empty(len(numbers), np.uint64), np.empty(len(numbers), np.uint64)
        place = np.full(len(numbers), _NEGATIVES | draw, np.uint64).view(np.int64)
        philox_words(key, numbers, place, first, second)
        destinations = self._ends[1].nodes(second, early[1])
        if self._negatives.mode == "triplet":
            return src, destinations
        return self._ends[0].nodes(first, early[0]), destinations

    def _edges_among(self, places: Int64Array, src: Int64Array, dst: Int64Array) -> Int64Array:
        """Return at which of these places a negative should be no edge, and is one."""
        if not self._negatives.strict:
            return places[:0]
        assert self._store is not None
        targets, neighbors = (dst, src) if self._inward else (src, dst)
        found: BoolArray = self._store.contains(self._edge_type, targets[places], neighbors[places])
        if self._held_out is not None:
            found = found | self._store.contains(self._held_out, src[places], dst[places])
        return places[found]


class _End:
    """The nodes that one end of a negative is drawn from."""

    def __init__(
        self,
        graph: Graph,
        node_type: NodeType,
        weights: NodeWeights | None,
        time_attr: TypeColumns,
        *,
        strictly_earlier: bool,
    ) -> None:
        self._graph = graph
        self._type = node_type
        self._count = graph.schema.nodes[node_type].count
        self._weights = weights
        self._strictly = strictly_earlier
        name = column_of(time_attr, node_type, graph.schema.nodes[node_type].times)
        self._times = None if name is None else graph.node_times(node_type, name)
        self._sums: Float64Array | None = None
        if self._times is not None and weights is not None:
            of_position = np.empty(self._count, np.float64)
            of_position[graph.all_positions(node_type)] = weights.values
            self._sums = np.cumsum(of_position[self._times.order])

    def early(self, times: Int64Array | None) -> Int64Array | None:
        """Return how many nodes, in order of time, each negative may have: 0 where none is early enough.

        ``None`` where all may be drawn. ``times``: of the negatives, int64 [J].
        """
        if self._times is None or times is None:
            return None
        counts = self._times.up_to(times, strictly=self._strictly)
        if self._sums is not None:  # Of nodes without weight, none can be drawn.
            sums = np.where(counts > 0, self._sums[np.maximum(counts, 1) - 1], 0.0)
            counts[sums == 0] = 0
        return counts

    def nodes(self, words: _Words, early: Int64Array | None) -> Int64Array:
        """Return the positions of nodes that random words draw, of the ``early`` first in order of time."""
        ranks = _below(words, self._count) if self._weights is None else self._weights.ranks(words)
        nodes = self._graph.at_ranks(self._type, ranks)
        if early is None or self._times is None:
            return nodes
        if self._sums is None:
            in_time = _below(words, np.maximum(early, 1))
        else:
            in_time = _by_sums(words, self._sums, self._sums[np.maximum(early, 1) - 1])
        return np.where(early > 0, self._times.order[in_time].astype(np.int64), nodes)


def _by_sums(words: _Words, sums: Float64Array, totals: Float64Array | np.float64) -> Int64Array:
    """Return the entries that random words (uint64 [N]) draw by running sums of weights, up to totals."""
    uniforms = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    drawn = np.searchsorted(sums, uniforms * totals, side="right")
    # A product may round up to the total, beyond the last entry that has a weight.
    return np.asarray(np.minimum(drawn, np.searchsorted(sums, totals)), np.int64)


def _below(words: _Words, counts: int | Int64Array) -> Int64Array:
    """Return the upper 64 bits of each word times its count: numbers below it."""
    low, high = words & np.uint64(0xFFFFFFFF), words >> np.uint64(32)
    whole = np.asarray(counts, np.int64).astype(np.uint64)
    small, large = whole & np.uint64(0xFFFFFFFF), whole >> np.uint64(32)
    # Four products of 32 bits; `count` is below 2**63, so that no sum here overflows.
    middle = high * small + (low * small >> np.uint64(32))
    cross = low * large + (middle & np.uint64(0xFFFFFFFF))
    upper = high * large + (middle >> np.uint64(32)) + (cross >> np.uint64(32))
    return np.asarray(upper, np.int64)
