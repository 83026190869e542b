"""Document: one file of a graph, in the safetensors format, written in pieces and checked when opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gigl_loader.errors import FormatError
from gigl_loader.graph.checksums import BlockSums, FileRecord
from gigl_loader.graph.folder import Folder, Sink
from gigl_loader.native import crc32c
from gigl_loader.tensors import STORAGE_DTYPES, ArraySpec, Layout, spec_of

__all__ = ["Document", "DocumentWriter", "write_document"]


class DocumentWriter:
    """Writer of the arrays of one file. Each array is appended in pieces, interleaved with others."""

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


def write_document(
    folder: Folder,
    name: str,
    arrays: Mapping[str, npt.NDArray[Any]],
    specs: Mapping[str, ArraySpec] | None = None,
) -> FileRecord:
    """Write a whole file. ``specs`` are required only for dtypes that NumPy lacks (bfloat16)."""
    writer = DocumentWriter(folder, name, specs or {key: spec_of(array) for key, array in arrays.items()})
    for key, array in arrays.items():
        writer.append(key, array)
    return writer.close()


class Document:
    """A mapped file of a graph. Its header is checked when it is opened, its data by ``verify``."""

    def __init__(self, folder: Folder, name: str, record: FileRecord) -> None:
        self.name = name
        self._record = record
        self.status = folder.status(name)
        """Status of the file when it was mapped."""
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

    def verify(self, report: Callable[[int], None]) -> None:
        """Read every byte, and compare the checksums. ``report(nbytes)`` is called after each read."""
        self._record.verify(self._buffer, self.layout, self.name, report)


def _opened(folder: Folder, name: str) -> npt.NDArray[np.uint8]:
    try:
        return folder.open(name)
    except FileNotFoundError:
        raise FormatError(f"{name}: missing from {folder}") from None
    except OSError as error:
        raise FormatError(f"{name}: cannot be read: {error.strerror}") from None
