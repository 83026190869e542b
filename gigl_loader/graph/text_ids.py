"""Text ids of a node type: the text of each node id, and the node id of each text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gigl_loader.arrays import Array, Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.native import TextIndex, check_stop, find_texts, texts_at
from gigl_loader.tensors import ArraySpec

__all__ = ["TextIds"]

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
            wrong = np.flatnonzero(self.find(self.texts(rows)) != rows)
            if len(wrong):
                raise FormatError(
                    f"{self._name}: the text of node {start + int(wrong[0])} is not found again"
                )

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
