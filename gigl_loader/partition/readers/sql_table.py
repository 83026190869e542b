"""Tables that DuckDB reads: rows of a SELECT, streamed, or converted to Parquet once for a build."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from gigl_loader.arrays import Array
from gigl_loader.errors import FormatError
from gigl_loader.partition.readers import Kind
from gigl_loader.partition.readers.arrow import is_ragged, kind_of, to_numpy
from gigl_loader.partition.readers.arrow_files import ParquetTable

_STREAM_BYTES = 512 << 20
"""Memory of DuckDB where rows are streamed."""
_GROUP_BYTES = 8 << 20
"""Of a row group of a converted table: the least that a task reads."""
_LEAST_BYTES = 48 << 20
_COLUMN_BYTES = 160 << 10
"""Least memory of DuckDB for each column: its vectors have 2,048 rows, at every step."""
_WIDE = 128
"""Columns from which on DuckDB is not to look for equal expressions: it compares each with each."""
_BLOCK_ROWS = 2048  # DuckDB's vectors.


@contextmanager
def connected(*, memory_bytes: int, threads: int, temporary: str | None, columns: int = 0) -> Iterator[Any]:
    """Lend a connection of DuckDB to a database in memory. It writes to ``temporary`` alone.

    ``columns`` is the number of columns that are read.
    """
    least = _LEAST_BYTES + columns * _COLUMN_BYTES
    config: dict[str, Any] = {
        "memory_limit": f"{max(memory_bytes, least) >> 20}MiB",
        "threads": threads,
        "temp_directory": temporary or "",
        "preserve_insertion_order": True,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    import duckdb  # Tasks that read what was converted do without it.

    with closing(duckdb.connect(config=config)) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        if columns >= _WIDE:
            connection.execute("SET disabled_optimizers = 'common_subexpressions'")
        yield connection


def sql_errors() -> tuple[type[Exception], ...]:
    """Return what queries raise."""
    import duckdb

    return duckdb.Error, pa.ArrowException, OSError


def alias(place: int) -> str:
    """Return the name of a column in SQL. The names of tables may be empty, or differ by case alone."""
    return f"gigl_loader_{place}"


def quoted(name: str) -> str:
    """Return the name of a column for SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text for SQL."""
    return "'" + text.replace("'", "''") + "'"


def integer(text: str) -> str:
    """Return the integer of a text, in SQL. DuckDB's cast rounds decimals; this is an error for them."""
    whole = f"regexp_full_match({text}, '-?[0-9]+')"
    return f"CASE WHEN {whole} THEN CAST({text} AS BIGINT) ELSE error('no integer: ' || {text}) END"


class SqlTable:
    """Rows of a SELECT, in its order. Subclasses set ``name``, ``columns``, and say what to select."""

    name: str
    columns: Mapping[str, Kind]
    _text_bytes = 0
    """Of the texts of a row, about."""
    _converted: ParquetTable | None = None
    _connection: Any = None
    _is_interrupted = False

    def _selecting(self, names: Sequence[str]) -> AbstractContextManager[str]:
        """Lend a SELECT of these columns, valid within the block. They have the names of ``alias``."""
        raise NotImplementedError

    def _explained(self, error: Exception) -> Exception | None:
        """Return what to raise for an error of DuckDB. ``None``: what was learnt of it helps to try again."""
        return FormatError(f"{self.name}: {shortened(error)}")

    @cached_property
    def num_rows(self) -> int:
        """The number of rows. Where they are not converted, counting them reads the whole table."""
        if self._converted is not None:
            return self._converted.num_rows
        first = next(iter(self.columns), None)
        return 0 if first is None else sum(len(batch) for batch in self._batches([first], 1 << 16))

    def shards(self, rows: int) -> list[Any]:
        return [self] if self._converted is None else list(self._converted.shards(rows))

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        if self._converted is not None:
            yield from self._converted.read(names, rows)
            return
        row = 0
        for batch in self._batches(names, rows):
            yield {
                name: to_numpy(column, self.columns[name], self._places(name, row))
                for name, column in zip(names, batch.columns, strict=True)
            }
            row += len(batch)

    def where(self, column: str, row: int) -> str:
        return f"{self.name}, column {column!r}, row {row}"

    def convert(self, path: Path, *, memory_bytes: int, threads: int) -> None:
        """Write the rows to a Parquet file, from which they are read until ``forget()``."""
        width = sum(16 if isinstance(kind, str) else kind.row_bytes for kind in self.columns.values())
        width += self._text_bytes
        group = min(max(_GROUP_BYTES // max(width, 1), _BLOCK_ROWS), memory_bytes // (8 * max(width, 1)))
        rows = max(group // _BLOCK_ROWS, 1) * _BLOCK_ROWS
        while True:
            with (
                self._selecting(list(self.columns)) as select,
                connected(
                    memory_bytes=memory_bytes,
                    threads=threads,
                    temporary=str(path.parent),
                    columns=len(self.columns),
                ) as connection,
            ):
                self._connection = connection
                try:
                    connection.execute(
                        f"COPY ({select}) TO {literal(str(path))} "
                        f"(FORMAT parquet, COMPRESSION uncompressed, ROW_GROUP_SIZE {rows})"
                    )
                    break
                except sql_errors() as error:
                    failure: Exception = error
                finally:
                    self._connection = None
            if self._is_interrupted:  # To find out why it failed would take as long.
                raise failure
            self._raise(failure)
        self._converted = _ConvertedTable(path, self)
        self.__dict__.pop("num_rows", None)

    def progress(self) -> float:
        """Return how much of a conversion is done, 0 to 1."""
        connection, percent = self._connection, 0.0
        with suppress(*sql_errors()):  # It may just have ended.
            percent = connection.query_progress() if connection is not None else 0.0
        return min(max(percent, 0.0), 100.0) / 100

    def interrupt(self) -> None:
        """End a conversion that runs in another thread. It raises what DuckDB does."""
        self._is_interrupted = True
        connection = self._connection
        with suppress(*sql_errors()):
            if connection is not None:
                connection.interrupt()

    def forget(self) -> None:
        """Read from the source again."""
        self._converted = None
        self._is_interrupted = False

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_connection"}

    def _places(self, name: str, first_row: int) -> Any:
        return lambda row: self.where(name, first_row + row)

    def _batches(self, names: Sequence[str], rows: int) -> Iterator[Any]:
        """Yield record batches of at most ``rows`` rows."""
        done = 0
        while True:
            failure: Exception | None = None
            again = done
            with (
                self._selecting(names) as select,
                connected(
                    memory_bytes=_STREAM_BYTES, threads=1, temporary=None, columns=len(names)
                ) as connection,
            ):
                try:
                    for batch in _reader(connection.sql(select), rows):
                        if again < len(batch):  # The rest was read before an error that is mended.
                            yield batch.slice(again)
                            done += len(batch) - again
                        again = max(again - len(batch), 0)
                except sql_errors() as error:
                    failure = error
            if failure is None:
                return
            self._raise(failure)

    def _raise(self, error: Exception) -> None:
        if (explained := self._explained(error)) is not None:
            raise explained from None


class _ConvertedTable(ParquetTable):
    """Rows of a table in a Parquet file of the build. Messages name their places in the table."""

    def __init__(self, path: Path, source: SqlTable) -> None:
        self._aliases = {name: alias(at) for at, name in enumerate(source.columns)}
        self._names = {alias: name for name, alias in self._aliases.items()}
        super().__init__(path)
        self.name = source.name
        self.columns = {name: source.columns[name] for name in self._names.values()}
        self._source = source

    def where(self, column: str, row: int) -> str:
        return self._source.where(column, self._first_row + row)

    def _batches(self, names: Sequence[str], rows: int, int96_unit: str | None = None) -> Iterator[Any]:
        for batch in super()._batches([self._aliases.get(name, name) for name in names], rows, int96_unit):
            yield batch.rename_columns([self._names[alias] for alias in batch.schema.names])


def _reader(relation: Any, rows: int) -> Any:
    """Return a reader of record batches. DuckDB 2 calls its method differently."""
    method = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
    return method(max(rows, 1))


def read_all(relation: Any) -> Any:
    """Return all rows as one record batch of Arrow."""
    with _reader(relation, 1 << 20) as reader:
        table = reader.read_all().combine_chunks()
    batches = table.to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def shortened(error: Exception) -> str:
    """Return the beginning of an error of DuckDB, which repeats the data, in one line."""
    text = " ".join(str(error).split()).removeprefix("Invalid Input Error: ")
    return text if len(text) <= 300 else f"{text[:300]}..."


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
                statements = connection.extract_statements(self._query)
                if [each.type.name for each in statements] != ["SELECT"]:
                    raise FormatError(f"{self.name}: a table is one SELECT")
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
