"""Reader of the entries of a request, which checks each entry as it is read."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gigl_loader.arrays import Bytes, Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.native import check_stop, texts_at
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.versions import check_draws, serves_wire, wire_range
from gigl_loader.strict_json import read_json

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from gigl_loader.tensors import Layout

TEXT_ARRAYS = ("bytes", "offsets")

_TOGETHER = 256
"""Texts of one native call, which keeps other Python threads waiting: 4,096 of 8 KiB took 42 ms."""


def text_arrays(texts: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Return texts as ``bytes`` (their UTF-8, uint8 [B]) and ``offsets`` (int64 [N + 1])."""
    encoded = [text.encode() for text in texts]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(each) for each in encoded], out=offsets[1:])
    return {"bytes": np.frombuffer(b"".join(encoded), np.uint8), "offsets": offsets}


def texts_of(data: Bytes, offsets: Int64Array, what: str) -> list[str]:
    """Return the texts of ``text_arrays``. ``FormatError`` for arrays that hold no texts."""
    utf8, count = np.ascontiguousarray(data), len(offsets) - 1
    texts: list[str] = []
    try:
        for start in range(0, count, _TOGETHER):
            check_stop()
            texts += texts_at(utf8, offsets, np.arange(start, min(start + _TOGETHER, count)))
    except (RuntimeError, UnicodeDecodeError) as error:
        raise FormatError(f"{what}: bad texts: {error}") from None
    return texts


MAX_HEADER_BYTES = 64 << 10
"""Limit of the header of a request or an assembled reply. Usual ones have a few hundred bytes."""


_SHORT = 256


class RequestReader:
    """Entries of a request, each read once. A broken rule raises ``FormatError`` or ``Refusal``."""

    def __init__(self, layout: Layout, buffer: npt.NDArray[np.uint8]) -> None:
        self._layout = layout
        self._buffer = buffer
        if layout.nbytes != len(buffer):
            raise FormatError(f"request: {len(buffer) - layout.nbytes} bytes follow its end")
        self._unread = set(layout.metadata) | set(layout.specs)

    def text(self, name: str) -> str:
        if name not in self._layout.metadata:
            raise FormatError(f"request: no {name!r}")
        self._unread.discard(name)
        return self._layout.metadata[name]

    def has(self, name: str) -> bool:
        """Return whether the request has an entry of this name."""
        return name in self._layout.metadata

    def number(self, name: str, low: int, high: int) -> int:
        """Return an integer in ``[low, high)``."""
        text = self.text(name)
        if not (text.removeprefix("-").isdigit() and text.isascii() and len(text) <= 20):
            raise FormatError(f"request: {name} is {text[:40]!r}, not a number")
        if not low <= int(text) < high:
            raise FormatError(f"request: {name} {text} does not lie in [{low}, {high})")
        return int(text)

    def json(self, name: str) -> Any:
        text = self.text(name)
        read = _read_short if len(text) <= _SHORT else _read
        return read(text, f"request: {name}")

    def names(self, name: str) -> tuple[str, ...]:
        """Return a list of distinct strings."""
        value = self.json(name)
        if not are_names(value) or len(set(value)) != len(value):
            raise FormatError(f"request: {name} is not a list of different names")
        return tuple(value)

    def check_version(self) -> None:
        version = self.text("wire")
        if not serves_wire(version):
            raise Refusal(
                RefusalKind.MALFORMED,
                f"the request has wire version {version[:20]!r}, this service reads {wire_range()}: "
                "install the same version of gigl-loader on all hosts",
            )

    def check_draws(self) -> None:
        """Raise ``Refusal`` where the caller draws otherwise: one side was replaced by another build."""
        draws = self.number("draws", 1, 2**31) if self.has("draws") else 0
        try:
            check_draws("the caller", draws)
        except ValueError as error:
            raise Refusal(RefusalKind.CONFLICT, str(error)) from None

    def check_graph(self, graph: str) -> None:
        requested = self.text("graph")
        if requested != graph:
            raise Refusal(
                RefusalKind.OTHER_GRAPH, f"asked about graph {requested[:12]}, this service has {graph[:12]}"
            )

    def partition(self, held: Mapping[int, object]) -> int:
        partition = self.number("partition", 0, 2**31)
        if partition not in held:
            raise Refusal(RefusalKind.OTHER_GRAPH, f"partition {partition} is not here, only {sorted(held)}")
        return partition

    def integers(self, name: str) -> Int64Array:
        """Return an integer array, int64 [N], of any values."""
        spec = self._layout.specs.get(name)
        if spec is None or spec.dtype not in ("I32", "I64") or len(spec.shape) != 1:
            raise FormatError(f"request: {name!r} must be I32 or I64 of one dimension")
        self._unread.discard(name)
        # A copy, because kernels need natural alignment, and bytes from a network have any.
        return np.array(self._layout.view(self._buffer, name), dtype=np.int64)

    def octets(self, name: str) -> Bytes:
        """Return an array of bytes, uint8 [N]."""
        spec = self._layout.specs.get(name)
        if spec is None or spec.dtype != "U8" or len(spec.shape) != 1:
            raise FormatError(f"request: {name!r} must be U8 of one dimension")
        self._unread.discard(name)
        return self._layout.view(self._buffer, name)

    def rows(self, first: int, count: int, what: str = "a partition") -> Int64Array:
        """Return the requested positions, int64 [N]: each lies in ``[first, first + count)``."""
        rows = self.integers("rows")
        if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < count):
            raise ValueError(f"rows {rows.min()} to {rows.max()} lie outside {what} of {count}")
        rows += first
        return rows

    def positions(self, name: str, count: int) -> Int64Array:
        """Return the positions of an array, int64 [N]: each lies in ``[0, count)``."""
        positions = self.integers(name)
        if len(positions) and not (int(positions.min()) >= 0 and int(positions.max()) < count):
            raise ValueError(f"{name} {positions.min()} to {positions.max()} lie outside of {count} nodes")
        return positions

    def check_all_read(self) -> None:
        if self._unread:
            raise FormatError(f"request: unknown entry {min(self._unread)[:100]!r}")


def _read(text: str, what: str) -> Any:
    return read_json(text, what=what, max_bytes=MAX_HEADER_BYTES)


_read_short = lru_cache(1024)(_read)
"""The same few names come with every request. Readers do not change what they are given."""


def known_name(name: object, names: Collection[Any], what: str) -> None:
    if name not in names:
        raise ValueError(f"no {what} {str(name)[:100]!r}")


def are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
