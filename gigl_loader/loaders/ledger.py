"""Ledger of a run: a line for every batch that a loader hands out, with digests of its request and frame.

The first line says what batches depend on (plan, run seed, options, digests); the next lines hold the input.
So any batch can be made again from the ledger and the graph: see ``replay``. A digest is half of a SHA-256,
32 hex digits. That of an array covers dtype, shape and values, by the BLAKE3 hash of each 4 MiB of them. None
depends on the mode, the number of ranks, or the partitions of the graph.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import time
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gigl_loader import __version__
from gigl_loader.channel.frame import VALUES
from gigl_loader.errors import FormatError
from gigl_loader.loaders.ledger_file import LedgerFile
from gigl_loader.native import draws
from gigl_loader.resources import usable_cores
from gigl_loader.tensors import STORAGE_DTYPES
from gigl_loader.threads import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from gigl_loader.arrays import Array, Bytes, Int64Array
    from gigl_loader.channel.frame import Frame
    from gigl_loader.loaders.dataset import NodeDirectory, SizedDataset
    from gigl_loader.loaders.device_rows import ResidentTransfer
    from gigl_loader.loaders.placement import Placement
    from gigl_loader.sampling.plan import BatchPlan
    from gigl_loader.sampling.request import InputColumn
    from gigl_loader.sampling.schedule import Schedule

logger = logging.getLogger(__name__)

FORMAT = 1
"""Version of the lines."""
PLACES = "places"
"""Name of the column that holds the place of each entry in the user's input, where it is not its number."""
_DIGITS = 32
_PIECE_BYTES = 1 << 22
_COLUMN_BYTES = 1 << 22
"""Of a column, in one line."""
_PARALLEL_BYTES = 1 << 23
"""A frame of fewer bytes is hashed by one thread: starting others would take longer."""
_MOST_THREADS = 4
_TRAINER = "trainer"


def digest(*parts: bytes) -> str:
    """Return the digest of the parts, one after the other."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()[:_DIGITS]


def digest_of_json(value: Any) -> str:
    """Return the digest of plain values: of their JSON with sorted keys."""
    return digest(json.dumps(value, sort_keys=True).encode())


def run_digests(plan: BatchPlan, made_with: Mapping[str, Any], graph: str) -> dict[str, str]:
    """Return the digests of a run by what they cover.

    ``run``: all that its batches depend on but the contents of the graph; equal on all ranks and partitions.
    ``plan``: what is sampled. ``graph``: the graph as it is partitioned.
    """
    return {"run": digest_of_json(settings_of(plan, made_with)), "plan": _plan_digest(plan), "graph": graph}


def settings_of(plan: BatchPlan, made_with: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that batches depend on but the contents of the graph, as plain values."""
    settings = {name: value for name, value in made_with.items() if name != "sharding"}
    return {**settings, "run_seed": plan.run_seed, "draws": draws.DRAW_SPECIFICATION}


def _plan_digest(plan: BatchPlan) -> str:
    document = json.loads(plan.to_json())
    del document["run_seed"]
    return digest_of_json(document)


def request_digest(run: str, *, epoch: int, batch: int, places: Int64Array) -> str:
    """Return the digest of a request: of the run, the numbers of the batch, and its ``places`` [B]."""
    return digest(f"{run} {epoch} {batch} ".encode(), places.astype("<i8", copy=False).tobytes())


class FrameDigests:
    """Digests of the arrays of frames. Arrays of large frames are hashed by several threads."""

    def __init__(self) -> None:
        """``ImportError`` where BLAKE3 is not installed."""
        try:
            from blake3 import blake3
        except ImportError:
            raise ImportError("ledgers need BLAKE3: pip install 'gigl-loader[audit]'") from None
        # One thread of its own: its pool of threads does not survive a fork.
        self._hash: Callable[[Bytes], bytes] = lambda piece: blake3(piece.data).digest()
        threads = min(usable_cores(), _MOST_THREADS)
        self._pool = ThreadPool(threads, thread_name_prefix="ledger") if threads > 1 else None

    def __call__(self, frame: Frame, resident: ResidentTransfer | None = None) -> dict[str, str]:
        """Return the digest of each array by name, and as ``counts`` that of the numbers of nodes and edges.

        ``resident`` returns whole columns, of a frame that leaves out rows that lie on the device.
        """
        arrays = dict(_arrays(frame, resident))
        map_over: Any = map
        if self._pool is not None and frame.nbytes >= _PARALLEL_BYTES:
            map_over = self._pool.map
        pieces = [(name, piece) for name, (_, array) in arrays.items() for piece in _pieces(array)]
        sums: dict[str, list[bytes]] = {name: [] for name in arrays}
        for (name, _), found in zip(
            pieces, map_over(self._hash, (piece for _, piece in pieces)), strict=True
        ):
            sums[name].append(found)
        counts = {key: json.loads(text) for key, text in frame.layout.metadata.items()}
        counts = {key: value for key, value in counts.items() if key not in ("epoch", "batch")}
        found = {name: digest(head.encode(), *sums[name]) for name, (head, _) in sorted(arrays.items())}
        return {**found, "counts": digest_of_json(counts)}

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)


def _arrays(frame: Frame, resident: ResidentTransfer | None) -> Iterator[tuple[str, tuple[str, Bytes]]]:
    """Yield name, dtype and shape as text, and bytes of the arrays that every mode has."""
    carried, on_device = (frame.names, {}) if resident is None else resident.whole(frame)
    for name in carried:
        if name.endswith(VALUES):  # Which frames have them differs by mode.
            continue
        spec, begin = frame.layout.specs[name], frame.layout.offsets[name]
        yield name, (f"{spec.dtype} {list(spec.shape)}", frame.buffer[begin : begin + spec.nbytes])
    for name, (dtype, tensor) in on_device.items():
        data = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        yield name, (f"{dtype} {list(tensor.shape)}", data)


def _pieces(array: Bytes) -> Iterator[Bytes]:
    for begin in range(0, len(array), _PIECE_BYTES):
        yield array[begin : begin + _PIECE_BYTES]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """Run of a loader at its place among the ranks, as a ledger records it."""

    loader: str
    """Name of the class."""
    plan: BatchPlan
    made_with: Mapping[str, Any]
    """All that batches depend on but run seed, epoch, and the contents of the graph."""
    schedule: Schedule
    dataset: SizedDataset
    placement: Placement
    resident: ResidentTransfer | None
    """Returns whole columns of frames that leave out rows that lie on the device."""

    @property
    def settings(self) -> dict[str, Any]:
        """All that batches depend on but the contents of the graph, as plain values."""
        return settings_of(self.plan, self.made_with)

    def input_columns(self) -> Iterator[tuple[str, Array]]:
        """Yield the columns of the input, [N] or [N, width] each, with node ids for positions."""
        for column in self.plan.inputs:
            yield column.name, node_ids_of(self.dataset, column, self.schedule.inputs)
        if self.schedule.places is not None:
            yield PLACES, self.schedule.places


class Ledger:
    """Ledger that a loader writes, made by ``loader.ledger(path)``.

    Rank 0 writes ``path``, rank 3 of several ranks ``NAME.rank3.EXT`` beside it. A loader that takes another
    place among the ranks goes on in the file of that rank.
    """

    def __init__(self, run: Run, path: str | os.PathLike[str]) -> None:
        self._given = Path(path)
        self._digests = FrameDigests()
        self._is_open = True
        self._placement: Placement | None = None
        self._plan: BatchPlan | None = None
        try:
            self._open(run)
        except BaseException:
            self._digests.close()
            raise

    @property
    def path(self) -> Path:
        """File of this rank."""
        return self._file.path

    @property
    def head(self) -> str:
        """``chain`` of the last line, 64 hex digits: it stands for every byte of the file up to here.

        Kept elsewhere (in a paper, in the log of the experiment), it shows whether lines were changed or cut
        off since: ``gigl-loader replay LEDGER --head HEAD``.
        """
        return self._file.chain

    def close(self) -> None:
        """Flush the file to disk and close it: the loader goes on without. Closing twice is fine."""
        self._is_open = False
        self._file.close()
        self._digests.close()

    @contextmanager
    def recording(self, frame: Frame, run: Run, origin: int) -> Iterator[None]:
        """Write the line of a batch after the block that makes it. Digests are taken before it.

        ``origin``: where the steps of the epoch begin, see ``Schedule``. ``ValueError``, before the block,
        where the ledger is of another run.
        """
        line = self._line(frame, run, origin) if self._is_open else {}
        yield
        if self._is_open:
            self._file.append(line)

    def _line(self, frame: Frame, run: Run, origin: int) -> dict[str, Any]:
        self._follow(run)
        schedule = run.schedule.from_origin(origin)
        number = schedule.number_in_epoch(frame.batch)
        places = frame.array("input_id")
        span = schedule.span(frame.batch)
        entries = [span.start, span.stop] if schedule.draw is None else None
        arrays = self._digests(frame, run.resident)
        return {
            "kind": "batch",
            "epoch": frame.epoch,
            "batch": number,
            **({"places": places.tolist()} if entries is None else {"entries": entries}),
            "request": request_digest(self._run_digest, epoch=frame.epoch, batch=number, places=places),
            "frame": digest_of_json(arrays),
            "arrays": arrays,
            "served_by": frame.served_by or _TRAINER,
            "time": round(time.time(), 3),
        }

    def _follow(self, run: Run) -> None:
        """Go on in the file of another rank, where the loader has become that rank. Refuse another run."""
        if run.placement is not self._placement:
            self._file.close()
            self._open(run)
        elif run.plan is not self._plan:
            self._check(run)
            self._plan = run.plan

    def _open(self, run: Run) -> None:
        topology, timeout_s = run.placement.topology, run.placement.options.timeout_s
        name = f"{self._given.stem}.rank{topology.rank}{self._given.suffix}"
        self._file = LedgerFile(
            self._given.with_name(name) if topology.rank else self._given, timeout_s=timeout_s
        )
        self._run_digest = digest_of_json(run.settings)
        try:
            self._begin_file(run)
        except BaseException:
            self._file.close()
            raise
        self._placement, self._plan = run.placement, run.plan  # Last: after an error, it is tried again.

    def _begin_file(self, run: Run) -> None:
        topology = run.placement.topology
        place = {
            "graph": run.dataset.graph_digest,
            "rank": topology.rank,
            "world_size": topology.world_size,
            "sharding": str(run.schedule.shard),
            "gigl_loader": __version__,
            "time": round(time.time(), 3),
        }
        if self._file.first is not None:
            self._check(run)
            self._file.append({"kind": "resumed", **place, "dropped_bytes": self._file.dropped_bytes})
            if self._file.dropped_bytes:
                text = "%s: an incomplete line of %d bytes was cut off the end of the ledger %s"
                logger.warning(text, run.placement.name, self._file.dropped_bytes, self._file.path)
            return
        columns = dict(run.input_columns())
        self._file.first = {
            "kind": "run",
            "format": FORMAT,
            "run": self._run_digest,
            "loader": run.loader,
            "settings": run.settings,
            "plan": json.loads(run.plan.to_json()),
            "num_entries": run.schedule.num_entries,
            **place,
        }
        self._file.append(self._file.first)
        for name, column in columns.items():
            for first, values in packed(column):
                self._file.append({"kind": "input", "column": name, "first": first, "values": values})

    def _check(self, run: Run) -> None:
        """Raise ``ValueError`` where the file is of another run."""
        here, there = run.settings, (self._file.first or {}).get("settings")
        if not isinstance(there, dict):
            raise FormatError(f"{self._file.path}, line 1: it describes no run")
        names = sorted(here.keys() | there.keys())
        differ = [name for name in names if here.get(name) != there.get(name)]
        if differ:
            what = "; ".join(f"{name} is {here.get(name)} here, {there.get(name)} there" for name in differ)
            raise ValueError(
                f"the ledger {self._file.path} is of another run: {what:.500}. Give another path, or load "
                "the state of that run before"
            )


def node_ids_of(directory: NodeDirectory, column: InputColumn, inputs: Mapping[str, Array]) -> Array:
    """Return a column of ``inputs`` with node ids in place of positions, where it has positions."""
    return _mapped(inputs, column, directory.node_ids)


def positions_of(directory: NodeDirectory, column: InputColumn, inputs: Mapping[str, Array]) -> Array:
    """Return a column of ``inputs`` with positions in place of node ids, where it has ids.

    ``ValueError`` for unknown ids, and for an unknown number of a node type.
    """
    return _mapped(inputs, column, directory.positions)


def _mapped(inputs: Mapping[str, Array], column: InputColumn, lookup: Any) -> Array:
    values = inputs[column.name]
    if column.node_types:
        found = np.empty_like(values)
        for node_type, entries in column.entries_by_type(inputs):
            found[entries] = lookup(node_type, values[entries])
        return found
    if column.node_type is None:
        return values
    flat = np.ascontiguousarray(values.reshape(-1))
    is_node = flat != -1  # It stands for no node, in a column where some may lack.
    if is_node.all() or not column.optional:
        return np.asarray(lookup(column.node_type, flat)).reshape(values.shape)
    found = flat.copy()
    found[is_node] = lookup(column.node_type, flat[is_node])
    return found.reshape(values.shape)


def packed(column: Array) -> Iterator[tuple[int, str]]:
    """Yield pieces of a column, [N] or [N, width]: the first entry of each, and its values as text.

    Integers of 8 bytes are stored as differences, byte by byte: ascending ids nearly vanish.
    """
    rows = max(_COLUMN_BYTES // max(column[:1].nbytes, 1), 1)
    for first in range(0, len(column), rows):
        flat = np.ascontiguousarray(column[first : first + rows]).reshape(-1)
        flat = flat.astype(flat.dtype.newbyteorder("<"), copy=False)
        if flat.dtype == np.int64:
            flat = np.diff(flat.view(np.uint64), prepend=np.uint64(0))
        data = flat.view(np.uint8).reshape(len(flat), -1).T
        yield first, base64.b64encode(zlib.compress(data.tobytes(), 1)).decode()


def unpacked(pieces: Iterable[tuple[int, str]], column: InputColumn | None, count: int, what: str) -> Array:
    """Return a column of ``count`` entries from its pieces. ``None`` for a column of places.

    ``FormatError``, naming ``what``, where they are not such a column.
    """
    dtype, width = ("I64", 1) if column is None else (column.dtype, column.width)
    kind = STORAGE_DTYPES[dtype]
    parts: list[Array] = []
    end = 0
    for first, text in pieces:
        if first != end:
            raise FormatError(f"{what}: entry {first} follows entry {end - 1}")
        part = _piece(text, kind, (count - end) * width, max(_COLUMN_BYTES, width * kind.itemsize), what)
        if not len(part) or len(part) % width:
            raise FormatError(f"{what}: {len(part)} values in rows of {width}")
        end += len(part) // width
        parts.append(part)
    if end != count:
        raise FormatError(f"{what}: {end} of {count} entries")
    whole = np.concatenate([np.empty(0, kind), *parts])
    return whole if width == 1 else whole.reshape(count, width)


def _piece(text: str, kind: np.dtype[Any], most: int, limit: int, what: str) -> Array:
    """Return at most ``most`` values from at most ``limit`` bytes."""
    size = kind.itemsize
    try:
        reader = zlib.decompressobj()
        data = reader.decompress(base64.b64decode(text, validate=True), limit + 1)
    except (ValueError, zlib.error) as error:
        raise FormatError(f"{what}: {error}") from None
    if len(data) % size or len(data) > min(most * size, limit):
        raise FormatError(f"{what}: more values than entries, or parts of one")
    flat = np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(size, -1).T).view(kind).reshape(-1)
    if kind == np.int64:
        flat = np.cumsum(flat.view(np.uint64), dtype=np.uint64).view(np.int64)
    return flat
