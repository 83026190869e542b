"""Tables that a graph is built from: named columns, read in chunks of rows."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

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
from gigl_loader.native import crc32c
from gigl_loader.options import is_edge_type
from gigl_loader.partition.array_table import bytes_of
from gigl_loader.partition.declared import (
    Quantizations,
    check_quantized_column,
    check_time_column,
    check_weight_column,
)
from gigl_loader.partition.readers import TEXT, TEXT_LISTS, Kind, Table, stamp_of
from gigl_loader.partition.refusals import type_text
from gigl_loader.partition.roles import Role, relation_column
from gigl_loader.partition.sources import is_stream, open_table
from gigl_loader.partition.typed_rows import tables_by_type

NODE_ROLES = ("id", "split")
"""Columns of a node table that are not data: the node id, and the name of the node's split."""

SPLIT_MASKS: Mapping[str, str] = {"train_mask": "train", "val_mask": "val", "test_mask": "test"}
"""Columns of a node table that, where they are one boolean per row, say who is in which split."""

EDGE_ROLES = ("src", "dst", "id")
"""Columns of an edge table that are not data: the ends and the edge id."""
_CHOICES: Mapping[str, Sequence[str]] = {
    "unknown_ids": ("error", "drop", "add"),
    **dict.fromkeys(("duplicates", "self_loops"), ("keep", "drop")),
}


def of_relation(edge_type: EdgeType, text: str) -> EdgeType:
    """Return the edge type that a text of the relation column makes of such a type."""
    source, relation, destination = edge_type
    return source, relation.replace(f"@{relation_column(edge_type)}", text), destination


def edge_roles(edge_type: EdgeType) -> tuple[str, ...]:
    """Return the columns of edges of a type that are not data."""
    column = relation_column(edge_type)
    return EDGE_ROLES if column is None else (*EDGE_ROLES, column)


@dataclass(frozen=True, slots=True, order=True)
class Encoding:
    """Integers in place of the texts of a column."""

    one_hot: bool = False
    """Store vectors of float32 with a 1 at the place of the integer."""
    multi_hot: bool = False
    """A value has several texts, such as ``Action|Comedy``: store vectors with a 1 for each. None: zeros."""
    delimiter: str | None = None
    """Of the texts of a value with ``multi_hot``. ``None``: the one of ``|``, ``;`` and ``,`` that the first
    values have."""
    other: bool = False
    """Texts that are not among ``texts`` get a number of their own, called ``other``."""
    texts: tuple[str, ...] | None = None
    """Vocabulary to use, such as that of another graph. ``None``: the texts of the column."""


@dataclass(frozen=True, slots=True)
class NodeTable:
    """The nodes of one type: a table, or only their number, or neither."""

    rows: Table | None = None
    """Columns of the nodes. Without a column ``id``, node ids are the row numbers; where a column
    looks like ids, ``OptionsNeeded`` names it."""
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
            object.__setattr__(self, "rows", _opened(self.rows, "node table", "nodes"))
        if self.rows is not None and self.count not in (None, self.rows.num_rows):
            raise ValueError(f"{self.rows.name} has {self.rows.num_rows} rows, not {self.count}")
        if self.count is not None and self.count < 0:
            raise ValueError(f"a graph cannot have {self.count} nodes")


@dataclass(frozen=True, slots=True)
class GraphTables:
    """All the tables of a graph, by type.

    A node type that has no entry gets the ids that its edges mention. A graph whose only types are
    ``"node"`` and ``("node", "to", "node")`` is homogeneous. A path or a SELECT is a table, too, as for
    ``open_table``, and so are a DuckDB relation, a data set of pyarrow, and any stream of Arrow record
    batches (an object with ``__arrow_c_stream__``), whose columns keep their names. A table of type
    ``("@x_type", "binds", "@y_type")``, whose columns ``x_type`` and ``y_type`` name the types of the ends,
    makes a type for each pair of them.
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
            found = {each: _opened(table, f"{name} of type {each}", "edges") for each, table in given.items()}
            by_type = [tables_by_type(kind, table).items() for kind, table in found.items()]
            object.__setattr__(self, name, dict(chain.from_iterable(by_type)))
        for node_type, entry in self.nodes.items():
            if not isinstance(entry, NodeTable):
                raise TypeError(f"nodes of type {node_type!r} must be a NodeTable(...), got {entry!r:.100}")
        if not self.edges and not self.nodes:
            raise ValueError("a graph needs at least one table of edges or nodes")
        wrong_choices = [name for name, known in _CHOICES.items() if getattr(self, name) not in known]
        for name in wrong_choices:
            raise ValueError(f"{name} is one of {', '.join(_CHOICES[name])}, got {getattr(self, name)!r}")
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
            for name, how in encodings.items():
                held = columns_of.get(name)
                if held != TEXT and not (how.multi_hot and held == TEXT_LISTS):
                    raise ValueError(f"{each} has no column {name!r} of texts to encode")

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

    def all_tables(self) -> Iterator[tuple[NodeType | EdgeType, Table]]:
        """Yield every table, with the type that it is of: nodes, splits of nodes, edges, labels."""
        for kind, nodes in self.nodes.items():
            for table in (*filter(None, [nodes.rows]), *nodes.splits.values()):
                yield kind, table
        yield from self.lists.items()

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
            (kind, name, str(array.dtype), array.shape, crc32c(bytes_of(array)))
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


def _sorted(times: Mapping[NodeType | EdgeType, tuple[str, ...]]) -> list[tuple[str, tuple[str, ...]]]:
    return sorted((type_name(kind), names) for kind, names in times.items())


def option_for(tables: GraphTables, kind: NodeType | EdgeType, value: str, *, typed: bool = False) -> str:
    """Return the value of an option for one table. In a homogeneous graph, it names the type if ``typed``.

    A table whose rows name the types of the ends has the type that was given.
    """
    table = tables.lists.get(kind) if isinstance(kind, tuple) else None
    given: EdgeType | None = getattr(table, "given_type", None)
    if tables.homogeneous and not typed and given is None:
        return value
    return f"{type_text(given or kind)}:{value}"


def known_columns(
    nodes: Mapping[NodeType, NodeTable], edges: Mapping[EdgeType, Table]
) -> dict[NodeType | EdgeType, Mapping[str, Kind]]:
    """Return the columns of every type. A type without a table has none."""
    found: dict[NodeType | EdgeType, Mapping[str, Kind]] = {
        kind: {} if entry.rows is None else entry.rows.columns for kind, entry in nodes.items()
    }
    return {**found, **{kind: table.columns for kind, table in edges.items()}}


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


def _opened(table: Any, what: str, role: Role) -> Any:
    """Return a table: that of files or a query, of the rows of a stream, or what is given."""
    if isinstance(table, (str, os.PathLike)):
        return open_table(os.fspath(table), role=role)
    if is_stream(table):
        from gigl_loader.partition.readers.arrow_files import ArrowStreamTable

        return ArrowStreamTable(table, what)
    if not hasattr(table, "read") or not isinstance(getattr(table, "columns", None), Mapping):
        wanted = "a table (open_table, ArrayTable), a path, a query or an Arrow stream"
        raise TypeError(f"{what}: must be {wanted}, got {table!r:.100}")
    return table
