"""``graph.json``: format version, schema, and size and checksums of every file.

It is written last, so a directory without a valid one is not a graph. Its digest covers the rest of the
document, and through the checksums every byte of the graph.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gigl_loader.errors import FormatError
from gigl_loader.graph.checksums import FileRecord, record_from_json
from gigl_loader.graph.folder import Folder
from gigl_loader.graph.schema import GraphSchema
from gigl_loader.strict_json import read_json

__all__ = ["FORMAT_VERSION", "MANIFEST_NAME", "Manifest", "version_for"]

FORMAT_VERSION = 3
_OLDEST_VERSION = 1
MANIFEST_NAME = "graph.json"
_FORMAT = "gigl-graph"
_MAX_BYTES = 64 << 20  # Enough for some 300,000 files.


def version_for(schema: GraphSchema) -> int:
    """Return the oldest format version that has what is in a schema, for readers that know no later one."""
    return 3 if schema.has_quantized_columns else 2


@dataclass(frozen=True)
class Manifest:
    """Contents of ``graph.json``."""

    schema: GraphSchema
    build: Mapping[str, Any]
    """How the graph was built, for information. No code reads it."""
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
        return cls(schema, build, _files(document["files"], version), version)


def _parsed(data: bytes) -> dict[str, Any]:
    document = read_json(data, what=MANIFEST_NAME, max_bytes=_MAX_BYTES)
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
