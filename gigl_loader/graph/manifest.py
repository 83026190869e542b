"""``graph.json``: format version, schema, and size and checksums of every file.

It is written last, so a directory without a valid one is not a graph.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gigl_loader.errors import FormatError
from gigl_loader.graph.document import FileRecord
from gigl_loader.graph.folder import Folder
from gigl_loader.graph.schema import GraphSchema
from gigl_loader.strict_json import read_json

__all__ = ["FORMAT_VERSION", "MANIFEST_NAME", "Manifest"]

FORMAT_VERSION = 1
MANIFEST_NAME = "graph.json"
_FORMAT = "gigl-graph"
_MAX_BYTES = 64 << 20  # Of some 300,000 files.


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of ``graph.json``."""

    schema: GraphSchema
    build: Mapping[str, Any]
    """How the graph was built, for people. Nothing reads it."""
    files: Mapping[str, FileRecord]

    @property
    def digest(self) -> str:
        """SHA-256 of schema and file records, in hexadecimal: equal for graphs with the same contents."""
        files = {name: record.to_json() for name, record in self.files.items()}
        text = json.dumps({"schema": self.schema.to_json(), "files": files}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_bytes(self) -> bytes:
        """Return the file, with a checksum of all the rest as its last entry."""
        document = {
            "format": _FORMAT,
            "version": FORMAT_VERSION,
            "schema": self.schema.to_json(),
            "build": dict(self.build),
            "files": {name: self.files[name].to_json() for name in sorted(self.files)},
        }
        document["checksum"] = _checksum(document)
        return json.dumps(document, indent=1).encode() + b"\n"

    @classmethod
    def read(cls, folder: Folder) -> Manifest:
        """Read and check ``graph.json``. Raises ``FormatError``."""
        try:
            data = bytes(folder.open(MANIFEST_NAME))
        except (FileNotFoundError, NotADirectoryError):
            raise FormatError(f"{folder} is not a graph: it has no {MANIFEST_NAME}") from None
        return cls.parse(data, what=str(folder))

    @classmethod
    def parse(cls, data: bytes, *, what: str) -> Manifest:
        """Read and check the contents of ``graph.json``. Raises ``FormatError``, which names ``what``."""
        document = _parsed(data)
        if document.get("format") != _FORMAT:
            raise FormatError(f"{what}: {MANIFEST_NAME} is not that of a graph")
        if document.get("version") != FORMAT_VERSION:
            raise FormatError(
                f"{what}: format version {document.get('version')!r}, this library reads {FORMAT_VERSION}"
            )
        if document.pop("checksum", None) != _checksum(document):
            raise FormatError(f"{MANIFEST_NAME}: the contents do not match their checksum")
        if missing := {"schema", "build", "files"} - set(document):
            raise FormatError(f"{MANIFEST_NAME}: no entry {min(missing)!r}")
        return cls(GraphSchema.from_json(document["schema"]), document["build"], _files(document["files"]))


def _parsed(data: bytes) -> dict[str, Any]:
    document = read_json(data, what=MANIFEST_NAME, max_bytes=_MAX_BYTES)
    if not isinstance(document, dict):
        raise FormatError(f"{MANIFEST_NAME}: a {type(document).__name__}, not an object")
    return document


def _files(entries: Mapping[str, Any]) -> dict[str, FileRecord]:
    try:
        return {name: FileRecord.from_json(entry) for name, entry in entries.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{MANIFEST_NAME}: bad file record: {error}") from None


def _checksum(document: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())
