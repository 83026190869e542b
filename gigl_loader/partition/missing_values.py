"""Missing values of tables: the report of all of them, and tables with other values in their place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

import numpy as np

from gigl_loader.arrays import Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import Column
from gigl_loader.partition.readers import Kind, Table, numbered
from gigl_loader.partition.refusals import OptionsNeeded, quoted
from gigl_loader.partition.views import TableView
from gigl_loader.tensors import STORAGE_DTYPES

_SHOWN = 3
_ROWS = 1 << 16
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_OF_IDS = " (ids cannot be filled)"
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


Cure = tuple[Literal["fill", "drop"], str]
"""Option that helps a column of which values are missing, and its value without a type, as ``age=mean``."""


def missing_label(kind: Kind) -> str | None:
    """Return the value of labels that are missing: -1, of decimal numbers NaN. ``None``: there is none."""
    held = STORAGE_DTYPES[kind.dtype].kind if isinstance(kind, Column) and kind.unit is None else ""
    return {"i": "-1", "f": "nan"}.get(held)


class MissingValues(OptionsNeeded):
    """A table has rows without a value. ``places`` says where, for each column."""

    def __init__(
        self, places: Sequence[str], cures: Mapping[str, Cure] | None = None, options: Sequence[str] = ()
    ) -> None:
        """``cures``: by column of the table that was read. ``options``: for all tables."""
        fill = "--fill COLUMN=VALUE, of features also COLUMN=mean"
        cure = f"Fill them ({fill}), or leave the column out (--drop COLUMN)"
        if all(place.endswith(_OF_IDS) for place in places):
            cure = "Mend the table, or leave these rows out of it"
        super().__init__([f"values are missing: {'; '.join(places)}. {cure}"], options)
        self.places = list(places)
        self.cures = dict(cures or {})


class FilledTable(TableView):
    """A table whose readers give masked arrays, with values in place of what is masked.

    ``MissingValues`` where a column that has no fill misses values: it lists all such columns of the table.
    """

    def __init__(
        self,
        table: Table,
        fills: Mapping[str, str],
        *,
        used: Iterable[str],
        ids: Collection[str] = (),
        labels: Collection[str] = (),
    ) -> None:
        """``fills`` gives a number, a date or ``mean`` by column. ``used`` are the columns that are read, of
        which ``ids`` cannot be filled, and ``labels`` should not have a mean."""
        super().__init__(table)
        self._whole = self
        self._used = list(used)
        self._ids, self._labels = ids, labels
        self._fills = dict(fills)
        self._by_column = {
            name: _parsed(table, name, text) for name, text in fills.items() if text.lower() != "mean"
        }
        for name in fills:
            _check_fillable(table, name, fills[name])

    def shards(self, rows: int) -> list[TableView]:
        found = super().shards(rows)
        if len(found) > 1:
            for name in self._fills:
                self._value(name)  # A mean is that of the whole table. Shards share the values.
        return found

    def blank(self, name: str) -> Array | None:
        kind = self.columns[name]
        if name not in self._fills or not isinstance(kind, Column):
            return None
        return np.broadcast_to(self._value(name), kind.shape).astype(STORAGE_DTYPES[kind.dtype])

    def _values(self, name: str, array: Array, first_row: int) -> Array:
        if not isinstance(array, np.ma.MaskedArray):
            return array
        if name not in self._fills:
            raise self._whole._report()
        value = np.asarray(self._value(name)).astype(array.dtype)
        return np.where(np.ma.getmaskarray(array), value, array.data)

    def _value(self, name: str) -> Any:
        if name not in self._by_column:
            self._by_column[name] = _mean(self._table, name)
        return self._by_column[name]

    def _report(self) -> MissingValues:
        """Return where values are missing: a text for each column, with its first rows."""
        missing: dict[str, list[int]] = {}
        counts: dict[str, int] = {}
        wanted = [name for name in self._used if name not in self._fills]
        for row, chunk in numbered(self._table, wanted, _ROWS):
            for name, array in chunk.items():
                if isinstance(array, np.ma.MaskedArray):
                    mask = np.ma.getmaskarray(array).reshape(len(array), -1).any(axis=1)
                    counts[name] = counts.get(name, 0) + int(mask.sum())
                    found = missing.setdefault(name, [])
                    found += (row + np.flatnonzero(mask)[: _SHOWN - len(found)]).tolist()
        places = [self._said(name, rows, counts[name]) for name, rows in missing.items()]
        cures = {name: self._cure(name, counts[name]) for name in missing if name not in self._ids}
        return MissingValues(places, {name: cure for name, cure in cures.items() if cure is not None})

    def _cure(self, name: str, count: int) -> Cure | None:
        kind = self.columns[name]
        if name in self._labels and count < self.num_rows:
            value = missing_label(kind)
            return None if value is None else ("fill", f"{quoted(name)}={value}")
        has_mean = isinstance(kind, Column) and kind.dtype != "BOOL" and kind.unit is None
        if has_mean and count < self.num_rows:
            return "fill", f"{quoted(name)}=mean"
        return "drop", quoted(name)

    def _said(self, name: str, rows: Sequence[int], count: int) -> str:
        more = f" and {count - len(rows):,} more" if count > len(rows) else ""
        note = _OF_IDS if name in self._ids else ""
        return ", ".join(self.where(name, row) for row in rows) + more + note


def _check_fillable(table: Table, name: str, text: str) -> None:
    kind = table.columns[name]
    if not isinstance(kind, Column):
        raise ValueError(f"{table.name}, column {name!r}: holds {kind}, which cannot be filled")
    if text.lower() == "mean" and (kind.dtype == "BOOL" or kind.unit is not None):
        what = "points in time" if kind.unit else "true and false"
        raise ValueError(f"{table.name}, column {name!r}: {what} have no mean: give a value")


def _parsed(table: Table, name: str, text: str) -> Any:
    """Return a fill as a value of the column. ``ValueError`` for what it cannot hold."""
    kind = table.columns[name]
    if not isinstance(kind, Column):
        return None
    dtype = STORAGE_DTYPES[kind.dtype]
    try:
        if kind.dtype == "BOOL":
            return _BOOLEANS[text.lower()]
        if kind.unit is not None:
            return _nanoseconds(text)
        return dtype.type(float(text) if dtype.kind == "f" else int(text))
    except (ValueError, KeyError, OverflowError):
        what = "no date between 1677 and 2262, such as 2020-01-31," if kind.unit else f"no {kind.dtype}"
        raise ValueError(f"{table.name}, column {name!r}: {text!r} is {what} to fill it with") from None


def _nanoseconds(text: str) -> int:
    """Return an ISO date or time as nanoseconds since 1970-01-01 UTC. Without a time zone, it is UTC."""
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    since = (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)) - _EPOCH
    nanoseconds = 1000 * (since // timedelta(microseconds=1))
    if abs(nanoseconds) > np.iinfo(np.int64).max:
        raise ValueError(f"{text} lies outside 1677 to 2262, the range of nanoseconds in int64")
    return nanoseconds


def _mean(table: Table, name: str) -> Any:
    """Return the mean of the values that are there, element by element of a row, rounded for integers."""
    kind = table.columns[name]
    assert isinstance(kind, Column)
    total, count = np.zeros(kind.shape), np.zeros(kind.shape)
    for chunk in table.read([name], _ROWS):
        values = np.ma.masked_invalid(chunk[name]) if chunk[name].dtype.kind == "f" else chunk[name]
        total += np.ma.filled(np.ma.sum(values, axis=0, dtype=np.float64), 0)
        count += np.ma.count(values, axis=0)
    if not count.all():
        raise FormatError(f"{table.name}, column {name!r}: no value of which to take the mean")
    mean = total / count
    return mean if STORAGE_DTYPES[kind.dtype].kind == "f" else np.rint(mean)
