"""Texts of columns that are lists, booleans, dates or numbers: options and queries that store them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gigl_loader.arrays import Array
from gigl_loader.partition.array_table import ArrayTable
from gigl_loader.partition.readers import TEXT, Table
from gigl_loader.partition.views import reader_of, readers_of

_FIRST_ROWS = 1000
"""Rows whose texts may be lists of numbers, or names of categories."""
_OFTEN = 4
"""Times that the texts of categories come in them, on average."""


def conversions(table: Table, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the columns of the file, of these, that are dates or numbers, and queries that convert them."""
    if not names or not hasattr(reader_of(table), "header") or len(readers_of(table)) > 1:
        return [], []
    from gigl_loader.partition.text_queries import converting_queries

    return converting_queries(reader_of(table), names)


def way_of_texts(table: Table, name: str) -> str | None:
    """Return the option, and its value, by which a column of texts is stored. ``None``: it is left out."""
    return next((way for way, holds in _WAYS.items() if holds(table, name)), None)


def _first_texts(table: Table, name: str) -> Array:
    none = {name: np.empty(0, object)}
    return (
        next(iter(table.read([name], _FIRST_ROWS)), none)[name] if table.columns[name] == TEXT else none[name]
    )


def _holds_booleans(table: Table, name: str) -> bool:
    """Return whether the first texts of a column are ``yes`` and ``no``, or the like."""
    if not hasattr(reader_of(table), "header"):
        return False
    from gigl_loader.partition.readers.column_types import BOOLEANS

    texts = {str(text).strip().lower() for text in _first_texts(table, name)} - {""}
    return texts <= {*BOOLEANS[0], *BOOLEANS[1]} and all(not texts.isdisjoint(each) for each in BOOLEANS)


def _holds_categories(table: Table, name: str) -> bool:
    """Return whether the first texts of a column are a few that come again and again."""
    texts = _first_texts(table, name)
    return len(texts) > 0 and _OFTEN * len({*texts} - {""}) <= len(texts)


def _holds_vectors(table: Table, name: str) -> bool:
    """Return whether the first texts of a column are lists of numbers, all of one length."""
    if isinstance(reader_of(table), ArrayTable) or not len(texts := _first_texts(table, name)):
        return False
    from gigl_loader.partition.vector_table import common_length

    return common_length(texts) is not None


_WAYS = {"--vector": _holds_vectors, "--dtype =bool": _holds_booleans, "--encode": _holds_categories}
"""Options by which texts are stored, each with what tells that these are such texts."""
