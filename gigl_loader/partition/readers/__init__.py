"""Readers of tables: one module for each format, and what they have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gigl_loader.arrays import Array
from gigl_loader.graph.schema import Column

Kind = Column | str
"""Contents of a column: numbers of a dtype and row shape, ``TEXT``, or the name of another type of values."""

TEXT: Kind = "text"
"""Texts: an object array of ``str`` when read, with empty ones for missing values."""

TEXT_LISTS: Kind = "lists of texts"
"""Lists of texts, which read as texts with ``LIST_DELIMITER`` between those of a row."""

LIST_DELIMITER = "\x1f"
"""The unit separator of ASCII."""


@dataclass(frozen=True, slots=True)
class NewColumn:
    """Name and dtype of a column of a file in the graph."""

    name: str
    dtype: str | None = None
    """``None``: that of the values."""


class Table(Protocol):
    """Rows of named columns. Reading starts afresh with every call, in bounded memory.

    It is pickled for tasks in other processes. Several tasks read it at once if it has ``shards(rows)``,
    which returns tables of about ``rows`` rows each, in order. Their ``where`` gives places in the whole
    table.
    """

    @property
    def name(self) -> str:
        """Name of the table in messages: usually its file."""

    @property
    def columns(self) -> Mapping[str, Kind]:
        """Contents of each column. Columns without numbers are read only for ids and ``split``."""

    @property
    def num_rows(self) -> int: ...

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        """Yield these columns in order, at most ``rows`` rows at a time: [R, ...], dtypes as in ``columns``.

        Missing numbers may be masked (``np.ma``), missing texts are empty.
        """

    def where(self, column: str, row: int) -> str:
        """Return the place of a value for a message: file, column and row."""


def as_texts(array: Array) -> Array:
    """Return fixed-size texts (NumPy's ``U`` and ``S``) as an array of ``str``, any other array as it is."""
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8")
    return array.astype(object) if array.dtype.kind == "U" else array
