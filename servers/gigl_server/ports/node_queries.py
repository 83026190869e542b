"""Answers about the graph as a whole: its manifest, and which node lies where."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.rpc.graph_requests import IdsRequest, ListRequest, LocateRequest
from gigl_loader.rpc.refusals import Kind, Refused
from gigl_loader.rpc.replies import document

if TYPE_CHECKING:
    import numpy.typing as npt

    from gigl_loader.graph.graph import Graph
    from gigl_loader.options import NodeType
    from gigl_loader.rpc.graph_requests import Inquiry

    Bytes = npt.NDArray[np.uint8]
    Int64Array = npt.NDArray[np.int64]

__all__ = ["about_graph"]


def about_graph(graph: Graph, inquiry: Inquiry) -> list[Bytes]:
    """Return the reply as the pieces of a document. ``Refused`` for unknown node ids."""
    if isinstance(inquiry, IdsRequest):
        return document({"ids": _ids(graph, inquiry.node_type, inquiry.positions)})
    if isinstance(inquiry, LocateRequest):
        return document({"positions": _positions(graph, inquiry)})
    if isinstance(inquiry, ListRequest):
        return document({"positions": graph.all_positions(inquiry.node_type, inquiry.first, inquiry.count)})
    return document({"manifest": np.frombuffer(graph.manifest.to_bytes(), np.uint8)})


def _ids(graph: Graph, node_type: NodeType, positions: Int64Array) -> Int64Array:
    ids = graph.node_ids(node_type)
    return positions if ids is None else ids[positions]


def _positions(graph: Graph, ask: LocateRequest) -> Int64Array:
    try:
        return graph.positions(ask.node_type, ask.ids)
    except ValueError as error:
        raise Refused(Kind.INVALID, str(error)) from None
