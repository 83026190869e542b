"""Ids of the nodes of a type: integers or texts, from and to positions; and times of all nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from gigl_loader.arrays import Array, Int64Array, first_true
from gigl_loader.errors import FormatError
from gigl_loader.native import TextIndex, check_stop, find_texts, texts_at
from gigl_loader.tensors import ArraySpec

if TYPE_CHECKING:
    from gigl_loader.graph.manifest import Document

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


_ROWS = 1 << 16
_TOGETHER = 256
"""Texts of one native call, which keeps other Python threads waiting: they may have to come from a disk."""


class TextIds:
    """Texts that a graph was built with, of the node ids ``0 .. count - 1``.

    ``arrays`` are those of a ``native.TextIndex``: ``bytes`` (UTF-8), ``offsets`` and the hash ``slots``.
    They may come from a file: damage is a ``FormatError``, which begins with ``name``.
    """

    def __init__(self, name: str, arrays: Mapping[str, Array]) -> None:
        self._name = name
        self._bytes = arrays["bytes"]
        self._offsets = arrays["offsets"]
        self._slots = arrays["slots"]

    @classmethod
    def of_index(cls, name: str, index: TextIndex) -> TextIds:
        """Return the texts of an index, copied."""
        return cls(name, dict(zip(("bytes", "offsets", "slots"), index.arrays(), strict=True)))

    @classmethod
    def of_document(cls, document: Document) -> TextIds:
        """Return the texts of a file, which ``check`` has checked."""
        return cls(document.name, {name: document.array(name) for name in document.specs})

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays().values())

    def arrays(self) -> dict[str, Array]:
        """Return the arrays that a file must hold to restore these texts, by name."""
        return {"bytes": self._bytes, "offsets": self._offsets, "slots": self._slots}

    def texts(self, node_ids: Int64Array) -> list[str]:
        """Return the text of each node id, int64 [N]. The ids must lie in ``0 .. count - 1``."""
        ids = np.ascontiguousarray(node_ids, dtype=np.int64)
        found: list[str] = []
        try:
            for start in range(0, len(ids), _TOGETHER):
                check_stop()
                found += texts_at(self._bytes, self._offsets, ids[start : start + _TOGETHER])
        except (RuntimeError, UnicodeDecodeError) as error:
            raise FormatError(f"{self._name}: {error}") from None
        return found

    def all_texts(self) -> tuple[str, ...]:
        """Return all texts."""
        return tuple(self.texts(np.arange(len(self))))

    def find(self, texts: Sequence[str]) -> Int64Array:
        """Return the node id of each text, int64 [N], -1 for unknown texts."""
        found = np.empty(len(texts), np.int64)
        try:
            for start in range(0, len(texts), _TOGETHER):
                check_stop()
                some = list(texts[start : start + _TOGETHER])
                found[start : start + len(some)] = find_texts(self._bytes, self._offsets, self._slots, some)
        except RuntimeError as error:
            raise FormatError(f"{self._name}: {error}") from None
        return found

    def num_bytes(self, node_ids: Int64Array) -> int:
        """Return the size of the texts of these node ids, int64 [N], in UTF-8."""
        return int((self._offsets[node_ids + 1] - self._offsets[node_ids]).clip(0).sum())

    def verify(self) -> None:
        """Raise ``FormatError`` unless every text is found again."""
        for start in range(0, len(self), _ROWS):
            rows = np.arange(start, min(start + _ROWS, len(self)))
            if (wrong := first_true(self.find(self.texts(rows)) != rows)) is not None:
                raise FormatError(f"{self._name}: the text of node {start + wrong} is not found again")

    @staticmethod
    def check(count: int, specs: Mapping[str, ArraySpec], name: str) -> None:
        """Raise ``FormatError`` unless arrays of these specs can hold the texts of ``count`` nodes."""
        expected = {"bytes": "U8", "offsets": "I64", "slots": "I32"}
        if {key: spec.dtype for key, spec in specs.items()} != expected or any(
            len(spec.shape) != 1 for spec in specs.values()
        ):
            raise FormatError(f"{name}: arrays {sorted(specs)} cannot hold text ids")
        slots = specs["slots"].shape[0]
        if specs["offsets"].shape != (count + 1,) or slots.bit_count() != 1 or slots <= count:
            raise FormatError(
                f"{name}: {specs['offsets'].shape[0]} offsets and {slots} slots for {count} nodes"
            )


class NodeTimes(NamedTuple):
    """A time of every node of a type."""

    times: Int64Array
    """By position, int64 [N]."""
    order: Array
    """Positions by ascending (time, node id), int32 or int64 [N]."""

    def up_to(self, bounds: Int64Array, *, strictly: bool) -> Int64Array:
        """Return for each bound how many nodes are not later, or ``strictly`` earlier, int64."""
        is_early = np.less if strictly else np.less_equal
        low = np.zeros(len(bounds), np.int64)
        high = np.full(len(bounds), len(self.order), np.int64)
        while True:  # Binary searches, all at once: the sorted times are not stored.
            open_ = low < high
            if not open_.any():
                return low
            middle = np.where(open_, (low + high) // 2, 0)
            early = is_early(self.times[self.order[middle]], bounds)
            low = np.where(open_ & early, middle + 1, low)
            high = np.where(open_ & ~early, middle, high)

    @staticmethod
    def check(document: Document, count: int) -> None:
        """Raise ``FormatError`` unless a file has the times of ``count`` nodes."""
        order = document.specs.get("order")
        width = "I32" if order is not None and order.dtype == "I32" else "I64"
        document.require("times", ArraySpec("I64", (count,)))
        document.require("order", ArraySpec(width, (count,)))
        if len(document.specs) > 2:
            raise FormatError(f"{document.name}: other arrays than times and order")
