"""Shares of the types in the memory of a cache, by the bytes that batches want of them.

The first batches may lack a type, or have little of it. So every type has a floor, all batches that are
known count, and shares are set anew where later batches want others.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gigl_loader.options import EdgeType, NodeType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gigl_loader.arrays import Int64Array

Kind: TypeAlias = NodeType | EdgeType

_FLOOR = 8
"""One part in nine of the memory is shared alike, whatever batches want."""
_DIFFERS = 1.5
"""Shares are set anew where a type lacks a third of its slots: all rows are read again then."""
_MATTERS = 64
"""And where one part in so many of the memory moves."""
_LOOK_EVERY = 256
"""Batches between two looks, at most. At first they double: 1, 2, 4 ... batches."""


@dataclass(frozen=True, slots=True)
class SlotCost:
    """Memory of a slot of a type, and rows that the type has."""

    nbytes: int
    num_rows: int


class CacheShares:
    """Numbers of slots by type. For one thread."""

    def __init__(self, costs: Mapping[Kind, SlotCost]) -> None:
        self._costs = costs
        self._wanted: Counter[Kind] = Counter()
        """Rows that batches wanted. Halved now and then, so that they follow what is wanted."""
        self._batches = 0
        self._step = self._until_look = 1

    def count(self, batches: Sequence[Mapping[Kind, Int64Array]]) -> None:
        """Count the rows that the batches of a window want."""
        self._wanted.update(_rows_of(batches))
        self._batches += len(batches)
        self._until_look -= len(batches)
        if self._batches >= 2 * _LOOK_EVERY:
            self._batches //= 2
            self._wanted = Counter({kind: rows // 2 for kind, rows in self._wanted.items()})

    def sizes(self, nbytes: int, ahead: Sequence[Mapping[Kind, Int64Array]] = ()) -> dict[Kind, int]:
        """Return the slots of each type in ``nbytes`` of memory, at least one. ``ahead``: further batches."""
        wanted = self._wanted + _rows_of(ahead)
        used = {kind: wanted[kind] * cost.nbytes for kind, cost in self._costs.items()}
        total = max(sum(used.values()), 1)
        weights = {kind: _FLOOR * len(used) * each + total for kind, each in used.items()}
        left, sizes = nbytes, {}
        # Types first that need less than their share for all of their rows: the others have the rest.
        for kind in sorted(weights, key=lambda kind: self._bytes_of(kind) / weights[kind]):
            cost = self._costs[kind]
            slots = min(left * weights[kind] // sum(weights.values()) // cost.nbytes, cost.num_rows)
            sizes[kind] = max(slots, 1)
            left -= slots * cost.nbytes
            del weights[kind]
        return sizes

    def differ(
        self, now: Mapping[Kind, int], nbytes: int, ahead: Sequence[Mapping[Kind, Int64Array]]
    ) -> bool:
        """Whether to set the numbers of slots ``now`` anew. Looks only now and then."""
        if self._until_look > 0:
            return False
        self._step = min(2 * self._step, _LOOK_EVERY)
        self._until_look = self._step
        return any(
            slots > _DIFFERS * now[kind]
            and (slots - now[kind]) * self._costs[kind].nbytes * _MATTERS > nbytes
            for kind, slots in self.sizes(nbytes, ahead).items()
        )

    def _bytes_of(self, kind: Kind) -> int:
        return self._costs[kind].nbytes * self._costs[kind].num_rows


def _rows_of(batches: Iterable[Mapping[Kind, Int64Array]]) -> Counter[Kind]:
    rows: Counter[Kind] = Counter()
    for places in batches:
        rows.update({kind: len(each) for kind, each in places.items()})
    return rows
