"""Checksums of the files of a graph, as stored in ``graph.json``: by block, or, in version 1, by array."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from gigl_loader.arrays import Bytes, first_true
from gigl_loader.errors import FormatError
from gigl_loader.native import crc32c, crc32c_blocks, crc32c_combine
from gigl_loader.tensors import Layout

Report = Callable[[int], None]


class FileBytes(Protocol):
    """Bytes of a file: its map, or reads of it."""

    def __getitem__(self, span: slice[int, int, None], /) -> Bytes:
        """Return bytes, uint8 [count], valid until the next ones are taken."""


_SMALLEST_BLOCK = 1 << 20
"""Reading 1 MiB takes 0.1 ms. Smaller blocks would enlarge graph.json without a more useful error."""
_MAX_BLOCKS = 1 << 16
_STEP_BYTES = 8 << 20


def block_bytes_for(nbytes: int) -> int:
    """Return the block size of a file: 1 MiB, doubled until the file has at most 65,536 blocks."""
    size = _SMALLEST_BLOCK
    while nbytes > size * _MAX_BLOCKS:
        size *= 2
    return size


@dataclass(frozen=True, slots=True, eq=False)
class BlockRecord:
    """Record of a file in ``graph.json``: its size, and the CRC-32C of its header and of each block."""

    nbytes: int
    header: int
    block_bytes: int
    blocks: npt.NDArray[np.uint32]
    """uint32 [number of blocks]. The last block may be shorter."""

    def to_json(self) -> dict[str, Any]:
        packed = base64.b64encode(self.blocks.astype("<u4").tobytes()).decode()
        return {
            "nbytes": self.nbytes,
            "header": self.header,
            "block_bytes": self.block_bytes,
            "blocks": packed,
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> BlockRecord:
        nbytes, block_bytes = _natural(entry["nbytes"]), _natural(entry["block_bytes"])
        blocks = np.frombuffer(base64.b64decode(entry["blocks"], validate=True), "<u4").astype(np.uint32)
        if block_bytes < 1 or len(blocks) != -(-nbytes // block_bytes):
            raise ValueError(f"{len(blocks)} blocks of {block_bytes} bytes for a file of {nbytes}")
        return cls(nbytes, _natural(entry["header"]), block_bytes, blocks)

    def header_matches(self, header: bytes) -> bool:
        """Return whether this is the header of the file."""
        return crc32c(np.frombuffer(header, np.uint8)) == self.header

    def sound_blocks(self, first: int, data: Bytes) -> npt.NDArray[np.bool_]:
        """Return which blocks of ``data``, uint8 [N], are sound, bool [blocks]. ``first`` is their number."""
        expected = self.blocks[first : first - (-len(data) // self.block_bytes)]
        found = np.empty(len(expected), np.uint32)
        crc32c_blocks(data, self.block_bytes, found)
        return np.asarray(found == expected)

    def verify(self, buffer: FileBytes, layout: Layout, what: str, report: Report) -> None:
        """Read every byte. ``FormatError`` names the first block that is damaged."""
        step = max(_STEP_BYTES // self.block_bytes, 1)
        for first in range(0, len(self.blocks), step):
            expected = self.blocks[first : first + step]
            begin = first * self.block_bytes
            data = buffer[begin : min(begin + step * self.block_bytes, self.nbytes)]
            found = np.empty(len(expected), np.uint32)
            crc32c_blocks(data, self.block_bytes, found)
            if (wrong := first_true(found != expected)) is not None:
                begin += wrong * self.block_bytes
                end = min(begin + self.block_bytes, self.nbytes)
                raise FormatError(f"{what}: bytes {begin} to {end - 1} do not match their checksum")
            report(len(data))


@dataclass(frozen=True, slots=True)
class ArrayRecord:
    """Record of a file in ``graph.json`` of version 1: its size, and the CRC-32 of its header and arrays."""

    nbytes: int
    header: int
    arrays: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        return {"nbytes": self.nbytes, "header": self.header, "arrays": dict(self.arrays)}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> ArrayRecord:
        return cls(
            _natural(entry["nbytes"]),
            _natural(entry["header"]),
            {str(name): _natural(value) for name, value in entry["arrays"].items()},
        )

    def header_matches(self, header: bytes) -> bool:
        """Return whether this is the header of the file."""
        return zlib.crc32(header) == self.header

    def verify(self, buffer: FileBytes, layout: Layout, what: str, report: Report) -> None:
        """Read every byte. ``FormatError`` names the first array that is damaged."""
        if set(layout.specs) != set(self.arrays):
            raise FormatError(f"{what}: its arrays are not those of graph.json")
        report(len(layout.header))
        for name, spec in layout.specs.items():
            begin, total = layout.offsets[name], 0
            for start in range(begin, begin + spec.nbytes, _STEP_BYTES):
                piece = buffer[start : min(start + _STEP_BYTES, begin + spec.nbytes)]
                total = zlib.crc32(piece.data, total)
                report(len(piece))
            if total != self.arrays[name]:
                raise FormatError(f"{what}: the bytes of {name!r} do not match their checksum")


FileRecord: TypeAlias = BlockRecord | ArrayRecord


def record_from_json(entry: Mapping[str, Any], *, version: int) -> FileRecord:
    """Read the record of a file. ``KeyError``, ``TypeError`` or ``ValueError`` for an invalid one."""
    return ArrayRecord.from_json(entry) if version == 1 else BlockRecord.from_json(entry)


class BlockSums:
    """CRC-32C of each block of a file that is written in pieces, in any order, each byte once."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._size = block_bytes_for(nbytes)
        self._sums = np.zeros(-(-nbytes // self._size), np.uint32)
        self._fragments: dict[int, tuple[int, int]] = {}
        """Parts of blocks by their end: beginning and checksum."""
        self._added = 0

    def add(self, begin: int, data: Bytes) -> None:
        """Add ``data`` (uint8 [N]), which starts at byte ``begin`` of the file."""
        self._added += len(data)
        while len(data):
            room = self._size - begin % self._size
            if room == self._size and len(data) >= room:
                count = len(data) // room
                taken = count * room
                first = begin // room
                crc32c_blocks(data[:taken], room, self._sums[first : first + count])
            else:
                taken = min(room, len(data))
                self._extend(begin, data[:taken])
            begin, data = begin + taken, data[taken:]

    def finish(self, header: int) -> BlockRecord:
        """Return the record of the file. Every byte must have been added. ``header`` is the header's CRC."""
        assert self._added == self._nbytes, (self._added, self._nbytes)
        for end, (begin, crc) in sorted(self._fragments.items()):
            block = begin // self._size
            before = 0 if begin % self._size == 0 else int(self._sums[block])
            self._sums[block] = crc32c_combine(before, crc, end - begin)
        return BlockRecord(self._nbytes, header, self._size, self._sums)

    def _extend(self, begin: int, piece: Bytes) -> None:
        """Add a part of a block, and join it to the fragment of this block that ends where it begins."""
        first, crc = begin, 0
        if begin % self._size and begin in self._fragments:
            first, crc = self._fragments.pop(begin)
        self._fragments[begin + len(piece)] = (first, crc32c(piece, crc))


def _natural(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no natural number")
    return value
