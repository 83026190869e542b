"""Listing of the tables that a manifest names, as options of the command line."""

from __future__ import annotations

import glob
import gzip
import logging
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from gigl_loader.cli.build_options import TableOptions
from gigl_loader.cli.column_options import csv_format, name_of, names_of
from gigl_loader.cli.manifests.entry import Entry
from gigl_loader.cli.schema_file import RelationalTable
from gigl_loader.graph.folder import is_uri
from gigl_loader.graph.schema import Column, EdgeType, NodeType
from gigl_loader.partition.readers import Table
from gigl_loader.partition.readers.npy_table import npy_table
from gigl_loader.partition.readers.sql_table import integer
from gigl_loader.partition.refusals import quoted, type_text
from gigl_loader.partition.sources import ColumnOptions, open_files
from gigl_loader.regular_files import read_whole
from gigl_loader.strict_json import read_json

logger = logging.getLogger(__name__)

_MAX_BYTES = 64 << 20
_OF_COLUMNS = ("rename", "stack", "dtypes", "fill", "encode", "one_hot", "vector", "weights", "times")


@dataclass(frozen=True, slots=True)
class _Column:
    """Option for a column of one type."""

    option: str
    scope: str
    name: str
    value: str
    source: str
    """Name in the file, by which columns are dropped."""

    def __str__(self) -> str:
        return f"{self.scope}:{quoted(self.name)}{'=' if self.value else ''}{self.value}"


@dataclass(slots=True)
class Listing:
    """Tables and options of a manifest. Options that were given on the command line win."""

    form: str
    path: Path
    """As given: the manifest, or its directory."""
    given: TableOptions
    relational: list[RelationalTable] = field(default_factory=list)
    _added: dict[str, list[str]] = field(default_factory=dict)
    _columns: list[_Column] = field(default_factory=list)
    _delimiters: dict[str, str] = field(default_factory=dict)
    """Delimiter, by the first file that has it."""
    _encoding: str | None = None

    @property
    def folder(self) -> Path:
        """Directory to which the paths of the manifest are relative."""
        return self.path if self.path.is_dir() else self.path.parent

    def document(self, name: str) -> Entry:
        """Read the manifest: the given file, or the file ``name`` of the given directory."""
        path = self.path / name if self.path.is_dir() else self.path
        if not path.exists():
            raise FileNotFoundError(2, f"no {name} of {self.form}", str(path))
        if path.suffix in (".yaml", ".yml"):
            from gigl_server.config import read_yaml

            values: Any = read_yaml(path)
        else:
            values = read_json(read_whole(path, most=_MAX_BYTES), what=str(path), max_bytes=_MAX_BYTES)
        return Entry(str(path), values)

    def files(self, names: Iterable[str]) -> list[str]:
        """Return paths of files, or patterns, of the manifest. ``FileNotFoundError`` names a missing one."""
        found = [name if is_uri(name) else str(self.folder / name) for name in names]
        for path in found:
            if not is_uri(path) and not Path(path).exists() and not glob.glob(path):
                raise FileNotFoundError(2, "no such file", path)
            if path.endswith((".pt", ".pth", ".pkl")):
                raise ValueError(f"{path}: pickles are never loaded: save the tensor with numpy.save")
        return found

    def table(self, files: Sequence[str], delimiter: str | None = None, names: Sequence[str] = ()) -> Table:
        """Open files, of which text files may have no header line but ``names``, as they are."""
        csv = csv_format(self.given)
        csv = replace(csv, delimiter=csv.delimiter or delimiter, columns=tuple(names))
        return open_files(files, role="nodes", options=ColumnOptions(csv=csv))

    def npy(self, file: str) -> tuple[int, tuple[int, ...]]:
        """Return the number of rows of a ``.npy`` file, and the shape of each."""
        table = npy_table(file, {"x": Path(file)})
        kind = table.columns["x"]
        return table.num_rows, kind.shape if isinstance(kind, Column) else ()

    def is_decimal(self, file: str) -> bool:
        """Return whether a ``.npy`` file holds decimal numbers."""
        held = npy_table(file, {"x": Path(file)}).columns["x"]
        return isinstance(held, Column) and held.dtype.startswith(("F", "BF"))

    def nodes(self, kind: NodeType, files: Sequence[str] | int) -> None:
        """Add the files of a node table, or its number of nodes."""
        for each in [str(files)] if isinstance(files, int) else files:
            self.add("nodes", f"{self.scope(kind)}={each}")

    def headless(self, kind: NodeType, name: str, file: str) -> None:
        """Add the file of a node table that has one column, or vector, and no header line."""
        values = _first_values(file)
        names = [name] if len(values) == 1 else [f"{name}_{at}" for at in range(len(values))]
        self.names(kind, names)
        if len(names) > 1:
            self.column("stack", kind, name, f"{name}_*")
        if any("." in value for value in values):
            self.column("dtypes", kind, name, "float32")
        self.nodes(kind, [file])

    def join_headless(self, kind: NodeType | EdgeType, name: str, file: str) -> None:
        """Put a column, or vector of decimals, beside a table. ``file`` has its rows and no header line."""
        values, path = _first_values(file), file.replace("'", "''")
        columns = [f"c{at}" for at in range(len(values))]
        listed = ", ".join(f"'{each}': 'VARCHAR'" for each in columns)
        if len(values) > 1 or "." in values[0]:
            cast = ", ".join(f"CAST({each} AS FLOAT)" for each in columns)
            cast = f"[{cast}]" if len(values) > 1 else cast
        else:
            cast = integer("c0")
        read = f"read_csv('{path}', header = false, delim = ',', columns = {{{listed}}})"
        self.add("joins", f'{self.scope(kind)}=SELECT {cast} AS "{name}" FROM {read}')

    def join_npy(self, kind: NodeType | EdgeType, columns: Mapping[str, str]) -> None:
        """Put ``.npy`` files, by the names of their columns, beside a table of the same rows."""
        if columns:
            joined = ",".join(f"{name}:{file}" for name, file in columns.items())
            self.add("joins", f"{self.scope(kind)}={joined}")

    def edges(self, kind: EdgeType, files: Sequence[str]) -> None:
        """Add the files of an edge table."""
        for each in files:
            self.add("edges", f"{self.scope(kind)}={each}")

    def column(
        self, option: str, kind: NodeType | EdgeType, name: str, value: str = "", *, source: str = ""
    ) -> None:
        """Add an option for a column, such as ``dtypes``. ``source``: its name in the file."""
        self._columns.append(_Column(option, self.scope(kind), name, value, source or name))

    def rename(self, kind: NodeType | EdgeType, name: str, new: str) -> None:
        """Rename a column, unless it has the name already."""
        if name != new:
            self.column("rename", kind, name, new)

    def names(self, kind: NodeType | EdgeType, columns: Sequence[str]) -> None:
        """Name the columns of text files without a header line."""
        self.add("csv_columns", f"{self.scope(kind)}:{','.join(map(quoted, columns))}")

    def delimiter(self, delimiter: str, file: str) -> None:
        """Set the delimiter of the text files. ``ValueError`` where two files have different ones."""
        self._delimiters.setdefault(delimiter, file)
        if len(self._delimiters) > 1 and self.given.csv_delimiter is None:
            listed = ", ".join(f"{mark!r} in {each}" for mark, each in self._delimiters.items())
            raise ValueError(f"{self.path}: text files of different delimiters, {listed}")

    def refuse(self, kind: NodeType | EdgeType, name: str, why: str) -> None:
        """Raise ``ValueError`` for a column that cannot be read, unless the command line drops it."""
        column = _Column("drop", self.scope(kind), name, "", name)
        if not self._is_dropped(column):
            raise ValueError(
                f"{self.path}: column {name!r}: {why}; --drop {shlex.quote(str(column))} leaves it out"
            )

    def encoding(self, encoding: str) -> None:
        """Set the encoding of the text files, unless the command line does."""
        self._encoding = encoding

    def split(self, kind: NodeType, name: str, file: str) -> None:
        """Add the file of the ids of a split. A second one of the same name is left out."""
        scope = f"{self.scope(kind)}:{name}="
        if any(value.startswith(scope) for value in self._added.get("splits", ())):
            self.leave_out(f"{file}: {kind} has a split {name!r} already")
        else:
            self.add("splits", scope + file)

    def add(self, option: str, value: str) -> None:
        """Add an option by the name of its field in ``TableOptions``."""
        self._added.setdefault(option, []).append(value)

    def leave_out(self, what: str) -> None:
        """Warn of a part of the manifest that the graph will not have."""
        logger.warning("%s: left out %s", self.path, what)

    def scope(self, kind: NodeType | EdgeType) -> str:
        """Return a type as options name it."""
        if not kind or not all(kind):
            raise ValueError(f"{self.path}: a type without a name, {kind!r}")
        return type_text(kind)

    def options(self) -> TableOptions:
        """Return the options of the command line and, where they say nothing else, those of the manifest."""
        merged = {option: list(values) for option, values in self._added.items()}
        for each in self._columns:
            if not self._is_overridden(each):
                merged.setdefault(each.option, []).append(str(each))
        changes: dict[str, Any] = {
            option: [*values, *getattr(self.given, option)] for option, values in merged.items()
        }
        if self._delimiters and self.given.csv_delimiter is None:
            changes["csv_delimiter"] = next(iter(self._delimiters))
        if self._encoding is not None and self.given.csv_encoding == TableOptions().csv_encoding:
            changes["csv_encoding"] = self._encoding
        return replace(self.given, **changes)

    def _is_overridden(self, added: _Column) -> bool:
        """Return whether the command line drops the column, or names one that the manifest drops."""
        if added.option != "drop":
            return self._is_dropped(added)
        named = [value for option in _OF_COLUMNS for value in getattr(self.given, option)]
        return any(name_of(value.removeprefix(f"{added.scope}:"))[0] == added.name for value in named)

    def _is_dropped(self, column: _Column) -> bool:
        listed = [value.removeprefix(f"{column.scope}:") for value in self.given.drop]
        return any(
            fnmatchcase(column.source, each) for value in listed for each in names_of(value, patterns=True)
        )


def _first_values(file: str) -> list[str]:
    with gzip.open(file, "rt") as lines:
        return lines.readline().strip().split(",")
