"""SELECT statements that read a text file as its table does not: dates of other forms, lists, later lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import product

import numpy as np

from gigl_loader.errors import FormatError
from gigl_loader.partition.readers import TEXT, Table, are_integers
from gigl_loader.partition.readers.column_types import MISSING
from gigl_loader.partition.readers.sql_table import QueryTable, literal
from gigl_loader.partition.readers.text_table import TextTable

_FIRST_ROWS = 1000
_DAYS = ("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%d-%b-%Y", "%d %b %Y")
_HOURS = ("", " %H:%M", " %H:%M:%S")
_NUMBERS: Mapping[str, Mapping[str, str]] = {
    r"-?\d+,\d+": {"decimal_separator": ","},
    r"-?\d{1,3}(,\d{3})+(\.\d+)?": {"thousands": ","},
    r"-?\d{1,3}(\.\d{3})+(,\d+)?": {"decimal_separator": ",", "thousands": "."},
}
"""Numbers that are written otherwise, and the parameters by which DuckDB reads them."""
_NO_IDS = ("", "NA", "NULL", "null", "None", "\\N")


def converting_queries(table: Table, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the columns of texts that are dates or numbers of another form, and queries that convert them.

    Each query is a reading of its own: 01/02/2020 may be a day of February or of January. All other columns
    are in it as they are. Without a query, no column is returned.
    """
    if not isinstance(table, TextTable):
        return [], []
    forms = {name: found for name in names if (found := _forms(table, name))}
    are_dates = {name: any("format" in key for key in found[0]) for name, found in forms.items()}
    days = _common([found for name, found in forms.items() if are_dates[name]])
    numbers = _common([found for name, found in forms.items() if not are_dates[name]])
    queries = [
        f"SELECT * FROM {read_csv(table, more={**day, **number})}" for day, number in product(days, numbers)
    ]
    queries = [query for query in queries if forms and _reads_alike(query, table, [*forms])]
    return ([*forms], queries) if queries else ([], [])


def _forms(table: TextTable, name: str) -> list[Mapping[str, str]]:
    """Return parameters of DuckDB by which the first texts of a column are dates, or numbers."""
    chunk = next(iter(table.read([name], _FIRST_ROWS)), {name: np.empty(0, object)})
    texts = [text for text in chunk[name] if text not in MISSING]
    if not texts:
        return []
    found: list[Mapping[str, str]] = [
        {"timestampformat" if hour else "dateformat": day + hour}
        for day, hour in product(_DAYS, _HOURS)
        if _all_dates(texts, day + hour)
    ]
    return found or [
        more for form, more in _NUMBERS.items() if all(re.fullmatch(form, each) for each in texts)
    ]


def _all_dates(texts: Sequence[str], form: str) -> bool:
    try:
        return all(datetime.strptime(text.strip(), form) for text in texts)
    except ValueError:
        return False


def _common(forms: Sequence[Sequence[Mapping[str, str]]]) -> list[Mapping[str, str]]:
    """Return the parameters that are among those of each column. One without any where there is no column."""
    if not forms:
        return [{}]
    return [each for each in forms[0] if all(each in others for others in forms[1:])]


def read_csv(
    table: TextTable, *, skipped: int = 0, names: Sequence[str] = (), more: Mapping[str, str] = {}
) -> str:
    """Return a call of DuckDB that reads a text file, without the first ``skipped`` rows.

    ``more`` are texts of further parameters.
    """
    layout = table.layout
    names = names or layout.names
    given = {name: literal(value) for name, value in more.items()}
    if any(table.columns[name] == TEXT for name in table.id_columns):
        given["nullstr"] = f"[{', '.join(map(literal, _NO_IDS))}]"
    plain = not skipped and layout.skipped == 1 and layout.header == layout.names == tuple(names)
    lines = None if plain else layout.skipped + skipped
    return call_read_csv(table.name, layout.delimiter, lines, names, given)


def call_read_csv(
    path: str, delimiter: str, skipped: int | None, names: Sequence[str], more: Mapping[str, str] = {}
) -> str:
    """Return a call of DuckDB's ``read_csv``. ``None`` for ``skipped``: the first line has the names."""
    given = {"sample_size": "-1"} | ({"delim": literal(delimiter)} if delimiter != "," else {})
    if skipped is None:
        given["header"] = "true"
    else:
        listed = ", ".join(map(literal, names))
        given |= {"header": "false", "skip": str(skipped), "names": f"[{listed}]"}
    listed = ", ".join(f"{name} = {value}" for name, value in {**given, **more}.items())
    return f"read_csv({literal(path)}, {listed})"


def _reads_alike(query: str, table: TextTable, converted: Sequence[str]) -> bool:
    """Return whether a query has the columns of a table, its texts and integers, and numbers for others."""
    try:
        found = QueryTable(query)
        if [*found.columns] != [*table.columns] or any(found.columns[name] == TEXT for name in converted):
            return False
        return all(
            [str(value) for value in next(iter(found.read([name], _FIRST_ROWS)))[name]]
            == [str(value) for value in next(iter(table.read([name], _FIRST_ROWS)))[name]]
            for name, kind in table.columns.items()
            if name not in converted and (kind == TEXT or are_integers(kind))
        )
    except (FormatError, StopIteration):
        return False
