"""Batch request: which batch of which epoch, and its entries of the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.arrays import Array, Int64Array
from gigl_loader.native import batch_key
from gigl_loader.tensors import STORAGE_DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gigl_loader.arrays import Bytes
    from gigl_loader.options import NodeType
    from gigl_loader.sampling.new_nodes import NewNodes

SEED = "seed"
"""Name of the input column of plans whose input is nodes."""

SEED_TYPE = "seed_type"
"""Name of the input column that holds the number of each entry's node type, where seeds are of several."""

TIME = "time"
"""Name of the input column that holds the time of each entry's tree."""

TIME_START = "time_start"
"""Name of the input column that holds the time at which the window of each entry's tree begins."""

SEED_TIME = "seed_time"
"""Name of the array of a frame that has these times."""

SEEDS_WITHOUT_PAST = "seeds_without_past"
"""Counter of the entries of a batch in which no edge is early enough for any of them."""

INDEX_BYTES = 8


@dataclass(frozen=True, slots=True)
class InputColumn:
    """One column of an input: a value for each of its entries."""

    name: str
    dtype: str = "I64"
    """A safetensors dtype name."""
    node_type: NodeType | None = None
    """The values are positions of nodes of this type: int64, and checked to lie in range."""
    width: int = 1
    """Values of each entry. With several, the column is a matrix [B, width]."""
    optional: bool = False
    """-1 stands for no node."""
    node_types: tuple[NodeType, ...] = ()
    """In place of ``node_type``: the values are positions of nodes of one of these types. The column
    ``SEED_TYPE`` has its number."""

    @property
    def numpy_dtype(self) -> np.dtype[np.generic]:
        return STORAGE_DTYPES[self.dtype].newbyteorder("<")

    def entries_by_type(self, inputs: Mapping[str, Array]) -> Iterator[tuple[NodeType, slice | Int64Array]]:
        """Yield the node types of a column of positions, and at which entries the values are of each.

        ``inputs``: all columns of the request. ``ValueError`` for a number that no type has.
        """
        if self.node_type is not None:
            yield self.node_type, slice(None)
        if not self.node_types:
            return
        numbers = inputs[SEED_TYPE]
        if len(numbers) and int(numbers.max()) >= len(self.node_types):
            raise ValueError(f"{SEED_TYPE} {numbers.max()} of {len(self.node_types)} node types")
        for number, node_type in enumerate(self.node_types):
            yield node_type, np.flatnonzero(numbers == number)


@dataclass(frozen=True, slots=True, eq=False)
class BatchRequest:
    """Request for one batch. One form from the schedule to the sampler, in process and on both wires."""

    epoch: int
    batch: int
    index: Int64Array
    """Place of each entry in the user's input, int64 [B]. All draws of the batch depend on it."""
    inputs: Mapping[str, Array]
    """By name, the columns that the plan lists, [B] or [B, width]. Nodes are positions, and may repeat."""
    number: int = 0
    """Number of the batch among those of all ranks: that which one rank alone would give it."""
    new: NewNodes | None = None
    """Nodes that the graph does not have. Only samplers that stay open send some."""

    def __len__(self) -> int:
        """Number of entries."""
        return len(self.index)

    @property
    def nbytes(self) -> int:
        new = 0 if self.new is None else self.new.nbytes
        return self.index.nbytes + sum(column.nbytes for column in self.inputs.values()) + new

    def key(self, run_seed: int, *node_ids: Int64Array) -> int:
        """Return the key of every draw of the batch: a function of run seed, epoch, places and node ids.

        ``node_ids``: int64 [B] for each column of nodes, in the order of the plan.
        """
        return batch_key(run_seed, self.epoch, np.concatenate([self.index, *node_ids]))

    def epoch_key(self, run_seed: int) -> int:
        """Return the key of draws that depend on the number of the batch, and not on its entries."""
        return batch_key(run_seed, self.epoch, np.empty(0, np.int64))

    def input_bytes(self) -> bytes:
        """Return the columns one after the other, little-endian, in the order of the plan."""
        return b"".join(
            column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes()
            for column in self.inputs.values()
        )

    @classmethod
    def read(
        cls,
        epoch: int,
        batch: int,
        *,
        index: bytes | Bytes,
        inputs: bytes | Bytes,
        columns: Sequence[InputColumn],
        number: int,
    ) -> BatchRequest:
        """Return a request whose arrays alias ``index`` and ``inputs`` (:meth:`input_bytes`).

        ``ValueError`` unless ``index`` and ``inputs`` hold whole columns of equal length. The values are not
        checked.
        """
        if len(index) % INDEX_BYTES:
            raise ValueError(f"an index of {len(index)} bytes is no int64")
        count = len(index) // INDEX_BYTES
        wanted = count * (entry_bytes(columns) - INDEX_BYTES)
        if len(inputs) != wanted:
            names = ", ".join(each.name for each in columns)
            raise ValueError(f"{count} entries of {names} take {wanted} bytes, got {len(inputs)}")
        arrays: dict[str, Array] = {}
        begin = 0
        for column in columns:
            array = np.frombuffer(inputs, column.numpy_dtype, count * column.width, offset=begin)
            begin += array.nbytes
            array = array if array.flags.aligned else array.copy()
            arrays[column.name] = array if column.width == 1 else array.reshape(count, column.width)
        return cls(epoch, batch, np.frombuffer(index, "<i8"), arrays, number)


def entry_bytes(columns: Sequence[InputColumn]) -> int:
    """Return the bytes of one entry in a request: its index and its values in each column."""
    return INDEX_BYTES + sum(column.numpy_dtype.itemsize * column.width for column in columns)
