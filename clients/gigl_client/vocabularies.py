"""Vocabularies that lie in files of a graph, read from storage servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.ids import TextIds
from gigl_loader.graph.manifest import Document, Manifest, vocabulary_path
from gigl_loader.rpc.graph_requests import MAX_FILE_BYTES
from gigl_loader.rpc.remote_store import fetch_file, fetch_manifest

if TYPE_CHECKING:
    from gigl_loader.graph.schema import VocabularyFile
    from gigl_loader.rpc.replicas import ReplicaConnection


def fetch_vocabulary(connection: ReplicaConnection, file: VocabularyFile, *, digest: str) -> tuple[str, ...]:
    """Return the texts of a file of the graph with this digest. ``FormatError`` for damage on the way."""
    manifest = Manifest.parse(fetch_manifest(connection), what="graph.json of a storage server")
    if manifest.digest != digest:
        raise ValueError("the storage servers have another graph now: connect again")
    path = vocabulary_path(file.number)
    record = manifest.files[path]
    pieces = [
        fetch_file(connection, path, at, min(MAX_FILE_BYTES, record.nbytes - at), digest=digest)
        for at in range(0, record.nbytes, MAX_FILE_BYTES)
    ]
    folder = MemoryFolder()
    sink = folder.create(path, record.nbytes)
    sink.write(0, np.concatenate(pieces))
    sink.close()
    document = Document(folder, path, record)
    document.verify(lambda _: None)
    TextIds.check(file.num_texts, document.specs, path)
    return TextIds.of_document(document).all_texts()
