"""Readers of feature rows: the seam between a batch and the place where its features lie.

A row is named by its *place*: the position of a node, or the slot of an edge as a partitioned store numbers
it (``sampling/store.py``). Which reader serves a type never changes a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.arrays import Bytes, Int64Array


class RowReader(Protocol):
    """Reads the feature rows of one node or edge type, all of its columns. Thread-safe."""

    def read(self, rows: Int64Array, targets: Int64Array, out: Sequence[Bytes]) -> None:
        """Write row ``rows[i]`` of column c to ``out[c][targets[i]]``.

        ``rows`` ascends; a row may come several times. ``targets`` differ. ``out`` has one uint8 matrix of
        shape [anything, row bytes] per column. When this returns or raises, nothing more is written.

        Raises ``FormatError`` for a damaged file, ``OSError`` for one that cannot be read, and
        ``StorageUnavailable`` where an owner does not answer.
        """

    def close(self) -> None:
        """End reads in progress, and let go of files. Closing twice is fine."""
