"""SELECT statements as tables, run by DuckDB."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gigl_loader.errors import FormatError
from gigl_loader.partition.readers import Kind
from gigl_loader.partition.readers.arrow import is_ragged, kind_of
from gigl_loader.partition.readers.sql_table import (
    SqlTable,
    alias,
    connected,
    literal,
    quoted,
    read_all,
    shortened,
    sql_errors,
)

_MEMORY = 512 << 20
_FIRST_ROWS = 1024
_CASTS = {"HUGEINT": "DECIMAL(38, 0)", "UHUGEINT": "VARCHAR", "UUID": "VARCHAR"}
"""Types that a Parquet file would hold rounded, or not at all, with those that stand for them."""
_TEXT_FILE = re.compile(
    r"(?:\bfrom|\bjoin|,)\s+'((?:[^']|'')+?[.](?:csv|tsv)(?:[.]gz|[.]zst)?)'", re.IGNORECASE
)
_UNORDERED = re.compile(r"JOIN|GROUP_BY|AGGREGATE|DISTINCT|UNION|INTERSECT|EXCEPT|PRODUCT|WINDOW")
"""Operators whose rows come in no defined order."""


class QueryTable(SqlTable):
    """Rows of a SELECT over files of this machine, in the order of the files and of ORDER BY.

    The rows of a query that joins, groups or leaves out doubles come sorted by all columns, unless it has an
    ORDER BY of its own at its end.
    """

    def __init__(self, query: str, *, name: str | None = None) -> None:
        """``name`` stands for the query in messages."""
        self.name = name or f"query {' '.join(query.split())[:80]!r}"
        self._query = query.strip().rstrip(";")
        with connected(memory_bytes=_MEMORY, threads=1, temporary=None) as connection:
            try:
                self._require_select(connection)
                self._check_text_files(connection)
                described: list[Any] = connection.execute(f"DESCRIBE {self._query}").fetchall()
                self._types = {str(row[0]): str(row[1]) for row in described}
                if len(self._types) < len(described):
                    raise FormatError(f"{self.name}: a column name occurs twice")
                self._query += " ORDER BY ALL" if self._is_unordered(connection) else ""
                self.columns = self._kinds(connection)
            except sql_errors() as error:
                raise FormatError(f"{self.name}: {_reason(error)}") from None

    @property
    def stamp(self) -> object:
        return self._query

    @property
    def read_as(self) -> str:
        """How the table is read, for people."""
        return "query"

    @property
    def num_bytes(self) -> int:
        """Size of what is read: not known."""
        return 0

    def _explained(self, error: Exception) -> Exception:
        return FormatError(f"{self.name}: {_reason(error)}")

    @contextmanager
    def _selecting(self, names: Sequence[str]) -> Iterator[str]:
        chosen = ", ".join(f"{self._cast(name)} AS {alias(at)}" for at, name in enumerate(names)) or "1"
        yield f"SELECT {chosen} FROM ({self._query})"

    def _cast(self, name: str) -> str:
        cast = _CASTS.get(self._types[name])
        return f"CAST({quoted(name)} AS {cast})" if cast else quoted(name)

    def _require_select(self, connection: Any) -> None:
        statements = connection.extract_statements(self._query)
        if [each.type.name for each in statements] != ["SELECT"]:
            raise FormatError(f"{self.name}: a table is one SELECT")

    def _check_text_files(self, connection: Any) -> None:
        """Raise ``FormatError`` for a file of which DuckDB would leave out lines, or round later values."""
        patterns = [found[1].replace("''", "'") for found in _TEXT_FILE.finditer(self._query)]
        for path in (path for pattern in patterns for path in glob.glob(pattern)):
            first, whole = (
                connection.execute(
                    f"SELECT SkipRows, Columns FROM sniff_csv({literal(path)}{more})"
                ).fetchall()[0]
                for more in ("", ", sample_size = -1")
            )
            if whole[0]:
                lines = f"the first {whole[0]} lines of {path}"
                what = f"leave out {lines}: read_csv({literal(path)}, skip = 0, ...)"
            elif first != whole:
                what = f"read later values of {path} as others: read_csv({literal(path)}, sample_size = -1)"
            else:
                continue
            raise FormatError(f"{self.name}: DuckDB would {what} says how it is read")

    def _is_unordered(self, connection: Any) -> bool:
        """Whether the order of the rows depends on how the query is run."""
        explained: list[Any] = connection.execute(f"EXPLAIN (FORMAT json) {self._query}").fetchall()
        nodes: list[Any] = json.loads(explained[0][1])
        while nodes:
            node = nodes.pop()
            name = str(node.get("name", "")).strip()
            if name in ("ORDER_BY", "TOP_N"):
                continue
            if _UNORDERED.search(name):
                return True
            nodes += node.get("children", [])
        return False

    def _kinds(self, connection: Any) -> dict[str, Kind]:
        with self._selecting(list(self._types)) as select:
            first = read_all(connection.sql(f"{select} LIMIT {_FIRST_ROWS}"))
        kinds: dict[str, Kind] = {}
        fields: list[Any] = list(first.schema)
        for name, field, column in zip(self._types, fields, first.columns, strict=True):
            lists: Any = column.drop_null() if is_ragged(field.type) else ()
            kinds[name] = kind_of(field.type, len(lists[0]) if len(lists) else 0)
        return kinds


def json_table(path: object) -> QueryTable:
    """Return the table of a file of JSON objects, in lines or in an array. All say what its columns hold."""
    if not isinstance(path, Path):
        raise FormatError(f"{path}: JSON is read from a disk: copy it to one")
    return QueryTable(f"SELECT * FROM read_json({literal(str(path))}, sample_size = -1)", name=str(path))


def _reason(error: Exception) -> str:
    """Return what DuckDB says, and what to do where it would have to fetch an extension."""
    text = shortened(error)
    if "extension" in text.lower() or re.search(r"HTTP|s3://|gcs://", text):
        return f"{text}. Queries read files of this machine: copy it, or give the URI as a table of its own"
    return text
