"""Points in time and durations, as users and tables give them, in the unit of a column of times."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gigl_loader.arrays import Array, Int64Array, first_true
from gigl_loader.graph.type_columns import TypeColumns, column_of, declared_times
from gigl_loader.options import whole_number

if TYPE_CHECKING:
    from gigl_loader.graph.schema import GraphSchema

TimeWindow: TypeAlias = "int | tuple[int, int] | None"
"""How long before the time of a tree its window begins, or the first and the last time of all windows."""


def nanoseconds(values: Array) -> Int64Array:
    """Return datetime64 (since 1970-01-01 UTC) or timedelta64 of any unit as nanoseconds, int64.

    ``ValueError`` names a value that nanoseconds cannot hold, or that is missing (``NaT``).
    """
    found = values.astype(f"{values.dtype.kind}8[ns]")
    back = found.astype(values.dtype)
    if (wrong := first_true((back != values).reshape(-1))) is not None:  # NaT is not equal to itself.
        raise ValueError(
            f"{values.reshape(-1)[wrong]} (entry {wrong}) is missing, or lies outside 1677 to 2262, the "
            "range of nanoseconds in int64"
        )
    return np.asarray(found.astype(np.int64))


def in_unit(name: str, value: Any, unit: str | None) -> Any:
    """Return points in time (datetime64, pandas, datetime) as int64 in a unit, and other values as they are.

    Times without a zone count as UTC. ``ValueError`` where there is no unit.
    """
    moments = _moments(value)
    if moments is None:
        return value
    _check_unit(name, "dates", unit)
    try:
        return nanoseconds(moments)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def read_window(value: Any, unit: str | None) -> TimeWindow:
    """Return ``time_window`` in the unit of the column. ``ValueError`` and ``TypeError`` name the rule."""
    if value is None:
        return None
    if isinstance(value, (tuple, list)):
        ends = in_unit("time_window", list(value), unit)
        if len(ends) != 2 or not all(isinstance(each, (int, np.integer)) for each in ends):
            raise ValueError(
                "time_window must be a duration, or a pair of points in time (first, last), got "
                f"{value!r:.200}"
            )
        return check_window((int(ends[0]), int(ends[1])))
    if isinstance(value, (timedelta, np.timedelta64)):
        _check_unit("time_window", "a duration", unit)
        if isinstance(value, np.timedelta64) and np.datetime_data(value.dtype)[0] in ("Y", "M"):
            raise ValueError(f"time_window is {value}, and their length differs: give it in days")
        span = value.to_timedelta64() if hasattr(value, "to_timedelta64") else np.timedelta64(value)
        return check_window(int(nanoseconds(np.asarray(span))))
    return check_window(whole_number("time_window", value, minimum=0))


def check_window(window: Any) -> TimeWindow:
    """Return a window in the unit of a column, also from outside. ``ValueError`` names the rule it breaks."""
    ends = list(window) if isinstance(window, (tuple, list)) else [0, window]
    if len(ends) != 2 or any(type(each) is not int or not -(2**63) <= each < 2**63 for each in ends):
        raise ValueError(f"time_window is a whole number or two, of 64 bits, got {window!r:.200}")
    if ends[0] > ends[1]:
        pair = isinstance(window, (tuple, list))
        raise ValueError(f"time_window {window!r} {'ends before it begins' if pair else 'is negative'}")
    return (ends[0], ends[1]) if isinstance(window, (tuple, list)) else ends[1]


def time_unit(schema: GraphSchema, named: TypeColumns) -> str | None:
    """Return the unit of the declared times; ``None`` where they have none, or not all the same."""
    columns = schema.columns
    found = {kind: column_of(named, kind, names) for kind, names in declared_times(schema).items()}
    units = {columns[kind][name].unit for kind, name in found.items() if name is not None}
    return units.pop() if len(units) == 1 else None


def _check_unit(name: str, what: str, unit: str | None) -> None:
    if unit is None:
        raise ValueError(
            f"{name} is {what}, and the column of times has no unit: pass numbers as the column has them, or "
            "build the graph from datetime64 or timestamps of Arrow"
        )


def _moments(value: Any) -> Array | None:
    """Return points in time as datetime64; ``None`` for values of another kind."""
    if hasattr(value, "detach"):  # A tensor, which has no dates.
        return None
    if getattr(getattr(value, "dtype", None), "tz", None) is not None:
        return np.asarray(value.to_numpy("datetime64[ns]"))  # pandas, with a time zone: as UTC.
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return None
    if array.dtype.kind == "M":
        return array
    if (
        array.dtype.kind != "O"
        or not array.size
        or not all(isinstance(each, (date, np.datetime64)) for each in array.flat)
    ):
        return None
    return np.array([_moment(each) for each in array.flat]).reshape(array.shape)


def _moment(value: Any) -> np.datetime64:
    if hasattr(value, "to_datetime64"):
        return value.to_datetime64()  # type: ignore[no-any-return]
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(timezone.utc).replace(tzinfo=None)
    return np.datetime64(value)
