"""Files of a graph changed by hand: damage with checksums that fit, and the formats of earlier versions."""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from gigl_loader.graph.folder import DiskFolder
from gigl_loader.graph.manifest import DocumentWriter
from gigl_loader.tensors import spec_of


def edited(path: Path, change: Callable[[dict[str, Any]], None], *, signed: bool = True) -> None:
    """Change ``graph.json``, with a digest that fits when ``signed``."""
    document = json.loads((path / "graph.json").read_text())
    change(document)
    if signed:
        document.pop("digest", None)
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        document["digest"] = hashlib.sha256(text.encode()).hexdigest()
    (path / "graph.json").write_text(json.dumps(document))


def rewrite(path: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the arrays of a file, with checksums that fit: what only a check of meaning can find."""
    arrays = {key: array.copy() for key, array in safetensors.numpy.load_file(path / name).items()}
    change(arrays)
    (path / name).unlink()
    writer = DocumentWriter(DiskFolder(path), name, {key: spec_of(array) for key, array in arrays.items()})
    for key, array in arrays.items():
        writer.append(key, array)
    record = writer.close()
    edited(path, lambda document: document["files"].__setitem__(name, record.to_json()))


def as_alpha(path: Path) -> None:
    """Make of a graph one of an early version, whose topology carries weights and times."""
    for file in sorted(path.glob("part-*/topology/*")):
        rewrite(path, file.relative_to(path).as_posix(), _add_weights_and_times)

    def declare(document: dict[str, Any]) -> None:
        for edges in document["schema"]["edges"]:
            edges.update(weight=True, time=True)

    edited(path, declare)


def _add_weights_and_times(arrays: dict[str, Any]) -> None:
    count = len(arrays["indices"])
    arrays.update(weight=(np.arange(count) % 3).astype(np.float32), time=np.zeros(count, np.int64))


def as_version_1(path: Path) -> None:
    """Write ``graph.json`` as the library did before there were blocks."""
    document = json.loads((path / "graph.json").read_text())
    for name, entry in document["files"].items():
        data = (path / name).read_bytes()
        header = data[: 8 + int.from_bytes(data[:8], "little")]
        spans = json.loads(header[8:])
        sums = {
            array: zlib.crc32(data[len(header) :][slice(*spec["data_offsets"])])
            for array, spec in spans.items()
        }
        document["files"][name] = {"nbytes": entry["nbytes"], "header": zlib.crc32(header), "arrays": sums}
    document.pop("digest")
    document["version"] = 1
    document["checksum"] = zlib.crc32(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())
    (path / "graph.json").write_text(json.dumps(document))


def in_page_cache(file: Path) -> float:
    """The share of a file's pages that the page cache has."""
    size = file.stat().st_size
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        memory = (ctypes.c_char * size).from_buffer(mapped)
        found = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        assert ctypes.CDLL(None).mincore(ctypes.byref(memory), ctypes.c_size_t(size), found) == 0
        del memory
    return sum(each & 1 for each in found) / len(found)
