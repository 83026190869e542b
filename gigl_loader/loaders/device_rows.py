"""Rows that the trainer's device has, or reads from the host's memory, and the frames that leave them out.

Such a frame comes in two forms. One that the trainer's process has completed carries the rows that the device
neither has nor reads, and places of the others (``+resident``). One that is used as it was sampled has
positions in place of all rows; the device then finds the place of each row by itself.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from gigl_loader.channel.frame import CARRIED_AT, POSITION, RESIDENT, SLOT
from gigl_loader.graph.schema import type_name
from gigl_loader.loaders.transfer import DTYPES, FrameTensors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from gigl_loader.arrays import Bytes, Int64Array
    from gigl_loader.channel.frame import Frame
    from gigl_loader.device.host_rows import Codes, HostRows
    from gigl_loader.graph.schema import Column, EdgeType, NodeType
    from gigl_loader.loaders.transfer import Transfer

_SHUT_DOWN = "the loader was shut down while a batch was made"
_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)
"""Rows are moved in the widest of these that they consist of: a device moves a word a thread."""


class ResidentTransfer:
    """Transfer of frames, and the rows that they leave out: ``feature_memory_device``.

    These lie on the device, or in memory of this host that the device reads. It is the ``DeviceMemory`` of
    the source of its frames.
    """

    def __init__(
        self,
        transfer: Transfer,
        device: torch.device,
        columns: Mapping[NodeType | EdgeType, Mapping[str, Column]],
    ) -> None:
        """``columns`` that batches carry, by node or edge type and name."""
        self._transfer = transfer
        self._device = device
        self._columns = {
            f"{'node' if isinstance(kind, str) else 'edge'}/{type_name(kind)}/{type_name(name)}": column
            for kind, of_kind in columns.items()
            for name, column in of_kind.items()
        }
        self._tables: dict[str, Tensor] = {}
        """Rows in words [R, words of a row], by the name of their column in frames."""
        self._host: dict[str, HostRows] = {}
        """Rows that the device reads, by the same names."""
        self._places: dict[str, Tensor] = {}
        """Place of each row of a type, int32 [R], by what the names of its columns begin with."""
        self._found: Tensor | None = None
        """Rows of batches that ``_places`` found on the device, int64."""

    def load(self, frame: Frame) -> FrameTensors:
        return self._loaded(frame, counts=True)

    def _loaded(self, frame: Frame, *, counts: bool) -> FrameTensors:
        tensors = self._transfer.load(frame)
        if any(name.endswith(f"/{RESIDENT}") for name in frame.names):
            if not self._tables and not self._host:
                raise RuntimeError(_SHUT_DOWN)
            return ResidentTensors(tensors, self._tables, self._host)
        if frame.by_position:
            found = self._found if counts else None
            return PositionTensors(tensors, self._tables, self._host, self._columns, self._places, found)
        return tensors

    def whole(self, frame: Frame) -> tuple[list[str], dict[str, tuple[str, Tensor]]]:
        """Return the arrays that a frame has whole, and dtype and values of those with rows on the device."""
        specs = frame.layout.specs
        columns: dict[str, list[str]] = {}
        for name in self._columns:
            columns.setdefault(name.rpartition("/")[0], []).append(name)
        helpers = {
            prefix: (deferred_name(prefix),) if frame.by_position else (RESIDENT, CARRIED_AT)
            for prefix in columns
        }
        left_out = [prefix for prefix, names in helpers.items() if f"{prefix}/{names[0]}" in specs]
        if not left_out:
            return list(specs), {}
        tensors = self._loaded(frame, counts=False)
        names = [name for prefix in left_out for name in columns[prefix]]
        known = {*names, *(f"{prefix}/{helper}" for prefix in left_out for helper in helpers[prefix])}
        values = {name: (self._columns[name].spec(0).dtype, tensors.tensor(name)) for name in names}
        return [name for name in specs if name not in known], values

    def allocate(self, sizes: Mapping[str, tuple[int, int]]) -> None:
        self._tables, self._places = {}, {}  # Before there are new ones: there may not be room for both.
        tables = {}
        for name, (rows, row_bytes) in sizes.items():
            word = _word_of(row_bytes)
            tables[name] = torch.empty((rows, row_bytes // word.itemsize), dtype=word, device=self._device)
        self._tables = tables

    def locate(self, prefix: str, positions: Int64Array, count: int) -> None:
        places = torch.arange(-1, -1 - count, -1, dtype=torch.int32, device=self._device)
        numbers = torch.arange(len(positions), dtype=torch.int32, device=self._device)
        places[torch.from_numpy(positions).to(self._device)] = numbers
        if self._found is None:
            self._found = torch.zeros((), dtype=torch.int64, device=self._device)
        self._finish_writing()
        self._places = {**self._places, prefix: places}

    def num_found(self) -> int:
        return 0 if self._found is None else int(self._found)

    def read_host(self, columns: Mapping[str, Sequence[Bytes]]) -> str | None:
        try:
            # Triton, which an installation for CPUs does not have.
            from gigl_loader.device import host_rows

            if (reason := host_rows.why_not(self._device)) is not None:
                return reason
            found = {
                name: host_rows.HostRows(name, parts, self._device, word=_word_of(parts[0].shape[1]))
                for name, parts in columns.items()
            }
        except Exception as error:  # Of CUDA, Triton or a compiler: they have no base in common.
            return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]:.200}"
        self._host |= found
        return None

    def write(self, column: str, first: int, rows: Bytes) -> None:
        table = self._tables.get(column)
        if table is None:
            return  # Cleared by another thread.
        table[first : first + len(rows)] = torch.from_numpy(rows).view(table.dtype)
        self._finish_writing()

    def _finish_writing(self) -> None:
        if self._device.type == "cuda":
            # Batches are made on other threads and streams, which wait for nothing.
            torch.cuda.current_stream(self._device).synchronize()

    def clear(self) -> None:
        self._tables, self._host, self._places = {}, {}, {}


class ResidentTensors(FrameTensors):
    """The arrays of a frame that leaves rows out, with whole columns."""

    def __init__(
        self, tensors: FrameTensors, tables: Mapping[str, Tensor], host: Mapping[str, HostRows]
    ) -> None:
        self.frame = tensors.frame
        self._tensors = tensors
        self._tables = tables
        self._host = host

    def tensor(self, name: str) -> Tensor:
        carried, places = self._tensors.tensor(name), self._places(name)
        if places is None:
            return carried
        row_shape, table = carried.shape[1:], _used_here(self._tables.get(name))
        if (host := self._host.get(name)) is not None:
            return host.gather(places, table).view(carried.dtype).view(len(places), *row_shape)
        if table is None:
            return carried
        rows = table.index_select(0, places)
        words = carried.reshape(len(carried), math.prod(row_shape)).view(table.dtype)
        carried_at = self._tensors.tensor(f"{name.rpartition('/')[0]}/{CARRIED_AT}")
        rows.index_copy_(0, carried_at.to(torch.int64), words)
        return rows.view(carried.dtype).view(len(places), *row_shape)

    def values(self, name: str, codes: Codes) -> Tensor | None:
        host, places = self._host.get(name), self._places(name)
        if host is None or places is None:
            return None
        return host.values(places, _used_here(self._tables.get(name)), codes)

    def edge_index(self, edge_type: EdgeType) -> Tensor:
        return self._tensors.edge_index(edge_type)

    def _places(self, name: str) -> Tensor | None:
        """Return the places of the rows of a column, int32 [N]. ``None``: the frame has the rows."""
        places = f"{name.rpartition('/')[0]}/{RESIDENT}"
        return self._tensors.tensor(places) if places in self.frame.layout.specs else None


class PositionTensors(FrameTensors):
    """The arrays of a frame that has positions in place of rows, with whole columns."""

    def __init__(  # noqa: PLR0917
        self,
        tensors: FrameTensors,
        tables: Mapping[str, Tensor],
        host: Mapping[str, HostRows],
        columns: Mapping[str, Column],
        places: Mapping[str, Tensor],
        found: Tensor | None,
    ) -> None:
        """The arguments are those of the transfer. Rows on the device are added to ``found``."""
        self.frame = tensors.frame
        self._tensors = tensors
        self._tables = tables
        self._host = host
        self._columns = columns
        self._places = places
        self._found = found
        self._known: dict[str, Tensor] = {}
        """Places of rows by type, int32 [N]."""

    def tensor(self, name: str) -> Tensor:
        column = self._columns.get(name)
        if column is None:
            return self._tensors.tensor(name)
        prefix = name.rpartition("/")[0]
        positions, host = self._positions(prefix), self._host.get(name)
        spec = column.spec(len(positions))
        dtype = DTYPES[spec.dtype]
        if (table := self._whole_table(name)) is not None:
            rows = table.index_select(0, positions)
        elif host is not None:
            rows = host.gather(self._places_of(prefix), self._located(name))
        elif column.row_bytes:
            raise RuntimeError(_SHUT_DOWN)
        else:
            return torch.empty(spec.shape, dtype=dtype, device=positions.device)
        return rows.view(dtype).view(spec.shape)

    def values(self, name: str, codes: Codes) -> Tensor | None:
        host = None if self._whole_table(name) is not None else self._host.get(name)
        if host is None:
            return None
        return host.values(self._places_of(name.rpartition("/")[0]), self._located(name), codes)

    def edge_index(self, edge_type: EdgeType) -> Tensor:
        return self._tensors.edge_index(edge_type)

    def _positions(self, prefix: str) -> Tensor:
        return self._tensors.tensor(f"{prefix}/{deferred_name(prefix)}")

    def _whole_table(self, name: str) -> Tensor | None:
        """Return the rows of a column if all of them are on the device."""
        table, host = self._tables.get(name), self._host.get(name)
        return _used_here(table) if table is not None and (host is None or len(table) == len(host)) else None

    def _located(self, name: str) -> Tensor | None:
        """Return the rows of a column on the device, where places say which they are."""
        return _used_here(self._tables.get(name)) if name.rpartition("/")[0] in self._places else None

    def _places_of(self, prefix: str) -> Tensor:
        if prefix not in self._known:
            positions, places = self._positions(prefix), _used_here(self._places.get(prefix))
            if places is None:
                self._known[prefix] = (-1 - positions).to(torch.int32)
            else:
                self._known[prefix] = places.index_select(0, positions)
                if self._found is not None:
                    self._found += (self._known[prefix] >= 0).sum()
        return self._known[prefix]


def deferred_name(prefix: str) -> str:
    """Return the name of the array that a frame has in place of the columns of a type."""
    return POSITION if prefix.startswith("node/") else SLOT


def _used_here(table: Tensor | None) -> Tensor | None:
    """Keep the allocator from handing out a table while the current stream still reads it."""
    if table is not None and table.is_cuda:
        table.record_stream(torch.cuda.current_stream(table.device))
    return table


def _word_of(row_bytes: int) -> torch.dtype:
    return next(each for each in _WORDS if row_bytes % each.itemsize == 0)
