"""Names that types, splits and columns of a graph cannot have: in its files, and as attributes of batches."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from gigl_loader.options import EdgeType, NodeType

_OF_NODES = frozenset(
    {
        *("n_id", "node", "num_nodes", "num_sampled_nodes", "num_sampled_edges"),
        *("batch", "batch_size", "input_id", "seed_index"),
    }
)
_OF_EDGES = frozenset({"edge_index", "e_id", "edge", "num_sampled_edges"})


def check_column_names(
    nodes: Mapping[NodeType, Collection[str]],
    edges: Mapping[EdgeType, Collection[str]],
    *,
    homogeneous: bool,
) -> None:
    """Raise ``ValueError`` for the columns of a type that would hide an attribute of the batch.

    In a homogeneous batch, the attributes of nodes and edges lie side by side.
    """
    for kind, column in reserved_names(nodes, edges, homogeneous=homogeneous):
        raise ValueError(
            f"column {column!r} of {kind!r} has the name of an attribute of every batch: rename it "
            f"(gigl-loader partition --rename {column}=NEW)"
        )
    if homogeneous:
        _check_side_by_side({*chain(*nodes.values())}, {*chain(*edges.values())})


def reserved_names(
    nodes: Mapping[NodeType, Collection[str]],
    edges: Mapping[EdgeType, Collection[str]],
    *,
    homogeneous: bool,
) -> list[tuple[NodeType | EdgeType, str]]:
    """Return the columns that would hide an attribute of the batch, with their types."""
    of_nodes, of_edges = names_of_batches(homogeneous=homogeneous)
    found: list[tuple[NodeType | EdgeType, str]] = []
    for kind, columns in nodes.items():
        found += [(kind, column) for column in sorted(of_nodes.intersection(columns))]
    for edge_type, columns in edges.items():
        found += [(edge_type, column) for column in sorted(of_edges.intersection(columns))]
    return found


def names_of_batches(*, homogeneous: bool) -> tuple[frozenset[str], frozenset[str]]:
    """Return the attributes of nodes, and of edges, that every batch has beside its columns."""
    both = _OF_NODES | _OF_EDGES
    return (both, both) if homogeneous else (_OF_NODES, _OF_EDGES)


def _check_side_by_side(of_nodes: set[str], of_edges: set[str]) -> None:
    """Raise for columns of nodes and edges that would have one name, the prefix notwithstanding."""
    for column in sorted(of_nodes & of_edges):
        if f"edge_{column}" in of_nodes | of_edges | _OF_EDGES:
            raise ValueError(
                f"nodes and edges both have a column {column!r}, and 'edge_{column}' is taken: rename one "
                "(gigl-loader partition --rename)"
            )


def check_names(names: Iterable[str], what: str) -> None:
    """Raise ``ValueError`` for a name that the files of a graph cannot have."""
    for name in names:
        if not isinstance(name, str) or not name or name == "__metadata__":
            raise ValueError(f"{name!r} cannot name a {what}")
        check_encodable(name, what)


def check_encodable(name: str, what: str) -> None:
    """Raise for half of a surrogate pair, which neither a file nor a message can encode."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name!a} cannot name a {what}: it is no text that UTF-8 encodes") from None


def check_type_names(kind: NodeType | EdgeType, parts: tuple[str, ...]) -> None:
    """Raise ``ValueError`` unless a type has names of non-empty texts."""
    if not all(isinstance(part, str) and part for part in parts):
        raise ValueError(f"{kind!r} cannot name a type: names are non-empty strings")
    for part in parts:
        check_encodable(part, "type")
