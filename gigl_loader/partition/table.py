"""Tables that a graph is built from: named columns, read in chunks of rows."""

from __future__ import annotations

import hashlib
import shlex
import zlib
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from gigl_loader.arrays import Array, Bytes
from gigl_loader.errors import FormatError
from gigl_loader.graph.quantization import Quantization
from gigl_loader.graph.schema import (
    HOMOGENEOUS_EDGE,
    HOMOGENEOUS_NODE,
    Column,
    EdgeSplits,
    EdgeType,
    NodeType,
    type_name,
)
from gigl_loader.graph.times import nanoseconds
from gigl_loader.native import crc32c
from gigl_loader.options import is_edge_type
from gigl_loader.partition.declared import (
    Quantizations,
    check_quantized_column,
    check_time_column,
    check_weight_column,
)
from gigl_loader.partition.readers import TEXT, Kind, Table, as_texts
from gigl_loader.partition.readers.shards import cut, stamp_of
from gigl_loader.partition.roles import relation_column
from gigl_loader.tensors import spec_of

NODE_ROLES = ("id", "split")
"""Columns of a node table that are not data: the node id, and the name of the node's split."""

SPLIT_MASKS: Mapping[str, str] = {"train_mask": "train", "val_mask": "val", "test_mask": "test"}
"""Columns of a node table that, where they are one boolean per row, say who is in which split."""

EDGE_ROLES = ("src", "dst", "id")
"""Columns of an edge table that are not data: the ends and the edge id."""


def of_relation(edge_type: EdgeType, text: str) -> EdgeType:
    """Return the edge type that a text of the relation column makes of such a type."""
    source, relation, destination = edge_type
    return source, relation.replace(f"@{relation_column(edge_type)}", text), destination


def edge_roles(edge_type: EdgeType) -> tuple[str, ...]:
    """Return the columns of edges of a type that are not data."""
    column = relation_column(edge_type)
    return EDGE_ROLES if column is None else (*EDGE_ROLES, column)


class ArrayTable:
    """A table of arrays in memory."""

    def __init__(
        self, name: str, arrays: Mapping[str, Array], columns: Mapping[str, Column] | None = None
    ) -> None:
        """``arrays`` have a row per node or edge, [N, ...]: numbers, booleans, texts or dates, by column.

        ``columns`` may override the dtype of some arrays: ``BF16`` for uint16 that hold bfloat16.
        """
        self.name = name
        self._arrays: dict[str, Array] = {}
        self.columns: dict[str, Kind] = {}
        for key, given in arrays.items():
            array, unit = without_dates(np.asarray(given), f"{name}, column {key!r}")
            self._arrays[key] = array = as_texts(array)
            kind = _kind_of(name, key, array)
            self.columns[key] = replace(kind, unit=unit) if isinstance(kind, Column) else kind
        self.columns.update(columns or {})
        self.num_rows = _common_length(name, self._arrays)
        self._first_row = 0

    @property
    def stamp(self) -> object:
        return [(name, _stamp(array)) for name, array in self._arrays.items()]

    def shards(self, rows: int) -> list[ArrayTable]:
        return [self._span(begin, end) for begin, end in cut(self.num_rows, rows)]

    def _span(self, begin: int, end: int) -> ArrayTable:
        shard = copy(self)
        shard._arrays = {name: array[begin:end] for name, array in self._arrays.items()}
        shard._first_row, shard.num_rows = self._first_row + begin, end - begin
        return shard

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        for start in range(0, self.num_rows, rows):
            yield {name: self._arrays[name][start : start + rows] for name in names}

    def where(self, column: str, row: int) -> str:
        return f"{self.name}, column {column!r}, row {self._first_row + row}"


@dataclass(frozen=True, slots=True, order=True)
class Encoding:
    """Integers in place of the texts of a column."""

    one_hot: bool = False
    """Store vectors of float32 with a 1 at the place of the integer."""
    other: bool = False
    """Texts that are not among ``texts`` get a number of their own, called ``other``."""
    texts: tuple[str, ...] | None = None
    """Vocabulary to use, such as that of another graph. ``None``: the texts of the column."""


@dataclass(frozen=True, slots=True)
class NodeTable:
    """The nodes of one type: a table, or only their number, or neither."""

    rows: Table | None = None
    """Columns of the nodes. Without a column ``id``, node ids are the row numbers; where a column
    looks like ids, ``OptionsNeeded`` names it. An Arrow stream will do."""
    count: int | None = None
    """Number of nodes where there is no table: ids are 0..count-1."""
    splits: Mapping[str, Table] = field(default_factory=dict)
    """Tables with a column ``id``: the nodes of each named split."""
    fractions: Mapping[str, float] = field(default_factory=dict)
    """Splits by hash: the fraction of the nodes that each has. See ``gigl_loader.splits``."""
    added: int = 0
    """Nodes at the end of the table that only other tables name. Masks of splits do not have them."""
    row_ids: bool = False
    """Ids are the row numbers, although a column without the name ``id`` looks like ids."""

    def __post_init__(self) -> None:
        if self.rows is not None:
            object.__setattr__(self, "rows", _opened(self.rows, "node table"))
        if self.rows is not None and self.count not in (None, self.rows.num_rows):
            raise ValueError(f"{self.rows.name} has {self.rows.num_rows} rows, not {self.count}")
        if self.count is not None and self.count < 0:
            raise ValueError(f"a graph cannot have {self.count} nodes")


@dataclass(frozen=True, slots=True)
class GraphTables:
    """All the tables of a graph, by type.

    A node type that has no entry gets the ids that its edges mention. A graph whose only types are
    ``"node"`` and ``("node", "to", "node")`` is homogeneous. A stream of Arrow record batches (an object with
    ``__arrow_c_stream__``) is a table, too: it is read once, here, into a temporary file.
    """

    edges: Mapping[EdgeType, Table]
    nodes: Mapping[NodeType, NodeTable] = field(default_factory=dict)
    weights: Mapping[EdgeType, tuple[str, ...]] = field(default_factory=dict)
    """Columns that are declared as weights: see ``declared``."""
    times: Mapping[NodeType | EdgeType, tuple[str, ...]] = field(default_factory=dict)
    """Columns that are declared as times: see ``declared_times``."""
    labels: Mapping[EdgeType, Table] = field(default_factory=dict)
    """Label sets by ``label_list``: tables of ``src`` (the anchor) and ``dst`` (its label) alone."""
    splits: Mapping[EdgeType, EdgeSplits] = field(default_factory=dict)
    """Splits by hash of the edges of some types."""
    message_edges: tuple[str, ...] | None = None
    """Splits whose edges batches may have, with the edges of no split; those of other splits are held out.
    ``None``: all."""
    quantize: Quantizations = field(default_factory=dict)
    """Columns of nodes and edges that are stored quantised: see ``read_quantize``."""
    reverses: Mapping[EdgeType, EdgeType] = field(default_factory=dict)
    """Types that hold the edges of others the other way round: loaders exclude both together."""
    encode: Mapping[NodeType | EdgeType, Mapping[str, Encoding]] = field(default_factory=dict)
    """Columns of texts that are stored as integers, by type. Labels (``y`` of nodes, ``label`` of edges) that
    are texts need not be named."""
    texts_encoded: bool = False
    """No column of texts is left to encode."""
    unknown_ids: Literal["error", "drop", "add"] = "error"
    """What becomes of ids that the node table of their type does not have: ``"drop"`` leaves out the edges,
    labels and members of splits, ``"add"`` adds nodes, with the fills of the table's columns."""
    duplicates: Literal["keep", "drop"] = "keep"
    """What becomes of parallel edges of one type: ``"drop"`` keeps the one with the smallest id."""
    self_loops: Literal["keep", "drop"] = "keep"
    """What becomes of edges from a node to itself."""

    def __post_init__(self) -> None:
        for name in ("edges", "labels"):
            given = getattr(self, name)
            if wrong := [each for each in given if not is_edge_type(each) or len(each) != 3]:
                raise TypeError(f"{name}: a type is (source, relation, destination), got {wrong[0]!r}")
            found = {each: _opened(table, f"{name} of type {each}") for each, table in given.items()}
            object.__setattr__(self, name, found)
        for node_type, entry in self.nodes.items():
            if not isinstance(entry, NodeTable):
                raise TypeError(f"nodes of type {node_type!r} must be a NodeTable(...), got {entry!r:.100}")
        if not self.edges and not self.nodes:
            raise ValueError("a graph needs at least one table of edges or nodes")
        _require_one_of("unknown_ids", self.unknown_ids, ("error", "drop", "add"))
        _require_one_of("duplicates", self.duplicates, ("keep", "drop"))
        _require_one_of("self_loops", self.self_loops, ("keep", "drop"))
        ends = {end for kind in self.lists for end in (kind[0], kind[2])}
        for node_type, entry in self.nodes.items():
            is_known = entry.rows is not None or entry.count is not None or node_type in ends
            if not is_known and (entry.splits or entry.fractions):
                known = ", ".join(sorted(ends | (set(self.nodes) - {node_type}))) or "none"
                raise ValueError(f"no nodes of type {node_type!r} to split; known: {known}")
        for edge_type in self.splits:
            if edge_type not in self.edges:
                known = ", ".join(map(str, self.edges)) or "none"
                raise ValueError(f"no edges of type {edge_type} to split; known: {known}")
        known_splits = {name for splits in self.splits.values() for name in splits.fractions}
        for name in self.message_edges or ():
            if name not in known_splits:
                known = ", ".join(sorted(known_splits)) or "none: split edges first"
                raise ValueError(f"message edges: no split {name!r} of edges; known: {known}")
        self._check_columns()

    def _check_columns(self) -> None:
        """Raise ``ValueError`` for columns that cannot be what they are declared as."""
        for edge_type, names in self.weights.items():
            for name in names:
                kind = self.edges[edge_type].columns.get(name)
                if not isinstance(kind, Column):
                    raise ValueError(f"{self.edges[edge_type].name} has no column {name!r} to weigh edges by")
                check_weight_column(kind, f"{self.edges[edge_type].name}, column {name!r}")
        for of, names in self.times.items():
            table = self.edges.get(of) if isinstance(of, tuple) else self.nodes.get(of, NodeTable()).rows
            for name in names:
                column = None if table is None else table.columns.get(name)
                check_time_column(column, name, of if table is None else table.name)
        for each, columns in self.quantize.items():
            self._check_quantized(each, columns)
        for each, encodings in self.encode.items():
            columns_of = known_columns(self.nodes, self.edges).get(each, {})
            if wrong := [name for name in encodings if columns_of.get(name) != TEXT]:
                raise ValueError(f"{each} has no column {wrong[0]!r} of texts to encode")

    @property
    def encodings(self) -> dict[NodeType | EdgeType, dict[str, Encoding]]:
        """All columns that are encoded, with the labels that are."""
        found: dict[NodeType | EdgeType, dict[str, Encoding]] = {}
        kinds: list[NodeType | EdgeType] = [*self.nodes, *self.edges]
        for kind in kinds if not self.texts_encoded else ():
            table = self._table(kind)
            label = "y" if isinstance(kind, str) else "label"
            by_default = {label: Encoding()} if table is not None and table.columns.get(label) == TEXT else {}
            if each := by_default | dict(self.encode.get(kind, {})):
                found[kind] = each
        return found

    def _table(self, kind: NodeType | EdgeType) -> Table | None:
        return self.nodes.get(kind, NodeTable()).rows if isinstance(kind, str) else self.edges.get(kind)

    def _check_quantized(self, kind: NodeType | EdgeType, columns: Mapping[str, Quantization]) -> None:
        """Raise ``ValueError`` for a column that cannot be quantised."""
        table = self._table(kind)
        if table is None:
            raise ValueError(f"no table of type {kind} has columns to quantise")
        roles = NODE_ROLES if isinstance(kind, str) else edge_roles(kind)
        exact = {
            "weights": () if isinstance(kind, str) else self.weights.get(kind, ()),
            "times": self.times.get(kind, ()),
        }
        for name, how in columns.items():
            what = f"{table.name}, column {name!r}"
            if name not in table.columns:
                raise ValueError(f"{table.name} has no column {name!r} to quantise")
            if name in roles or (isinstance(kind, str) and name in SPLIT_MASKS and is_mask(table, name)):
                raise ValueError(f"{what} names ids or splits, which cannot be quantised")
            for role, names in exact.items():
                if name in names:
                    raise ValueError(
                        f"{what} is declared as {role}, which must be exact: it cannot be quantised"
                    )
            check_quantized_column(table.columns[name], how, what)

    @property
    def lists(self) -> dict[EdgeType, Table]:
        """Tables of edges and of label sets."""
        return {**self.edges, **self.labels}

    @property
    def node_types(self) -> tuple[NodeType, ...]:
        ends = {end for edge_type in self.lists for end in (edge_type[0], edge_type[2])}
        return tuple(sorted(ends | set(self.nodes)))

    def stamp(self) -> str:
        """Return a text that changes with the tables, or with what is to be made of them."""
        tables = {**self.lists}
        nodes = [
            (kind, each.count, each.fractions, each.rows, sorted(each.splits.items()))
            for kind, each in sorted(self.nodes.items())
        ]
        for kind, _, _, rows, splits in nodes:
            tables |= {(kind, "", ""): rows} if rows is not None else {}
            tables |= {(kind, "split", name): table for name, table in splits}
        found = [
            (kind, table.name, sorted(map(str, table.columns.items())), stamp_of(table) or table.num_rows)
            for kind, table in sorted(tables.items())
        ]
        options = (
            self.message_edges,
            [(kind, count, sorted(fractions.items())) for kind, count, fractions, _, _ in nodes],
            sorted((kind, repr(each)) for kind, each in self.splits.items()),
            (sorted(self.weights.items()), _sorted(self.times), repr(self.quantize)),
            sorted((str(kind), sorted(each.items())) for kind, each in self.encodings.items()),
            (sorted(self.reverses.items()), self.unknown_ids, self.duplicates, self.self_loops),
        )
        return hashlib.sha256(repr((found, options)).encode()).hexdigest()

    def checksum(self) -> str:
        """Return a checksum of tables of numbers in memory, with all that is declared of them."""
        counts = [(node_type, nodes.count) for node_type, nodes in sorted(self.nodes.items())]
        node_rows = [(node_type, nodes.rows) for node_type, nodes in sorted(self.nodes.items())]
        found = [
            (kind, name, str(array.dtype), array.shape, crc32c(_bytes(array)))
            for kind, table in [*sorted(self.lists.items()), *node_rows]
            if table is not None
            for chunk in table.read(list(table.columns), max(table.num_rows, 1))
            for name, array in sorted(chunk.items())
        ]
        quantized = sorted(
            (str(kind), name, str(how)) for kind, each in self.quantize.items() for name, how in each.items()
        )
        told = (sorted(self.weights.items()), _sorted(self.times), quantized, sorted(self.reverses.items()))
        return hashlib.sha256(repr((counts, found, told)).encode()).hexdigest()

    @property
    def homogeneous(self) -> bool:
        return set(self.edges) <= {HOMOGENEOUS_EDGE} and self.node_types == (HOMOGENEOUS_NODE,)


def _require_one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name} is one of {', '.join(known)}, got {value!r}")


def _sorted(times: Mapping[NodeType | EdgeType, tuple[str, ...]]) -> list[tuple[str, tuple[str, ...]]]:
    return sorted((type_name(kind), names) for kind, names in times.items())


class OptionsNeeded(FormatError, ValueError):
    """Tables that cannot be built from as they are. ``options`` of the command line would help.

    Where a table can be read in several ways, ``readings`` has the options of each, and ``options`` those
    that all of them need besides.
    """

    def __init__(
        self, problems: Sequence[str], options: Sequence[str], readings: Sequence[Sequence[str]] = ()
    ) -> None:
        self.problems = "; ".join(problems)
        self.options = list(options)
        self.readings = [list(each) for each in readings]
        added = " or ".join(shlex.join([*options, *each]) for each in self.readings or [[]])
        super().__init__(self.problems + (f". Add {added}" if added else ""))


def option_for(tables: GraphTables, kind: NodeType | EdgeType, value: str, *, typed: bool = False) -> str:
    """Return the value of an option for one table. In a homogeneous graph, it names the type if ``typed``."""
    if tables.homogeneous and not typed:
        return value
    return f"{kind if isinstance(kind, str) else ','.join(kind)}:{value}"


def quoted(name: str) -> str:
    """Return the name of a column as options write it: in double quotes if it has a character of theirs."""
    return '"' + name.replace('"', '""') + '"' if set(name) & set('=,:"*?[') else name


def known_columns(
    nodes: Mapping[NodeType, NodeTable], edges: Mapping[EdgeType, Table]
) -> dict[NodeType | EdgeType, Mapping[str, Kind]]:
    """Return the columns of every type. A type without a table has none."""
    found: dict[NodeType | EdgeType, Mapping[str, Kind]] = {
        kind: {} if entry.rows is None else entry.rows.columns for kind, entry in nodes.items()
    }
    return {**found, **{kind: table.columns for kind, table in edges.items()}}


def without_dates(array: Array, what: str) -> tuple[Array, str | None]:
    """Return datetime64 as nanoseconds, int64, with their unit, and any other array as it is.

    ``FormatError`` names a date that nanoseconds cannot hold.
    """
    if array.dtype.kind != "M":
        return array, None
    try:
        return nanoseconds(array), "ns"
    except ValueError as error:
        raise FormatError(f"{what}: {error}") from None


def is_mask(table: Table, name: str) -> bool:
    """Return whether a column is one boolean per row."""
    return table.columns.get(name) == Column("BOOL")


def data_columns(table: Table, roles: Sequence[str]) -> dict[str, Column]:
    """Return the columns to store, sorted by name: of numbers, without the roles and the masks of splits."""
    found = {}
    for name, kind in sorted(table.columns.items()):
        mask = name in SPLIT_MASKS and "split" in roles and is_mask(table, name)
        if name and name not in roles and not mask and isinstance(kind, Column):
            found[name] = kind
    return found


def unkept_columns(table: Table, roles: Sequence[str]) -> dict[str, Kind]:
    """Return the columns that can neither be stored nor have a role."""
    return {
        name: kind
        for name, kind in table.columns.items()
        if name not in roles and (not name or not isinstance(kind, Column))
    }


def _stamp(array: Array) -> int:
    texts = array.dtype.kind == "O"
    return zlib.crc32("\0".join(array.tolist()).encode()) if texts else crc32c(_bytes(array))


def _bytes(array: Array) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _kind_of(table: str, name: str, array: Array) -> Kind:
    if array.ndim == 0:
        raise FormatError(f"{table}, column {name!r}: a single number, not an array of rows")
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array.reshape(-1)):
        return TEXT
    try:
        return Column(spec_of(array).dtype, array.shape[1:])
    except FormatError as error:
        raise FormatError(f"{table}, column {name!r}: {error}") from None


def _common_length(table: str, arrays: Mapping[str, Array]) -> int:
    first: str | None = None
    for name, array in arrays.items():
        if first is None:
            first = name
        elif len(array) != len(arrays[first]):
            raise FormatError(
                f"{table}: ragged columns: {first!r} has {len(arrays[first])} rows, {name!r} has {len(array)}"
            )
    return 0 if first is None else len(arrays[first])


def _opened(table: Any, what: str) -> Any:
    """Return a table: of the rows of an Arrow stream, or what is given. ``TypeError`` for anything else."""
    if not hasattr(table, "__arrow_c_stream__"):
        if not hasattr(table, "read") or not isinstance(getattr(table, "columns", None), Mapping):
            raise TypeError(
                f"{what}: neither a table (open_table, ArrayTable) nor an Arrow stream: {table!r:.100}"
            )
        return table
    from gigl_loader.partition.readers.arrow_stream import ArrowStreamTable

    return ArrowStreamTable(table, what)
