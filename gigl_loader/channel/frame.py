"""A frame: one batch as a safetensors document in one flat buffer.

Arrays::

    seeds             I64 [B]        node ids of the seeds, with multiplicity
    input_id          I64 [B]        their places in the input
    node/T/n_id       I64 [N]        node ids of the sampled nodes of type T, seeds first
    node/T/COLUMN     any [N, ...]
    edge/E/rows       I32 [M]        local index of the neighbour, edge by edge, grouped by target
    edge/E/colptr     I64 [C + 1]    edges of the targets 0 .. C - 1
    edge/E/e_id       I64 [M]        edge ids, where they were asked for
    edge/E/COLUMN     any [M, ...]

T is a node type, E three parts joined by ``+`` (source, relation, destination), all percent-encoded,
as are column names. Metadata, JSON in strings: ``epoch``, ``batch``, ``seed_type`` (T),
``num_sampled_nodes`` and ``num_sampled_edges`` (numbers per hop, by T and by E). A batch that failed
has ``epoch``, ``batch`` and ``failure`` (type, message, traceback, worker), and no arrays.
"""

from __future__ import annotations

import json
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gigl_loader.channel.rules import MAX_HEADER_BYTES, check
from gigl_loader.compat import add_note
from gigl_loader.errors import SamplingError, StorageUnavailable
from gigl_loader.tensors import Layout

if TYPE_CHECKING:
    from gigl_loader.arrays import Bytes

__all__ = ["Failure", "Frame"]

_MAX_TRACEBACK = 16_000
_MAX_MESSAGE = 4_000


class Frame:
    """One batch in ``buffer`` (1-D uint8). Its arrays are views; they keep the buffer alive."""

    __slots__ = ("_batch", "_epoch", "buffer", "layout")

    def __init__(self, buffer: Bytes, layout: Layout) -> None:
        """Trust ``layout``, which was planned by this process. Bytes from elsewhere go to ``parse``."""
        self.buffer = buffer
        self.layout = layout
        self._epoch = int(layout.metadata["epoch"])
        self._batch = int(layout.metadata["batch"])

    @classmethod
    def parse(cls, buffer: Bytes, *, edge_dir: str) -> Frame:
        """Check every rule of the format and the values that index others, then return the frame.

        ``edge_dir`` says which side of an edge type is the neighbour: the source (``"in"``) or the
        destination (``"out"``). Raises ``FormatError`` with the name and the rule.
        """
        layout = Layout.parse(buffer, what="frame", max_header=MAX_HEADER_BYTES)
        check(buffer, layout, edge_dir=edge_dir)
        return cls(buffer, layout)

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
    def seed_type(self) -> str:
        """Encoded node type of the seeds."""
        seed_type: str = json.loads(self.layout.metadata["seed_type"])
        return seed_type

    @property
    def num_sampled_nodes(self) -> dict[str, list[int]]:
        """By encoded node type: distinct seeds, then new nodes of each hop."""
        counts: dict[str, list[int]] = json.loads(self.layout.metadata["num_sampled_nodes"])
        return counts

    @property
    def num_sampled_edges(self) -> dict[str, list[int]]:
        """By encoded edge type: edges of each hop."""
        counts: dict[str, list[int]] = json.loads(self.layout.metadata["num_sampled_edges"])
        return counts

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.layout.specs)

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return an array without a copy. BF16 comes as ``uint16``: see ``layout.specs[name].dtype``."""
        return self.layout.view(self.buffer, name)

    def raise_failure(self) -> None:
        """Raise ``SamplingError`` if this batch failed."""
        text = self.layout.metadata.get("failure")
        if text is not None:
            raise Failure(epoch=self.epoch, batch=self.batch, **json.loads(text)).error()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What went wrong with a batch, as a record: exceptions are never pickled."""

    epoch: int
    batch: int
    type: str
    message: str
    traceback: str
    worker: int | None
    """The sampling process; ``None`` if the trainer sampled the batch itself."""

    @classmethod
    def of(cls, error: BaseException, *, epoch: int, batch: int, worker: int | None) -> Failure:
        """Record ``error``, which was caught. Very long texts are cut."""
        lines = "".join(traceback.format_exception(error))
        return cls(
            epoch=epoch,
            batch=batch,
            type=type(error).__qualname__,
            message=_cut(str(error), _MAX_MESSAGE),
            traceback=_cut(lines, _MAX_TRACEBACK),
            worker=worker,
        )

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
        """Write the record as a frame, as a sampled batch would write itself."""
        header = self.layout.header
        buffer[: len(header)] = np.frombuffer(header, np.uint8)

    def error(self) -> SamplingError:
        """Return the exception that tells the trainer."""
        place = "" if self.worker is None else f"worker {self.worker}, "
        place += f"epoch {self.epoch}, batch {self.batch}"
        if self.type == StorageUnavailable.__name__:  # The one that says: nothing was consumed, ask again.
            error: SamplingError = StorageUnavailable(f"{place}: {self.message}")
        else:
            error = SamplingError(f"{place}: {self.type}: {self.message}")
        if self.worker is not None:
            add_note(error, f"in sampling process {self.worker}:\n{self.traceback}")
        return error


def _cut(text: str, length: int) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()  # As undecodable paths have.
    if len(text) <= length:
        return text
    return (
        f"{text[: length // 4]}\n... {len(text) - length} characters left out ...\n{text[-3 * length // 4 :]}"
    )
