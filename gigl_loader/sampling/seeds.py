"""Seeds of a batch: the first of its three stages, from the entries of a request to nodes by type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from gigl_loader.graph.type_columns import TypeColumns, column_of
from gigl_loader.native import philox
from gigl_loader.sampling.costs import BatchTooLarge
from gigl_loader.sampling.request import SEED, SEED_TIME, TIME, TIME_START, InputColumn
from gigl_loader.sampling.store import MAX_TREES, TREE_SHIFT

if TYPE_CHECKING:
    from gigl_loader.arrays import Array, Int64Array
    from gigl_loader.graph.schema import GraphSchema, NodeType
    from gigl_loader.graph.times import TimeWindow
    from gigl_loader.sampling.costs import BatchBounds
    from gigl_loader.sampling.plan import SamplerContext
    from gigl_loader.sampling.request import BatchRequest


class Trees(Protocol):
    """How the trees around seeds are bound in time."""

    @property
    def time_attr(self) -> TypeColumns: ...
    @property
    def time_window(self) -> TimeWindow: ...
    @property
    def with_starts(self) -> bool: ...


class TreeTimes(NamedTuple):
    """Times of the trees of a batch, by number, int64 [B] each."""

    of_entries: Int64Array
    """Of the entries, as the batch has them."""
    last: Int64Array
    """No tree has anything later."""
    first: Int64Array | None
    """No tree has anything earlier; ``None`` without a window."""


class EntryTimes:
    """Times of the entries of a request: the column of the request, else the times of its nodes."""

    def __init__(self, context: SamplerContext, node_type: NodeType, hops: Trees, *, given: bool) -> None:
        """``given``: requests have times. Where the plan is not one of time, there are none."""
        self._given = given
        self._hops = hops
        self._of_nodes: Int64Array | None = None
        name = column_of(hops.time_attr, node_type, context.graph.schema.nodes[node_type].times)
        if name is not None and not given:
            self._of_nodes = context.graph.node_times(node_type, name).times

    def of(self, request: BatchRequest) -> TreeTimes | None:
        """Return the times of the trees of all entries; ``None`` where there are none."""
        window = self._hops.time_window
        if self._hops.time_attr is None:
            return None
        if self._given:
            times = np.asarray(request.inputs[TIME])
        elif self._of_nodes is not None:
            times = np.asarray(self._of_nodes[request.inputs[SEED]])
        else:
            assert isinstance(window, tuple), "check_entry_times"
            times = np.full(len(request), window[1])
        if isinstance(window, tuple):
            return TreeTimes(times, np.minimum(times, window[1]), np.full(len(times), window[0]))
        if window is not None:
            lowest = np.iinfo(np.int64).min
            return TreeTimes(times, times, np.maximum(times, lowest + window) - window)
        return TreeTimes(times, times, request.inputs[TIME_START] if self._hops.with_starts else None)


def time_inputs(hops: Trees, *, given: bool) -> tuple[InputColumn, ...]:
    """Return the columns of times of an input: of the entries, where ``given``, and of their windows."""
    names = (TIME,) * given + (TIME_START,) * hops.with_starts
    return tuple(map(InputColumn, names))


def check_entry_times(schema: GraphSchema, node_type: NodeType, hops: Trees, *, given: bool) -> None:
    """Raise ``ValueError`` unless it is known from when the trees around nodes of a type are."""
    if given and hops.time_attr is None:
        raise ValueError("times of seeds have no meaning without time_attr, the column that they bound")
    if given or hops.time_attr is None or isinstance(hops.time_window, tuple):
        return
    for kind, edges in schema.edges.items():
        if (name := column_of(hops.time_attr, kind, edges.times)) is not None:
            raise ValueError(
                f"time_attr {name!r} is a time of edges {kind}: pass input_time, the time of each seed"
            )
    if column_of(hops.time_attr, node_type, schema.nodes[node_type].times) is None:
        raise ValueError(
            f"nodes of type {node_type!r} have no time {hops.time_attr!r}: pass input_time, the time of each "
            "seed"
        )


class Exclusion(NamedTuple):
    """Drawn edges of one type that join pairs of seeds and are removed."""

    edge_type: int
    """Number of the type in the plan."""
    targets: slice | Array
    """Of the pairs: indices into all seeds of the batch, group after group."""
    neighbors: slice | Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchSeeds:
    """The nodes around which a batch is sampled, and the arrays of its frame that belong to them."""

    key: int
    """Of every draw of the batch."""
    groups: Sequence[tuple[int, Int64Array]]
    """Number of the node type, and positions, in a disjoint batch with their trees. A node may come twice; a
    tree has it once."""
    arrays: Mapping[str, Array]
    """Arrays of the frame, by name."""
    indices: Mapping[str, slice | Array] = field(default_factory=dict)
    """Arrays of the frame that are local indices of seeds: by name, which of all seeds, group after group.
    -1 stands for no seed, and stays -1."""
    excluded: Sequence[Exclusion] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    """Numbers for the metadata of the frame, by name."""
    times: TreeTimes | None = None
    """Of the trees, of batches that are drawn in time."""

    def excluded_positions(self) -> list[tuple[int, Int64Array, Int64Array]]:
        """Return the excluded pairs as number of the edge type, positions of targets, and of neighbours."""
        if not self.excluded:
            return []
        positions = np.concatenate([group for _, group in self.groups])
        return [
            (each.edge_type, positions[each.targets], positions[each.neighbors]) for each in self.excluded
        ]

    def frame_arrays(self, locals_: Int64Array) -> dict[str, Array]:
        """Return all arrays of the frame. ``locals_``: local index of each seed, int64 [S]."""
        with_none = np.append(locals_, locals_.dtype.type(-1))  # -1 finds the last entry.
        return {**self.arrays, **{name: with_none[which] for name, which in self.indices.items()}}


class Seeder(Protocol):
    """Makes the seeds of a request. A function of plan and request alone. Not thread-safe."""

    def seeds(self, request: BatchRequest, bounds: BatchBounds) -> BatchSeeds:
        """Return the seeds. ``BatchTooLarge`` for more than the bounds allow, before memory is taken."""


class NodeSeeder:
    """The seeds of batches whose input is nodes: the nodes themselves."""

    def __init__(
        self,
        context: SamplerContext,
        seed_type: NodeType,
        *,
        disjoint: bool = False,
        times: EntryTimes | None = None,
    ) -> None:
        self._disjoint = disjoint
        self._times = times
        self._ids = context.graph.node_ids(seed_type)
        self._type = list(context.graph.schema.nodes).index(seed_type)
        self._run_seed = context.plan.run_seed

    def seeds(self, request: BatchRequest, bounds: BatchBounds) -> BatchSeeds:
        positions = request.inputs[SEED]
        ids = positions if self._ids is None else self._ids[positions]
        times = None if self._times is None else self._times.of(request)
        return BatchSeeds(
            key=request.key(self._run_seed, ids),
            groups=[(self._type, in_trees(positions, np.arange(len(positions)), disjoint=self._disjoint))],
            arrays={"seeds": ids, "input_id": request.index, **timed(times)},
            times=times,
        )


def timed(times: TreeTimes | None) -> dict[str, Array]:
    """Return the array of a frame that has the times of entries, where there are some."""
    return {} if times is None else {SEED_TIME: times.of_entries}


def in_trees(positions: Int64Array, trees: Int64Array, *, disjoint: bool) -> Int64Array:
    """Return positions (int64 [N]) with the numbers of their trees, in a disjoint batch, else as they are.

    ``BatchTooLarge`` for a number that no tree has.
    """
    if not disjoint:
        return positions
    if len(trees) and int(trees.max()) >= MAX_TREES:
        raise BatchTooLarge(
            f"a batch has at most {MAX_TREES:,} disjoint trees: ask for fewer entries a batch"
        )
    return positions | trees.astype(np.int64) << TREE_SHIFT


def tree_key(key: int, tree: int) -> int:
    """Return the key of every draw in a tree of a disjoint batch. ``csrc/tree.h`` has it, too."""
    return philox(key, tree, 0xFE01 << 48)[0]
