"""A frame: one batch as a safetensors document in one flat buffer.

Arrays::

    seeds             I64 [B]        node ids of the seeds, with multiplicity
    input_id          I64 [B]        index of each seed in the user's input
    node/T/n_id       I64 [N]        node ids of the sampled nodes of type T, seeds first
    node/T/COLUMN     any [N, ...]
    edge/E/rows       I32 [M]        local index of the neighbour, edge by edge, grouped by target
    edge/E/colptr     I64 [C + 1]    edges of the targets 0 .. C - 1
    edge/E/e_id       I64 [M]        edge ids, if requested
    edge/E/COLUMN     any [M, ...]
    merged/E          I32 [L]        bidirectional: which edges E has at last, as places in the M sampled
                                     edges of E, followed by those of its reverse type

Where batches end on the CPU, a frame may also have the values of a quantised column, which itself is U8. They
follow from the column, so digests leave them out::

    node/T/COLUMN+values, edge/E/COLUMN+values    F32 [N, ...], [M, ...]

A frame made in the trainer's process may leave out rows that lie on its device or that the device reads. The
columns of node type T then have C rows instead of N (an edge type, whose rows the device reads, none), and
there are::

    node/T/+resident  I32 [N]        number of each row among the rows on the device, 0 for those carried,
                                     -1 - position for those that the device reads from the host's memory
    node/T/+carried   I32 [C]        which of the N rows those of the frame are

T is a node type, E three parts joined by ``+`` (source, relation, destination), all percent-encoded,
as are column names. In place of ``seeds``, a batch of links has I32 local indices: ``src`` and ``dst`` [B] of
their ends, ``neg_src`` and ``neg_dst`` [J] of the ends of negatives.

Metadata, JSON in strings: ``epoch``, ``batch``, ``seed_type`` (T), ``num_sampled_nodes`` and
``num_sampled_edges`` (numbers per hop, by T and by E; one number for each E where subgraphs are not
directional), ``counters`` (numbers by name). A batch that failed has ``epoch``, ``batch`` and ``failure``
(type, message, traceback, worker), and no arrays.
"""

from __future__ import annotations

import json
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gigl_loader.errors import FormatError, SamplingError, StorageUnavailable, add_note
from gigl_loader.printable import printable_lines
from gigl_loader.strict_json import read_json
from gigl_loader.tensors import Layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gigl_loader.arrays import Bytes
    from gigl_loader.tracing import OpenSpan

MAX_HEADER_BYTES = 1 << 20
"""Limit of a frame's header, enough for some 7,000 arrays. The record of a failure has up to 300 KiB."""

RESIDENT, CARRIED_AT = "+resident", "+carried"
"""Arrays of a node type in a frame that leaves out rows: see the module. Plus signs in names of columns are
encoded."""

VALUES = "+values"
"""Ends the name of the array that has the values of a quantised column."""

POSITION = "position"
"""Array of a node type in place of all its columns, where they are deferred."""
SLOT = "slot"
"""The same of an edge type: see ``sampling/store.py``."""

_MAX_TRACEBACK = 16_000
_MAX_MESSAGE = 4_000


class Frame:
    """One batch in ``buffer`` (1-D uint8). Its arrays are views; they keep the buffer alive."""

    __slots__ = ("_batch", "_epoch", "buffer", "by_position", "layout", "served_by", "span")

    def __init__(self, buffer: Bytes, layout: Layout, served_by: str = "") -> None:
        """Trust ``layout``. Bytes that this process did not write go through ``FrameSchema.parse``.

        ``served_by``: the worker or storage server that sampled the batch; empty for this process.
        """
        self.buffer = buffer
        self.layout = layout
        self.served_by = served_by
        self.by_position = False
        """Node types have ``POSITION`` in place of their columns, whose rows all lie on the device."""
        self.span: OpenSpan | None = None
        """Of the batch that is made of the frame, where the program traces."""
        self._epoch = int(layout.metadata["epoch"])
        self._batch = int(layout.metadata["batch"])

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def batch(self) -> int:
        """Number of the batch in its epoch, from 0."""
        return self._batch

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes

    @property
    def is_failure(self) -> bool:
        """Whether the batch failed. The frame is then a failure record without arrays."""
        return "failure" in self.layout.metadata

    @property
    def num_sampled_nodes(self) -> dict[str, list[int]]:
        """Number of distinct seeds, then of new nodes of each hop, by encoded node type."""
        counts: dict[str, list[int]] = json.loads(self.layout.metadata["num_sampled_nodes"])
        return counts

    @property
    def num_sampled_edges(self) -> dict[str, list[int]]:
        """Number of edges of each hop, by encoded edge type."""
        counts: dict[str, list[int]] = json.loads(self.layout.metadata["num_sampled_edges"])
        return counts

    @property
    def counters(self) -> dict[str, int]:
        """Numbers that the sampler counted for the batch, by name."""
        text = self.layout.metadata.get("counters")
        counters: dict[str, int] = {} if text is None else json.loads(text)
        return counters

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.layout.specs)

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return an array as a view. BF16 is returned as ``uint16``: see ``layout.specs[name].dtype``."""
        return self.layout.view(self.buffer, name)

    def raise_failure(self) -> None:
        """Raise ``SamplingError`` if this batch failed."""
        text = self.layout.metadata.get("failure")
        if text is not None:
            raise Failure(epoch=self.epoch, batch=self.batch, **json.loads(text)).error()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Record of an exception that failed a batch: exceptions are never pickled."""

    epoch: int
    batch: int
    type: str
    message: str
    traceback: str
    worker: int | None
    """The sampling process; ``None`` if the trainer sampled the batch itself."""

    @classmethod
    def of(cls, error: BaseException, *, epoch: int, batch: int, worker: int | None) -> Failure:
        """Return the record of ``error``, which was caught. Very long texts are cut."""
        lines = "".join(traceback.format_exception(error))
        return cls(
            epoch=epoch,
            batch=batch,
            type=type(error).__qualname__,
            message=_cut(str(error), _MAX_MESSAGE),
            traceback=_cut(lines, _MAX_TRACEBACK),
            worker=worker,
        )

    @classmethod
    def parse(cls, buffer: Bytes) -> Failure:
        """Return the failure that a frame records. ``FormatError`` for any other frame."""
        layout = Layout.parse(buffer, what="frame", max_header=MAX_HEADER_BYTES)
        epoch, batch = (check_number(layout.metadata, key) for key in ("epoch", "batch"))
        record = read_failure(layout)
        if record is None:
            raise FormatError("frame: it records no failure")
        return cls(epoch=epoch, batch=batch, **record)

    @property
    def layout(self) -> Layout:
        record = {
            "type": self.type,
            "message": self.message,
            "traceback": self.traceback,
            "worker": self.worker,
        }
        metadata = {"epoch": str(self.epoch), "batch": str(self.batch), "failure": json.dumps(record)}
        return Layout.plan({}, metadata)

    def write(self, buffer: Bytes) -> None:
        """Write the record as a frame into ``buffer``, uint8 [``layout.nbytes``]."""
        header = self.layout.header
        buffer[: len(header)] = np.frombuffer(header, np.uint8)

    def error(self) -> SamplingError:
        """Return the exception to raise in the trainer."""
        place = "" if self.worker is None else f"worker {self.worker}, "
        place += f"epoch {self.epoch}, batch {self.batch}"
        if self.type == StorageUnavailable.__name__:  # Keeps its class: it means that nothing was consumed.
            error: SamplingError = StorageUnavailable(f"{place}: {self.message}")
        else:
            error = SamplingError(f"{place}: {self.type}: {self.message}")
        if self.worker is not None:
            add_note(error, f"in sampling process {self.worker}:\n{self.traceback}")
        return error


def _cut(text: str, length: int) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()  # Surrogates, as in paths that are not UTF-8.
    if len(text) <= length:
        return text
    return (
        f"{text[: length // 4]}\n... {len(text) - length} characters left out ...\n{text[-3 * length // 4 :]}"
    )


def check_number(metadata: Mapping[str, str], key: str) -> int:
    """Return a number of the metadata. ``FormatError`` unless it lies in [0, 2**63)."""
    value = read_metadata(metadata, key)
    if type(value) is not int or not 0 <= value < 2**63:
        raise FormatError(f"frame: {key} is {metadata[key][:100]!r}, not a number from 0")
    return value


def read_metadata(metadata: Mapping[str, str], key: str) -> Any:
    """Return the JSON of one entry of a frame's metadata. ``FormatError`` where there is none."""
    if key not in metadata:
        raise FormatError(f"frame: metadata lacks {key}")
    return read_json(metadata[key], what=f"frame: metadata {key}", max_bytes=MAX_HEADER_BYTES)


def read_failure(layout: Layout) -> dict[str, Any] | None:
    """Return the record of a failed batch, checked; ``None`` for a frame of a batch that did not fail."""
    if "failure" not in layout.metadata:
        return None
    kinds = {"type": str, "message": str, "traceback": str, "worker": (int, type(None))}
    record = read_metadata(layout.metadata, "failure")
    if not isinstance(record, dict) or record.keys() != kinds.keys():
        raise FormatError(f"frame: a failure record needs exactly {', '.join(kinds)}")
    for key, kind in kinds.items():
        if not isinstance(record[key], kind):  # type: ignore[arg-type]
            raise FormatError(f"frame: {key} of the failure record is a {type(record[key]).__name__}")
        if kind is str:
            record[key] = printable_lines(record[key])
    if layout.specs:
        raise FormatError(f"frame: a failed batch has array {next(iter(layout.specs))!r}")
    return record
