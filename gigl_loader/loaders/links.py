"""Input links: the forms in which a user may pass them, read as the links of a run."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import torch

from gigl_loader.loaders.seeds import NodeDirectory
from gigl_loader.sampling.request import TIME

if TYPE_CHECKING:
    from collections.abc import Collection

    from gigl_loader.arrays import Array, Int64Array
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType, NodeType

__all__ = ["InputLinks", "LinkDirectory", "SeedLinks", "known_edge_type", "read_seed_links"]


InputLinks: TypeAlias = "torch.Tensor | str | EdgeType | tuple[EdgeType, torch.Tensor | str | None] | None"


class LinkDirectory(NodeDirectory, Protocol):
    """What can be asked of a dataset about its edges, besides its nodes."""

    def all_edges(self, edge_type: EdgeType, split: str | None = None) -> tuple[Int64Array, Int64Array]: ...


@dataclass(frozen=True, slots=True)
class SeedLinks:
    """The links of an epoch, in input order. Not empty."""

    edge_type: EdgeType
    src: Int64Array
    """Positions of the sources, int64 [M]. A link may occur more than once."""
    dst: Int64Array
    ids: Int64Array | None = None
    """Node ids of sources and destinations, int64 [2, M], where they are known."""
    places: Int64Array | None = None
    """Always ``None``: links stand in the user's input as they do here."""
    times: Int64Array | None = None
    """Of the trees around the links, where they are drawn in time."""

    def __post_init__(self) -> None:
        if not len(self.src):
            raise ValueError(f"the input holds no link of type {self.edge_type}")

    @property
    def kind(self) -> EdgeType:
        return self.edge_type

    @property
    def columns(self) -> dict[str, Array]:
        """The columns of a request, [M] each."""
        times = {} if self.times is None else {TIME: self.times}
        return {"src": self.src, "dst": self.dst, **times}

    def described(self, directory: NodeDirectory) -> dict[str, Any]:
        """Return, as plain values, what tells this input from others."""
        digest = hashlib.blake2b(digest_size=16)
        for row, (node_type, positions) in enumerate(
            ((self.edge_type[0], self.src), (self.edge_type[2], self.dst))
        ):
            ids = directory.node_ids(node_type, positions) if self.ids is None else self.ids[row]
            digest.update(np.ascontiguousarray(ids, dtype="<i8").data)
        if self.times is not None:
            digest.update(np.ascontiguousarray(self.times, dtype="<i8").data)
        return {"number of links": len(self.src), "digest of links": digest.hexdigest()}

    def with_times(self, times: Int64Array) -> SeedLinks:
        return replace(self, times=times)

    def without_ids(self) -> SeedLinks:
        return replace(self, ids=None)


def read_seed_links(directory: LinkDirectory, edge_label_index: Any) -> SeedLinks:
    """Return the links that ``edge_label_index`` stands for.

    Node ids or texts, [2, M]; the name of a split of edges; ``None`` for all edges of the only edge type; an
    edge type for all of its edges; or a pair of an edge type and one of these. Edges come by ascending edge
    id. ``ValueError`` and ``TypeError`` name the value and the rule it breaks.
    """
    edge_type, links = _typed(directory.schema, edge_label_index)
    if links is None:
        return SeedLinks(edge_type, *directory.all_edges(edge_type))
    if isinstance(links, str):
        return SeedLinks(edge_type, *directory.all_edges(edge_type, links))
    ends = (edge_type[0], edge_type[2])
    ids = _pairs(_without_texts(directory, ends, links))
    src = _located(directory, ends[0], ids[0], "sources")
    return SeedLinks(edge_type, src, _located(directory, ends[1], ids[1], "destinations"), ids=ids)


def _without_texts(directory: NodeDirectory, ends: tuple[NodeType, NodeType], links: Any) -> Any:
    """Return links as node ids, where they are texts, by which tables named the nodes."""
    if not isinstance(links, (list, tuple, np.ndarray)) or len(links) != 2 or not all(map(_is_texts, links)):
        return links
    rows = zip(ends, links, strict=True)
    return tuple(directory.node_ids_of(list(map(str, texts)), node_type) for node_type, texts in rows)


def _is_texts(row: Any) -> bool:
    return isinstance(row, (list, tuple, np.ndarray)) and len(row) > 0 and isinstance(row[0], str)


def _located(directory: NodeDirectory, node_type: str, ids: Int64Array, name: str) -> Int64Array:
    try:
        return directory.positions(node_type, ids)
    except ValueError as error:
        raise ValueError(f"edge_label_index, {name} of links: {error}") from None


def _typed(schema: GraphSchema, value: Any) -> tuple[EdgeType, Any]:
    if _is_edge_type(value):
        return known_edge_type(schema.edges, value, "edge_label_index"), None
    if isinstance(value, tuple) and len(value) == 2 and _is_edge_type(value[0]):
        return known_edge_type(schema.edges, value[0], "edge_label_index"), value[1]
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        raise TypeError(
            "edge_label_index as a tuple must be (edge type, links), where an edge type is (source, "
            f"relation, destination), got {value[0]!r}"
        )
    known = list(schema.edges)
    if len(known) == 1:
        return known[0], value
    listed = ", ".join(map(str, known)) or "none"
    raise ValueError(f"edge_label_index must name one of the edge types {listed}: pass (edge type, links)")


def _is_edge_type(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 3 and all(isinstance(part, str) for part in value)


def known_edge_type(known: Collection[EdgeType], value: Any, what: str) -> EdgeType:
    """Return an edge type that a user named. ``TypeError`` and ``ValueError`` list those that there are."""
    if not _is_edge_type(value):
        raise TypeError(f"{what} must be (source, relation, destination), got {value!r:.200}")
    edge_type: EdgeType = value
    if edge_type in known:
        return edge_type
    listed = ", ".join(map(str, sorted(known))) or "none"
    turned = next((each for each in known if (each[2], each[1], each[0]) == edge_type), None)
    hint = "" if turned is None else f"; edge types run from source to destination: pass {turned}"
    raise ValueError(f"{what}: unknown edge type {edge_type}; known: {listed}{hint}")


def _pairs(links: Any) -> Int64Array:
    if isinstance(links, (list, tuple)) and len(links) == 2:
        links = torch.stack([torch.as_tensor(each) for each in links])
    if isinstance(links, np.ndarray):
        links = torch.from_numpy(np.ascontiguousarray(links))
    if not isinstance(links, torch.Tensor):
        raise TypeError(
            "edge_label_index must be a tensor of node ids [2, M], an edge type, a pair of both, or None, "
            f"got {links!r:.200}"
        )
    if links.is_floating_point() or links.is_complex() or links.dtype == torch.bool:
        raise TypeError(f"edge_label_index must hold integer node ids, got {links.dtype}")
    if links.ndim != 2 or links.shape[0] != 2:
        hint = ": transpose it" if links.ndim == 2 and links.shape[1] == 2 else ""
        raise ValueError(f"edge_label_index must be [2, M], got {list(links.shape)}{hint}")
    if not links.shape[1]:
        raise ValueError("edge_label_index is empty: at least one link is needed")
    return np.ascontiguousarray(links.detach().cpu().to(torch.int64).numpy())
