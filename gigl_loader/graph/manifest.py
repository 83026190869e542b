"""Files of a graph: their names, the safetensors documents that they hold, and ``graph.json``.

``graph.json`` is written last, so a directory without a valid one is not a graph. Its digest covers the rest
of the document, and through the checksums every byte of the graph.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gigl_loader.errors import FormatError
from gigl_loader.graph.checksums import BlockSums, FileBytes, FileRecord, record_from_json
from gigl_loader.graph.folder import Folder, Sink
from gigl_loader.graph.schema import Column, EdgeType, GraphSchema, NodeType, is_hidden_list, type_name
from gigl_loader.native import advise_random, crc32c
from gigl_loader.options import MAX_MANIFEST_BYTES
from gigl_loader.strict_json import read_json
from gigl_loader.tensors import STORAGE_DTYPES, ArraySpec, Layout


def ids_path(node_type: NodeType) -> str:
    return f"ids/{type_name(node_type)}.safetensors"


def text_ids_path(node_type: NodeType) -> str:
    """Return the path of the texts that stand for the node ids of a type."""
    return f"ids/text/{type_name(node_type)}.safetensors"


def vocabulary_path(number: int) -> str:
    """Return the path of a vocabulary that ``graph.json`` does not have."""
    return f"vocabularies/{number}.safetensors"


def node_times_path(node_type: NodeType, column: str) -> str:
    """Return the path of the times of all nodes of a type, and their order."""
    return f"ids/times/{type_name(node_type)}/{type_name(column)}.safetensors"


def part_folder(part: int) -> str:
    return f"part-{part:05d}"


def topology_path(part: int, edge_type: EdgeType) -> str:
    """Return the path of the lists of an edge type, a label set, or edges that are held out."""
    if is_hidden_list(edge_type):
        return f"{part_folder(part)}/labels/{type_name(edge_type)}.safetensors"
    return f"{part_folder(part)}/topology/{type_name(edge_type)}.safetensors"


def nodes_path(part: int, node_type: NodeType) -> str:
    return f"{part_folder(part)}/nodes/{type_name(node_type)}.safetensors"


def edges_path(part: int, edge_type: EdgeType) -> str:
    return f"{part_folder(part)}/edges/{type_name(edge_type)}.safetensors"


def weights_path(part: int, edge_type: EdgeType, column: str) -> str:
    """Return the path of the index of a declared weight column."""
    return f"{part_folder(part)}/weights/{type_name(edge_type)}/{type_name(column)}.safetensors"


def times_path(part: int, edge_type: EdgeType, time: str) -> str:
    """Return the path of the lists of an edge type in order of a time of edges or neighbours."""
    return f"{part_folder(part)}/times/{type_name(edge_type)}/{type_name(time)}.safetensors"


def timed_weights_path(part: int, edge_type: EdgeType, time: str, weight: str) -> str:
    """Return the path of the index of a weight column in that order."""
    name = f"{type_name(time)}/{type_name(weight)}"
    return f"{part_folder(part)}/times/{type_name(edge_type)}/{name}.safetensors"


def splits_path(part: int, node_type: NodeType) -> str:
    return f"{part_folder(part)}/splits/{type_name(node_type)}.safetensors"


class DocumentWriter:
    """Writer of the arrays of one file. Pieces of its arrays may be appended in any interleaving."""

    def __init__(self, folder: Folder, name: str, specs: Mapping[str, ArraySpec]) -> None:
        self.name = name
        self._layout = Layout.plan(specs)
        self._sink: Sink = folder.create(name, self._layout.nbytes)
        self._sink.write(0, self._layout.header)
        self._written = dict.fromkeys(specs, 0)
        self._sums = BlockSums(self._layout.nbytes)
        self._sums.add(0, np.frombuffer(self._layout.header, np.uint8))

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self._layout.specs

    def append(self, array: str, rows: npt.NDArray[Any]) -> None:
        """Write the next rows of an array, [R, ...] of its dtype."""
        assert rows.dtype == STORAGE_DTYPES[self.specs[array].dtype], (self.name, array, rows.dtype)
        data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
        begin = self._layout.offsets[array] + self._written[array]
        self._sink.write(begin, data)
        self._written[array] += data.nbytes
        self._sums.add(begin, data)

    def close(self) -> FileRecord:
        """Flush the file to disk, and return its record. Every array must be complete."""
        for name, spec in self._layout.specs.items():
            assert self._written[name] == spec.nbytes, (self.name, name, self._written[name], spec)
        self._sink.close()
        return self._sums.finish(crc32c(np.frombuffer(self._layout.header, np.uint8)))

    def abort(self) -> None:
        """Close an incomplete file without flushing."""
        self._sink.discard()


class Document:
    """A mapped file of a graph. Its header is checked when it is opened, its data by ``verify``."""

    def __init__(self, folder: Folder, name: str, record: FileRecord) -> None:
        self.name = name
        self._record = record
        self.status = folder.status(name)
        """Status of the file when it was mapped."""
        self.stays_on_disk = False
        """The memory cannot keep it."""
        self._buffer = _opened(folder, name)
        if len(self._buffer) != record.nbytes:
            raise FormatError(f"{name}: {len(self._buffer)} bytes, graph.json says {record.nbytes}")
        self.layout = Layout.parse(self._buffer, what=name)
        if not record.header_matches(self.layout.header):
            raise FormatError(f"{name}: the header does not match its checksum in graph.json")
        if self.layout.nbytes != record.nbytes:
            raise FormatError(f"{name}: its arrays are not those of graph.json")

    @property
    def specs(self) -> Mapping[str, ArraySpec]:
        return self.layout.specs

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return an array as a read-only view."""
        return self.layout.view(self._buffer, name)

    def require(self, name: str, spec: ArraySpec) -> None:
        """Raise ``FormatError`` unless the array exists with this dtype and shape."""
        found = self.specs.get(name)
        if found != spec:
            text = "missing" if found is None else f"{found.dtype} {list(found.shape)}"
            raise FormatError(
                f"{self.name}: {name!r} is {text}, the schema says {spec.dtype} {list(spec.shape)}"
            )

    def advise_random(self) -> None:
        """Prepare the map for reads at random that the memory cannot keep."""
        advise_random(self._buffer)
        self.stays_on_disk = True

    def verify(self, report: Callable[[int], None], data: FileBytes | None = None) -> None:
        """Read every byte, of the map or of ``data``, and compare the checksums.

        ``report(nbytes)`` is called after each read.
        """
        self._record.verify(self._buffer if data is None else data, self.layout, self.name, report)


def _opened(folder: Folder, name: str) -> npt.NDArray[np.uint8]:
    try:
        return folder.open(name)
    except FileNotFoundError:
        raise FormatError(f"{name}: missing from {folder}") from None
    except OSError as error:
        raise FormatError(f"{name}: cannot be read: {error.strerror}") from None


FORMAT_VERSION = 4
_OLDEST_VERSION = 1
MANIFEST_NAME = "graph.json"
_FORMAT = "gigl-graph"


def version_for(schema: GraphSchema) -> int:
    """Return the oldest format version that has what is in a schema, for readers that know no later one."""
    if schema.vocabulary_files:
        return 4
    return 3 if schema.has_quantized_columns else 2


@dataclass(frozen=True)
class Manifest:
    """Contents of ``graph.json``."""

    schema: GraphSchema
    build: Mapping[str, Any]
    """Record of the build, for people. No code reads it."""
    files: Mapping[str, FileRecord]

    version: int
    """Format version. In version 1, files have the CRC-32 of each array instead of each block."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the document, in hexadecimal: equal for graphs with the same contents."""
        if self.version == 1:
            document = self._document()
            text = json.dumps({name: document[name] for name in ("schema", "files")}, sort_keys=True)
            return hashlib.sha256(text.encode()).hexdigest()
        return _digest(self._document())

    def to_bytes(self) -> bytes:
        """Return the document as bytes, with the digest of all other entries as its last entry."""
        document = self._document()
        if self.version == 1:
            document["checksum"] = _checksum(document)
        else:
            document["digest"] = _digest(document)
        return json.dumps(document, indent=1).encode() + b"\n"

    def _document(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "version": self.version,
            "schema": self.schema.to_json(),
            "build": dict(self.build),
            "files": {name: self.files[name].to_json() for name in sorted(self.files)},
        }

    @classmethod
    def read(cls, folder: Folder) -> Manifest:
        """Read and check ``graph.json``. Raises ``FormatError``."""
        try:
            contents = folder.open(MANIFEST_NAME)  # A map: none of it was read yet.
        except (FileNotFoundError, NotADirectoryError):
            raise FormatError(f"{folder} is not a graph: it has no {MANIFEST_NAME}") from None
        if len(contents) > MAX_MANIFEST_BYTES:
            text = f"{len(contents)} bytes; at most {MAX_MANIFEST_BYTES} are read"
            raise FormatError(f"{folder}: {MANIFEST_NAME} has {text}")
        return cls.parse(bytes(contents), what=str(folder))

    @classmethod
    def parse(cls, data: bytes, *, what: str) -> Manifest:
        """Read and check the contents of ``graph.json``. Raises ``FormatError``, which names ``what``."""
        document = _parsed(data)
        if document.get("format") != _FORMAT:
            raise FormatError(f"{what}: {MANIFEST_NAME} is not that of a graph")
        version = document.get("version")
        if type(version) is not int or not _OLDEST_VERSION <= version <= FORMAT_VERSION:
            raise FormatError(
                f"{what}: format version {version!r}, this library reads {_OLDEST_VERSION} to "
                f"{FORMAT_VERSION}"
            )
        _check_digest(document, version)
        if missing := {"schema", "build", "files"} - set(document):
            raise FormatError(f"{MANIFEST_NAME}: no entry {min(missing)!r}")
        schema, build = GraphSchema.from_json(document["schema"]), document["build"]
        if schema.has_quantized_columns and version < 3:
            raise FormatError(f"{MANIFEST_NAME}: quantised columns in format version {version}")
        if schema.vocabulary_files and version < 4:
            raise FormatError(f"{MANIFEST_NAME}: files of vocabularies in format version {version}")
        return cls(schema, build, _files(document["files"], version), version)


def _parsed(data: bytes) -> dict[str, Any]:
    document = read_json(data, what=MANIFEST_NAME, max_bytes=MAX_MANIFEST_BYTES)
    if not isinstance(document, dict):
        raise FormatError(f"{MANIFEST_NAME}: a {type(document).__name__}, not an object")
    return document


def _files(entries: Mapping[str, Any], version: int) -> dict[str, FileRecord]:
    try:
        return {name: record_from_json(entry, version=version) for name, entry in entries.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{MANIFEST_NAME}: bad file record: {error}") from None


def _check_digest(document: dict[str, Any], version: int) -> None:
    """Remove the digest from the document. ``FormatError`` unless it matches the rest."""
    if version == 1:
        if document.pop("checksum", None) != _checksum(document):
            raise FormatError(f"{MANIFEST_NAME}: the contents do not match their checksum")
    elif document.pop("digest", None) != _digest(document):
        raise FormatError(f"{MANIFEST_NAME}: the contents do not match their digest")


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(document)).hexdigest()


def _checksum(document: Mapping[str, Any]) -> int:
    return zlib.crc32(_canonical(document))


def _canonical(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


_PART = re.compile(r"part-([0-9]{5,})/.")


def files_of(
    schema: GraphSchema, parts: Iterable[int], *, features_of: Collection[int] | None = None
) -> list[str]:
    """Return the files that are needed to open ``parts``, ``features_of`` some of them: by default of all."""
    names = shared_files(schema)
    for part in parts:
        files = files_of_part(schema, part)
        left_out = set() if features_of is None or part in features_of else {*feature_files(files)}
        names += [name for name in files if name not in left_out]
    return names


def shared_files(schema: GraphSchema) -> list[str]:
    """Return the files that every partition needs: node ids, times of all nodes, vocabularies."""
    names = [ids_path(node_type) for node_type, nodes in schema.nodes.items() if nodes.ids != "identity"]
    names += [text_ids_path(node_type) for node_type, nodes in schema.nodes.items() if nodes.text_ids]
    names += sorted({vocabulary_path(file.number) for file in schema.vocabulary_files})
    return names + [
        node_times_path(node_type, time)
        for node_type in schema.nodes
        for time in schema.nodes[node_type].times
    ]


def files_of_part(schema: GraphSchema, part: int) -> list[str]:
    """Return the files of one partition."""
    return [
        *(topology_path(part, edge_type) for edge_type in schema.lists),
        *(edges_path(part, edge_type) for edge_type, edges in schema.edges.items() if edges.columns),
        *(
            weights_path(part, edge_type, name)
            for edge_type, edges in schema.edges.items()
            for name in edges.weights
        ),
        *(
            path
            for edge_type, edges in schema.edges.items()
            for time in schema.list_times(edge_type)
            for path in (
                times_path(part, edge_type, time),
                *(timed_weights_path(part, edge_type, time, name) for name in edges.weights),
            )
        ),
        *(nodes_path(part, node_type) for node_type, nodes in schema.nodes.items() if nodes.columns),
        *(splits_path(part, node_type) for node_type, nodes in schema.nodes.items() if nodes.splits),
    ]


def feature_files(names: Iterable[str]) -> list[str]:
    """Return the files of columns and texts, which no draw reads. They are verified in the background."""
    kinds = ("nodes", "edges", "text")
    return [name for name in names if name.split("/")[1] in kinds or name.startswith("vocabularies/")]


def part_of(name: str) -> int | None:
    """Return the partition of a file by its name. ``None``: partitions share it."""
    found = _PART.match(name)
    return int(found[1]) if found else None


def check_files(manifest: Manifest) -> None:
    """Raise ``FormatError`` unless ``graph.json`` lists exactly the files of its schema.

    No other name is ever opened, so that a hostile ``graph.json`` cannot name a file elsewhere.
    """
    expected = set(files_of(manifest.schema, range(manifest.schema.num_partitions)))
    for name in sorted(manifest.files.keys() ^ expected):
        what = "is no file of this schema" if name in manifest.files else f"missing from {MANIFEST_NAME}"
        raise FormatError(f"{name}: {what}")


def check_part(schema: GraphSchema, documents: Mapping[str, Document], part: int) -> None:
    """Raise ``FormatError`` unless the opened files of a partition have the arrays of the schema."""
    for edge_type in schema.lists:
        edges = _check_topology(schema, documents[topology_path(part, edge_type)], edge_type, part)
        if edge_type in schema.labels:
            continue
        if (features := documents.get(edges_path(part, edge_type))) is not None:
            _check_columns(features, schema.edges[edge_type].columns, edges)
        bounds = schema.nodes[schema.target_type(edge_type)].bounds
        for name in schema.edges[edge_type].weights:
            expected = {
                "sums": ArraySpec("I64", (edges,)),
                "counts": ArraySpec("I64", (bounds[part + 1] - bounds[part],)),
            }
            _require_all(documents[weights_path(part, edge_type, name)], expected)
        for column in schema.list_times(edge_type):
            document = documents[times_path(part, edge_type, column)]
            slots = ArraySpec(_width(document, "slots"), (edges,))
            _require_all(document, {"times": ArraySpec("I64", (edges,)), "slots": slots})
            for name in schema.edges[edge_type].weights:
                timed = documents[timed_weights_path(part, edge_type, column, name)]
                _require_all(timed, {"sums": ArraySpec("I64", (edges,))})
    for node_type, nodes in schema.nodes.items():
        rows = nodes.bounds[part + 1] - nodes.bounds[part]
        if (features := documents.get(nodes_path(part, node_type))) is not None:
            _check_columns(features, nodes.columns, rows)
        if nodes.splits:
            _check_splits(documents[splits_path(part, node_type)], nodes.splits)


def _check_topology(schema: GraphSchema, document: Document, edge_type: EdgeType, part: int) -> int:
    edges = schema.lists[edge_type]
    bounds = schema.nodes[schema.target_type(edge_type)].bounds
    indices = document.specs.get("indices")
    if indices is None or len(indices.shape) != 1:
        raise FormatError(f"{document.name}: no 1-D array 'indices'")
    count = indices.shape[0]
    expected = {
        "indptr": ArraySpec("I64", (bounds[part + 1] - bounds[part] + 1,)),
        "indices": ArraySpec("I64" if edges.wide_indices else "I32", (count,)),
        "edge_ids": ArraySpec(_width(document, "edge_ids"), (count,)),
    }
    if edges.weight:
        expected["weight"] = ArraySpec("F32", (count,))
    if edges.time:
        expected["time"] = ArraySpec("I64", (count,))
    _require_all(document, expected)
    indptr = document.array("indptr")
    if indptr[0] != 0 or indptr[-1] != count:
        raise FormatError(
            f"{document.name}: indptr runs from {indptr[0]} to {indptr[-1]}, not from 0 to {count}"
        )
    return count


def _width(document: Document, name: str) -> str:
    found = document.specs.get(name)
    return "I32" if found is not None and found.dtype == "I32" else "I64"


def _check_columns(document: Document, columns: Mapping[str, Column], rows: int) -> None:
    _require_all(document, {name: column.spec(rows) for name, column in columns.items()})


def _check_splits(document: Document, splits: Mapping[str, int]) -> None:
    if set(document.specs) != set(splits):
        raise FormatError(
            f"{document.name}: splits {sorted(document.specs)}, the schema says {sorted(splits)}"
        )
    for name, spec in document.specs.items():
        if spec.dtype != "I64" or len(spec.shape) != 1:
            raise FormatError(f"{document.name}: {name!r} is {spec.dtype} {list(spec.shape)}, not I64 [n]")


def _require_all(document: Document, expected: Mapping[str, ArraySpec]) -> None:
    for name, spec in expected.items():
        document.require(name, spec)
    if extra := set(document.specs) - set(expected):
        raise FormatError(f"{document.name}: {min(extra)!r} is not in the schema")
