"""The assigner that ``--assigner`` names: a known one, or tables of owners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gigl_loader.partition.assigners import assigner_named
from gigl_loader.partition.owner_tables import TableAssigner, owners_from_files
from gigl_loader.partition.sources import ColumnOptions

if TYPE_CHECKING:
    from gigl_loader.graph.schema import NodeType
    from gigl_loader.partition.assigners import Assigner, GraphAssigner
    from gigl_loader.partition.csv_format import CsvFormat

__all__ = ["read_assigner"]


def read_assigner(values: Sequence[str], csv: CsvFormat) -> Assigner | GraphAssigner:
    """Return the assigner for all ``--assigner NAME`` or ``--assigner [TYPE=]FILES``.

    ``ValueError`` for an unknown name, and for a type without files or with them twice.
    """
    files: dict[NodeType, str] = {}
    for value in values:
        node_type, equals, each = value.partition("=")
        if not equals or "/" in node_type:
            if len(values) > 1:
                raise ValueError(f"--assigner {value}: of several, each is TYPE=FILES")
            named = assigner_named(value)
            of_files = isinstance(named, TableAssigner)
            return owners_from_files(value, options=ColumnOptions(csv=csv)) if of_files else named
        if not node_type or not each or node_type in files:
            raise ValueError(f"--assigner {value}: write --assigner [TYPE=]FILES, once for each type")
        files[node_type] = each
    return owners_from_files(files, options=ColumnOptions(csv=csv))
