"""Columns of which a cache of feature rows keeps rows, and the readers behind it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gigl_loader.graph.schema import type_name
from gigl_loader.sampling.rows import DiskRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.arrays import Bytes
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import CachePolicy
    from gigl_loader.sampling.cache_shares import Kind
    from gigl_loader.sampling.columns import ColumnPlan
    from gigl_loader.sampling.partitioned import OwnerRows
    from gigl_loader.sampling.rows import RowReader


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedColumns:
    """Columns of one type, and where their rows are read."""

    reader: RowReader
    row_bytes: tuple[int, ...]
    """Of each column."""
    num_rows: int
    """Rows of the type in the graph: more are never cached."""
    here: OwnerRows | None = None
    """Reads rows of this host where ``reader`` reads those of other hosts. Rows of this host take no slot."""
    cached: bool = True
    """False: the reader reads memory, and is asked for every batch."""
    counted: bool = False
    """Count how often batches want each row. Rows are then positions, below ``num_rows``."""
    signature: str = ""
    """Names and sizes of the columns: equal where two ranks of a host may share rows."""
    counts: Bytes | None = None
    """How often each row is likely to be wanted, uint8 [num_rows], where something is known beforehand."""
    written: Callable[[], int] = int
    """Returns a number that changes when files of the reader are written to: rows of before may be wrong."""

    @property
    def nbytes(self) -> int:
        """Bytes of a row, of all columns."""
        return sum(self.row_bytes)


def cached_columns(
    schema: GraphSchema,
    plan: ColumnPlan,
    readers: Mapping[Kind, RowReader],
    *,
    mapped: Collection[Kind] = (),
    here: Mapping[Kind, OwnerRows] | None = None,
    policy: CachePolicy = "census",
    degrees: Mapping[Kind, Bytes] | None = None,
) -> dict[Kind, CachedColumns]:
    """Return the columns that batches of a plan carry.

    Rows of ``mapped`` types are in memory already; of the other types, rows that ``here`` holds.

    ``degrees`` says how often rows are likely to be wanted, for the policy ``"degree"``.
    """
    found: dict[Kind, CachedColumns] = {}
    for kind, names in columns_with_bytes(schema, plan):
        of_type = schema.nodes[kind] if isinstance(kind, str) else schema.edges[kind]
        reader = readers[kind]
        found[kind] = CachedColumns(
            reader=reader,
            written=reader.written if isinstance(reader, DiskRows) else int,
            row_bytes=tuple(of_type.columns[name].row_bytes for name in names),
            num_rows=of_type.count,
            signature=f"{type_name(kind)} {[(name, of_type.columns[name].row_bytes) for name in names]}",
            here=(here or {}).get(kind),
            cached=kind not in mapped,
            counted=policy == "census" and isinstance(kind, str),
            counts=(degrees or {}).get(kind) if policy == "degree" else None,
        )
    return found


def columns_with_bytes(schema: GraphSchema, plan: ColumnPlan) -> Iterator[tuple[Kind, list[str]]]:
    """Yield the columns to be read for the batches of a plan, of each type that has some."""
    carried: list[tuple[Kind, Sequence[str]]] = [*plan.nodes.items(), *plan.edges.items()]
    for kind, names in carried:
        filled = [name for name in names if schema.columns[kind][name].row_bytes]
        if filled:
            yield kind, filled
