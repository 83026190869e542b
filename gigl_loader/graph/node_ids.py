"""Directory of the node ids of a node type: id to position, and position to id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gigl_loader.arrays import Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.tensors import ArraySpec

__all__ = ["Directory"]

IntArray = npt.NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Directory:
    """Node ids of one type by position, and positions by node id.

    Identity needs no array. Dense ids (a permutation of 0..count-1) look positions up in ``places``;
    sparse ids search ``keys``, or ``ids`` itself where ids ascend with positions.
    """

    count: int
    ids: Int64Array | None = None
    """Node id by position, int64 [N]. ``None``: ids equal positions."""
    keys: Int64Array | None = None
    """All ids, ascending, int64 [N]. ``None``: ``ids`` itself ascends, or ids are dense."""
    places: IntArray | None = None
    """Position of each key (sparse) or of each id (dense), [N]."""

    @property
    def kind(self) -> Literal["identity", "dense", "sparse"]:
        if self.ids is None:
            return "identity"
        return "dense" if self.keys is None and self.places is not None else "sparse"

    @property
    def ascending(self) -> bool:
        """Whether positions and node ids are in the same order."""
        return self.places is None

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (self.ids, self.keys, self.places) if array is not None)

    def node_ids(self, positions: IntArray) -> Int64Array:
        """Return the node ids at ``positions``, int64 [N]. Positions must be valid."""
        return np.asarray(positions if self.ids is None else self.ids[positions], dtype=np.int64)

    def find(self, ids: Int64Array) -> Int64Array:
        """Return the position of each id, int64 [N], -1 for unknown ids."""
        if self.ids is None or (self.keys is None and self.places is not None):
            if len(ids) == 0 or (int(ids.min()) >= 0 and int(ids.max()) < self.count):
                return ids.copy() if self.places is None else self._place(ids)
            known = (ids >= 0) & (ids < self.count)
            if self.places is None:
                return np.where(known, ids, -1)
            return np.where(known, self._place(np.where(known, ids, 0)), -1)
        keys = self.ids if self.keys is None else self.keys
        if self.count == 0:
            return np.full(len(ids), -1, dtype=np.int64)
        rank = np.minimum(np.searchsorted(keys, ids), self.count - 1)
        return np.where(keys[rank] == ids, self._place(rank), -1)

    def _place(self, rank: Int64Array) -> Int64Array:
        if self.places is None or self.count == 0:
            return rank
        return self.places[rank].astype(np.int64)

    def in_id_order(self, first: int = 0, count: int | None = None) -> Int64Array:
        """Return positions by ascending node id, int64: all, or ``count`` of them from index ``first``."""
        end = self.count if count is None else min(first + count, self.count)
        if self.places is None:
            return np.arange(first, end)
        return self.places[first:end].astype(np.int64)

    def at_ranks(self, ranks: Int64Array) -> Int64Array:
        """Return the positions of the nodes that have these indices by ascending node id, int64 [N]."""
        return ranks if self.places is None else self.places[ranks].astype(np.int64)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays that a file must hold to restore this directory, by name."""
        named = {"ids": self.ids, "sorted_ids": self.keys, "positions": self.places}
        return {name: array for name, array in named.items() if array is not None}

    @staticmethod
    def check(kind: str, count: int, specs: Mapping[str, ArraySpec], what: str) -> None:
        """Raise ``FormatError`` unless arrays of these specs can form a directory of that kind."""
        allowed = (
            ({"ids", "positions"},) if kind == "dense" else ({"ids"}, {"ids", "sorted_ids", "positions"})
        )
        if set(specs) not in allowed:
            raise FormatError(f"{what}: arrays {sorted(specs)} cannot hold {kind} ids")
        for name, spec in specs.items():
            dtypes = ("I32", "I64") if name == "positions" else ("I64",)
            if spec.dtype not in dtypes or spec.shape != (count,):
                raise FormatError(
                    f"{what}: {name!r} is {spec.dtype} {list(spec.shape)}, not {dtypes[-1]} [{count}]"
                )
