"""Text files of edges that are no list of edges below a header: matrices, sizes, titles, adjacency lists."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gigl_loader.arrays import Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import EdgeType
from gigl_loader.partition.readers import TEXT, Table, are_integers
from gigl_loader.partition.readers.sql_table import integer, literal
from gigl_loader.partition.readers.text_format import COMMENTS, CsvFormat, encoding_of, open_bytes
from gigl_loader.partition.readers.text_table import TextTable
from gigl_loader.partition.refusals import ForeignFile, OptionsNeeded, foreign_file
from gigl_loader.partition.roles import end_names
from gigl_loader.partition.text_queries import call_read_csv, read_csv

if TYPE_CHECKING:
    from gigl_loader.partition.remote_files import RemotePath

_FIRST_ROWS = 1 << 16
_FIRST_BYTES = 1 << 20
_MOST_COLUMNS = 1 << 10
"""Nodes of a matrix that is told from a list."""
_INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_SHORT = "may give the sizes of the graph: it has fewer values than the others"
_LIST = re.compile(r"[-+]?\d+([\s,;:]+[-+]?\d+)*")
_FIRST_LINES = 1000
_MARKS = (":", "^", "~", "/")
"""Delimiters that are not unusual in texts, and are only proposed."""
_BETWEEN = r"[\s,;:]+"
_AROUND = " ,;:"
"""Between the nodes of an adjacency list, and around them."""


class Unusual(NamedTuple):
    """Why a file is no list of edges below a header, and queries that read it: one for each reading."""

    why: str
    queries: Sequence[str] = ()
    options: Sequence[str] = ()
    """Options by which it is read."""


def unusual_edges(table: Table, edge_type: EdgeType) -> Unusual | None:
    """Return what is unusual about a text file of edges. ``None``: nothing was found.

    ``ForeignFile`` for a file of METIS.
    """
    if not isinstance(table, TextTable):
        return None
    if len(table.columns) == 1:
        return _one_column(table)
    found = _lists(table) or _matrix(table) or _named_matrix(table)
    return found or _sizes(table) or _title(table, edge_type)


def refuse_unusual(path: Path | RemotePath, form: CsvFormat, error: FormatError) -> None:
    """Raise ``OptionsNeeded`` for a text file of edges, refused with ``error``, that a query would read."""
    if not isinstance(error, ForeignFile) and (found := _ragged(path, form)) is not None:
        raise OptionsNeeded(
            [f"{error}; {found.why}"], files=[{str(path): each} for each in found.queries]
        ) from None


def _ragged(path: Path | RemotePath, form: CsvFormat) -> Unusual | None:
    """Return what a text file of edges is whose lines differ in length. ``None``: damaged.

    ``ForeignFile`` for a file of METIS.
    """
    with open_bytes(path) as file:
        head = file.read(_FIRST_BYTES)
    text = head.decode(encoding_of(head, form), errors="replace")
    lines = text.splitlines()
    skipped = next((at for at, line in enumerate(lines) if line.strip() and line[0] not in COMMENTS), 0)
    rows = [re.split(_BETWEEN, line.strip(_AROUND)) for line in lines[skipped:] if line.strip()]
    rows = rows[:-1] if len(head) == _FIRST_BYTES else rows
    if len(rows) < 2:
        return None
    first, lengths = rows[0], {len(row) for row in rows[1:]}
    if not all(map(_NUMBER.fullmatch, chain(*rows))) or lengths <= {len(first)}:
        return None
    if len(lengths) == 1 and len(first) < (width := lengths.pop()):
        names = form.columns if len(form.columns) == width else _names(width)
        delimiter = next(each for each in ("\t", ",", ";", ":", " ") if each in lines[-1].strip())
        read = call_read_csv(str(path), delimiter, skipped + 1, names)
        return Unusual(f"the first line, {' '.join(first)!r}, {_SHORT}", [f"SELECT * FROM {read}"])
    if not all(map(_INTEGER.fullmatch, chain(*rows))):
        return None
    if _is_metis([[int(word) for word in row] for row in rows]):
        raise _of_metis(path)
    return Unusual("its lines look like lists of neighbours", [_of_lists(str(path), skipped)])


def _of_lists(path: str, skipped: int, *, quoted: bool = False) -> str:
    """Return the query of a file with a node and its neighbours in each line, but for the first lines."""
    form = f"columns = {{'line': 'VARCHAR'}}, header = false, skip = {skipped}, delim = '\\n', quote = ''"
    line = "translate(line, chr(34), ' ')" if quoted else "line"
    words = f"string_split_regex(trim({line}, {literal(_AROUND)}), {literal(_BETWEEN)})"
    nodes = f"SELECT {words} AS nodes FROM read_csv({literal(path)}, {form})"
    ends = f"SELECT nodes[1] AS src, unnest(nodes[2:]) AS dst FROM ({nodes})"
    return f"SELECT {integer('src')} AS src, {integer('dst')} AS dst FROM ({ends})"


def _is_metis(rows: Sequence[Sequence[int]]) -> bool:
    """Return whether rows are the sizes of a graph, and the neighbours, from 1, of each of its nodes."""
    (count, *_), *others = rows
    if len(others) != count or not 2 <= len(rows[0]) <= 4 or min(map(min, others), default=0) < 1:
        return False
    pairs = {(node, other) for node, row in enumerate(others, 1) for other in row}
    return all((other, node) in pairs for node, other in pairs)


def _of_metis(path: object) -> FormatError:
    refusal = foreign_file(path, ".metis")
    assert refusal is not None
    return refusal


def _one_column(table: TextTable) -> Unusual | None:
    """Return what a file is whose lines have no usual delimiter in common."""
    [name] = table.columns
    if Path(table.name).is_file() and (found := _ragged(Path(table.name), CsvFormat())):
        return found
    texts = [*table.header, *next(iter(table.read([name], _FIRST_LINES)), {name: []})[name]]
    for mark in _MARKS:
        if len(counts := {str(text).count(mark) for text in texts}) == 1 and 0 not in counts:
            return Unusual(f"its lines may be delimited by {mark!r}", options=["--csv-delimiter", mark])
    return None


def _lists(table: TextTable) -> Unusual | None:
    """Return that the second of two columns has lists of neighbours."""
    if len(table.columns) != 2:
        return None
    first, second = table.columns
    header = table.header if all(map(_LIST.fullmatch, table.header)) else []
    texts = [*header[1:], *next(iter(table.read([second], _FIRST_LINES)), {second: []})[second]]
    if not are_integers(table.columns[first]) or not all(_LIST.fullmatch(str(text)) for text in texts):
        return None
    if all(_INTEGER.fullmatch(str(text)) for text in texts):
        return None
    skipped, quoted = table.layout.skipped - len(header[:1]), table.layout.delimiter in (",", ";")
    query = _of_lists(table.name, skipped, quoted=quoted)
    return Unusual(f"column {second!r} has lists of neighbours", [query])


def _integers(table: TextTable, names: Sequence[str], rows: int) -> Array | None:
    """Return the first line and first rows, int64 [R, C], of these columns. ``None``: there are others."""
    if not all(are_integers(table.columns[name]) for name in names):
        return None
    header = dict(zip(table.columns, table.header, strict=False))
    lines = [[header.get(name, "") for name in names]] if header else []
    if not all(map(_INTEGER.fullmatch, chain(*lines))):
        return None
    chunk = next(iter(table.read(names, rows)), None)
    if chunk is None or any(isinstance(values, np.ma.MaskedArray) for values in chunk.values()):
        return None
    return np.vstack([np.array(lines, np.int64).reshape(-1, len(names)), np.column_stack([*chunk.values()])])


def _matrix(table: TextTable) -> Unusual | None:
    """Return that all is 0 or 1, in as many lines as columns."""
    size = len(table.columns)
    if not 3 <= size <= _MOST_COLUMNS:
        return None
    values = _integers(table, [*table.columns], size + 1)
    if values is None or values.shape != (size, size) or values.min() < 0 or values.max() > 1:
        return None
    read = read_csv(table, skipped=-len(table.header[:1]), names=list(map(str, range(size))))
    numbered = f"SELECT row_number() OVER () - 1 AS src, * FROM {read}"
    ends = "src, CAST(dst AS BIGINT) AS dst"
    found = [f"SELECT {ends} FROM ({_unpivoted(numbered)}) WHERE weight <> 0"]
    if size == 3:
        found.append(_as_rows(table, 0))
    return Unusual("looks like an adjacency matrix", found)


def _named_matrix(table: TextTable) -> Unusual | None:
    """Return that the first column has the names of all others."""
    first, *names = table.header or [""]
    if not 2 <= len(names) <= _MOST_COLUMNS or table.columns.get(names[0]) == TEXT:
        return None
    chunk = next(iter(table.read([first], len(names) + 1)))
    if sorted(map(str, chunk[first])) != sorted(names):
        return None
    read = read_csv(table, names=["src", *names])
    dst = "CAST(dst AS BIGINT) AS dst" if are_integers(table.columns[first]) else "dst"
    query = f"SELECT src, {dst}, weight FROM ({_unpivoted(f'SELECT * FROM {read}')}) WHERE weight <> 0"
    return Unusual("looks like an adjacency matrix: its first line and column name the nodes", [query])


def _unpivoted(query: str) -> str:
    return f"UNPIVOT ({query}) ON COLUMNS(* EXCLUDE (src)) INTO NAME dst VALUE weight"


def _sizes(table: TextTable) -> Unusual | None:
    """Return that the first line has the number of nodes, and that of the rows, or half of them."""
    shown = ",".join(table.header)
    if 0 < len(table.header) < len(table.columns) and all(map(_INTEGER.fullmatch, table.header)):
        return Unusual(f"the first line, {shown!r}, {_SHORT}", [_as_rows(table, 1)])
    names = [*takewhile(lambda name: are_integers(table.columns[name]), table.columns)][:3]
    values = _integers(table, names, _FIRST_ROWS) if len(names) > 1 else None
    if values is None or len(values) < 2:
        return None
    first, ids = values[0], values[1:, :2]
    counts = [int(first[at]) for at in range(1, len(first)) if first[:at].max() >= ids.max()]
    likely = {rows for count in counts for rows in (count, 2 * count) if count > 0}
    if not likely or (rows := table.num_rows - (not table.header)) not in likely:
        return None
    whole = _integers(table, [*table.columns], rows + 1) if rows == len(ids) else None
    if whole is not None and _is_metis([*map(list, whole)]):
        raise _of_metis(table.name)
    shown = ",".join(map(str, first))
    why = f"the first line, {shown!r}, may give the sizes of the graph, and be no edge"
    return Unusual(why, [_as_rows(table, 1), _as_rows(table, 0)])


def _as_rows(table: TextTable, skipped: int) -> str:
    """Return the query of all lines as rows, but for the first ones."""
    names = _names(len(table.columns)) if table.header else list(table.columns)
    return f"SELECT * FROM {read_csv(table, skipped=skipped - len(table.header[:1]), names=names)}"


def _names(width: int) -> list[str]:
    return ["src", "dst", *(f"column{at}" for at in range(3, 1 + width))]


def _title(table: TextTable, edge_type: EdgeType) -> Unusual | None:
    """Return that the second line names the ends."""
    if not table.header or {*table.columns.values()} != {TEXT}:
        return None
    chunk = next(iter(table.read([*table.columns], 1)), {})
    names = [str(values[0]) for values in chunk.values() if len(values)]
    if not {"src", "dst"} <= {*names} and not end_names(names, edge_type):
        return None
    shown = ",".join(table.header)
    query = f"SELECT * FROM {read_csv(table, skipped=1, names=names)}"
    return Unusual(f"the second line looks like the header, and the first, {shown!r}, like a title", [query])
