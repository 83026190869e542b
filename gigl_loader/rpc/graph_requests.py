"""Requests about the whole graph: its manifest, files and nodes.

They have the same format as the requests about a partition. Every service has the ids of all nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gigl_loader.arrays import Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.options import MAX_TEXT_ID
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.request_reader import RequestReader, known_name, text_arrays, texts_of
from gigl_loader.rpc.versions import newest_wire
from gigl_loader.tensors import Layout, spec_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import NodeType

MAX_LISTED = 1 << 20
"""Nodes of one request or its reply: 8 MiB. Callers split larger requests."""

MAX_TEXTS = 4096
"""Texts of one request or its reply. A text id has at most ``options.MAX_TEXT_ID`` characters, 8 KiB."""

MAX_TEXT_BYTES = 4 * MAX_TEXT_ID
"""Bytes of a text id in UTF-8."""

MAX_FILE_BYTES = 8 << 20
"""Bytes of a file in one request: an attempt has 30 s, for which 0.3 MB/s do."""


@dataclass(frozen=True, slots=True)
class ManifestRequest:
    """Request for the contents of ``graph.json``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IdsRequest:
    """Request for the node ids at positions, int64 [N]."""

    node_type: NodeType
    positions: Int64Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocateRequest:
    """Request for the positions of node ids, int64 [N]."""

    node_type: NodeType
    ids: Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRequest:
    """Request for the positions of a type's nodes by ascending id: ``count`` from index ``first``."""

    node_type: NodeType
    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextsRequest:
    """Request for the texts that name nodes, by node ids, int64 [N]. The type must have text ids."""

    node_type: NodeType
    ids: Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class FindTextsRequest:
    """Request for the node ids of texts, -1 for unknown ones. The type must have text ids."""

    node_type: NodeType
    texts: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRequest:
    """Request for bytes of a file that ``graph.json`` lists: ``count`` from byte ``first``."""

    path: str
    """Relative to the graph's folder, as ``graph.json`` has it."""
    first: int
    count: int


Inquiry: TypeAlias = (
    ManifestRequest | FileRequest | IdsRequest | LocateRequest | ListRequest | TextsRequest | FindTextsRequest
)


def encode_graph_request(inquiry: Inquiry, graph: str, *, wire: int = 0) -> bytes:
    """Return an inquiry as bytes. ``graph`` is the digest, which a request for the manifest does not need.

    ``wire`` is the version agreed upon with the service. 0: the newest of this build.
    """
    if isinstance(inquiry, ManifestRequest | FileRequest):
        return request_document(wire, _about_files(inquiry, graph))
    about = {"graph": graph, "node_type": inquiry.node_type}
    if isinstance(inquiry, IdsRequest):
        return request_document(wire, {**about, "ask": "ids"}, rows=narrowed(inquiry.positions))
    if isinstance(inquiry, LocateRequest):
        return request_document(wire, {**about, "ask": "locate"}, ids=inquiry.ids)
    if isinstance(inquiry, TextsRequest):
        return request_document(wire, {**about, "ask": "texts"}, rows=narrowed(inquiry.ids))
    if isinstance(inquiry, FindTextsRequest):
        return request_document(wire, {**about, "ask": "find_texts"}, **text_arrays(inquiry.texts))
    span = {"first": str(inquiry.first), "count": str(inquiry.count)}
    return request_document(wire, {**about, "ask": "list", **span})


def _about_files(inquiry: ManifestRequest | FileRequest, graph: str) -> dict[str, str]:
    if isinstance(inquiry, ManifestRequest):
        return {"ask": "manifest"}
    span = {"first": str(inquiry.first), "count": str(inquiry.count)}
    return {"ask": "file", "graph": graph, "path": inquiry.path, **span}


def read(fields: RequestReader, schema: GraphSchema, graph: str) -> Inquiry:
    """Read an inquiry, whose kind is the entry ``ask``. ``FormatError``, ``ValueError`` or ``Refusal``."""
    name = fields.text("ask")
    if name == "manifest":
        return ManifestRequest()
    fields.check_graph(graph)
    if name == "file":
        return _file(fields)
    node_type = fields.text("node_type")
    known_name(node_type, schema.nodes, "node type")
    if name in _ABOUT_TEXTS and not schema.nodes[node_type].text_ids:
        raise ValueError(f"nodes of type {node_type!r} have no text ids")
    return _READERS[name](fields, node_type, schema.nodes[node_type].count)


def _file(fields: RequestReader) -> FileRequest:
    """Read a request for a file. The service checks that the file exists and has these bytes."""
    first, count = fields.number("first", 0, 2**63), fields.number("count", 1, 2**63)
    if count > MAX_FILE_BYTES:
        raise Refusal(
            RefusalKind.TOO_LARGE, f"{count} bytes in one request; at most {MAX_FILE_BYTES} are sent"
        )
    return FileRequest(path=fields.text("path"), first=first, count=count)


def _ids(fields: RequestReader, node_type: NodeType, count: int) -> IdsRequest:
    positions = fields.rows(0, count, f"the nodes of type {node_type!r},")
    _check_count(len(positions), MAX_LISTED)
    return IdsRequest(node_type=node_type, positions=positions)


def _locate(fields: RequestReader, node_type: NodeType, count: int) -> LocateRequest:
    ids = fields.integers("ids")
    _check_count(len(ids), MAX_LISTED)
    return LocateRequest(node_type=node_type, ids=ids)


def _list(fields: RequestReader, node_type: NodeType, count: int) -> ListRequest:
    first = fields.number("first", 0, count + 1)
    size = fields.number("count", 0, 2**63)
    _check_count(size, MAX_LISTED)
    return ListRequest(node_type=node_type, first=first, count=size)


def _texts(fields: RequestReader, node_type: NodeType, count: int) -> TextsRequest:
    ids = fields.rows(0, count, f"the nodes of type {node_type!r},")
    _check_count(len(ids), MAX_TEXTS)
    return TextsRequest(node_type=node_type, ids=ids)


def _find_texts(fields: RequestReader, node_type: NodeType, count: int) -> FindTextsRequest:
    offsets, data = fields.integers("offsets"), fields.octets("bytes")
    _check_count(len(offsets) - 1, MAX_TEXTS)
    if len(offsets) > 1 and int(np.diff(offsets).max()) > MAX_TEXT_BYTES:
        raise FormatError(f"request: a text of more than {MAX_TEXT_BYTES} bytes")
    return FindTextsRequest(node_type=node_type, texts=texts_of(data, offsets, "request"))


_READERS: Mapping[str, Callable[[RequestReader, str, int], Inquiry]] = {
    "ids": _ids,
    "locate": _locate,
    "list": _list,
    "texts": _texts,
    "find_texts": _find_texts,
}

_ABOUT_TEXTS = ("texts", "find_texts")

NAMES = frozenset({"manifest", "file", *_READERS})


def _check_count(count: int, limit: int) -> None:
    if count > limit:
        raise Refusal(RefusalKind.TOO_LARGE, f"{count} nodes in one request; at most {limit} are answered")


def request_document(wire: int, entries: Mapping[str, str], **arrays: npt.NDArray[Any]) -> bytes:
    """Return a request of these entries and arrays. ``wire`` as in ``encode_graph_request``."""
    specs = {name: spec_of(array) for name, array in arrays.items()}
    layout = Layout.plan(specs, {"wire": str(wire or newest_wire()), **entries})
    return b"".join([layout.header, *(arrays[name].tobytes() for name in layout.specs)])


def narrowed(positions: Int64Array) -> npt.NDArray[Any]:
    """Return positions, int64 [N], as int32 where they fit."""
    narrow = not len(positions) or (int(positions.min()) >= 0 and int(positions.max()) < 2**31)
    return positions.astype(np.int32) if narrow else positions
